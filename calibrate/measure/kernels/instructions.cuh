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

// 16 bytes that are used once: what the caches are told is in these four, which a trial may set otherwise. Two
// ways, since on an H200 a copy is fastest by the first, a triad by the second.
#ifndef LOAD_ONCE
#define LOAD_ONCE "ld.global.nc.L1::no_allocate.v4.f32"
#define LOAD_STREAMED "ld.global.cs.v4.f32"
#endif
#ifndef STORE_ONCE
#define STORE_ONCE "st.global.v4.f32"
#define STORE_STREAMED "st.global.cs.v4.f32"
#endif

#define LOAD_AND_STORE(LOAD, LOAD_TEXT, STORE, STORE_TEXT)                                                           \
    __device__ __forceinline__ float4 LOAD(const float4* from) {                                                     \
        float4 v;                                                                                                    \
        asm volatile(LOAD_TEXT " {%0, %1, %2, %3}, [%4];"                                                            \
                     : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)                                                    \
                     : "l"(from));                                                                                   \
        return v;                                                                                                    \
    }                                                                                                                \
    __device__ __forceinline__ void STORE(float4* to, float4 v) {                                                    \
        asm volatile(STORE_TEXT " [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)         \
                     : "memory");                                                                                    \
    }

LOAD_AND_STORE(load_once, LOAD_ONCE, store_once, STORE_ONCE)
LOAD_AND_STORE(load_streamed, LOAD_STREAMED, store_streamed, STORE_STREAMED)

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

// 16 x 8 x 16 in double precision, on Hopper at twice the rate of the other: eight values of a, four of b and of d
// per lane.
#if __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1000
__device__ __forceinline__ void mma_f64_16x8x16(double (&d)[4], const double (&a)[8], const double (&b)[4]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7, %8, %9, %10, %11}, {%12, %13, %14, %15}, {%0, %1, %2, %3};"
                 : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
                 : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]), "d"(a[7]),
                   "d"(b[0]), "d"(b[1]), "d"(b[2]), "d"(b[3]));
}
#define HAS_WIDE_FP64 1
#endif
