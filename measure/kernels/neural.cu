// Applications: what neural networks are made of.
// target: 5.0

#define K extern "C" __global__ void
#define X (int)(blockIdx.x * blockDim.x + threadIdx.x)
#define Y (int)(blockIdx.y * blockDim.y + threadIdx.y)

__device__ float block_sum(float value, float* places) {
    for (int far = 16; far; far /= 2) value += __shfl_xor_sync(~0u, value, far);
    if (threadIdx.x % 32 == 0) places[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0;
    for (int w = 0; w < blockDim.x / 32; ++w) value += places[w];
    __syncthreads();
    return value;
}
__device__ float block_max(float value, float* places) {
    for (int far = 16; far; far /= 2) value = fmaxf(value, __shfl_xor_sync(~0u, value, far));
    if (threadIdx.x % 32 == 0) places[threadIdx.x / 32] = value;
    __syncthreads();
    value = places[0];
    for (int w = 1; w < blockDim.x / 32; ++w) value = fmaxf(value, places[w]);
    __syncthreads();
    return value;
}

// A row a block.
K softmax(const float* in, float* out, int width) {
    __shared__ float places[32];
    const float* row = in + blockIdx.x * width;
    float top = -1e30f, sum = 0;
    for (int i = threadIdx.x; i < width; i += blockDim.x) top = fmaxf(top, row[i]);
    top = block_max(top, places);
    for (int i = threadIdx.x; i < width; i += blockDim.x) sum += __expf(row[i] - top);
    sum = block_sum(sum, places);
    for (int i = threadIdx.x; i < width; i += blockDim.x)
        out[blockIdx.x * width + i] = __expf(row[i] - top) / sum;
}
K layer_norm(const float* in, const float* gain, const float* bias, float* out, int width) {
    __shared__ float places[32];
    const float* row = in + blockIdx.x * width;
    float sum = 0, square = 0;
    for (int i = threadIdx.x; i < width; i += blockDim.x) sum += row[i], square += row[i] * row[i];
    float mean = block_sum(sum, places) / width;
    float scale = rsqrtf(block_sum(square, places) / width - mean * mean + 1e-5f);
    for (int i = threadIdx.x; i < width; i += blockDim.x)
        out[blockIdx.x * width + i] = (row[i] - mean) * scale * gain[i] + bias[i];
}
K gelu(const float* in, float* out, int n) {
    int i = X;
    if (i >= n) return;
    float x = in[i];
    out[i] = 0.5f * x * (1 + tanhf(0.7978846f * (x + 0.044715f * x * x * x)));
}
K swiglu(const float* gate, const float* in, float* out, int n) {
    int i = X;
    if (i < n) out[i] = gate[i] / (1 + __expf(-gate[i])) * in[i];
}
K adam(const float* grad, const float* weight, const float* first, const float* second, float* out,
       float* first_out, float* second_out, float rate, int n) {
    int i = X;
    if (i >= n) return;
    float g = grad[i], m = 0.9f * first[i] + 0.1f * g, v = 0.999f * second[i] + 0.001f * g * g;
    first_out[i] = m, second_out[i] = v;
    out[i] = weight[i] - rate * m / (sqrtf(fabsf(v)) + 1e-8f);
}
K embedding(const unsigned* tokens, const float* table, float* out, int width, int n) {
    int i = X;
    if (i < n) out[i] = table[tokens[i / width] * width + i % width];
}
// Scores of queries and keys of 64 values, a score a thread.
K attention_scores(const float* q, const float* k, float* out, int n) {
    int col = X, row = Y;
    if (col >= n || row >= n) return;
    float sum = 0;
    for (int d = 0; d < 64; ++d) sum += q[row * 64 + d] * k[col * 64 + d];
    out[row * n + col] = 0.125f * sum;
}
// Attention without keeping scores: a query a thread, keys and values by tiles of 32.
K attention_tile(const float* q, const float* k, const float* v, float* out, int n) {
    __shared__ float tk[32][32], tv[32][32];
    int row = X;
    float query[32], sum[32] = {}, top = -1e30f, weights = 0;
#pragma unroll
    for (int d = 0; d < 32; ++d) query[d] = q[row * 32 + d];
    for (int start = 0; start < n; start += 32) {
        for (int i = threadIdx.x; i < 1024; i += blockDim.x) {
            tk[i / 32][i % 32] = k[start * 32 + i];
            tv[i / 32][i % 32] = v[start * 32 + i];
        }
        __syncthreads();
        for (int j = 0; j < 32; ++j) {
            float score = 0;
#pragma unroll
            for (int d = 0; d < 32; ++d) score += query[d] * tk[j][d];
            float higher = fmaxf(top, 0.17677670f * score);
            float keep = __expf(top - higher), weight = __expf(0.17677670f * score - higher);
            weights = weights * keep + weight, top = higher;
#pragma unroll
            for (int d = 0; d < 32; ++d) sum[d] = sum[d] * keep + weight * tv[j][d];
        }
        __syncthreads();
    }
#pragma unroll
    for (int d = 0; d < 32; ++d) out[row * 32 + d] = sum[d] / weights;
}
// 3 x 3 over `channels` planes; blockIdx.z is the output plane.
K convolution_3x3(const float* in, const float* weights, float* out, int channels, int n) {
    int x = X, y = Y, plane = blockIdx.z;
    if (x < 1 || y < 1 || x >= n - 1 || y >= n - 1) return;
    float sum = 0;
    for (int c = 0; c < channels; ++c)
#pragma unroll
        for (int k = 0; k < 9; ++k)
            sum += weights[(plane * channels + c) * 9 + k] *
                   in[(c * n + y + k / 3 - 1) * n + x + k % 3 - 1];
    out[(plane * n + y) * n + x] = fmaxf(sum, 0);
}
K max_pool(const float* in, float* out, int n) {
    int x = X, y = Y;
    if (x >= n || y >= n) return;
    const float* p = in + 4 * y * n + 2 * x;
    out[y * n + x] = fmaxf(fmaxf(p[0], p[1]), fmaxf(p[2 * n], p[2 * n + 1]));
}
