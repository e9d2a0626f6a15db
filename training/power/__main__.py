"""``python -m training.power``: see ``training.power.holds``."""

import sys

from training.power.holds import main

sys.exit(main())
