// Sum of the integers of each block, in pairs ever farther apart; the remainder is slow, adding threads lie in all warps.
#define THREADS 256
extern "C" __global__ void reduction(int *out, const int *in, int n)
{
    __shared__ int part[THREADS];

    unsigned t = threadIdx.x;
    int i = blockIdx.x * blockDim.x + t;
    part[t] = i < n ? in[i] : 0;
    __syncthreads();

    for (unsigned s = 1; s < blockDim.x; s *= 2) {
        if (t % (2 * s) == 0)
            part[t] += part[t + s];
        __syncthreads();
    }

    if (t == 0)
        out[blockIdx.x] = part[0];
}
