"""Export models to formats that other programs run, and compare the two."""
