"""Runs workloads on a real GPU through the CUDA driver API.

PTX is compiled by the driver when it is loaded: neither nvcc nor a toolkit is needed. Bindings:
cuda-bindings (extra ``measure``), imported when needed; tests pass a module of their own. A batch
is a graph of kernel nodes, so that short kernels follow each other without the host; drivers
without graphs launch one by one.

Buffers are filled before a workload runs: the configuration's data pattern, indices, rings.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattcast.features.errors import WattcastError
from wattcast.measure.device import (
    Batch,
    ContextBrokenError,
    Device,
    GpuLostError,
    MeasureError,
    WorkloadError,
)
from wattcast.measure.workload import (
    ELEMENT_BYTES,
    Board,
    Buffer,
    Pattern,
    Scalar,
    Workload,
)

SEED = 20260701
"""Data are the same on every board."""

_DTYPES = {"u8": "u1", "u32": "<u4", "u64": "<u8", "f16": "<f2", "f32": "<f4", "f64": "<f8"}


def fillings(
    buffer: Buffer, pattern: Pattern, address: int, seed: int
) -> Sequence[tuple[int, NDArray[Any]]]:
    """Byte offsets and contents of a buffer at a device address; reproducible from the seed."""
    fill = pattern if buffer.fill == "varied" else buffer.fill
    dtype, count = _DTYPES[buffer.element], buffer.elements
    random = np.random.default_rng(seed)
    if fill == "chase":
        assert buffer.stride_bytes is not None
        return [(0, _chase(buffer, address, random))]
    if fill == "zeros":
        return [(0, np.zeros(count, dtype))]
    if fill == "places":
        assert buffer.stride_bytes is not None
        return [(0, (np.arange(count) // 32 * buffer.stride_bytes).astype(dtype))]
    if fill == "index":
        return [(0, np.arange(count).astype(dtype))]
    # Long buffers repeat a block of 64 MiB: making them takes longer than measuring otherwise.
    block = min(count, (64 << 20) // ELEMENT_BYTES[buffer.element])
    if fill == "random_bits":
        part = random.integers(0, 256, block * ELEMENT_BYTES[buffer.element], np.uint8).view(dtype)
    elif buffer.element in ("u8", "u32", "u64"):
        part = random.integers(int(buffer.low), max(int(buffer.high), int(buffer.low) + 1), block)
        part = part.astype(dtype)
    else:
        part = random.uniform(buffer.low, buffer.high, block).astype(dtype)
    size = part.nbytes
    return [
        (offset, part[: min(block, count - offset // ELEMENT_BYTES[buffer.element])])
        for offset in range(0, count * ELEMENT_BYTES[buffer.element], size)
    ]


def _chase(buffer: Buffer, address: int, random: np.random.Generator) -> NDArray[Any]:
    """A ring through every slot once, in random order: each slot holds the next one's address."""
    assert buffer.stride_bytes is not None
    step = buffer.stride_bytes // 8
    slots = buffer.elements // step
    # The ring starts at the first slot, where kernels enter it.
    order = np.concatenate([[0], 1 + random.permutation(slots - 1)])
    words = np.full(buffer.elements, address, "<u8")
    words[order * step] = address + np.roll(order, -1) * buffer.stride_bytes
    return words


INSTALL = "pip install 'wattcast[measure]'"

_LOST = ("CUDA_ERROR_ECC_UNCORRECTABLE", "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA_ERROR_NO_DEVICE")
_BROKEN = frozenset(
    f"CUDA_ERROR_{name}"
    for name in (
        "ASSERT", "CONTEXT_IS_DESTROYED", "HARDWARE_STACK_ERROR", "ILLEGAL_ADDRESS",
        "ILLEGAL_INSTRUCTION", "INVALID_ADDRESS_SPACE", "INVALID_PC", "LAUNCH_FAILED",
        "LAUNCH_TIMEOUT", "MISALIGNED_ADDRESS", "UNKNOWN",
    )
)  # fmt: skip
"""After these every further call of the process fails too ("the process must be terminated and
relaunched": CUDA driver API, CUresult)."""
_CTYPES = {
    "u32": ctypes.c_uint32,
    "s32": ctypes.c_int32,
    "u64": ctypes.c_uint64,
    "f32": ctypes.c_float,
    "f64": ctypes.c_double,
}
_MOST_GRAPH_NODES = 256


