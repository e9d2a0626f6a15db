"""One budget of bytes for all that is remembered."""

from __future__ import annotations

import gc
import threading
import tracemalloc
import weakref
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.ptx_text import kernel
from wattcast.app.settings import Settings
from wattcast.features.ptx.ir import Module
from wattcast.predictor import Predictor
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.parts.memory import ENTRY_BYTES, Memory
from wattcast.predictor.predict import predict


@dataclass
class Thing:
    weight: int


def weigh(thing: Thing) -> int:
    return thing.weight


def test_rooms_share_one_budget_and_the_oldest_goes_first() -> None:
    memory = Memory(3 * (ENTRY_BYTES + 500))
    one, other = memory.room(weigh), memory.room(weigh)
    for room, key in ((one, "a"), (other, "a"), (one, "b")):
        room.put(key, Thing(500))
    assert memory.held_bytes == 3 * (ENTRY_BYTES + 500)
    assert one.get("a") is not None  # and was used just now
    other.put("c", Thing(500))
    assert [one.get("a") is None, other.get("a") is None, one.get("b") is None] == [0, 1, 0]


def test_what_is_larger_than_all_is_not_kept_and_drives_nothing_out() -> None:
    memory = Memory(5000)
    room = memory.room(weigh)
    room.put("a", Thing(1000))
    made = room.get_or_make("large", lambda: Thing(5000))
    assert made.weight == 5000
    assert room.get("large") is None
    assert room.get("a") is not None
    nothing = Memory(0).room(weigh)
    nothing.put("a", Thing(0))
    assert nothing.get("a") is None


def test_what_grew_is_weighed_again() -> None:
    memory = Memory(10_000)
    growing, plain = memory.room(weigh, grows=True), memory.room(weigh)
    thing = growing.get_or_make("a", lambda: Thing(0))
    thing.weight = 4000
    plain.put("b", Thing(0))
    assert memory.held_bytes == 2 * ENTRY_BYTES + 4000
    thing.weight = 20_000
    plain.put("c", Thing(0))
    assert growing.get("a") is None
    assert memory.held_bytes == 2 * ENTRY_BYTES


def test_what_refers_to_something_goes_with_it() -> None:
    """Else an analysis would keep its module, which is weighed alone, for ever."""
    memory = Memory(10_000)
    modules, analyses = memory.room(weigh, grows=True), memory.room(weigh, grows=True)
    module = modules.get_or_make("module", lambda: Thing(1000))
    for number in range(3):
        analyses.put(number, Thing(100), beside=modules.place("module"))
    module.weight = 2000
    analyses.put(3, Thing(0), beside=modules.place("module"))  # weighs the module again
    assert [analyses.get(number) is None for number in range(4)] == [False] * 4
    assert memory.held_bytes == 5 * ENTRY_BYTES + 2300
    module.weight = 20_000
    modules.put("another", Thing(0))
    assert [analyses.get(number) for number in range(4)] == [None] * 4
    assert memory.held_bytes == ENTRY_BYTES
    analyses.put(0, Thing(0), beside=modules.place("module"))
    assert analyses.get(0) is None
    analyses.put(0, Thing(7000), beside=modules.place("another"))  # it would drive that out
    modules.put("third", Thing(3000))
    assert modules.get("another") is None
    assert analyses.get(0) is None


def test_a_module_is_freed_though_its_analyses_were_asked_for(tmp_path: Path) -> None:
    """Also where it grew beyond all there is after it was kept."""
    predictor = Predictor(Settings(home=tmp_path, cache_bytes=700_000))
    modules: list[weakref.ref[Module]] = []
    for number in range(4):
        ptx = f"// {number}\n{kernel(200)}"
        asked = {"ptx": ptx, "gpu": "tesla-v100", "launch": {"grid": [64], "block": [128]}}
        modules.append(weakref.ref(predictor.modules.read(ptx).module))
        predict(predictor, PredictRequest.model_validate({**asked, "loops": {"default": 4}}))
    gc.collect()
    assert predictor.memory.held_bytes < 700_000
    assert sum(module() is not None for module in modules) <= 1


