"""Protocols, folds, scores and baselines: how any model is judged."""
