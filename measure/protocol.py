"""How one workload is measured.

    idle    before, for the board's idle power and its drift
    size    how many launches make a batch long enough to time, and to poll beside
    warm    batches until power (or temperature) stands still
    windows of a second and more, back to back, until the confidence interval of the mean power is
            under its bound
    idle    after

Batches overlap: the next is enqueued while one runs, so that the GPU never waits for the host. Time
is that between GPU events. What the sensor does not resolve is named and has no number.
Clocks and limits are never touched here (``nvml.NvmlSensor.locked``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from statistics import fmean, median

from wattcast.measure import recording as records
from wattcast.measure import sensors
from wattcast.measure.device import Batch, Clock, Loaded, Reading, Runner, Sensor
from wattcast.measure.nvml import HARMLESS, reason_names
from wattcast.measure.workload import Pattern, Workload


@dataclass(frozen=True, slots=True)
class Settings:
    """The protocol's bounds. Seconds, but for shares and counts.

    ``power_ci_share``: bound of the confidence interval over the mean power. ``updates``: new
    sensor values that a window needs. ``stable_share``: change of power between two stretches
    that counts as standing still. ``clock_share``: range of the core clock over its mean within
    which it counts as held. ``timing_seconds``: how long workloads run that are there for their
    time alone.
    """

    idle_seconds: float = 0.5
    batch_seconds: float = 0.02
    most_launches: int = 8192
    poll_seconds: float = 0.005
    warm_up_seconds: float = 0.5
    most_warm_up_seconds: float = 10.0
    stable_share: float = 0.01
    window_seconds: float = 1.0
    most_window_seconds: float = 10.0
    updates: int = 5
    least_windows: int = 3
    most_windows: int = 8
    power_ci_share: float = 0.01
    clock_share: float = 0.02
    timing_seconds: float = 0.1


DEPTH = 3
"""Batches kept under way: while the host sleeps for up to two of them, the GPU does not wait."""


class Observer:
    """Polls the sensors while batches run, and keeps what both say."""

    def __init__(self, loaded: Loaded | None, sensor: Sensor, clock: Clock, poll: float) -> None:
        self._loaded, self._sensor, self._clock, self._poll = loaded, sensor, clock, poll
        self.readings: list[Reading] = []
        self.batches: list[Batch] = []

    def look(self) -> None:
        """One reading."""
        self.readings.append(self._sensor.read())

    def idle(self, seconds: float) -> float:
        """Watch without load; the clock's time when it began."""
        began = self._clock.now()
        self.look()
        while self._clock.now() - began < seconds:
            self._clock.sleep(self._poll)
            self.look()
        return began

    def run(self, seconds: float, launches: int) -> tuple[float, float]:
        """Keep the GPU busy for so long and watch; begin and end by the clock."""
        assert self._loaded is not None
        began = self._clock.now()
        while self._clock.now() - began < seconds:
            while self._loaded.pending() < DEPTH:
                self._loaded.enqueue(launches)
            self.look()
            self._clock.sleep(self._poll)
            self.batches += self._loaded.finished()
        return began, self._clock.now()

    def drain(self) -> None:
        """Wait for what is under way."""
        assert self._loaded is not None
        while self._loaded.pending():
            self._clock.sleep(self._poll / 5)
        self.batches += self._loaded.finished()


def batch_size(observer: Observer, loaded: Loaded, settings: Settings) -> int:
    """Launches that take ``batch_seconds`` together, as far as ``most_launches`` goes."""
    launches = 1
    while True:
        loaded.enqueue(launches)
        observer.drain()
        last = observer.batches[-1]
        each = last.seconds / last.launches
        wanted = max(1, min(settings.most_launches, int(settings.batch_seconds / max(each, 1e-9))))
        # The first launch is slower than the rest; a batch half as long as wanted tells enough.
        if wanted <= 2 * launches:
            return wanted
        launches = min(wanted, 8 * launches)


_STEPS = 3
"""Loads after an idle stretch from which a sensor's period and lag are told."""


