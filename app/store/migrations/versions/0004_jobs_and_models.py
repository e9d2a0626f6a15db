"""Durable jobs, model versions and aliases."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("stage", sa.String(64), nullable=False),
        sa.Column("progress", sa.Float(), nullable=False),
        sa.Column("request", sa.Text(), nullable=False),
        sa.Column("request_sha256", sa.String(64), nullable=False),
        sa.Column("idempotency_key", sa.String(200), nullable=True),
        sa.Column("actor", sa.String(100), nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished", sa.DateTime(timezone=True), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("not_before", sa.Float(), nullable=False),
        sa.Column("lease_token", sa.String(32), nullable=True),
        sa.Column("lease_until", sa.Float(), nullable=True),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.UniqueConstraint("idempotency_key", name="uq_jobs_idempotency_key"),
    )
    op.create_index("ix_jobs_created", "jobs", ["created"])
    op.create_index("ix_jobs_state_created", "jobs", ["state", "created"])
    op.create_table(
        "job_events",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        sa.Column(
            "job_id", sa.Uuid(), sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False
        ),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("stage", sa.String(64), nullable=False),
        sa.Column("progress", sa.Float(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
    )
    op.create_index("ix_job_events_job_id", "job_events", ["job_id"])
    registry = op.create_table(
        "registry",
        sa.Column("id", sa.Integer(), autoincrement=False, primary_key=True),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("next_version", sa.Integer(), nullable=False),
    )
    # Above every packaged version, so that a number means one model.
    op.bulk_insert(registry, [{"id": 1, "generation": 0, "next_version": 1001}])
    op.create_table(
        "model_versions",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("gpu", sa.String(64), nullable=False),
        sa.Column("target", sa.String(32), nullable=False),
        sa.Column("family", sa.String(32), nullable=False),
        sa.Column("schema_id", sa.String(64), nullable=False),
        sa.Column("source", sa.String(32), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("board", sa.String(64), nullable=False),
        sa.Column("origin", sa.String(16), nullable=False),
        sa.Column("card_sha256", sa.String(64), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=True),
        sa.Column(
            "job_id", sa.Uuid(), sa.ForeignKey("jobs.id", ondelete="SET NULL"), nullable=True
        ),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.UniqueConstraint(
            "gpu",
            "target",
            "family",
            "schema_id",
            "source",
            "version",
            name="uq_model_versions_model",
        ),
    )
    op.create_table(
        "alias_moves",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("gpu", sa.String(64), nullable=False),
        sa.Column("board", sa.String(64), nullable=False),
        sa.Column("target", sa.String(32), nullable=False),
        sa.Column("version_id", sa.Integer(), sa.ForeignKey("model_versions.id"), nullable=False),
        sa.Column("before_id", sa.Integer(), sa.ForeignKey("alias_moves.id"), nullable=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.String(100), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
    )
    op.create_table(
        "model_aliases",
        sa.Column("gpu", sa.String(64), primary_key=True),
        sa.Column("board", sa.String(64), primary_key=True),
        sa.Column("target", sa.String(32), primary_key=True),
        sa.Column("champion_move_id", sa.Integer(), sa.ForeignKey("alias_moves.id"), nullable=True),
        sa.Column("candidate_id", sa.Integer(), sa.ForeignKey("model_versions.id"), nullable=True),
    )


def downgrade() -> None:
    registry = ("model_aliases", "alias_moves", "model_versions", "registry")
    for table in (*registry, "job_events", "jobs"):
        op.drop_table(table)
