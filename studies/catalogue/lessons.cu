// target: 6.0
// Kernels of a textbook on parallel programming, each element by a thread: sums of matrices, counts by
// atomics, products, reductions.

typedef unsigned u32;

extern "C" __global__ void add_by_rows(const float *a, const float *b, float *c, int width, int height) {
    int row = blockIdx.y * blockDim.y + threadIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < height && column < width) c[row * width + column] = a[row * width + column] + b[row * width + column];
}

// Threads beside each other go down the columns: every lane has a line of its own.
extern "C" __global__ void add_by_columns(const float *a, const float *b, float *c, int width, int height) {
    int row = blockIdx.x * blockDim.x + threadIdx.x, column = blockIdx.y * blockDim.y + threadIdx.y;
    if (row < height && column < width) c[row * width + column] = a[row * width + column] + b[row * width + column];
}

extern "C" __global__ void count_in_memory(const u32 *values, u32 *bins, u32 n, u32 count) {
    u32 thread = blockIdx.x * blockDim.x + threadIdx.x, step = blockDim.x * gridDim.x;
    for (u32 bin = thread; bin < count; bin += step) bins[bin] = 0;
    __syncthreads();
    for (u32 i = thread; i < n; i += step) atomicAdd(&bins[values[i]], 1u);
}

extern "C" __global__ void count_in_blocks(const u32 *values, u32 *bins, u32 n, u32 count) {
    extern __shared__ u32 mine[];
    u32 thread = blockIdx.x * blockDim.x + threadIdx.x, step = blockDim.x * gridDim.x;
    for (u32 bin = threadIdx.x; bin < count; bin += blockDim.x) mine[bin] = 0;
    __syncthreads();
    for (u32 i = thread; i < n; i += step) atomicAdd(&mine[values[i]], 1u);
    __syncthreads();
    for (u32 bin = threadIdx.x; bin < count; bin += blockDim.x) atomicAdd(&bins[bin], mine[bin]);
}

// A row of the matrix for each thread.
extern "C" __global__ void rows_times_vector(u32 *out, const u32 *matrix, const u32 *vector, int rows, int columns) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    u32 sum = 0;
    for (int k = 0; k < columns; ++k) sum += matrix[row * columns + k] * vector[k];
    out[row] = sum;
}

extern "C" __global__ void product(const u32 *a, const u32 *b, u32 *c, int rows, int inner, int columns) {
    int row = blockIdx.y * blockDim.y + threadIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows || column >= columns) return;
    u32 sum = 0;
    for (int k = 0; k < inner; ++k) sum += a[row * inner + k] * b[k * columns + column];
    c[row * columns + column] = sum;
}

// Tiles as wide as the block, whose width only the launch tells.
extern "C" __global__ void product_of_tiles(const u32 *a, const u32 *b, u32 *c, int rows, int inner, int columns) {
    extern __shared__ u32 tiles[];
    int width = blockDim.x, x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * width + y, column = blockIdx.x * width + x;
    u32 *left = tiles, *right = tiles + width * width, sum = 0;
    for (int tile = 0; tile < (inner + width - 1) / width; ++tile) {
        int at = tile * width;
        left[y * width + x] = row < rows && at + x < inner ? a[row * inner + at + x] : 0;
        right[y * width + x] = at + y < inner && column < columns ? b[(at + y) * columns + column] : 0;
        __syncthreads();
        for (int k = 0; k < width; ++k) sum += left[y * width + k] * right[k * width + x];
        __syncthreads();
    }
    if (row < rows && column < columns) c[row * columns + column] = sum;
}

// Harris' reductions by blocks of any size, one sum for each block.
#define TREE(NAME, LOAD, STEPS)                                                          \
    extern "C" __global__ void NAME(const u32 *in, u32 n, u32 *out) {                    \
        extern __shared__ u32 sums[];                                                    \
        u32 t = threadIdx.x, size = blockDim.x;                                          \
        LOAD;                                                                            \
        __syncthreads();                                                                 \
        STEPS                                                                            \
        if (t == 0) out[blockIdx.x] = sums[0];                                           \
    }
#define ONE                                                                              \
    u32 i = blockIdx.x * size + t;                                                       \
    sums[t] = i < n ? in[i] : 0
#define TWO                                                                              \
    u32 i = blockIdx.x * size * 2 + t;                                                   \
    sums[t] = (i < n ? in[i] : 0) + (i + size < n ? in[i + size] : 0)
TREE(tree_divergent, ONE, for (u32 d = 1; d < size; d *= 2) { if (t % (2 * d) == 0) sums[t] += t + d < n ? sums[t + d] : 0; __syncthreads(); })
TREE(tree_strided, ONE, for (u32 d = 1; d < size; d *= 2) { u32 at = 2 * d * t; if (at < size) sums[at] += at + d < n ? sums[at + d] : 0; __syncthreads(); })
TREE(tree_sequential, ONE, for (u32 d = size / 2; d > 0; d /= 2) { if (t < d) sums[t] += sums[t + d]; __syncthreads(); })
TREE(tree_two, TWO, for (u32 d = size / 2; d > 0; d /= 2) { if (t < d) sums[t] += sums[t + d]; __syncthreads(); })
#define HALF(D) mine[t] += mine[t + D];
TREE(tree_warp, TWO, for (u32 d = size / 2; d > 32; d /= 2) { if (t < d) sums[t] += sums[t + d]; __syncthreads(); }
     if (t < 32) { volatile u32 *mine = sums; HALF(32) HALF(16) HALF(8) HALF(4) HALF(2) HALF(1) })
