// target: 5.2
// Kernels of applications that were timed on a Titan X at many clocks, written anew after what the
// suites (Polybench/GPU, Rodinia, SHOC, CUDA samples) say their programs compute: one element of the
// result for each thread, sums kept in global memory where the originals keep them there.

typedef unsigned u32;
typedef unsigned char u8;

#define AT_X (blockIdx.x * blockDim.x + threadIdx.x)
#define AT_Y (blockIdx.y * blockDim.y + threadIdx.y)

// --- Polybench/GPU: matrices by rows ------------------------------------------------------------

extern "C" __global__ void row_sums(const float *a, const float *x, float *sums, int n) {
    int i = AT_X;
    if (i >= n) return;
    sums[i] = 0.0f;
    for (int j = 0; j < n; ++j) sums[i] += a[i * n + j] * x[j];
}

extern "C" __global__ void column_sums(const float *a, const float *x, float *sums, int n) {
    int j = AT_X;
    if (j >= n) return;
    sums[j] = 0.0f;
    for (int i = 0; i < n; ++i) sums[j] += a[i * n + j] * x[i];
}

extern "C" __global__ void two_row_sums(const float *a, const float *b, const float *x, float *y, float *kept, int n) {
    int i = AT_X;
    if (i >= n) return;
    for (int j = 0; j < n; ++j) {
        kept[i] += a[i * n + j] * x[j];
        y[i] += b[i * n + j] * x[j];
    }
    y[i] = 43532.0f * kept[i] + 12313.0f * y[i];
}

extern "C" __global__ void rank_update(const float *a, float *c, float alpha, float beta, int n) {
    int j = AT_X, i = AT_Y;
    if (i >= n || j >= n) return;
    c[i * n + j] *= beta;
    for (int k = 0; k < n; ++k) c[i * n + j] += alpha * a[i * n + k] * a[j * n + k];
}

extern "C" __global__ void column_mean(float *mean, const float *data, int n) {
    int j = AT_X;
    if (j >= n) return;
    mean[j] = 0.0f;
    for (int i = 0; i < n; ++i) mean[j] += data[i * n + j];
    mean[j] /= 3214212.01f;
}

extern "C" __global__ void column_deviation(const float *mean, float *deviation, const float *data, int n) {
    int j = AT_X;
    if (j >= n) return;
    deviation[j] = 0.0f;
    for (int i = 0; i < n; ++i) deviation[j] += (data[i * n + j] - mean[j]) * (data[i * n + j] - mean[j]);
    deviation[j] = sqrtf(deviation[j] / 3214212.01f);
    if (deviation[j] <= 0.005f) deviation[j] = 1.0f;
}

extern "C" __global__ void centred(const float *mean, float *data, int n) {
    int j = AT_X, i = AT_Y;
    if (i >= n || j >= n) return;
    data[i * n + j] -= mean[j];
}

extern "C" __global__ void standardised(const float *mean, const float *deviation, float *data, int n) {
    int j = AT_X, i = AT_Y;
    if (i >= n || j >= n) return;
    data[i * n + j] -= mean[j];
    data[i * n + j] /= 1792.82f * deviation[j];
}

// A thread for each row of the result, from its diagonal on.
extern "C" __global__ void products_of_columns(float *result, const float *data, int n) {
    int row = AT_X;
    if (row >= n) return;
    for (int column = row; column < n; ++column) {
        result[row * n + column] = 0.0f;
        for (int i = 0; i < n; ++i) result[row * n + column] += data[i * n + row] * data[i * n + column];
        result[column * n + row] = result[row * n + column];
    }
}

extern "C" __global__ void column_norm(const float *a, float *r, int k, int n) {
    if (AT_X != 0) return;
    float sum = 0.0f;
    for (int i = 0; i < n; ++i) sum += a[i * n + k] * a[i * n + k];
    r[k * n + k] = sqrtf(sum);
}

extern "C" __global__ void column_scaled(const float *a, const float *r, float *q, int k, int n) {
    int i = AT_X;
    if (i < n) q[i * n + k] = a[i * n + k] / r[k * n + k];
}

