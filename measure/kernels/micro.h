// What the microbenchmarks share. Loops are written in PTX: no compiler unrolls, merges or drops
// what is inside. build.py puts this text in the place of its #include.
#define R2(s) s s
#define R4(s) R2(s) R2(s)
#define R8(s) R4(s) R4(s)
#define R16(s) R8(s) R8(s)
#define R32(s) R16(s) R16(s)
#define R64(s) R32(s) R32(s)

// COUNT is the position of the iteration count among the operands.
#define LOOP(COUNT, BODY) \
    "{\n\t.reg .pred more;\n\t.reg .b32 left;\n\tmov.u32 left, " COUNT ";\n" \
    "AGAIN:\n\t.pragma \"nounroll\";\n\t" BODY \
    "sub.u32 left, left, 1;\n\tsetp.ne.u32 more, left, 0;\n\t@more bra AGAIN;\n\t}"

#define THREAD (blockIdx.x * blockDim.x + threadIdx.x)

// ---- Arithmetic: I1, I2, I3, I4, I8 independent chains of 64 operations in all an iteration.
// Operands %0 to %7 are the chains, %8 and %9 two constants.
#define I1(OP) R64(OP("%0"))
#define I2(OP) R32(OP("%0") OP("%1"))
#define T3(OP) OP("%0") OP("%1") OP("%2")
#define I3(OP) R16(T3(OP)) R4(T3(OP)) T3(OP) OP("%0")
#define I4(OP) R16(OP("%0") OP("%1") OP("%2") OP("%3"))
#define I8(OP) R8(OP("%0") OP("%1") OP("%2") OP("%3") OP("%4") OP("%5") OP("%6") OP("%7"))
// Two values that feed each other, so that assemblers cannot merge consecutive additions.
#define P1(OP) R32(OP("%0", "%1"))
#define P2(OP) R16(OP("%0", "%1") OP("%2", "%3"))
#define P4(OP) R8(OP("%0", "%1") OP("%2", "%3") OP("%4", "%5") OP("%6", "%7"))

#define ARITHMETIC(NAME, T, C, BODY) \
    extern "C" __global__ void NAME(T* out, T a, T b, unsigned n) { \
        T x0 = (T)threadIdx.x, x1 = x0 + (T)1, x2 = x0 + (T)2, x3 = x0 + (T)3; \
        T x4 = x0 + (T)4, x5 = x0 + (T)5, x6 = x0 + (T)6, x7 = x0 + (T)7; \
        asm volatile(LOOP("%10", BODY) \
                     : "+" C(x0), "+" C(x1), "+" C(x2), "+" C(x3), "+" C(x4), "+" C(x5), \
                       "+" C(x6), "+" C(x7) \
                     : C(a), C(b), "r"(n)); \
        out[THREAD] = x0 + x1 + x2 + x3 + x4 + x5 + x6 + x7; \
    }
#define CHAINS(NAME, T, C, OP) \
    ARITHMETIC(NAME##_i1, T, C, I1(OP)) \
    ARITHMETIC(NAME##_i2, T, C, I2(OP)) \
    ARITHMETIC(NAME##_i4, T, C, I4(OP))

// ---- 64 events an iteration on 8 sums (%0 to %7) and 8 varied operands (%8 to %15).
#define VARIED(NAME, T, C, BODY) \
    extern "C" __global__ void NAME(T* out, const T* in, unsigned n) { \
        const T* from = in + threadIdx.x; \
        T x0 = from[0], x1 = from[1024], x2 = from[2048], x3 = from[3072]; \
        T x4 = from[4096], x5 = from[5120], x6 = from[6144], x7 = from[7168]; \
        T v0 = from[8192], v1 = from[9216], v2 = from[10240], v3 = from[11264]; \
        T v4 = from[12288], v5 = from[13312], v6 = from[14336], v7 = from[15360]; \
        asm volatile(LOOP("%16", BODY) \
                     : "+" C(x0), "+" C(x1), "+" C(x2), "+" C(x3), "+" C(x4), "+" C(x5), \
                       "+" C(x6), "+" C(x7) \
                     : C(v0), C(v1), C(v2), C(v3), C(v4), C(v5), C(v6), C(v7), "r"(n)); \
        out[THREAD] = x0 + x1 + x2 + x3 + x4 + x5 + x6 + x7 + v0 + v1 + v2 + v3 + v4 + v5 + v6 + v7; \
    }
#define ALL8(OP) \
    OP("%0", "%8", "%9") OP("%1", "%9", "%10") OP("%2", "%10", "%11") OP("%3", "%11", "%12") \
    OP("%4", "%12", "%13") OP("%5", "%13", "%14") OP("%6", "%14", "%15") OP("%7", "%15", "%8")
