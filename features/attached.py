"""What is worked out about an object once and kept on the object itself."""

from __future__ import annotations

from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Attached(Generic[K, V]):
    """One fact per object, held by the object: both are freed together.

    The value may refer to its object. A ``WeakKeyDictionary`` would then keep both for ever, since
    it holds the value and the value holds the key. Objects need a ``__dict__``.
    """

    def __init__(self, name: str) -> None:
        self._name = f"_attached_{name}"

    def get(self, owner: K) -> V | None:
        """What is known of ``owner``; ``None`` before it was set."""
        found: V | None = vars(owner).get(self._name)
        return found

    def set(self, owner: K, value: V) -> V:
        """Keep ``value`` on ``owner`` and return it; the first one stays if threads compete."""
        kept: V = vars(owner).setdefault(self._name, value)
        return kept
