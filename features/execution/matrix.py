"""Matrix instructions."""
from features.execution.warp import Builder
BUILDERS: dict[str, Builder] = {}
