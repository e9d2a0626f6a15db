"""``python -m wattcast.app.demo``: solve the examples of the page again, over HTTP."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from wattcast.app.demo import examples, solve
from wattcast.app.server import serve
from wattcast.app.settings import Settings


class _WrittenError(Exception):
    """All is written: ends the service."""


def _write(url: str) -> None:
    import httpx

    folder = Path(__file__).parent / "solved"
    folder.mkdir(exist_ok=True)
    with httpx.Client(base_url=url, timeout=60) as client:
        for name, example in examples().items():
            told = solve(client, example)
            text = json.dumps(told, ensure_ascii=False, separators=(",", ":"))
            file = folder / f"{name}.json"
            file.write_text(text + "\n", encoding="utf-8")
            print(f"{file.name:<16} {len(text):>7,} bytes")
    raise _WrittenError


def main() -> None:
    """Write ``solved/NAME.json`` for each."""
    with tempfile.TemporaryDirectory() as home:
        settings = Settings(home=Path(home), host="127.0.0.1", port=0, access_log=False,
                            database_url=None, log_level="error", job_workers=0)  # fmt: skip
        try:
            serve(settings, _write)
        except _WrittenError:
            return


if __name__ == "__main__":
    main()
