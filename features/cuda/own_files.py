"""A CUDA file of one's own on disk: the headers it includes and the options its build gives it.

For the command line and Python alone: what comes over HTTP reads no file.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from os.path import normpath
from pathlib import Path

from wattcast.features.cuda.compile import OPTIONS, SOURCE_NAME
from wattcast.features.cuda.source import includes_of
from wattcast.features.errors import PtxError
from wattcast.features.ptx.lexing import text_of_file

MOST_HEADERS = 64
"""Own headers of one source; more are a project of its own, which nvcc compiles."""

MOST_HEADER_BYTES = 1 << 20


def with_headers(file: Path, folders: Sequence[Path] = ()) -> tuple[str, dict[str, str]]:
    """The text of a file of one's own and of the headers it includes, by name, as a request holds
    them: those beside the file that includes them and those in ``folders`` (``-I``); and sources
    beside it that include it, or hold a kernel that it launches.

    A name that leaves its folder (``../common/x.h``) is written anew, in text and name alike
    (``up/common/x.h``). Headers found nowhere are the compiler's. Raises OSError where the file
    cannot be read, PtxError where one is no text, ValueError for more than ``MOST_HEADERS`` or
    ``MOST_HEADER_BYTES``.
    """
    source, texts = _with_headers([(file, "")], folders)
    units = _units(file, "\n".join((source, *texts.values())))
    if units:
        with suppress(ValueError, PtxError):  # more than are taken, or no texts
            return _with_headers([(file, ""), *((unit, unit.name) for unit in units)], folders)
    return source, texts


def _units(file: Path, text: str) -> list[Path]:
    """Sources beside a file, or above, that include it or define a kernel it launches and lacks."""
    folder = file.resolve().parent
    texts = dict[Path, str]()
    for place in (folder, folder.parent):
        with suppress(OSError):  # what is not ours to read is none of it
            for path in sorted(place.iterdir()):
                if path.suffix not in (".cu", ".cuh", ".h") or len(texts) == MOST_HEADERS:
                    continue
                if path.is_file() and path.stat().st_size <= MOST_HEADER_BYTES:
                    with suppress(OSError):
                        texts[path] = path.read_text(encoding="utf-8", errors="replace")
    included = {
        path: {Path(normpath(path.parent / name)) for name in includes_of(other)}
        for path, other in texts.items()
    }
    units, before = {folder / file.name}, 0
    while len(units) > before:
        before = len(units)
        units |= {path for path, names in included.items() if units & names}
    launched = {name for name in _LAUNCHED.findall(text) if not _defines(text, name)}
    units |= {p for p, other in texts.items() if any(_defines(other, name) for name in launched)}
    return [path for path in sorted(units - {folder / file.name}) if path.suffix == ".cu"]


_LAUNCHED = re.compile(r"\b(\w+)\s*(?:<[^<>;{}]{0,200}>\s*)?<<<")


def _defines(text: str, kernel: str) -> bool:
    """Whether a text defines the kernel."""
    found = re.search(rf"__global__[^;{{}}]{{1,300}}?\b{kernel}\s*\([^;{{}}]*\)\s*\{{", text)
    return found is not None


def _with_headers(
    waiting: list[tuple[Path, str]], folders: Sequence[Path]
) -> tuple[str, dict[str, str]]:
    """The text of the first file, and by name those of the others and of what they all include."""
    file, size = waiting[0][0], 0
    found, texts = {file.resolve(): SOURCE_NAME}, dict[str, str]()
    while waiting:
        path, key = waiting.pop()
        text = text_of_file(path.read_bytes())
        for name in dict.fromkeys(includes_of(text)):
            quoted = re.search(rf'#\s*include\s*"{re.escape(name)}"', text) is not None
            places = [*([path.parent] if quoted else []), *folders]
            there = next((each / name for each in places if (each / name).is_file()), None)
            if there is not None and there.stat().st_size > MOST_HEADER_BYTES:
                continue
            beside = quoted and (there is None or there == path.parent / name)
            wanted = _plain(f"{key.rpartition('/')[0]}/{name}" if beside else name)
            if there is not None:
                if there.resolve() not in found:
                    found[there.resolve()] = wanted
                    waiting.append((there, wanted))
                wanted = found[there.resolve()]
            if wanted != name and (there is not None or ".." in name.split("/")):
                text = re.sub(rf'(#\s*include\s*)["<]{re.escape(name)}[">]', rf"\1<{wanted}>", text)
        if key:
            texts[key], size = text, size + len(text)
        else:
            source = text
        if len(texts) > MOST_HEADERS or size > MOST_HEADER_BYTES:
            raise ValueError(
                f"{file} includes more than {MOST_HEADERS} headers of its own, or more than "
                f"{MOST_HEADER_BYTES:,} bytes of them; compile it (nvcc -ptx) and give the PTX"
            )
    return source, texts


def _plain(name: str) -> str:
    """A relative path without ``.`` and ``..``: ``a/../../x.h`` -> ``up/x.h``."""
    parts = list[str]()
    for part in name.split("/"):
        if part in ("", "."):
            continue
        if part == ".." and parts and parts[-1] != "up":
            parts.pop()
        else:
            parts.append("up" if part == ".." else part)
    return "/".join(parts)


COMMANDS = "compile_commands.json"


def project_options(build: Path, file: Path) -> tuple[list[str], list[Path]]:
    """The options and include folders with which a build compiles ``file``, from its
    ``compile_commands.json`` (JSON Compilation Database, clang.llvm.org). Options that change no
    code are left out. Raises OSError, and ValueError where the file is not in it."""
    place = build / COMMANDS if build.is_dir() else build
    try:
        rows = json.loads(place.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place}: not JSON: {error}") from error
    for row in rows if isinstance(rows, list) else ():
        if not isinstance(row, dict) or not {"directory", "file"} <= row.keys():
            continue
        folder = place.parent / str(row["directory"])
        if (folder / str(row["file"])).resolve() == file.resolve():
            given = row.get("arguments")
            if not isinstance(given, list):
                given = shlex.split(str(row.get("command", "")))
            return _taken([str(each) for each in given], folder)
    raise ValueError(f"{place}: {file} is none of the files that it compiles")


def _taken(words: Sequence[str], folder: Path) -> tuple[list[str], list[Path]]:
    options, folders = list[str](), list[Path]()
    for word, following in _with_next(words):
        for flag in ("-I", "-isystem", "--include-path=", "--system-include="):
            if word.startswith(flag):
                folders.append(folder / (word[len(flag) :] or following))
        option = f"-D{following}" if word == "-D" else word
        if OPTIONS.fullmatch(option):
            options.append(option)
    return options, folders


def _with_next(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    yield from zip(words, [*words[1:], ""], strict=True)
