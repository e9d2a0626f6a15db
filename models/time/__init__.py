"""Time of a kernel launch: ``scheduling.py`` is the thesis' resource allocation model."""
