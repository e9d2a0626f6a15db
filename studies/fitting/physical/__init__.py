"""The physical power model."""
