"""Tables of who may call the service and who changed what."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, DateTime, Integer, String, Table, Text

from wattcast.app.store.tables import METADATA

API_KEYS = Table(
    "api_keys",
    METADATA,
    Column("id", String(16), primary_key=True),
    Column("name", String(100), nullable=False),
    Column("secret_sha256", String(64), nullable=False),
    Column("scopes", String(64), nullable=False),
    Column("created", DateTime(timezone=True), nullable=False),
    Column("revoked", DateTime(timezone=True), nullable=True),
)
"""API keys. ``id`` is the public part of a key; of its secret only the SHA-256 is kept, which is
enough for 256 random bits. ``scopes`` are words separated by blanks."""

AUDIT_LOG = Table(
    "audit_log",
    METADATA,
    # SQLite counts up by itself only what it calls INTEGER.
    Column("id", BigInteger().with_variant(Integer(), "sqlite"), primary_key=True),
    Column("at", DateTime(timezone=True), nullable=False, index=True),
    Column("actor", String(100), nullable=False),
    Column("action", String(64), nullable=False),
    Column("subject", Text, nullable=False),
    Column("detail", Text, nullable=False),
    Column("request_id", String(64), nullable=True),
)
"""Who changed what; rows are only ever added. ``detail`` is JSON text."""
