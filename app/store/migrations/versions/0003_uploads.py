"""API keys, the audit log, and uploaded measurements."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("secret_sha256", sa.String(64), nullable=False),
        sa.Column("scopes", sa.String(64), nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.Column("revoked", sa.DateTime(timezone=True), nullable=True),
    )
    op.create_table(
        "audit_log",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.String(100), nullable=False),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("request_id", sa.String(64), nullable=True),
    )
    op.create_index("ix_audit_log_at", "audit_log", ["at"])
    op.create_table(
        "measurement_batches",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.Column("content_sha256", sa.String(64), nullable=False),
        sa.Column("uploaded_by", sa.String(100), nullable=False),
        sa.Column("form", sa.String(16), nullable=False),
        sa.Column("schemas", sa.Text(), nullable=False),
        sa.Column("accepted", sa.Integer(), nullable=False),
        sa.Column("rejected", sa.Integer(), nullable=False),
        sa.Column("rejections", sa.Text(), nullable=False),
        sa.UniqueConstraint("content_sha256", name="uq_measurement_batches_content_sha256"),
    )
    op.create_index("ix_measurement_batches_created", "measurement_batches", ["created"])
    op.create_table(
        "measurements",
        sa.Column(
            "batch_id",
            sa.Uuid(),
            sa.ForeignKey("measurement_batches.id", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("row", sa.Integer(), autoincrement=False, primary_key=True),
        sa.Column("gpu", sa.String(64), nullable=False),
        sa.Column("board", sa.String(64), nullable=True),
        sa.Column("kernel", sa.Text(), nullable=False),
        sa.Column("kernel_group", sa.Text(), nullable=False),
        sa.Column("ptx_sha256", sa.String(64), sa.ForeignKey("ptx.sha256"), nullable=True),
        sa.Column("launch", sa.Text(), nullable=True),
        sa.Column("core_mhz", sa.Float(), nullable=True),
        sa.Column("memory_mhz", sa.Float(), nullable=True),
        sa.Column("power_watts", sa.Float(), nullable=True),
        sa.Column("time_seconds", sa.Float(), nullable=True),
        sa.Column("repeats", sa.Integer(), nullable=False),
        sa.Column("vectors", sa.Text(), nullable=False),
    )
    op.create_index("ix_measurements_gpu_board", "measurements", ["gpu", "board"])


def downgrade() -> None:
    for table in ("measurements", "measurement_batches", "audit_log", "api_keys"):
        op.drop_table(table)
