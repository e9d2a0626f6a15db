"""Which tests ``make quick``, ``make test`` and ``make test-slow`` run: the one place that says so.

``quick``: what the folders and files of ``QUICK`` hold, unless it is slow. ``slow``: what takes
more than some seconds, by ``SLOW`` or by a mark in its file. ``alone``: of the slow ones those that
watch times or memory, so that no other test may run beside them.
"""

from __future__ import annotations

import pytest

QUICK = ("tests/docs/test_map.py", "tests/docs/test_size.py", "tests/features/", "tests/models/")
"""Beginnings of the ids of quick tests."""

SLOW = (
    "tests/app/test_database_restart.py",
    "tests/app/test_disk_full.py::test_no_room_for_a_model",
    "tests/app/test_fuzz.py::test_mutated_ptx_is_answered_or_refused",
    "tests/app/test_jobs_kills.py",
    "tests/docker/test_wheel.py",
    "tests/features/test_activity_reuse.py::test_reuse_distances_tell_what_passes_the_caches",
    "tests/features/test_held.py::test_nothing_outlives_its_module",
    "tests/features/test_held.py::test_the_estimates_hold",
    "tests/features/test_hostile_ptx.py::test_the_whole_analysis_ends[all_back]",
    "tests/studies/test_onboarding.py::test_the_whole_catalogue_finds_every_number_again",
    "tests/studies/test_queueing_errors.py::test_tables_name_every_data_set_form_kernel_and_gpu",
    "tests/studies/test_reports.py::test_the_report_holds_the_scores_of_the_time_models",
    "tests/studies/test_scaling.py::test_a_campaign_without_counters_gets_the_mean_curve_alone",
    "tests/studies/test_scaling.py::test_artifacts_are_the_same_every_time_and_load",
    "tests/studies/test_scaling.py::test_energy_saved_at_the_chosen_pair",
    "tests/studies/test_scaling.py::test_errors_on_kernels_left_out",
    "tests/studies/test_work.py::test_unseen_programs_reach_what_they_must",
    "tests/training/test_fit.py::test_scores_of_xgboost_at_table_5_7[tesla-k20",
    "tests/training/test_fit.py::test_scores_of_xgboost_at_table_5_7[tesla-m60",
    "tests/training/test_measure_killed.py",
    "tests/training/test_onboard.py::test_several_clocks_tell_the_voltage",
)
"""Beginnings of the ids of slow tests: four seconds and more of one core."""

ALONE = (
    "tests/app/test_determinism.py",
    "tests/app/test_hostile_http.py",
    "tests/app/test_jobs_kills.py::test_no_acknowledged_prediction_is_lost",
    "tests/app/test_memory.py",
)
"""Beginnings of the ids of slow tests that take a machine for themselves."""


@pytest.hookimpl(tryfirst=True)  # before -m leaves tests out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(SLOW):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("slow") is None:
            if item.nodeid.startswith(QUICK):
                item.add_marker(pytest.mark.quick)
        elif item.nodeid.startswith(ALONE):
            item.add_marker(pytest.mark.alone)
