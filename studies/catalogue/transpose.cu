// target: 6.0
// Copies and transpositions of a square matrix by tiles of 16 x 16, one element for each thread.

extern "C" __global__ void matrix_copy(float *out, const float *in, int n) {
    int i = (blockIdx.y * 16 + threadIdx.y) * n + blockIdx.x * 16 + threadIdx.x;
    out[i] = in[i];
}

extern "C" __global__ void matrix_copy_shared(float *out, const float *in, int n) {
    __shared__ float tile[16][16];
    int i = (blockIdx.y * 16 + threadIdx.y) * n + blockIdx.x * 16 + threadIdx.x;
    tile[threadIdx.y][threadIdx.x] = in[i];
    __syncthreads();
    out[i] = tile[threadIdx.y][threadIdx.x];
}

extern "C" __global__ void transpose_naive(float *out, const float *in, int n) {
    int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
    out[x * n + y] = in[y * n + x];
}

#define TILED(NAME, PITCH)                                                            \
    extern "C" __global__ void NAME(float *out, const float *in, int n) {             \
        __shared__ float tile[16][PITCH];                                             \
        int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;     \
        tile[threadIdx.y][threadIdx.x] = in[y * n + x];                               \
        __syncthreads();                                                              \
        x = blockIdx.y * 16 + threadIdx.x, y = blockIdx.x * 16 + threadIdx.y;         \
        out[y * n + x] = tile[threadIdx.x][threadIdx.y];                              \
    }

TILED(transpose_shared, 16)
TILED(transpose_padded, 17)
