"""The mathematics: tensors in, tensors out. No files, no logging, no configuration, no checks of users' input."""
