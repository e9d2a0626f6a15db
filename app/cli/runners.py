"""What measures one configuration of a tuning space: a command of the user's, or the GPU here."""

from __future__ import annotations

import hashlib
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from wattcast.app.cli import exits, inputs
from wattcast.features.errors import LaunchError, WattcastError
from wattcast.features.launch import PointerHint
from wattcast.predictor import Predictor, parts, rank
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.tuning_files import Configuration, Value

if TYPE_CHECKING:
    from wattcast.measure.run import Machine
    from wattcast.measure.workload import Buffer, Scalar, Workload


class Taken(NamedTuple):
    """Seconds and joules of one launch, ``None`` where it failed or was not resolved; ``note``
    says why."""

    seconds: float | None = None
    joules: float | None = None
    note: str | None = None


class Command:
    """A command that prints seconds, or seconds and joules, last. It ends ours where it prints
    anything else, cannot be started, or names a parameter that the space lacks."""

    def __init__(self, command: str, most_seconds: float) -> None:
        self._command, self._most = command, most_seconds

    def measure(self, parameters: Mapping[str, Value]) -> Taken:
        try:
            words = [each.format_map(dict(parameters)) for each in shlex.split(self._command)]
        except (KeyError, ValueError, IndexError) as error:
            inputs.fail(f"--run {self._command!r}: {error} is no parameter of the space")
        try:
            done = subprocess.run(  # noqa: S603  the command that the user gave
                words, capture_output=True, text=True, timeout=self._most, check=False
            )
        except subprocess.TimeoutExpired:
            return Taken(note=f"it took more than {self._most:g} s")
        except OSError as error:
            inputs.fail(f"--run {words[0]!r}: {error.strerror}")
        if done.returncode != 0:
            return Taken(note=f"exit status {done.returncode}")
        last = (done.stdout.strip().splitlines() or [""])[-1].split()
        try:
            numbers = [float(each) for each in last]
        except ValueError:
            numbers = []
        if not 1 <= len(numbers) <= 2 or not all(0 < each < float("inf") for each in numbers):
            inputs.fail(
                f"--run: {shlex.join(words)} printed {' '.join(last)!r} last; "
                "expected seconds, or seconds and joules",
            )
        return Taken(numbers[0], numbers[1] if len(numbers) == 2 else None)


