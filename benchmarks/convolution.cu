// A convolution in the way of tuners: a tile of outputs a block, filters unrolled.
#define TILE_W (block_size_x * tile_size_x)
#define TILE_H (block_size_y * tile_size_y)
#define FW 7
#define FH 7
extern "C" __global__ void convolution(float *out, const float *in, const float *filter, int width, int height) {
    const int x0 = blockIdx.x * TILE_W, y0 = blockIdx.y * TILE_H;
#if use_shared
    __shared__ float tile[TILE_H + FH - 1][TILE_W + FW - 1 + use_padding];
    for (int y = threadIdx.y; y < TILE_H + FH - 1; y += block_size_y)
        #pragma unroll
        for (int x = threadIdx.x; x < TILE_W + FW - 1; x += block_size_x)
            tile[y][x] = in[(y0 + y) * (width + FW - 1) + x0 + x];
    __syncthreads();
#endif
    float sum[tile_size_y][tile_size_x];
    #pragma unroll
    for (int j = 0; j < tile_size_y; j++)
        #pragma unroll
        for (int i = 0; i < tile_size_x; i++) sum[j][i] = 0.0f;
    #pragma unroll
    for (int fy = 0; fy < FH; fy++)
        #pragma unroll
        for (int fx = 0; fx < FW; fx++) {
            const float weight = filter[fy * FW + fx];
            #pragma unroll
            for (int j = 0; j < tile_size_y; j++)
                #pragma unroll
                for (int i = 0; i < tile_size_x; i++) {
                    const int y = threadIdx.y + j * block_size_y + fy, x = threadIdx.x + i * block_size_x + fx;
#if use_shared
                    sum[j][i] += weight * tile[y][x];
#else
                    sum[j][i] += weight * in[(y0 + y) * (width + FW - 1) + x0 + x];
#endif
                }
        }
    #pragma unroll
    for (int j = 0; j < tile_size_y; j++)
        #pragma unroll
        for (int i = 0; i < tile_size_x; i++)
            out[(y0 + threadIdx.y + j * block_size_y) * width + x0 + threadIdx.x + i * block_size_x] = sum[j][i];
}
