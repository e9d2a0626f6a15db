"""A bar on the terminal for what lasts over a second; nothing where nobody looks at one."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE_SECONDS = 1.0
"""How long nothing is shown: most answers are there before."""


class _Bar:
    """Shown from ``PATIENCE_SECONDS`` on, until something is printed or the work is done."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._of: tuple[int, int] | None = None
        self._shown: Progress | None = None
        self._over = False
        self._lock = threading.Lock()
        self._timer = threading.Timer(PATIENCE_SECONDS, self._show)
        self._timer.daemon = True
        self._timer.start()

    def advance(self, done: int, total: int) -> None:
        with self._lock:
            self._of = done, total
            if self._shown is not None:
                self._shown.update(self._shown.task_ids[0], completed=done, total=total)

    def clear(self) -> None:
        with self._lock:
            self._over = True
            self._timer.cancel()
            if self._shown is not None:
                self._shown.stop()
                self._shown = None

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with self._lock:
            if self._over:
                return
            shown = Progress(
                *columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True
            )
            done, total = self._of or (0, None)
            shown.add_task(self._what, completed=done, total=total)
            shown.start()
            self._shown = shown


_bars: list[_Bar] = []
"""The bar of the command that runs, if it has one."""


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show a bar on stderr while the block runs, if that is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    bar = _Bar(what)
    _bars.append(bar)
    try:
        yield
    finally:
        bar.clear()
        _bars.remove(bar)


def advance(done: int, total: int) -> None:
    """So many parts of the work are done."""
    for bar in _bars:
        bar.advance(done, total)


def clear() -> None:
    """Take the bar away: something is going to be printed."""
    for bar in _bars:
        bar.clear()
