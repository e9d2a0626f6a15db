// target: 8.0
// Matrix instructions in a loop, four independent accumulators for each warp.

#define ROUNDS 512

extern "C" __global__ void peak_tensor_fp16(float *out, unsigned x) {
    float c[4][4] = {};
    for (int n = 0; n < ROUNDS; ++n) {
#pragma unroll
        for (int k = 0; k < 4; ++k)
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%4,%4,%4}, {%4,%4}, {%0,%1,%2,%3};"
                         : "+f"(c[k][0]), "+f"(c[k][1]), "+f"(c[k][2]), "+f"(c[k][3]) : "r"(x));
    }
    float all = 0;
    for (int k = 0; k < 16; ++k) all += c[k / 4][k % 4];
    if (all == 12345.0f) out[threadIdx.x] = all;
}

extern "C" __global__ void peak_tensor_tf32(float *out, unsigned x) {
    float c[4][4] = {};
    for (int n = 0; n < ROUNDS; ++n) {
#pragma unroll
        for (int k = 0; k < 4; ++k)
            asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%4,%4,%4}, {%4,%4}, {%0,%1,%2,%3};"
                         : "+f"(c[k][0]), "+f"(c[k][1]), "+f"(c[k][2]), "+f"(c[k][3]) : "r"(x));
    }
    float all = 0;
    for (int k = 0; k < 16; ++k) all += c[k / 4][k % 4];
    if (all == 12345.0f) out[threadIdx.x] = all;
}

extern "C" __global__ void peak_tensor_int8(int *out, unsigned x) {
    int c[4][4] = {};
    for (int n = 0; n < ROUNDS; ++n) {
#pragma unroll
        for (int k = 0; k < 4; ++k)
            asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%4,%4,%4}, {%4,%4}, {%0,%1,%2,%3};"
                         : "+r"(c[k][0]), "+r"(c[k][1]), "+r"(c[k][2]), "+r"(c[k][3]) : "r"(x));
    }
    int all = 0;
    for (int k = 0; k < 16; ++k) all += c[k / 4][k % 4];
    if (all == 12345) out[threadIdx.x] = all;
}

extern "C" __global__ void peak_tensor_fp64(double *out, double x) {
    double c[4][2] = {};
    for (int n = 0; n < ROUNDS; ++n) {
#pragma unroll
        for (int k = 0; k < 4; ++k)
            asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%2}, {%0,%1};"
                         : "+d"(c[k][0]), "+d"(c[k][1]) : "d"(x));
    }
    double all = 0;
    for (int k = 0; k < 8; ++k) all += c[k / 2][k % 2];
    if (all == 12345.0) out[threadIdx.x] = all;
}
