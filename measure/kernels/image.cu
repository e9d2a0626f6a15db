// Applications: images.
// target: 5.0

#define K extern "C" __global__ void
#define X (int)(blockIdx.x * blockDim.x + threadIdx.x)
#define Y (int)(blockIdx.y * blockDim.y + threadIdx.y)

__device__ int held(int at, int n) { return min(max(at, 0), n - 1); }

K blur_rows(const float* in, const float* taps, float* out, int radius, int n) {
    int x = X, y = Y;
    if (x >= n || y >= n) return;
    float sum = 0;
    for (int k = -radius; k <= radius; ++k) sum += taps[k + radius] * in[y * n + held(x + k, n)];
    out[y * n + x] = sum;
}
K blur_columns(const float* in, const float* taps, float* out, int radius, int n) {
    int x = X, y = Y;
    if (x >= n || y >= n) return;
    float sum = 0;
    for (int k = -radius; k <= radius; ++k) sum += taps[k + radius] * in[held(y + k, n) * n + x];
    out[y * n + x] = sum;
}
K sobel(const float* in, float* out, int n) {
    int x = X, y = Y, i = y * n + x;
    if (x < 1 || y < 1 || x >= n - 1 || y >= n - 1) return;
    float across = in[i - n + 1] + 2 * in[i + 1] + in[i + n + 1] - in[i - n - 1] - 2 * in[i - 1] -
                   in[i + n - 1];
    float down = in[i + n - 1] + 2 * in[i + n] + in[i + n + 1] - in[i - n - 1] - 2 * in[i - n] -
                 in[i - n + 1];
    out[i] = sqrtf(across * across + down * down);
}
__device__ void order(float& a, float& b) {
    float low = fminf(a, b);
    b = fmaxf(a, b), a = low;
}
K median_3x3(const float* in, float* out, int n) {
    int x = X, y = Y;
    if (x < 1 || y < 1 || x >= n - 1 || y >= n - 1) return;
    float v[9];
#pragma unroll
    for (int k = 0; k < 9; ++k) v[k] = in[(y + k / 3 - 1) * n + x + k % 3 - 1];
#pragma unroll
    for (int i = 0; i < 5; ++i)
#pragma unroll
        for (int k = 8; k > i; --k) order(v[k - 1], v[k]);
    out[y * n + x] = v[4];
}
K bilateral(const float* in, float* out, int radius, float sharpness, int n) {
    int x = X, y = Y;
    if (x >= n || y >= n) return;
    float here = in[y * n + x], sum = 0, weights = 0;
    for (int b = -radius; b <= radius; ++b)
        for (int a = -radius; a <= radius; ++a) {
            float there = in[held(y + b, n) * n + held(x + a, n)], off = there - here;
            float weight = __expf(-0.1f * (a * a + b * b) - sharpness * off * off);
            sum += weight * there, weights += weight;
        }
    out[y * n + x] = sum / weights;
}
K resize_bilinear(const float* in, float* out, float scale, int from, int n) {
    int x = X, y = Y;
    if (x >= n || y >= n) return;
    float u = x * scale, v = y * scale;
    int i = held((int)u, from - 1), j = held((int)v, from - 1);
    float a = u - i, b = v - j;
    const float* p = in + j * from + i;
    out[y * n + x] = (1 - b) * ((1 - a) * p[0] + a * p[1]) + b * ((1 - a) * p[from] + a * p[from + 1]);
}
K grey(const unsigned* rgba, float* out, int n) {
    int i = X;
    if (i >= n) return;
    unsigned c = rgba[i];
    out[i] = 0.299f * (c & 255) + 0.587f * (c >> 8 & 255) + 0.114f * (c >> 16 & 255);
}
K mandelbrot(unsigned* out, float left, float top, float step, int most, int n) {
    int x = X, y = Y, count = 0;
    if (x >= n || y >= n) return;
    float cx = left + x * step, cy = top + y * step, a = 0, b = 0;
    while (count < most && a * a + b * b < 4) {
        float next = a * a - b * b + cx;
        b = 2 * a * b + cy, a = next, ++count;
    }
    out[y * n + x] = count;
}
__device__ unsigned mixed(unsigned x, unsigned y) {
    unsigned h = x * 374761393u + y * 668265263u;
    h = (h ^ h >> 13) * 1274126177u;
    return h ^ h >> 16;
}
__device__ float slope(unsigned x, unsigned y, float u, float v) {
    unsigned h = mixed(x, y);
    return (h & 1 ? u : -u) + (h & 2 ? v : -v);
}
K perlin_noise(float* out, float scale, int octaves, int n) {
    int x = X, y = Y;
    if (x >= n || y >= n) return;
    float sum = 0, gain = 1, u = x * scale, v = y * scale;
    for (int o = 0; o < octaves; ++o) {
        unsigned i = (unsigned)u, j = (unsigned)v;
        float a = u - i, b = v - j;
        float fa = a * a * a * (a * (a * 6 - 15) + 10), fb = b * b * b * (b * (b * 6 - 15) + 10);
        float low = slope(i, j, a, b) * (1 - fa) + slope(i + 1, j, a - 1, b) * fa;
        float high = slope(i, j + 1, a, b - 1) * (1 - fa) + slope(i + 1, j + 1, a - 1, b - 1) * fa;
        sum += gain * (low * (1 - fb) + high * fb);
        gain *= 0.5f, u *= 2, v *= 2;
    }
    out[y * n + x] = sum;
}
// One ray a pixel against spheres (x, y, z, radius); the nearest is lit.
K ray_spheres(const float4* spheres, float* out, int count, int n) {
    int x = X, y = Y;
    if (x >= n || y >= n) return;
    float dx = 2.0f * x / n - 1, dy = 2.0f * y / n - 1, dz = 1, nearest = 1e30f, light = 0;
    float scale = rsqrtf(dx * dx + dy * dy + dz * dz);
    dx *= scale, dy *= scale, dz *= scale;
    for (int k = 0; k < count; ++k) {
        float4 s = spheres[k];
        float along = s.x * dx + s.y * dy + (s.z + 3) * dz;
        float apart = s.x * s.x + s.y * s.y + (s.z + 3) * (s.z + 3) - along * along;
        float inside = s.w * s.w - apart;
        float hit = inside > 0 ? along - sqrtf(inside) : 1e30f;
        if (hit < nearest) nearest = hit, light = inside / (s.w * s.w);
    }
    out[y * n + x] = light;
}
