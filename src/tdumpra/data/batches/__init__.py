"""From framed pixels to batches: sampling, augmentation, pipelines."""
