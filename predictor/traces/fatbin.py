"""placeholder"""

from pathlib import Path


def embedded(path: Path, skipped: list[str]) -> list[str]:
    return []
