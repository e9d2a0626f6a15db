"""Which tests ``make quick``, ``make test`` and ``make test-slow`` run.

``quick``: what the folders and files of ``QUICK`` hold, unless it is slow. ``slow``: four seconds
and more of one core, marked where the test stands. ``alone``: of the slow ones those that watch
times or memory, so that no other test may run beside them; marked there, too.
"""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import tempfile

import pytest

os.environ["WATTCAST_HOME"] = tempfile.mkdtemp(prefix="wattcast-tests-")
"""No test reads or writes what a service of the user keeps (``make run`` before ``make test``)."""
atexit.register(shutil.rmtree, os.environ["WATTCAST_HOME"], ignore_errors=True)

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the command line sets it

gc.set_threshold(50_000, 20, 20)  # a tenth of the time is the collector's otherwise

QUICK = ("tests/docs/test_map.py", "tests/features/", "tests/models/")
"""Beginnings of the ids of quick tests."""

NOT_QUICK = (
    "tests/features/test_cuda.py",
    "tests/features/test_hostile_ptx.py",
    "tests/features/test_symbolic_fixtures.py::test_traffic_worked_out_is_that_executed",
    "tests/features/test_symbolic_fixtures.py::test_fixtures",
    "tests/models/test_boosted.py",
    "tests/models/test_hardware_bounds.py::test_no_answer_exceeds_a_peak_of_any_gpu",
    "tests/models/test_hardware_bounds.py::test_twice_the_work_takes_twice_the_time",
)
"""Those among them that would take half of the time."""


@pytest.hookimpl(tryfirst=True)  # before -m leaves tests out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        quick = item.nodeid.startswith(QUICK) and not item.nodeid.startswith(NOT_QUICK)
        if quick and item.get_closest_marker("slow") is None:
            item.add_marker(pytest.mark.quick)


def pytest_collection_finish() -> None:
    """What collecting made stays: whole collections need not go through millions of objects."""
    gc.collect()
    gc.freeze()
