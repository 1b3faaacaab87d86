"""Score on test rows, beside every rival."""
