"""Synthetic PTX of a chosen size, shaped like what nvcc prints."""

from __future__ import annotations

HEADER = ".version 8.0\n.target sm_70\n.address_size 64\n\n"


def kernel(instructions: int, name: str = "synthetic", blocks: int | None = None) -> str:
    """PTX of one kernel with about ``instructions`` instructions in ``blocks`` basic blocks.

    Blocks end in forward conditional branches; every fourth one is a self loop. Registers
    are defined once and used later, as nvcc's output does.
    """
    blocks = blocks or max(1, instructions // 25)
    per_block = max(4, instructions // blocks)
    lines = [
        f".visible .entry {name}(",
        f"\t.param .u64 {name}_param_0,",
        f"\t.param .u32 {name}_param_1",
        ")",
        "{",
        f"\t.reg .pred \t%p<{blocks + 2}>;",
        f"\t.reg .f32 \t%f<{instructions + 8}>;",
        f"\t.reg .b32 \t%r<{instructions + 8}>;",
        f"\t.reg .b64 \t%rd<{instructions + 8}>;",
        "",
        f"\tld.param.u64 \t%rd1, [{name}_param_0];",
        f"\tld.param.u32 \t%r1, [{name}_param_1];",
        "\tmov.u32 \t%r2, %ctaid.x;",
        "\tmov.u32 \t%r3, %ntid.x;",
        "\tmov.u32 \t%r4, %tid.x;",
        "\tmad.lo.s32 \t%r5, %r2, %r3, %r4;",
        "\tcvta.to.global.u64 \t%rd2, %rd1;",
        "\tmul.wide.s32 \t%rd3, %r5, 4;",
        "\tadd.s64 \t%rd4, %rd2, %rd3;",
        "\tmov.f32 \t%f1, 0f3F800000;",
        "\tmov.f32 \t%f2, 0f40000000;",
    ]
    body = (
        "\tadd.s32 \t%r{a}, %r{b}, 7;",
        "\tfma.rn.f32 \t%f{a}, %f{c}, %f{d}, %f1;",
        "\tld.global.f32 \t%f{a}, [%rd4+{o}];",
        "\tmul.f32 \t%f{a}, %f{c}, 0f3F000000;",
        "\tshl.b32 \t%r{a}, %r{b}, 2;",
        "\tst.global.f32 \t[%rd4+{o}], %f{c};",
    )
    last_r, last_f, register = 5, 2, 6
    for block in range(blocks):
        lines.append(f"\n$L__BB0_{block + 1}:")
        for step in range(per_block - 2):
            form = body[step % len(body)]
            lines.append(
                form.format(a=register, b=last_r, c=last_f, d=max(1, last_f - 1), o=4 * step)
            )
            if "%r{a}" in form:
                last_r = register
            elif "%f{a}" in form:
                last_f = register
            register += 1
        lines.append(f"\tsetp.lt.s32 \t%p{block + 1}, %r{last_r}, %r1;")
        target = block + 1 if block % 4 == 3 else min(block + 2, blocks + 1)
        lines.append(f"\t@%p{block + 1} bra \t$L__BB0_{target};")
    lines += [f"\n$L__BB0_{blocks + 1}:", "\tret;", "}", ""]
    return HEADER + "\n".join(lines)


def module(megabytes: float) -> str:
    """A module of about ``megabytes`` MB holding kernels of 400 instructions each."""
    parts = [HEADER]
    size = 0
    number = 0
    while size < megabytes * 1e6:
        text = kernel(400, f"kernel_{number}").removeprefix(HEADER)
        parts.append(text)
        size += len(text)
        number += 1
    return "".join(parts)
