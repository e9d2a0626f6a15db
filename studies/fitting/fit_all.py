"""``python -m studies fit-all``: every shipped model anew, by the commands that fit each kind.

Boosted power models, extra trees, time from measured work, scaling over clocks, the physical
power models, and those of code by measured operators, in this order. It stops at the first that
fails. Large models are stored compressed in the end.
"""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from studies import parser_of
from wattcast.models.store import COMPRESSED, PACKAGED_ARTIFACTS

STEPS = (
    ("studies", "train", "--all"),
    ("studies", "extra-trees"),
    ("studies", "work"),
    ("studies", "clocks"),
    ("studies", "fit-physical"),
    ("studies", "products"),
)
"""Module and arguments of every step; each takes ``--out``."""


COMPRESSED_FROM_BYTES = 100_000


def compress(root: Path) -> None:
    """Compress the models of at least ``COMPRESSED_FROM_BYTES`` of the artifacts below ``root``,
    where they are. The same content gives the same bytes."""
    for path in sorted(root.glob("*/*/*/*/model.*")):
        if path.suffix != COMPRESSED and path.stat().st_size >= COMPRESSED_FROM_BYTES:
            content = gzip.compress(path.read_bytes(), 9, mtime=0)
            path.with_name(path.name + COMPRESSED).write_bytes(content)
            path.unlink()


def main(arguments: Sequence[str]) -> int:
    """Run the command; the exit status, that of the step that failed."""
    parser = parser_of("fit-all", __doc__)
    parser.add_argument("--out", type=Path, default=PACKAGED_ARTIFACTS, help="artifact root")
    parser.add_argument("--resume", type=Path, help="finished boosted fits; goes on there")
    options = parser.parse_args(arguments)
    for module, *rest in STEPS:
        if options.resume and rest[-1] in ("--all", "extra-trees"):
            rest += ["--resume", str(options.resume)]
        # A process each: some set up their numeric libraries before these are loaded.
        command = [sys.executable, "-m", module, *rest, "--out", str(options.out)]
        print(" ".join(command[1:]), file=sys.stderr, flush=True)
        if status := subprocess.run(command, check=False).returncode:  # noqa: S603
            return status
    compress(options.out)
    return 0
