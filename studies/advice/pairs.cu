// Textbook mistakes and the same kernels after the change that advice asks for.
// `python -m studies advice` predicts both; --compile makes pairs.sm_70.ptx anew.

// --- every thread reads a row and a column from global memory; tiles go through shared memory ---

#define TILE 16

extern "C" __global__ void matmul_naive(const float* a, const float* b, float* c, int n)
{
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < n && col < n) {
        float sum = 0.0f;
        for (int i = 0; i < n; ++i) sum += a[row * n + i] * b[i * n + col];
        c[row * n + col] = sum;
    }
}

extern "C" __global__ void matmul_tiled(const float* a, const float* b, float* c, int n)
{
    __shared__ float tile_a[TILE][TILE];
    __shared__ float tile_b[TILE][TILE];
    int x = threadIdx.x, y = threadIdx.y;
    int row = blockIdx.y * TILE + y;
    int col = blockIdx.x * TILE + x;
    float sum = 0.0f;
    for (int first = 0; first < n; first += TILE) {
        tile_a[y][x] = a[row * n + first + x];
        tile_b[y][x] = b[(first + y) * n + col];
        __syncthreads();
        for (int i = 0; i < TILE; ++i) sum += tile_a[y][i] * tile_b[i][x];
        __syncthreads();
    }
    if (row < n && col < n) c[row * n + col] = sum;
}

#undef TILE
#define TILE 32

extern "C" __global__ void matmul_tiled_32(const float* a, const float* b, float* c, int n)
{
    __shared__ float tile_a[TILE][TILE];
    __shared__ float tile_b[TILE][TILE];
    int x = threadIdx.x, y = threadIdx.y;
    int row = blockIdx.y * TILE + y;
    int col = blockIdx.x * TILE + x;
    float sum = 0.0f;
    for (int first = 0; first < n; first += TILE) {
        tile_a[y][x] = a[row * n + first + x];
        tile_b[y][x] = b[(first + y) * n + col];
        __syncthreads();
        for (int i = 0; i < TILE; ++i) sum += tile_a[y][i] * tile_b[i][x];
        __syncthreads();
    }
    if (row < n && col < n) c[row * n + col] = sum;
}

// --- a matrix copied with neighbouring threads on neighbouring rows; then on neighbouring columns -

extern "C" __global__ void copy_by_rows(const float* in, float* out, int width, int height)
{
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    int col = blockIdx.y * blockDim.y + threadIdx.y;
    if (row < height && col < width) out[row * width + col] = in[row * width + col];
}

extern "C" __global__ void copy_by_columns(const float* in, float* out, int width, int height)
{
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row < height && col < width) out[row * width + col] = in[row * width + col];
}

// --- a transpose whose tile has all of a column in one bank; then with padded rows ----------------

template <int PITCH>
__device__ __forceinline__ void transpose(const float* in, float* out, int n, float (*tile)[PITCH])
{
    int x = blockIdx.x * 32 + threadIdx.x;
    int y = blockIdx.y * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8) tile[threadIdx.y + j][threadIdx.x] = in[(y + j) * n + x];
    __syncthreads();
    x = blockIdx.y * 32 + threadIdx.x;
    y = blockIdx.x * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8) out[(y + j) * n + x] = tile[threadIdx.x][threadIdx.y + j];
}

extern "C" __global__ void transpose_conflicts(const float* in, float* out, int n)
{
    __shared__ float tile[32][32];
    transpose<32>(in, out, n, tile);
}

extern "C" __global__ void transpose_padded(const float* in, float* out, int n)
{
    __shared__ float tile[32][33];
    transpose<33>(in, out, n, tile);
}

// --- a reduction whose active threads are spread over all warps; then side by side ----------------

extern "C" __global__ void reduce_divergent(const float* in, float* out)
{
    __shared__ float data[256];
    unsigned t = threadIdx.x;
    data[t] = in[blockIdx.x * blockDim.x + t];
    __syncthreads();
    for (unsigned s = 1; s < blockDim.x; s *= 2) {
        if (t % (2 * s) == 0) data[t] += data[t + s];
        __syncthreads();
    }
    if (t == 0) out[blockIdx.x] = data[0];
}

