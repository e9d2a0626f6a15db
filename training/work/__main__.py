"""``python -m wattcast.training.work``: see ``wattcast.training.work.study``."""

import sys

from wattcast.training.work.study import main

sys.exit(main())
