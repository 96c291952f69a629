// Single machine instructions that CUDA C++ has no name for, so that no header is needed to compile.
//
// Fragment layouts are those of the PTX ISA, section "Matrix Fragments for mma". d and c may be the same.

using u32 = unsigned int;

// Two half-precision fused multiply-adds on packed pairs: a * b + c.
__device__ __forceinline__ u32 fma_f16x2(u32 a, u32 b, u32 c) {
    u32 d;
    asm volatile("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

#define MMA_16X8_F32(NAME, SHAPE, TYPE)                                                            \
    __device__ __forceinline__ void NAME(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {    \
        asm volatile("mma.sync.aligned." SHAPE ".row.col.f32." TYPE "." TYPE ".f32 "               \
                     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"             \
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                              \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));          \
    }

MMA_16X8_F32(mma_f16, "m16n8k16", "f16")
MMA_16X8_F32(mma_bf16, "m16n8k16", "bf16")
MMA_16X8_F32(mma_tf32, "m16n8k8", "tf32")
#if __CUDA_ARCH__ >= 890
MMA_16X8_F32(mma_e4m3, "m16n8k32", "e4m3")
#define HAS_FP8 1
#endif

// 8 x 8 x 4 in double precision: one value of a and of b, two of d per lane.
__device__ __forceinline__ void mma_f64(double (&d)[2], double a, double b) {
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+d"(d[0]), "+d"(d[1])
                 : "d"(a), "d"(b));
}
