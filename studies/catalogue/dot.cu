// target: 6.1
// Four products of bytes and their sum in one instruction, eight independent chains.

extern "C" __global__ void peak_dp4a(int *out, int x, int y) {
    int c[8];
    for (int k = 0; k < 8; ++k) c[k] = x + k;
    for (int n = 0; n < 512; ++n) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
#pragma unroll
            for (int k = 0; k < 8; ++k) asm volatile("dp4a.s32.s32 %0, %1, %2, %0;" : "+r"(c[k]) : "r"(x), "r"(y));
        }
    }
    int all = 0;
    for (int k = 0; k < 8; ++k) all += c[k];
    if (all == 12345) out[threadIdx.x] = all;
}
