"""Predictions from measured work have no PTX."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    with op.batch_alter_table("predictions") as table:
        table.alter_column("ptx_sha256", existing_type=sa.String(64), nullable=True)


def downgrade() -> None:
    op.execute("DELETE FROM predictions WHERE ptx_sha256 IS NULL")
    with op.batch_alter_table("predictions") as table:
        table.alter_column("ptx_sha256", existing_type=sa.String(64), nullable=False)
