"""Measuring power, time and energy of kernels on a GPU, and what is recorded of it."""
