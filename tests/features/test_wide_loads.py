"""Loads from shared memory that ptxas joins into wider ones."""

from __future__ import annotations

import pytest

from studies.machine_code import find_nvdisasm, machine_lines
from tests.fixtures.tables import table
from wattcast.features.analysis import analyse
from wattcast.features.cuda.isolation import find_ptxas
from wattcast.features.gpus import load_gpu
from wattcast.features.launch import Launch
from wattcast.features.machine_code import machine_code
from wattcast.features.ptx import read_module
from wattcast.features.ptx.ir import Module
from wattcast.features.wide_loads import joined_loads

HEAD = table("bodies", "wide_loads")["head"]
SUM = "add.f32 %f5, %f1, %f2; add.f32 %f6, %f5, %f3; add.f32 %f7, %f6, %f4;"
END = "st.global.f32 [%rd1], %f7; ret; }\n"
FOUR = "".join(f"ld.shared.f32 %f{n + 1}, [%r5+{4 * n}];" for n in range(4))

CASES = [
    (4, FOUR + SUM, [4, 4, 4, 4]),
    # aligned to eight bytes alone
    (3, FOUR + SUM, [2, 2, 2, 2]),
    (2, FOUR + SUM, [1, 1, 1, 1]),
    # three of four words, two of four
    (4, FOUR.replace("+12", "+16") + SUM, [3, 3, 3, 1]),
    (4, FOUR.replace("+12", "+28").replace("+4", "+20") + SUM, [1, 1, 1, 1]),
    # a store or a barrier between them
    (4, FOUR.replace("ld.shared.f32 %f3", "st.shared.f32 [%r5+64], %f1;ld.shared.f32 %f3") + SUM,
     [2, 2, 2, 2]),
    (4, FOUR.replace("ld.shared.f32 %f3", "bar.sync 0;ld.shared.f32 %f3") + SUM, [2, 2, 2, 2]),
    # 16 bytes of two doubles
    (4, "ld.shared.f64 %fd1, [%r5]; ld.shared.f64 %fd2, [%r5+8]; add.f64 %fd3, %fd1, %fd2;"
     "cvt.rn.f32.f64 %f7, %fd3;", [2, 2]),
    # 16 bytes of two vectors
    (4, "ld.shared.v2.f32 {%f1, %f2}, [%r5]; ld.shared.v2.f32 {%f3, %f4}, [%r5+8];" + SUM, [2, 2]),
]  # fmt: skip


def module_of(shift: int, text: str) -> Module:
    return read_module((HEAD.replace("SHIFT", str(shift)) + text + END).replace(";", ";\n"))


@pytest.mark.parametrize(("shift", "text", "joined"), CASES)
def test_loads_that_share_a_wide_one(shift: int, text: str, joined: list[int]) -> None:
    body = module_of(shift, text).functions[0].body
    loads = [one.position for one in body.instructions if one.opcode.startswith("ld.shared")]
    assert joined_loads(body).loads[loads].tolist() == joined
    assert machine_code(body).instructions[loads].tolist() == [1 / one for one in joined]


@pytest.mark.parametrize(("shift", "text", "joined"), CASES)
def test_ptxas_makes_as_many(shift: int, text: str, joined: list[int]) -> None:
    if find_ptxas() is None or find_nvdisasm() is None:
        pytest.skip("needs NVIDIA's ptxas and nvdisasm (requirements-cuda.lock)")
    source = (HEAD.replace("SHIFT", str(shift)) + text + END).replace(";", ";\n")
    module = read_module(source)
    lines = machine_lines(source, module, "sm_75")["k"]
    body = module.functions[0].body
    loads = [one.line for one in body.instructions if one.opcode.startswith("ld.shared")]
    assert sum(lines[line] for line in loads) == sum(1 / one for one in joined)


def test_a_wide_load_takes_a_pass_for_each_quarter_of_the_warp() -> None:
    """The lanes' sixteen bytes lie side by side: four passes for one request, as by scalar loads;
    where all lanes read the same, half as many."""

    def shared(text: str) -> tuple[float, float]:
        launch, gpu = Launch.of(1, 32, arguments={"n": 0}), load_gpu("tesla-v100")
        activity = analyse(module_of(4, text), "k", launch, gpu).activity
        return activity.shared_requests, activity.shared_transactions

    store, stored = shared("mov.f32 %f7, 0f00000000;")
    requests, passes = shared(FOUR + SUM)
    assert (requests - store, passes - stored) == (1, 4)
    requests, passes = shared(FOUR.replace("%r5", "%r3") + SUM)
    assert (requests - store, passes - stored) == (1, 2)
