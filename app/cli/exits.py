"""Exit statuses: one table, which every command keeps and ``wattcast --help`` prints."""

from __future__ import annotations

import json
import sys
from enum import IntEnum
from typing import NoReturn

from wattcast.app.progress import clear


class Exit(IntEnum):
    """What a status means; ``MEANINGS`` says it in words."""

    DONE = 0
    NO_ANSWER = 1
    BAD_INPUT = 2
    EXCEEDED = 3
    GIVEN_UP = 4
    INTERRUPTED = 130


MEANINGS = {
    Exit.DONE: "done",
    Exit.NO_ANSWER: "no answer, or a check failed; one line on stderr says why",
    Exit.BAD_INPUT: "wrong usage or input: an option, a file, a GPU, a launch or code",
    Exit.EXCEEDED: "a limit of `wattcast diff` is exceeded, or `wattcast judge` refuses",
    Exit.GIVEN_UP: "given up after --analysis-seconds",
    Exit.INTERRUPTED: "interrupted from the keyboard",
}

BAD_INPUT = frozenset(
    {
        *("ptx-syntax", "cuda-compile", "kernel", "launch", "clocks", "gpu", "schema", "data"),
        *("validation", "unknown-batch", "unknown-gpu", "unknown-model", "unknown-schema"),
        "model-config",
    }
)
"""Slugs of errors (``features/errors.py``) that are about what the user gave. Right input beyond
what can be answered is none: a kernel too complex, constraints that nothing keeps to."""


def status_of(slug: str) -> Exit:
    """The exit status of a WattcastError with this slug."""
    if slug == "time-limit":
        return Exit.GIVEN_UP
    return Exit.BAD_INPUT if slug in BAD_INPUT else Exit.NO_ANSWER


def fail(message: str, status: int = Exit.BAD_INPUT) -> NoReturn:
    """One line on stderr, with ``--json`` as JSON, and the end of the program."""
    clear()
    told = " ".join(message.split())
    as_json = json.dumps({"detail": told, "status": int(status)})
    print(as_json if "--json" in sys.argv else f"wattcast: {told}", file=sys.stderr)
    sys.exit(status)
