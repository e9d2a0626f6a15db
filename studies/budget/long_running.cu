// Kernels that run for long: what the budget study asks about beside the fixtures (launches.py).

extern "C" __global__ void stencil_steps(float* out, const float* in, int steps) {
    __shared__ float tile[2][258];  // every block advances its own piece, as temporal tiling does
    int i = threadIdx.x + 1;
    tile[0][i] = in[blockIdx.x * 256 + threadIdx.x];
    if (threadIdx.x < 2) tile[0][threadIdx.x * 257] = tile[1][threadIdx.x * 257] = 0.0f;
    __syncthreads();
    for (int s = 0; s < steps; ++s) {
        const float* now = tile[s & 1];
        tile[~s & 1][i] = 0.25f * now[i - 1] + 0.5f * now[i] + 0.25f * now[i + 1];
        __syncthreads();
    }
    out[blockIdx.x * 256 + threadIdx.x] = tile[steps & 1][i];
}

extern "C" __global__ void dedisperse(float* out, const float* in, const int* delay, int channels,
                                      int samples, int padded) {
    int sample = blockIdx.x * blockDim.x + threadIdx.x;
    int measure = blockIdx.y;
    if (sample >= samples) return;
    float sum = 0.0f;
    for (int c = 0; c < channels; ++c)
        sum += in[(long long)c * padded + sample + delay[c] * measure / 64];
    out[(long long)measure * samples + sample] = sum;
}

extern "C" __global__ void sliding_max(float* out, const float* in, int width, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float best = in[i];
    for (int k = 1; k < width; ++k) best = fmaxf(best, in[i + k]);
    out[i] = best;
}

extern "C" __global__ void causal_scores(float* out, const float* query, const float* key,
                                         int width) {
    // One block a row of queries: as many keys as there are rows before it.
    __shared__ float mine[64];
    if (threadIdx.x < 64) mine[threadIdx.x] = query[blockIdx.x * 64 + threadIdx.x];
    __syncthreads();
    float most = -1e30f, sum = 0.0f;
    for (int k = threadIdx.x; k <= blockIdx.x; k += blockDim.x) {
        float dot = 0.0f;
        for (int d = 0; d < width; ++d) dot += mine[d] * key[(long long)d * gridDim.x + k];
        float larger = fmaxf(most, dot);
        sum = sum * __expf(most - larger) + __expf(dot - larger);
        most = larger;
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = most + __logf(sum);
}

extern "C" __global__ void lower_triangle(float* out, const float* matrix, int n) {
    // Row r of a lower triangle times itself: as many turns as the row is long.
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= n) return;
    float sum = 0.0f;
    for (int k = 0; k <= row; ++k) sum += matrix[(long long)k * n + row] * matrix[row];
    out[row] = sum;
}

extern "C" __global__ void histogram_bytes(unsigned* bins, const unsigned* data, int words) {
    __shared__ unsigned own[256];
    own[threadIdx.x] = 0;
    __syncthreads();
    for (int i = blockIdx.x * 256 + threadIdx.x; i < words; i += gridDim.x * 256) {
        unsigned word = data[i];
        atomicAdd(&own[word & 255], 1u);
        atomicAdd(&own[word >> 8 & 255], 1u);
        atomicAdd(&own[word >> 16 & 255], 1u);
        atomicAdd(&own[word >> 24], 1u);
    }
    __syncthreads();
    atomicAdd(&bins[threadIdx.x], own[threadIdx.x]);
}

