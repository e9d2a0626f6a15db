// Matrix units through mma, in the shapes and types of compute capability 8.0 and later:
// 16 products an iteration in 4 chains.
// Chains start and end at different values and places, or assemblers make one of them.
// target: 8.0

#include "micro.h"

#define GET(p, at) "ld.global.u32 " p ", [%1+" at "];\n\t"
#define MMA(NAME, A, B, SUM, FIRST, BODY, KEEP) \
    extern "C" __global__ void NAME(unsigned* out, const unsigned* in, unsigned n) { \
        unsigned* to = out + 16 * THREAD; \
        const unsigned* from = in + threadIdx.x; \
        asm volatile("{\n\t.reg .b32 a<4>, b<4>;\n\t.reg " SUM " c<4>, d<4>, e<4>, f<4>;\n\t" \
                     A B FIRST LOOP("%2", BODY) "\n\t" KEEP "}" \
                     :: "l"(to), "l"(from), "r"(n) : "memory"); \
    }
#define EACH(OP) OP("c") OP("d") OP("e") OP("f")
#define START(OP) OP("c", "0") OP("d", "1") OP("e", "2") OP("f", "3")
#define END(OP) OP("c", "0") OP("d", "16") OP("e", "32") OP("f", "48")
#define A4 GET("a0", "0") GET("a1", "4096") GET("a2", "8192") GET("a3", "12288")
#define B2 GET("b0", "16384") GET("b1", "20480")
#define START_F32(p, v) "cvt.rn.f32.s32 " p "0, " v ";\n\tcvt.rn.f32.s32 " p "1, " v ";\n\t" \
    "cvt.rn.f32.s32 " p "2, " v ";\n\tcvt.rn.f32.s32 " p "3, " v ";\n\t"
#define START_S32(p, v) "mov.b32 " p "0, " v ";\n\tmov.b32 " p "1, " v ";\n\t" \
    "mov.b32 " p "2, " v ";\n\tmov.b32 " p "3, " v ";\n\t"
#define KEEP_F32(p, at) "st.global.v4.f32 [%0+" at "], {" p "0, " p "1, " p "2, " p "3};\n\t"
#define KEEP_S32(p, at) "st.global.v4.b32 [%0+" at "], {" p "0, " p "1, " p "2, " p "3};\n\t"
#define FOUR(p) "{" p "0, " p "1, " p "2, " p "3}"
#define PRODUCT(OPCODE, p) OPCODE " " FOUR(p) ", " FOUR("a") ", {b0, b1}, " FOUR(p) ";\n\t"
#define MMA_F16(p) PRODUCT("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", p)
#define MMA_BF16(p) PRODUCT("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", p)
#define MMA_TF32(p) PRODUCT("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", p)
#define MMA_S8(p) PRODUCT("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32", p)
MMA(mma_f16_i1, A4, B2, ".f32", START_F32("c", "0"), R16(MMA_F16("c")), KEEP_F32("c", "0"))
MMA(mma_f16_i4, A4, B2, ".f32", START(START_F32), R4(EACH(MMA_F16)), END(KEEP_F32))
MMA(mma_bf16_i4, A4, B2, ".f32", START(START_F32), R4(EACH(MMA_BF16)), END(KEEP_F32))
MMA(mma_tf32_i4, A4, B2, ".f32", START(START_F32), R4(EACH(MMA_TF32)), END(KEEP_F32))
MMA(mma_s8_i4, A4, B2, ".b32", START(START_S32), R4(EACH(MMA_S8)), END(KEEP_S32))

#define GET64(p, at) "ld.global.f64 " p ", [%1+" at "];\n\t"
#define MMA_F64(p) "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {" p "0, " p "1}, {g0}, {g1}, {" \
    p "0, " p "1};\n\t"
#define START_F64(p, v) "cvt.rn.f64.s32 " p "0, " v ";\n\tcvt.rn.f64.s32 " p "1, " v ";\n\t"
#define KEEP_F64(p, at) "st.global.v2.f64 [%0+" at "], {" p "0, " p "1};\n\t"
extern "C" __global__ void mma_f64_i4(double* out, const double* in, unsigned n) {
    double* to = out + 8 * THREAD;
    const double* from = in + threadIdx.x;
    asm volatile("{\n\t.reg .f64 g<2>, c<2>, d<2>, e<2>, f<2>;\n\t" GET64("g0", "0")
                 GET64("g1", "8192") START(START_F64) LOOP("%2", R4(EACH(MMA_F64))) "\n\t"
                 END(KEEP_F64) "}" :: "l"(to), "l"(from), "r"(n) : "memory");
}
