"""The true register count: what ptxas allocates for a compute capability."""

from __future__ import annotations

import re
import signal
import tempfile
from dataclasses import dataclass
from pathlib import Path

from wattcast.features.cuda.isolation import Limits, run_limited
from wattcast.features.cuda.toolchain import CUDA_TARGETS, find_ptxas, ptxas_files
from wattcast.features.errors import GivenUpError

LIMITS = Limits(seconds=10)
"""Some hundred times what the largest fixture kernel takes."""

KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
"""Exit codes of what somebody else ended, as a kernel short of memory does."""


@dataclass(frozen=True, slots=True)
class PtxasReport:
    """What ptxas says of one kernel: registers per thread, bytes per thread, bytes per block.

    ``target`` is the compute capability it was assembled for (``70`` is 7.0), which is a newer
    one than asked for where ptxas no longer supports that.
    """

    registers_per_thread: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    static_shared_bytes: int
    target: int

    @property
    def spills(self) -> bool:
        """Whether values go to local memory because registers do not suffice."""
        return self.spill_store_bytes > 0 or self.spill_load_bytes > 0


_FUNCTION = re.compile(r"Compiling entry function '([^']+)' for")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+)(?:\+\d+)? bytes smem")


def measure_resources(
    ptx: str,
    entry: str,
    compute_capability: tuple[int, int],
    *,
    most_registers: int | None = None,
    ptxas: Path | None = None,
    limits: Limits | None = None,
) -> PtxasReport | None:
    """Assemble ``entry`` and read what it uses; ``None`` without ptxas or if it refuses the PTX.

    ``most_registers`` per thread is the cap that ``-maxrregcount`` sets.

    A refusal (PTX newer than this ptxas, a target it does not know) is no error of the user's:
    the caller falls back to the liveness estimate and says so. What another run might assemble is
    given up instead (GivenUpError), so that the same kernel always has the same registers.
    """
    ptxas = ptxas or find_ptxas()
    if ptxas is None:
        return None
    wanted = compute_capability[0] * 10 + compute_capability[1]
    asked = re.search(r"^\s*\.target\s+sm_(\d+)([af]?)", ptx, re.M)
    least = max(wanted, int(asked[1]) if asked else 0)
    target = next((known for known in CUDA_TARGETS if known >= least), None)
    if target is None:
        return None
    # PTX of one architecture alone (sm_90a) is assembled for that and nothing else.
    alone = asked[2] if asked and int(asked[1]) == target else ""
    with tempfile.TemporaryDirectory(prefix="wattcast-") as name:
        folder = Path(name)
        (folder / "kernel.ptx").write_text(ptx, encoding="utf-8")
        command = [str(ptxas), f"-arch=sm_{target}{alone}", "-v", "--entry", entry]
        if most_registers is not None:
            command.append(f"--maxrregcount={most_registers}")
        command += ["kernel.ptx", "-o", "kernel.cubin"]
        done = run_limited(command, folder, limits or LIMITS, ptxas_files(ptxas))
    if done.timed_out or done.not_isolated or done.code in KILLED:
        raise GivenUpError(
            "ptxas could not tell the registers of this kernel this time. Try again, or give "
            "registers_per_thread"
        )
    if done.code != 0:
        return None
    return _read(done.stdout + done.stderr, entry, target)


def _read(log: str, entry: str, target: int) -> PtxasReport | None:
    parts = _FUNCTION.split(log)
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        registers = _REGISTERS.search(text)
        if name != entry or registers is None:
            continue
        stack, shared = _STACK.search(text), _SHARED.search(text)
        frame, stores, loads = map(int, stack.groups()) if stack else (0, 0, 0)
        static = int(shared[1]) if shared else 0
        return PtxasReport(int(registers[1]), frame, stores, loads, static, target)
    return None