extern "C" __global__ void reduce_sequential(const float* in, float* out)
{
    __shared__ float data[256];
    unsigned t = threadIdx.x;
    data[t] = in[blockIdx.x * blockDim.x + t];
    __syncthreads();
    for (unsigned s = blockDim.x / 2; s > 0; s >>= 1) {
        if (t < s) data[t] += data[t + s];
        __syncthreads();
    }
    if (t == 0) out[blockIdx.x] = data[0];
}

extern "C" __global__ void reduce_masked(const float* in, float* out)
{
    __shared__ float data[256];
    unsigned t = threadIdx.x;
    data[t] = in[blockIdx.x * blockDim.x + t];
    __syncthreads();
    for (unsigned s = 1; s < blockDim.x; s *= 2) {
        if ((t & (2 * s - 1)) == 0) data[t] += data[t + s];
        __syncthreads();
    }
    if (t == 0) out[blockIdx.x] = data[0];
}

extern "C" __global__ void reduce_shuffles(const float* in, float* out)
{
    __shared__ float data[32];
    unsigned t = threadIdx.x;
    float sum = in[blockIdx.x * blockDim.x + t];
    for (int apart = 16; apart; apart >>= 1) sum += __shfl_down_sync(~0u, sum, apart);
    if (t % 32 == 0) data[t / 32] = sum;
    __syncthreads();
    if (t < 32) {
        sum = t < blockDim.x / 32 ? data[t] : 0.0f;
        for (int apart = 16; apart; apart >>= 1) sum += __shfl_down_sync(~0u, sum, apart);
        if (t == 0) out[blockIdx.x] = sum;
    }
}

// --- literals in double precision in a kernel of floats; then floats ------------------------------

extern "C" __global__ void polynomial_double(const float* in, float* out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float x = in[i], y = 0.0f;
    for (int k = 0; k < 32; ++k) y = y * x * 0.5 + 1.25;
    out[i] = y;
}

extern "C" __global__ void polynomial_float(const float* in, float* out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float x = in[i], y = 0.0f;
    for (int k = 0; k < 32; ++k) y = y * x * 0.5f + 1.25f;
    out[i] = y;
}

// --- a ring buffer addressed by a remainder; then by a mask, as its size is a power of two --------

extern "C" __global__ void ring_modulo(const float* in, float* out, int size, int taps)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0.0f;
    for (int k = 0; k < taps; ++k) sum += in[(i + k) % size];
    out[i] = sum;
}

extern "C" __global__ void ring_mask(const float* in, float* out, int size, int taps)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0.0f;
    for (int k = 0; k < taps; ++k) sum += in[(i + k) & (size - 1)];
    out[i] = sum;
}

// --- rows and columns from a quotient and a remainder; then with a width that is a constant --------

extern "C" __global__ void flip_divided(const float* in, float* out, int width)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int row = i / width, col = i % width;
    out[row * width + width - 1 - col] = in[i];
}

extern "C" __global__ void flip_constant(const float* in, float* out)
{
    constexpr int width = 1000;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int row = i / width, col = i % width;
    out[row * width + width - 1 - col] = in[i];
}

// --- a factor loaded again in every round, as a store may change it; then loaded once -------------

extern "C" __global__ void scale_reloading(const float* in, float* out, const float* factor, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int k = 0; k < n; ++k) out[k * 65536 + i] = in[k * 65536 + i] * factor[blockIdx.x];
}

extern "C" __global__ void scale_loaded(const float* in, float* out, const float* factor, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float once = factor[blockIdx.x];
    for (int k = 0; k < n; ++k) out[k * 65536 + i] = in[k * 65536 + i] * once;
}

// --- a transpose without shared memory; its change is transpose_padded ----------------------------

extern "C" __global__ void transpose_direct(const float* in, float* out, int n)
{
    int x = blockIdx.x * 32 + threadIdx.x;
    int y = blockIdx.y * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8) out[x * n + y + j] = in[(y + j) * n + x];
}

// --- one word a thread; then four -----------------------------------------------------------------

extern "C" __global__ void axpy_words(const float* in, float* out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 2.0f * in[i] + 1.0f;
}

extern "C" __global__ void axpy_vectors(const float4* in, float4* out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n / 4) return;
    float4 x = in[i];
    out[i] = make_float4(2.0f * x.x + 1.0f, 2.0f * x.y + 1.0f, 2.0f * x.z + 1.0f, 2.0f * x.w + 1.0f);
}

// --- a loop over the whole array by a few blocks; the change is the launch's ----------------------

