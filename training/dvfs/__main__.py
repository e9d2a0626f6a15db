"""``python -m training.dvfs``: see ``training.dvfs.command``."""

import sys

from training.dvfs.command import main

sys.exit(main())
