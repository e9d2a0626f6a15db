// Applications: transforms, and dynamic programming.
// target: 5.0

#define K extern "C" __global__ void
#define X (int)(blockIdx.x * blockDim.x + threadIdx.x)
#define Y (int)(blockIdx.y * blockDim.y + threadIdx.y)

// 1024 points a block of 512 threads, in shared memory.
K fft_radix2(const float2* in, float2* out) {
    __shared__ float2 p[1024];
    int t = threadIdx.x;
    for (int i = t; i < 1024; i += 512) p[__brev(i) >> 22] = in[blockIdx.x * 1024 + i];
    __syncthreads();
    for (int half = 1; half < 1024; half *= 2) {
        int k = t % half, i = (t / half) * 2 * half + k;
        float s, c;
        sincospif(-(float)k / half, &s, &c);
        float2 u = p[i], v = p[i + half];
        float2 w = make_float2(v.x * c - v.y * s, v.x * s + v.y * c);
        p[i] = make_float2(u.x + w.x, u.y + w.y);
        p[i + half] = make_float2(u.x - w.x, u.y - w.y);
        __syncthreads();
    }
    for (int i = t; i < 1024; i += 512) out[blockIdx.x * 1024 + i] = p[i];
}
// One stage over all n points: groups of four a quarter apart.
K fft_radix4_stage(const float2* in, float2* out, int stride, int n) {
    int t = X, quarter = n / 4;
    if (t >= quarter) return;
    float2 a = in[t], b = in[t + quarter], c = in[t + 2 * quarter], d = in[t + 3 * quarter];
    float angle = -2.0f * (t / stride * stride) / n, sine, cosine;
    float2 ac = make_float2(a.x + c.x, a.y + c.y), am = make_float2(a.x - c.x, a.y - c.y);
    float2 bd = make_float2(b.x + d.x, b.y + d.y), bm = make_float2(b.y - d.y, d.x - b.x);
    float2 r[4] = {make_float2(ac.x + bd.x, ac.y + bd.y), make_float2(am.x + bm.x, am.y + bm.y),
                   make_float2(ac.x - bd.x, ac.y - bd.y), make_float2(am.x - bm.x, am.y - bm.y)};
    int to = t / stride * stride * 4 + t % stride;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        sincospif(angle * k, &sine, &cosine);
        out[to + k * stride] =
            make_float2(r[k].x * cosine - r[k].y * sine, r[k].x * sine + r[k].y * cosine);
    }
}
// 8 x 8 blocks, rows then columns; a thread a value.
K dct_8x8(const float* in, float* out, int n) {
    __shared__ float tile[8][9], half[8][9];
    int x = threadIdx.x, y = threadIdx.y;
    tile[y][x] = in[Y * n + X];
    __syncthreads();
    float sum = 0;
    for (int k = 0; k < 8; ++k) sum += tile[y][k] * cospif((2 * k + 1) * x / 16.0f);
    half[y][x] = sum * (x ? 0.5f : 0.35355339f);
    __syncthreads();
    sum = 0;
    for (int k = 0; k < 8; ++k) sum += half[k][x] * cospif((2 * k + 1) * y / 16.0f);
    out[Y * n + X] = sum * (y ? 0.5f : 0.35355339f);
}
// Walsh-Hadamard transform of 1024 values a block.
K walsh_hadamard(const float* in, float* out) {
    __shared__ float p[1024];
    int t = threadIdx.x;
    for (int i = t; i < 1024; i += blockDim.x) p[i] = in[blockIdx.x * 1024 + i];
    __syncthreads();
    for (int half = 1; half < 1024; half *= 2) {
        for (int j = t; j < 512; j += blockDim.x) {
            int i = (j / half) * 2 * half + j % half;
            float u = p[i], v = p[i + half];
            p[i] = u + v, p[i + half] = u - v;
        }
        __syncthreads();
    }
    for (int i = t; i < 1024; i += blockDim.x) out[blockIdx.x * 1024 + i] = p[i];
}

// Alignment scores of 32 x 32 letters a block, diagonal after diagonal.
K needleman_tile(const unsigned* left, const unsigned* top, int* out, int gap) {
    __shared__ int score[33][34];
    int t = threadIdx.x;
    unsigned letter = left[blockIdx.x * 32 + t] & 3;
    const unsigned* above = top + blockIdx.x * 32;
    score[t + 1][0] = -gap * (t + 1), score[0][t + 1] = -gap * (t + 1);
    if (t == 0) score[0][0] = 0;
    __syncthreads();
    for (int diagonal = 0; diagonal < 63; ++diagonal) {
        int col = diagonal - t;
        if (col >= 0 && col < 32) {
            int match = score[t][col] + ((above[col] & 3) == letter ? 2 : -1);
            score[t + 1][col + 1] = max(match, max(score[t][col + 1], score[t + 1][col]) - gap);
        }
        __syncthreads();
    }
    for (int row = 0; row < 32; ++row) out[(blockIdx.x * 32 + row) * 32 + t] = score[row + 1][t + 1];
}
// Longest common subsequence along one diagonal of a table.
K lcs_diagonal(const unsigned* a, const unsigned* b, const int* last, const int* before, int* next,
               int n) {
    int i = X;
    if (i < 1 || i >= n) return;
    bool same = (a[i] & 3) == (b[n - 1 - i] & 3);
    next[i] = same ? before[i - 1] + 1 : max(last[i], last[i - 1]);
}
K cheapest_path_row(const int* costs, const int* above, int* out, int n) {
    int x = X;
    if (x >= n) return;
    int best = min(above[x], min(above[max(x - 1, 0)], above[min(x + 1, n - 1)]));
    out[x] = best + costs[x];
}
K floyd_warshall_step(const float* in, float* out, int k, int n) {
    int x = X, y = Y;
    if (x < n && y < n) out[y * n + x] = fminf(in[y * n + x], in[y * n + k] + in[k * n + x]);
}
K knapsack_row(const int* best, int* next, int weight, int value, int n) {
    int room = X;
    if (room >= n) return;
    int kept = best[room];
    next[room] = room >= weight ? max(kept, best[room - weight] + value) : kept;
}
K viterbi_step(const float* score, const float* change, float* next, int states, int n) {
    int state = X;
    if (state >= n) return;
    float best = -1e30f;
    for (int k = 0; k < states; ++k) best = fmaxf(best, score[k] + change[k * n + state]);
    next[state] = best;
}
