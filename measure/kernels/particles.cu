// Applications: particles, clustering and integer hashing.
// target: 5.0

#define K extern "C" __global__ void
#define X (blockIdx.x * blockDim.x + threadIdx.x)

K nbody_shared(const float4* bodies, float4* forces, int n) {
    extern __shared__ float4 tile[];
    float4 me = bodies[X];
    float fx = 0, fy = 0, fz = 0;
    for (int start = 0; start < n; start += blockDim.x) {
        tile[threadIdx.x] = bodies[start + threadIdx.x];
        __syncthreads();
        for (int k = 0; k < blockDim.x; ++k) {
            float4 you = tile[k];
            float dx = you.x - me.x, dy = you.y - me.y, dz = you.z - me.z;
            float inverse = rsqrtf(dx * dx + dy * dy + dz * dz + 0.01f);
            float pull = you.w * inverse * inverse * inverse;
            fx += dx * pull, fy += dy * pull, fz += dz * pull;
        }
        __syncthreads();
    }
    forces[X] = make_float4(fx, fy, fz, 0);
}
K lennard_jones(const float4* bodies, const unsigned* near, float4* forces, int count, int n) {
    int i = X;
    if (i >= n) return;
    float4 me = bodies[i];
    float fx = 0, fy = 0, fz = 0;
    for (int k = 0; k < count; ++k) {
        float4 you = bodies[near[k * n + i]];
        float dx = you.x - me.x, dy = you.y - me.y, dz = you.z - me.z;
        float square = dx * dx + dy * dy + dz * dz + 0.1f;
        if (square < 2.0f) {
            float r2 = 1 / square, r6 = r2 * r2 * r2, push = r2 * r6 * (r6 - 0.5f);
            fx += dx * push, fy += dy * push, fz += dz * push;
        }
    }
    forces[i] = make_float4(fx, fy, fz, 0);
}
K push_particles(const float4* at, const float4* speed, float4* to, float4* faster, float step,
                 int n) {
    int i = X;
    if (i >= n) return;
    float4 p = at[i], v = speed[i];
    // Boris rotation about a field along z.
    float t = 0.5f * step, s = 2 * t / (1 + t * t);
    float ax = v.x + v.y * t, ay = v.y - v.x * t;
    v.x += ay * s, v.y -= ax * s;
    faster[i] = v;
    to[i] = make_float4(p.x + step * v.x, p.y + step * v.y, p.z + step * v.z, p.w);
}
K kmeans_assign(const float* points, const float* centres, unsigned* nearest, int dims, int count,
                int n) {
    int i = X;
    if (i >= n) return;
    float least = 1e30f;
    unsigned best = 0;
    for (int c = 0; c < count; ++c) {
        float sum = 0;
        for (int d = 0; d < dims; ++d) {
            float off = points[d * n + i] - centres[c * dims + d];
            sum += off * off;
        }
        if (sum < least) least = sum, best = c;
    }
    nearest[i] = best;
}
K kmeans_sum(const float* points, const unsigned* nearest, float* sums, unsigned* members, int n) {
    int i = X;
    if (i >= n) return;
    atomicAdd(sums + nearest[i], points[i]);
    atomicAdd(members + nearest[i], 1);
}
K nearest_neighbour(const float2* points, const float2* queries, float* out, int count, int n) {
    int i = X;
    if (i >= n) return;
    float2 q = queries[i];
    float least = 1e30f;
    for (int k = 0; k < count; ++k) {
        float dx = points[k].x - q.x, dy = points[k].y - q.y;
        least = fminf(least, dx * dx + dy * dy);
    }
    out[i] = sqrtf(least);
}

__device__ unsigned turn(unsigned x, int by) { return x << by | x >> (32 - by); }
// Rounds of the kind secure hashes are made of, over 16 words a thread.
K hash_rounds(const unsigned* in, unsigned* out, int rounds, int n) {
    int i = X;
    if (i >= n) return;
    unsigned w[16], a = 0x6a09e667, b = 0xbb67ae85, c = 0x3c6ef372, d = 0xa54ff53a;
#pragma unroll
    for (int k = 0; k < 16; ++k) w[k] = in[k * n + i];
    for (int r = 0; r < rounds; ++r) {
#pragma unroll
        for (int k = 0; k < 16; ++k) {
            unsigned choice = (b & c) ^ (~b & d), sum = turn(a, 30) ^ turn(a, 19) ^ turn(a, 10);
            unsigned next = d + sum + choice + w[k] + 0x428a2f98u;
            w[k] += turn(w[(k + 1) % 16], 14) ^ w[(k + 9) % 16] >> 3;
            d = c, c = b, b = turn(a, 13), a = next;
        }
    }
    out[i] = a ^ b ^ c ^ d;
}
// Substitution by a table in shared memory, then mixing, as block ciphers do.
K table_cipher(const unsigned* in, const unsigned* table, unsigned* out, int rounds, int n) {
    __shared__ unsigned box[256];
    for (int k = threadIdx.x; k < 256; k += blockDim.x) box[k] = table[k];
    __syncthreads();
    int i = X;
    if (i >= n) return;
    unsigned state = in[i];
    for (int r = 0; r < rounds; ++r)
        state = box[state & 255] ^ turn(box[state >> 8 & 255], 8) ^
                turn(box[state >> 16 & 255], 16) ^ turn(box[state >> 24], 24) ^ r;
    out[i] = state;
}
// Remainders of polynomials, bit by bit, over the words of a row.
K checksum(const unsigned* in, unsigned* out, int words, int n) {
    int i = X;
    if (i >= n) return;
    unsigned sum = ~0u;
    for (int k = 0; k < words; ++k) {
        sum ^= in[k * n + i];
        for (int bit = 0; bit < 32; ++bit) sum = sum >> 1 ^ (sum & 1 ? 0xedb88320u : 0u);
    }
    out[i] = ~sum;
}
