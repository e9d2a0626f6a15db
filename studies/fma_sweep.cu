// Two streams read, FMAS multiply-adds by them on each of two chains, one float written per block: the
// kernel of the FMA sweeps (modern/fma_sweep_power.csv), written from their description.
extern "C" __global__ void fma_sweep(const float *__restrict__ first, const float *__restrict__ second,
                                     float *sums, int elements_per_thread) {
    size_t step = (size_t)gridDim.x * blockDim.x;
    size_t at = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    float sum = 0.0f;
#pragma unroll 1
    for (int k = 0; k < elements_per_thread; k += 2) {
        float a = first[at], b = second[at], v = a - b;
        at += step;
        float c = first[at], d = second[at], w = c - d;
        at += step;
#pragma unroll
        for (int n = 0; n < FMAS; n++) {
            v = v * a - b;
            w = w * c - d;
        }
        sum += v + w;
    }
    if (threadIdx.x == 0)
        sums[blockIdx.x] = sum;
}
