// C = A * B, one element of C for each thread, everything from global memory.
// n is a multiple of the block's 16.
extern "C" __global__ void matmul(float *c, const float *a, const float *b, int n)
{
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    int col = blockIdx.x * blockDim.x + threadIdx.x;

    float sum = 0.0f;
    for (int k = 0; k < n; ++k)
        sum += a[row * n + k] * b[k * n + col];

    c[row * n + col] = sum;
}
