"""Synthetic PTX of a chosen size, shaped like what nvcc prints."""

from __future__ import annotations

HEADER = ".version 8.0\n.target sm_70\n.address_size 64\n\n"


def kernel(instructions: int, name: str = "synthetic", blocks: int | None = None) -> str:
    """PTX of one kernel with about ``instructions`` instructions in ``blocks`` basic blocks.

    Blocks end in forward conditional branches; every fourth one is a loop of ten rounds. Registers
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
        f"\t.reg .b32 \t%r<{instructions + 8}>, %i<{blocks}>;",
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
        "\tsub.s32 \t%r{a}, %r{b}, 5;",
        "\tst.global.f32 \t[%rd4+{o}], %f{c};",
    )
    last_r, last_f, register = 5, 2, 6
    for block in range(blocks):
        loop = block % 4 == 3
        if loop:
            lines.append(f"\tmov.u32 \t%i{block}, 0;")
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
        compared = f"%r{last_r}, %r1"
        if loop:
            lines.append(f"\tadd.s32 \t%i{block}, %i{block}, 1;")
            compared = f"%i{block}, 10"
        lines.append(f"\tsetp.lt.s32 \t%p{block + 1}, {compared};")
        target = block + 1 if loop else min(block + 2, blocks + 1)
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


def tensor_kernel(instructions: int) -> str:
    """A staged loop as Triton prints for attention: copies, ldmatrix, mma, exponentials, unrolled,
    of as many rounds as the block's number says (causal), with about ``instructions``."""
    lines = []
    for number in range(instructions // 20):
        at = 512 * (number % 32)
        if number % 16 == 0:
            lines.append(f"cp.async.cg.shared.global [%r9+{at}], [%rd5+{at}], 16;")
        lines += [
            f"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r10, %r11, %r12, %r13}}, [%r8+{at}];",
            f"ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {{%r14, %r15}}, [%r9+{at}];",
        ]
        for product in range(8):
            c = ", ".join(f"%f{4 * (product % 4) + i}" for i in range(4))
            lines.append(
                "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                f"{{{c}}}, {{%r10, %r11, %r12, %r13}}, {{%r14, %r15}}, {{{c}}};"
            )
        for value in range(5):
            lines += [
                f"mul.f32 %f{20 + value}, %f{value}, 0f3F000000;",
                f"ex2.approx.ftz.f32 %f{20 + value}, %f{20 + value};",
            ]
    body = "\n\t".join(lines)
    return f""".version 8.0
.target sm_80
.address_size 64
.visible .entry tensor(.param .u64 in, .param .u64 out)
{{
	.reg .pred %p<2>; .reg .b32 %r<24>; .reg .b64 %rd<8>; .reg .f32 %f<32>;
	.shared .align 128 .b8 tile[32768];
	ld.param.u64 %rd1, [in]; ld.param.u64 %rd2, [out];
	mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x;
	mov.u32 %r4, tile; and.b32 %r5, %r1, 31; shl.b32 %r6, %r5, 4; add.u32 %r8, %r4, %r6;
	add.u32 %r9, %r8, 512; mad.lo.u32 %r7, %r2, %r3, %r1; mul.wide.u32 %rd3, %r7, 16;
	add.u64 %rd5, %rd1, %rd3; mov.u32 %r16, 0;
$L__BB0_1:
	cp.async.wait_group 1; bar.sync 0;
	{body}
	cp.async.commit_group; add.u64 %rd5, %rd5, 65536;
	add.u32 %r16, %r16, 1; setp.le.u32 %p1, %r16, %r2; @%p1 bra $L__BB0_1;
	mul.wide.u32 %rd6, %r7, 4; add.u64 %rd7, %rd2, %rd6; st.global.f32 [%rd7], %f0;
	ret;
}}
"""
