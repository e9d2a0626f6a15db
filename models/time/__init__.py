"""Time of a kernel launch: models behind one interface (``base``), by name in ``registry``."""
