"""Speed and memory beside the budgets of the design: ``make bench``."""
