"""PTX reader: ``read_module(text) -> Module``; see ``ir`` for what comes out."""

from wattcast.features.ptx.reader import read_module

__all__ = ["read_module"]
