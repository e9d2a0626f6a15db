"""Faces of Wattcast: the HTTP service and the command line, over the same services."""

import os

# Before anything can load an OpenMP runtime: spinning OpenMP threads cost factors of 100 on a
# busy core (docs/design.md, predictors). Every entry point imports this package first.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
