"""Time from measured work: folds, choice, transfer, known launches."""