class CudaRunner:
    """One device with a context of ours. Raises MeasureError where CUDA does not start."""

    def __init__(self, index: int | None = None, module: Any = None) -> None:
        self.cuda = _bindings() if module is None else module
        try:
            self.call("cuInit", 0)
        except (GpuLostError, WorkloadError) as error:
            raise MeasureError(f"no NVIDIA driver, or no GPU that it drives ({error})") from error
        count = self._call("cuDeviceGetCount")
        if count == 0:
            raise MeasureError("CUDA sees no GPU")
        if index is None and count > 1:
            listed = "; ".join(f"{at}: {self._name(self._device(at))}" for at in range(count))
            raise MeasureError(f"several GPUs, choose one with --device: {listed}")
        if not 0 <= (index or 0) < count:
            raise MeasureError(f"no device {index}: CUDA sees {count}")
        self._modules: dict[str, Any] = {}
        self.handle = self._device(index or 0)
        self._context = self._call("cuDevicePrimaryCtxRetain", self.handle)
        self._call("cuCtxSetCurrent", self._context)

    # --- facts ----------------------------------------------------------------------------

    def device(self) -> Device:
        """The device as CUDA describes it; NVML adds limits (``campaign`` callers merge them)."""
        get = self._attribute
        return Device(
            name=self._name(self.handle),
            label=hashlib.sha256(
                bytes(self._call("cuDeviceGetUuid", self.handle).bytes)
            ).hexdigest()[:12],
            board=Board(
                sm_count=get("MULTIPROCESSOR_COUNT"),
                compute_capability=(
                    get("COMPUTE_CAPABILITY_MAJOR"),
                    get("COMPUTE_CAPABILITY_MINOR"),
                ),
                l2_bytes=max(1, get("L2_CACHE_SIZE")),
                memory_bytes=self._call("cuDeviceTotalMem", self.handle),
                max_threads_per_sm=get("MAX_THREADS_PER_MULTIPROCESSOR"),
                shared_bytes_per_block=get("MAX_SHARED_MEMORY_PER_BLOCK"),
                core_mhz=max(1, get("CLOCK_RATE")) / 1e3,
            ),
            cuda_version=str(self._call("cuDriverGetVersion")),
            memory_bus_bits=get("GLOBAL_MEMORY_BUS_WIDTH") or None,
            max_memory_mhz=get("MEMORY_CLOCK_RATE") / 1e3 or None,
        )

    def pci_bus(self) -> str:
        """``0000:3B:00.0``: what NVML knows the device by."""
        text: bytes = self._call("cuDeviceGetPCIBusId", 16, self.handle)
        return text.split(b"\0")[0].decode()

    def versions(self) -> Mapping[str, str]:
        """Software that a recording names."""
        return {
            "cuda_driver_api": str(self._call("cuDriverGetVersion")),
            "cuda_bindings": getattr(self.cuda, "__version__", "unknown"),
        }

    def close(self) -> None:
        """Give the modules and the context back."""
        for module in self._modules.values():
            self.cuda.cuModuleUnload(module)
        self._modules.clear()
        self.cuda.cuDevicePrimaryCtxRelease(self.handle)

    # --- work --------------------------------------------------------------------------------

    def load(self, workload: Workload, pattern: Pattern) -> CudaLoaded:
        """Compile, allocate, fill. Raises WorkloadError, GpuLostError."""
        return CudaLoaded(self, workload, pattern)

    def function(self, ptx: str, kernel: str) -> Any:
        """A kernel of a module, which is compiled once: the largest takes the driver seconds.
        Raises WorkloadError, GpuLostError."""
        if ptx not in self._modules:
            self._modules[ptx] = self.call("cuModuleLoadData", ptx.encode() + b"\0")
        return self.call("cuModuleGetFunction", self._modules[ptx], kernel.encode())

    def call(self, name: str, *arguments: Any) -> Any:
        """A driver function's result. Raises WorkloadError, GpuLostError, ContextBrokenError."""
        try:
            error, *results = getattr(self.cuda, name)(*arguments)
        except RuntimeError as missing:  # the bindings find no driver, or it lacks the function
            raise WorkloadError(f"{name}: {missing}") from missing
        code = getattr(error, "name", str(error))
        if code != "CUDA_SUCCESS":
            raise _problem(name, code)
        return results[0] if len(results) == 1 else results or None

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            return self.call(name, *arguments)
        except WorkloadError as error:
            raise MeasureError(f"CUDA does not start: {error}") from error

    def _device(self, index: int) -> Any:
        return self._call("cuDeviceGet", index)

    def _name(self, device: Any) -> str:
        text: bytes = self._call("cuDeviceGetName", 128, device)
        return text.split(b"\0")[0].decode()

    def _attribute(self, name: str) -> int:
        """An attribute; 0 where the driver does not know it (Kepler's, say)."""
        kinds = self.cuda.CUdevice_attribute
        kind = getattr(kinds, f"CU_DEVICE_ATTRIBUTE_{name}", None)
        if kind is None:
            return 0
        try:
            return int(self.call("cuDeviceGetAttribute", kind, self.handle))
        except WorkloadError:
            return 0


