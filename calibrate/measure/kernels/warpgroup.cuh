// Hopper's warpgroup instructions (PTX ISA, "Asynchronous warpgroup level matrix instructions"); sm_90a only.

using u64 = unsigned long long;

#define SHARED_TILE(NAME, BYTES) __shared__ __align__(1024) unsigned char NAME[BYTES]

// Ordinary stores to shared memory, made visible to the tensor cores in all threads of the block.
__device__ __forceinline__ void publish_to_tensor_cores() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
}

// Where a matrix lies in shared memory, without swizzling: its start, and the byte offsets between core matrices
// along K (leading) and along the rows (stride), each without its last 4 bits.
__device__ __forceinline__ u64 matrix_descriptor(const void* start, u32 leading_bytes, u32 stride_bytes) {
    const u64 address = (u64)__cvta_generic_to_shared(start);
    return (address & 0x3FFFF) >> 4 | (u64)(leading_bytes >> 4) << 16 | (u64)(stride_bytes >> 4) << 32;
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_wait_all_but_one() {
    asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
}

#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D16(i) D4(i), D4(i + 4), D4(i + 8), D4(i + 12)
#define D128 D16(0), D16(16), D16(32), D16(48), D16(64), D16(80), D16(96), D16(112)

// Names d as changed, so that no use of it moves in front of the wait.
__device__ __forceinline__ void wgmma_wait_all(float (&d)[128]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" : D128 : : "memory");
}

#define T8(t) "%" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, %" #t "5, %" #t "6, %" #t "7"
#define T10(t) T8(t) ", %" #t "8, %" #t "9, "
#define D_NAMES                                                                                              \
    T10() T10(1) T10(2) T10(3) T10(4) T10(5) T10(6) T10(7) T10(8) T10(9) T10(10) T10(11) T8(12)

// d += A * B, both K-major in shared memory. MORE: the immediate operands behind the predicate "add to d".
#define WGMMA(NAME, SHAPE, TYPE, MORE)                                                                       \
    __device__ __forceinline__ void NAME(float (&d)[128], u64 a, u64 b) {                                    \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0; "                                                 \
                     "wgmma.mma_async.sync.aligned." SHAPE ".f32." TYPE "." TYPE " {" D_NAMES                \
                     "}, %128, %129, p, " MORE "; }"                                                         \
                     : D128                                                                                  \
                     : "l"(a), "l"(b)                                                                        \
                     : "memory");                                                                            \
    }

WGMMA(wgmma_f16, "m64n256k16", "f16", "1, 1, 0, 0")
WGMMA(wgmma_bf16, "m64n256k16", "bf16", "1, 1, 0, 0")
WGMMA(wgmma_tf32, "m64n256k8", "tf32", "1, 1")
WGMMA(wgmma_e4m3, "m64n256k32", "e4m3", "1, 1")
