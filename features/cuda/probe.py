"""Tell whether the doors are closed; runs as a script behind them (``isolation.in_force``).

Prints nothing and ends with 0 where no file of the machine, no network and no process is in reach.
"""

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path


def prepare(arguments: list[str]) -> Callable[[], int]:
    """The check, for one existing file of the machine and one process id."""
    file, process = arguments[0], int(arguments[1])

    def check() -> int:
        doors: list[tuple[str, Callable[[], object]]] = [
            ("a file exists", Path(file).stat),
            ("a file is read", lambda: os.open(file, os.O_RDONLY)),
            ("processes are listed", Path("/proc/self/environ").stat),
            ("a signal is sent", lambda: os.kill(process, 0)),
            ("a socket is made", socket.socket),
        ]
        for what, opened in doors:
            try:
                opened()
            except OSError:
                continue
            print(what, file=sys.stderr)
            return 1
        return 0

    return check
