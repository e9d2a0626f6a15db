"""The same question has the same answer, whoever else is busy and whatever was asked before."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from studies.end_to_end import programs
from tests.app.same_answers import PUBLIC
from tests.fixtures.kernels.manifest import KERNELS
from wattcast.features.errors import DataError

pytestmark = [pytest.mark.slow, pytest.mark.alone]

BESIDE = 2
"""Processes that hold up the second one: it gets two thirds of two cores."""


@contextmanager
def busy() -> Iterator[None]:
    """Processes beside us that take what they can get, as nice as those they hold up."""
    spin = ["nice", "-n", "19", sys.executable, "-c", "while True: pass"]
    held = [subprocess.Popen(spin) for _ in range(BESIDE)]
    try:
        yield
    finally:
        for process in held:
            process.kill()
            process.wait()


def asked(names: tuple[str, ...], *, seed: int, threads: int, hashes: int, nice: int) -> bytes:
    """What a process of its own answers."""
    command = [
        "nice", "-n", str(nice), sys.executable, "-m", "tests.app.same_answers",
        str(seed), str(threads), *names,
    ]  # fmt: skip
    environment = {
        **os.environ,
        "PYTHONHASHSEED": str(hashes),
        "OPENBLAS_NUM_THREADS": str(threads),
    }
    found = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert found.returncode == 0, found.stderr.decode()
    return found.stdout


def compare(names: tuple[str, ...], answers: int) -> None:
    """In another order, by 8 threads, with other hashes, at nice 19 beside busy processes."""
    idle = asked(names, seed=1, threads=1, hashes=1, nice=0).split(b"\n")
    assert len(idle) == answers
    with busy():
        held_up = asked(names, seed=2, threads=8, hashes=2, nice=19).split(b"\n")
    different = [a.split(b" ")[0] for a, b in zip(idle, held_up, strict=True) if a != b]
    assert not different, different


def test_answers_about_every_fixture_are_the_same_byte_for_byte() -> None:
    compare(tuple(kernel.name for kernel in KERNELS), answers=3 * len(KERNELS))


def test_answers_about_public_programs_are_the_same_byte_for_byte() -> None:
    try:
        count = len(programs())
    except DataError as reason:
        pytest.skip(str(reason))
    compare((PUBLIC,), answers=count)
