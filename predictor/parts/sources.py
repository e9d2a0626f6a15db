"""The PTX of a request: as it was sent, or compiled from its CUDA source."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from sys import getsizeof
from typing import TYPE_CHECKING

from wattcast.features.cuda import CompiledCuda, CompileError, compile_all, compile_cuda
from wattcast.features.cuda.isolation import Limits as ChildLimits
from wattcast.features.cuda.isolation import NotIsolatedError, in_force
from wattcast.features.errors import ServiceError
from wattcast.features.gpus import GpuProfile
from wattcast.predictor.parts.cuda_names import KernelNames, kernel_names
from wattcast.predictor.parts.kept import ENTRY_BYTES, Kept, Memory
from wattcast.predictor.parts.modules import KnownModule, ModuleCache

if TYPE_CHECKING:
    from wattcast.predictor import Limits
    from wattcast.predictor.messages import KernelCode


@dataclass(frozen=True)
class CudaSource:
    """CUDA source compiled for one compute capability; ``sha256`` is that of its UTF-8."""

    text: str
    sha256: str
    compiled: CompiledCuda

    @cached_property
    def kernels(self) -> tuple[KernelNames, ...]:
        """Its kernels with the names of their parameters."""
        return kernel_names(self.text)


@dataclass(frozen=True, slots=True)
class Source:
    """A parsed module; ``cuda`` is ``None`` where the request brought PTX."""

    known: KnownModule
    cuda: CudaSource | None = None

    @property
    def kernels(self) -> tuple[KernelNames, ...]:
        """Kernels of the CUDA source with the C names of their parameters."""
        return () if self.cuda is None else self.cuda.kernels


NOT_ISOLATED = "the kernel offers neither namespaces nor Landlock with seccomp"


def isolation(settings: Limits) -> str:
    """How compilers are kept from the machine's files here; tried out once in a process."""
    mode = in_force()
    if mode is not None:
        return mode
    if settings.unsafe_compile:
        return f"none (WATTCAST_UNSAFE_COMPILE): {NOT_ISOLATED}"
    return f"none, so CUDA source is refused over HTTP and ptxas is not asked: {NOT_ISOLATED}"


class Sources:
    """Reads what requests bring, and keeps what it compiled. Safe from any thread.

    ``own``: the sources are the caller's own files (command line, Python), so that they are
    compiled even where no isolation is in force.
    """

    def __init__(
        self, settings: Limits, modules: ModuleCache, memory: Memory, *, own: bool = False
    ) -> None:
        self._modules = modules
        self._isolation_needed = not (own or settings.unsafe_compile)
        self._most_bytes = settings.max_cuda_bytes
        self._limits = ChildLimits(
            seconds=settings.compile_seconds, memory_bytes=settings.compile_memory_bytes
        )
        self._compiled: Kept[tuple[str, str], CudaSource] = memory.room(_held_bytes)

    def read(self, request: KernelCode, gpu: GpuProfile) -> Source:
        """The module of a request for a GPU, compiled if need be; never on the event loop.

        Raises PtxError, CompileError, CompilerMissingError, NotIsolatedError, and ServiceError
        ``too-large``.
        """
        if request.ptx is not None:
            return Source(self._modules.read(request.ptx))
        assert request.cuda is not None
        cuda = self._compile(request.cuda.removeprefix("\ufeff"), gpu.compute_capability)
        return Source(self._modules.read(cuda.compiled.ptx), cuda)

    @property
    def may_compile(self) -> bool:
        """Whether compilers may be given sources and PTX: they are isolated, or need not be."""
        return not self._isolation_needed or in_force() is not None

    def compile_all(self, texts: Sequence[str], capability: str) -> list[CudaSource | CompileError]:
        """Several sources of one author. Raises CompilerMissingError, NotIsolatedError, and
        ServiceError ``too-large``."""
        hashes = [self._sha256(text) for text in texts]
        made = compile_all(texts, _pair(capability), limits=self._limits)
        return [
            _with_errors(one) if isinstance(one, CompileError) else CudaSource(text, sha256, one)
            for text, sha256, one in zip(texts, hashes, made, strict=True)
        ]

    def hold(self, source: CudaSource, capability: str) -> None:
        """Keep what another process compiled: ``read`` need not compile it again."""
        self._compiled.get_or_make((source.sha256, capability), lambda: source)

    def _compile(self, text: str, capability: str) -> CudaSource:
        sha256 = self._sha256(text)

        def make() -> CudaSource:
            try:
                made = compile_cuda(text, _pair(capability), limits=self._limits)
            except CompileError as error:
                raise _with_errors(error) from None
            return CudaSource(text, sha256, made)

        return self._compiled.get_or_make((sha256, capability), make)

    def _sha256(self, text: str) -> str:
        """Of a source that may be compiled."""
        if not self.may_compile:
            raise NotIsolatedError(
                f"CUDA source is not compiled by this service: {NOT_ISOLATED}, so a source could "
                "read files of the machine. Compile it yourself and send the PTX (nvcc -ptx)",
            )
        try:
            encoded = text.encode()
        except UnicodeEncodeError as error:
            line = text.count("\n", 0, error.start) + 1
            raise _with_errors(CompileError("not Unicode text", line=line)) from error
        if len(encoded) > self._most_bytes:
            raise ServiceError(
                "too-large",
                f"the CUDA source has {len(encoded)} bytes; it may have at most "
                f"{self._most_bytes} (WATTCAST_MAX_CUDA_BYTES)",
            )
        return hashlib.sha256(encoded).hexdigest()


def _pair(capability: str) -> tuple[int, int]:
    major, minor = capability.split(".")
    return int(major), int(minor)


def _held_bytes(made: CudaSource) -> int:
    texts = getsizeof(made.text) + getsizeof(made.compiled.ptx)
    return texts + ENTRY_BYTES * (1 + len(made.compiled.diagnostics))


def _with_errors(error: CompileError) -> CompileError:
    """The same error with ``errors``, which it lacks where there is only one."""
    line = error.context.get("line")
    if line is not None and "errors" not in error.context:
        error.context["errors"] = [{"line": line, "message": error.detail}]
    return error
