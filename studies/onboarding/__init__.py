"""A simulated GPU whose every number is known, measured and onboarded."""
