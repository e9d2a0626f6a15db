"""``python -m wattcast.training.dvfs``: see ``wattcast.training.dvfs.command``."""

import sys

from wattcast.training.dvfs.command import main

sys.exit(main())
