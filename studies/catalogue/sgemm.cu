// target: 8.0
// Steps towards a fast product of matrices, C = alpha A B + beta C, all row-major.

extern "C" __global__ void sgemm_naive(int M, int N, int K, float alpha, const float *A, const float *B, float beta, float *C) {
    const unsigned row = blockIdx.x * blockDim.x + threadIdx.x, column = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= M || column >= N) return;
    float sum = 0.0f;
    for (int k = 0; k < K; ++k) sum += A[row * K + k] * B[k * N + column];
    C[row * N + column] = alpha * sum + beta * C[row * N + column];
}

extern "C" __global__ void sgemm_coalesced(int M, int N, int K, float alpha, const float *A, const float *B, float beta, float *C) {
    const int row = blockIdx.x * 32 + threadIdx.x / 32, column = blockIdx.y * 32 + threadIdx.x % 32;
    if (row >= M || column >= N) return;
    float sum = 0.0f;
    for (int k = 0; k < K; ++k) sum += A[row * K + k] * B[k * N + column];
    C[row * N + column] = alpha * sum + beta * C[row * N + column];
}

extern "C" __global__ void sgemm_shared(int M, int N, int K, float alpha, const float *A, const float *B, float beta, float *C) {
    __shared__ float a[32 * 32], b[32 * 32];
    const unsigned row = threadIdx.x / 32, column = threadIdx.x % 32;
    A += blockIdx.x * 32 * K;
    B += blockIdx.y * 32;
    C += blockIdx.x * 32 * N + blockIdx.y * 32;
    float sum = 0.0f;
    for (int start = 0; start < K; start += 32) {
        a[row * 32 + column] = A[row * K + column];
        b[row * 32 + column] = B[row * N + column];
        __syncthreads();
        A += 32;
        B += 32 * N;
        for (int k = 0; k < 32; ++k) sum += a[row * 32 + k] * b[k * 32 + column];
        __syncthreads();
    }
    C[row * N + column] = alpha * sum + beta * C[row * N + column];
}

// Blocks of 64 x 64, eight results of a column for each of 512 threads.
extern "C" __global__ void sgemm_column(int M, int N, int K, float alpha, const float *A, const float *B, float beta, float *C) {
    __shared__ float a[64 * 8], b[8 * 64];
    const unsigned column = threadIdx.x % 64, row = threadIdx.x / 64;
    A += blockIdx.y * 64 * K;
    B += blockIdx.x * 64;
    C += blockIdx.y * 64 * N + blockIdx.x * 64;
    const unsigned ac = threadIdx.x % 8, ar = threadIdx.x / 8;
    float sums[8] = {0.0f};
    for (int start = 0; start < K; start += 8) {
        a[ar * 8 + ac] = A[ar * K + ac];
        b[row * 64 + column] = B[row * N + column];
        __syncthreads();
        A += 8;
        B += 8 * N;
        for (int k = 0; k < 8; ++k) {
            float other = b[k * 64 + column];
            for (int r = 0; r < 8; ++r) sums[r] += a[(row * 8 + r) * 8 + k] * other;
        }
        __syncthreads();
    }
    for (int r = 0; r < 8; ++r) {
        float *at = &C[(row * 8 + r) * N + column];
        *at = alpha * sums[r] + beta * *at;
    }
}