def behaviour(
    runner: Runner,
    sensor: Sensor,
    offered: records.SensorTraits,
    clock: Clock,
    workload: Workload,
    settings: Settings,
) -> records.SensorTraits:
    """Find out update period and lag of the power sensor with a workload that draws much."""
    if offered.power is None:
        return offered
    periods, lags, idle = [], [], []
    notes = list(offered.notes)
    with closing(runner.load(workload, "uniform")) as loaded:
        observer = Observer(loaded, sensor, clock, min(settings.poll_seconds, 0.002))
        launches = batch_size(observer, loaded, settings)
        for _ in range(_STEPS):
            observer.idle(2.0)
            observer.readings.clear()
            observer.idle(1.0)
            watts = [one.power_watts for one in observer.readings if one.power_watts is not None]
            idle += [fmean(watts)] if watts else []
            began, _ = observer.run(3.0, launches)
            if (period := sensors.update_period(observer.readings)) is not None:
                periods.append(period)
            if (lag := sensors.lag_seconds(observer.readings, began)) is not None:
                lags.append(lag)
            observer.drain()
    if not periods:
        notes.append("the power sensor's update period could not be told: too few new values")
    if not lags:
        notes.append("the power sensor's lag could not be told: its answer to a load is too small")
    return offered.model_copy(
        update={
            "update_period_seconds": round(median(periods), 6) if periods else None,
            "lag_seconds": round(median(lags), 6) if lags else None,
            "idle_watts": round(min(idle), 4) if idle else None,
            "notes": tuple(notes),
        }
    )


def measure(
    runner: Runner,
    sensor: Sensor,
    traits: records.SensorTraits,
    clock: Clock,
    workload: Workload,
    pattern: Pattern,
    key: str,
    settings: Settings,
) -> records.Configuration:
    """One configuration. Raises WorkloadError, GpuLostError."""
    with closing(runner.load(workload, pattern)) as loaded:
        return _Measurement(loaded, sensor, traits, clock, workload, pattern, settings).run(key)


