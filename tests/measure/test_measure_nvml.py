"""NVML as boards and drivers really offer it: what is missing is told, the rest is recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.measure import measuring
from tests.measure.measuring import board, energy, parts
from tests.measure.simulated import Faults, SimulatedGpu
from tests.measure.simulated_nvml import SimulatedNvml
from wattcast.measure.device import GpuLostError, MeasureError
from wattcast.measure.nvml import Nvml
from wattcast.measure.protocol import Settings
from wattcast.measure.recording import Recording, read_recording
from wattcast.measure.run import Outcome
from wattcast.measure.workload import Workload

SETTINGS = Settings()
COUNTER = "DeviceGetTotalEnergyConsumption"
POWER = "DeviceGetPowerUsage"


def kernels() -> list[Workload]:
    return [energy("alu", ["alu"] * 8, trips=4), energy("fma", ["fma"] * 8, trips=4)]


def campaign(gpu: SimulatedGpu, path: Path, settings: Settings = SETTINGS) -> Outcome:
    """Measure two kernels."""
    return measuring.campaign(gpu, kernels(), settings).run(path)


def measured(tmp_path: Path, faults: Faults, **truth: object) -> Recording:
    path = tmp_path / "recording.jsonl"
    campaign(board(faults, **truth), path)
    return read_recording(path)


def test_a_power_is_that_of_the_board(tmp_path: Path) -> None:
    gpu = board()
    path = tmp_path / "recording.jsonl"
    assert campaign(gpu, path).measured == 2
    found = read_recording(path)
    runner, _ = parts(gpu)
    for one in found.configurations:
        workload = found.workload(one)
        assert workload is not None
        seconds, watts = runner.truth_of(workload)
        assert one.result.time_seconds == pytest.approx(seconds, rel=0.01)
        assert one.result.power_watts == pytest.approx(watts + gpu.truth.idle_watts, rel=0.015)
        assert one.windows[0].method == "counter"
        assert one.result.core_mhz == 1380
        assert one.result.energy_joules == pytest.approx(
            one.result.power_watts * one.result.time_seconds  # type: ignore[operator]
        )


def test_a_kernel_of_microseconds_keeps_the_board_busy_between_two_looks(tmp_path: Path) -> None:
    gpu = board()
    runner, _ = parts(gpu)
    settings = Settings(poll_seconds=0.02)  # as slow as the sensors of some drivers answer
    short = energy("alu", ["alu"] * 4, trips=1, blocks=80)
    path = tmp_path / "recording.jsonl"
    measuring.campaign(gpu, [short], settings).run(path)
    (one,) = read_recording(path).configurations
    seconds, watts = runner.truth_of(short)
    assert seconds < 4e-6
    assert one.result.unresolved == ()
    assert one.result.power_watts == pytest.approx(watts + gpu.truth.idle_watts, rel=0.015)


def test_no_permission_leaves_times_and_says_so(tmp_path: Path) -> None:
    found = measured(
        tmp_path, Faults(no_permission=frozenset({POWER, COUNTER}), instant_power=False)
    )
    assert any("no permission" in note for note in found.sensor.notes)
    assert [one.result.unresolved for one in found.configurations] == [("no_power_sensor",)] * 2
    assert all(one.result.time_seconds for one in found.configurations)
    assert all(one.result.power_watts is None for one in found.configurations)


def test_mig_reads_the_whole_board_and_is_no_power_of_a_part(tmp_path: Path) -> None:
    found = measured(tmp_path, Faults(mig=True))
    assert found.sensor.power is None
    assert any(
        "MIG is enabled: the power sensor reads the whole board" in note
        for note in found.sensor.notes
    )
    assert all(one.result.power_watts is None for one in found.configurations)
    assert all(one.result.time_seconds for one in found.configurations)


def test_several_gpus_need_a_choice_and_are_matched_by_bus() -> None:
    gpu = board(Faults(boards=3))
    nvml = Nvml(SimulatedNvml(gpu))
    with pytest.raises(MeasureError, match=r"several GPUs.*--device.*2: Simulated GPU 2"):
        nvml.sensor(gpu)
    assert nvml.sensor(gpu, "0000:02:00.0").read().power_watts is not None
    with pytest.raises(MeasureError, match="no GPU at 0000:09"):
        nvml.sensor(gpu, "0000:09:00.0")


def test_a_gpu_lost_in_mid_run_keeps_what_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"
    with pytest.raises(GpuLostError, match="lost"):
        campaign(board(Faults(lost_at_seconds=31.0)), path)
    before = read_recording(path)
    assert [one.key for one in before.configurations] == ["energy-alu/uniform"]
    assert before.failures[0].key == "energy-fma/uniform"
    assert not before.failures[0].permanent
    # After a reset the same command measures what is left.
    assert campaign(board(), path) == Outcome(measured=1, known=1, failed=0, unresolved=0)
    after = read_recording(path)
    assert len(after.configurations) == 2
    assert after.failures == ()


@pytest.mark.parametrize("bits", [32, 64])
def test_a_counter_that_wraps_loses_no_energy(tmp_path: Path, bits: int) -> None:
    start = (1 << bits) - 2_500_000
    found = measured(tmp_path, Faults(counter_bits=bits, counter_start_millijoules=start))
    plain = measured(tmp_path / "plain", Faults())
    for one, other in zip(found.configurations, plain.configurations, strict=True):
        assert one.result.power_watts == pytest.approx(other.result.power_watts, rel=0.01)
        joules = [value for value in one.samples.energy_joules or () if value is not None]
        assert joules == sorted(joules)
        assert {window.method for window in one.windows} == {"counter"}
    (note,) = [note for one in found.configurations for note in one.result.notes]
    assert note.startswith("the energy counter wrapped after ")


def test_a_counter_that_starts_anew_is_not_believed_any_more() -> None:
    gpu = board(Faults(counter_start_millijoules=100_000_000))
    sensor = Nvml(SimulatedNvml(gpu)).sensor(gpu)
    assert sensor.read().energy_joules == 0
    gpu.faults.counter_start_millijoules = 1000
    assert sensor.read().energy_joules is None
    (told,) = sensor.events()
    assert told.startswith("the energy counter fell from 100000 to 1 J")
    assert sensor.events() == ()
    assert sensor.read().power_watts is not None


def test_a_counter_that_starts_anew_in_mid_run_leaves_the_samples(tmp_path: Path) -> None:
    gpu = board(Faults(counter_start_millijoules=100_000_000))
    sleep = gpu.sleep

    def loaded_anew(seconds: float) -> None:
        before = gpu.now()
        sleep(seconds)
        if before < 31.0 <= gpu.now():
            gpu.faults.counter_start_millijoules, gpu._joules = 0, 0.0

    gpu.sleep = loaded_anew  # type: ignore[method-assign]
    path = tmp_path / "recording.jsonl"
    campaign(gpu, path)
    found = read_recording(path)
    (note,) = [note for one in found.configurations for note in one.result.notes]
    assert "which no wrap explains: power is that of samples from here on" in note
    methods = [{window.method for window in one.windows} for one in found.configurations]
    assert methods[-1] == {"samples"}
    for one in found.configurations:
        assert one.result.power_watts is not None


def test_a_driver_without_the_counter_is_measured_by_samples(tmp_path: Path) -> None:
    found = measured(tmp_path, Faults(not_supported=frozenset({COUNTER}), instant_power=False))
    assert found.sensor.power == "usage"
    assert "energy counter: not offered by this board or driver" in found.sensor.notes
    for one in found.configurations:
        assert {window.method for window in one.windows} == {"samples"}
        assert one.result.power_watts is not None


def test_a_sensor_too_slow_for_the_window_is_told_not_averaged(tmp_path: Path) -> None:
    found = measured(tmp_path, Faults(), update_period_seconds=0.35)
    assert all(one.result.power_watts is not None for one in found.configurations)  # longer windows
    gpu = board(Faults(), update_period_seconds=0.35)
    path = tmp_path / "short.jsonl"
    assert campaign(gpu, path, Settings(most_window_seconds=1.5)).unresolved == 2
    for one in read_recording(path).configurations:
        assert one.result.unresolved == ("sensor_period",)
        assert one.result.power_watts is None
        assert one.result.time_seconds is not None


def test_a_sensor_too_noisy_for_the_bound_is_told(tmp_path: Path) -> None:
    faults = Faults(not_supported=frozenset({COUNTER}))
    found = measured(tmp_path, faults, noise_share=0.3)
    reasons = {reason for one in found.configurations for reason in one.result.unresolved}
    assert reasons <= {"sensor_noise", "not_stable"}
    assert reasons
    assert all(one.result.power_watts is None for one in found.configurations)


def test_a_wandering_clock_is_told(tmp_path: Path) -> None:
    found = measured(tmp_path, Faults(), wander_share=0.1)
    assert all("clocks_moved" in one.result.unresolved for one in found.configurations)


def test_clocks_and_limit_are_held_and_set_back_even_after_an_error() -> None:
    gpu = board()
    sensor = Nvml(SimulatedNvml(gpu)).sensor(gpu)
    seen = []

    def interrupted() -> None:
        with sensor.locked(1000.0, 800.0, 200.0):
            seen.append((gpu.core_mhz, gpu.memory_mhz, gpu.limit_watts))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert seen == [(1000.0, 800.0, 200.0)]
    assert (gpu.core_mhz, gpu.memory_mhz, gpu.limit_watts) == (1380.0, 877.0, 250.0)


def test_clocks_that_may_not_be_held_are_set_back_and_told() -> None:
    gpu = board(Faults(no_permission=frozenset({"DeviceSetPowerManagementLimit"})))
    sensor = Nvml(SimulatedNvml(gpu)).sensor(gpu)
    with (
        pytest.raises(MeasureError, match="power limit cannot be held: no permission"),
        sensor.locked(core_mhz=1000.0, power_limit_watts=200.0),
    ):
        pytest.fail("not reached")
    assert gpu.core_mhz == 1380.0


@pytest.mark.parametrize(
    ("error", "told"),
    [(12, "no NVIDIA driver"), (9, "not loaded"), (18, "different versions"), (4, "no permission")],
)
def test_a_library_that_does_not_start_says_why(error: int, told: str) -> None:
    with pytest.raises(MeasureError, match=told):
        Nvml(SimulatedNvml(board(Faults(start_error=error))))
