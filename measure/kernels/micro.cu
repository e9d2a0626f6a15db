// Microbenchmarks for compute capability 5.0 and later. What each executes is stated in
// measure/micro.py.
// target: 5.0

#include "micro.h"

#define FMA_F32(x) "fma.rn.f32 " x ", " x ", %8, %9;\n\t"
#define FMA_F64(x) "fma.rn.f64 " x ", " x ", %8, %9;\n\t"
#define MAD_S32(x) "mad.lo.s32 " x ", " x ", %8, %9;\n\t"
#define SHF_B32(x) "shf.l.wrap.b32 " x ", " x ", %8, %9;\n\t"
#define EX2_F32(x) "ex2.approx.ftz.f32 " x ", " x ";\n\t"
#define ADD_S32(x, y) "add.s32 " x ", " x ", " y ";\n\tadd.s32 " y ", " y ", " x ";\n\t"
CHAINS(fma_f32, float, "f", FMA_F32)
ARITHMETIC(fma_f32_i3, float, "f", I3(FMA_F32))
ARITHMETIC(fma_f32_i8, float, "f", I8(FMA_F32))
CHAINS(fma_f64, double, "d", FMA_F64)
CHAINS(mad_s32, unsigned, "r", MAD_S32)
CHAINS(shf_b32, unsigned, "r", SHF_B32)
CHAINS(ex2_f32, float, "f", EX2_F32)
ARITHMETIC(add_s32_i1, unsigned, "r", P1(ADD_S32))
ARITHMETIC(add_s32_i2, unsigned, "r", P2(ADD_S32))
ARITHMETIC(add_s32_i4, unsigned, "r", P4(ADD_S32))

// One chain only: for latencies.
#define UNARY(OPCODE) R64(OPCODE " %0, %0;\n\t")
#define BINARY(OPCODE) R64(OPCODE " %0, %0, %8;\n\t")
ARITHMETIC(add_f32_i1, float, "f", BINARY("add.rn.f32"))
ARITHMETIC(mul_f32_i1, float, "f", BINARY("mul.rn.f32"))
ARITHMETIC(add_f64_i1, double, "d", BINARY("add.rn.f64"))
ARITHMETIC(mul_f64_i1, double, "d", BINARY("mul.rn.f64"))
ARITHMETIC(rsqrt_f32_i1, float, "f", UNARY("rsqrt.approx.ftz.f32"))
ARITHMETIC(sqrt_f32_i1, float, "f", UNARY("sqrt.approx.ftz.f32"))
ARITHMETIC(lg2_f32_i1, float, "f", UNARY("lg2.approx.ftz.f32"))
ARITHMETIC(sin_f32_i1, float, "f", UNARY("sin.approx.ftz.f32"))
ARITHMETIC(div_f32_i1, float, "f", BINARY("div.rn.f32"))
ARITHMETIC(popc_b32_i1, unsigned, "r", UNARY("popc.b32"))
ARITHMETIC(mulhi_u32_i1, unsigned, "r", BINARY("mul.hi.u32"))
ARITHMETIC(prmt_b32_i1, unsigned, "r", R64("prmt.b32 %0, %0, %8, %9;\n\t"))
ARITHMETIC(shfl_b32_i1, unsigned, "r", R64("shfl.sync.idx.b32 %0, %0, %0, 31, -1;\n\t"))
ARITHMETIC(cvt_f32_i1, float, "f", "{\n\t.reg .b32 whole;\n\t"
           R32("cvt.rzi.s32.f32 whole, %0;\n\tcvt.rn.f32.s32 %0, whole;\n\t") "}\n\t")
ARITHMETIC(selp_s32_i1, unsigned, "r", "{\n\t.reg .pred lower;\n\t"
           R32("setp.lt.u32 lower, %0, %8;\n\tselp.b32 %0, %8, %9, lower;\n\t") "}\n\t")
ARITHMETIC(bar_i1, unsigned, "r", R16("bar.sync 0;\n\t"))
ARITHMETIC(fence_i1, unsigned, "r", R16("membar.gl;\n\t"))

