"""What a user sees of the installation: doctor, GPUs found by a word, links into the page, bars."""

from __future__ import annotations

import json
import os
import pty
import re
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.app.conftest import Run, settings_at
from tests.app.live import running
from tests.needs import needs_nvrtc
from wattcast.app.cli import doctor, predict
from wattcast.app.cli.exits import Exit
from wattcast.features.cuda import isolation

LAUNCH = ("--gpu", "v100", "--grid", "4096", "--block", "256")
SCALE = (
    "__global__ void scale(float *data, int n)\n{\n"
    "\tint at = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "\tif (at < n) data[at] *= 2.0f;\n}\n"
)


def checks(run: Run, status: int = 0) -> dict[str, dict[str, str]]:
    out, _ = run("doctor", "--json", status=status)
    return {check["name"]: check for check in json.loads(out)}


def test_doctor_tells_what_is_here(run: Run, tmp_path: Path) -> None:
    found = checks(run)
    assert found["models"]["state"] == "ok"
    assert re.fullmatch(r"\d+ power models of \d+ GPUs", found["models"]["told"])
    assert found["home"]["state"] == found["database"]["state"] == "missing"
    assert found["service"] == {
        "name": "service",
        "state": "missing",
        "told": "none runs at WATTCAST_HOST and _PORT",
        "fix": "wattcast serve",
    }
    nvrtc = isolation.find_nvrtc()
    assert found["NVRTC"]["state"] == ("missing" if nvrtc is None else "ok")
    assert set(found) >= {f"extra {name}" for name in doctor.EXTRAS}
    out, _ = run("doctor")
    assert "wattcast serve" in out


def test_what_is_missing_comes_with_the_command_that_brings_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = doctor._installed
    monkeypatch.setattr(doctor, "_installed", lambda name: name != "shap" and there(name))
    monkeypatch.setattr(isolation, "find_nvrtc", lambda: None)
    monkeypatch.setenv("PATH", "/nowhere")
    found = checks(run)
    assert found["extra explain"]["state"] == "missing"
    assert "not installed: shap" in found["extra explain"]["told"]
    assert re.search(r"pip install .*\[explain\]'", found["extra explain"]["fix"])
    assert re.search(r"pip install .*\[cuda\]'", found["NVRTC"]["fix"])
    assert found["command"]["fix"].startswith('export PATH="')


def test_the_command_installs_from_where_this_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.metadata as metadata

    class Distribution:
        origin: str | None = None

        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return self.origin

    one = Distribution()
    monkeypatch.setattr(metadata, "distribution", lambda name: one)
    assert doctor.install("cuda").endswith("pip install 'wattcast[cuda]'")
    one.origin = '{"url": "file:///a%20b/w", "dir_info": {"editable": true}}'
    assert doctor.install("cuda").endswith("pip install -e '/a b/w[cuda]'")
    one.origin = '{"url": "https://example.org/w", "vcs_info": {"vcs": "git"}}'
    assert doctor.install("cuda").endswith(
        "pip install 'wattcast[cuda] @ git+https://example.org/w'"
    )


def test_what_is_broken_is_status_one(run: Run, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "wattcast.db").write_bytes(b"this is no database at all, but long enough to be read")
    found = checks(run, status=Exit.NO_ANSWER)
    assert found["database"]["state"] == "broken"
    (home / "wattcast.db").unlink()
    with sqlite3.connect(home / "wattcast.db") as made:
        made.execute("CREATE TABLE alembic_version (version_num TEXT)")
        made.execute("INSERT INTO alembic_version VALUES ('0001')")
    found = checks(run, status=Exit.NO_ANSWER)
    assert "migration 0001, which this program does not know" in found["database"]["told"]