class CudaLoaded:
    """A kernel with its buffers, a stream, and batches under way between events."""

    def __init__(self, runner: CudaRunner, workload: Workload, pattern: Pattern) -> None:
        self._runner, self._workload = runner, workload
        self._buffers: list[Any] = []
        self._batches: list[tuple[int, Any, Any]] = []
        self._graphs: dict[int, Any] = {}
        self._with_graphs = True
        self._stream: Any = None
        call = runner.call
        try:
            self._function = runner.function(workload.ptx, workload.kernel)
            self._stream = call("cuStreamCreate", runner.cuda.CUstream_flags.CU_STREAM_NON_BLOCKING)
            self._parameters = self._filled(pattern)
            if workload.dynamic_shared_bytes > 48 * 1024:
                kind = runner.cuda.CUfunction_attribute
                call(
                    "cuFuncSetAttribute",
                    self._function,
                    kind.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                    workload.dynamic_shared_bytes,
                )
        except WattcastError:
            self.close()
            raise

    def enqueue(self, launches: int) -> None:
        """Add a batch between two events."""
        call, cuda = self._runner.call, self._runner.cuda
        events = [call("cuEventCreate", cuda.CUevent_flags.CU_EVENT_DEFAULT) for _ in range(2)]
        call("cuEventRecord", events[0], self._stream)
        whole, rest = divmod(launches, _MOST_GRAPH_NODES)
        # Launch overhead is that of launches, not of graph nodes.
        alone = not whole or self._workload.kind == "launch"
        graph = None if alone else self._graph(_MOST_GRAPH_NODES)
        if graph is None:
            rest, whole = launches, 0
        for _ in range(whole):
            call("cuGraphLaunch", graph, self._stream)
        for _ in range(rest):
            self._launch()
        call("cuEventRecord", events[1], self._stream)
        self._batches.append((launches, *events))

    def pending(self) -> int:
        """Batches whose last event is not reached."""
        return sum(not self._reached(end) for _, _, end in self._batches)

    def finished(self) -> list[Batch]:
        """Batches that ended, with GPU seconds between their events."""
        ended: list[Batch] = []
        while self._batches and self._reached(self._batches[0][2]):
            launches, start, end = self._batches.pop(0)
            milliseconds = self._runner.call("cuEventElapsedTime", start, end)
            ended.append(Batch(launches, float(milliseconds) * 1e-3))
            for event in (start, end):
                self._runner.call("cuEventDestroy", event)
        return ended

    def close(self) -> None:
        """Free everything; a lost GPU has nothing left to free."""
        cuda = self._runner.cuda
        if self._batches:
            cuda.cuStreamSynchronize(self._stream)
        for _, *events in self._batches:
            for event in events:
                cuda.cuEventDestroy(event)
        for graph in self._graphs.values():
            cuda.cuGraphExecDestroy(graph)
        for buffer in self._buffers:
            cuda.cuMemFree(buffer)
        if self._stream is not None:
            cuda.cuStreamDestroy(self._stream)
        self._graphs, self._buffers, self._batches, self._stream = {}, [], [], None

    def _reached(self, event: Any) -> bool:
        (error,) = self._runner.cuda.cuEventQuery(event)
        code = getattr(error, "name", str(error))
        if code == "CUDA_ERROR_NOT_READY":
            return False
        if code != "CUDA_SUCCESS":
            raise _problem(self._workload.id, code)
        return True

    def _launch(self) -> None:
        one = self._workload
        self._runner.call(
            "cuLaunchKernel",
            self._function,
            *one.grid,
            *one.block,
            one.dynamic_shared_bytes,
            self._stream,
            self._parameters,
            0,
        )

    def _graph(self, nodes: int) -> Any:
        """A graph of so many launches, or ``None`` where the driver has no graphs."""
        if not self._with_graphs:
            return None
        if nodes not in self._graphs:
            call, cuda = self._runner.call, self._runner.cuda
            try:
                mode = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
                call("cuStreamBeginCapture", self._stream, mode)
                for _ in range(nodes):
                    self._launch()
                graph = call("cuStreamEndCapture", self._stream)
                self._graphs[nodes] = call("cuGraphInstantiate", graph, 0)
                call("cuGraphDestroy", graph)
            except (WorkloadError, AttributeError):
                self._with_graphs = False
                return None
        return self._graphs[nodes]

    def _filled(self, pattern: Pattern) -> Any:
        """Kernel parameters as cuda-bindings takes them: values and their C types."""
        values: list[Any] = []
        kinds: list[Any] = []
        for at, argument in enumerate(self._workload.arguments):
            if isinstance(argument, Scalar):
                values.append(argument.value)
                kinds.append(_CTYPES[argument.element])
                continue
            pointer = self._runner.call("cuMemAlloc", argument.bytes)
            self._buffers.append(pointer)
            address = int(pointer)
            for offset, part in fillings(argument, pattern, address, SEED + at):
                host = np.ascontiguousarray(part)
                self._runner.call("cuMemcpyHtoD", address + offset, host.ctypes.data, host.nbytes)
            values.append(address)
            kinds.append(ctypes.c_void_p)
        # Copies may still be under way, and our stream does not wait for them.
        self._runner.call("cuCtxSynchronize")
        return (tuple(values), tuple(kinds)) if values else 0


def _problem(where: str, code: str) -> MeasureError:
    """The error that a driver's code stands for."""
    if code in _LOST:
        return GpuLostError(f"the GPU is lost ({where}: {code})")
    if code in _BROKEN:
        return ContextBrokenError(
            f"a kernel broke the CUDA context ({where}: {code}); what was recorded is kept: start "
            "again to go on without this one"
        )
    return WorkloadError(f"{where}: {code}")


def _bindings() -> Any:
    try:
        return importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise MeasureError(f"CUDA's bindings are not installed: {INSTALL}") from error
    except RuntimeError as error:
        raise MeasureError(f"CUDA's driver library cannot be loaded: {error}") from error
