// Fused multiply-adds on the ordinary pipes: 8 independent chains a thread, x = x * a + b.
//
// FLOP = threads * iterations * 8 * 2 (fp16: * 2 again, values come in pairs).

#define CHAINS 8

template <typename T>
__device__ __forceinline__ void fma_chains(T* out, T a, T b, int iterations) {
    const long long thread = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    T x[CHAINS];
#pragma unroll
    for (int c = 0; c < CHAINS; ++c) x[c] = (T)(threadIdx.x % 32) + (T)c;
#pragma unroll 16
    for (int k = 0; k < iterations; ++k) {
#pragma unroll
        for (int c = 0; c < CHAINS; ++c) x[c] = x[c] * a + b;
    }
    T sum = (T)0;
#pragma unroll
    for (int c = 0; c < CHAINS; ++c) sum += x[c];
    out[thread] = sum;
}

extern "C" __global__ void fma_fp32(float* out, float a, float b, int iterations) {
    fma_chains<float>(out, a, b, iterations);
}

extern "C" __global__ void fma_fp64(double* out, double a, double b, int iterations) {
    fma_chains<double>(out, a, b, iterations);
}

// a, b and the results are pairs of halves in 32 bits; out[thread * CHAINS + chain].
extern "C" __global__ void fma_fp16(unsigned int* out, unsigned int a, unsigned int b, unsigned int start,
                                    int iterations) {
    const long long thread = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    u32 x[CHAINS];
#pragma unroll
    for (int c = 0; c < CHAINS; ++c) x[c] = start + (unsigned int)c;  // neighbours in the last bits
#pragma unroll 16
    for (int k = 0; k < iterations; ++k) {
#pragma unroll
        for (int c = 0; c < CHAINS; ++c) x[c] = fma_f16x2(x[c], a, b);
    }
#pragma unroll
    for (int c = 0; c < CHAINS; ++c) out[thread * CHAINS + c] = x[c];
}
