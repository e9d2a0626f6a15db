"""Scaling of time, power and energy over core and memory clocks."""
