// Applications: sparse linear algebra and graphs. Rows have `degree` places each; where they have
// a length of their own, it is at most that.
// target: 5.0

#define K extern "C" __global__ void
#define X (blockIdx.x * blockDim.x + threadIdx.x)

K spmv_csr_scalar(const unsigned* lengths, const unsigned* cols, const float* values,
                  const float* x, float* y, int degree, int n) {
    int row = X;
    if (row >= n) return;
    unsigned start = row * degree, end = start + lengths[row];
    float sum = 0;
    for (unsigned k = start; k < end; ++k) sum += values[k] * x[cols[k]];
    y[row] = sum;
}
K spmv_csr_vector(const unsigned* lengths, const unsigned* cols, const float* values,
                  const float* x, float* y, int degree, int n) {
    int row = X / 32, lane = threadIdx.x % 32;
    if (row >= n) return;
    unsigned start = row * degree, end = start + lengths[row];
    float sum = 0;
    for (unsigned k = start + lane; k < end; k += 32) sum += values[k] * x[cols[k]];
    for (int far = 16; far; far /= 2) sum += __shfl_down_sync(~0u, sum, far);
    if (lane == 0) y[row] = sum;
}
K spmv_ell(const unsigned* cols, const float* values, const float* x, float* y, int degree, int n) {
    int row = X;
    if (row >= n) return;
    float sum = 0;
    for (int k = 0; k < degree; ++k) sum += values[k * n + row] * x[cols[k * n + row]];
    y[row] = sum;
}
K spmv_coo(const unsigned* rows, const unsigned* cols, const float* values, const float* x,
           float* y, int n) {
    int k = X;
    if (k < n) atomicAdd(y + rows[k], values[k] * x[cols[k]]);
}
K jacobi_sparse(const unsigned* cols, const float* values, const float* b, const float* x,
                float* out, int degree, int n) {
    int row = X;
    if (row >= n) return;
    float sum = b[row];
    for (int k = 0; k < degree; ++k) sum -= values[row * degree + k] * x[cols[row * degree + k]];
    out[row] = sum / (degree + 1.0f);
}
// One level: vertices whose depth is `level` mark the neighbours not seen before.
K bfs_level(const unsigned* lengths, const unsigned* cols, const unsigned* depth, unsigned* next,
            unsigned level, int degree, int n) {
    int v = X;
    if (v >= n || depth[v] != level) return;
    unsigned start = v * degree, end = start + lengths[v];
    for (unsigned k = start; k < end; ++k) {
        unsigned to = cols[k];
        if (depth[to] > level) next[to] = level + 1;
    }
}
K pagerank(const unsigned* cols, const float* rank, float* next, float damping, int degree, int n) {
    int v = X;
    if (v >= n) return;
    float sum = 0;
    for (int k = 0; k < degree; ++k) sum += rank[cols[v * degree + k]] / degree;
    next[v] = (1.0f - damping) / n + damping * sum;
}
// Every vertex takes the least label around it, then that label's own.
K components_step(const unsigned* cols, const unsigned* label, unsigned* next, int degree, int n) {
    int v = X;
    if (v >= n) return;
    unsigned least = label[v];
    for (int k = 0; k < degree; ++k) least = min(least, label[cols[v * degree + k]]);
    next[v] = min(least, label[least]);
}
K sssp_relax(const unsigned* cols, const unsigned* weights, const unsigned* distance,
             unsigned* next, int degree, int n) {
    int v = X;
    if (v >= n) return;
    unsigned from = distance[v];
    for (int k = 0; k < degree; ++k)
        atomicMin(next + cols[v * degree + k], from + weights[v * degree + k]);
}
// Common neighbours of a vertex and its first neighbour, by comparing all with all.
K triangles(const unsigned* cols, unsigned* found, int degree, int n) {
    int v = X;
    if (v >= n) return;
    unsigned other = cols[v * degree], count = 0;
    for (int i = 0; i < degree; ++i) {
        unsigned mine = cols[v * degree + i];
        for (int k = 0; k < degree; ++k) count += cols[other * degree + k] == mine;
    }
    found[v] = count;
}
