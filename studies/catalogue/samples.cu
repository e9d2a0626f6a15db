// target: 6.0
// Well-known algorithms, written anew: bodies, options, reductions, histograms, products, scans.

// All pairs of bodies; a block shares 256 of them at a time.
extern "C" __global__ void nbody(const float4 *bodies, float4 *forces, int n, float softening) {
    __shared__ float4 shared[256];
    const float4 mine = bodies[blockIdx.x * 256 + threadIdx.x];
    float ax = 0.0f, ay = 0.0f, az = 0.0f;
    for (int tile = 0; tile < n; tile += 256) {
        shared[threadIdx.x] = bodies[tile + threadIdx.x];
        __syncthreads();
#pragma unroll 32
        for (int i = 0; i < 256; ++i) {
            const float4 other = shared[i];
            float x = other.x - mine.x, y = other.y - mine.y, z = other.z - mine.z;
            float square = x * x + y * y + z * z + softening, inverse;
            asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(square));
            float s = other.w * inverse * inverse * inverse;
            ax += x * s, ay += y * s, az += z * s;
        }
        __syncthreads();
    }
    forces[blockIdx.x * 256 + threadIdx.x] = make_float4(ax, ay, az, 0.0f);
}

__device__ __forceinline__ float normal(float d) {
    float k = __fdividef(1.0f, 1.0f + 0.2316419f * fabsf(d));
    float p = 0.39894228040f * __expf(-0.5f * d * d) *
              (k * (0.31938153f + k * (-0.356563782f + k * (1.781477937f + k * (-1.821255978f + k * 1.330274429f)))));
    return d > 0.0f ? 1.0f - p : p;
}

__device__ __forceinline__ void price(float &call, float &put, float s, float x, float t, float r, float v) {
    float root = __fdividef(1.0f, rsqrtf(t));
    float d1 = __fdividef(__logf(s / x) + (r + 0.5f * v * v) * t, v * root), d2 = d1 - v * root;
    float n1 = normal(d1), n2 = normal(d2), discount = __expf(-r * t);
    call = s * n1 - x * discount * n2;
    put = x * discount * (1.0f - n2) - s * (1.0f - n1);
}

// Two options for each thread.
extern "C" __global__ void __launch_bounds__(128)
options(float2 *calls, float2 *puts, const float2 *stocks, const float2 *strikes, const float2 *years, float r, float v, int n) {
    const int i = blockDim.x * blockIdx.x + threadIdx.x;
    if (i >= n / 2) return;
    float2 call, put, s = stocks[i], x = strikes[i], t = years[i];
    price(call.x, put.x, s.x, x.x, t.x, r, v);
    price(call.y, put.y, s.y, x.y, t.y, r, v);
    calls[i] = call;
    puts[i] = put;
}

#define REDUCTION(NAME, LOAD, TREE)                                                                          \
    extern "C" __global__ void NAME(const int *in, int *out, unsigned n) {                                   \
        __shared__ int s[256];                                                                               \
        const unsigned t = threadIdx.x;                                                                      \
        LOAD;                                                                                                \
        __syncthreads();                                                                                     \
        TREE;                                                                                                \
        if (t == 0) out[blockIdx.x] = s[0];                                                                  \
    }
#define ONE s[t] = in[blockIdx.x * 256 + t]
#define TWO s[t] = in[blockIdx.x * 512 + t] + in[blockIdx.x * 512 + 256 + t]
#define MANY                                                                                                 \
    int sum = 0;                                                                                             \
    for (unsigned i = blockIdx.x * 512 + t; i < n; i += 512 * gridDim.x) sum += in[i] + in[i + 256];         \
    s[t] = sum
#define DIVERGENT                                                                                            \
    for (unsigned d = 1; d < 256; d *= 2) {                                                                  \
        if (t % (2 * d) == 0) s[t] += s[t + d];                                                              \
        __syncthreads();                                                                                     \
    }
#define STRIDED                                                                                              \
    for (unsigned d = 1; d < 256; d *= 2) {                                                                  \
        if (2 * d * t < 256) s[2 * d * t] += s[2 * d * t + d];                                               \
        __syncthreads();                                                                                     \
    }
