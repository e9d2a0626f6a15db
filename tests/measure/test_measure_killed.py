"""``wattcast measure`` killed at random moments goes on with nothing lost and nothing doubled."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from wattcast.measure.recording import read_recording

pytestmark = pytest.mark.slow

ONLY = "energy.fma.f32,energy.add,latency.fma,latency.add,launch"
KEYS = 21


def start(path: Path, told: Path) -> subprocess.Popen[bytes]:
    """The command, its progress in a file that outlives it."""
    command = [sys.executable, "-m", "tests.measure.simulated_cli", "measure", str(path)]
    with told.open("wb") as stderr:
        return subprocess.Popen([*command, "--only", ONLY], stderr=stderr, stdout=stderr)


def lines_of(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def kill_after(process: subprocess.Popen[bytes], path: Path, lines: int, wait: float) -> bool:
    """Kill once the recording has so many lines and ``wait`` seconds more are over; whether the
    command was still at work then."""
    while process.poll() is None and lines_of(path) < lines:
        time.sleep(0.001)
    time.sleep(wait)
    process.send_signal(signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


def measured_keys(path: Path) -> list[str]:
    """Keys of all whole configuration lines, as often as they stand there."""
    whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
    lines = [json.loads(line) for line in whole.splitlines()]
    return [one["key"] for one in lines if one["type"] == "configuration"]


def told_keys(told: Path) -> set[str]:
    """Keys whose measuring was reported as done, in whole lines."""
    lines = told.read_text("utf-8").rpartition("\n")[0].splitlines()
    parts = [line.split() for line in lines if "/uniform: " in line]
    return {part[1].removesuffix(":") for part in parts}


def test_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    chance = random.Random(8)
    path, told = tmp_path / "recording.jsonl", tmp_path / "told"
    before: list[str] = []
    whole = b""
    killed = 0
    for _ in range(4):
        process = start(path, told)
        # Two lines of a session, at most a module and a configuration for each of some kernels.
        lines = whole.count(b"\n") + chance.randrange(0, 9)
        killed += kill_after(process, path, lines, chance.uniform(0, 0.3))
        content = path.read_bytes() if path.exists() else b""
        assert content.startswith(whole)
        whole = content[: content.rfind(b"\n") + 1]
        keys = measured_keys(path)
        assert keys[: len(before)] == before
        # What was reported is there: only the configuration in flight is lost.
        assert told_keys(told) <= set(keys)
        before = keys
    assert killed
    process = start(path, told)
    assert process.wait() == 0, told.read_text("utf-8")
    keys = measured_keys(path)
    assert len(keys) == len(set(keys)) == KEYS
    assert keys[: len(before)] == before
    found = read_recording(path)
    assert not found.torn
    assert found.failures == ()
    assert all(one.result.time_seconds for one in found.configurations)
