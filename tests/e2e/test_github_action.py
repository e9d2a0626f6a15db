"""The GitHub Action and the pre-commit hook, run as their hosts run them, on docs/howto/ci.md."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.needs import needs_nvrtc

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "howto" / "ci.md").read_text(encoding="utf-8")
pytestmark = needs_nvrtc

GH = """#!/usr/bin/env python3
import json, os, sys
words = sys.argv[1:]
with open(os.environ["GH_LOG"], "a") as log:
    body = [word.removeprefix("body=@") for word in words if word.startswith("body=@")]
    if "--body-file" in words:
        body = [words[words.index("--body-file") + 1]]
    log.write(json.dumps({"words": words, "body": open(body[0]).read() if body else None}) + "\\n")
if words[0] == "api" and "--jq" in words:
    print(os.environ.get("GH_COMMENT", ""))
sys.exit(int(os.environ.get("GH_STATUS", "0")))
"""
"""A ``gh`` that writes down what it is asked; ``GH_COMMENT`` is the id of our earlier comment."""


def fenced(title: str) -> str:
    """A file that the page shows."""
    found = re.search(rf'```\w+ title="{re.escape(title)}"\n(.*?)```', PAGE, re.S)
    assert found is not None
    return found[1]


def action() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    return loaded


def documented_inputs() -> dict[str, str]:
    """What the workflow of the page gives the action."""
    (job,) = yaml.safe_load(fenced(".github/workflows/energy.yml"))["jobs"].values()
    return {name: str(value) for name, value in job["steps"][-1]["with"].items()}


@dataclass
class Host:
    """A runner of GitHub: a checkout of a pull request, and what steps get and leave."""

    folder: Path
    event: bool = True
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.folder / "bin").mkdir()
        gh = self.folder / "bin" / "gh"
        gh.write_text(GH)
        gh.chmod(0o755)
        (self.folder / "repo" / "src").mkdir(parents=True)
        self.git("init", "-q", "-b", "main")
        self.commit(fenced("old.cu"))
        self.base = self.git("rev-parse", "HEAD").strip()

    @property
    def kernel(self) -> Path:
        return self.folder / "repo" / "src" / "scale.cu"

    def git(self, *words: str) -> str:
        told = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        return subprocess.run(
            ["git", *told, *words], cwd=self.folder / "repo", capture_output=True, text=True,
            check=True,
        ).stdout  # fmt: skip

    def commit(self, text: str) -> None:
        self.kernel.write_text(text, encoding="utf-8")
        self.git("add", ".")
        self.git("commit", "-q", "-m", "change")

    def run(
        self, given: Mapping[str, str], *, skip: tuple[str, ...] = ("Install Wattcast",)
    ) -> tuple[int, dict[str, str]]:
        """Run the action's steps with these inputs: status of the first that fails, outputs."""
        inputs = {name: str(one.get("default", "")) for name, one in action()["inputs"].items()}
        assert set(given) <= set(inputs)
        inputs |= given
        outputs: dict[str, str] = {}
        number = "7" if self.event else ""
        for step in action()["runs"]["steps"]:
            values = {
                **{f"inputs.{name}": value for name, value in inputs.items()},
                **{f"steps.compare.outputs.{name}": value for name, value in outputs.items()},
                "github.event.pull_request.number": number,
                "inputs.base || github.event.pull_request.base.sha || 'HEAD^'": (
                    inputs["base"] or (self.base if self.event else "HEAD^")
                ),
                "inputs.comment == 'true' && github.event.pull_request": (
                    "yes" if inputs["comment"] == "true" and self.event else ""
                ),
            }

            def filled(text: str, values: Mapping[str, str] = values) -> str:
                return re.sub(r"\$\{\{\s*(.*?)\s*\}\}", lambda found: values[found[1]], text)

            if step["name"] in skip or not filled(str(step.get("if", "always"))):
                continue
            assert step["shell"] == "bash"
            assert "${{" not in step["run"]  # inputs go through the environment, never the script
            told = {name: filled(str(text)) for name, text in step.get("env", {}).items()}
            status = self.step(step["run"], told, outputs)
            if status:
                return status, outputs
        return 0, outputs

    def step(self, script: str, told: Mapping[str, str], outputs: dict[str, str]) -> int:
        """As the runner does: bash --noprofile --norc -eo pipefail {0}."""
        file, output = self.folder / "step.sh", self.folder / "output"
        file.write_text(script, encoding="utf-8")
        output.write_text("")
        given = {
            **{name: text for name, text in os.environ.items() if name in ("HOME", "LANG")},
            "PATH": f"{self.folder / 'bin'}:{Path(sys.executable).parent}:/usr/bin:/bin",
            "PYTHONPATH": str(ROOT),
            "WATTCAST_HOME": str(self.folder / "home"),
            "GITHUB_ACTION_PATH": str(ROOT),
            "GITHUB_OUTPUT": str(output),
            "GITHUB_STEP_SUMMARY": str(self.folder / "summary.md"),
            "GITHUB_REPOSITORY": "them/theirs",
            "RUNNER_TEMP": str(self.folder),
            "GH_LOG": str(self.folder / "gh.jsonl"),
            **self.environment,
            **told,
        }
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(file)],
            cwd=self.folder / "repo", env=given, capture_output=True, text=True, check=False,
        )  # fmt: skip
        print(done.stdout, done.stderr)
        outputs |= dict(line.split("=", 1) for line in output.read_text().splitlines())
        return done.returncode

    @property
    def summary(self) -> str:
        return (self.folder / "summary.md").read_text(encoding="utf-8")

    @property
    def asked_of_gh(self) -> list[dict[str, Any]]:
        log = self.folder / "gh.jsonl"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.is_file() else []


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_the_documented_workflow_comments_and_fails_beyond_its_limit(host: Host) -> None:
    host.commit(fenced("new.cu"))
    status, outputs = host.run(documented_inputs())
    assert (status, outputs["status"]) == (3, "3")
    assert "### Predicted energy of <code>src&#47;scale&#46;cu</code>" in host.summary
    assert "| tesla-v100 |" in host.summary
    assert "**2 of 2 beyond the limit.**" in host.summary
    looked, commented = host.asked_of_gh
    assert looked["words"][:2] == ["api", "repos/them/theirs/issues/7/comments?per_page=100"]
    assert commented["words"][:3] == ["pr", "comment", "7"]
    assert commented["body"] == host.summary
    assert commented["body"].startswith("<!-- wattcast -->\n")
    # Asked again, it replaces its comment; whether it fails is the workflow's choice.
    host.environment = {"GH_COMMENT": "4711"}
    status, _ = host.run({**documented_inputs(), "fail": "false"})
    assert status == 0
    words = host.asked_of_gh[3]["words"]
    assert "PATCH" in words
    assert "repos/them/theirs/issues/comments/4711" in words


