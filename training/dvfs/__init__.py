"""Frequency scaling: rows, models, studies and artifacts of time and power over clocks."""
