"""Words, charts and pages: one self-contained HTML file each, nothing fetched from anywhere."""