def test_a_fork_may_not_comment_and_gets_the_summary(host: Host) -> None:
    host.commit(fenced("new.cu"))
    host.environment = {"GH_STATUS": "1"}
    status, _ = host.run({**documented_inputs(), "max-energy": "+500%"})
    assert status == 0
    assert "Within it." in host.summary


def test_nothing_changed_new_files_and_errors(host: Host) -> None:
    status, outputs = host.run(documented_inputs())
    assert (status, outputs["status"]) == (0, "0")
    assert "No kernel changed" in host.summary
    (host.kernel.parent / "other.cu").write_text(fenced("new.cu"), encoding="utf-8")
    host.commit(fenced("old.cu") + "\n")
    status, _ = host.run(documented_inputs())
    assert status == 0
    assert re.search(r"other&#46;cu</code>: not compared: <code>not in [0-9a-f]{40}", host.summary)
    host.commit("__global__ void scale(float *data, float factor, int n) { nonsense }\n")
    status, _ = host.run(documented_inputs())
    assert status == 2


def test_a_push_is_compared_with_the_commit_before_and_comments_nowhere(tmp_path: Path) -> None:
    host = Host(tmp_path, event=False)
    host.commit(fenced("new.cu"))
    status, _ = host.run(documented_inputs())
    assert status == 3
    assert host.asked_of_gh == []


@pytest.mark.slow
def test_it_installs_from_the_repository_itself(host: Host, tmp_path: Path) -> None:
    """The first step too: pip builds the action's own folder. Dependencies are there already."""
    host.commit(fenced("new.cu"))
    place = tmp_path / "installed"
    python = tmp_path / "bin" / "python3"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    host.environment = {
        "PIP_TARGET": str(place),
        "PIP_NO_DEPS": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip's spelling of: none
        "PIP_NO_INDEX": "1",
        "PYTHONPATH": str(place),
        "PATH": f"{tmp_path / 'bin'}:{place / 'bin'}:/usr/bin:/bin",
    }
    status, _ = host.run(documented_inputs(), skip=())
    assert status == 3
    assert (place / "wattcast" / "app" / "cli" / "examples.toml").is_file()
    assert (place / "bin" / "wattcast").is_file()


def test_the_hook_compares_with_head_and_fails_beyond_the_limit(host: Host) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    (shown,) = yaml.safe_load(fenced(".pre-commit-config.yaml"))["repos"][0]["hooks"]
    assert shown["id"] == hook["id"]
    assert re.search(hook["files"], "src/scale.cu")
    assert not re.search(hook["files"], "src/scale.cpp")
    extra = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert all(f'"{one}"' in extra for one in hook["additional_dependencies"])
    host.kernel.write_text(fenced("new.cu"), encoding="utf-8")
    words = [*shlex.split(hook["entry"]), *shown["args"], "src/scale.cu"]
    assert host.step(shlex.join(words), {}, {}) == 3
    host.kernel.write_text(fenced("old.cu"), encoding="utf-8")
    assert host.step(shlex.join(words), {}, {}) == 0