extern "C" __global__ void columns_beyond(float *a, float *r, const float *q, int k, int n) {
    int j = AT_X;
    if (j <= k || j >= n) return;
    r[k * n + j] = 0.0f;
    for (int i = 0; i < n; ++i) r[k * n + j] += q[i * n + k] * a[i * n + j];
    for (int i = 0; i < n; ++i) a[i * n + j] -= q[i * n + k] * r[k * n + j];
}

extern "C" __global__ void convolution(const float *a, float *b, int n) {
    int j = AT_X, i = AT_Y;
    if (i >= n - 1 || j >= n - 1 || i < 1 || j < 1) return;
    b[i * n + j] = 0.2f * a[(i - 1) * n + j - 1] - 0.3f * a[i * n + j - 1] + 0.4f * a[(i + 1) * n + j - 1]
                 + 0.5f * a[(i - 1) * n + j] + 0.6f * a[i * n + j] + 0.7f * a[(i + 1) * n + j]
                 - 0.8f * a[(i - 1) * n + j + 1] - 0.9f * a[i * n + j + 1] + 0.1f * a[(i + 1) * n + j + 1];
}

// --- Rodinia ------------------------------------------------------------------------------------

// One layer of a net: products of inputs and weights, summed over the sixteen inputs of a block.
extern "C" __global__ void layer_forward(const float *input, float *weights, float *partial, int hidden) {
    __shared__ float node[16];
    __shared__ float matrix[16][16];
    int by = blockIdx.y, tx = threadIdx.x, ty = threadIdx.y;
    int at = (hidden + 1) * 16 * by + (hidden + 1) * ty + tx + 1 + (hidden + 1);
    if (tx == 0) node[ty] = input[16 * by + ty + 1];
    __syncthreads();
    matrix[ty][tx] = weights[at];
    __syncthreads();
    matrix[ty][tx] = matrix[ty][tx] * node[ty];
    __syncthreads();
    for (int i = 1; i <= __log2f(16.0f); ++i) {
        int step = __powf(2.0f, i);
        if (ty % step == 0) matrix[ty][tx] = matrix[ty][tx] + matrix[ty + step / 2][tx];
        __syncthreads();
    }
    weights[at] = matrix[ty][tx];
    __syncthreads();
    if (tx == 0) partial[by * hidden + ty] = matrix[tx][ty];
}

extern "C" __global__ void weights_adjusted(const float *delta, int hidden, const float *layer, float *weights, float *old) {
    int by = blockIdx.y, tx = threadIdx.x, ty = threadIdx.y;
    int at = (hidden + 1) * 16 * by + (hidden + 1) * ty + tx + 1 + (hidden + 1), y = 16 * by + ty + 1, x = tx + 1;
    weights[at] += 0.3 * delta[x] * layer[y] + 0.3 * old[at];
    old[at] = 0.3 * delta[x] * layer[y] + 0.3 * old[at];
    __syncthreads();
    if (ty == 0 && by == 0) {
        weights[x] += 0.3 * delta[x] + 0.3 * old[x];
        old[x] = 0.3 * delta[x] + 0.3 * old[x];
    }
}