def test_a_setting_that_does_not_fit_is_told_and_nothing_else_fails(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATTCAST_PORT", "ninety")
    found = checks(run, status=Exit.NO_ANSWER)
    assert found["home"]["state"] == "broken"
    assert "port" in found["home"]["told"]
    assert found["wattcast"]["state"] == "ok"


def test_gpus_are_found_by_words(run: Run) -> None:
    def listed(*words: str) -> list[str]:
        return [one["id"] for one in json.loads(run("gpus", "list", *words, "--json")[0])]

    assert listed("3090") == ["rtx-3090", "rtx-3090-ti"]
    assert listed("A100", "80GB") == ["a100-pcie-80gb", "a100-sxm4-80gb"]
    assert "tesla-v100" in listed("volta")
    assert listed("10de:1db4") == ["tesla-v100"]
    _, err = run("gpus", "list", "3091", status=Exit.BAD_INPUT)
    assert "did you mean rtx-3090" in err


@needs_nvrtc
def test_hotspots_name_the_file_and_show_its_lines(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "scale.cu"
    file.write_text(SCALE, "utf-8")
    out, _ = run("hotspots", str(file), *LAUNCH, "--arg", "n=1048576")
    assert re.search(r"scale\.cu:4  if \(at < n\) data\[at\] \*= 2\.0f;", out)
    assert "kernel.cu" not in out
    rows = json.loads(run("hotspots", str(file), *LAUNCH, "--json")[0])["source_lines"]["rows"]
    assert {row["file"] for row in rows} == {"scale.cu"}


def test_hotspots_of_ptx_show_the_source_beside_it(run: Run, tmp_path: Path) -> None:
    """PTX names the file it was compiled from; here that lies beside it, or nowhere."""
    fixtures = Path(__file__).parents[1] / "fixtures" / "kernels"
    text = (fixtures / "ptx" / "transpose.sm_70.ptx").read_text("utf-8")
    named = re.search(r'^\s*\.file\s+1\s+"([^"]+)"', text, re.M)
    assert named is not None
    file = tmp_path / "transpose.ptx"
    file.write_text(text, "utf-8")
    words = ("hotspots", str(file), *LAUNCH[:2], "--grid", "64,64", "--block", "32,8")
    words = (*words, "--kernel", "transpose_direct", "--json")
    rows = json.loads(run(*words)[0])["source_lines"]["rows"]
    assert rows
    assert {row["text"] for row in rows} == {None}
    lines = [f"line {number}" for number in range(1, 1000)]
    (tmp_path / Path(named[1]).name).write_text("\n".join(lines), "utf-8")
    rows = json.loads(run(*words)[0])["source_lines"]["rows"]
    assert all(row["text"] == f"line {row['line']}" for row in rows)


def test_open_gives_a_link_to_the_answer_that_the_service_keeps(
    run: Run, tmp_path: Path, vector_add: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "k.ptx"
    file.write_text(vector_add, "utf-8")
    monkeypatch.setenv("WATTCAST_PORT", "1")
    out, err = run("predict", str(file), *LAUNCH, "--open", status=Exit.NO_ANSWER)
    assert "power" in out  # the answer is printed all the same
    assert "`wattcast serve`" in err
    with running(settings_at(tmp_path / "service", job_workers=0)) as client:
        monkeypatch.setenv("WATTCAST_HOST", client.base_url.host)
        monkeypatch.setenv("WATTCAST_PORT", str(client.base_url.port))
        out, err = run("predict", str(file), *LAUNCH, "--gpu", "a100", "--open", "--json")
        links = re.findall(r"page: (\S+)", err)
        answer = json.loads(out)["predictions"]
        assert len(links) == len(answer) == 2
        for link, one in zip(links, answer, strict=True):
            kept = client.get(f"/predictions/{link.partition('=')[2]}").json()
            assert kept["gpu"] == one["gpu"]
            assert kept["power"] == one["power"]
            assert client.get(link).status_code == 200
        assert checks(run)["service"]["state"] == "ok"
        assert predict.running(predict.Settings()) == str(client.base_url).rstrip("/")


def shown(code: str) -> tuple[str, str]:
    """What a program prints on a pipe, and on the terminal that is its stderr."""
    terminal, child = pty.openpty()
    done = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=child, text=True,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80"},
    )  # fmt: skip
    os.close(child)
    out = done.communicate(timeout=60)[0]
    drawn = b""
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # Linux says so where nobody holds the other end
            break
        if not part:
            break
        drawn += part
    os.close(terminal)
    return out, drawn.decode()


BAR = """
import time
from wattcast.app import progress
with progress.working("sweep"):
    progress.advance(1, 3)
    time.sleep({seconds})
    progress.clear()
    print("answer")
"""


def test_a_bar_is_shown_on_a_terminal_from_a_second_on() -> None:
    out, drawn = shown(BAR.format(seconds=2.5))
    assert out == "answer\n"
    assert "sweep" in drawn
    assert "1/3" in drawn
    assert shown(BAR.format(seconds=0.1)) == ("answer\n", "")


def test_no_bar_where_nobody_looks_at_a_terminal() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BAR.format(seconds=1.5)], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("answer\n", "")


def test_bulk_counts_its_files(tmp_path: Path, vector_add: str) -> None:
    for number in range(3):
        (tmp_path / f"{number}.ptx").write_text(vector_add, "utf-8")
    code = (
        "import sys\nfrom wattcast.app import progress\nfrom wattcast.app.cli import main\n"
        "progress.PATIENCE_SECONDS = 0.0\n"
        f"sys.argv = ['wattcast', 'bulk', {str(tmp_path)!r}, *{LAUNCH!r}]\nmain()"
    )
    started = time.monotonic()
    out, drawn = shown(code)
    assert time.monotonic() - started < 60
    assert out.count("vector_add") == 3
    assert re.search(r"bulk.*\d/3", drawn)
    assert "3 predicted, 0 failed" in drawn
