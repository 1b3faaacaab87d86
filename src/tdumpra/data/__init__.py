"""From files to batches: sources, images, splits, batches."""
