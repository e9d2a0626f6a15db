// Applications: dense linear algebra.
// target: 5.0

#define K extern "C" __global__ void
#define X (blockIdx.x * blockDim.x + threadIdx.x)
#define Y (blockIdx.y * blockDim.y + threadIdx.y)

K gemm_naive(const float* a, const float* b, float* c, int n) {
    int row = Y, col = X;
    if (row >= n || col >= n) return;
    float sum = 0;
    for (int k = 0; k < n; ++k) sum += a[row * n + k] * b[k * n + col];
    c[row * n + col] = sum;
}

template <typename T>
__device__ void tiled(const T* a, const T* b, T* c, int n) {
    __shared__ T ta[16][16], tb[16][17];
    int x = threadIdx.x, y = threadIdx.y, row = Y, col = X;
    T sum = 0;
    for (int k = 0; k < n; k += 16) {
        ta[y][x] = a[row * n + k + x];
        tb[y][x] = b[(k + y) * n + col];
        __syncthreads();
        for (int i = 0; i < 16; ++i) sum += ta[y][i] * tb[i][x];
        __syncthreads();
    }
    c[row * n + col] = sum;
}
K gemm_tiled(const float* a, const float* b, float* c, int n) { tiled(a, b, c, n); }
K gemm_tiled_f64(const double* a, const double* b, double* c, int n) { tiled(a, b, c, n); }

// 64 x 64 results a block of 16 x 16 threads, 4 x 4 a thread.
K gemm_register(const float* a, const float* b, float* c, int n) {
    __shared__ float ta[16][65], tb[16][64];
    int x = threadIdx.x, y = threadIdx.y, t = y * 16 + x;
    int row0 = blockIdx.y * 64, col0 = blockIdx.x * 64;
    float sum[4][4] = {};
    for (int k = 0; k < n; k += 16) {
        for (int i = t; i < 1024; i += 256) {
            ta[i % 16][i / 16] = a[(row0 + i / 16) * n + k + i % 16];
            tb[i / 64][i % 64] = b[(k + i / 64) * n + col0 + i % 64];
        }
        __syncthreads();
        for (int j = 0; j < 16; ++j) {
            float va[4], vb[4];
            for (int i = 0; i < 4; ++i) va[i] = ta[j][y * 4 + i], vb[i] = tb[j][x + 16 * i];
            for (int i = 0; i < 4; ++i)
                for (int m = 0; m < 4; ++m) sum[i][m] += va[i] * vb[m];
        }
        __syncthreads();
    }
    for (int i = 0; i < 4; ++i)
        for (int m = 0; m < 4; ++m) c[(row0 + y * 4 + i) * n + col0 + x + 16 * m] = sum[i][m];
}

K gemv_warp(const float* a, const float* x, float* y, int n) {
    int row = X / 32, lane = threadIdx.x % 32;
    if (row >= n) return;
    float sum = 0;
    for (int k = lane; k < n; k += 32) sum += a[row * n + k] * x[k];
    for (int far = 16; far; far /= 2) sum += __shfl_down_sync(~0u, sum, far);
    if (lane == 0) y[row] = sum;
}
K gemv_transposed(const float* a, const float* x, float* y, int n) {
    int col = X;
    if (col >= n) return;
    float sum = 0;
    for (int k = 0; k < n; ++k) sum += a[k * n + col] * x[k];
    y[col] = sum;
}
K axpy(const float* x, const float* y, float* z, float a, int n) {
    int i = X;
    if (i < n) z[i] = a * x[i] + y[i];
}
K triad_f64(const double* x, const double* y, double* z, double a, int n) {
    for (int i = X; i < n; i += gridDim.x * blockDim.x) z[i] = x[i] + a * y[i];
}
K rank_one(const float* a, const float* x, const float* y, float* out, int n) {
    int row = Y, col = X;
    if (row < n && col < n) out[row * n + col] = a[row * n + col] + x[row] * y[col];
}
// Elimination of column p: what stands below and right of the pivot.
K lu_step(const float* a, float* out, int p, int n) {
    int row = Y + p + 1, col = X + p + 1;
    if (row >= n || col >= n) return;
    float factor = a[row * n + p] / (a[p * n + p] + 2.0f);
    out[row * n + col] = a[row * n + col] - factor * a[p * n + col];
}
// One lower triangular system of 64 a block, solved column by column in shared memory.
K triangular_solve(const float* a, const float* b, float* x) {
    __shared__ float rest[64];
    const float* mine = a + blockIdx.x * 4096;
    int row = threadIdx.x;
    rest[row] = b[blockIdx.x * 64 + row];
    __syncthreads();
    for (int col = 0; col < 64; ++col) {
        float value = rest[col] / (mine[col * 64 + col] + 2.0f);
        __syncthreads();
        if (row == col) rest[row] = value;
        if (row > col) rest[row] -= mine[row * 64 + col] * value;
        __syncthreads();
    }
    x[blockIdx.x * 64 + row] = rest[row];
}
// Cholesky factors of 32 x 32 matrices, one a block; the diagonal is made to dominate.
K cholesky_batched(const float* a, float* out) {
    __shared__ float m[32][33];
    int row = threadIdx.x;
    const float* mine = a + blockIdx.x * 1024;
    for (int col = 0; col < 32; ++col)
        m[row][col] = mine[col * 32 + row] + (row == col ? 64.0f : 0.0f);
    __syncthreads();
    for (int k = 0; k < 32; ++k) {
        float pivot = sqrtf(m[k][k]);
        __syncthreads();
        if (row == k) m[k][k] = pivot;
        if (row > k) m[row][k] /= pivot;
        __syncthreads();
        for (int col = k + 1; col < 32; ++col)
            if (row >= col) m[row][col] -= m[row][k] * m[col][k];
        __syncthreads();
    }
    for (int col = 0; col < 32; ++col) out[blockIdx.x * 1024 + col * 32 + row] = m[row][col];
}
K transpose_naive(const float* in, float* out, int n) {
    int x = X, y = Y;
    if (x < n && y < n) out[x * n + y] = in[y * n + x];
}
K transpose_tiled(const float* in, float* out, int n) {
    __shared__ float tile[32][33];
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
    for (int i = 0; i < 32; i += blockDim.y) tile[threadIdx.y + i][threadIdx.x] = in[(y + i) * n + x];
    __syncthreads();
    x = blockIdx.y * 32 + threadIdx.x, y = blockIdx.x * 32 + threadIdx.y;
    for (int i = 0; i < 32; i += blockDim.y) out[(y + i) * n + x] = tile[threadIdx.x][threadIdx.y + i];
}
