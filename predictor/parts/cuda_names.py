"""Parameter names of the kernels in CUDA source: ``__global__ void scale(float* x, int n)``.

A small scan of the text, no parser: names from macros are not seen. The compiler keeps the
order of the parameters, so a name found here is a position there.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import NamedTuple

from wattcast.features.cuda.source import code_alone


class KernelNames(NamedTuple):
    """A kernel as the source writes it; a parameter without a name is ``None``."""

    kernel: str
    parameters: tuple[str | None, ...]
    defined: bool


_GLOBAL = re.compile(r"\b__global__\b")
_CALL = re.compile(
    r"__(?:launch_bounds|attribute|cluster_dims|maxnreg|block_size)__|__declspec|alignas|decltype|"
    r"noexcept|requires"
)
"""Words before a kernel's name that take parentheses of their own."""

_QUALIFIER = re.compile(r"const|volatile|typename|(?:__)?restrict(?:__)?|__grid_constant__")
_NO_NAME = re.compile(
    r"void|bool|char|short|int|long|float|double|signed|unsigned|auto|struct|class|enum|union"
)
_TAG = re.compile(r"::|struct|class|enum|union")
_TOKEN = re.compile(r"[A-Za-z_]\w*|::|\S")
_END_OR_OPENING = re.compile(r"[({;}]")
_PARENTHESIS = re.compile(r"[()]")
_NEXT = re.compile(r"\s*(\S)")
_CLOSING = {"(": ")", "[": "]", "{": "}", "<": ">"}

_MOST_KERNELS = 256
_MOST_TEXT = 8192
"""Kernels read of one source and characters of one list: text behind ``#if 0`` may be anything."""

_MOST_NAME = 256
_MOST_PART = 1024
"""Characters of a name and of one parameter: its patterns take time with the square of them."""


def kernel_names(source: str) -> tuple[KernelNames, ...]:
    """Every ``__global__`` function of the source, in its order."""
    text = code_alone(source)
    found = (_read(text, match.end()) for match in islice(_GLOBAL.finditer(text), _MOST_KERNELS))
    return tuple(kernel for kernel in found if kernel is not None)


def _read(text: str, start: int) -> KernelNames | None:
    """The kernel whose declaration goes on at ``start``."""
    end = start + _MOST_TEXT
    while True:
        opening = _END_OR_OPENING.search(text, start, end)
        if opening is None or opening[0] != "(":
            return None
        closing = _closing(text, opening.start())
        if closing is None:
            return None
        word = _word_before(_without_template(text[start : opening.start()]))
        if not word or _CALL.fullmatch(word):
            start = closing + 1
            continue
        following = _NEXT.match(text, closing + 1)
        inside = text[opening.end() : closing]
        return KernelNames(word, _parameters(inside), following is not None and following[1] == "{")


def _closing(text: str, opening: int) -> int | None:
    """The position of the parenthesis that closes the one at ``opening``."""
    depth = 0
    for match in _PARENTHESIS.finditer(text, opening, opening + _MOST_TEXT):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.start()
    return None


def _word_before(text: str) -> str:
    """The identifier that ends ``text``, or nothing."""
    end = len(text.rstrip())
    start = end
    least = max(0, end - _MOST_NAME)
    while start > least and (text[start - 1].isalnum() or text[start - 1] == "_"):
        start -= 1
    return text[start:end].lstrip("0123456789")


def _without_template(before: str) -> str:
    """``void f<Pair<int>>`` without the arguments that end it: ``void f``."""
    stripped = before.rstrip()
    if not stripped.endswith(">"):
        return before
    depth = 0
    for position in range(len(stripped) - 1, -1, -1):
        depth += {">": 1, "<": -1}.get(stripped[position], 0)
        if depth == 0:
            return stripped[:position]
    return before


def _parameters(inside: str) -> tuple[str | None, ...]:
    parts = _split(inside, angles=True)
    if parts is None:  # a default value such as (a < b), outside parentheses
        parts = _split(inside, angles=False) or []
    parts = [part for part in parts if part.strip()]
    if len(parts) == 1 and parts[0].strip() == "void":
        return ()
    return tuple(_name(part) for part in parts)


def _split(text: str, *, angles: bool) -> list[str] | None:
    """The parts between top-level commas; ``None`` where brackets do not match."""
    parts: list[str] = []
    waiting: list[str] = []
    start = deep = 0
    for position, char in enumerate(text):
        if char in "([{" or (
            char == "<"
            and angles
            and not deep
            and _word_before(text[max(0, position - _MOST_NAME) : position])
        ):
            waiting.append(_CLOSING[char])
            deep += char != "<"
        elif char in ")]}":
            if not waiting or waiting.pop() != char:
                return None
            deep -= 1
        elif char == ">" and waiting and waiting[-1] == ">":
            waiting.pop()
        elif char == "," and not waiting:
            parts.append(text[start:position])
            start = position + 1
    return None if waiting else [*parts, text[start:]]


def _name(part: str) -> str | None:
    """The declared name of one parameter: ``const Pair<int> *x[4] = 0`` -> ``x``."""
    if len(part) > _MOST_PART:
        return None
    declared = re.split(r"(?<![=!<>])=(?!=)", part, maxsplit=1)[0]
    inner = re.search(r"\(\s*[*&]+\s*(?:const\s+)?([A-Za-z_]\w*)\s*(?:\[[^\]]*\]\s*)*\)", declared)
    if inner is not None:  # a pointer to a function or an array
        return inner[1]
    declared = re.sub(
        r"\[[^\]]*\]|\b(?:alignas|__align__|__attribute__)\s*\(+[^()]*\)+", " ", declared
    )
    tokens = [token for token in _TOKEN.findall(declared) if not _QUALIFIER.fullmatch(token)]
    if len(tokens) < 2 or not re.match(r"[A-Za-z_]", tokens[-1]):
        return None
    # One word alone is the type; after :: it still is.
    nameless = _NO_NAME.fullmatch(tokens[-1]) or _TAG.fullmatch(tokens[-2])
    return None if nameless else tokens[-1]
