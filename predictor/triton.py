"""Triton kernels as requests: compiled ones, files of Triton's cache, configurations compiled here.

Triton compiles without a GPU, and kernels that are compiled already need no Triton.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

from wattcast.features import checked, cuda
from wattcast.features.cuda.isolation import PTXAS_READS
from wattcast.features.errors import DataError, LaunchError, MissingExtraError
from wattcast.features.gpus import GpuProfile
from wattcast.features.launch import WARP_SIZE
from wattcast.predictor.tuning_files import Configuration

OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg", "ptx_version")
"""What Triton is told beside constants; Triton's names (``triton.Config``)."""

ALIGNED = 16
"""Triton compiles another kernel where addresses and numbers are multiples of this; PyTorch's
tensors are."""

Grid = int | Sequence[int] | Callable[[Mapping[str, Any]], int | Sequence[int]]
"""Programs: as many, or a function of ``TritonKernel.settings``, as Triton's grids are."""


@dataclass(frozen=True)
class TritonKernel:
    """A compiled kernel.

    ``settings`` are Triton's metadata (``num_warps``, ``shared`` in bytes, ``num_ctas``...) and the
    constants where they are known; ``positions`` tell the PTX parameter of a named argument.
    """

    ptx: str
    settings: Mapping[str, Any]
    parameters: Mapping[str, Any]
    positions: Mapping[str, int] = field(default_factory=dict)
    registers_per_thread: int | None = None

    def request(self, grid: Grid, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Code and launch as requests hold them. A program is ``num_ctas`` blocks, a cluster.

        Raises LaunchError where the grid wants a constant that nobody knows.
        """
        try:
            programs = grid(self.settings) if callable(grid) else grid
        except KeyError as error:
            raise LaunchError(
                f"the grid is a function of {error}, which the compiled kernel does not tell: "
                f"it has {', '.join(sorted(self.settings))}",
                field="grid",
            ) from error
        dimensions = [programs] if isinstance(programs, int) else [int(each) for each in programs]
        dimensions[0] *= int(self.settings.get("num_ctas", 1))
        fixed = re.search(r"^\s*\.(?:reqntid|maxntid)\s+(\d+)", self.ptx, re.M)
        warps = int(self.settings.get("num_warps", 4))
        launch = {
            "grid": dimensions,
            "block": int(fixed[1]) if fixed else WARP_SIZE * warps,
            "dynamic_shared_bytes": int(self.settings.get("shared", 0)),
            "arguments": {
                str(self.positions.get(name, name)): value for name, value in arguments.items()
            },
        }
        asked: dict[str, Any] = {"ptx": self.ptx, "launch": launch}
        if "name" in self.settings:
            asked["kernel"] = self.settings["name"]
        if self.registers_per_thread is not None:
            asked["registers_per_thread"] = self.registers_per_thread
        return asked


def compiled(kernel: Any) -> TritonKernel:
    """A kernel as ``triton.compile``, ``warmup`` and a launch return it."""
    metadata = kernel.metadata
    told = metadata._asdict() if hasattr(metadata, "_asdict") else dict(vars(metadata))
    source = getattr(kernel, "src", None)
    names = list(getattr(getattr(source, "fn", None), "arg_names", ()))
    constants: dict[str, Any] = {}
    for key, value in dict(getattr(source, "constants", {})).items():
        at = key[0] if isinstance(key, tuple) else key
        constants[names[at] if isinstance(at, int) else at] = value
    signature = dict(getattr(source, "signature", {}))
    tensors = bool(told.get("tensordesc_meta"))
    positions: dict[str, int] = {}
    at = 0
    for name in names:
        if signature.get(name, "constexpr") != "constexpr" and name not in constants:
            positions[name] = at
            at += _words(str(signature[name]), tensors)
    return _known(kernel.asm["ptx"], told, constants, positions, kernel.asm.get("cubin"))


def _words(kind: str, tensors: bool) -> int:
    """PTX parameters of an argument: a descriptor brings shape and strides (Triton's
    ``expand_signature``), and two flags where it is no tensor map."""
    if not kind.startswith("tensordesc"):
        return 1
    axes = len(kind[kind.index("[") : kind.index("]")].split(","))
    return 1 + 2 * axes + (0 if tensors else 2)


def read_cache(folder: Path, kernel: str | None = None) -> list[TritonKernel]:
    """The kernels of a folder such as TRITON_CACHE_DIR: ``NAME.json`` beside ``NAME.ptx``.

    Triton's files hold neither constants nor names of arguments; objects ``constants`` and
    ``positions`` in the JSON are taken for them. Raises DataError where there is no kernel (of
    this name).
    """
    found = []
    for path in sorted(folder.rglob("*.json")):
        code = path.with_suffix(".ptx")
        if not code.is_file():
            continue
        try:
            told = checked.json_value(path.read_text(encoding="utf-8"), str(path))
            ptx = code.read_text(encoding="utf-8")
        except ValueError as error:
            raise DataError(f"{path}: {error}") from error
        if not isinstance(told, dict):
            raise DataError(f"{path}: expected a JSON object")
        if kernel is not None and told.get("name", path.stem) != kernel:
            continue
        constants = told.pop("constants", None) or {}
        positions = told.pop("positions", None) or {}
        cubin = path.with_suffix(".cubin")
        binary = cubin.read_bytes() if cubin.is_file() else None
        one = _known(ptx, told, constants, positions, binary)
        file = {"file": str(path.relative_to(folder))}
        found.append(replace(one, parameters={**one.parameters, **file}))
    if not found:
        named = "" if kernel is None else f" called {kernel}"
        raise DataError(f"{folder} holds no compiled Triton kernel{named} (NAME.ptx and NAME.json)")
    return found


def _known(
    ptx: str,
    told: Mapping[str, Any],
    constants: Mapping[str, Any],
    positions: Mapping[str, int],
    cubin: bytes | None,
) -> TritonKernel:
    options = {name: told[name] for name in OPTIONS if told.get(name) is not None}
    shown = {
        name: value for name, value in constants.items() if isinstance(value, int | float | str)
    }
    version = re.search(r"^\s*\.version\s+(\d+)\.(\d+)", ptx, re.M)
    beyond = version is None or (int(version[1]), int(version[2])) > PTXAS_READS
    registers, frame = (cubin and cubin_registers(cubin)) or (None, 0)
    if frame and not beyond and cuda.find_ptxas() is not None:
        registers = None  # ptxas tells what is spilled, which takes it as long as all else
    parameters = {**shown, **options, **shown}  # a constant may bear the name of an option
    return TritonKernel(ptx, {**told, **constants}, parameters, positions, registers)


def cubin_registers(cubin: bytes) -> tuple[int, int] | None:
    """Registers per thread of the one kernel of a cubin, and the bytes of its stack frame, in which
    spills lie: the upper byte of ``sh_info`` of its section ``.text``, EIATTR_FRAME_SIZE of its
    ``.nv.info`` (as ``cuobjdump -res-usage`` and ``-elf`` tell). ``None`` for what is no ELF.
    """
    registers, frame = 0, 0
    try:
        if cubin[:4] != b"\x7fELF":
            return None
        (start,) = struct.unpack_from("<Q", cubin, 0x28)
        size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
        headers = [struct.unpack_from("<IIQQQQII", cubin, start + n * size) for n in range(count)]
        text = headers[names][4]
        for name, _, _, _, at, length, _, info in headers:
            if cubin[text + name : text + name + 6] == b".text.":
                registers = int(info) >> 24
            elif cubin[text + name : text + name + 9] == b".nv.info\0":
                own = cubin[at : at + length]
                frame = struct.unpack_from("<I", own, own.index(FRAME_SIZE) + 8)[0]
    except (struct.error, IndexError, OverflowError, ValueError):
        return None
    return (registers, frame) if registers else None


FRAME_SIZE = bytes((4, 0x11, 8, 0))
"""EIATTR_FRAME_SIZE, a value of 8 bytes: which function, and its bytes."""


def compile_configurations(
    kernel: Any,
    gpu: GpuProfile,
    configurations: Sequence[Any] | None,
    signature: Mapping[str, str],
    constants: Mapping[str, Any],
    arguments: Mapping[str, Any],
) -> Iterator[TritonKernel | tuple[Configuration, cuda.CompileError]]:
    """A ``@triton.jit`` function compiled for ``gpu`` with every configuration, in their order.

    ``configurations`` are ``triton.Config`` or mappings of constants and options; by default those
    of ``@triton.autotune``. ``signature`` are Triton's types by argument (``*fp16``, ``i32``);
    whole numbers and floats of ``arguments`` need none. What Triton cannot compile comes back with
    its reason. Raises MissingExtraError, and DataError for an argument without a type.
    """
    try:
        compiler = import_module("triton.compiler")
        targets = import_module("triton.backends.compiler")
    except ImportError as error:
        raise MissingExtraError("triton", "triton") from error
    if configurations is None:
        configurations = getattr(kernel, "configs", None) or [{}]
    while not hasattr(kernel, "params"):  # under autotune and heuristics
        kernel = kernel.fn
    major, minor = gpu.compute_capability.split(".")
    target = targets.GPUTarget("cuda", int(major) * 10 + int(minor), WARP_SIZE)
    for each in configurations:
        options, chosen = _configuration(each, kernel)
        types, given, attributes = _specialised(
            kernel, signature, {**constants, **chosen}, arguments
        )
        source = compiler.ASTSource(kernel, types, given, attributes)
        try:
            made = compiler.compile(source, target=target, options=options)
        except Exception as error:  # Triton's compilers raise what they like
            why = cuda.CompileError(f"Triton does not compile it: {str(error) or repr(error)}")
            yield Configuration({**chosen, **options}, None, None), why
        else:
            yield compiled(made)


def _configuration(given: Any, kernel: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options and constants of a ``triton.Config`` or a mapping. An option is both where the kernel
    has a parameter of its name, as in a launch of Triton."""
    own = {each.name for each in kernel.params}
    told = given
    if not isinstance(given, Mapping):
        told = {**{name: getattr(given, name, None) for name in OPTIONS}, **given.kwargs}
    options = {name: told[name] for name in OPTIONS if told.get(name) is not None}
    chosen = {k: v for k, v in told.items() if k not in OPTIONS or (k in own and v is not None)}
    return options, chosen


_Attributes = dict[tuple[int], list[list[str | int]]]


def _specialised(
    kernel: Any,
    signature: Mapping[str, str],
    constants: Mapping[str, Any],
    arguments: Mapping[str, Any],
) -> tuple[dict[str, str], dict[str, Any], _Attributes]:
    """Types, constants and attributes as Triton's own launch would find them: aligned pointers,
    numbers that are multiples of 16, and a 1 as a constant."""
    types: dict[str, str] = {}
    known: dict[str, Any] = {}
    attributes: _Attributes = {}
    for at, parameter in enumerate(kernel.params):
        name, value = parameter.name, arguments.get(parameter.name)
        whole = isinstance(value, int) and not isinstance(value, bool)
        special = not parameter.do_not_specialize
        if parameter.is_constexpr or name in constants or (whole and value == 1 and special):
            types[name] = "constexpr"
            known[name] = constants.get(name, 1 if value == 1 else None)
            if name not in constants and parameter.is_constexpr:
                if not parameter.has_default:
                    raise DataError(f"{name} is a constant of the kernel that nobody gives")
                known[name] = parameter.default
            continue
        kind = signature.get(name)
        if kind is None and isinstance(value, int | float):
            kind = ("i32" if -(2**31) <= value < 2**31 else "i64") if whole else "fp32"
        if kind is None:
            raise DataError(f"argument {name} has no type: give signature={{'{name}': '*fp16'}}")
        types[name] = kind
        multiple = isinstance(value, int) and whole and value % ALIGNED == 0
        multiple = multiple and not parameter.do_not_specialize_on_alignment
        if special and (kind.startswith("*") or multiple):
            attributes[(at,)] = [["tt.divisibility", ALIGNED]]
    return types, known, attributes


def candidates(
    kernels: Iterable[TritonKernel | tuple[Configuration, cuda.CompileError]],
    grid: Grid,
    arguments: Mapping[str, Any],
    request: Mapping[str, Any],
) -> Iterator[tuple[Configuration, Mapping[str, Any] | cuda.CompileError]]:
    """Configurations and what to ask of each, as ``wattcast.predictor.rank.ranked`` takes them."""
    for one in kernels:
        if isinstance(one, tuple):
            yield one
            continue
        named = {k: v for k, v in arguments.items() if not one.positions or k in one.positions}
        configuration = Configuration(one.parameters, None, None)
        yield configuration, {**request, **one.request(grid, named)}


# --- launches ------------------------------------------------------------------------------------

TYPES: Mapping[str, str] = checked.read_toml(Path(__file__).with_suffix(".toml"))["types"]
"""Triton's types by dtype of PyTorch, NumPy or CuPy (``triton._utils.type_canonicalisation_dict``
of Triton 3.9)."""

LAUNCH_OPTIONS = (*OPTIONS, "grid", "stream", "warmup")
"""Keywords of a launch that are no arguments of the kernel."""


def launched(
    kernel: Any, gpu: GpuProfile, grid: Grid, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> Iterator[tuple[Configuration, dict[str, Any] | cuda.CompileError]]:
    """What to ask of ``kernel[grid](*arguments, **keywords)``: a configuration with its request, or
    why Triton does not compile it. One, or all of ``@triton.autotune``.

    Types and alignment are taken as a launch takes them, but pointers to be aligned. Raises
    LaunchError for arguments that do not fit the kernel, DataError for one of an unknown kind,
    MissingExtraError without Triton.
    """
    configurations: list[Any] = [{}]
    heuristics: list[Mapping[str, Callable[[Mapping[str, Any]], Any]]] = []
    inner = kernel
    while not hasattr(inner, "params"):
        configurations = list(getattr(inner, "configs", None) or configurations)
        values = getattr(inner, "values", None)
        if isinstance(values, Mapping):
            heuristics.append(values)
        if not hasattr(inner, "fn"):
            raise DataError(f"{type(kernel).__name__} is no @triton.jit function")
        inner = inner.fn
    named, options = _bound(inner, arguments, keywords)
    for each in configurations:
        chosen_options, chosen = _configuration(each, inner)
        known = {**named, **chosen}
        for values in heuristics:
            known |= {name: rule(known) for name, rule in values.items()}
        types, constants, numbers = _typed(inner, known)
        given = {**options, **chosen_options}
        for one in compile_configurations(inner, gpu, [given], types, constants, numbers):
            shown = {**chosen, **options, **chosen_options}
            if isinstance(one, tuple):
                yield Configuration(shown, None, None), one[1]
                continue
            programs = grid({**known, **options}) if callable(grid) else grid
            hints = {
                name: int(value) if isinstance(value, bool) else value
                for name, value in numbers.items()
                if name in one.positions
            }
            yield Configuration(one.parameters, None, None), one.request(programs, hints)


def _bound(
    kernel: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments by name with their defaults, and options. Raises LaunchError as Python would
    refuse the call; constants may still come from a configuration."""
    names = [each.name for each in kernel.params]
    options = {name: keywords[name] for name in OPTIONS if keywords.get(name) is not None}
    if len(arguments) > len(names):
        raise LaunchError(
            f"the kernel takes {len(names)} arguments, not {len(arguments)}", field="arguments"
        )
    named = dict(zip(names, arguments, strict=False))
    for name, value in keywords.items():
        if name in LAUNCH_OPTIONS and name not in names:
            continue
        if name not in names:
            raise LaunchError(f"the kernel has no argument {name}", field="arguments")
        if name in named:
            raise LaunchError(f"argument {name} is given twice", field="arguments")
        named[name] = value
    for each in kernel.params:
        if each.name in named:
            continue
        if each.has_default:
            named[each.name] = each.default
        elif not each.is_constexpr:
            raise LaunchError(f"argument {each.name} is not given", field="arguments")
    return named, options


def _typed(
    kernel: Any, known: Mapping[str, Any]
) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
    """Triton's types, constants, and numbers with hints about arrays, by name."""
    types: dict[str, str] = {}
    constants: dict[str, Any] = {}
    numbers: dict[str, Any] = {}
    for each in kernel.params:
        name = each.name
        if name not in known:
            continue
        value = known[name]
        if each.is_constexpr or value is None:
            constants[name] = value
        elif hasattr(value, "dtype") and getattr(value, "shape", None) is not None:
            types[name] = "*" + _dtype(name, value)
            numbers[name] = {"elements": max(1, prod(int(size) for size in value.shape))}
        elif isinstance(value, bool):
            types[name], numbers[name] = "u1", value
        elif isinstance(value, int | float):
            numbers[name] = value
        else:
            raise DataError(
                f"argument {name} is a {type(value).__name__}: an estimate takes arrays (with "
                "dtype and shape), numbers and constants"
            )
        annotated = getattr(each, "annotation_type", "")
        if annotated and (name in types or name in numbers):
            types[name] = annotated
    return types, constants, numbers


def _dtype(name: str, array: Any) -> str:
    told = str(array.dtype).rpartition(".")[2]
    if told not in TYPES:
        raise DataError(f"argument {name} is an array of {told}, which Triton does not know")
    return TYPES[told]
