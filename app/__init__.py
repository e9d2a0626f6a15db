"""Faces of Wattcast: the HTTP service, the command line and Python, over the same services."""
