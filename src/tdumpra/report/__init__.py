"""Pages that people look at: one self-contained HTML file each, nothing fetched from anywhere."""
