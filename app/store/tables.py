"""Tables. Changing one takes a new Alembic migration beside it; a test compares the two.

SQLAlchemy Core: rows are written in batches and read by key, so the object-relational mapper
would add a tenth of a second to every start and nothing else.
"""

from __future__ import annotations

from sqlalchemy import (
    Column,
    DateTime,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    Uuid,
)

METADATA = MetaData(
    naming_convention={
        "ix": "ix_%(column_0_label)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)
"""All tables; constraints have predictable names, so migrations can address them."""

PTX = Table(
    "ptx",
    METADATA,
    Column("sha256", String(64), primary_key=True),
    Column("size", Integer, nullable=False),
    Column("compressed", LargeBinary, nullable=False),
    Column("created", DateTime(timezone=True), nullable=False),
)
"""PTX texts, each stored once under its SHA-256: UTF-8 compressed with zlib, ``size`` before."""

PREDICTIONS = Table(
    "predictions",
    METADATA,
    Column("id", Uuid, primary_key=True),
    Column("created", DateTime(timezone=True), nullable=False, index=True),
    # Hash of the request without its PTX text, together with the PTX's hash.
    Column("request_sha256", String(64), nullable=False, index=True),
    Column("ptx_sha256", String(64), ForeignKey(PTX.c.sha256), nullable=True),
    Column("gpu", String(64), nullable=False),
    Column("kernel", Text, nullable=False),
    Column("request", Text, nullable=False),
    Column("result", Text, nullable=False),
    Column("vectors", Text, nullable=False),
    Column("models", Text, nullable=False),
)
"""Answered predictions. ``kernel`` is the mangled name. A prediction from measured work has no
PTX, and its ``kernel`` is empty. JSON text: ``request`` without its PTX, ``result`` exactly as
answered, ``vectors`` the model inputs by feature schema (``{"alavani2023": [1.0, null]}``),
``models`` the artifact that answered or ``null``."""
