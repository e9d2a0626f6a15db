// target: 6.0
// Brute force on a hash: every thread holds a message, the host's table of first words is tried on it.

typedef unsigned u32;

__device__ __forceinline__ u32 rotate(u32 x, int n) { return (x << n) | (x >> (32 - n)); }

#define F(b, c, d) ((b & c) | (~b & d))
#define G(b, c, d) ((b & d) | (c & ~d))
#define H(b, c, d) (b ^ c ^ d)
#define I(b, c, d) (c ^ (b | ~d))
#define STEP(f, a, b, c, d, w, k, s) a = b + rotate(a + f(b, c, d) + (w + k##u), s);

// The last fifteen steps do not use the first word: they are undone on the target once (reversed).
extern "C" __global__ void md5(const u32 *words, u32 count, const u32 *first, u32 ra, u32 rb, u32 rc, u32 rd, u32 *found) {
    u32 w[16];
    const u32 thread = blockIdx.x * blockDim.x + threadIdx.x;
    for (int n = 0; n < 4; ++n) w[n] = words[thread * 4 + n];
    for (int n = 4; n < 14; ++n) w[n] = 0;
    w[14] = 64;
    w[15] = 0;
    for (u32 n = 0; n < count; ++n) {
        const u32 w0 = w[0] | first[n];
        u32 a = 0x67452301u, b = 0xefcdab89u, c = 0x98badcfeu, d = 0x10325476u;
        STEP(F, a, b, c, d, w0, 0xd76aa478, 7) STEP(F, d, a, b, c, w[1], 0xe8c7b756, 12)
        STEP(F, c, d, a, b, w[2], 0x242070db, 17) STEP(F, b, c, d, a, w[3], 0xc1bdceee, 22)
        STEP(F, a, b, c, d, w[4], 0xf57c0faf, 7) STEP(F, d, a, b, c, w[5], 0x4787c62a, 12)
        STEP(F, c, d, a, b, w[6], 0xa8304613, 17) STEP(F, b, c, d, a, w[7], 0xfd469501, 22)
        STEP(F, a, b, c, d, w[8], 0x698098d8, 7) STEP(F, d, a, b, c, w[9], 0x8b44f7af, 12)
        STEP(F, c, d, a, b, w[10], 0xffff5bb1, 17) STEP(F, b, c, d, a, w[11], 0x895cd7be, 22)
        STEP(F, a, b, c, d, w[12], 0x6b901122, 7) STEP(F, d, a, b, c, w[13], 0xfd987193, 12)
        STEP(F, c, d, a, b, w[14], 0xa679438e, 17) STEP(F, b, c, d, a, w[15], 0x49b40821, 22)
        STEP(G, a, b, c, d, w[1], 0xf61e2562, 5) STEP(G, d, a, b, c, w[6], 0xc040b340, 9)
        STEP(G, c, d, a, b, w[11], 0x265e5a51, 14) STEP(G, b, c, d, a, w0, 0xe9b6c7aa, 20)
        STEP(G, a, b, c, d, w[5], 0xd62f105d, 5) STEP(G, d, a, b, c, w[10], 0x02441453, 9)
        STEP(G, c, d, a, b, w[15], 0xd8a1e681, 14) STEP(G, b, c, d, a, w[4], 0xe7d3fbc8, 20)
        STEP(G, a, b, c, d, w[9], 0x21e1cde6, 5) STEP(G, d, a, b, c, w[14], 0xc33707d6, 9)
        STEP(G, c, d, a, b, w[3], 0xf4d50d87, 14) STEP(G, b, c, d, a, w[8], 0x455a14ed, 20)
        STEP(G, a, b, c, d, w[13], 0xa9e3e905, 5) STEP(G, d, a, b, c, w[2], 0xfcefa3f8, 9)
        STEP(G, c, d, a, b, w[7], 0x676f02d9, 14) STEP(G, b, c, d, a, w[12], 0x8d2a4c8a, 20)
        STEP(H, a, b, c, d, w[5], 0xfffa3942, 4) STEP(H, d, a, b, c, w[8], 0x8771f681, 11)
        STEP(H, c, d, a, b, w[11], 0x6d9d6122, 16) STEP(H, b, c, d, a, w[14], 0xfde5380c, 23)
        STEP(H, a, b, c, d, w[1], 0xa4beea44, 4) STEP(H, d, a, b, c, w[4], 0x4bdecfa9, 11)
        STEP(H, c, d, a, b, w[7], 0xf6bb4b60, 16) STEP(H, b, c, d, a, w[10], 0xbebfbc70, 23)
        STEP(H, a, b, c, d, w[13], 0x289b7ec6, 4) STEP(H, d, a, b, c, w0, 0xeaa127fa, 11)
        STEP(H, c, d, a, b, w[3], 0xd4ef3085, 16) STEP(H, b, c, d, a, w[6], 0x04881d05, 23)
        STEP(H, a, b, c, d, w[9], 0xd9d4d039, 4) STEP(H, d, a, b, c, w[12], 0xe6db99e5, 11)
        STEP(H, c, d, a, b, w[15], 0x1fa27cf8, 16) STEP(H, b, c, d, a, w[2], 0xc4ac5665, 23)
        STEP(I, a, b, c, d, w0, 0xf4292244, 6)
        if (a == ra && b == rb && c == rc && d == rd) found[0] = thread;
    }
}

#define S0(x) (rotate(x, 25) ^ rotate(x, 14) ^ (x >> 3))
#define S1(x) (rotate(x, 15) ^ rotate(x, 13) ^ (x >> 10))
#define T0(x) (rotate(x, 30) ^ rotate(x, 19) ^ rotate(x, 10))
#define T1(x) (rotate(x, 26) ^ rotate(x, 21) ^ rotate(x, 7))

__constant__ const u32 K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
    0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
    0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
    0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
    0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
    0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

// The last three rounds are not needed to reject a candidate.
extern "C" __global__ void sha256(const u32 *words, u32 count, const u32 *first, u32 target, u32 *found) {
    u32 start[4];
    const u32 thread = blockIdx.x * blockDim.x + threadIdx.x;
    for (int n = 0; n < 4; ++n) start[n] = words[thread * 4 + n];
    for (u32 n = 0; n < count; ++n) {
        u32 w[16] = {start[0] | first[n], start[1], start[2], start[3], 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 64};
        u32 s[8] = {0x6a09e667u, 0xbb67ae85u, 0x3c6ef372u, 0xa54ff53au, 0x510e527fu, 0x9b05688cu, 0x1f83d9abu, 0x5be0cd19u};
#pragma unroll
        for (int r = 0; r < 61; ++r) {
            if (r >= 16) w[r & 15] += S0(w[(r + 1) & 15]) + w[(r + 9) & 15] + S1(w[(r + 14) & 15]);
            u32 t = s[7] + T1(s[4]) + ((s[4] & s[5]) ^ (~s[4] & s[6])) + K[r] + w[r & 15];
            u32 u = T0(s[0]) + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
            s[7] = s[6], s[6] = s[5], s[5] = s[4], s[4] = s[3] + t, s[3] = s[2], s[2] = s[1], s[1] = s[0], s[0] = t + u;
        }
        if (s[4] == target) found[0] = thread;
    }
}
