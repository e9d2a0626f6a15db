"""PTX reader: ``read_module(text) -> Module``; see ``ir`` for what comes out."""
