"""What one warp's memory access costs, counted the plain way."""

from __future__ import annotations

from collections.abc import Iterable

SECTOR_BYTES = 32  # granularity of L1 and L2 transfers (CUDA C++ best practices, "coalescing")
BANKS = 32  # shared-memory banks, each a 4-byte word wide (CUDA C++ programming guide)
BANK_BYTES = 4


def sectors(accesses: Iterable[tuple[int, int]]) -> int:
    """Distinct 32-byte sectors touched by ``(address, bytes)`` accesses."""
    touched = set()
    for address, size in accesses:
        touched.update(range(address // SECTOR_BYTES, (address + size - 1) // SECTOR_BYTES + 1))
    return len(touched)


def conflict_degree(accesses: Iterable[tuple[int, int]]) -> int:
    """Largest number of distinct 4-byte words that one bank must deliver; 0 without accesses."""
    words = set()
    for address, size in accesses:
        words.update(range(address // BANK_BYTES, (address + size - 1) // BANK_BYTES + 1))
    per_bank = [0] * BANKS
    for word in words:
        per_bank[word % BANKS] += 1
    return max(per_bank)


def shared_transactions(accesses: Iterable[tuple[int, int, int]]) -> int:
    """Transactions of one warp's ``(lane, address, bytes)`` accesses of one width.

    Up to 4 bytes per lane the warp is served at once, 8 bytes by half warps, 16 by quarters, and
    twice as many lanes where every two neighbours, or every lane and the next but one, read alike.
    """
    asked = list(accesses)
    at = {lane: address // max(size, 4) for lane, address, size in asked}
    twice = any(
        all(at.get(lane ^ apart, unit) == unit for lane, unit in at.items()) for apart in (1, 2)
    )
    parts: dict[int, list[tuple[int, int]]] = {}
    for lane, address, size in asked:
        lanes_at_once = 32 if size <= 4 else 128 // size * (2 if twice else 1)
        parts.setdefault(lane // lanes_at_once, []).append((address, size))
    return sum(conflict_degree(part) for part in parts.values())
