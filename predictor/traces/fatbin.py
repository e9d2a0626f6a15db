"""PTX inside binaries: the containers that nvcc embeds into programs and shared libraries.

NVIDIA publishes the magic number of a container (``fatbinary_section.h`` of the CUDA toolkit) but
not its layout. It is that of Cricket (RWTH Aachen, ``fatbin-decompress.h``, Apache-2.0, published
2023), by which others read CUDA 11 to 13:

    container  magic, version (16 bits), header bytes (16), bytes of all entries (64)
    entry      kind (16), version (16), header bytes (32), payload bytes (64), compressed bytes
               (32), options (32), minor (16), major (16), architecture (32), name at (32), name
               bytes (32), flags (64), 0 (64), bytes when unpacked (64)

PTX is stored as it is, packed by LZ4 (flag 0x2000) or by Zstandard (flag 0x8000, CUDA 12.4 on).
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

from wattcast.features.errors import checkpoint

MAGIC = bytes.fromhex("50ed55ba")
_CONTAINER = struct.Struct("<4sHHQ")
_ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")
PTX = 1
LZ4, ZSTANDARD = 0x2000, 0x8000

MOST_TEXT = 1 << 26
"""Characters of one PTX."""

MOST_ALL = 1 << 29
"""Of all in one file."""


CHECKED_EVERY = 1024
"""Tokens of a block, some hundred microseconds."""


class BrokenError(ValueError):
    """What was unpacked is not what was packed."""


def embedded(path: Path, skipped: list[str]) -> Iterator[str]:
    """Every PTX text of a binary, each once; what cannot be read goes to ``skipped``."""
    if path.stat().st_size < _CONTAINER.size:
        return
    seen: set[int] = set()
    total = 0
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for at, payload, flags, size in _entries(data):
            checkpoint()
            try:
                text = _unpacked(payload, flags, size).rstrip(b"\0")
            except ModuleNotFoundError as error:
                wanted = f"needs {error.name}: pip install 'wattcast[serve]'"
                skipped.append(f"{path.name}: PTX at byte {at:,} is packed by Zstandard, {wanted}")
                continue
            except (OSError, ValueError) as error:
                skipped.append(f"{path.name}: PTX at byte {at:,} cannot be unpacked: {error}")
                continue
            if hash(text) in seen or b".entry" not in text:
                continue
            seen.add(hash(text))
            total += len(text)
            if total > MOST_ALL:
                skipped.append(f"{path.name}: only {MOST_ALL:,} bytes of its PTX are read")
                return
            yield text.decode("utf-8", "replace")


def _entries(data: mmap.mmap) -> Iterator[tuple[int, bytes, int, int]]:
    """Place, payload, flags and unpacked size of each PTX entry."""
    end = len(data)
    start = data.find(MAGIC)
    while start >= 0:
        after = start + 4
        if start + _CONTAINER.size <= end:
            _, version, header, size = _CONTAINER.unpack_from(data, start)
            at, stop = start + header, start + header + size
            if version == 1 and header >= _CONTAINER.size and stop <= end:
                while at + _ENTRY.size <= stop:
                    fields = _ENTRY.unpack_from(data, at)
                    kind, head, padded, packed = fields[0], fields[2], fields[3], fields[4]
                    flags, plain = fields[11], fields[13]
                    if head < 32 or at + head + padded > stop:
                        break
                    if kind == PTX:
                        begin = at + head
                        length = packed if flags & (LZ4 | ZSTANDARD) else padded
                        yield at, data[begin : begin + min(length, padded)], flags, plain
                    at += head + padded
                after = max(after, at)
        start = data.find(MAGIC, after)


def _unpacked(payload: bytes, flags: int, size: int) -> bytes:
    if not flags & (LZ4 | ZSTANDARD):
        return payload
    if not 0 < size <= MOST_TEXT:
        raise BrokenError(f"it would have {size:,} bytes")
    if not flags & ZSTANDARD:
        return lz4_block(payload, size)
    import pyarrow  # of the extra serve; the standard library has it from Python 3.14 on

    return bytes(pyarrow.decompress(payload, size, codec="zstd", asbytes=True))


def lz4_block(packed: bytes, size: int) -> bytes:
    """An LZ4 block of ``size`` bytes (lz4/doc/lz4_Block_format.md). Raises BrokenError."""
    out = bytearray()
    at, end, turns = 0, len(packed), 0

    def length(nibble: int) -> int:
        nonlocal at
        total = nibble
        if nibble == 15:
            while True:
                if at >= end:
                    raise BrokenError("it is cut off")
                more = packed[at]
                at += 1
                total += more
                if more != 255:
                    break
        return total

    while at < end:
        turns += 1
        if turns % CHECKED_EVERY == 0:
            checkpoint()
        token = packed[at]
        at += 1
        literals = length(token >> 4)
        if at + literals > end or len(out) + literals > size:
            raise BrokenError("its literals are too long")
        out += packed[at : at + literals]
        at += literals
        if at >= end:
            break
        if at + 2 > end:
            raise BrokenError("it is cut off")
        back = packed[at] | packed[at + 1] << 8
        at += 2
        match = length(token & 15) + 4
        if not 0 < back <= len(out) or len(out) + match > size:
            raise BrokenError("a match points outside")
        start = len(out) - back
        while match > 0:  # a match may overlap itself: each turn finds twice as much to copy
            piece = out[start : start + match]
            out += piece
            match -= len(piece)
    if len(out) != size:
        raise BrokenError(f"{len(out):,} bytes instead of {size:,}")
    return bytes(out)
