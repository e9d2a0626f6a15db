"""``python -m training.work``: see ``training.work.study``."""

import sys

from training.work.study import main

sys.exit(main())
