"""``wattcast doctor``: what is installed here, what is missing, and the command that brings it."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from wattcast.app.cli.exits import Exit
from wattcast.app.cli.output import Shown, predictor
from wattcast.app.settings import Settings, installed_version
from wattcast.features.errors import WattcastError
from wattcast.predictor.reports import Column, Report, Table

EXTRAS = {
    "cuda": "CUDA source as input; true register counts",
    "serve": "service, web page, promoted models",
    "explain": "SHAP, LIME and pictures of boosted models",
    "train": "fitting and retraining models",
    "measure": "measuring a GPU",
    "fleet": "placing jobs on boards",
    "postgres": "PostgreSQL instead of SQLite",
    "dask": "predictions and fits on a cluster",
    "s3": "models in a bucket",
    "triton": "compiling Triton kernels to rank them",
}
"""Extras a user may want, and what each is for."""

LOOKED_INTO_WITH = {"database": "serve", "data": "train"}
"""Parts that an extra alone can look into."""

State = Literal["ok", "missing", "broken"]
_COLOURS = {"ok": "green", "missing": "yellow", "broken": "red"}


@dataclass(frozen=True)
class Check:
    """One part of the installation; ``fix`` brings what is missing. Only what is ``broken`` keeps
    something from working that should."""

    name: str
    state: State
    told: str
    fix: str | None = None


def doctor() -> Shown[list[dict[str, Any]]]:
    """Check the installation, and say how to get what is missing.

    Looks at extras, GPU, compilers, models, database, data and service. The exit status is 1 if
    something is broken; what is only missing keeps it at 0.
    """
    found = [check for part in PARTS for check in _safe(part)]
    broken = any(check.state == "broken" for check in found)
    told = [asdict(check) for check in found]
    return Shown(told, lambda: _report(found), Exit.NO_ANSWER if broken else Exit.DONE)


def _safe(part: Callable[[], Iterator[Check]]) -> list[Check]:
    """What a part finds; an error that a user would meet is a part that is broken."""
    name = part.__name__.strip("_").replace("_", " ")
    try:
        return list(part())
    except (WattcastError, OSError, ValueError, ImportError) as error:
        if isinstance(error, ModuleNotFoundError) and name in LOOKED_INTO_WITH:
            told = f"cannot be looked into without {error.name} (predictions do without)"
            return [Check(name, "missing", told, install(LOOKED_INTO_WITH[name]))]
        return [Check(name, "broken", " ".join(str(error).split()))]


def _program() -> Iterator[Check]:
    yield Check(
        "wattcast",
        "ok",
        f"{installed_version()}, Python {platform.python_version()}, {platform.machine()}",
    )
    own = Path(sys.executable).with_name("wattcast")
    if (there := shutil.which("wattcast")) is not None:
        yield Check("command", "ok", there)
    else:
        at = own if own.is_file() else None
        told = f"not on PATH{f'; it is {at}' if at else ''}"
        yield Check("command", "missing", told, f'export PATH="{own.parent}:$PATH"')


def _extras() -> Iterator[Check]:
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        requires = distribution("wattcast").requires or []
    except PackageNotFoundError:
        yield Check("extras", "broken", "the package wattcast is not installed", "pip install .")
        return
    for extra, purpose in EXTRAS.items():
        wanted = [line for line in requires if re.search(rf"extra == ['\"]{extra}['\"]", line)]
        names = [re.match(r"[\w.-]+", line.strip()) for line in wanted]
        absent = [name[0] for name in names if name and not _installed(name[0])]
        if absent:
            told = f"{purpose}; not installed: {', '.join(absent)}"
            yield Check(f"extra {extra}", "missing", told, install(extra))
        else:
            yield Check(f"extra {extra}", "ok", purpose)


def _installed(name: str) -> bool:
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def install(extra: str) -> str:
    """The command that installs an extra, from where this installation came from (PEP 610)."""
    import json
    from importlib.metadata import distribution
    from urllib.parse import unquote, urlsplit

    python = shutil.which("pip") and Path(shutil.which("pip") or "").parent
    pip = "pip" if python == Path(sys.executable).parent else f"{sys.executable} -m pip"
    origin = json.loads(distribution("wattcast").read_text("direct_url.json") or "{}")
    url = origin.get("url", "")
    if url.startswith("file://"):
        editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
        return f"{pip} install {editable}'{unquote(urlsplit(url).path)}[{extra}]'"
    if url:
        kind = f"{origin['vcs_info']['vcs']}+" if "vcs_info" in origin else ""
        return f"{pip} install 'wattcast[{extra}] @ {kind}{url}'"
    return f"{pip} install 'wattcast[{extra}]'"


def _gpu() -> Iterator[Check]:
    from wattcast.features.gpus import load_gpu
    from wattcast.measure.device import MeasureError
    from wattcast.measure.nvml import Nvml

    try:
        nvml = Nvml()
    except MeasureError as error:
        yield Check("GPU", "missing", f"{error} (predictions need none)")
        return
    try:
        devices = nvml.devices()
    finally:
        nvml.close()
    if not devices:
        yield Check("GPU", "missing", "the driver sees none (predictions need none)")
    for device in devices:
        try:
            known = load_gpu(device.name).id
        except WattcastError:
            yield Check("GPU", "missing", f"{device.name}: no profile", "wattcast gpus add")
        else:
            yield Check("GPU", "ok", f"{device.name}: profile {known}")


def _compilers() -> Iterator[Check]:
    from wattcast.features.cuda import isolation as toolchain
    from wattcast.predictor.parts.sources import isolation

    for name, path, purpose, needed in (
        ("NVRTC", toolchain.find_nvrtc(), "CUDA source as input", True),
        ("ptxas", toolchain.find_ptxas(), "true register counts", True),
        ("nvcc", toolchain.find_nvcc(), "host code whole (without it, it is left out)", False),
    ):
        if path is not None:
            yield Check(name, "ok", str(path))
        else:
            fix = install("cuda") if needed else "install the CUDA toolkit"
            yield Check(name, "missing", f"for {purpose}", fix)
    yield Check("isolation", "ok", f"compilers: {isolation(Settings())}")


def _models() -> Iterator[Check]:
    power = predictor().power
    cards = power.cards()
    told = f"{len(cards)} power models of {len({card.gpu for card in cards})} GPUs"
    yield Check("models", "ok" if cards else "broken", told)
    for problem in power.problems():
        yield Check("models", "broken", f"left out: {problem}")


def _home() -> Iterator[Check]:
    home = Settings().home
    if not home.exists():
        yield Check("home", "missing", f"{home}: made when something is kept there")
    elif not os.access(home, os.W_OK):
        yield Check("home", "broken", f"{home}: cannot be written", f"chmod u+w {home}")
    else:
        own = len(list((home / "gpus").glob("*.toml")))
        yield Check("home", "ok", f"{home}, {own} GPU profiles of your own")


def _database() -> Iterator[Check]:
    settings = Settings()
    if settings.database_file is not None and not settings.database_file.is_file():
        yield Check("database", "missing", "made by the first start of the service")
        return
    from sqlalchemy.exc import SQLAlchemyError

    from wattcast.app.store.database import Reading, StoreError, revision

    where = settings.database_file or "WATTCAST_DATABASE_URL"
    try:
        engine = Reading(settings.sqlalchemy_url).engine()
    except SQLAlchemyError as error:
        # Not its text: it may hold the address with a password.
        yield Check("database", "broken", f"{where}: {type(error).__name__}")
        return
    except StoreError as error:
        yield Check("database", "broken", f"{where}: {error.detail}")
        return
    if engine is None:
        yield Check("database", "missing", f"{where}: empty; the service makes its tables")
    else:
        yield Check("database", "ok", f"{where}, migration {revision(engine)}")


def _data() -> Iterator[Check]:
    from wattcast.training.data.datasets import find_data

    folder = find_data()
    if folder is None or not folder.is_dir():
        told = "training data: needed to fit models, not to predict"
        yield Check("data", "missing", told, "wattcast data fetch")
    else:
        tables = sum(1 for _ in folder.rglob("*.csv"))
        yield Check("data", "ok", f"{folder}, {tables} tables")


def _service() -> Iterator[Check]:
    from wattcast.app.cli.predict import running

    url = running(Settings())
    if url is None:
        yield Check("service", "missing", "none runs at WATTCAST_HOST and _PORT", "wattcast serve")
    else:
        yield Check("service", "ok", url)


PARTS = (
    _program,
    _extras,
    _gpu,
    _compilers,
    _models,
    _home,
    _database,
    _data,
    _service,
)


def _report(checks: list[Check]) -> Report:
    columns = [
        Column("", lambda check: check.name),
        Column("", lambda check: check.state),
        Column("", lambda check: f"{check.told}\n  {check.fix}" if check.fix else check.told),
    ]
    return [Table(columns, checks)]