// ---- Atomic operations on one word a thread (slots 32) or one for all (slots 1).
extern "C" __global__ void atom_global(unsigned* out, unsigned* cells, unsigned slots, unsigned n) {
    unsigned* cell = cells + THREAD % slots;
    unsigned x = threadIdx.x;
    asm volatile(LOOP("%2", R16("atom.global.add.u32 %0, [%1], %0;\n\t"))
                 : "+r"(x) : "l"(cell), "r"(n) : "memory");
    out[THREAD] = x;
}
extern "C" __global__ void red_global(unsigned* cells, unsigned slots, unsigned n) {
    unsigned* cell = cells + THREAD % slots;
    asm volatile(LOOP("%1", R16("red.global.add.u32 [%0], %1;\n\t"))
                 :: "l"(cell), "r"(n) : "memory");
}
extern "C" __global__ void atom_shared(unsigned* out, unsigned slots, unsigned n) {
    __shared__ unsigned cells[1024];
    cells[threadIdx.x] = 0;
    __syncthreads();
    unsigned place = (unsigned)__cvta_generic_to_shared(cells + threadIdx.x % slots);
    unsigned x = threadIdx.x;
    asm volatile(LOOP("%2", R16("atom.shared.add.u32 %0, [%1], %0;\n\t"))
                 : "+r"(x) : "r"(place), "r"(n) : "memory");
    out[THREAD] = x;
}

// ---- Shared memory. Every word holds its own address, `stride` words from lane to lane.
#define SHARED(NAME, BODY) \
    extern "C" __global__ void NAME(unsigned* out, unsigned stride, unsigned n) { \
        __shared__ unsigned words[4096]; \
        unsigned base = (unsigned)__cvta_generic_to_shared(words); \
        unsigned at = threadIdx.x * stride % 1024; \
        unsigned x0 = base + 4 * at; \
        unsigned x1 = x0 + 4096, x2 = x0 + 8192, x3 = x0 + 12288; \
        words[at] = x0, words[at + 1024] = x1, words[at + 2048] = x2, words[at + 3072] = x3; \
        __syncthreads(); \
        asm volatile(LOOP("%4", BODY) \
                     : "+r"(x0), "+r"(x1), "+r"(x2), "+r"(x3) : "r"(n) : "memory"); \
        out[THREAD] = x0 + x1 + x2 + x3; \
    }
#define LD_SHARED(x) "ld.shared.u32 " x ", [" x "];\n\t"
#define ST_SHARED(x) "st.shared.u32 [" x "], " x ";\n\t"
SHARED(ld_shared_i1, I1(LD_SHARED))
SHARED(ld_shared_i2, I2(LD_SHARED))
SHARED(ld_shared_i4, I4(LD_SHARED))
SHARED(st_shared_i4, I4(ST_SHARED))

// ---- Chase through a ring of addresses, on from where the last launch stopped.
#define CHASE(NAME, OPCODE) \
    extern "C" __global__ void NAME(unsigned long long* reached, \
                                    const unsigned long long* ring, unsigned n) { \
        unsigned long long at = (unsigned long long)ring + reached[THREAD]; \
        asm volatile(LOOP("%1", R16(OPCODE " %0, [%0];\n\t")) : "+l"(at) : "r"(n) : "memory"); \
        reached[THREAD] = at - (unsigned long long)ring; \
    }
CHASE(chase_ca, "ld.global.ca.u64")
CHASE(chase_nc, "ld.global.nc.u64")
CHASE(chase_cg, "ld.global.cg.u64")

// ---- Streams of 16 bytes a thread. Offsets wrap at the footprint (mask: its bytes less 1).
// Four loads an iteration; every value is added to a sum, then MORE works on the sums.
#define NEXT "add.s64 off, off, %9;\n\tand.b64 off, off, %10;\n\tadd.s64 ptr, %8, off;\n\t"
#define SUM \
    "add.rn.f32 %0, %0, v0;\n\tadd.rn.f32 %1, %1, v1;\n\t" \
    "add.rn.f32 %2, %2, v2;\n\tadd.rn.f32 %3, %3, v3;\n\t"
#define STREAM(NAME, ACCESS, MORE) \
    extern "C" __global__ void NAME(float* out, const float* data, unsigned long long first, \
                                    unsigned long long step, unsigned long long mask, \
                                    unsigned n) { \
        const float* mine = data + 4 * threadIdx.x; \
        float x0 = mine[0], x1 = mine[1], x2 = mine[2], x3 = mine[3]; \
        float x4 = x0, x5 = x1, x6 = x2, x7 = x3; \
        asm volatile("{\n\t.reg .f32 v0, v1, v2, v3;\n\t.reg .b64 off, ptr;\n\t" \
                     "mov.u64 off, %12;\n\t" \
                     LOOP("%11", R4(NEXT ACCESS MORE)) "\n\t}" \
                     : "+f"(x0), "+f"(x1), "+f"(x2), "+f"(x3), "+f"(x4), "+f"(x5), "+f"(x6), \
                       "+f"(x7) \
                     : "l"(data), "l"(step), "l"(mask), "r"(n), \
                       "l"(first * blockIdx.x + 16ull * threadIdx.x) \
                     : "memory"); \
        out[THREAD] = x0 + x1 + x2 + x3 + x4 + x5 + x6 + x7; \
    }
