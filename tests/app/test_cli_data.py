"""``wattcast data``: what is fetched, refused and told; checked over real HTTP."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.app.conftest import Run
from wattcast.training.data import datasets, inventory
from wattcast.training.data.cleaning import MODEL_INPUTS, clean
from wattcast.training.data.datasets import SourceFile, sources
from wattcast.training.data.inventory import FetchError, fetch

HEADER = ",".join(["Sr No.", "Benchmark", "Kernel Name", "grid_size", "Power", *MODEL_INPUTS])
ROWS = "".join(
    ",".join([str(at), "b", "vecAdd10", str(at + 1), "70.5", *["1"] * len(MODEL_INPUTS)]) + "\n"
    for at in range(400)
)
CONTENT = f"{HEADER}\n{ROWS}".encode()
NAME = "Power Model Inputs - V100_data.csv"
PATH = f"/abc/Data sets/{NAME}"


@dataclass
class Upstream:
    """A server of one file, and how it misbehaves. ``asked`` counts its requests."""

    url: str = ""
    content: bytes = CONTENT
    statuses: list[int] = field(default_factory=list)
    break_after: list[int] = field(default_factory=list)
    asked: int = 0


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    state = Upstream()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

        def do_GET(self) -> None:
            state.asked += 1
            if unquote(self.path) != PATH:
                self.send_error(404)
                return
            if state.statuses:
                self.send_error(state.statuses.pop(0))
                return
            body = state.content
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: state.break_after.pop(0)] if state.break_after else body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}"
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SourceFile]:
    """``sources.toml`` with this one file."""
    path = tmp_path / "sources.toml"
    path.write_text(
        f"""