// Blocks of 128 x 128, eight times eight results for each of 256 threads.
extern "C" __global__ void __launch_bounds__(256, 1)
sgemm_block(int M, int N, int K, float alpha, const float *A, const float *B, float beta, float *C) {
    __shared__ float a[128 * 8], b[8 * 128];
    const unsigned column = threadIdx.x % 16, row = threadIdx.x / 16;
    A += blockIdx.y * 128 * K;
    B += blockIdx.x * 128;
    C += blockIdx.y * 128 * N + blockIdx.x * 128;
    const unsigned ar = threadIdx.x / 8, ac = threadIdx.x % 8, br = threadIdx.x / 128, bc = threadIdx.x % 128;
    float sums[64] = {0.0f}, m[8], n[8];
    for (int start = 0; start < K; start += 8) {
        for (int skip = 0; skip < 128; skip += 32) a[(ar + skip) * 8 + ac] = A[(ar + skip) * K + ac];
        for (int skip = 0; skip < 8; skip += 2) b[(br + skip) * 128 + bc] = B[(br + skip) * N + bc];
        __syncthreads();
        A += 8;
        B += 8 * N;
        for (int k = 0; k < 8; ++k) {
            for (int i = 0; i < 8; ++i) m[i] = a[(row * 8 + i) * 8 + k];
            for (int i = 0; i < 8; ++i) n[i] = b[k * 128 + column * 8 + i];
            for (int i = 0; i < 8; ++i)
                for (int j = 0; j < 8; ++j) sums[i * 8 + j] += m[i] * n[j];
        }
        __syncthreads();
    }
    for (int i = 0; i < 8; ++i)
        for (int j = 0; j < 8; ++j) {
            float *at = &C[(row * 8 + i) * N + column * 8 + j];
            *at = alpha * sums[i * 8 + j] + beta * *at;
        }
}

// The same with A transposed in shared memory and four words at a time; PAD keeps banks apart. With
// the 5 of step 8 (8_kernel_bank_extra_col.cuh) no row starts at 16 bytes: its words go one by one.
#define VECTOR(NAME, BM, BN, BK, PAD)                                                                                      \
    extern "C" __global__ void __launch_bounds__(256, 1)                                                                   \
    NAME(int M, int N, int K, float alpha, const float *A, const float *B, float beta, float *C) {                         \
        __shared__ float a[BM * BK], b[BK * (BN + PAD)];                                                                   \
        const unsigned column = threadIdx.x % (BN / 8), row = threadIdx.x / (BN / 8);                                      \
        A += blockIdx.y * BM * K;                                                                                          \
        B += blockIdx.x * BN;                                                                                              \
        C += blockIdx.y * BM * N + blockIdx.x * BN;                                                                        \
        const unsigned ar = threadIdx.x / (BK / 4), ac = threadIdx.x % (BK / 4);                                           \
        const unsigned br = threadIdx.x / (BN / 4), bc = threadIdx.x % (BN / 4);                                           \
        float sums[64] = {0.0f}, m[8], n[8];                                                                               \
        for (int start = 0; start < K; start += BK) {                                                                      \
            for (int skip = 0; skip < BM; skip += 1024 / BK) {                                                             \
                float4 t = *(const float4 *)&A[(ar + skip) * K + ac * 4];                                                  \
                a[(ac * 4 + 0) * BM + ar + skip] = t.x;                                                                    \
                a[(ac * 4 + 1) * BM + ar + skip] = t.y;                                                                    \
                a[(ac * 4 + 2) * BM + ar + skip] = t.z;                                                                    \
                a[(ac * 4 + 3) * BM + ar + skip] = t.w;                                                                    \
            }                                                                                                              \
            for (int skip = 0; skip < BK; skip += 1024 / BN) {                                                             \
                float4 t = *(const float4 *)&B[(br + skip) * N + bc * 4];                                                  \
                float *to = &b[(br + skip) * (BN + PAD) + bc * 4];                                                         \
                if (PAD % 4) to[0] = t.x, to[1] = t.y, to[2] = t.z, to[3] = t.w;                                           \
                else *(float4 *)to = t;                                                                                    \
            }                                                                                                              \
            __syncthreads();                                                                                               \
            A += BK;                                                                                                       \
            B += BK * N;                                                                                                   \
            for (int k = 0; k < BK; ++k) {                                                                                 \
                for (int i = 0; i < 8; ++i) m[i] = a[k * BM + row * 8 + i];                                                \
                for (int i = 0; i < 8; ++i) n[i] = b[k * (BN + PAD) + column * 8 + i];                                     \
                for (int i = 0; i < 8; ++i)                                                                                \
                    for (int j = 0; j < 8; ++j) sums[i * 8 + j] += m[i] * n[j];                                            \
            }                                                                                                              \
            __syncthreads();                                                                                               \
        }                                                                                                                  \
        for (int i = 0; i < 8; ++i)                                                                                        \
            for (int j = 0; j < 8; j += 4) {                                                                               \
                float4 *at = (float4 *)&C[(row * 8 + i) * N + column * 8 + j];                                             \
                float4 t = *at;                                                                                            \
                t.x = alpha * sums[i * 8 + j] + beta * t.x;                                                                \
                t.y = alpha * sums[i * 8 + j + 1] + beta * t.y;                                                            \
                t.z = alpha * sums[i * 8 + j + 2] + beta * t.z;                                                            \
                t.w = alpha * sums[i * 8 + j + 3] + beta * t.w;                                                            \
                *at = t;                                                                                                   \
            }                                                                                                              \
    }

