"""What measurements said of intervals that had been answered before."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "observations",
        sa.Column("batch_id", sa.Uuid(), primary_key=True),
        sa.Column("row", sa.Integer(), autoincrement=False, primary_key=True),
        sa.Column("target", sa.String(32), primary_key=True),
        sa.Column("gpu", sa.String(64), nullable=False),
        sa.Column("board", sa.String(64), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("kernel_group", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("level", sa.Float(), nullable=False),
        sa.Column("score", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(
            ["batch_id", "row"],
            ["measurements.batch_id", "measurements.row"],
            name="fk_observations_measurement",
            ondelete="CASCADE",
        ),
    )
    op.create_index("ix_predictions_ptx_sha256", "predictions", ["ptx_sha256"])


def downgrade() -> None:
    op.drop_index("ix_predictions_ptx_sha256", "predictions")
    op.drop_table("observations")