extern "C" __global__ void grid_stride(const float* in, float* out, int n)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        out[i] = 2.0f * in[i] + 1.0f;
}

// --- floats that pass once; then halves in memory -------------------------------------------------

#include <cuda_fp16.h>

extern "C" __global__ void grid_stride_halves(const __half* in, __half* out, int n)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        out[i] = __float2half(2.0f * __half2float(in[i]) + 1.0f);
}

// --- a thread per row of a sparse matrix: neighbours read far apart; a warp per row side by side ---

extern "C" __global__ void spmv_scalar(const int* start, const int* column, const float* value,
                                       const float* x, float* y, int rows)
{
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < rows) {
        float sum = 0.0f;
        for (int j = start[row]; j < start[row + 1]; ++j) sum += value[j] * x[column[j]];
        y[row] = sum;
    }
}

extern "C" __global__ void spmv_warp(const int* start, const int* column, const float* value,
                                     const float* x, float* y, int rows)
{
    int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row < rows) {
        float sum = 0.0f;
        for (int j = start[row] + lane; j < start[row + 1]; j += 32) sum += value[j] * x[column[j]];
        for (int s = 16; s; s >>= 1) sum += __shfl_down_sync(~0u, sum, s);
        if (lane == 0) y[row] = sum;
    }
}

// --- one element a thread reads two words of shared memory for each product; sixteen read a half ---

// Each of 16 x 16 threads computes `side` x `side` results.
template <typename number, int side>
__device__ void product(const number* a, const number* b, number* c, int n)
{
    constexpr int tile = 16 * side;
    __shared__ number tile_a[16][tile], tile_b[16][tile];  // of a transposed: k first
    int x = threadIdx.x % 16, y = threadIdx.x / 16;
    number sum[side][side] = {};
    for (int first = 0; first < n; first += 16) {
        for (int k = threadIdx.x; k < 16 * tile; k += 256) {
            tile_a[k % 16][k / 16] = a[(blockIdx.y * tile + k / 16) * n + first + k % 16];
            tile_b[k / tile][k % tile] = b[(first + k / tile) * n + blockIdx.x * tile + k % tile];
        }
        __syncthreads();
        for (int k = 0; k < 16; ++k) {
            number left[side], right[side];
            for (int i = 0; i < side; ++i) left[i] = tile_a[k][y * side + i];
            for (int i = 0; i < side; ++i) right[i] = tile_b[k][x + 16 * i];
            for (int i = 0; i < side; ++i)
                for (int j = 0; j < side; ++j) sum[i][j] += left[i] * right[j];
        }
        __syncthreads();
    }
    for (int i = 0; i < side; ++i)
        for (int j = 0; j < side; ++j)
            c[(blockIdx.y * tile + y * side + i) * n + blockIdx.x * tile + x + 16 * j] = sum[i][j];
}

extern "C" __global__ void matmul_registers(const float* a, const float* b, float* c, int n)
{
    product<float, 8>(a, b, c, n);
}

extern "C" __global__ void dgemm_registers(const double* a, const double* b, double* c, int n)
{
    product<double, 4>(a, b, c, n);
}

extern "C" __global__ void dgemm_tiled(const double* a, const double* b, double* c, int n)
{
    __shared__ double tile_a[16][16], tile_b[16][16];
    int x = threadIdx.x, y = threadIdx.y;
    int row = blockIdx.y * 16 + y, col = blockIdx.x * 16 + x;
    double sum = 0.0;
    for (int first = 0; first < n; first += 16) {
        tile_a[y][x] = a[row * n + first + x];
        tile_b[y][x] = b[(first + y) * n + col];
        __syncthreads();
        for (int k = 0; k < 16; ++k) sum += tile_a[y][k] * tile_b[k][x];
        __syncthreads();
    }
    c[row * n + col] = sum;
}

// --- every element is counted in global memory; each block counts in shared memory first ---

extern "C" __global__ void histogram_global(const int* in, int* bins, int n)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicAdd(&bins[in[i]], 1);
}

extern "C" __global__ void histogram_shared(const int* in, int* bins, int n)
{
    __shared__ int own[256];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) own[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicAdd(&own[in[i]], 1);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x) atomicAdd(&bins[i], own[i]);
}

// --- products of halves, all by rows: by lanes, then on matrix units, step by step as
// github.com/DefTruth/CUDA-Learn-Notes (hgemm) describes what it measures ---