class Here:
    """The GPU of this machine, by the protocol of ``wattcast measure``: batches until power stands
    still, then windows until its mean is known. Results are not checked. Clocks stay as they are
    but for those that a configuration names."""

    def __init__(
        self, machine: Machine, predictor: Predictor, problem: rank.TuningProblem, *, energy: bool
    ) -> None:
        from wattcast.measure.device import known_profile
        from wattcast.measure.protocol import Settings

        self._settings = Settings()
        self._machine, self._predictor, self._problem = machine, predictor, problem
        self._sensor = machine.nvml.sensor(machine.clock, machine.runner.pci_bus())
        self._traits = self._sensor.traits
        if not energy:
            self._traits = self._traits.model_copy(update={"power": None})
        elif self._traits.power is None:
            inputs.fail(
                f"--measure: {'; '.join(self._traits.notes)}; use --by time", exits.Exit.NO_ANSWER
            )
        self._behaved = not energy
        device = machine.runner.device()
        asked, found = predictor.gpus.load(str(problem.request["gpu"])), known_profile(device)
        if found is not None and found.id != asked.id:
            inputs.fail(f"--measure: this machine has {device.name} ({found.id}), not {asked.id}")

    def measure(self, parameters: Mapping[str, Value]) -> Taken:
        """Raises MeasureError where clocks cannot be held, GpuLostError and ContextBrokenError."""
        from wattcast.measure.device import WorkloadError
        from wattcast.measure.protocol import behaviour, measure

        runner, sensor, clock = self._machine.runner, self._sensor, self._machine.clock
        settings = self._settings
        try:
            workload, held = self._workload(parameters)
            with sensor.locked(**held):
                if not self._behaved:
                    self._traits = behaviour(
                        runner, sensor, self._traits, clock, workload, settings
                    )
                    self._behaved = True
                found = measure(
                    runner, sensor, self._traits, clock, workload, "uniform", workload.id, settings
                ).result
        except WorkloadError as error:
            return Taken(note=error.detail)
        if self._traits.power is not None and found.energy_joules is None:
            return Taken(note=f"its energy is not resolved: {', '.join(found.unresolved)}")
        return Taken(found.time_seconds, found.energy_joules)

    def _workload(self, parameters: Mapping[str, Value]) -> tuple[Workload, dict[str, float]]:
        """What is run, and clocks and limit to hold. Raises WorkloadError."""
        from wattcast.measure.device import WorkloadError
        from wattcast.measure.workload import Workload

        asked = rank.request_of(self._problem, Configuration(parameters, None, None))
        try:
            request = PredictRequest.model_validate(asked)
            gpu = self._predictor.gpus.load(str(asked["gpu"]))
            source = self._predictor.sources.read(request, gpu)
            function = source.known.module.kernel(request.kernel)
            launch = parts.launch_of(source, function, parts.completed(function, request.launch))
        except (WattcastError, ValueError) as error:
            raise WorkloadError(str(error)) from error
        arguments = []
        for at, parameter in enumerate(function.parameters):
            arguments.append(_argument(at, parameter.type, launch.arguments.get(str(at))))
        name = hashlib.sha256(repr((source.known.sha256, launch)).encode()).hexdigest()[:16]
        clocks = asked.get("clocks") or {}
        held = {key: float(value) for key, value in clocks.items() if value is not None}
        if asked.get("power_limit_watts") is not None:
            held["power_limit_watts"] = float(asked["power_limit_watts"])
        workload = Workload(
            id=f"tune-{name}", role="application", family="tune", kernel=function.name,
            grid=launch.grid, block=launch.block,
            dynamic_shared_bytes=launch.dynamic_shared_bytes, arguments=tuple(arguments),
            ptx=source.known.module.text,
        )  # fmt: skip
        return workload, held


_SCALARS = {"u32": "u32", "s32": "s32", "u64": "u64", "s64": "u64", "f32": "f32", "f64": "f64"}

ELEMENT_BYTES = 16
"""Memory for each element of an array: the widest that a thread loads at once (PTX ISA, ``ld``)."""


def _argument(at: int, kind: str, given: int | float | PointerHint | None) -> Buffer | Scalar:
    from wattcast.measure.workload import Buffer, Scalar

    if isinstance(given, PointerHint) and given.elements is not None:
        words = given.elements * ELEMENT_BYTES // 4
        if given.values == "index":
            return Buffer(elements=given.elements, element="u32", fill="index")
        if given.values in ("uniform", "zeros"):
            fill = "varied" if given.values == "uniform" else "zeros"
            return Buffer(elements=words, fill=fill, low=given.low, high=given.high)  # type: ignore[arg-type]
        raise LaunchError(
            f"argument {at}: --measure makes arrays of values uniform, zeros or index, not "
            f"{given.values}",
            field="arguments",
        )
    if isinstance(given, int | float) and kind in _SCALARS:
        value = given % 2**64 if kind == "s64" else given
        return Scalar(element=_SCALARS[kind], value=value)  # type: ignore[arg-type]
    raise LaunchError(
        f"argument {at} ({kind}) is needed to run the kernel: give --arg {at}=NUMBER, or "
        f"--arg {at}:elements=N for an array",
        field="arguments",
    )


Runner = Command | Here
"""Measures configurations, one at a time."""


@contextmanager
def here(
    predictor: Predictor, problem: rank.TuningProblem, index: int | None, *, energy: bool
) -> Iterator[Here]:
    """The GPU of this machine. Raises MeasureError where there is none, or several and no
    ``index``."""
    from wattcast.measure.run import Machine

    machine = Machine.here(index)
    try:
        yield Here(machine, predictor, problem, energy=energy)
    finally:
        machine.close()
