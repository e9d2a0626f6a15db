"""Tables of the model registry: versions, who is champion, and how it came to that."""

from __future__ import annotations

from sqlalchemy import (
    Column,
    DateTime,
    ForeignKey,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
)

from wattcast.app.store.job_tables import JOBS
from wattcast.app.store.tables import METADATA

REGISTRY = Table(
    "registry",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("generation", Integer, nullable=False),
    Column("next_version", Integer, nullable=False),
)
"""One row. Every change of an alias adds one to ``generation``, first thing in its transaction, so
that changes come one after the other and a reader tells by one number whether anything moved."""

MODEL_VERSIONS = Table(
    "model_versions",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("gpu", String(64), nullable=False),
    Column("target", String(32), nullable=False),
    Column("family", String(32), nullable=False),
    Column("schema_id", String(64), nullable=False),
    Column("source", String(32), nullable=False),
    Column("version", Integer, nullable=False),
    Column("board", String(64), nullable=False),
    Column("origin", String(16), nullable=False),
    Column("card_sha256", String(64), nullable=False),
    Column("verdict", Text, nullable=True),
    Column("job_id", Uuid, ForeignKey(JOBS.c.id, ondelete="SET NULL"), nullable=True),
    Column("created", DateTime(timezone=True), nullable=False),
    UniqueConstraint(
        "gpu", "target", "family", "schema_id", "source", "version", name="uq_model_versions_model"
    ),
)
"""Versions that aliases may point to; never changed. ``origin`` is ``packaged`` or ``retrained``
(its artifact lies in the registry's folder). ``verdict`` is the gate's, JSON text."""

ALIAS_MOVES = Table(
    "alias_moves",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("gpu", String(64), nullable=False),
    Column("board", String(64), nullable=False),
    Column("target", String(32), nullable=False),
    Column("version_id", Integer, ForeignKey(MODEL_VERSIONS.c.id), nullable=False),
    Column("before_id", Integer, ForeignKey("alias_moves.id"), nullable=True),
    Column("at", DateTime(timezone=True), nullable=False),
    Column("actor", String(100), nullable=False),
    Column("why", Text, nullable=False),
)
"""Promotions; rows are only ever added. ``before_id`` is the promotion that stood before it
(``NULL``: the packaged default), to which a rollback returns."""

MODEL_ALIASES = Table(
    "model_aliases",
    METADATA,
    Column("gpu", String(64), primary_key=True),
    Column("board", String(64), primary_key=True),
    Column("target", String(32), primary_key=True),
    Column("champion_move_id", Integer, ForeignKey(ALIAS_MOVES.c.id), nullable=True),
    Column("candidate_id", Integer, ForeignKey(MODEL_VERSIONS.c.id), nullable=True),
)
"""One row, so one champion, for each GPU, board (empty: any) and target. Without a promotion the
packaged default serves."""