#include <mma.h>
using namespace nvcuda;

extern "C" __global__ void half_naive(const half* a, const half* b, half* c, int m, int n, int k)
{
    int col = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= m || col >= n) return;
    half sum = __float2half(0.0f);
    for (int i = 0; i < k; ++i) sum = __hadd(sum, __hmul(a[row * k + i], b[i * n + col]));
    c[row * n + col] = sum;
}

typedef wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> Left;
typedef wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> Right;
typedef wmma::fragment<wmma::accumulator, 16, 16, 16, half> Sum;

// A warp for each 16 x 16 results, its factors from global memory.
extern "C" __global__ void wmma_naive(const half* a, const half* b, half* c, int m, int n, int k)
{
    Left left;
    Right right;
    Sum sum;
    int row = blockIdx.y * 16, col = blockIdx.x * 16;
    wmma::fill_fragment(sum, __float2half(0.0f));
    for (int i = 0; i < k; i += 16) {
        wmma::load_matrix_sync(left, a + row * k + i, k);
        wmma::load_matrix_sync(right, b + i * n + col, n);
        wmma::mma_sync(sum, left, right, sum);
    }
    wmma::store_matrix_sync(c + row * n + col, sum, n, wmma::mem_row_major);
}

// Four by two warps share their factors; each has `Y` x `X` tiles.
template <int Y, int X>
__device__ void shared_tiles(const half* a, const half* b, half* c, int n, int k)
{
    constexpr int rows = 64 * Y, cols = 32 * X, per_a = rows * 16 / 256, per_b = cols * 16 / 256;
    __shared__ half tile_a[rows][16], tile_b[16][cols];
    int t = threadIdx.x, warp = t / 32, row = blockIdx.y * rows, col = blockIdx.x * cols;
    int y = warp / 2 * 16 * Y, x = warp % 2 * 16 * X;
    Left left[Y];
    Right right[X];
    Sum sum[Y][X];
    for (int i = 0; i < Y; ++i)
        for (int j = 0; j < X; ++j) wmma::fill_fragment(sum[i][j], __float2half(0.0f));
    for (int first = 0; first < k; first += 16) {
        int ay = t * per_a / 16, ax = t * per_a % 16, by = t * per_b / cols, bx = t * per_b % cols;
        for (int i = 0; i < per_a; i += 4)
            *(float2*)&tile_a[ay][ax + i] = *(const float2*)&a[(row + ay) * k + first + ax + i];
        for (int i = 0; i < per_b; i += 2)
            *(half2*)&tile_b[by][bx + i] = *(const half2*)&b[(first + by) * n + col + bx + i];
        __syncthreads();
        for (int i = 0; i < Y; ++i) wmma::load_matrix_sync(left[i], &tile_a[y + 16 * i][0], 16);
        for (int j = 0; j < X; ++j) wmma::load_matrix_sync(right[j], &tile_b[0][x + 16 * j], cols);
        for (int i = 0; i < Y; ++i)
            for (int j = 0; j < X; ++j) wmma::mma_sync(sum[i][j], left[i], right[j], sum[i][j]);
        __syncthreads();
    }
    for (int i = 0; i < Y; ++i)
        for (int j = 0; j < X; ++j)
            wmma::store_matrix_sync(c + (row + y + 16 * i) * n + col + x + 16 * j, sum[i][j], n, wmma::mem_row_major);
}

extern "C" __global__ void wmma_shared(const half* a, const half* b, half* c, int m, int n, int k)
{
    shared_tiles<1, 1>(a, b, c, n, k);
}

extern "C" __global__ void wmma_warps(const half* a, const half* b, half* c, int m, int n, int k)
{
    shared_tiles<2, 4>(a, b, c, n, k);
}

// --- one sum of all threads by atomics; then one atomic for each warp ------------------------------

extern "C" __global__ void sum_lanes(const float* in, float* out, int n)
{
    float sum = 0.0f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += in[i];
    atomicAdd(out, sum);
}

extern "C" __global__ void sum_warps(const float* in, float* out, int n)
{
    float sum = 0.0f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += in[i];
    for (int apart = 16; apart > 0; apart >>= 1) sum += __shfl_down_sync(0xffffffffu, sum, apart);
    if (threadIdx.x % 32 == 0) atomicAdd(out, sum);
}
