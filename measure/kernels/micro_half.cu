// Half precision arithmetic: two values a register.
// target: 5.3

#include "micro.h"

#define FMA_F16X2(x) "fma.rn.f16x2 " x ", " x ", %8, %9;\n\t"
#define V_FMA16(x, v, w) "fma.rn.f16x2 " x ", " v ", " w ", " x ";\n\t"
CHAINS(fma_f16x2, unsigned, "r", FMA_F16X2)
VARIED(energy_fma_f16x2, unsigned, "r", R8(ALL8(V_FMA16)))
