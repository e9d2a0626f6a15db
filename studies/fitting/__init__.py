"""Fits the models that are shipped: needs the training data (docs/data.md)."""
