"""API keys: made once, shown once, kept as a hash.

A key is ``wk_<id>_<secret>``: the id is public and names the row, the secret is 256 random bits,
of which one SHA-256 tells nothing (slow hashes are for words that people choose).
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, get_args

import sqlalchemy as sa
from sqlalchemy.engine import Engine, Row

from wattcast.app.store.database import store_errors
from wattcast.app.store.tables import found, read, record, table

Scope = Literal["read", "write", "train"]
"""``read`` predicts and looks, ``write`` uploads and deletes measurements, ``train`` makes and
promotes models. None contains another."""
SCOPES: tuple[Scope, ...] = get_args(Scope)

_KEY = re.compile(r"wk_([0-9a-f]{12})_[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key without its secret."""

    id: Annotated[str, 16, "primary_key"]
    name: Annotated[str, 100]
    scopes: Annotated[frozenset[Scope], 64]
    created: datetime
    revoked: datetime | None


API_KEYS = table("api_keys", ApiKey, sa.Column("secret_sha256", sa.String(64), nullable=False))
"""API keys. ``id`` is the public part of a key; of its secret only the SHA-256 is kept, which is
enough for 256 random bits. ``scopes`` are words separated by blanks."""


class KeyStore:
    """Repository of keys over ``engine``. Safe to call from any thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def create(self, name: str, scopes: Sequence[Scope], actor: str) -> tuple[ApiKey, str]:
        """A new key and its only copy in clear."""
        key_id = secrets.token_hex(6)
        token = f"wk_{key_id}_{secrets.token_urlsafe(32)}"
        words = [scope for scope in SCOPES if scope in scopes]
        values = {
            "id": key_id,
            "name": name,
            "secret_sha256": _hash(token),
            "scopes": " ".join(words),
            "created": datetime.now(UTC),
            "revoked": None,
        }
        with self._engine.begin() as connection:
            connection.execute(sa.insert(API_KEYS), values)
            record(connection, actor, "keys.create", key_id, {"name": name, "scopes": words})
        return ApiKey(key_id, name, frozenset(words), values["created"], None), token  # type: ignore[arg-type]

    def all(self) -> list[ApiKey]:
        """Every key, the oldest first, revoked ones too."""
        columns = API_KEYS.c
        query = sa.select(API_KEYS).order_by(columns.created, columns.id)
        return [_key(row) for row in found(self._engine, query)]

    def revoke(self, key_id: str, actor: str) -> bool:
        """End a key for good; ``False`` if there is none of this id that is still in use."""
        columns = API_KEYS.c
        with self._engine.begin() as connection:
            done = connection.execute(
                sa.update(API_KEYS)
                .where(columns.id == key_id, columns.revoked.is_(None))
                .values(revoked=datetime.now(UTC))
            )
            if done.rowcount:
                record(connection, actor, "keys.revoke", key_id)
            return bool(done.rowcount)

    def hashes(self) -> dict[str, tuple[ApiKey, str]]:
        """The keys in use with the hashes of their tokens, by id."""
        query = sa.select(API_KEYS).where(API_KEYS.c.revoked.is_(None))
        return {row.id: (_key(row), row.secret_sha256) for row in found(self._engine, query)}


UNKNOWN_SECONDS = 0.25
"""Least time between two looks for a key that is not known."""


KEPT_SECONDS = 5.0
"""How long the keys that were read are used; a revoked key works this much longer."""


class KeyRing:
    """The keys in use, read from the database when they were last read ``KEPT_SECONDS`` ago.

    Telling a wrong key from a right one asks no database, so that no flood of wrong ones can
    load it, nor lock out who shares an address with its source. Safe from any thread.
    """

    def __init__(self, store: KeyStore) -> None:
        self._store = store
        self._keys: dict[str, tuple[ApiKey, str]] = {}
        self._read_at = -math.inf
        self._lock = threading.Lock()

    def read_in(self, token: str) -> float | None:
        """Seconds until ``read`` should come before ``find``; ``None`` where it need not.

        A key that is unknown may have been made a moment ago. So it is looked for, but not more
        often than every ``UNKNOWN_SECONDS``: wrong keys wait, and cost next to nothing.
        """
        known = _KEY.fullmatch(token)
        if known is None:
            return None
        age = time.monotonic() - self._read_at
        if known[1] in self._keys:
            return 0.0 if age > KEPT_SECONDS else None
        return max(0.0, min(KEPT_SECONDS, UNKNOWN_SECONDS) - age)

    def read(self) -> None:
        """Read the keys anew, unless another thread did since this call. Raises StoreError."""
        asked = time.monotonic()
        with self._lock:
            if self._read_at > asked:
                return
            began = time.monotonic()
            with store_errors("the database of API keys does not answer"):
                self._keys = self._store.hashes()
            self._read_at = began

    def find(self, token: str) -> ApiKey | None:
        """The key of a token; ``None`` for one that is unknown, wrong or revoked."""
        known = _KEY.fullmatch(token)
        key, expected = self._keys.get(known[1], (None, "")) if known else (None, "")
        return key if hmac.compare_digest(expected, _hash(token)) else None


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _key(row: Row[Any]) -> ApiKey:
    return read(ApiKey, row, scopes=frozenset(row.scopes.split()))