VECTOR(sgemm_vector, 128, 128, 8, 0)
VECTOR(sgemm_padded, 128, 128, 8, 5)
VECTOR(sgemm_tuned, 128, 128, 16, 0)

// Blocks of 128 x 128, 128 threads: warps of 64 x 64, in which each thread makes 4 times 8 x 4
// results. A's tile is transposed.
extern "C" __global__ void __launch_bounds__(128)
sgemm_warps(int M, int N, int K, float alpha, const float *A, const float *B, float beta, float *C) {
    __shared__ float a[128 * 16], b[16 * 128];
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned wr = warp / 2, wc = warp % 2, tr = lane / 4, tc = lane % 4;
    A += blockIdx.y * 128 * K;
    B += blockIdx.x * 128;
    C += (blockIdx.y * 128 + wr * 64) * N + blockIdx.x * 128 + wc * 64;
    const unsigned ar = threadIdx.x / 4, ac = threadIdx.x % 4, br = threadIdx.x / 32, bc = threadIdx.x % 32;
    float sums[128] = {0.0f}, m[8], n[16];
    for (int start = 0; start < K; start += 16) {
        for (int skip = 0; skip < 128; skip += 32) {
            float4 t = *(const float4 *)&A[(ar + skip) * K + ac * 4];
            a[(ac * 4 + 0) * 128 + ar + skip] = t.x;
            a[(ac * 4 + 1) * 128 + ar + skip] = t.y;
            a[(ac * 4 + 2) * 128 + ar + skip] = t.z;
            a[(ac * 4 + 3) * 128 + ar + skip] = t.w;
        }
        for (int skip = 0; skip < 16; skip += 4)
            *(float4 *)&b[(br + skip) * 128 + bc * 4] = *(const float4 *)&B[(br + skip) * N + bc * 4];
        __syncthreads();
        A += 16;
        B += 16 * N;
        for (int k = 0; k < 16; ++k) {
            for (int i = 0; i < 8; ++i) m[i] = a[k * 128 + wr * 64 + tr * 8 + i];
            for (int part = 0; part < 4; ++part)
                for (int i = 0; i < 4; ++i) n[part * 4 + i] = b[k * 128 + wc * 64 + part * 16 + tc * 4 + i];
            for (int i = 0; i < 8; ++i)
                for (int j = 0; j < 16; ++j) sums[i * 16 + j] += m[i] * n[j];
        }
        __syncthreads();
    }
    for (int i = 0; i < 8; ++i)
        for (int part = 0; part < 4; ++part) {
            float4 *at = (float4 *)&C[(tr * 8 + i) * N + part * 16 + tc * 4];
            float4 t = *at;
            t.x = alpha * sums[i * 16 + part * 4] + beta * t.x;
            t.y = alpha * sums[i * 16 + part * 4 + 1] + beta * t.y;
            t.z = alpha * sums[i * 16 + part * 4 + 2] + beta * t.z;
            t.w = alpha * sums[i * 16 + part * 4 + 3] + beta * t.w;
            *at = t;
        }
}