#define LOAD(CACHE) "ld.global." CACHE ".v4.f32 {v0, v1, v2, v3}, [ptr];\n\t" SUM
#define STORE "st.global.v4.f32 [ptr], {%0, %1, %2, %3};\n\t"
#define NEGATE \
    "neg.f32 v0, v0;\n\tneg.f32 v1, v1;\n\tneg.f32 v2, v2;\n\tneg.f32 v3, v3;\n\t" \
    "st.global.v4.f32 [ptr], {v0, v1, v2, v3};\n\t"
#define FMA4 \
    "fma.rn.f32 %4, v0, v1, %4;\n\tfma.rn.f32 %5, v1, v2, %5;\n\t" \
    "fma.rn.f32 %6, v2, v3, %6;\n\tfma.rn.f32 %7, v3, v0, %7;\n\t"
STREAM(read_ca, LOAD("ca"), "")
STREAM(read_nc, LOAD("nc"), "")
STREAM(read_cg, LOAD("cg"), "")
STREAM(read_fma4, LOAD("cg"), FMA4)
STREAM(read_fma16, LOAD("cg"), R4(FMA4))
STREAM(read_fma64, LOAD("cg"), R16(FMA4))
STREAM(write, STORE, "")
STREAM(update, LOAD("cg"), NEGATE)

// ---- Energy of events.
#define V_FMA32(x, v, w) "fma.rn.f32 " x ", " v ", " w ", " x ";\n\t"
#define V_FMA64(x, v, w) "fma.rn.f64 " x ", " v ", " w ", " x ";\n\t"
#define V_ADD32(x, v, w) "add.rn.f32 " x ", " x ", " v ";\n\t"
#define V_MAD(x, v, w) "mad.lo.s32 " x ", " x ", " v ", " w ";\n\t"
#define V_SHF(x, v, w) "shf.l.wrap.b32 " x ", " x ", " v ", " w ";\n\t"
#define V_EX2(x, v, w) "ex2.approx.ftz.f32 " x ", " x ";\n\t"
#define V_SHFL(x, v, w) "shfl.sync.bfly.b32 " x ", " x ", 1, 31, -1;\n\t"
#define V_POPC(x, v, w) "popc.b32 " x ", " x ";\n\t"
VARIED(energy_fma_f32, float, "f", R8(ALL8(V_FMA32)))
VARIED(energy_fma_f64, double, "d", R8(ALL8(V_FMA64)))
VARIED(energy_add_f32, float, "f", R8(ALL8(V_ADD32)))
VARIED(energy_add_s32, unsigned, "r", P4(ADD_S32))
VARIED(energy_mad_s32, unsigned, "r", R8(ALL8(V_MAD)))
VARIED(energy_shf_b32, unsigned, "r", R8(ALL8(V_SHF)))
VARIED(energy_ex2_f32, float, "f", R8(ALL8(V_EX2)))
VARIED(energy_shfl_b32, unsigned, "r", R8(ALL8(V_SHFL)))
VARIED(energy_popc_b32, unsigned, "r", R8(ALL8(V_POPC)))
// Two units at once.
#define V_SFU_FMA(x, v, w) V_FMA32(x, v, w) V_FMA32(x, w, v) V_FMA32(x, v, v) V_EX2(x, v, w)
VARIED(energy_fma_ex2, float, "f", R2(ALL8(V_SFU_FMA)))
// Control: a branch every 1 or 4 operations; both sides of a branch in every warp; barriers.
VARIED(energy_branch_1, float, "f", V_FMA32("%0", "%8", "%9"))
VARIED(energy_branch_4, float, "f", V_FMA32("%0", "%8", "%9") V_FMA32("%1", "%9", "%10")
       V_FMA32("%2", "%10", "%11") V_FMA32("%3", "%11", "%12"))
VARIED(energy_diverge, float, "f",
       "{\n\t.reg .b32 lane;\n\t.reg .pred odd;\n\tmov.u32 lane, %tid.x;\n\t"
       "and.b32 lane, lane, 1;\n\tsetp.ne.u32 odd, lane, 0;\n\t@odd bra ODD;\n\t"
       R4(ALL8(V_FMA32)) "bra JOIN;\nODD:\n\t" R4(ALL8(V_ADD32)) "JOIN:\n\t}\n\t")
VARIED(energy_bar, float, "f", R16(V_FMA32("%0", "%8", "%9") "bar.sync 0;\n\t"))

// ---- A launch and nothing else.
extern "C" __global__ void nothing() {}
