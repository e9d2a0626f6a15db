"""What is worked out about an object once and kept on the object itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, Generic, ParamSpec, TypeVar

K = TypeVar("K")
V = TypeVar("V")
P = ParamSpec("P")

_PREFIX = "_attached_"


class Attached(Generic[K, V]):
    """One fact per object, held by the object: both are freed together.

    The value may refer to its object. A ``WeakKeyDictionary`` would then keep both for ever, since
    it holds the value and the value holds the key. Objects need a ``__dict__``.
    """

    def __init__(self, name: str) -> None:
        self._name = f"{_PREFIX}{name}"

    def get(self, owner: K) -> V | None:
        """What is known of ``owner``; ``None`` before it was set."""
        found: V | None = vars(owner).get(self._name)
        return found

    def set(self, owner: K, value: V) -> V:
        """Keep ``value`` on ``owner`` and return it; the first one stays if threads compete."""
        kept: V = vars(owner).setdefault(self._name, value)
        return kept


def attached(make: Callable[Concatenate[K, P], V]) -> Callable[Concatenate[K, P], V]:
    """A function of an object whose result (never ``None``) is worked out once and kept on it.

    Whatever else it is given belongs to the object, as the module to a function: the result is
    the same each time.
    """
    known: Attached[K, V] = Attached(f"{make.__module__}.{make.__qualname__}")

    @wraps(make)
    def of(owner: K, /, *args: P.args, **kwargs: P.kwargs) -> V:
        found = known.get(owner)
        return known.set(owner, make(owner, *args, **kwargs)) if found is None else found

    return of


def detach(owner: object) -> None:
    """Forget all that is attached to ``owner``, so that it is freed at once rather than by the
    garbage collector: the facts refer to their object."""
    facts = vars(owner)
    for name in [each for each in facts if each.startswith(_PREFIX)]:
        facts.pop(name, None)
