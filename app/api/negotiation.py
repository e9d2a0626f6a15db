"""Which of several media types a request wants: by ``format=``, else by its Accept header."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def chosen(accept: str | None, offered: Mapping[str, str]) -> str:
    """The key of ``offered`` (names to media types) that ``accept`` prefers (RFC 9110, 12.5.1).

    Of equally wanted ones the first offered; it also answers where nothing offered is wanted,
    which RFC 9110 allows and which tells more than a bare refusal.
    """
    names = list(offered)
    wanted = _ranges(accept or "*/*")
    best = max(names, key=lambda name: (_quality(offered[name], wanted), -names.index(name)))
    return best if _quality(offered[best], wanted) > 0 else names[0]


def _ranges(accept: str) -> Sequence[tuple[str, float]]:
    found = []
    for part in accept.split(",")[:64]:
        media, *parameters = (word.strip().lower() for word in part.split(";"))
        quality = 1.0
        for parameter in parameters:
            name, _, value = parameter.partition("=")
            if name.strip() == "q":
                try:
                    quality = min(1.0, max(0.0, float(value)))
                except ValueError:
                    quality = 0.0
        found.append((media, quality))
    return found


def _quality(media: str, wanted: Sequence[tuple[str, float]]) -> float:
    """The quality of the most specific range that holds ``media``; 0 where none does."""
    kind = media.partition("/")[0]
    for candidate in (media, f"{kind}/*", "*/*"):
        for name, quality in wanted:
            if name == candidate:
                return quality
    return 0.0
