"""Sums over applications, and kernels without code."""
