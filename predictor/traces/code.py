"""Code of the kernels of a trace, found in folders: PTX files, caches of Triton and inductor,
binaries with embedded PTX."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from wattcast.features.checked import json_value, whole
from wattcast.features.errors import DataError, ServiceError, checkpoint
from wattcast.features.ptx.demangle import demangle
from wattcast.predictor.traces.trace import Kind
from wattcast.predictor.triton import cubin_registers

# In time that grows with the text alone, whatever blanks and words it repeats.
ENTRY = re.compile(
    r"^[^\S\n]*(?:\.(?:visible|weak|extern)\s+){0,3}\.entry\s+([\w$.]{1,65536}+)(?![\w$.])",
    re.MULTILINE,
)  # a name of 9 MB held the interpreter for 0.2 s where it was demangled
_COUNT = r"(\d{1,9})\b"
FIXED = re.compile(
    rf"^[^\S\n]*\.reqntid\s+{_COUNT}(?:\s*,\s*{_COUNT})?(?:\s*,\s*{_COUNT})?", re.MULTILINE
)
_SPACE = re.compile(r"\s+|\((?:anonymous namespace|unsigned int|bool)\)")

MOST_FILES = 100_000
MOST_BYTES = 1 << 31
"""Of one file that is looked into."""

MOST_TOLD, MOST_CUBIN = 1 << 20, 1 << 26
"""Bytes of Triton's metadata and of a cubin beside a PTX file."""

SUFFIXES = (".ptx", ".so", ".cubin", ".fatbin", ".exe", ".dll", ".o", ".a", "")
"""Files that may hold PTX; the empty one: executables."""

TOLD = ".json"
"""Files beside PTX that tell of it."""


@dataclass(frozen=True)
class Code:
    """One kernel in one PTX text. ``registers`` and ``shared_bytes`` where files beside tell."""

    ptx: str
    kernel: str
    file: str
    block: tuple[int, int, int] | None = None
    registers: int | None = None
    shared_bytes: int | None = None

    def fits(self, kind: Kind) -> int:
        """How many facts of a launch agree; negative where one cannot be this code's."""
        score = 0
        told = (
            (self.block, kind.block if kind.block[0] else None),
            (self.registers, kind.registers or None),
            (self.shared_bytes, kind.static_shared_bytes + kind.dynamic_shared_bytes),
        )
        for known, launched in told:
            if known is None or launched is None:
                continue
            score += 1 if known == launched else -2
        return score


@dataclass
class Library:
    """Kernels by every name that a trace may call them, of ``most_characters`` of PTX at most."""

    kernels: dict[str, list[Code]] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    files: int = 0
    most_characters: int | None = None
    characters: int = 0

    def add(self, code: Code) -> None:
        """One more kernel, under its mangled and its demangled name."""
        for name in {code.kernel, plain(demangle(code.kernel))}:
            self.kernels.setdefault(name, []).append(code)

    def find(self, kind: Kind) -> Code | None:
        """The code of a launch; of several of one name the one whose facts agree best, the first
        of equals. ``None`` where none can be it."""
        for name in (kind.mangled, kind.name, plain(kind.name)):
            if name and (found := self.kernels.get(name)):
                best = max(found, key=lambda one: one.fits(kind))
                return best if best.fits(kind) >= 0 or len(found) == 1 else None
        return None


def plain(name: str) -> str:
    """A demangled name as tools agree on it: no return type, no blanks, no literal suffixes."""
    text = name.removeprefix("void ")
    text = re.sub(r"\b(\d+)[ulUL]+\b", r"\1", text)
    return _SPACE.sub("", text)


def library(folders: Iterable[Path]) -> Library:
    """All code in folders and files. Raises DataError for a path that is not there."""
    found = Library()
    for root in folders:
        if not root.exists():
            raise DataError(f"{root}: no such file or folder", file=str(root))
        for path in [root] if root.is_file() else _files(root):
            found.files += 1
            add_file(found, path, path.name if root.is_file() else str(path.relative_to(root)))
    return found


def add_text(found: Library, ptx: str, file: str, told: Mapping[str, object] | None = None) -> None:
    """Every kernel of a PTX text; ``told`` is Triton's metadata.

    Raises ServiceError ``too-large`` beyond the library's limit.
    """
    found.characters += len(ptx)
    if found.most_characters is not None and found.characters > found.most_characters:
        why = f"the code has more than {found.most_characters:,} characters of PTX"
        raise ServiceError("too-large", why)
    entries = [(match.start(), match[1]) for match in ENTRY.finditer(ptx)]
    for number, (start, name) in enumerate(entries):
        checkpoint()
        end = entries[number + 1][0] if number + 1 < len(entries) else len(ptx)
        fixed = FIXED.search(ptx, start, end)
        block = None
        if fixed is not None:
            block = (int(fixed[1]), int(fixed[2] or 1), int(fixed[3] or 1))
        mine = told if told is not None and told.get("name", name) == name else {}
        given = (whole(mine.get(each), -1) for each in ("registers", "shared"))
        facts = [each if each >= 0 else None for each in given]
        found.add(Code(ptx, name, file, block, *facts))


def holds_code(name: str) -> bool:
    """Whether a file of this name may hold PTX."""
    return PurePath(name).suffix.lower() in SUFFIXES or ".so." in name


def _files(root: Path) -> Iterator[Path]:
    count = 0
    for path in sorted(root.rglob("*")):
        if not holds_code(path.name):
            continue
        if path.is_symlink() or not path.is_file():
            continue
        count += 1
        if count > MOST_FILES:
            raise DataError(f"{root}: more than {MOST_FILES:,} files; name a folder below it")
        yield path


def add_file(found: Library, path: Path, name: str) -> None:
    """Every kernel of a file, told by its suffix, that ``name`` calls it. What cannot be read goes
    to ``found.skipped``. Raises as ``add_text``."""
    checkpoint()
    try:
        if path.stat().st_size > MOST_BYTES:
            found.skipped.append(f"{name}: larger than {MOST_BYTES:,} bytes")
            return
        if path.suffix.lower() == ".ptx":
            add_text(found, path.read_text(encoding="utf-8", errors="replace"), name, _told(path))
            return
        from wattcast.predictor.traces.fatbin import embedded

        for number, text in enumerate(embedded(path, found.skipped)):
            add_text(found, text, f"{name} (PTX {number + 1})")
    except OSError as error:
        found.skipped.append(f"{name}: {error.strerror}")


def _told(path: Path) -> dict[str, object] | None:
    """Triton's metadata beside a PTX file: ``NAME.json``, and registers of ``NAME.cubin``."""
    beside = path.with_suffix(TOLD)
    if not beside.is_file():
        return None
    if beside.stat().st_size > MOST_TOLD:
        return None
    try:
        told = json_value(beside.read_text(encoding="utf-8", errors="replace"))
    except DataError:
        return None
    if not isinstance(told, dict):
        return None
    cubin = path.with_suffix(".cubin")
    if cubin.is_file() and cubin.stat().st_size <= MOST_CUBIN:
        told["registers"] = cubin_registers(cubin.read_bytes())
    return told
