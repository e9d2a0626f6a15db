"""What papers published, reproduced beside the models in ``wattcast.models.papers``."""
