"""Predictions and the PTX texts they are about."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "ptx",
        sa.Column("sha256", sa.String(64), primary_key=True),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("compressed", sa.LargeBinary(), nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_table(
        "predictions",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.Column("request_sha256", sa.String(64), nullable=False),
        sa.Column("ptx_sha256", sa.String(64), sa.ForeignKey("ptx.sha256"), nullable=False),
        sa.Column("gpu", sa.String(64), nullable=False),
        sa.Column("kernel", sa.Text(), nullable=False),
        sa.Column("request", sa.Text(), nullable=False),
        sa.Column("result", sa.Text(), nullable=False),
        sa.Column("vectors", sa.Text(), nullable=False),
        sa.Column("models", sa.Text(), nullable=False),
    )
    for column in ("created", "request_sha256"):
        op.create_index(f"ix_predictions_{column}", "predictions", [column])


def downgrade() -> None:
    op.drop_table("predictions")
    op.drop_table("ptx")
