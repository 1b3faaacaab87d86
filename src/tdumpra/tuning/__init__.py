"""Choose everything on validation rows."""