@dataclass
class _Measurement:
    loaded: Loaded
    sensor: Sensor
    traits: records.SensorTraits
    clock: Clock
    workload: Workload
    pattern: Pattern
    settings: Settings
    reasons: list[records.Reason] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    windows: list[records.Window] = field(default_factory=list)
    warm_up: float = 0.0
    idle_watts: float | None = None
    steady_from: int = 0

    def __post_init__(self) -> None:
        poll = self.settings.poll_seconds
        self.observer = Observer(self.loaded, self.sensor, self.clock, poll)
        self.begin = self.clock.now()

    def run(self, key: str) -> records.Configuration:
        if not self.workload.timed_only and self.traits.power is not None:
            self._watched()
        else:
            self._timed(batch_size(self.observer, self.loaded, self.settings))
            self.reasons += () if self.workload.timed_only else ("no_power_sensor",)
        batches = self.observer.batches[self.steady_from :]
        return records.Configuration(
            key=key,
            workload=self.workload.described,
            ptx_sha256=self.workload.ptx_sha256,
            pattern=self.pattern,
            warm_up_seconds=round(self.warm_up, 6),
            batches=tuple((one.launches, one.seconds) for one in batches),
            windows=tuple(self.windows),
            samples=records.Samples.of(self.observer.readings, self.begin),
            result=self._result(batches),
        )

    # --- stages -----------------------------------------------------------------------------

    def _timed(self, launches: int) -> None:
        self.observer.run(self.settings.timing_seconds, launches)  # warms caches and clocks
        self.observer.drain()
        self.steady_from = len(self.observer.batches)
        self.observer.readings.clear()
        self.observer.run(self.settings.timing_seconds, launches)
        self.observer.drain()

    def _watched(self) -> None:
        observer, settings = self.observer, self.settings
        lag = self.traits.lag_seconds or 0.0
        observer.idle(4 * lag)  # what the sensor still shows of the load before
        before = observer.idle(settings.idle_seconds)
        self.idle_watts = self._mean_power(before, self.clock.now())
        launches = batch_size(observer, self.loaded, settings)
        window = self._window_seconds()
        if window is None:
            # The time of a launch does not need the power sensor.
            self.reasons.append("sensor_period")
            self._timed(launches)
            return
        self._warm(launches, lag, window)
        self.steady_from = len(observer.batches)
        self._repeat(launches, window)
        observer.drain()
        observer.idle(settings.idle_seconds)

    def _window_seconds(self) -> float | None:
        """Long enough for ``updates`` new values; ``None`` where that is too long."""
        period = self.traits.update_period_seconds
        if period is None:
            return self.settings.window_seconds
        wanted = max(self.settings.window_seconds, (self.settings.updates + 1) * period)
        return wanted if wanted <= self.settings.most_window_seconds else None

    def _warm(self, launches: int, lag: float, window: float) -> None:
        """Run until two stretches draw the same, the sensor's lag being over."""
        settings = self.settings
        stretch = max(settings.warm_up_seconds, 5 * lag, window / 2)
        last: float | None = None
        while self.warm_up < settings.most_warm_up_seconds:
            begin, end = self.observer.run(stretch, launches)
            self.warm_up += end - begin
            now = self._mean_power(begin + (end - begin) / 2, end)
            if last is not None and now is not None:
                bound = max(settings.stable_share * now, 2 * self._noise(begin, end))
                if abs(now - last) <= bound:
                    return
            last = now
        self.notes.append("still warming up when the time for that was over")

    def _noise(self, begin: float, end: float) -> float:
        """Standard error of a stretch's mean from its own updates, in watts."""
        return (sensors.half_width(sorted(set(self._watts(begin, end)))) or 0.0) / 2

    def _repeat(self, launches: int, seconds: float) -> None:
        settings, lag = self.settings, self.traits.lag_seconds or 0.0
        while len(self.windows) < settings.most_windows:
            start, end = self.observer.run(seconds, launches)
            self.windows.append(self._window(start, end, lag))
            known = [one.watts for one in self.windows if one.watts is not None]
            if len(known) >= settings.least_windows:
                width = sensors.half_width(known)
                if width is not None and width <= settings.power_ci_share * fmean(known):
                    return

    def _window(self, start: float, end: float, lag: float) -> records.Window:
        readings = self.observer.readings
        watts: float | None = None
        method = None
        count = 0
        if self.traits.energy_counter:
            watts, count = sensors.counter_watts(readings, start, end)
            method = "counter"
        if watts is None or count < self.settings.updates:
            watts, count = sensors.sampled_watts(readings, start, end, lag)
            method = "samples"
        enough = count >= self.settings.updates
        return records.Window(
            start_seconds=round(start - self.begin, 6),
            end_seconds=round(end - self.begin, 6),
            watts=round(watts, 4) if watts is not None and enough else None,
            updates=count,
            method=method if enough else None,  # type: ignore[arg-type]
        )

    def _mean_power(self, start: float, end: float) -> float | None:
        values = self._watts(start, end)
        return fmean(values) if values else None

    def _watts(self, start: float, end: float) -> list[float]:
        readings = self.observer.readings
        between = (one.power_watts for one in readings if start <= one.at_seconds <= end)
        return [watts for watts in between if watts is not None]

    # --- result ------------------------------------------------------------------------------

    def _result(self, batches: Sequence[Batch]) -> records.Result:
        each = [one.seconds / one.launches for one in batches]
        seconds = median(each) if each else None
        steady = self._steady()
        core = [one.core_mhz for one in steady if one.core_mhz is not None]
        if core and max(core) - min(core) > self.settings.clock_share * fmean(core):
            self.reasons.append("clocks_moved")
        reasons = _throttled(steady)
        watts, width = self._power()
        if watts is None and not self.reasons and self.windows:
            self.reasons.append("sensor_period")
        if reasons:
            self.notes.append(f"held back: {', '.join(reasons)}")
        self.notes += self.sensor.events()
        return records.Result(
            time_seconds=seconds,
            time_ci_seconds=sensors.half_width(each) if each else None,
            power_watts=watts,
            power_ci_watts=width,
            energy_joules=watts * seconds if watts is not None and seconds else None,
            idle_watts=self.idle_watts,
            core_mhz=median(core) if core else None,
            memory_mhz=_median(steady, lambda one: one.memory_mhz),
            temperature_celsius=_median(steady, lambda one: one.temperature_celsius),
            throttle_reasons=reasons,
            unresolved=tuple(dict.fromkeys(self.reasons)),
            notes=tuple(self.notes),
        )

    def _power(self) -> tuple[float | None, float | None]:
        """Mean over the windows and its half-width, if the sensor resolved them."""
        known = [one.watts for one in self.windows if one.watts is not None]
        if len(known) < self.settings.least_windows:
            return None, None
        mean, width = fmean(known), sensors.half_width(known)
        if width is None or width > self.settings.power_ci_share * mean:
            drift = abs(known[-1] - known[0])
            steady = drift <= 2 * self.settings.power_ci_share * mean
            self.reasons.append("sensor_noise" if steady else "not_stable")
            return None, width
        return mean, width

    def _steady(self) -> list[Reading]:
        """Readings within the windows, or all where there are none."""
        if not self.windows:
            return self.observer.readings
        start = self.windows[0].start_seconds + self.begin
        end = self.windows[-1].end_seconds + self.begin
        return [one for one in self.observer.readings if start <= one.at_seconds <= end]


def _throttled(readings: Sequence[Reading]) -> tuple[str, ...]:
    mask = 0
    for one in readings:
        mask |= one.throttle_reasons or 0
    return tuple(name for name in reason_names(mask) if name not in HARMLESS)


def _median(readings: Sequence[Reading], value: Callable[[Reading], float | None]) -> float | None:
    found = [number for one in readings if (number := value(one)) is not None]
    return median(found) if found else None
