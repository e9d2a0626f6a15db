"""How an artifact is written: all files at once, with checksums, date and code revision."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path

from wattcast.models.cards import CARD_NAME, AnyCard, sha256_of


def write_artifact(card: AnyCard, out_dir: Path, write_files: Callable[[Path], None]) -> AnyCard:
    """Write the files and then the card of an artifact; it appears under its name at once."""
    folder = out_dir / card.folder
    building = folder.with_name(f".{folder.name}.building")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    write_files(building)
    files = {path.name: sha256_of(path) for path in sorted(building.iterdir())}
    card = type(card).model_validate({**card.model_dump(), "files": files})
    (building / CARD_NAME).write_text(card.to_json(), "utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    building.rename(folder)
    return card


def today() -> date:
    """Today in UTC, or the day of SOURCE_DATE_EPOCH (reproducible-builds.org)."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    return (datetime.fromtimestamp(int(epoch), UTC) if epoch else datetime.now(UTC)).date()


def code_revision() -> str:
    """Commit of the code, marked when training's own files differ from it; else ``unknown``."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        result = subprocess.run(  # noqa: S603 - fixed arguments, no user input
            ["git", *arguments],  # noqa: S607 - the git of the user's PATH
            cwd=here,
            capture_output=True,
            text=True,
            check=True,
        )
        return result.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", str(here), str(here.parent / "features"))
        return git("rev-parse", "HEAD") + ("-modified" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
