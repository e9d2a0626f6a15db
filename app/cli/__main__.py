"""``python -m wattcast.app.cli``: the command ``wattcast``."""

from wattcast.app.cli import main

main()
