// Applications: Monte Carlo and finance, sorting, scans, reductions and histograms.
// target: 5.0

#define K extern "C" __global__ void
#define X (blockIdx.x * blockDim.x + threadIdx.x)
#define Y (blockIdx.y * blockDim.y + threadIdx.y)

__device__ unsigned next(unsigned& state) {
    state ^= state << 13, state ^= state >> 17, state ^= state << 5;
    return state;
}
__device__ float unit(unsigned& state) { return (next(state) >> 8) * (1.0f / 16777216); }
__device__ float normal(unsigned& state) {
    float radius = sqrtf(-2 * __logf(unit(state) + 1e-7f));
    return radius * __cosf(6.2831853f * unit(state));
}

K monte_carlo_pi(unsigned* hits, unsigned seed, int draws) {
    unsigned state = (X + 1) * 2654435761u ^ seed, inside = 0;
    for (int i = 0; i < draws; ++i) {
        float x = unit(state), y = unit(state);
        inside += x * x + y * y < 1;
    }
    hits[X] = inside;
}
K asian_option(float* price, unsigned seed, float drift, float spread, int steps) {
    unsigned state = (X + 1) * 2654435761u ^ seed;
    float value = 100, sum = 0;
    for (int i = 0; i < steps; ++i) {
        value *= __expf(drift + spread * normal(state));
        sum += value;
    }
    price[X] = fmaxf(sum / steps - 100, 0);
}
__device__ float below(float x) { return 0.5f * erfcf(-0.70710678f * x); }
K black_scholes(const float* spot, const float* strike, const float* years, float* call, float* put,
                int n) {
    int i = X;
    if (i >= n) return;
    float s = spot[i] + 1, k = strike[i] + 1, t = years[i] + 0.1f, root = 0.3f * sqrtf(t);
    float d1 = (logf(s / k) + 0.065f * t) / root, d2 = d1 - root, discount = k * expf(-0.02f * t);
    call[i] = s * below(d1) - discount * below(d2);
    put[i] = discount * below(-d2) - s * below(-d1);
}
// A price tree of 256 steps a block, folded back in shared memory.
K binomial_tree(const float* spot, float* price) {
    __shared__ float value[256];
    int t = threadIdx.x;
    value[t] = fmaxf((spot[blockIdx.x] + 1) * expf(0.02f * (2 * t - 255)) - 1, 0);
    __syncthreads();
    for (int step = 255; step; --step) {
        float folded = t < step ? 0.999f * (0.51f * value[t + 1] + 0.49f * value[t]) : 0;
        __syncthreads();
        if (t < step) value[t] = folded;
        __syncthreads();
    }
    if (t == 0) price[blockIdx.x] = value[0];
}
// Half of a spin lattice: the colour's spins flip by chance, weighed by their neighbours.
K ising_half(const unsigned* spins, unsigned* out, unsigned seed, int colour, int n) {
    int y = Y, x = 2 * X + (y + colour) % 2;
    if (x >= n || y >= n) return;
    unsigned state = (y * n + x + 1) * 2654435761u ^ seed;
    int around = (spins[y * n + (x + 1) % n] & 1) + (spins[y * n + (x + n - 1) % n] & 1) +
                 (spins[(y + 1) % n * n + x] & 1) + (spins[(y + n - 1) % n * n + x] & 1);
    unsigned spin = spins[y * n + x] & 1;
    float cost = (spin ? 2.0f : -2.0f) * (2 * around - 4);
    out[y * n + x] = unit(state) < __expf(-0.4f * cost) ? 1 - spin : spin;
}