// Temperatures of a chip: tiles of 16 x 16 with a border, two steps at a time.
extern "C" __global__ void heat(int steps, const float *power, const float *from, float *to, int n, int border, float cap, float rx, float ry, float rz) {
    __shared__ float now[16][16], watts[16][16], next[16][16];
    int bx = blockIdx.x, by = blockIdx.y, tx = threadIdx.x, ty = threadIdx.y, inner = 16 - steps * 2;
    int y0 = inner * by - border, x0 = inner * bx - border, y = y0 + ty, x = x0 + tx, at = n * y + x;
    if (y >= 0 && y < n && x >= 0 && x < n) {
        now[ty][tx] = from[at];
        watts[ty][tx] = power[at];
    }
    __syncthreads();
    int top = y0 < 0 ? -y0 : 0, bottom = y0 + 15 >= n ? 15 - (y0 + 16 - n) : 15;
    int left = x0 < 0 ? -x0 : 0, right = x0 + 15 >= n ? 15 - (x0 + 16 - n) : 15;
    int north = max(ty - 1, top), south = min(ty + 1, bottom), west = max(tx - 1, left), east = min(tx + 1, right);
    float by_x = 1 / rx, by_y = 1 / ry, by_z = 1 / rz;
    bool computed = false;
    for (int i = 0; i < steps; ++i) {
        computed = false;
        if (tx >= i + 1 && tx <= 14 - i && ty >= i + 1 && ty <= 14 - i && tx >= left && tx <= right && ty >= top && ty <= bottom) {
            computed = true;
            next[ty][tx] = now[ty][tx] + cap * (watts[ty][tx] + (now[south][tx] + now[north][tx] - 2.0 * now[ty][tx]) * by_y
                + (now[ty][east] + now[ty][west] - 2.0 * now[ty][tx]) * by_x + (80.0f - now[ty][tx]) * by_z);
        }
        __syncthreads();
        if (i == steps - 1) break;
        if (computed) now[ty][tx] = next[ty][tx];
        __syncthreads();
    }
    if (computed) to[at] = next[ty][tx];
}

// --- CUDA samples: options priced two by two ----------------------------------------------------

__device__ __forceinline__ float normal(float d) {
    float k = __fdividef(1.0f, 1.0f + 0.2316419f * fabsf(d));
    float c = 0.39894228f * __expf(-0.5f * d * d) * (k * (0.31938153f + k * (-0.356563782f + k * (1.781477937f + k * (-1.821255978f + k * 1.330274429f)))));
    return d > 0 ? 1.0f - c : c;
}

__device__ __forceinline__ void price(float &call, float &put, float s, float x, float t, float r, float v) {
    float root = __fdividef(1.0f, rsqrtf(t));
    float d1 = __fdividef(__logf(s / x) + (r + 0.5f * v * v) * t, v * root), d2 = d1 - v * root;
    float n1 = normal(d1), n2 = normal(d2), e = __expf(-r * t);
    call = s * n1 - x * e * n2;
    put = x * e * (1.0f - n2) - s * (1.0f - n1);
}

extern "C" __global__ void __launch_bounds__(128) option_prices(float2 *__restrict__ call, float2 *__restrict__ put, const float2 *__restrict__ stock, const float2 *__restrict__ strike, const float2 *__restrict__ years, float r, float v, int n) {
    int i = AT_X;
    if (i >= n / 2) return;
    float c1, c2, p1, p2;
    price(c1, p1, stock[i].x, strike[i].x, years[i].x, r, v);
    price(c2, p2, stock[i].y, strike[i].y, years[i].y, r, v);
    call[i] = make_float2(c1, c2);
    put[i] = make_float2(p1, p2);
}

// --- SHOC: Fourier transforms of 512 points, eight for each thread ------------------------------

__device__ __forceinline__ double2 times(double2 a, double2 b) { return make_double2(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x); }
__device__ __forceinline__ double2 plus(double2 a, double2 b) { return make_double2(a.x + b.x, a.y + b.y); }
__device__ __forceinline__ double2 minus(double2 a, double2 b) { return make_double2(a.x - b.x, a.y - b.y); }

template <int sign> __device__ __forceinline__ void pair(double2 &a, double2 &b) {
    double2 c = a;
    a = plus(c, b);
    b = minus(c, b);
}

template <int sign> __device__ __forceinline__ void four(double2 &a, double2 &b, double2 &c, double2 &d) {
    pair<sign>(a, c);
    pair<sign>(b, d);
    d = make_double2(-sign * d.y, sign * d.x);
    pair<sign>(a, b);
    pair<sign>(c, d);
}

