"""Tables of uploaded measurements."""

from __future__ import annotations

from sqlalchemy import (
    Column,
    DateTime,
    Float,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    Text,
    Uuid,
)

from wattcast.app.store.tables import METADATA, PTX

MEASUREMENT_BATCHES = Table(
    "measurement_batches",
    METADATA,
    Column("id", Uuid, primary_key=True),
    Column("created", DateTime(timezone=True), nullable=False, index=True),
    Column("content_sha256", String(64), nullable=False, unique=True),
    Column("uploaded_by", String(100), nullable=False),
    Column("form", String(16), nullable=False),
    Column("schemas", Text, nullable=False),
    Column("accepted", Integer, nullable=False),
    Column("rejected", Integer, nullable=False),
    Column("rejections", Text, nullable=False),
)
"""Uploads. ``content_sha256`` is over the accepted rows as they mean, not over the file, so that
the same rows compressed or in another format are the same batch. ``form`` is ``ptx`` or
``features``. JSON text: ``schemas`` the hash of each schema's definition by its id,
``rejections`` the first rejected rows as ``[{"row": 3, "column": "grid", "reason": "..."}]``."""

MEASUREMENTS = Table(
    "measurements",
    METADATA,
    Column(
        "batch_id",
        Uuid,
        ForeignKey(MEASUREMENT_BATCHES.c.id, ondelete="CASCADE"),
        primary_key=True,
    ),
    Column("row", Integer, primary_key=True, autoincrement=False),
    Column("gpu", String(64), nullable=False),
    Column("board", String(64), nullable=True),
    Column("kernel", Text, nullable=False),
    Column("kernel_group", Text, nullable=False),
    Column("ptx_sha256", String(64), ForeignKey(PTX.c.sha256), nullable=True),
    Column("launch", Text, nullable=True),
    Column("core_mhz", Float, nullable=True),
    Column("memory_mhz", Float, nullable=True),
    Column("power_watts", Float, nullable=True),
    Column("time_seconds", Float, nullable=True),
    Column("repeats", Integer, nullable=False),
    Column("vectors", Text, nullable=False),
    Index("ix_measurements_gpu_board", "gpu", "board"),
)
"""Accepted rows; ``row`` counts the upload's rows from 1. JSON text: ``launch`` how the kernel was
started (``null`` where only features were given), ``vectors`` every field of each schema in its
order (``{"activity1": [1.0, null]}``)."""
