"""The PTX of a request: as it was sent, or compiled from its CUDA source."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from sys import getsizeof
from typing import TYPE_CHECKING

from wattcast.features import errors, gpus
from wattcast.features.cuda import CompiledCuda, CompileError, compile_all, compile_cuda
from wattcast.features.cuda.isolation import Limits as ChildLimits
from wattcast.features.cuda.isolation import NotIsolatedError, in_force
from wattcast.features.cuda.passed import Passed, passed
from wattcast.predictor.parts import arguments
from wattcast.predictor.parts.memory import ENTRY_BYTES, Kept, KnownModule, Memory, ModuleCache

if TYPE_CHECKING:
    from wattcast.predictor import Limits, messages


@dataclass(frozen=True)
class CudaSource:
    """CUDA source compiled for one compute capability; ``sha256`` is that of its UTF-8."""

    text: str
    sha256: str
    compiled: CompiledCuda
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    options: tuple[str, ...] = ()

    @property
    def whole(self) -> str:
        """Its text and that of its headers."""
        return "\n".join((self.text, *self.headers.values()))

    @cached_property
    def kernels(self) -> tuple[arguments.KernelNames, ...]:
        """Its kernels with the names of their parameters."""
        texts = (self.text, *self.headers.values())
        return tuple(kernel for text in texts for kernel in arguments.kernel_names(text))[
            : arguments.MOST_KERNELS
        ]

    @cached_property
    def passed(self) -> Mapping[str, Mapping[int, Passed]]:
        """Whole numbers that its own launches pass, by kernel and position. A macro that an option
        defines otherwise than the text has two meanings, so none."""
        given = (each[2:].strip() for each in self.options if each.startswith("-D"))
        macros = ("#define " + each.replace("=", " ", 1) for each in given)
        return passed(self.text, (*self.headers.values(), *macros))


@dataclass(frozen=True, slots=True)
class Source:
    """A parsed module; ``cuda`` is ``None`` where the request brought PTX."""

    known: KnownModule
    cuda: CudaSource | None = None

    @property
    def kernels(self) -> tuple[arguments.KernelNames, ...]:
        """Kernels of the CUDA source with the C names of their parameters."""
        return () if self.cuda is None else self.cuda.kernels


MOST_CUDA_BYTES = 1 << 20
"""Largest CUDA source (UTF-8): some 20,000 lines."""

NO_HEADERS: Mapping[str, str] = {}
NOT_ISOLATED = "the kernel offers no namespaces to this user, or no seccomp"


def isolation(settings: Limits) -> str:
    """How compilers are kept from the machine's files here; tried out once in a process."""
    if in_force():
        return "namespaces"
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
        self._limits = ChildLimits(seconds=settings.compile_seconds)
        self._compiled: Kept[tuple[str, str], CudaSource] = memory.room(_held_bytes)

    def read(self, request: messages.KernelCode, gpu: gpus.GpuProfile) -> Source:
        """The module of a request for a GPU, compiled if need be; never on the event loop.

        Raises PtxError, CompileError, CompilerMissingError, NotIsolatedError, and ServiceError
        ``too-large``.
        """
        if request.ptx is not None:
            return Source(self._modules.read(request.ptx))
        assert request.cuda is not None
        code = (request.cuda.removeprefix("\ufeff"), gpu.compute_capability)
        rest = (request.headers, request.compiler_options)
        cuda = self._compile(*code, *rest)
        known = self._modules.read(cuda.compiled.ptx)
        named = request.kernel
        if named is not None and "<" in named and not _holds(known, named):
            asked = arguments.qualified(cuda.whole, named)
            cuda = self._compile(*code, *rest, instances=(asked,))
            known = self._modules.read(cuda.compiled.ptx)
        if not known.module.kernels and not cuda.kernels:
            raise errors.KernelError(
                "the source has no __global__ function: name the file that holds the kernel. What "
                "libraries launch is told by `wattcast operator` or, of a profiler's trace, by "
                "`wattcast app`",
                known=[],
            )
        if not known.module.kernels:
            names = ", ".join(dict.fromkeys(kernel.kernel for kernel in cuda.kernels))
            example = arguments.example_instance(cuda.whole, cuda.kernels[0].kernel)
            raise errors.KernelError(
                f"nothing instantiates the kernel templates of the source: {names}. Name an "
                f"instance (--kernel), such as '{example}'",
                known=[kernel.kernel for kernel in cuda.kernels],
            )
        return Source(known, cuda)

    @property
    def may_compile(self) -> bool:
        """Whether compilers may be given sources and PTX: they are isolated, or need not be."""
        return not self._isolation_needed or in_force()

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

    def _compile(
        self,
        text: str,
        capability: str,
        headers: Mapping[str, str],
        options: Sequence[str],
        instances: Sequence[str] = (),
    ) -> CudaSource:
        sha256 = self._sha256(text, headers)
        rest = (*sorted(headers.items()), tuple(options), tuple(instances))

        def make() -> CudaSource:
            try:
                made = compile_cuda(
                    text, _pair(capability), limits=self._limits,
                    headers=headers, options=options, instances=instances,
                )  # fmt: skip
            except CompileError as error:
                raise _with_errors(error) from None
            return CudaSource(text, sha256, made, headers, tuple(options))

        alone = not headers and not options and not instances
        key = sha256 if alone else hashlib.sha256(repr((sha256, rest)).encode()).hexdigest()
        return self._compiled.get_or_make((key, capability), make)

    def _sha256(self, text: str, headers: Mapping[str, str] = NO_HEADERS) -> str:
        """Of a source that may be compiled."""
        if not self.may_compile:
            raise NotIsolatedError(
                f"CUDA source is not compiled by this service: {NOT_ISOLATED}, so a source could "
                "read files of the machine. Compile it yourself and send the PTX (nvcc -ptx)"
            )
        try:
            encoded = text.encode()
            size = len(encoded) + sum(len(header.encode()) for header in headers.values())
        except UnicodeEncodeError as error:
            line = text.count("\n", 0, error.start) + 1
            raise _with_errors(CompileError("not Unicode text", line=line)) from error
        if size > MOST_CUDA_BYTES:
            raise errors.ServiceError(
                "too-large",
                f"the CUDA source has {size} bytes, headers included; it may have at most "
                f"{MOST_CUDA_BYTES}",
            )
        return hashlib.sha256(encoded).hexdigest()


def _holds(known: KnownModule, kernel: str) -> bool:
    with suppress(errors.KernelError):
        return bool(known.module.kernel(kernel))
    return False


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
