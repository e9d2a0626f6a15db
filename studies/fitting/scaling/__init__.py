"""Scaling over clocks from counters."""
