// Tensor cores through warp-level mma.sync: every warp adds A * B to TILES accumulators, `iterations` times.
//
// a: 16 x K row by row, b: 8 x K (B transposed) row by row, each element in its own format; the same for all
// warps. out: 16 x 8 floats per warp, the sum of its accumulators = iterations * TILES * A * B.
// FLOP = warps * iterations * TILES * 2 * 16 * 8 * K. On Hopper these reach about 60 % of the tensor cores' rate;
// warpgroup.cu has the instructions that reach it.

#define TILES 4

// One lane's fragments. Rows of A: lane / 4 and that + 8; columns in groups of 4 bytes: lane % 4 and that + 4.
// WORDS = 4-byte words in one row of A (K elements).
template <int WORDS>
__device__ __forceinline__ void load_fragments(const u32* a, const u32* b, u32 (&fa)[4], u32 (&fb)[2]) {
    const int lane = threadIdx.x % 32, row = lane / 4, word = lane % 4;
    fa[0] = a[row * WORDS + word];
    fa[1] = a[(row + 8) * WORDS + word];
    fa[2] = a[row * WORDS + word + 4];
    fa[3] = a[(row + 8) * WORDS + word + 4];
    fb[0] = b[row * WORDS + word];
    fb[1] = b[row * WORDS + word + 4];
}

__device__ __forceinline__ void store_sum(float* out, const float (&d)[TILES][4]) {
    const int lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2;
    const long long warp = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    float* tile = out + warp * 128;
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int t = 0; t < TILES; ++t)
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[e] += d[t][e];
    tile[row * 8 + column] = sum[0];
    tile[row * 8 + column + 1] = sum[1];
    tile[(row + 8) * 8 + column] = sum[2];
    tile[(row + 8) * 8 + column + 1] = sum[3];
}

// All 4-byte words of these shapes hold K / 8 elements, so a row of A has 8 words whatever the precision.
#define TENSOR_KERNEL(NAME, MMA)                                                                   \
    extern "C" __global__ void NAME(const u32* a, const u32* b, float* out, int iterations) {      \
        u32 fa[4], fb[2];                                                                          \
        load_fragments<8>(a, b, fa, fb);                                                           \
        float d[TILES][4] = {};                                                                    \
        for (int k = 0; k < iterations; ++k) {                                                     \
            _Pragma("unroll") for (int t = 0; t < TILES; ++t) MMA(d[t], fa, fb);                   \
        }                                                                                          \
        store_sum(out, d);                                                                         \
    }

TENSOR_KERNEL(tensor_fp16, mma_f16)
TENSOR_KERNEL(tensor_bf16, mma_bf16)
TENSOR_KERNEL(tensor_tf32, mma_tf32)
#ifdef HAS_FP8
TENSOR_KERNEL(tensor_fp8, mma_e4m3)
#endif

// 8 x 8 x 4: a 8 x 4 row by row, b 8 x 4 (B transposed), out 8 x 8 per warp.
extern "C" __global__ void tensor_fp64(const double* a, const double* b, double* out, int iterations) {
    const int lane = threadIdx.x % 32;
    const double fa = a[lane], fb = b[lane];
    double d[TILES][2] = {};
    for (int k = 0; k < iterations; ++k) {
#pragma unroll
        for (int t = 0; t < TILES; ++t) mma_f64(d[t], fa, fb);
    }
    const long long warp = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    double* cell = out + warp * 64 + lane / 4 * 8 + lane % 4 * 2;
    cell[0] = cell[1] = 0.0;
    for (int t = 0; t < TILES; ++t) {
        cell[0] += d[t][0];
        cell[1] += d[t][1];
    }
}

// 16 x 8 x 16: a 16 x 16 row by row, b 8 x 16 (B transposed), out 16 x 8 per warp. Value 2 j of a is at row lane / 4
// and column lane % 4 + 4 j, the one behind it 8 rows below; value j of b is at row lane % 4 + 4 j of B.
#ifdef HAS_WIDE_FP64
extern "C" __global__ void __launch_bounds__(512) tensor_fp64_wide(const double* a, const double* b, double* out, int iterations) {
    const int lane = threadIdx.x % 32, row = lane / 4, column = lane % 4;
    double fa[8], fb[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        fa[2 * j] = a[row * 16 + column + 4 * j];
        fa[2 * j + 1] = a[(row + 8) * 16 + column + 4 * j];
        fb[j] = b[row * 16 + column + 4 * j];
    }
    double d[TILES][4] = {};
#pragma unroll 1
    for (int k = 0; k < iterations; ++k) {
#pragma unroll
        for (int t = 0; t < TILES; ++t) mma_f64_16x8x16(d[t], fa, fb);
    }
    const long long warp = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    double* tile = out + warp * 128;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        double sum = 0.0;
#pragma unroll
        for (int t = 0; t < TILES; ++t) sum += d[t][e];
        tile[(row + e / 2 * 8) * 8 + column * 2 + e % 2] = sum;
    }
}
#endif