template <int sign> __device__ __forceinline__ void eight(double2 *a) {
    const double half = 0.70710678118654752440;
    for (int k = 0; k < 4; ++k) pair<sign>(a[k], a[k + 4]);
    a[5] = times(a[5], make_double2(half, sign * half));
    a[6] = make_double2(-sign * a[6].y, sign * a[6].x);
    a[7] = times(a[7], make_double2(-half, sign * half));
    four<sign>(a[0], a[1], a[2], a[3]);
    four<sign>(a[4], a[5], a[6], a[7]);
}

template <int sign> __device__ __forceinline__ void twisted(double2 *a, int at, int n) {
    for (int k = 1; k < 8; ++k) {
        double angle = sign * 6.2831853071795865 * k / n * at;
        a[k] = times(a[k], make_double2(cosf((float)angle), sinf((float)angle)));
    }
}

__device__ __forceinline__ void exchanged(double2 *a, double *shared, int to, int to_step, int from, int from_step) {
    for (int k = 0; k < 8; ++k) shared[to + k * to_step] = a[k].x;
    __syncthreads();
    for (int k = 0; k < 8; ++k) a[k].x = shared[from + k * from_step];
    __syncthreads();
    for (int k = 0; k < 8; ++k) shared[to + k * to_step] = a[k].y;
    __syncthreads();
    for (int k = 0; k < 8; ++k) a[k].y = shared[from + k * from_step];
    __syncthreads();
}

template <int sign> __device__ __forceinline__ void transformed(double2 *work) {
    __shared__ double shared[64 * 9];
    int t = threadIdx.x, high = t >> 3, low = t & 7;
    double2 a[8];
    work += blockIdx.x * 512 + t;
    for (int k = 0; k < 8; ++k) a[k] = work[64 * k];
    eight<sign>(a);
    twisted<sign>(a, t, 512);
    exchanged(a, shared, high * 8 + low, 66, low * 66 + high, 8);
    eight<sign>(a);
    twisted<sign>(a, high, 64);
    exchanged(a, shared, high * 8 + low, 72, high * 72 + low, 8);
    eight<sign>(a);
    for (int k = 0; k < 8; ++k) {
        if (sign > 0) a[k] = make_double2(a[k].x / 512, a[k].y / 512);
        work[64 * k] = a[k];
    }
}

extern "C" __global__ void fourier(double2 *work) { transformed<-1>(work); }
extern "C" __global__ void fourier_back(double2 *work) { transformed<1>(work); }

extern "C" __global__ void halves_equal(const double2 *work, int half, char *differ) {
    int at = (blockIdx.x * blockDim.x * 8) + threadIdx.x;
    for (int k = 0; k < 8; ++k) {
        double2 a = work[at + k * 64], b = work[half + at + k * 64];
        if (a.x != b.x || a.y != b.y) *differ = 1;
    }
}

// --- SHOC: keys sorted by four bits at a time ---------------------------------------------------

__device__ __forceinline__ u32 scanned(u32 value, volatile u32 *shared) {
    u32 at = threadIdx.x;
    shared[at] = 0;
    at += blockDim.x;
    shared[at] = value;
    __syncthreads();
    for (u32 step = 1; step < blockDim.x; step *= 2) {
        u32 other = shared[at - step];
        __syncthreads();
        shared[at] += other;
        __syncthreads();
    }
    return shared[at] - value;
}

extern "C" __global__ void __launch_bounds__(128) blocks_sorted(u32 bits, u32 start, uint4 *keys_out, uint4 *values_out, const uint4 *keys, const uint4 *values) {
    __shared__ u32 shared[512];
    __shared__ u32 zeros;
    u32 t = threadIdx.x, i = AT_X;
    uint4 key = keys[i], value = values[i];
    for (u32 shift = start; shift < start + bits; ++shift) {
        u32 x = !((key.x >> shift) & 1), y = !((key.y >> shift) & 1), z = !((key.z >> shift) & 1), w = !((key.w >> shift) & 1);
        u32 before = scanned(x + y + z + w, shared);
        __syncthreads();
        if (t == blockDim.x - 1) zeros = before + x + y + z + w;
        __syncthreads();
        u32 ones = zeros, at = t * 4;
        u32 to[4];
        to[0] = x ? before : at - before + ones;
        to[1] = y ? before + x : at + 1 - before - x + ones;
        to[2] = z ? before + x + y : at + 2 - before - x - y + ones;
        to[3] = w ? before + x + y + z : at + 3 - before - x - y - z + ones;
        u32 *lanes[2] = {&key.x, &value.x};
#pragma unroll
        for (int each = 0; each < 2; ++each) {
            u32 *mine = lanes[each];
#pragma unroll
            for (int k = 0; k < 4; ++k) shared[(to[k] & 3) * blockDim.x + (to[k] >> 2)] = mine[k];
            __syncthreads();
#pragma unroll
            for (int k = 0; k < 4; ++k) mine[k] = shared[k * blockDim.x + t];
            __syncthreads();
        }
    }
    keys_out[i] = key;
    values_out[i] = value;
}

