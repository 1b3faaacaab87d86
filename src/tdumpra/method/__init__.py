"""The method on arrays: outputs, bank, decision, evidence."""
