// Tensor cores of Hopper through warpgroup-level wgmma: every warpgroup adds A * B to one accumulator of 64 x 256,
// iterations * STEPS times.
//
// a: 64 x K row by row, b: 256 x K (B transposed) row by row, each element in its own format, a row of K elements
// being 32 bytes in all of them; the same for all warpgroups. out: 64 x 256 floats per warpgroup = iterations * STEPS
// * A * B. FLOP = warpgroups * iterations * STEPS * 2 * 64 * 256 * K.
//
// Both operands lie in shared memory as core matrices of 8 rows by 16 bytes, 128 bytes in a row (PTX ISA,
// "Asynchronous Warpgroup Level Matrix Shared Memory Layout", K-major without swizzling): the two core matrices of
// 8 rows behind each other, then those of the next 8 rows.

#define STEPS 8
#define A_ROWS 64
#define B_ROWS 256
#define CORE_BYTES 128
#ifndef LEADING_BYTES
#define LEADING_BYTES CORE_BYTES  // from a core matrix to the other one of the same rows
#endif
#ifndef STRIDE_BYTES
#define STRIDE_BYTES (2 * CORE_BYTES)  // from a core matrix to that of the next 8 rows
#endif

// Rows of 32 bytes into core matrices, 16 bytes a thread and turn.
__device__ __forceinline__ void place(const uint4* rows, unsigned char* tile, int count) {
    for (int piece = threadIdx.x; piece < 2 * count; piece += blockDim.x) {
        const int row = piece / 2, half = piece % 2;
        *(uint4*)(tile + row / 8 * 2 * CORE_BYTES + half * CORE_BYTES + row % 8 * 16) = rows[piece];
    }
}

// Element d[e] of a thread: row 16 * warp + lane / 4, 8 more for the second pair of each four; column 8 * (e / 4) and
// two a lane.
__device__ __forceinline__ void store_tile(float* out, const float (&d)[128]) {
    const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
    const long long group = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / 128;
    float* tile = out + group * (A_ROWS * B_ROWS);
#pragma unroll
    for (int e = 0; e < 128; ++e) {
        const int row = 16 * warp + lane / 4 + e / 2 % 2 * 8, column = e / 4 * 8 + lane % 4 * 2 + e % 2;
        tile[row * B_ROWS + column] = d[e];
    }
}

// Launch with a multiple of 128 threads, at most 256.
#define WARPGROUP_KERNEL(NAME, WGMMA)                                                                          \
    extern "C" __global__ void __launch_bounds__(256, 1)                                                       \
        NAME(const uint4* a, const uint4* b, float* out, int iterations) {                                     \
        SHARED_TILE(tile_a, A_ROWS * 32);                                                                      \
        SHARED_TILE(tile_b, B_ROWS * 32);                                                                      \
        place(a, tile_a, A_ROWS);                                                                              \
        place(b, tile_b, B_ROWS);                                                                              \
        publish_to_tensor_cores();                                                                             \
        const u64 left = matrix_descriptor(tile_a, LEADING_BYTES, STRIDE_BYTES);                               \
        const u64 right = matrix_descriptor(tile_b, LEADING_BYTES, STRIDE_BYTES);                              \
        float d[128];                                                                                          \
        _Pragma("unroll") for (int e = 0; e < 128; ++e) d[e] = 0.0f;                                           \
        wgmma_fence();                                                                                         \
        for (int k = 0; k < iterations; ++k) {                                                                 \
            _Pragma("unroll") for (int s = 0; s < STEPS; ++s) WGMMA(d, left, right);                           \
            wgmma_commit();                                                                                    \
            wgmma_wait_all_but_one();                                                                          \
        }                                                                                                      \
        wgmma_wait_all(d);                                                                                     \
        store_tile(out, d);                                                                                    \
    }

WARPGROUP_KERNEL(warpgroup_fp16, wgmma_f16)
WARPGROUP_KERNEL(warpgroup_bf16, wgmma_bf16)
WARPGROUP_KERNEL(warpgroup_tf32, wgmma_tf32)
WARPGROUP_KERNEL(warpgroup_fp8, wgmma_e4m3)