extern "C" __global__ void digits_found(const uint2 *keys, u32 *counters, u32 *offsets, u32 start, u32 blocks) {
    __shared__ u32 starts[16];
    __shared__ u32 digits[512];
    u32 t = threadIdx.x, at = blockIdx.x, n = blockDim.x;
    uint2 key = keys[AT_X];
    digits[2 * t] = (key.x >> start) & 15;
    digits[2 * t + 1] = (key.y >> start) & 15;
    if (t < 16) starts[t] = 0;
    __syncthreads();
    if (t > 0 && digits[t] != digits[t - 1]) starts[digits[t]] = t;
    if (digits[t + n] != digits[t + n - 1]) starts[digits[t + n]] = t + n;
    __syncthreads();
    if (t < 16) offsets[at * 16 + t] = starts[t];
    __syncthreads();
    if (t > 0 && digits[t] != digits[t - 1]) starts[digits[t - 1]] = t - starts[digits[t - 1]];
    if (digits[t + n] != digits[t + n - 1]) starts[digits[t + n - 1]] = t + n - starts[digits[t + n - 1]];
    if (t == n - 1) starts[digits[2 * n - 1]] = 2 * n - starts[digits[2 * n - 1]];
    __syncthreads();
    if (t < 16) counters[t * blocks + at] = starts[t];
}

extern "C" __global__ void reordered(u32 start, u32 *keys_out, u32 *values_out, const uint2 *keys, const uint2 *values, const u32 *offsets, const u32 *places, u32 blocks) {
    __shared__ uint2 my_keys[256], my_values[256];
    __shared__ u32 from[16], to[16];
    u32 t = threadIdx.x, i = AT_X;
    my_keys[t] = keys[i];
    my_values[t] = values[i];
    if (t < 16) {
        to[t] = offsets[t * blocks + blockIdx.x];
        from[t] = places[blockIdx.x * 16 + t];
    }
    __syncthreads();
    const u32 *one = (const u32 *)my_keys, *other = (const u32 *)my_values;
#pragma unroll
    for (u32 k = 0; k < 2; ++k) {
        u32 at = t + k * blockDim.x, digit = (one[at] >> start) & 15, place = to[digit] + at - from[digit];
        keys_out[place] = one[at];
        values_out[place] = other[at];
    }
}

extern "C" __global__ void counters_scanned(uint4 *out, const uint4 *in, u32 *sums) {
    __shared__ u32 shared[512];
    u32 i = AT_X;
    uint4 mine = in[i];
    u32 total = mine.x + mine.y + mine.z + mine.w, before = scanned(total, shared);
    out[i] = make_uint4(before, before + mine.x, before + mine.x + mine.y, before + mine.x + mine.y + mine.z);
    if (threadIdx.x == blockDim.x - 1) sums[blockIdx.x] = before + total;
}

extern "C" __global__ void sums_added(uint4 *values, const u32 *sums) {
    __shared__ u32 mine;
    if (threadIdx.x == 0) mine = sums[blockIdx.x];
    __syncthreads();
    uint4 one = values[AT_X];
    values[AT_X] = make_uint4(one.x + mine, one.y + mine, one.z + mine, one.w + mine);
}
