"""Which tests ``make quick``, ``make test`` and ``make test-slow`` run: the one place that says so.

``quick``: what the folders and files of ``QUICK`` hold, unless it is slow. ``slow``: what takes
more than some seconds, by ``SLOW`` or by a mark in its file. ``alone``: of the slow ones those that
watch times or memory, so that no other test may run beside them.
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

gc.set_threshold(50_000, 20, 20)  # a tenth of the time is the collector's otherwise

QUICK = ("tests/docs/test_map.py", "tests/docs/test_size.py", "tests/features/", "tests/models/")
"""Beginnings of the ids of quick tests."""

NOT_QUICK = (
    "tests/features/test_cuda.py",
    "tests/features/test_execution_counts_only.py",
    "tests/features/test_hostile_ptx.py",
    "tests/features/test_runs.py::test_mutated_ptx_is_analysed_or_refused",
    "tests/features/test_symbolic_footprints.py::test_traffic_worked_out_is_that_executed",
    "tests/features/test_symbolic_together.py::test_fixtures",
    "tests/models/test_boosted.py",
    "tests/models/test_hardware_bounds.py",
)
"""Those among them that would take half of the time."""

SLOW = (
    "tests/app/test_advice_tensor.py::test_fp32_sums",
    "tests/app/test_advice_tensor.py::test_passes_after",
    "tests/app/test_advice_tensor.py::test_what_is_no_pass",
    "tests/app/test_database_restart.py",
    "tests/app/test_determinism.py",
    "tests/app/test_disk_full.py::test_a_disk_that_really_is_full",
    "tests/app/test_disk_full.py::test_no_room_for_a_model",
    "tests/app/test_fuzz.py::test_mutated_ptx_is_answered_or_refused",
    "tests/app/test_jobs_kills.py",
    "tests/app/test_kept.py::test_rings_of_what_was_dropped_are_freed",
    "tests/app/test_power_peaks.py::test_the_same_of_every_board",
    "tests/app/test_retrain.py::test_a_shift_is_learned_promoted_served_and_rolled_back",
    "tests/app/test_retrain.py::test_garbage_is_not_promoted_and_the_reason_is_told",
    "tests/app/test_retrain.py::test_kernels_measured_again_are_not_taken_for_unseen_ones",
    "tests/app/test_retrain.py::test_measurements_may_come_with_the_request_and_boards_have",
    "tests/app/test_retrain.py::test_what_the_rows_do_not_give_fails_the_job_with_the_reason",
    "tests/app/test_retrain_auto.py",
    "tests/app/test_retrain_new_gpu.py::test_garbage_leaves_a_gpu_as_it_was",
    "tests/app/test_retrain_new_gpu.py::test_power_and_time_are_calibrated_promoted_served",
    "tests/app/test_retrain_new_gpu.py::test_rows_may_hold_the_features_themselves",
    "tests/app/test_schemathesis.py",
    "tests/docker/test_docker.py::test_the_entrypoint_serves_in_the_environment_of_the_image",
    "tests/docker/test_wheel.py",
    "tests/e2e/test_page_models.py::test_a_board_of_ones_own",
    "tests/e2e/test_page_models.py::test_from_measurements_to_the_model_that_serves",
    "tests/e2e/test_page_models.py::test_what_corrects_times_is_shown_and_taken_back",
    "tests/e2e/test_page_visits.py::test_the_documentation_needs_no_other_machine",
    "tests/e2e/test_uploads_survive.py::test_acknowledged_uploads_survive_kills",
    "tests/features/test_execution_asynchronous.py::test_counts_and_memory",
    "tests/features/test_held.py::test_nothing_outlives_its_module",
    "tests/features/test_held.py::test_the_estimates_hold",
    "tests/features/test_hostile_ptx.py::test_the_whole_analysis_ends[all_back]",
    "tests/features/test_symbolic_fixtures.py::test_most_launches_are_known",
    "tests/features/test_symbolic_fixtures.py::test_where_nothing_is_run",
    "tests/studies/test_budget.py::test_a_small_budget_counts_what_completion_counts",
    "tests/studies/test_frequency.py::test_every_file_at_hand_reads",
    "tests/studies/test_onboarding.py::test_the_whole_catalogue_finds_every_number_again",
    "tests/studies/test_physical_routes.py::test_a_residual_is_learnt",
    "tests/studies/test_queueing_errors.py::test_tables_name_every_data_set_form_kernel_and_gpu",
    "tests/studies/test_reports.py::test_programs_nobody_classified_are_told_apart",
    "tests/studies/test_reports.py::test_targets_of_measured_work",
    "tests/studies/test_reports.py::test_the_report_holds_the_scores_of_the_time_models",
    "tests/studies/test_reports.py::test_the_report_of_time_has_all_chapters",
    "tests/studies/test_reports_dvfs.py::test_the_report_of_clocks_has_all_chapters",
    "tests/studies/test_scaling.py::test_a_campaign_without_counters_gets_the_mean_curve_alone",
    "tests/studies/test_scaling.py::test_applications_are_told_from_counters",
    "tests/studies/test_scaling.py::test_artifacts_are_the_same_every_time_and_load",
    "tests/studies/test_scaling.py::test_energy_saved_at_the_chosen_pair",
    "tests/studies/test_scaling.py::test_errors_on_kernels_left_out",
    "tests/studies/test_scaling.py::test_shuffled_measurements_of_the_gtx_1080_ti",
    "tests/studies/test_work.py::test_unseen_programs_reach_what_they_must",
    "tests/training/test_engine.py::test_a_worker_that_dies_in_the_middle_costs_nothing_but_time",
    "tests/training/test_fit.py::test_scores_of_xgboost_at_table_5_7[tesla-k20",
    "tests/training/test_fit.py::test_scores_of_xgboost_at_table_5_7[tesla-m60",
    "tests/training/test_measure_killed.py",
    "tests/training/test_onboard.py::test_several_clocks_tell_the_voltage",
    "tests/training/test_onboard.py::test_the_sensor_is_found_out",
    "tests/training/test_retrain_unseen.py::test_known_kernels_measured_again_promise_nothing",
    "tests/studies/test_triton_lists.py::test_attention",
    "tests/studies/test_triton_lists.py::test_the_best",
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
            if item.nodeid.startswith(QUICK) and not item.nodeid.startswith(NOT_QUICK):
                item.add_marker(pytest.mark.quick)
        elif item.nodeid.startswith(ALONE):
            item.add_marker(pytest.mark.alone)
