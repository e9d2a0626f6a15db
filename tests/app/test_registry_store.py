"""One champion for each GPU, board and target; promotions one after the other, and the way back."""

from __future__ import annotations

from functools import partial

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from tests.app.live import at_once
from wattcast.app.store.registry import (
    MODEL_ALIASES,
    ChampionMovedError,
    ModelName,
    NewVersion,
    Place,
    RegistryStore,
)
from wattcast.features.errors import ServiceError

PLACE = Place("tesla-k20", "", "power")


@pytest.fixture
def registry(engine: Engine) -> RegistryStore:
    return RegistryStore(engine)


def version(number: int, board: str = "") -> NewVersion:
    name = ModelName("tesla-k20", "power", "catboost", "alavani2023", "uploads", number)
    return NewVersion(name, board, "retrained", f"{number:064x}", {"promoted": True})


def promote(registry: RegistryStore, engine: Engine, number: int, place: Place = PLACE) -> None:
    new = version(number, place.board)
    with engine.begin() as connection:
        ids = registry.register(connection, [new], new)
        registry.promote(connection, place, ids[new.name], "tests", "better")


def champion(registry: RegistryStore, place: Place = PLACE) -> int | None:
    found = registry.snapshot().champion(place)
    return None if found is None else found.name.version


def test_at_first_the_packaged_default_serves(registry: RegistryStore) -> None:
    found = registry.snapshot()
    assert (found.generation, found.versions, found.standings) == (0, (), {})
    with pytest.raises(ServiceError, match="serves already"):
        registry.rollback(PLACE, "tests", "")
    assert registry.generation() == 0


def test_version_numbers_are_given_once(registry: RegistryStore) -> None:
    given: list[int] = []
    at_once([lambda: given.append(registry.reserve_version())] * 8)
    assert sorted(given) == list(range(1001, 1009))


def test_promotions_and_rollbacks_are_a_stack(registry: RegistryStore, engine: Engine) -> None:
    for number in (1, 2, 3):
        promote(registry, engine, number)
    assert champion(registry) == 3
    assert registry.rollback(PLACE, "tests", "worse").version.name.version == 3
    assert champion(registry) == 2
    promote(registry, engine, 4)
    for before in (2, 1, None):
        registry.rollback(PLACE, "tests", "worse")
        assert champion(registry) == before
    # Nothing is forgotten: every version and every promotion is still there.
    assert [one.name.version for one in registry.snapshot().versions] == [1, 2, 3, 4]
    history = registry.history("tesla-k20", "power")
    assert [move.version.name.version for move in history] == [4, 3, 2, 1]


def test_boards_have_champions_of_their_own(registry: RegistryStore, engine: Engine) -> None:
    other = Place("tesla-k20", "board-1", "power")
    promote(registry, engine, 1)
    promote(registry, engine, 2, other)
    assert (champion(registry), champion(registry, other)) == (1, 2)
    registry.rollback(other, "tests", "")
    assert (champion(registry), champion(registry, other)) == (1, None)


def test_a_candidate_is_not_a_champion(registry: RegistryStore, engine: Engine) -> None:
    new = version(1)
    with engine.begin() as connection:
        registry.register(connection, [new], new)
    standing = registry.snapshot().standings[PLACE]
    assert standing.champion is None
    assert standing.candidate is not None
    assert standing.candidate.name == new.name
    assert standing.candidate.verdict == {"promoted": True}


def test_every_change_is_a_new_generation(registry: RegistryStore, engine: Engine) -> None:
    seen = [registry.generation()]
    promote(registry, engine, 1)
    seen.append(registry.generation())
    registry.rollback(PLACE, "tests", "")
    seen.append(registry.generation())
    assert seen == sorted(set(seen))


def test_a_promotion_judged_against_another_champion_is_none(
    registry: RegistryStore, engine: Engine
) -> None:
    promote(registry, engine, 1)
    before = registry.snapshot().move_id(PLACE)
    promote(registry, engine, 2)
    new = version(3)
    with engine.connect() as connection:
        ids = registry.register(connection, [new], new)
        with pytest.raises(ChampionMovedError):
            registry.promote(connection, PLACE, ids[new.name], "tests", "", expected=before)
        connection.rollback()
    assert champion(registry) == 2
    assert len(registry.snapshot().versions) == 2


def test_promotions_at_once_leave_one_champion_and_lose_none(
    registry: RegistryStore, engine: Engine
) -> None:
    numbers = range(1, 9)
    at_once(partial(promote, registry, engine, number) for number in numbers)
    with engine.connect() as connection:
        assert connection.scalar(sa.select(sa.func.count()).select_from(MODEL_ALIASES)) == 1
    back = []
    while (found := champion(registry)) is not None:
        back.append(found)
        registry.rollback(PLACE, "tests", "")
    assert sorted(back) == list(numbers)


def test_by_hand_any_version_may_serve(registry: RegistryStore, engine: Engine) -> None:
    promote(registry, engine, 1)
    packaged = NewVersion(version(0).name._replace(source="thesis"), "", "packaged", "0" * 64)
    for _ in range(2):
        registry.promote_by_hand(PLACE, packaged, "tests", "I know better")
    found = registry.snapshot().champion(PLACE)
    assert found is not None
    assert (found.origin, found.name.source) == ("packaged", "thesis")
    assert len(registry.snapshot().versions) == 2
