"""``python -m wattcast``: the command line, where no ``wattcast`` is on the path."""

from wattcast.app.cli import main

if __name__ == "__main__":
    main()
