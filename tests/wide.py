"""A kernel that keeps so many values alive that capped registers do not hold them."""

from __future__ import annotations


def wide(values: int, directives: str = "", *, rounds: int = 1, apart: bool = False) -> str:
    """PTX that loads ``values`` floats, waits for the block, and stores them multiplied.

    All of it ``rounds`` times; or ``apart``: a loop of so many rounds, which touches none of the
    values, stands between loads and stores.
    """
    loads = "\n".join(f" ld.global.f32 %f{n}, [%rd2+{512 * n}];" for n in range(values))
    stores = "\n".join(
        f" mul.f32 %f{values}, %f{n}, %f{n * 7 % values};\n"
        f" st.global.f32 [%rd2+{512 * n}], %f{values};"
        for n in reversed(range(values))
    )
    begin = " mov.u32 %r0, 0;\nNEXT:"
    end = f" add.u32 %r0, %r0, 1;\n setp.lt.u32 %p0, %r0, {rounds};\n @%p0 bra NEXT;"
    around, between = ("", ""), ""
    if apart:
        between = f"{begin}\n st.global.u32 [%rd2], %r0;\n{end}"
    elif rounds > 1:
        around = begin, end
    return f"""\
.version 8.0
.target sm_70
.address_size 64
.visible .entry wide(.param .u64 p0) {directives}
{{
 .reg .pred %p<1>;
 .reg .b32 %r<2>;
 .reg .f32 %f<{values + 1}>;
 .reg .b64 %rd<4>;
 ld.param.u64 %rd1, [p0];
 mov.u32 %r1, %tid.x;
 mul.wide.u32 %rd3, %r1, 4;
 add.s64 %rd2, %rd1, %rd3;
{around[0]}
{loads}
 bar.sync 0;
{between}
{stores}
{around[1]}
 ret;
}}
"""