// 1024 keys a block of 512 threads.
K bitonic_sort(const unsigned* in, unsigned* out) {
    __shared__ unsigned key[1024];
    int t = threadIdx.x;
    key[t] = in[blockIdx.x * 1024 + t], key[t + 512] = in[blockIdx.x * 1024 + t + 512];
    for (int size = 2; size <= 1024; size *= 2)
        for (int far = size / 2; far; far /= 2) {
            __syncthreads();
            int i = 2 * t - (t & (far - 1));
            unsigned a = key[i], b = key[i + far];
            if ((a > b) == ((i & size) == 0)) key[i] = b, key[i + far] = a;
        }
    __syncthreads();
    out[blockIdx.x * 1024 + t] = key[t], out[blockIdx.x * 1024 + t + 512] = key[t + 512];
}
// Digits of 4 bits: how often each occurs in a block.
K radix_count(const unsigned* keys, unsigned* counts, int shift, int n) {
    __shared__ unsigned bins[16];
    if (threadIdx.x < 16) bins[threadIdx.x] = 0;
    __syncthreads();
    for (int i = X; i < n; i += gridDim.x * blockDim.x) atomicAdd(bins + (keys[i] >> shift) % 16, 1);
    __syncthreads();
    if (threadIdx.x < 16) counts[threadIdx.x * gridDim.x + blockIdx.x] = bins[threadIdx.x];
}
// Stable places within a warp from the lanes that hold the same digit.
K radix_rank(const unsigned* keys, unsigned* rank, int shift, int n) {
    int i = X;
    if (i >= n) return;
    unsigned digit = keys[i] >> shift, same = ~0u;
    for (int bit = 0; bit < 4; ++bit) {
        unsigned ones = __ballot_sync(~0u, digit >> bit & 1);
        same &= digit >> bit & 1 ? ones : ~ones;
    }
    rank[i] = __popc(same & ((1u << threadIdx.x % 32) - 1));
}
K scan_block(const float* in, float* out) {
    __shared__ float p[2][1024];
    int t = threadIdx.x, from = 0;
    p[0][t] = in[X];
    __syncthreads();
    for (int far = 1; far < blockDim.x; far *= 2) {
        p[1 - from][t] = p[from][t] + (t >= far ? p[from][t - far] : 0);
        from = 1 - from;
        __syncthreads();
    }
    out[X] = p[from][t];
}
K scan_warps(const float* in, float* out) {
    __shared__ float sums[32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float value = in[X];
    for (int far = 1; far < 32; far *= 2) {
        float other = __shfl_up_sync(~0u, value, far);
        if (lane >= far) value += other;
    }
    if (lane == 31) sums[warp] = value;
    __syncthreads();
    for (int w = 0; w < warp; ++w) value += sums[w];
    out[X] = value;
}
K reduce_shared(const float* in, float* out, int n) {
    __shared__ float p[1024];
    float sum = 0;
    for (int i = X; i < n; i += gridDim.x * blockDim.x) sum += in[i];
    p[threadIdx.x] = sum;
    for (int half = blockDim.x / 2; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) p[threadIdx.x] += p[threadIdx.x + half];
    }
    if (threadIdx.x == 0) out[blockIdx.x] = p[0];
}
K dot_shuffle(const float* a, const float* b, float* out, int n) {
    float sum = 0;
    for (int i = X; i < n; i += gridDim.x * blockDim.x) sum += a[i] * b[i];
    for (int far = 16; far; far /= 2) sum += __shfl_down_sync(~0u, sum, far);
    if (threadIdx.x % 32 == 0) atomicAdd(out, sum);
}
K histogram_shared(const unsigned* in, unsigned* out, int n) {
    __shared__ unsigned bins[256];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) bins[i] = 0;
    __syncthreads();
    for (int i = X; i < n; i += gridDim.x * blockDim.x) atomicAdd(bins + in[i] % 256, 1);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x) atomicAdd(out + i, bins[i]);
}
K histogram_global(const unsigned* in, unsigned* out, int n) {
    int i = X;
    if (i < n) atomicAdd(out + in[i] % 4096, 1);
}
// Values above a limit move together, in the order of their warp.
K compact_warp(const float* in, float* out, unsigned* counts, float limit, int n) {
    int i = X, lane = threadIdx.x % 32;
    if (i >= n) return;
    float value = in[i];
    unsigned kept = __ballot_sync(~0u, value > limit);
    if (value > limit) out[i - lane + __popc(kept & ((1u << lane) - 1))] = value;
    if (lane == 0) counts[i / 32] = __popc(kept);
}