extern "C" __global__ void sgemm(float* c, const float* a, const float* b, int n) {
    // 64 x 64 of C a block of 256 threads, 4 x 4 a thread, k in steps of 16.
    __shared__ float as[16][64], bs[16][64];
    int tx = threadIdx.x & 15, ty = threadIdx.x >> 4;
    int row = blockIdx.y * 64, column = blockIdx.x * 64;
    float sum[4][4] = {};
    for (int k = 0; k < n; k += 16) {
        for (int load = threadIdx.x; load < 1024; load += 256) {
            as[load & 15][load >> 4] = a[(row + (load >> 4)) * n + k + (load & 15)];
            bs[load >> 6][load & 63] = b[(k + (load >> 6)) * n + column + (load & 63)];
        }
        __syncthreads();
        for (int kk = 0; kk < 16; ++kk) {
            float left[4], right[4];
            for (int i = 0; i < 4; ++i) left[i] = as[kk][ty * 4 + i], right[i] = bs[kk][tx * 4 + i];
            for (int i = 0; i < 4; ++i)
                for (int j = 0; j < 4; ++j) sum[i][j] += left[i] * right[j];
        }
        __syncthreads();
    }
    for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j)
            c[(row + ty * 4 + i) * n + column + tx * 4 + j] = sum[i][j];
}

extern "C" __global__ void rounds(unsigned* out, unsigned seed, int count) {
    // A generator of random numbers: long chains of integers, no memory.
    unsigned x = seed + blockIdx.x * blockDim.x + threadIdx.x, sum = 0;
    for (int i = 0; i < count; ++i) {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        sum += x & 1u ? x : ~x;
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

extern "C" __global__ void chase(int* out, const int* next, int steps) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    for (int i = 0; i < steps; ++i) at = next[at];
    out[blockIdx.x * blockDim.x + threadIdx.x] = at;
}

extern "C" __global__ void ell(float* y, const float* value, const int* column, const float* x,
                               int rows, int width) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float sum = 0.0f;
    for (int k = 0; k < width; ++k) {
        long long at = (long long)k * rows + row;
        sum += value[at] * x[column[at]];
    }
    y[row] = sum;
}

extern "C" __global__ void phases(float* out, const float* in, int n, int turns) {
    // Three loops one behind the other: a budget that ends in the first knows nothing of the last.
    int i = blockIdx.x * blockDim.x + threadIdx.x, all = gridDim.x * blockDim.x;
    float sum = 0.0f;
    for (int k = i; k < n; k += all) sum += in[k];
    for (int t = 0; t < turns; ++t) sum = sum * 0.999f + 0.5f;
    for (int k = i; k < n; k += all) out[k] = in[k] * sum;
}

extern "C" __global__ void until_done(int* out, const unsigned* key, int most) {
    // Left by each thread when its data say so: on average after 1,024 turns.
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned x = key[i] | 1u;
    int turns = 0;
    while (turns < most && (x >> 22) != 0) {
        x = x * 1664525u + 1013904223u;
        ++turns;
    }
    out[i] = turns;
}

extern "C" __global__ void rows_of_lengths(float* out, const int* length, const float* in, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0.0f;
    for (int k = 0; k < length[i]; ++k) sum += in[(long long)k * n + i];
    out[i] = sum;
}

extern "C" __global__ void convolve(float* out, const float* in, const float* filter, int width,
                                    int reach) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    float sum = 0.0f;
    for (int dy = 0; dy < reach; ++dy)
        for (int dx = 0; dx < reach; ++dx)
            sum += in[(y + dy) * (width + reach) + x + dx] * filter[dy * reach + dx];
    out[y * width + x] = sum;
}

extern "C" __global__ void wavefront(int* score, const char* a, const char* b, int n) {
    // Smith-Waterman of one pair a block: anti-diagonals that grow and shrink again.
    __shared__ int old[3][257];
    int t = threadIdx.x;
    old[0][t + 1] = old[1][t + 1] = old[2][t + 1] = 0;
    if (t == 0) old[0][0] = old[1][0] = old[2][0] = 0;
    __syncthreads();
    int best = 0;
    char mine = a[blockIdx.x * 256 + t];
    for (int d = 0; d < n + 256; ++d) {
        int j = d - t;
        if (j >= 0 && j < n) {
            int same = b[(long long)blockIdx.x * n + j] == mine ? 2 : -1;
            int up = old[(d + 2) % 3][t + 1] - 1, left = old[(d + 2) % 3][t] - 1;
            int value = max(max(0, old[(d + 1) % 3][t] + same), max(up, left));
            old[d % 3][t + 1] = value;
            best = max(best, value);
        }
        __syncthreads();
    }
    score[blockIdx.x * 256 + t] = best;
}
