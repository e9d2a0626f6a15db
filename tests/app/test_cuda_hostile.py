"""Sources that reach for a file of the machine: nothing comes back, not even that it is there.

Every source is sent twice, naming a file that exists and one that does not. The file's content
must appear nowhere, and the two answers must be the same but for the name. The text checks are
switched off, so that what holds is the isolation.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.app.conftest import settings_at
from tests.app.live import running
from tests.app.test_jobs_worker import gone
from tests.app.test_problems import problem
from tests.fixtures.tables import table
from wattcast.app.services import Services
from wattcast.app.services.models.standalone import standalone_predictor
from wattcast.features.cuda import compile as compiling
from wattcast.features.cuda import isolation
from wattcast.features.cuda.isolation import find_nvcc, find_nvrtc, find_ptxas
from wattcast.features.cuda.source import forbidden_include, host_code
from wattcast.predictor.messages import EXAMPLE_CUDA
from wattcast.predictor.parts.arguments import kernel_names

_SHOWN = (
    "#define S(...) #__VA_ARGS__\n#define T(...) S(__VA_ARGS__)\nstatic_assert(false, S(\n{}\n));\n"
)
_KNOWN = "#if {}\n#error there\n#else\n#error absent\n#endif\n"
SOURCES: dict[str, str] = {
    **table("hostile_cuda", "cuda"),
    **{name: _SHOWN.format(text) for name, text in table("hostile_cuda", "shown").items()},
    **{name: _KNOWN.format(text) for name, text in table("hostile_cuda", "known").items()},
}
PTX: dict[str, str] = table("hostile_cuda", "ptx")

SECRET = "quokka_7c1f9e"
"""One token: it is a name, and the content of a file."""

HERE, ABSENT = "canary0", "canary1"
"""Names that only differ at their end, since messages cut what they quote."""

LAUNCH = {"grid": [64], "block": [64]}
HOST = "\nint main() { return 0; }\n"
NVRTC, NVCC, PTXAS = "nvrtc", "nvcc", "ptxas"
_COMPILERS = {NVRTC: find_nvrtc(), NVCC: find_nvcc(), PTXAS: find_ptxas()}

pytestmark = pytest.mark.skipif(not isolation.in_force(), reason="this kernel isolates no compiler")

Send = Callable[[dict[str, Any]], str]


def test_there_are_enough_of_them() -> None:
    print(f"{len(SOURCES)} hostile CUDA sources, {len(PTX)} hostile PTX")
    assert len(SOURCES) + len(PTX) >= 60


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A service's folder, and beside it a file that nobody may learn of."""
    found = tmp_path_factory.mktemp("home")
    (found.parent / HERE).write_text(SECRET)
    return found


@pytest.fixture(scope="module")
def send(home: Path) -> Iterator[Send]:
    """Send a request to a service that relies on the isolation alone; its answer as text."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WATTCAST_CANARY", SECRET)
        patch.setattr(compiling, "forbidden_include", lambda source: None)
        settings = settings_at(home, ptxas="auto", log_level="debug", requests_per_second=0)
        with running(settings) as client:

            def answered(asked: dict[str, Any]) -> str:
                answer = client.post("/predict", json={"gpu": "v100", "launch": LAUNCH, **asked})
                assert answer.status_code in (200, 422), answer.text
                return answer.text

            yield answered


def named(source: str, path: Path) -> str:
    """A source of the table about a file."""
    near = "../" * 30 + str(path).lstrip("/")
    return (
        source.replace("@PATH@", str(path))
        .replace("@REL@", near)
        .replace("@PID@", str(os.getpid()))
    )


def unnamed(answer: str, path: Path) -> str:
    """An answer without the file's name and what differs each time."""
    answer = re.sub(r'"(id|request_id|created|\w+_sha256)": ?"[^"]*"', "", answer)
    return answer.replace(path.name, "file")


def tell_apart(send: Send, home: Path, member: str, source: str) -> None:
    answers = []
    for name in (HERE, ABSENT):
        path = home.parent / name
        answer = send({member: named(source, path)})
        assert SECRET not in answer
        answers.append(unnamed(answer, path))
    assert answers[0] == answers[1]


def every(one_of: int) -> list[Any]:
    """The sources: one of so many here, the others among the slow tests."""
    return [
        pytest.param(name, marks=[pytest.mark.slow] * (at % one_of > 0))
        for at, name in enumerate(SOURCES)
    ]


