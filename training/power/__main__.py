"""``python -m wattcast.training.power``: see ``wattcast.training.power.holds``."""

import sys

from wattcast.training.power.holds import main

sys.exit(main())
