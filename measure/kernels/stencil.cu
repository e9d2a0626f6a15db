// Applications: structured grids.
// target: 5.0

#define K extern "C" __global__ void
#define X (int)(blockIdx.x * blockDim.x + threadIdx.x)
#define Y (int)(blockIdx.y * blockDim.y + threadIdx.y)

K stencil_2d(const float* in, float* out, int n) {
    int x = X, y = Y, i = y * n + x;
    if (x < 1 || y < 1 || x >= n - 1 || y >= n - 1) return;
    out[i] = 0.5f * in[i] + 0.125f * (in[i - 1] + in[i + 1] + in[i - n] + in[i + n]);
}
K stencil_2d_f64(const double* in, double* out, int n) {
    int x = X, y = Y, i = y * n + x;
    if (x < 1 || y < 1 || x >= n - 1 || y >= n - 1) return;
    out[i] = 0.5 * in[i] + 0.125 * (in[i - 1] + in[i + 1] + in[i - n] + in[i + n]);
}
// Blocks of 32 x 8 with their rim in shared memory.
K stencil_2d_tile(const float* in, float* out, int n) {
    __shared__ float tile[10][34];
    int x0 = blockIdx.x * 32, y0 = blockIdx.y * 8;
    for (int t = threadIdx.y * 32 + threadIdx.x; t < 340; t += 256) {
        int x = min(max(x0 + t % 34 - 1, 0), n - 1), y = min(max(y0 + t / 34 - 1, 0), n - 1);
        tile[t / 34][t % 34] = in[y * n + x];
    }
    __syncthreads();
    int x = threadIdx.x + 1, y = threadIdx.y + 1;
    if (X < n && Y < n)
        out[Y * n + X] = 0.5f * tile[y][x] +
            0.125f * (tile[y][x - 1] + tile[y][x + 1] + tile[y - 1][x] + tile[y + 1][x]);
}
K stencil_3d7(const float* in, float* out, int n) {
    int x = X, y = Y, plane = n * n;
    if (x < 1 || y < 1 || x >= n - 1 || y >= n - 1) return;
    for (int z = 1; z < n - 1; ++z) {
        int i = z * plane + y * n + x;
        out[i] = 0.4f * in[i] + 0.1f * (in[i - 1] + in[i + 1] + in[i - n] + in[i + n] +
                                        in[i - plane] + in[i + plane]);
    }
}
K stencil_3d27(const float* in, float* out, int n) {
    int x = X, y = Y, z = blockIdx.z + 1, plane = n * n;
    if (x < 1 || y < 1 || x >= n - 1 || y >= n - 1 || z >= n - 1) return;
    float sum = 0;
    for (int c = -1; c <= 1; ++c)
        for (int b = -1; b <= 1; ++b)
            for (int a = -1; a <= 1; ++a) sum += in[(z + c) * plane + (y + b) * n + x + a];
    out[z * plane + y * n + x] = sum / 27.0f;
}
K heat_source(const float* heat, const float* power, float* out, float step, float ambient, int n) {
    int x = X, y = Y, i = y * n + x;
    if (x >= n || y >= n) return;
    float here = heat[i];
    float west = heat[x > 0 ? i - 1 : i], east = heat[x < n - 1 ? i + 1 : i];
    float north = heat[y > 0 ? i - n : i], south = heat[y < n - 1 ? i + n : i];
    out[i] = here + step * (power[i] + (north + south - 2 * here) * 0.1f +
                            (east + west - 2 * here) * 0.1f + (ambient - here) * 0.01f);
}
// Eighth order in space, second in time.
K wave_2d(const float* now, const float* before, float* out, int n) {
    const float c[5] = {-2.847222f, 1.6f, -0.2f, 0.02539683f, -0.001785714f};
    int x = X, y = Y, i = y * n + x;
    if (x < 4 || y < 4 || x >= n - 4 || y >= n - 4) return;
    float sum = 2 * c[0] * now[i];
    for (int r = 1; r <= 4; ++r)
        sum += c[r] * (now[i - r] + now[i + r] + now[i - r * n] + now[i + r * n]);
    out[i] = 2 * now[i] - before[i] + 0.1f * sum;
}
// Lattice Boltzmann, D2Q9: pull, then relax towards equilibrium; edges wrap.
K lattice_boltzmann(const float* in, float* out, float omega, int n) {
    const int cx[9] = {0, 1, 0, -1, 0, 1, -1, -1, 1}, cy[9] = {0, 0, 1, 0, -1, 1, 1, -1, -1};
    int x = X, y = Y, cells = n * n;
    if (x >= n || y >= n) return;
    float f[9], density = 0, ux = 0, uy = 0;
#pragma unroll
    for (int q = 0; q < 9; ++q) {
        int from = ((y - cy[q] + n) % n) * n + (x - cx[q] + n) % n;
        f[q] = in[q * cells + from];
        density += f[q], ux += f[q] * cx[q], uy += f[q] * cy[q];
    }
    ux /= density + 1e-6f, uy /= density + 1e-6f;
    float square = 1.5f * (ux * ux + uy * uy);
#pragma unroll
    for (int q = 0; q < 9; ++q) {
        float weight = q == 0 ? 4.0f / 9 : q < 5 ? 1.0f / 9 : 1.0f / 36;
        float along = 3 * (cx[q] * ux + cy[q] * uy);
        float even = weight * density * (1 + along + 0.5f * along * along - square);
        out[q * cells + y * n + x] = f[q] + omega * (even - f[q]);
    }
}
K red_black(const float* in, const float* b, float* out, int colour, int n) {
    int y = Y + 1, x = 2 * X + 1 + (y + colour) % 2, i = y * n + x;
    if (x >= n - 1 || y >= n - 1) return;
    out[i] = 0.25f * (b[i] + in[i - 1] + in[i + 1] + in[i - n] + in[i + n]);
}