@pytest.mark.skipif(_COMPILERS[NVRTC] is None, reason="the extra cuda (NVRTC) is not installed")
@pytest.mark.parametrize("name", every(4))  # a quarter second each
def test_nvrtc_tells_nothing(send: Send, home: Path, name: str) -> None:
    tell_apart(send, home, "cuda", SOURCES[name])


@pytest.mark.skipif(_COMPILERS[NVCC] is None, reason="no nvcc on this machine")
@pytest.mark.parametrize("name", every(16))  # more than a second each
def test_nvcc_tells_nothing(send: Send, home: Path, name: str) -> None:
    tell_apart(send, home, "cuda", SOURCES[name] + HOST)


@pytest.mark.skipif(_COMPILERS[PTXAS] is None, reason="the extra cuda (ptxas) is not installed")
@pytest.mark.parametrize("name", PTX)
def test_ptxas_tells_nothing(send: Send, home: Path, name: str) -> None:
    tell_apart(send, home, "ptx", PTX[name])


@pytest.mark.skipif(_COMPILERS[NVRTC] is None, reason="the extra cuda (NVRTC) is not installed")
def test_without_isolation_the_file_would_come_back(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sources are no paper tigers: what holds them is the isolation."""
    monkeypatch.setattr(isolation, "in_force", lambda: False)
    monkeypatch.setattr(compiling, "forbidden_include", lambda source: None)
    for name in ("form feed", "kernel's name by form feed", "string in the PTX"):
        source = named(SOURCES[name], home.parent / HERE)
        try:
            found = compiling.compile_cuda(source, (7, 0)).ptx
        except compiling.CompileError as error:
            found = str(error.context)
        # A string of the PTX is a list of its bytes.
        assert SECRET in found or ", ".join(str(byte) for byte in SECRET.encode()) in found, name


def test_nothing_of_the_file_is_logged_or_stored(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.setattr(compiling, "forbidden_include", lambda source: None)
    settings = settings_at(
        tmp_path, ptxas="auto", log_level="debug", access_log=True, log_format="json"
    )
    harmless = {"cuda": EXAMPLE_CUDA, "gpu": "v100", "launch": LAUNCH}
    with running(settings) as client:
        for name in ("form feed", "kernel's name", "string in the PTX", "has_include by pasting"):
            source = named(SOURCES[name], home.parent / HERE)
            client.post("/predict", json={**harmless, "cuda": source})
        assert client.post("/predict", json=harmless).status_code == 200
    printed = capfd.readouterr()
    assert SECRET not in printed.out + printed.err
    with sqlite3.connect(tmp_path / "wattcast.db") as database:
        rows = stored(database)
    assert rows, "the harmless prediction is stored"
    assert SECRET.encode() not in rows


def stored(database: sqlite3.Connection) -> bytes:
    """Everything in the tables, compressed columns unpacked."""
    found: list[bytes] = []
    tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    for (named_table,) in tables:
        for row in database.execute(f'SELECT * FROM "{named_table}"'):
            for value in row:
                raw = value if isinstance(value, bytes) else str(value).encode()
                found.append(raw)
                if raw[:1] == b"\x78":  # zlib
                    found.append(zlib.decompressobj().decompress(raw))
    return b"\n".join(found)


def test_without_isolation_cuda_is_off_over_http(
    tmp_path: Path, vector_add: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "in_force", lambda: False)
    monkeypatch.setattr("wattcast.predictor.parts.sources.in_force", lambda: False)
    asked = {"cuda": EXAMPLE_CUDA, "gpu": "v100", "launch": LAUNCH}
    with running(settings_at(tmp_path / "off", ptxas="auto")) as client:
        members = problem(client.post("/predict", json=asked), 501, "compiler-not-isolated")
        assert "send the PTX" in members["detail"]
        assert client.get("/readyz").json()["checks"]["compilers"].startswith("none, so CUDA")
        ptx = {"ptx": vector_add, "gpu": "v100", "launch": LAUNCH}
        answer = client.post("/predict", json=ptx)
        assert answer.json()["registers"]["how"] != "ptxas"
    if _COMPILERS[NVRTC] is None:
        return
    with running(settings_at(tmp_path / "on", unsafe_compile=True)) as client:
        assert client.post("/predict", json=asked).status_code == 200
        assert "UNSAFE" in client.get("/readyz").json()["checks"]["compilers"]
    # Python and the command line compile their user's own files.
    own = standalone_predictor(settings_at(tmp_path / "own"), registry=False)
    assert own.sources.may_compile
    assert not Services(settings_at(tmp_path / "served")).sources.may_compile


def test_an_isolation_that_fails_runs_nothing(tmp_path: Path) -> None:
    """Without its rules the program is not started at all."""
    (tmp_path / "program.py").write_text(
        "def prepare(arguments):\n    return lambda: print('ran') or 0\n"
    )
    command = [str(tmp_path / "program.py")]
    done = isolation._run(command, tmp_path, isolation.Limits(), (), isolated=True)
    assert (done.code, done.stdout) == (0, "ran\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(isolation, "filter_tables", dict)
        done = isolation._run(command, tmp_path, isolation.Limits(), (), isolated=True)
    assert (done.code, done.stdout) == (125, "")


def test_a_word_that_comes_just_before_the_wait_is_not_lost() -> None:
    """As when the service is killed between the launcher's last look and its wait."""
    script = """
import os, signal, time
from wattcast.features.cuda import jail
child = jail._child(lambda: time.sleep(600))
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
os.kill(os.getpid(), signal.SIGTERM)
jail._waited(child, {})
"""
    done = subprocess.run([sys.executable, "-c", script], timeout=60, start_new_session=True)
    assert done.returncode == -signal.SIGKILL


def test_a_compiler_ends_with_whoever_started_it(tmp_path: Path) -> None:
    """Killed without a word, the service leaves nothing that compiles on."""
    program = tmp_path / "program.py"
    program.write_text("import time\ndef prepare(arguments):\n    return lambda: time.sleep(600)\n")
    script = (
        "from pathlib import Path; from wattcast.features.cuda import isolation\n"
        f"isolation._run([{str(program)!r}], Path({str(tmp_path)!r}), isolation.Limits(), (), "
        "isolated=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script]) as parent:
        service, below = psutil.Process(parent.pid), list[psutil.Process]()
        while len(below) < 3:  # what stands ready, the jail and what runs in it
            assert parent.poll() is None
            time.sleep(0.05)
            below = service.children(recursive=True)
        parent.kill()
    for one in below:
        gone(one)


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="no setpriv (util-linux)")
def test_isolation_needs_no_privilege() -> None:
    """What root can set up, a process without any capability can."""
    script = "from wattcast.features.cuda import isolation\nprint(isolation.in_force())\n"
    powerless = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
    command = [*(powerless if os.getuid() == 0 else []), sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    # A user without rights maps itself; root without capabilities may not (user_namespaces(7)).
    assert done.stdout.strip() == str(os.getuid() != 0), done.stderr


HOSTILE_LINES = {
    "comment": "__global__ void k(){} //" + "x" * 10**6,
    "backslashes": "\\" * 10**6,
    "splices": "\\\n" * 500_000,
    "backslash, blank": "\\ " * 500_000,
    "comments never closed": "/*" * 500_000,
    "quotes escaped": '\\"' * 500_000,
    "characters escaped": "\\'" * 500_000,
    "raw strings never closed": 'R"x(' * 250_000,
    "separators": "1'" * 500_000,
    "numbers": "1.e+" * 250_000,
    "directives": "#" * 10**6,
    "directive and blanks": "#" + " " * 10**6 + "x",
    "calls": "cudaMalloc" * 100_000 + " " * 10**5,
    "blanks": "int" + " " * 10**6,
    "kernels": "__global__ ()" * 80_000,
    "kernels without end": "__global__ " * 256 + "()" * 500_000,
    "comparisons": "__global__ void k(" * 256 + "a!<" * 300_000,
}


@pytest.mark.parametrize("name", HOSTILE_LINES)
def test_a_megabyte_of_hostile_text_is_looked_at_once(name: str) -> None:
    """It took 35 s for 150 KB; a bound of seconds tells linear from quadratic on any machine."""
    text = HOSTILE_LINES[name]
    start = time.process_time()
    forbidden_include(text)
    host_code(text)
    kernel_names(text)
    assert time.process_time() - start < 5
