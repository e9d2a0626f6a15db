"""A service over a home of its own, and kernels to ask it about."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from sqlalchemy.engine import Engine

from tests.app.databases import KINDS, database
from tests.app.live import running
from tests.fixtures.ptx_text import stored_ptx
from wattcast.app.cli import main
from wattcast.app.jobs import worker
from wattcast.app.services import Services
from wattcast.app.services.measurements import readers
from wattcast.app.settings import Settings
from wattcast.app.store.database import open_database
from wattcast.predictor import Predictor


def settings_at(home: Path, **given: object) -> Settings:
    """Defaults over ``home``, quiet; whatever WATTCAST_* the caller's shell sets is overruled."""
    return Settings(
        **{  # type: ignore[arg-type]
            "home": home,
            "database_url": None,
            "access_log": False,
            "log_level": "error",
            "max_body_bytes": 16 * 1024 * 1024,
            "max_ptx_bytes": 16 * 1024 * 1024,
            "ptxas": "off",
            "upload_readers": "threads",  # a process for each service would take its seconds
            **given,
        }
    )


@pytest.fixture(scope="session", autouse=True)
def nothing_gives_way() -> Iterator[None]:
    """Uploads and jobs are read as soon as they come: what gives way to predictions would also
    give way to the tests that run beside its own."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (readers, worker):
            patch.setattr(module, "NICENESS", 0)
        yield


@pytest.fixture(scope="session")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of one service that all tests of a worker share."""
    with running(settings_at(tmp_path_factory.mktemp("home"))) as opened:
        yield opened


@pytest.fixture(scope="session")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """Services that tests of a worker share: with the settings of a user who sets nothing."""
    made = Services(settings_at(tmp_path_factory.mktemp("home")))
    yield made
    made.close()


@pytest.fixture(scope="session")
def predictor(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    """A predictor that tests of a worker share."""
    return Predictor(settings_at(tmp_path_factory.mktemp("home")))


@pytest.fixture(scope="session")
def vector_add() -> str:
    """PTX of the demonstration's kernel: no loop, 22 instructions."""
    return files("wattcast.app.demo").joinpath("vector_add.ptx").read_text(encoding="utf-8")


STORE = "st.global.f32 \t[%rd10], %f3;"
"""The one store of that kernel."""


@pytest.fixture(scope="session")
def heavier(vector_add: str) -> str:
    """The demonstration's kernel with a second store, beside its first."""
    assert STORE in vector_add
    return vector_add.replace(STORE, f"{STORE}\n\tst.global.f32 \t[%rd10+16777216], %f3;")


@pytest.fixture(scope="session")
def looping() -> str:
    """PTX with one self loop ``$LOOP`` whose trip count no one knows."""
    return stored_ptx("looping")


@pytest.fixture(scope="session")
def kernels(vector_add: str, looping: str) -> dict[str, str]:
    """Both, as files of an upload."""
    return {"add.ptx": vector_add, "loop.ptx": looping}


@pytest.fixture
def file(tmp_path: Path, vector_add: str) -> str:
    """The path of the demonstration's kernel, by itself in a folder."""
    path = tmp_path / "vector_add.ptx"
    path.write_text(vector_add)
    return str(path)


@pytest.fixture(scope="session")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A caller of the tools for agents that tests of a worker share."""
    from tests.app.test_agents import Agent  # it asks for the SDK, which takes its second

    return Agent(tmp_path_factory.mktemp("home"))


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where an empty database of each kind is."""
    with database(request.param, tmp_path) as made:
        yield made


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    """Such a database, open."""
    opened = open_database(url)
    yield opened
    opened.dispose()


@pytest.fixture(scope="module", params=KINDS)
def home(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Any]]:
    """A home folder and a database of its own, as settings: one of each kind for a file's tests."""
    folder = tmp_path_factory.mktemp("home")
    with database(request.param, folder) as url:
        yield {"home": folder / "home", "database_url": SecretStr(url)}


@pytest.fixture(scope="module")
def service(home: dict[str, Any]) -> Iterator[httpx.Client]:
    """A client of a service over ``home``."""
    with running(settings_at(**home)) as opened:
        yield opened


Ended = Callable[..., tuple[int, str, str]]
Run = Callable[..., tuple[str, str]]


@pytest.fixture
def ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Ended:
    """Runs ``wattcast`` as its entry point does, over an empty home: status, output, errors."""
    monkeypatch.setenv("WATTCAST_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WATTCAST_PORT", "9")  # discard: whatever serves on this machine, not there

    def command(*words: object, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["wattcast", *map(str, words)])
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with pytest.raises(SystemExit) as stopped:
            main()
        return int(stopped.value.code or 0), *capsys.readouterr()

    return command


@pytest.fixture
def run(ended: Ended) -> Run:
    """The same where it ends with the status that a test says: output and errors."""

    def command(*words: object, status: int | None = 0, stdin: str = "") -> tuple[str, str]:
        code, out, err = ended(*words, stdin=stdin)
        refused = status is None and code in (1, 2, 4)  # by whichever error
        assert refused or code == status, (out, err)
        return out, err

    return command
