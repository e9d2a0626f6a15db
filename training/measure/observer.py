"""Keeps a GPU busy with overlapping batches and watches its sensors meanwhile."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from wattcast.training.measure.device import Batch, Clock, Loaded, Reading, Sensor


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

    def told(self) -> dict[str, float | int | str | bool | None]:
        """The settings as a recording holds them."""
        return dict(asdict(self))


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
