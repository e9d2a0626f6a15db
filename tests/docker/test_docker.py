"""The image and the compose file, checked without a Docker engine.

The Dockerfile is linted; the compose file is read by the rules of its specification; the lock of
the image is the project's own but for xgboost; and the entrypoint runs as a plain process in the
image's environment and no other.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from compose_spec import PyCompose
from dockerfile_parse import DockerfileParser

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
BIN = Path(sys.executable).parent


def pins(path: Path) -> dict[str, set[str]]:
    """Versions by package; a universal lock may hold several, each for some Pythons."""
    found: dict[str, set[str]] = {}
    for name, pinned in re.findall(r"^([a-z0-9-]+)==([^\s\\]+)", path.read_text("utf-8"), re.M):
        found.setdefault(name, set()).add(pinned)
    return found


def stages() -> list[list[dict[str, Any]]]:
    """Instructions of the Dockerfile by stage."""
    found: list[list[dict[str, Any]]] = []
    parser = DockerfileParser(fileobj=BytesIO((DOCKER / "Dockerfile").read_bytes()))
    for instruction in parser.structure:
        if instruction["instruction"] == "FROM":
            found.append([])
        if found:
            found[-1].append(instruction)
    return found


def last(instruction: str) -> str:
    """The value of an instruction in the final stage."""
    return [one["value"] for one in stages()[-1] if one["instruction"] == instruction][-1]


def environment() -> dict[str, str]:
    """ENV of the final stage."""
    return dict(pair.split("=", 1) for pair in last("ENV").replace("\\\n", " ").split())


def compose() -> dict[str, Any]:
    loaded = yaml.safe_load((DOCKER / "compose.yaml").read_text("utf-8"))
    assert isinstance(loaded, dict)
    return loaded


def test_the_dockerfile_is_clean() -> None:
    done = subprocess.run(
        [BIN / "hadolint", DOCKER / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_image_runs_as_nobody_in_particular() -> None:
    assert int(last("USER")) >= 10000
    copied = [one["value"] for stage in stages() for one in stage if one["instruction"] == "COPY"]
    for value in copied:
        for source in value.split()[:-1]:
            assert (
                source.startswith("--from=")
                or source == "/opt/wattcast"
                or (ROOT / source).exists()
            )


def test_the_context_holds_what_is_copied_and_no_more() -> None:
    kept = {
        line.removeprefix("!")
        for line in (DOCKER / "Dockerfile.dockerignore").read_text("utf-8").split()
        if line.startswith("!")
    }
    build = [one["value"] for one in stages()[0] if one["instruction"] == "COPY"]
    assert kept == {source for value in build for source in value.split()[:-1]}


def test_the_image_has_the_locked_packages_and_no_gpu_code() -> None:
    image, project = pins(DOCKER / "requirements.lock"), pins(ROOT / "requirements.lock")
    assert image.pop("xgboost-cpu") == project["xgboost"]
    assert {name: image[name] for name in image} == {name: project[name] for name in image}
    assert not [name for name in image if name.startswith(("nvidia", "xgboost"))]
    assert {"fastapi", "catboost", "psycopg", "distributed", "pandera"} <= set(image)


def test_the_compose_file_follows_its_specification() -> None:
    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, data: object) -> bool:
            return True

    # The library reads no YAML merge keys, which Docker Compose does: they are resolved first.
    read = PyCompose.from_yaml(yaml.dump(compose(), Dumper=Plain))
    assert set(read.service_names()) == set(compose()["services"])


def test_what_the_compose_file_runs_is_confined() -> None:
    services = compose()["services"]
    ours = {name: one for name, one in services.items() if one["image"].startswith("wattcast")}
    assert set(ours) == {"api", "worker", "scheduler", "dask-worker"}
    for one in ours.values():
        assert one["read_only"]
        assert one["init"]
        assert one["cap_drop"] == ["ALL"]
        assert "WATTCAST_DATABASE_URL" in one["environment"]
    for one in services.values():
        for port in one.get("ports", ()):
            host = port["host_ip"] if isinstance(port, dict) else port.split(":")[0]
            assert host == "127.0.0.1", "nothing is open to the network by default"


def test_images_of_others_are_named_by_digest() -> None:
    lines = (DOCKER / "Dockerfile").read_text("utf-8").splitlines()
    bases = [line.split()[1] for line in lines if line.startswith("FROM ")]
    assert len(set(bases)) == 1
    assert not lines[0].startswith("# syntax="), "that is an image too"
    services = compose()["services"].values()
    named = [one["image"] for one in services if not one["image"].startswith("wattcast:")]
    assert len(named) == 3
    for image in (*bases, *named):
        assert re.fullmatch(r"[\w./-]+(:[\w.-]+)?@sha256:[0-9a-f]{64}", image), image
    for one in services:
        if one["image"].startswith("wattcast:"):
            assert one["pull_policy"] == ("build" if "build" in one else "never")


def test_the_compose_file_names_settings_that_exist() -> None:
    from wattcast.app.settings import Settings

    names = {f"WATTCAST_{name.upper()}" for name in Settings.model_fields}
    names.add("WATTCAST_DASK")  # training/engine.py
    given = {
        name
        for one in compose()["services"].values()
        for name in one.get("environment", ())
        if name.startswith("WATTCAST_")
    }
    assert given | {n for n in environment() if n.startswith("WATTCAST_")} <= names


@pytest.mark.slow
def test_the_entrypoint_serves_in_the_environment_of_the_image(tmp_path: Path) -> None:
    """No HOME, a working folder of its own, keys demanded as on any open address."""
    home = tmp_path / "home"
    home.mkdir()
    env = environment() | {
        "PATH": f"{BIN}:/usr/bin:/bin",
        "WATTCAST_HOME": str(home),
        "WATTCAST_PORT": "0",
        "MPLCONFIGDIR": str(tmp_path / "matplotlib"),
        "NUMBA_CACHE_DIR": str(tmp_path / "numba"),
    }
    command = [*json.loads(last("ENTRYPOINT")), *json.loads(last("CMD"))]
    created = subprocess.run(
        [command[0], "keys", "create", "test", "--scope", "read", "--json"],
        env=env, cwd=home, capture_output=True, text=True, check=True,
    )  # fmt: skip
    key = json.loads(created.stdout)["key"]
    program = shutil.which(command[0], path=env["PATH"])
    assert program is not None
    with (tmp_path / "log").open("w") as log:
        service = subprocess.Popen(
            [program, *command[1:]], env=env, cwd=home, stdout=log, stderr=log
        )
    try:
        url = _url(service, tmp_path / "log")
        assert httpx.get(f"{url}/healthz").status_code == 200
        assert httpx.get(f"{url}/gpus").status_code == 401
        assert httpx.get(f"{url}/gpus", headers={"Authorization": f"Bearer {key}"}).is_success
        kind, _, check = last("HEALTHCHECK").partition("CMD ")
        assert "--interval" in kind
        checked = json.loads(check)
        asked = {**env, "WATTCAST_PORT": url.rsplit(":", 1)[1]}
        assert subprocess.run(checked, env=asked, cwd=home, check=False).returncode == 0
        service.send_signal(signal.SIGTERM)
        # uvicorn shuts down in order and then ends by the very signal.
        assert service.wait(30) in (0, -signal.SIGTERM)
        assert '"event":"stopped"' in (tmp_path / "log").read_text("utf-8")
        dead = subprocess.run(checked, env=asked, cwd=home, check=False, capture_output=True)
        assert dead.returncode != 0
    finally:
        service.kill()
        service.wait()


def _url(service: subprocess.Popen[bytes], log: Path) -> str:
    until = time.monotonic() + 60
    while time.monotonic() < until and service.poll() is None:
        found = re.search(r"http://[\d.]+:[1-9]\d*", log.read_text("utf-8"))
        if found:
            return found.group()
        time.sleep(0.1)
    pytest.fail(f"no address in the log: {log.read_text('utf-8')} (pid {os.getpid()})")