#define SEQUENTIAL                                                                                           \
    for (unsigned d = 128; d > 0; d /= 2) {                                                                  \
        if (t < d) s[t] += s[t + d];                                                                         \
        __syncthreads();                                                                                     \
    }
#define WARP(FROM)                                                                                           \
    for (unsigned d = FROM; d > 16; d /= 2) {                                                                \
        if (t < d) s[t] += s[t + d];                                                                         \
        __syncthreads();                                                                                     \
    }                                                                                                        \
    if (t < 32) {                                                                                            \
        int sum = s[t];                                                                                      \
        for (int d = 16; d > 0; d /= 2) sum += __shfl_down_sync(~0u, sum, d);                                \
        if (t == 0) s[0] = sum;                                                                              \
    }
REDUCTION(reduce_divergent, ONE, DIVERGENT)
REDUCTION(reduce_strided, ONE, STRIDED)
REDUCTION(reduce_sequential, ONE, SEQUENTIAL)
REDUCTION(reduce_two, TWO, SEQUENTIAL)
REDUCTION(reduce_warp, TWO, WARP(128))
REDUCTION(reduce_many, MANY, WARP(128))

// A histogram of bytes for each of six warps of a block, by the hardware's shared atomics.
extern "C" __global__ void __launch_bounds__(192) histogram(unsigned *partial, const unsigned *data, unsigned n) {
    __shared__ unsigned counts[6 * 256];
    unsigned *mine = counts + (threadIdx.x / 32) * 256;
    for (unsigned i = threadIdx.x; i < 6 * 256; i += 192) counts[i] = 0;
    __syncthreads();
    for (unsigned i = blockIdx.x * 192 + threadIdx.x; i < n; i += 192 * gridDim.x) {
        unsigned word = data[i];
        atomicAdd(&mine[word & 255], 1u);
        atomicAdd(&mine[(word >> 8) & 255], 1u);
        atomicAdd(&mine[(word >> 16) & 255], 1u);
        atomicAdd(&mine[word >> 24], 1u);
    }
    __syncthreads();
    for (unsigned bin = threadIdx.x; bin < 256; bin += 192) {
        unsigned sum = 0;
        for (int w = 0; w < 6; ++w) sum += counts[bin + w * 256];
        partial[blockIdx.x * 256 + bin] = sum;
    }
}

// A pair of vectors for each block: 1024 sums, then a tree.
extern "C" __global__ void scalar_products(float *out, const float *a, const float *b, int vectors, int n) {
    __shared__ float sums[1024];
    for (int v = blockIdx.x; v < vectors; v += gridDim.x) {
        const int base = n * v, end = base + n;
        for (int i = threadIdx.x; i < 1024; i += blockDim.x) {
            float sum = 0;
            for (int at = base + i; at < end; at += 1024) sum += a[at] * b[at];
            sums[i] = sum;
        }
        for (int d = 512; d > 0; d /= 2) {
            __syncthreads();
            for (int i = threadIdx.x; i < d; i += blockDim.x) sums[i] += sums[d + i];
        }
        if (threadIdx.x == 0) out[v] = sums[0];
    }
}

// Exclusive sums of 1024 words by a block of 256 threads, four words each.
extern "C" __global__ void scan(uint4 *out, const uint4 *in) {
    __shared__ volatile unsigned s[512];
    uint4 x = in[blockIdx.x * 256 + threadIdx.x];
    x.y += x.x, x.z += x.y, x.w += x.z;
    unsigned at = 2 * threadIdx.x - (threadIdx.x & 255);
    s[at] = 0;
    at += 256;
    s[at] = x.w;
    for (unsigned d = 1; d < 256; d *= 2) {
        __syncthreads();
        unsigned sum = s[at] + s[at - d];
        __syncthreads();
        s[at] = sum;
    }
    unsigned before = s[at] - x.w;
    out[blockIdx.x * 256 + threadIdx.x] = make_uint4(before, before + x.x, before + x.y, before + x.z);
}