licence = "none"
repository = "https://example.org/data"
raw_address = "https://raw.example.org/data"
collection = []
[[file]]
id = "V100"
gpu = "tesla-v100"
layout = "thesis"
names = "V100_data"
path = "Data sets/{NAME}"
commit = "abc"
sha256 = "{hashlib.sha256(CONTENT).hexdigest()}"
unused = []
"""
    )
    monkeypatch.setattr(datasets, "SOURCES_FILE", path)
    sources.cache_clear()
    yield sources().get("V100")
    sources.cache_clear()


@pytest.fixture(autouse=True)
def _no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WATTCAST_DATA", raising=False)


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def test_a_file_is_fetched_once_and_then_known(
    run: Run, source: SourceFile, upstream: Upstream, tmp_path: Path
) -> None:
    there = tmp_path / "there"
    out, err = run("data", "fetch", "--to", str(there), "--from", upstream.url)
    path = there / "power" / "raw" / NAME
    assert path.read_bytes() == CONTENT
    assert out == f"V100: fetched, {path}\ntraining looks there with WATTCAST_DATA={there}\n"
    assert f"{upstream.url}/abc/Data%20sets/Power%20Model%20Inputs%20-%20V100_data.csv" in err
    out, _ = run("data", "fetch", "V100", "--to", str(there), "--from", upstream.url, "--json")
    (told,) = json.loads(out)
    assert told["how"] == "present"
    assert told["received_bytes"] == 0
    assert told["sha256"] == source.sha256
    assert upstream.asked == 1
    # What is fetched is enough to train on: nothing names its kernels but the rule.
    cleaned = clean("V100", there)
    assert (len(cleaned.frame), cleaned.named_by_rule) == (400, 400)


def test_without_a_folder_it_goes_into_the_home(
    run: Run,
    source: SourceFile,
    upstream: Upstream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(datasets, "__file__", str(tmp_path / "a" / "b" / "c" / "d.py"))
    assert datasets.find_data() is None
    out, _ = run("data", "fetch", "--from", upstream.url)
    folder = tmp_path / "home" / "data"
    assert (folder / "power" / "raw" / source.name).is_file()
    assert "WATTCAST_DATA" not in out
    assert datasets.find_data() == folder  # where training looks
    assert NAME in run("data", "check")[0]


def test_a_server_that_breaks_off_or_is_busy_is_asked_again(
    source: SourceFile, upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inventory, "PAUSE_SECONDS", 0.0)
    said: list[str] = []
    upstream.statuses, upstream.break_after = [503], [5000]
    there = tmp_path / "raw"
    done = fetch(source, there, base=upstream.url, progress=said.append)
    assert (done.how, done.received_bytes) == ("fetched", len(CONTENT))
    assert done.path.read_bytes() == CONTENT
    assert names_in(there) == {NAME}
    assert said[1] == "V100: the server answers 503; again"
    assert len([line for line in said if "again" in line]) == upstream.asked - 1 == 2


def test_another_file_is_never_kept(
    run: Run, source: SourceFile, upstream: Upstream, tmp_path: Path
) -> None:
    upstream.content = CONTENT.replace(b"70.5", b"71.5")
    out, err = run("data", "fetch", "--to", str(tmp_path), "--from", upstream.url, status=1)
    assert out == ""
    (error,) = (line for line in err.splitlines() if line.startswith("wattcast: "))
    assert source.sha256 in error
    assert names_in(tmp_path / "power" / "raw") == set()


def test_what_cannot_be_had_is_said(
    source: SourceFile, upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inventory, "PAUSE_SECONDS", 0.0)

    def refused(base: str = "") -> str:
        with pytest.raises(FetchError) as caught:
            fetch(source, tmp_path / "raw", base=base or upstream.url)
        assert NAME not in names_in(tmp_path / "raw")
        return caught.value.detail

    upstream.statuses = [403]
    assert "answers 403 Forbidden" in refused()
    with monkeypatch.context() as less:
        less.setattr(inventory, "MAX_BYTES", 100)
        assert "more than 100 bytes" in refused()
    assert names_in(tmp_path / "raw") == set()
    upstream.break_after = [5000, 3000, 1000]
    assert "3 times" in refused()
    assert "is not an http or https address" in refused(base="file:///etc")
    assert "404" in refused(base=f"{upstream.url}/elsewhere")
    assert "3 times" in refused(base="http://127.0.0.1:9")  # port 9: nobody listens
    (tmp_path / "file").write_text("")
    with pytest.raises(FetchError, match="cannot be written"):
        fetch(source, tmp_path / "file" / "raw", base=upstream.url)


def test_a_shortened_copy_stays_unless_it_may_go(
    run: Run, source: SourceFile, upstream: Upstream, tmp_path: Path
) -> None:
    path = tmp_path / "power" / "raw" / NAME
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT[:5000])
    _, err = run("data", "fetch", "--to", str(tmp_path), "--from", upstream.url, status=1)
    assert "is not the complete upstream file" in err
    assert path.read_bytes() == CONTENT[:5000]
    run("data", "fetch", "--to", str(tmp_path), "--from", upstream.url, "--replace")
    assert path.read_bytes() == CONTENT


def folder_of(tmp_path: Path, content: bytes) -> Path:
    root = tmp_path / "data"
    (root / "power" / "raw").mkdir(parents=True)
    (root / "power" / "raw" / NAME).write_bytes(content)
    (root / "power" / "kernel_names.csv").write_text(
        "source_file_stem,benchmark,kernel,kernel_id,kernel_group,family\n"
        "V100_data,b,vecAdd3,vecadd/vecadd,vecadd/vecadd,vecadd\n"
    )
    return root


def test_check_tells_complete_from_shortened_and_counts_by_rule(
    run: Run, source: SourceFile, tmp_path: Path
) -> None:
    root = folder_of(tmp_path, CONTENT)
    (root / "time").mkdir()
    (root / "time" / "notes.csv").write_text("a\n1\n")
    out, err = run("data", "check", str(root), "--json")
    assert err == ""
    tables = {each["path"]: each for each in json.loads(out)}
    raw = tables[f"power/raw/{NAME}"]
    assert raw["state"] == "complete"
    assert raw["sha256"] == source.sha256
    assert (raw["rows"], raw["kept"], raw["dropped"]) == (400, 400, {})
    assert raw["noted"] == {"4 named by rule": 400}  # the table of names holds vecAdd3 alone
    assert tables["power/kernel_names.csv"]["state"] == "sound"
    assert tables["time/notes.csv"]["state"] == "unread"
    text, _ = run("data", "check", str(root))
    (line,) = (line for line in text.splitlines() if "V100_data" in line)
    assert line.split()[5:8] == ["complete", "400", "400"]


def test_a_defect_is_told_with_its_place_and_fails(
    run: Run, source: SourceFile, tmp_path: Path
) -> None:
    # No complete file: a kernel nobody knows is a defect of this copy.
    root = folder_of(tmp_path, CONTENT[:-200].rsplit(b"\n", 1)[0] + b"\n")
    out, err = run("data", "check", str(root), status=1)
    assert "defective" in out
    assert err == f"wattcast: {NAME}, row 2: kernel_names.csv does not know 'b' / 'vecAdd10'\n"


def test_without_data_or_the_extra_it_says_so(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, err = run("data", "check", str(tmp_path / "none"), status=2)
    assert err == f"wattcast: there is no folder {tmp_path / 'none'}\n"
    monkeypatch.setenv("WATTCAST_DATA", str(tmp_path))
    _, err = run("data", "check", status=2)
    assert "WATTCAST_DATA" in err
    for name in [name for name in sys.modules if name.startswith("wattcast.training.data")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pandera.pandas", None)  # imports say that it is missing
    _, err = run("data", "check", status=1)
    assert "wattcast[train]" in err
