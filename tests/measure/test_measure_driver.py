"""The CUDA runner against a driver that only keeps books, and what it fills buffers with."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.measure.measuring import workload
from wattcast.measure.device import (
    ContextBrokenError,
    GpuLostError,
    MeasureError,
    Reading,
    SystemClock,
    WorkloadError,
)
from wattcast.measure.driver import CudaRunner, fillings
from wattcast.measure.protocol import Settings
from wattcast.measure.recording import SensorTraits, read_recording
from wattcast.measure.run import Campaign, Outcome, plan
from wattcast.measure.workload import Buffer, Probe, Scalar

OK = SimpleNamespace(name="CUDA_SUCCESS")


class Books:
    """A CUDA driver that notes calls; ``failing`` maps functions to the error they give."""

    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT=80,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=7,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR=0,
        CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE=6291456,
        CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR=2048,
        CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK=49152,
        CU_DEVICE_ATTRIBUTE_CLOCK_RATE=1380000,
        CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH=4096,
        CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE=877000,
    )
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
    CUevent_flags = SimpleNamespace(CU_EVENT_DEFAULT=0)
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=1)
    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8)

    def __init__(self, count: int = 1, failing: dict[str, str] | None = None) -> None:
        self.count, self.failing = count, failing or {}
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.allocated: dict[int, int] = {}

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append((name, arguments))
            if name in self.failing:
                return (SimpleNamespace(name=self.failing[name]),)
            return (OK, *self._results(name, arguments))

        return call

    def _results(self, name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        if name == "cuMemAlloc":
            address = 0x7000_0000 + 0x1000_0000 * len(self.allocated)
            self.allocated[address] = arguments[0]
            return (address,)
        if name == "cuMemFree":
            del self.allocated[arguments[0]]
            return ()
        return {
            "cuDeviceGetCount": (self.count,),
            "cuDeviceGet": (arguments[0] if arguments else 0,),
            "cuDeviceGetName": (b"Tesla V100\0\0",),
            "cuDeviceGetUuid": (SimpleNamespace(bytes=b"0123456789abcdef"),),
            "cuDeviceGetPCIBusId": (b"0000:3B:00.0\0",),
            "cuDeviceTotalMem": (2**34,),
            "cuDriverGetVersion": (13000,),
            "cuDeviceGetAttribute": (arguments[0] if arguments else 0,),
            "cuEventElapsedTime": (2.5,),
        }.get(name, (object(),) if "Create" in name or "Get" in name or "Load" in name else ())

    def counted(self, name: str) -> int:
        return sum(called == name for called, _ in self.calls)


def books_with_graphs(**given: Any) -> Books:
    books = Books(**given)
    results = books._results

    def more(name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        if name in ("cuStreamEndCapture", "cuGraphInstantiate", "cuDevicePrimaryCtxRetain"):
            return (object(),)
        return results(name, arguments)

    books._results = more  # type: ignore[method-assign]
    return books


KERNEL = workload("k", ["alu"], trips=1, blocks=8)


def test_the_device_is_described_without_naming_it() -> None:
    runner = CudaRunner(module=books_with_graphs())
    device = runner.device()
    assert (device.name, device.board.sm_count, device.board.core_mhz) == ("Tesla V100", 80, 1380)
    assert device.board.compute_capability == (7, 0)
    assert device.memory_bus_bits == 4096
    assert len(device.label) == 12
    assert "0123" not in device.label
    assert runner.pci_bus() == "0000:3B:00.0"


def test_batches_are_graphs_between_events_and_memory_is_given_back() -> None:
    books = books_with_graphs()
    loaded = CudaRunner(module=books).load(KERNEL, "uniform")
    assert sorted(books.allocated.values()) == sorted(
        one.bytes for one in KERNEL.arguments if isinstance(one, Buffer)
    )
    loaded.enqueue(600)
    assert books.counted("cuGraphLaunch") == 2
    # 256 were captured; 600 - 2 x 256 are left to launch.
    assert books.counted("cuLaunchKernel") == 256 + 88
    assert loaded.pending() == 0
    assert [(one.launches, one.seconds) for one in loaded.finished()] == [(600, 0.0025)]
    loaded.close()
    assert books.allocated == {}
    assert books.counted("cuStreamCreate") == books.counted("cuStreamDestroy") == 1
    assert books.counted("cuEventCreate") == books.counted("cuEventDestroy") == 2


def test_a_module_is_compiled_once() -> None:
    books = books_with_graphs()
    runner = CudaRunner(module=books)
    for _ in range(3):
        runner.load(KERNEL, "uniform").close()
    assert (books.counted("cuModuleLoadData"), books.counted("cuModuleGetFunction")) == (1, 3)
    assert books.counted("cuModuleUnload") == 0
    runner.close()
    assert books.counted("cuModuleUnload") == 1


def test_a_driver_without_graphs_launches_one_by_one() -> None:
    books = books_with_graphs(failing={"cuStreamBeginCapture": "CUDA_ERROR_NOT_SUPPORTED"})
    loaded = CudaRunner(module=books).load(KERNEL, "uniform")
    loaded.enqueue(300)
    assert books.counted("cuLaunchKernel") == 300
    assert books.counted("cuGraphLaunch") == 0


@pytest.mark.parametrize(
    ("failing", "kind"),
    [
        ({"cuModuleLoadData": "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"}, WorkloadError),
        ({"cuMemAlloc": "CUDA_ERROR_OUT_OF_MEMORY"}, WorkloadError),
        ({"cuMemcpyHtoD": "CUDA_ERROR_DEVICE_UNAVAILABLE"}, GpuLostError),
    ],
)
def test_what_does_not_load_is_told_and_leaves_nothing(
    failing: dict[str, str], kind: type[Exception]
) -> None:
    books = books_with_graphs(failing=failing)
    (error,) = failing.values()
    with pytest.raises(kind, match=error):
        CudaRunner(module=books).load(KERNEL, "uniform")
    assert books.allocated == {}


def test_a_driver_without_a_gpu_and_no_driver_at_all_are_told() -> None:
    with pytest.raises(MeasureError, match=r"no GPU that it drives .*NO_DEVICE"):
        CudaRunner(module=books_with_graphs(failing={"cuInit": "CUDA_ERROR_NO_DEVICE"}))
    books = books_with_graphs()

    def absent(_: int) -> None:
        raise RuntimeError("Failed to dlopen libcuda.so.1")

    books.cuInit = absent  # type: ignore[attr-defined]
    with pytest.raises(MeasureError, match=r"no NVIDIA driver.*libcuda"):
        CudaRunner(module=books)


@pytest.mark.parametrize("function", ["cuEventQuery", "cuLaunchKernel", "cuEventCreate"])
def test_a_kernel_that_breaks_the_context_is_not_blamed_on_those_after_it(
    tmp_path: Path, function: str
) -> None:
    books = books_with_graphs()
    runner = CudaRunner(module=books)
    sensor = SimpleNamespace(
        read=lambda: Reading(0.0), events=lambda: (), locked=nullcontext, traits=SensorTraits()
    )
    path = tmp_path / "recording.jsonl"
    probe = Probe(kind="launch", target="launch", operations=1)
    planned, _ = plan(
        [KERNEL.model_copy(update={"id": name, "probe": probe}) for name in ("a", "b", "c")],
        (7, 0),
        2**34,
    )
    machine: Any = SimpleNamespace(runner=runner, clock=SystemClock(), provenance="measured")
    settings = Settings(timing_seconds=0.0)

    def campaign() -> Outcome:
        return Campaign(machine, sensor, runner.device(), tuple(planned), settings=settings).run(
            path
        )

    books.failing[function] = "CUDA_ERROR_ILLEGAL_ADDRESS"
    with pytest.raises(ContextBrokenError, match="start again to go on without this one"):
        campaign()
    (failure,) = read_recording(path).failures
    assert (failure.key, failure.permanent) == ("a/uniform", True)
    assert books.allocated == {}
    books.failing.clear()  # a new process
    assert campaign() == Outcome(measured=2, known=1, failed=0, unresolved=0)


def test_several_devices_need_a_choice() -> None:
    with pytest.raises(MeasureError, match=r"several GPUs.*--device: 0: Tesla V100; 1: Tesla"):
        CudaRunner(module=books_with_graphs(count=2))
    assert CudaRunner(1, books_with_graphs(count=2)).handle == 1
    with pytest.raises(MeasureError, match="no device 7"):
        CudaRunner(7, books_with_graphs(count=2))
    with pytest.raises(MeasureError, match="sees no GPU"):
        CudaRunner(module=books_with_graphs(count=0))


def test_scalars_and_pointers_are_passed_with_their_types() -> None:
    books = books_with_graphs()
    arguments = (
        Buffer(elements=4),
        Scalar(element="f64", value=0.5),
        Scalar(element="u32", value=7),
    )
    CudaRunner(module=books).load(
        KERNEL.model_copy(update={"arguments": arguments}), "zeros"
    ).enqueue(1)
    (values, kinds), _ = books.calls[[n for n, _ in books.calls].index("cuLaunchKernel")][1][-2:]
    assert values == (0x7000_0000, 0.5, 7)
    assert [kind.__name__ for kind in kinds] == ["c_void_p", "c_double", "c_uint"]


def test_a_chase_visits_every_slot_once_and_comes_back() -> None:
    buffer = Buffer(elements=512, element="u64", fill="chase", stride_bytes=64)
    ((offset, words),) = fillings(buffer, "uniform", 0x10000, 1)
    assert offset == 0
    at, seen = 0x10000, []
    for _ in range(64):
        seen.append(at)
        at = int(words[(at - 0x10000) // 8])
    assert at == 0x10000
    assert sorted(seen) == list(range(0x10000, 0x10000 + 4096, 64))


def test_patterns_are_what_they_say_and_the_same_each_time() -> None:
    buffer = Buffer(elements=1000, low=2.0, high=3.0)
    for pattern in ("zeros", "uniform", "random_bits"):
        ((_, one),), ((_, other),) = (fillings(buffer, pattern, 0, 5) for _ in range(2))  # type: ignore[arg-type]
        assert one.tobytes() == other.tobytes()
        assert one.nbytes == buffer.bytes
        if pattern == "uniform":
            assert 2 <= one.min() < 2.1 < 2.9 < one.max() <= 3
        if pattern == "zeros":
            assert not one.any()
        if pattern == "random_bits":
            assert 0.4 < np.unpackbits(one.view(np.uint8)).mean() < 0.6
