// Applications on matrix units.
// target: 7.0

#include <cuda_fp16.h>
#include <mma.h>

using namespace nvcuda::wmma;
using A = fragment<matrix_a, 16, 16, 16, half, row_major>;
using B = fragment<matrix_b, 16, 16, 16, half, row_major>;
using Bt = fragment<matrix_b, 16, 16, 16, half, col_major>;
using C = fragment<accumulator, 16, 16, 16, float>;

// A tile of 16 x 16 a warp.
extern "C" __global__ void gemm_matrix(const half* a, const half* b, float* c, int n) {
    int row = (blockIdx.y * blockDim.y + threadIdx.y) * 16;
    int col = (blockIdx.x * blockDim.x + threadIdx.x) / 32 * 16;
    C sum;
    fill_fragment(sum, 0.0f);
    for (int k = 0; k < n; k += 16) {
        A left;
        B right;
        load_matrix_sync(left, a + row * n + k, n);
        load_matrix_sync(right, b + k * n + col, n);
        mma_sync(sum, left, right, sum);
    }
    store_matrix_sync(c + row * n + col, sum, n, mem_row_major);
}
// 32 x 32 a warp: every fragment is used twice.
extern "C" __global__ void gemm_matrix_2x2(const half* a, const half* b, float* c, int n) {
    int row = (blockIdx.y * blockDim.y + threadIdx.y) * 32;
    int col = (blockIdx.x * blockDim.x + threadIdx.x) / 32 * 32;
    C sum[2][2];
    for (int i = 0; i < 4; ++i) fill_fragment(sum[i / 2][i % 2], 0.0f);
    for (int k = 0; k < n; k += 16) {
        A left[2];
        B right[2];
        for (int i = 0; i < 2; ++i) {
            load_matrix_sync(left[i], a + (row + 16 * i) * n + k, n);
            load_matrix_sync(right[i], b + k * n + col + 16 * i, n);
        }
        for (int i = 0; i < 4; ++i) mma_sync(sum[i / 2][i % 2], left[i / 2], right[i % 2], sum[i / 2][i % 2]);
    }
    for (int i = 0; i < 4; ++i)
        store_matrix_sync(c + (row + 16 * (i / 2)) * n + col + 16 * (i % 2), sum[i / 2][i % 2], n,
                          mem_row_major);
}
// Scores of 16 queries and 16 keys of 64 values a warp.
extern "C" __global__ void attention_scores_matrix(const half* q, const half* k, float* out, int n) {
    int row = (blockIdx.y * blockDim.y + threadIdx.y) * 16;
    int col = (blockIdx.x * blockDim.x + threadIdx.x) / 32 * 16;
    C sum;
    fill_fragment(sum, 0.0f);
    for (int d = 0; d < 64; d += 16) {
        A left;
        Bt right;
        load_matrix_sync(left, q + row * 64 + d, 64);
        load_matrix_sync(right, k + col * 64 + d, 64);
        mma_sync(sum, left, right, sum);
    }
    for (int i = 0; i < sum.num_elements; ++i) sum.x[i] *= 0.125f;
    store_matrix_sync(out + row * n + col, sum, n, mem_row_major);
}