def test_what_is_known_of_a_dropped_module_is_freed_without_the_collector(tmp_path: Path) -> None:
    """A collection with 256 MB held stops every thread for half a second."""
    predictor = Predictor(Settings(home=tmp_path))
    ptx = kernel(1000)
    asked = {"ptx": ptx, "gpu": "tesla-v100", "launch": {"grid": [64], "block": [128]}}
    request = PredictRequest.model_validate({**asked, "loops": {"default": 4}})
    gc.collect()
    gc.disable()
    try:
        before = len(gc.get_objects())
        predict(predictor, request)
        held = len(gc.get_objects()) - before
        known = predictor.modules.known(ptx)
        assert known is not None
        module = weakref.ref(known.module)
        del known
        predictor.modules._modules.drop(ptx)
        left = len(gc.get_objects()) - before
        assert module() is None
        assert left < 0.5 * held
    finally:
        gc.enable()


def test_other_kernels_of_a_module_stay_unread(tmp_path: Path) -> None:
    """Parsed they take ten times the memory of their text."""
    predictor = Predictor(Settings(home=tmp_path))
    one = kernel(50)
    ptx = one + one[one.index(".visible") :].replace("synthetic", "other")
    asked = {"ptx": ptx, "kernel": "synthetic", "gpu": "tesla-v100"}
    launch = {"grid": [64], "block": [128]}
    predict(predictor, PredictRequest.model_validate({**asked, "launch": launch}))
    known = predictor.modules.known(ptx)
    assert known is not None
    assert ["body" in vars(function) for function in known.module.functions] == [True, False]


def test_nothing_is_made_twice_at_once_and_errors_reach_everyone() -> None:
    room = Memory(10_000).room(weigh)
    made: list[Thing] = []
    started, go_on = threading.Event(), threading.Event()

    def make() -> Thing:
        started.set()
        go_on.wait(10)
        made.append(Thing(1))
        return made[-1]

    found: list[Thing] = []
    threads = [
        threading.Thread(target=lambda: found.append(room.get_or_make("a", make))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    assert started.wait(10)
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert len(made) == 1
    assert found == [made[0]] * 4

    def fail() -> Thing:
        raise ValueError("no")

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            room.get_or_make("b", fail)


def test_many_threads_never_exceed_the_budget() -> None:
    memory = Memory(50_000)
    rooms = [memory.room(weigh, grows=bool(number % 2)) for number in range(4)]

    def fill(number: int) -> None:
        for key in range(500):
            rooms[number % 4].get_or_make(key % 97, lambda: Thing(3000))
            assert memory.held_bytes <= 50_000

    threads = [threading.Thread(target=fill, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert 0 < memory.held_bytes <= 50_000


@pytest.mark.slow
def test_rings_of_what_was_dropped_are_freed() -> None:
    """Without the collector's own thresholds, which the service sets very high. Ten are kept and
    five not collected yet; where another thread collects already, a collection does nothing."""

    class Ring:
        def __init__(self) -> None:
            self.me = self

    room = Memory(40 * 2**20).room(lambda _: 4 * 2**20, grows=True)
    gc.disable()
    try:
        refs = []
        for number in range(100):
            ring = Ring()
            refs.append(weakref.ref(ring))
            room.put(number, ring)
    finally:
        gc.enable()
    assert sum(ref() is not None for ref in refs) < 30


def test_what_an_entry_costs() -> None:
    """With a key such as that of an analysis; at most a factor 1.7 more than is reckoned, and 2.5
    less: memory that the interpreter kept from freed keys is not traced."""
    room = Memory(2**30).room(lambda _: 0)
    room.put("first", object())
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(2000):
            key = (f"{number:064d}", "kernel", (number, 1, 1), (256, 1, 1), 0, (), (), None, 1.0)
            room.put(key, number)
        each = (tracemalloc.get_traced_memory()[0] - before) / 2000
    finally:
        tracemalloc.stop()
    assert ENTRY_BYTES / 2.5 < each < 1.7 * ENTRY_BYTES
