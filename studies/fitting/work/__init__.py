"""Time from measured work."""
