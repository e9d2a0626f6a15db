// The kernel of `wattcast serve --demo`. Its PTX beside it comes from
//   nvcc -ptx -arch=compute_75 vector_add.cu
// nvcc of CUDA 13 targets compute capability 7.5 at the least; nothing in it is newer than 5.2.
extern "C" __global__ void vector_add(const float *a, const float *b, float *c, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        c[i] = a[i] + b[i];
}
