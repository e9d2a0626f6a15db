"""The model registry: every retrained version, who is champion, and the way back.

For each GPU, board (empty: any) and target there is one champion: the version that the last
promotion put there, or the packaged default where there was none. A rollback goes back to what
stood before that promotion. Every change adds one to a generation, which replicas watch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine, Row

from wattcast.app.store import tables
from wattcast.features.errors import ServiceError
from wattcast.models.intervals import Observed, observed_coverage
from wattcast.predictor.parts.power_models import Watched

MOST_OBSERVED = 20_000
"""Rows that are looked at whenever the registry changes: some tens of milliseconds."""

Origin = Literal["packaged", "retrained"]
PACKAGED: Origin = "packaged"
TIME: Literal["time"] = "time"
"""The target of corrections of predicted times."""


class Place(NamedTuple):
    """What a champion is champion of. ``board`` is empty for any board."""

    gpu: Annotated[str, 64]
    board: Annotated[str, 64]
    target: Annotated[str, 32]


class ModelName(NamedTuple):
    """One version of one model, as its folder says it."""

    gpu: Annotated[str, 64]
    target: Annotated[str, 32]
    family: Annotated[str, 32]
    schema_id: Annotated[str, 64]
    source: Annotated[str, 32]
    version: int

    @property
    def place(self) -> str:
        """Place below an artifact root, as ``models.cards.Card.place``."""
        name = f"{self.family}-{self.schema_id}-{self.source}"
        return f"{self.gpu}/{self.target}/{name}/{self.version}"


@dataclass(frozen=True, slots=True)
class NewVersion:
    """A version to register: ``card_sha256`` pins its card, which pins its files."""

    name: ModelName
    board: str
    origin: Origin
    card_sha256: str
    verdict: Mapping[str, Any] | None = None
    job_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class Version:
    """A registered version."""

    id: Annotated[int, "primary_key"]
    name: ModelName
    board: Annotated[str, 64]
    origin: Annotated[str, 16]
    card_sha256: Annotated[str, 64]
    verdict: Mapping[str, Any] | None
    job_id: Annotated[UUID | None, sa.ForeignKey("jobs.id", ondelete="SET NULL")]
    created: datetime


MODEL_VERSIONS = tables.table(
    "model_versions",
    Version,
    sa.UniqueConstraint(*ModelName._fields, name="uq_model_versions_model"),
)
"""Versions that aliases may point to; never changed. ``origin`` is ``packaged`` or ``retrained``
(its artifact lies in the registry's folder). ``verdict`` is the gate's, JSON text."""


@dataclass(frozen=True, slots=True)
class Move:
    """A promotion: which version, after which other promotion, by whom and why."""

    id: Annotated[int, "primary_key"]
    place: Place
    version: Version
    before_id: Annotated[int | None, sa.ForeignKey("alias_moves.id")]
    at: datetime
    actor: Annotated[str, 100]
    why: str


ALIAS_MOVES = tables.table(
    "alias_moves",
    Move,
    sa.Column("version_id", sa.Integer, sa.ForeignKey(MODEL_VERSIONS.c.id), nullable=False),
)
"""Promotions; rows are only ever added. ``before_id`` is the promotion that stood before it
(``NULL``: the packaged default), to which a rollback returns."""

MODEL_ALIASES = sa.Table(
    "model_aliases",
    tables.METADATA,
    sa.Column("gpu", sa.String(64), primary_key=True),
    sa.Column("board", sa.String(64), primary_key=True),
    sa.Column("target", sa.String(32), primary_key=True),
    sa.Column("champion_move_id", sa.Integer, sa.ForeignKey(ALIAS_MOVES.c.id), nullable=True),
    sa.Column("candidate_id", sa.Integer, sa.ForeignKey(MODEL_VERSIONS.c.id), nullable=True),
)
"""One row, so one champion, for each GPU, board (empty: any) and target. Without a promotion the
packaged default serves."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Champion and candidate of a place; ``None``: the packaged default, no candidate."""

    champion: Move | None
    candidate: Version | None


@dataclass(frozen=True)
class Snapshot:
    """The registry at one ``generation``."""

    generation: int
    versions: tuple[Version, ...] = ()
    standings: Mapping[Place, Standing] = field(default_factory=dict)
    coverage: Mapping[Watched, Observed] = field(default_factory=dict)

    def champion(self, place: Place) -> Version | None:
        """The promoted version of a place itself; ``None``: the packaged default."""
        move = self._move(place)
        return None if move is None else move.version

    def answering(self, place: Place) -> Version | None:
        """The promoted version of a board, else of the GPU; ``None``: the packaged default."""
        return self.champion(place) or self.champion(place._replace(board=""))

    def move_id(self, place: Place) -> int | None:
        """The promotion that stands at a place."""
        move = self._move(place)
        return None if move is None else move.id

    def champions(self, target: str) -> dict[tuple[str, str], Version]:
        """The promoted versions of a target by GPU and board."""
        return {
            (place.gpu, place.board): standing.champion.version
            for place, standing in self.standings.items()
            if place.target == target and standing.champion is not None
        }

    def _move(self, place: Place) -> Move | None:
        return self.standings[place].champion if place in self.standings else None


@dataclass(frozen=True, slots=True)
class Observation:
    """What a row says of an interval answered before (``OBSERVATIONS``)."""

    row: Annotated[int, "primary_key"]
    target: Annotated[str, 32, "primary_key"]
    gpu: Annotated[str, 64]
    board: Annotated[str, 64]
    model: str
    kernel_group: str
    level: float
    score: float


OBSERVATIONS = tables.table(
    "observations",
    Observation,
    sa.Column("batch_id", sa.Uuid, primary_key=True),
    sa.Column("at", tables.Time, nullable=False),
    sa.ForeignKeyConstraint(
        ["batch_id", "row"],
        ["measurements.batch_id", "measurements.row"],
        name="fk_observations_measurement",
        ondelete="CASCADE",
    ),
)
"""What accepted rows say of intervals answered before: ``model`` is the place of a card, or the
family of a time model without one, ``score`` how many half widths the row lay from its prediction
(``models.intervals.miss_score``), ``level`` what was promised."""


class ChampionMovedError(ServiceError):
    """Another promotion came between judging a candidate and promoting it."""

    def __init__(self, place: Place) -> None:
        super().__init__("conflict", f"the champion of {place.gpu} has changed meanwhile")


class RegistryStore:
    """Repository of model versions and aliases over ``engine``. Safe to call from any thread.
    Every method raises sqlalchemy.exc.SQLAlchemyError where the database is gone."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def generation(self) -> int:
        """A number that grows with every change."""
        return int(tables.found(self._engine, sa.select(tables.REGISTRY.c.generation))[0][0])

    def reserve_version(self) -> int:
        """A version number that nobody else gets. One that is not used leaves a gap."""
        taken = (
            sa.update(tables.REGISTRY)
            .values(next_version=tables.REGISTRY.c.next_version + 1)
            .returning(tables.REGISTRY.c.next_version)
        )
        with self._engine.begin() as connection:
            return int(connection.execute(taken).scalar_one()) - 1

    def snapshot(self) -> Snapshot:
        """Everything, as of one moment."""
        with self._engine.connect() as connection:
            if connection.dialect.name == "postgresql":
                connection.execution_options(isolation_level="REPEATABLE READ")
            else:
                connection.exec_driver_sql("BEGIN")  # or each query would see a moment of its own
            generation = connection.execute(sa.select(tables.REGISTRY.c.generation)).scalar_one()
            versions = {
                row.id: _version(row)
                for row in connection.execute(
                    sa.select(MODEL_VERSIONS).order_by(MODEL_VERSIONS.c.id)
                )
            }
            current = sa.select(MODEL_ALIASES.c.champion_move_id)
            moves = {
                row.id: _move(row, versions)
                for row in connection.execute(
                    sa.select(ALIAS_MOVES).where(ALIAS_MOVES.c.id.in_(current))
                )
            }
            standings = {
                Place(row.gpu, row.board, row.target): Standing(
                    moves.get(row.champion_move_id), versions.get(row.candidate_id)
                )
                for row in connection.execute(sa.select(MODEL_ALIASES))
            }
            coverage = _coverage(connection)
        return Snapshot(int(generation), tuple(versions.values()), standings, coverage)

    def history(self, gpu: str, target: str, limit: int = 100) -> list[Move]:
        """Promotions of a GPU's target, the newest first."""
        columns = ALIAS_MOVES.c
        query = (
            sa.select(ALIAS_MOVES)
            .where(columns.gpu == gpu, columns.target == target)
            .order_by(columns.id.desc())
            .limit(limit)
        )
        rows = tables.found(self._engine, query)
        wanted = MODEL_VERSIONS.c.id.in_({row.version_id for row in rows})
        made = tables.found(self._engine, sa.select(MODEL_VERSIONS).where(wanted))
        versions = {row.id: _version(row) for row in made}
        return [_move(row, versions) for row in rows]

    def register(
        self, connection: Connection, new: Sequence[NewVersion], candidate: NewVersion | None
    ) -> dict[ModelName, int]:
        """Add versions in the caller's transaction, one of them as its place's candidate."""
        next_generation(connection)
        ids = {one.name: _insert(connection, one) for one in new}
        if candidate is not None:
            place = Place(candidate.name.gpu, candidate.board, candidate.name.target)
            _point(connection, place, candidate_id=ids[candidate.name])
        return ids

    def promote(
        self,
        connection: Connection,
        place: Place,
        version_id: int,
        actor: str,
        why: str,
        *,
        expected: int | Literal["any"] | None = "any",
    ) -> None:
        """Make a version champion in the caller's transaction.

        ``expected`` is the promotion that must still stand there. Raises ChampionMovedError where
        another one does: then nothing of the transaction may be committed.
        """
        next_generation(connection)
        current = _current(connection, place)
        if expected not in ("any", current):
            raise ChampionMovedError(place)
        facts = {**place._asdict(), "version_id": version_id, "why": why}
        move = (
            sa.insert(ALIAS_MOVES)
            .values(**facts, before_id=current, at=datetime.now(UTC), actor=actor)
            .returning(ALIAS_MOVES.c.id)
        )
        _point(connection, place, champion_move_id=connection.execute(move).scalar_one())
        tables.record(connection, actor, "models.promote", _subject(place), facts)

    def promote_by_hand(self, place: Place, new: NewVersion, actor: str, why: str) -> None:
        """Make any version champion, registering it first where it never was."""
        with self._engine.begin() as connection:
            next_generation(connection)
            found = connection.execute(
                sa.select(MODEL_VERSIONS.c.id).filter_by(**new.name._asdict())
            ).scalar_one_or_none()
            version_id = _insert(connection, new) if found is None else found
            self.promote(connection, place, version_id, actor, why)

    def rollback(self, place: Place, actor: str, why: str) -> Move:
        """Return to what stood before the champion's promotion; the promotion undone.
        Raises ServiceError ``no-rollback`` where nothing was promoted."""
        with self._engine.begin() as connection:
            next_generation(connection)
            current = _current(connection, place)
            if current is None:
                raise ServiceError(
                    "no-rollback",
                    f"the packaged {place.target} model of {place.gpu} serves already",
                )
            row = connection.execute(
                sa.select(ALIAS_MOVES).where(ALIAS_MOVES.c.id == current)
            ).one()
            version = connection.execute(
                sa.select(MODEL_VERSIONS).where(MODEL_VERSIONS.c.id == row.version_id)
            ).one()
            _point(connection, place, champion_move_id=row.before_id)
            facts = {**place._asdict(), "undone": row.version_id, "why": why}
            tables.record(connection, actor, "models.rollback", _subject(place), facts)
        undone = _version(version)
        return _move(row, {undone.id: undone})


def _coverage(connection: Connection) -> dict[Watched, Observed]:
    """What every model's intervals held of later measurements, the latest ``MOST_OBSERVED``."""
    if not sa.inspect(connection).has_table(OBSERVATIONS.name):
        return {}  # a database that no service of this version has opened yet
    columns = OBSERVATIONS.c
    newest = sa.select(OBSERVATIONS).order_by(columns.at.desc(), columns.row.desc())
    found: dict[Watched, list[Row[Any]]] = {}
    for row in reversed(connection.execute(newest.limit(MOST_OBSERVED)).all()):
        found.setdefault(Watched(row.target, row.gpu, row.board, row.model), []).append(row)
    return {
        one: observed_coverage(
            [row.score for row in rows],
            [row.kernel_group for row in rows],
            min(row.level for row in rows),
        )
        for one, rows in found.items()
    }


def next_generation(connection: Connection) -> None:
    """Locks the registry until the transaction ends, so that changes come one after the other."""
    connection.execute(
        sa.update(tables.REGISTRY).values(generation=tables.REGISTRY.c.generation + 1)
    )


def _current(connection: Connection, place: Place) -> int | None:
    found: int | None = connection.execute(
        sa.select(MODEL_ALIASES.c.champion_move_id).filter_by(**place._asdict())
    ).scalar_one_or_none()
    return found


def _point(connection: Connection, place: Place, **values: int | None) -> None:
    """Set a place's champion or candidate; the registry is locked, so nobody else does."""
    done = connection.execute(sa.update(MODEL_ALIASES).filter_by(**place._asdict()).values(values))
    if not done.rowcount:
        connection.execute(sa.insert(MODEL_ALIASES).values(**place._asdict(), **values))


def _insert(connection: Connection, new: NewVersion) -> int:
    values = {**new.name._asdict(), **tables.plain(new, "name"), "created": datetime.now(UTC)}
    added = sa.insert(MODEL_VERSIONS).values(values).returning(MODEL_VERSIONS.c.id)
    return int(connection.execute(added).scalar_one())


def _subject(place: Place) -> str:
    return "/".join(part for part in (place.gpu, place.target, place.board) if part)


def _version(row: Row[Any]) -> Version:
    name = ModelName(row.gpu, row.target, row.family, row.schema_id, row.source, row.version)
    return tables.read(Version, row, name=name)


def _move(row: Row[Any], versions: Mapping[int, Version]) -> Move:
    place = Place(row.gpu, row.board, row.target)
    return tables.read(Move, row, place=place, version=versions[row.version_id])
