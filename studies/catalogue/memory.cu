// target: 6.0
// What memory is measured with: copies, the kernels of STREAM, pointer chases, gathers.

extern "C" __global__ void copy_scalar(const float *in, float *out) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = in[i];
}

extern "C" __global__ void copy_vector(const float4 *in, float4 *out) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = in[i];
}

extern "C" __global__ void set_vector(uint4 *out, unsigned value) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = make_uint4(value, value, value, value);
}

extern "C" __global__ void stream_init(double *a, double value) { a[blockIdx.x * blockDim.x + threadIdx.x] = value; }

extern "C" __global__ void stream_copy(const double *a, double *c) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    c[i] = a[i];
}

extern "C" __global__ void stream_scale(double *b, const double *c) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    b[i] = 0.4 * c[i];
}

extern "C" __global__ void stream_add(const double *a, const double *b, double *c) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    c[i] = a[i] + b[i];
}

extern "C" __global__ void stream_triad(double *a, const double *b, const double *c) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    a[i] = b[i] + 0.4 * c[i];
}

extern "C" __global__ void stream_dot(const double *a, const double *b, double *sums, unsigned n) {
    __shared__ double part[1024];
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    double sum = 0.0;
    for (; i < n; i += blockDim.x * gridDim.x) sum += a[i] * b[i];
    part[threadIdx.x] = sum;
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = part[0];
}

// A load for each thread; the sum of the block keeps it alive. Dynamic shared memory limits what is resident.
extern "C" __global__ void stream_read(const double *a, double *out) {
    double value = a[blockIdx.x * blockDim.x + threadIdx.x];
    if (value == 1.2345) out[0] = value;
}

extern "C" __global__ void stencil_3(const double *a, double *b) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x + 1;
    b[i] = 0.5 * a[i] + 0.25 * (a[i - 1] + a[i + 1]);
}

extern "C" __global__ void stencil_5(const double *a, double *b) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x + 2;
    b[i] = 0.4 * a[i] + 0.2 * (a[i - 1] + a[i + 1]) + 0.1 * (a[i - 2] + a[i + 2]);
}

// One thread follows pointers from line to line; "next" holds where each element leads.
extern "C" __global__ void chase(const unsigned *next, unsigned *out, unsigned steps) {
    unsigned at = 0;
    for (unsigned n = 0; n < steps; ++n) at = next[at];
    out[0] = at;
}

extern "C" __global__ void gather(const unsigned *index, const float *in, float *out) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = in[index[i]];
}

// Every block reads the same words again and again, from the nearest cache that holds them.
extern "C" __global__ void read_again(const double *a, double *out, unsigned n, unsigned rounds) {
    double sum = 0.0;
    for (unsigned r = 0; r < rounds; ++r)
        for (unsigned i = threadIdx.x; i < n; i += blockDim.x * 4)
            sum += a[i] + a[i + blockDim.x] + a[i + 2 * blockDim.x] + a[i + 3 * blockDim.x];
    if (sum == 1.2345) out[0] = sum;
}

extern "C" __global__ void atomic_one(unsigned *counter) { atomicAdd(counter, 1u); }

extern "C" __global__ void atomic_each(unsigned *counters) { atomicAdd(&counters[blockIdx.x * blockDim.x + threadIdx.x], 1u); }
