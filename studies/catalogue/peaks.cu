// target: 6.0
// Loops that keep one unit of an SM busy: eight independent chains for each thread, each step one
// instruction. The results are stored only under a condition that never holds.

#define ROUNDS 512

#define LOOP(NAME, TYPE, START, STEP)                                              \
    extern "C" __global__ void NAME(TYPE *out, TYPE x, TYPE y) {                   \
        TYPE c[8];                                                                 \
        for (int k = 0; k < 8; ++k) c[k] = START;                                  \
        for (int n = 0; n < ROUNDS; ++n) {                                         \
            _Pragma("unroll") for (int r = 0; r < 4; ++r) {                        \
                _Pragma("unroll") for (int k = 0; k < 8; ++k) { STEP; }            \
            }                                                                      \
        }                                                                          \
        TYPE all = c[0];                                                           \
        for (int k = 1; k < 8; ++k) all += c[k];                                   \
        if (all == (TYPE)12345) out[threadIdx.x] = all;                            \
    }

LOOP(peak_fp32, float, x + k, asm volatile("fma.rn.f32 %0, %0, %1, %2;" : "+f"(c[k]) : "f"(x), "f"(y)))
LOOP(peak_fp64, double, x + k, asm volatile("fma.rn.f64 %0, %0, %1, %2;" : "+d"(c[k]) : "d"(x), "d"(y)))
LOOP(peak_fp16, unsigned, x + k, asm volatile("fma.rn.f16x2 %0, %0, %1, %2;" : "+r"(c[k]) : "r"(x), "r"(y)))
LOOP(peak_multiply, unsigned, x + k, asm volatile("mad.lo.u32 %0, %0, %1, %2;" : "+r"(c[k]) : "r"(x), "r"(y)))
LOOP(peak_add, unsigned, x + k, asm volatile("add.u32 %0, %0, %1;" : "+r"(c[k]) : "r"(x)))
LOOP(peak_logic, unsigned, x + k, asm volatile("lop3.b32 %0, %0, %1, %2, 0x96;" : "+r"(c[k]) : "r"(x), "r"(y)))
LOOP(peak_shift, unsigned, x + k, asm volatile("shf.l.wrap.b32 %0, %0, %0, %1;" : "+r"(c[k]) : "r"(x)))
LOOP(peak_sine, float, x + k, asm volatile("sin.approx.f32 %0, %0;" : "+f"(c[k])))
LOOP(peak_root, float, x + k, asm volatile("rsqrt.approx.ftz.f32 %0, %0;" : "+f"(c[k])))
