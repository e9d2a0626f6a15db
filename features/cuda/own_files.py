"""A CUDA file of one's own on disk: the headers it includes and the options its build gives it.

For the command line and Python alone: what comes over HTTP reads no file.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from wattcast.features.cuda.compile import OPTIONS
from wattcast.features.cuda.source import includes_of
from wattcast.features.ptx.lexing import text_of_file

MOST_HEADERS = 64
"""Own headers of one source; more are a project of its own, which nvcc compiles."""

MOST_HEADER_BYTES = 1 << 20


def with_headers(file: Path, folders: Sequence[Path] = ()) -> tuple[str, dict[str, str]]:
    """The text of a file of one's own and of the headers it includes, by name, as a request holds
    them: those beside the file that includes them and those in ``folders`` (``-I``).

    A name that leaves its folder (``../common/x.h``) is written anew, in text and name alike
    (``up/common/x.h``). Headers found nowhere are the compiler's. Raises OSError where the file
    cannot be read, PtxError where one is no text, ValueError for more than ``MOST_HEADERS`` or
    ``MOST_HEADER_BYTES``.
    """
    found, texts = dict[Path, str](), dict[str, str]()
    waiting, size = [(file, "")], 0
    while waiting:
        path, key = waiting.pop()
        text = text_of_file(path.read_bytes())
        for name in dict.fromkeys(includes_of(text)):
            quoted = re.search(rf'#\s*include\s*"{re.escape(name)}"', text) is not None
            places = [*([path.parent] if quoted else []), *folders]
            there = next((each / name for each in places if (each / name).is_file()), None)
            if there is None or there.stat().st_size > MOST_HEADER_BYTES:
                continue
            beside = quoted and there == path.parent / name
            inner = _plain(f"{key.rpartition('/')[0]}/{name}" if beside else name)
            if there.resolve() not in found:
                found[there.resolve()] = inner
                waiting.append((there, inner))
            wanted = found[there.resolve()]
            if wanted != inner or _plain(name) != name:
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
