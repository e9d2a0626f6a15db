// Matrix units through wmma: 16 products of 16 x 16 x 16 an iteration, in 1, 2 or 4 chains.
// Chains start and end at different values and places, or assemblers make one of them.
// target: 7.0

#include "micro.h"

#define REGS8(p) "{" p "0, " p "1, " p "2, " p "3, " p "4, " p "5, " p "6, " p "7}"
#define REGS4(p) "{" p "0, " p "1, " p "2, " p "3}"
#define TILES \
    "wmma.load.a.sync.aligned.row.m16n16k16.global.f16 " REGS8("a") ", [%1], 16;\n\t" \
    "wmma.load.b.sync.aligned.col.m16n16k16.global.f16 " REGS8("b") ", [%1+512], 16;\n\t"
#define F32(d) "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 " \
    REGS8(d) ", " REGS8("a") ", " REGS8("b") ", " REGS8(d) ";\n\t"
#define F16(d) "wmma.mma.sync.aligned.row.col.m16n16k16.f16.f16 " \
    REGS4(d) ", " REGS8("a") ", " REGS8("b") ", " REGS4(d) ";\n\t"
#define C1(OP) R16(OP("c"))
#define C2(OP) R8(OP("c") OP("d"))
#define C4(OP) R4(OP("c") OP("d") OP("e") OP("f"))
#define START32(p, v) \
    "cvt.rn.f32.s32 " p "0, " v ";\n\tcvt.rn.f32.s32 " p "1, " v ";\n\t" \
    "cvt.rn.f32.s32 " p "2, " v ";\n\tcvt.rn.f32.s32 " p "3, " v ";\n\t" \
    "cvt.rn.f32.s32 " p "4, " v ";\n\tcvt.rn.f32.s32 " p "5, " v ";\n\t" \
    "cvt.rn.f32.s32 " p "6, " v ";\n\tcvt.rn.f32.s32 " p "7, " v ";\n\t"
#define START16(p, v) "mov.b32 " p "0, " v ";\n\tmov.b32 " p "1, " v ";\n\t" \
    "mov.b32 " p "2, " v ";\n\tmov.b32 " p "3, " v ";\n\t"
#define KEEP32(p, at) \
    "wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%0+" at "], " REGS8(p) ", 16;\n\t"
#define KEEP16(p, at) \
    "wmma.store.d.sync.aligned.row.m16n16k16.global.f16 [%0+" at "], " REGS4(p) ", 16;\n\t"

// Each warp keeps its sums in a place of its own.
#define WMMA(NAME, TYPE, BODY, FIRST, KEEP) \
    extern "C" __global__ void NAME(float* out, const unsigned short* in, unsigned n) { \
        float* to = out + (THREAD / 32) * 1024; \
        const unsigned short* from = in + (threadIdx.x / 32) * 512; \
        asm volatile("{\n\t.reg .b32 a<8>, b<8>;\n\t.reg " TYPE " c<8>, d<8>, e<8>, f<8>;\n\t" \
                     TILES FIRST LOOP("%2", BODY) "\n\t" KEEP "}" \
                     :: "l"(to), "l"(from), "r"(n) : "memory"); \
    }
#define START2(OP) OP("c", "0") OP("d", "1")
#define START4(OP) START2(OP) OP("e", "2") OP("f", "3")
#define END2(OP) OP("c", "0") OP("d", "1024")
#define END4(OP) END2(OP) OP("e", "2048") OP("f", "3072")
WMMA(wmma_f32_i1, ".f32", C1(F32), START32("c", "0"), KEEP32("c", "0"))
WMMA(wmma_f32_i2, ".f32", C2(F32), START2(START32), END2(KEEP32))
WMMA(wmma_f32_i4, ".f32", C4(F32), START4(START32), END4(KEEP32))
WMMA(wmma_f16_i4, ".b32", C4(F16), START4(START16), END4(KEEP16))
