"""Boosted and extra trees of power."""
