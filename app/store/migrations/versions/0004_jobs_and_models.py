"""Durable jobs, model versions and aliases."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _jobs()
    _registry()


def _jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.Uuid(), nullable=False),
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
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
        sa.UniqueConstraint("idempotency_key", name="uq_jobs_idempotency_key"),
    )
    op.create_index("ix_jobs_created", "jobs", ["created"])
    op.create_index("ix_jobs_state_created", "jobs", ["state", "created"])
    op.create_table(
        "job_events",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("stage", sa.String(64), nullable=False),
        sa.Column("progress", sa.Float(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_job_events"),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name="fk_job_events_job_id", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_job_events_job_id", "job_events", ["job_id"])


def _registry() -> None:
    registry = op.create_table(
        "registry",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("next_version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_registry"),
    )
    # Above every packaged version, so that a number means one model.
    op.bulk_insert(registry, [{"id": 1, "generation": 0, "next_version": 1001}])
    op.create_table(
        "model_versions",
        sa.Column("id", sa.Integer(), nullable=False),
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
        sa.Column("job_id", sa.Uuid(), nullable=True),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_model_versions"),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name="fk_model_versions_job_id", ondelete="SET NULL"
        ),
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
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("gpu", sa.String(64), nullable=False),
        sa.Column("board", sa.String(64), nullable=False),
        sa.Column("target", sa.String(32), nullable=False),
        sa.Column("version_id", sa.Integer(), nullable=False),
        sa.Column("before_id", sa.Integer(), nullable=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.String(100), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_alias_moves"),
        sa.ForeignKeyConstraint(
            ["version_id"], ["model_versions.id"], name="fk_alias_moves_version_id"
        ),
        sa.ForeignKeyConstraint(["before_id"], ["alias_moves.id"], name="fk_alias_moves_before_id"),
    )
    op.create_table(
        "model_aliases",
        sa.Column("gpu", sa.String(64), nullable=False),
        sa.Column("board", sa.String(64), nullable=False),
        sa.Column("target", sa.String(32), nullable=False),
        sa.Column("champion_move_id", sa.Integer(), nullable=True),
        sa.Column("candidate_id", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("gpu", "board", "target", name="pk_model_aliases"),
        sa.ForeignKeyConstraint(
            ["champion_move_id"], ["alias_moves.id"], name="fk_model_aliases_champion_move_id"
        ),
        sa.ForeignKeyConstraint(
            ["candidate_id"], ["model_versions.id"], name="fk_model_aliases_candidate_id"
        ),
    )


def downgrade() -> None:
    for table in (
        "model_aliases",
        "alias_moves",
        "model_versions",
        "registry",
        "job_events",
        "jobs",
    ):
        op.drop_table(table)
