"""docs/api.md: every call is there, and its commands do what it says."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.needs import needs_nvrtc

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
COMMANDS = "\n".join(
    line.strip() for line in TEXT.splitlines() if line.startswith("    ") and "wattcast" not in line
)


def test_every_call_has_a_command(client: httpx.Client) -> None:
    written = [line for line in COMMANDS.splitlines() if "curl" in line]
    for path in client.get("/openapi.json").json()["paths"]:
        wanted = re.sub(r"\{prediction_id\}", "$id", path)
        wanted = wanted.replace("/models/{gpu}/{target}/{name}/{version}", "$card")
        pattern = re.sub(r"\\\{\w+\\\}", r"[$\\w-]+", re.escape(wanted))
        assert any(re.search(rf'\$U{pattern}(?=[\s"?]|$)', line) for line in written), path


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@needs_nvrtc
@pytest.mark.slow
def test_the_commands_run(client: httpx.Client) -> None:
    script = COMMANDS.replace("http://127.0.0.1:8000", str(client.base_url).rstrip("/"))
    done = subprocess.run(
        ["bash", "-euc", script.replace("curl -s", "curl -sS --fail")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert '"power":{"watts":' in done.stdout
    assert '"how":"executed"' in done.stdout
