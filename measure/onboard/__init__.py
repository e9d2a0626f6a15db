"""From a recording of a GPU to a profile, models and a report."""
