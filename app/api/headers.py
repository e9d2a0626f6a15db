"""Security headers of every answer."""

from __future__ import annotations

from collections.abc import Sequence

_ALWAYS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
)

_DATA = (
    *_ALWAYS,
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
)
"""What is no page runs nothing and is kept by no cache: answers belong to whoever has the key."""

_PAGE = (
    *_ALWAYS,
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        b"font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'self'; "
        b"frame-ancestors 'none'",
    ),
)
"""Pages of our own load scripts and styles from here alone; nothing is inline."""

_OF_PAGES = (b"text/html", b"text/css", b"text/javascript", b"application/javascript", b"image/")

_NAMES = frozenset(name for name, _ in (*_DATA, *_PAGE))


_NOT_MODIFIED = 304


def security_headers(
    status: int, headers: Sequence[tuple[bytes, bytes]]
) -> Sequence[tuple[bytes, bytes]]:
    """What to add to an answer with this status and these headers; one it has set itself stays.

    Headers of a 304 replace those that the browser stored (RFC 9111, 3.2), and nothing but pages
    and their files is ever answered so: it carries the policy of a page, which also mends pages
    that were stored with another.
    """
    media, has_own = b"", False
    for name, value in headers:
        if name == b"content-type":
            media = value
        elif name in _NAMES:
            has_own = True
    chosen = _PAGE if status == _NOT_MODIFIED or media.startswith(_OF_PAGES) else _DATA
    if not has_own:
        return chosen
    own = {name for name, _ in headers}
    return tuple((name, value) for name, value in chosen if name not in own)
