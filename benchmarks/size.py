"""Lines and files of the product beside their limits: ``python -m benchmarks.size``.

Growth is a decision: a commit that raises a limit says why in its message. Counted are all lines of
all Python files that are installed; ``studies/``, ``tests/`` and ``benchmarks/`` are not.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = ("app", "features", "models", "predictor", "training")
MOST_LINES = 92_500
MOST_FILES = 462
LONGEST_FILE = 500


def counted(root: Path) -> dict[str, tuple[int, int]]:
    """Lines and files of each folder of the product below ``root``, and of ``wattcast``."""
    found = {}
    for name in PRODUCT:
        files = sorted((root / name).rglob("*.py"))
        found[name] = sum(len(file.read_bytes().splitlines()) for file in files), len(files)
    package = (root / "wattcast" / "__init__.py").read_bytes()  # beside it are links only
    return {**found, "wattcast": (len(package.splitlines()), 1)}


def main(root: Path = ROOT) -> int:
    """Print the counts; 1 if one is beyond its limit."""
    found = counted(root)
    for name, (lines, files) in found.items():
        print(f"{name:<10} {lines:>7,} lines in {files:>3} files")
    lines, files = (sum(one[at] for one in found.values()) for at in (0, 1))
    print(f"{'product':<10} {lines:>7,} lines in {files:>3} files")
    print(f"{'limit':<10} {MOST_LINES:>7,} lines in {MOST_FILES:>3} files (benchmarks/size.py)")
    long = [
        file.relative_to(root).as_posix()
        for name in PRODUCT
        for file in sorted((root / name).rglob("*.py"))
        if len(file.read_bytes().splitlines()) > LONGEST_FILE
    ]
    if long:
        print(f"above {LONGEST_FILE} lines: {', '.join(long)}")
    return int(lines > MOST_LINES or files > MOST_FILES or bool(long))


if __name__ == "__main__":
    sys.exit(main())
