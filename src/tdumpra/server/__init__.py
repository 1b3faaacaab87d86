"""A server for images of new cases: both opinions and the evidence, blind readings, decisions, and an audit trail."""
