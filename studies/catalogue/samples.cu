// target: 6.0
// All pairs of bodies, in single and in double precision.

// All pairs of bodies; a block shares 256 of them at a time.
extern "C" __global__ void nbody(const float4 *bodies, float4 *forces, int n, float softening) {
    __shared__ float4 shared[256];
    const float4 mine = bodies[blockIdx.x * 256 + threadIdx.x];
    float ax = 0.0f, ay = 0.0f, az = 0.0f;
    for (int tile = 0; tile < n; tile += 256) {
        shared[threadIdx.x] = bodies[tile + threadIdx.x];
        __syncthreads();
#pragma unroll 32
        for (int i = 0; i < 256; ++i) {
            const float4 other = shared[i];
            float x = other.x - mine.x, y = other.y - mine.y, z = other.z - mine.z;
            float square = x * x + y * y + z * z + softening, inverse;
            asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(square));
            float s = other.w * inverse * inverse * inverse;
            ax += x * s, ay += y * s, az += z * s;
        }
        __syncthreads();
    }
    forces[blockIdx.x * 256 + threadIdx.x] = make_float4(ax, ay, az, 0.0f);
}

// The same in double precision.
extern "C" __global__ void nbody_fp64(const double4 *bodies, double4 *forces, int n, double softening) {
    __shared__ double4 shared[256];
    const double4 mine = bodies[blockIdx.x * 256 + threadIdx.x];
    double ax = 0.0, ay = 0.0, az = 0.0;
    for (int tile = 0; tile < n; tile += 256) {
        shared[threadIdx.x] = bodies[tile + threadIdx.x];
        __syncthreads();
#pragma unroll 32
        for (int i = 0; i < 256; ++i) {
            const double4 other = shared[i];
            double x = other.x - mine.x, y = other.y - mine.y, z = other.z - mine.z;
            double inverse = rsqrt(x * x + y * y + z * z + softening);
            double s = other.w * inverse * inverse * inverse;
            ax += x * s, ay += y * s, az += z * s;
        }
        __syncthreads();
    }
    forces[blockIdx.x * 256 + threadIdx.x] = make_double4(ax, ay, az, 0.0);
}
