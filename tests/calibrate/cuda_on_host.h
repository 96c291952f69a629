// Enough of CUDA C++ to run the kernel files on a CPU: one call a thread, warps in lock step where tensor
// instructions need their 32 lanes together. The instructions' meaning and their fragment layouts are written
// here from the PTX ISA, independently of the kernels.
#pragma once
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)
#define __CUDA_ARCH__ 900
#define HAS_FP8 1
#define HAS_WIDE_FP64 1

using u32 = unsigned int;
using u64 = unsigned long long;
struct float4 {
    float x, y, z, w;
};
struct uint4 {
    u32 x, y, z, w;
};
static inline float4 load_once(const float4* from) { return *from; }
static inline void store_once(float4* to, float4 v) { *to = v; }
static inline float4 load_streamed(const float4* from) { return *from; }
static inline void store_streamed(float4* to, float4 v) { *to = v; }
struct Dim {
    unsigned x, y, z;
};
static thread_local Dim threadIdx, blockIdx, blockDim, gridDim;

static thread_local long long clock_now = 0;
static inline long long clock64() { return clock_now += 1'000'000'000; }

// -- number formats ------------------------------------------------------------------------------------------

static float f32(u32 bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

static float from_half(uint16_t h) {
    const int sign = h >> 15, exponent = h >> 10 & 31, mantissa = h & 1023;
    float value = exponent == 0    ? std::ldexp((float)mantissa, -24)
                  : exponent == 31 ? (mantissa ? NAN : INFINITY)
                                   : std::ldexp((float)(mantissa | 1024), exponent - 25);
    return sign ? -value : value;
}

static uint16_t to_half(float value) {  // nearest, ties to even; normal range and subnormals
    const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const float magnitude = std::fabs(value);
    if (!(magnitude < 65520.0f)) return sign | (std::isnan(value) ? 0x7E00 : 0x7C00);
    if (magnitude < std::ldexp(1.0f, -24) / 2) return sign;
    int exponent;
    std::frexp(magnitude, &exponent);
    if (exponent < -13) exponent = -13;
    const float units = std::nearbyint(std::ldexp(magnitude, 11 - exponent));
    return sign | (uint16_t)((int)units + ((exponent + 13) << 10));
}

static float from_e4m3(uint8_t b) {
    const int exponent = b >> 3 & 15, mantissa = b & 7;
    const float value =
        exponent ? std::ldexp((float)(mantissa | 8), exponent - 10) : std::ldexp((float)mantissa, -9);
    return b >> 7 ? -value : value;
}

static inline u32 fma_f16x2(u32 a, u32 b, u32 c) {
    u32 result = 0;
    for (int half = 0; half < 2; ++half) {
        const int shift = 16 * half;
        const double exact = (double)from_half(a >> shift) * from_half(b >> shift) + from_half(c >> shift);
        result |= (u32)to_half((float)exact) << shift;
    }
    return result;
}

// -- threads that wait for each other: a warp in lock step, or a block at its barriers ------------------------

struct Lane {
    ucontext_t context;
    std::vector<char> stack = std::vector<char>(64 * 1024);
    Dim thread;
    bool done = false;
    std::function<void(Lane*)> wants;  // what all do together once all are here
    void* d = nullptr;
    const void *a = nullptr, *b = nullptr;
};
static thread_local ucontext_t scheduler;
static thread_local Lane* current = nullptr;
static thread_local std::function<void()>* body = nullptr;

static void meet(void* d, const void* a, const void* b, std::function<void(Lane*)> operation) {
    current->d = d;
    current->a = a;
    current->b = b;
    current->wants = std::move(operation);
    swapcontext(&current->context, &scheduler);
}

static void lane_main() {
    (*body)();
    current->done = true;
    swapcontext(&current->context, &scheduler);
}

static void run_together(unsigned first_thread, int count, std::function<void()> kernel) {
    const std::unique_ptr<Lane[]> lanes(new Lane[count]);
    body = &kernel;
    for (int k = 0; k < count; ++k) {
        getcontext(&lanes[k].context);
        lanes[k].context.uc_stack.ss_sp = lanes[k].stack.data();
        lanes[k].context.uc_stack.ss_size = lanes[k].stack.size();
        lanes[k].context.uc_link = nullptr;
        makecontext(&lanes[k].context, lane_main, 0);
        lanes[k].thread = {first_thread + k, 0, 0};
    }
    for (;;) {
        int finished = 0;
        for (int k = 0; k < count; ++k) {
            current = &lanes[k];
            threadIdx = current->thread;
            if (!current->done) swapcontext(&scheduler, &current->context);
            finished += current->done;
        }
        if (finished == count) return;
        if (finished) __builtin_trap();  // some left while others wait: undefined on a GPU
        lanes[0].wants(lanes.get());
    }
}

// -- tensor instructions (PTX ISA, "Matrix Fragments for mma.m16n8k8 / k16 / k32", "m8n8k4") ------------------

// Element k of 4-byte words. Elements a word: 1 (tf32), 2 (f16, bf16), 4 (e4m3).
template <int PER_WORD>
using Decode = float (*)(u32 word, int element);
static float e_tf32(u32 w, int) { return f32(w & 0xFFFFE000u); }
static float e_f16(u32 w, int k) { return from_half(w >> 16 * k); }
static float e_bf16(u32 w, int k) { return f32(w >> 16 * k << 16); }
static float e_e4m3(u32 w, int k) { return from_e4m3(w >> 8 * k); }

template <int PER_WORD>
static void mma_16x8(Lane* lanes, float (*decode)(u32, int)) {
    constexpr int K = 8 * PER_WORD;
    float A[16][K], B[K][8];
    for (int lane = 0; lane < 32; ++lane) {
        const u32 *a = (const u32*)lanes[lane].a, *b = (const u32*)lanes[lane].b;
        const int group = lane >> 2, in_group = lane & 3;
        for (int r = 0; r < 4; ++r)  // registers 0, 2: row group; 1, 3: row group + 8; 2, 3: second half of K
            for (int e = 0; e < PER_WORD; ++e)
                A[group + 8 * (r & 1)][in_group * PER_WORD + e + (r >> 1) * K / 2] = decode(a[r], e);
        for (int r = 0; r < 2; ++r)
            for (int e = 0; e < PER_WORD; ++e) B[in_group * PER_WORD + e + r * K / 2][group] = decode(b[r], e);
    }
    for (int lane = 0; lane < 32; ++lane) {
        float* d = (float*)lanes[lane].d;
        for (int r = 0; r < 4; ++r) {
            const int row = (lane >> 2) + 8 * (r >> 1), column = (lane & 3) * 2 + (r & 1);
            for (int k = 0; k < K; ++k) d[r] += A[row][k] * B[k][column];
        }
    }
}

static void mma_8x8x4(Lane* lanes) {
    double A[8][4], B[4][8];
    for (int lane = 0; lane < 32; ++lane) {
        A[lane >> 2][lane & 3] = *(const double*)lanes[lane].a;
        B[lane & 3][lane >> 2] = *(const double*)lanes[lane].b;
    }
    for (int lane = 0; lane < 32; ++lane) {
        double* d = (double*)lanes[lane].d;
        for (int r = 0; r < 2; ++r)
            for (int k = 0; k < 4; ++k) d[r] += A[lane >> 2][k] * B[k][(lane & 3) * 2 + r];
    }
}

#define HOST_MMA(NAME, PER_WORD, DECODE)                                                    \
    static inline void NAME(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {          \
        meet(d, a, b, [](Lane* lanes) { mma_16x8<PER_WORD>(lanes, DECODE); });         \
    }
HOST_MMA(mma_tf32, 1, e_tf32)
HOST_MMA(mma_f16, 2, e_f16)
HOST_MMA(mma_bf16, 2, e_bf16)
HOST_MMA(mma_e4m3, 4, e_e4m3)

static inline void mma_f64(double (&d)[2], double a, double b) { meet(d, &a, &b, mma_8x8x4); }

static void mma_16x8x16(Lane* lanes) {
    double A[16][16], B[16][8];
    for (int lane = 0; lane < 32; ++lane) {
        const double *a = (const double*)lanes[lane].a, *b = (const double*)lanes[lane].b;
        const int group = lane >> 2, in_group = lane & 3;
        for (int i = 0; i < 8; ++i) A[group + (i % 2 ? 8 : 0)][i % 2 ? 2 * i - 2 + in_group : 2 * i + in_group] = a[i];
        for (int i = 0; i < 4; ++i) B[in_group + 4 * i][group] = b[i];
    }
    for (int lane = 0; lane < 32; ++lane) {
        double* d = (double*)lanes[lane].d;
        for (int i = 0; i < 4; ++i)
            for (int k = 0; k < 16; ++k) d[i] += A[(lane >> 2) + (i < 2 ? 0 : 8)][k] * B[k][(lane & 3) * 2 + (i & 1)];
    }
}
static inline void mma_f64_16x8x16(double (&d)[4], const double (&a)[8], const double (&b)[4]) {
    meet(d, a, b, mma_16x8x16);
}

// -- warpgroup instructions (PTX ISA, "wgmma.mma_async", "Matrix Descriptor Format") ---------------------------

// Shared memory of the one block that runs at a time; addresses count from its start.
alignas(1024) static unsigned char shared_memory[64 * 1024];
static inline unsigned char* shared_at(unsigned offset) { return shared_memory + offset; }
// Each tile gets 16 KiB of its own, the second one not at 0.
#define SHARED_TILE(NAME, BYTES)                     \
    static_assert((BYTES) <= 16 * 1024, "too large"); \
    unsigned char* const NAME = shared_at(16 * 1024 * (1 + (#NAME[5] == 'b')))

static inline void publish_to_tensor_cores() { meet(nullptr, nullptr, nullptr, [](Lane*) {}); }

// Bits 0-13: start / 16; 16-29: leading offset / 16; 32-45: stride offset / 16; 49-51 base; 62-63: swizzle.
static inline u64 matrix_descriptor(const void* start, u32 leading_bytes, u32 stride_bytes) {
    const u64 address = (const unsigned char*)start - shared_memory;
    return address / 16 | (u64)(leading_bytes / 16) << 16 | (u64)(stride_bytes / 16) << 32;
}
static inline void wgmma_fence() {}
static inline void wgmma_commit() {}
static inline void wgmma_wait_all_but_one() {}
static inline void wgmma_wait_all(float (&)[128]) {}

// The 4-byte word that holds byte `byte` of a row of a K-major matrix without swizzling.
static u32 word_of(u64 descriptor, int row, int byte) {
    const u64 start = (descriptor & 0x3FFF) * 16, leading = (descriptor >> 16 & 0x3FFF) * 16,
              stride = (descriptor >> 32 & 0x3FFF) * 16;
    u32 word;
    std::memcpy(&word, shared_memory + start + row / 8 * stride + row % 8 * 16 + byte / 16 * leading + byte % 16, 4);
    return word;
}

template <int PER_WORD>
static void wgmma_64x256(Lane* lanes, float (*decode)(u32, int)) {  // the 128 threads of one warpgroup
    constexpr int K = 8 * PER_WORD;
    static float A[64][K], B[256][K];
    const u64 a = *(const u64*)lanes[0].a, b = *(const u64*)lanes[0].b;
    for (int k = 0; k < K; ++k) {
        const int byte = k / PER_WORD * 4;
        for (int row = 0; row < 64; ++row) A[row][k] = decode(word_of(a, row, byte), k % PER_WORD);
        for (int row = 0; row < 256; ++row) B[row][k] = decode(word_of(b, row, byte), k % PER_WORD);
    }
    for (int thread = 0; thread < 128; ++thread) {
        float* d = (float*)lanes[thread].d;
        const int warp = thread / 32, lane = thread % 32;
        for (int i = 0; i < 128; ++i) {
            const int row = 16 * warp + (lane >> 2) + ((i >> 1) & 1) * 8, column = (i >> 2) * 8 + (lane & 3) * 2 + (i & 1);
            for (int k = 0; k < K; ++k) d[i] += A[row][k] * B[column][k];
        }
    }
}

#define HOST_WGMMA(NAME, PER_WORD, DECODE)                                                      \
    static inline void NAME(float (&d)[128], u64 a, u64 b) {                                    \
        const u64 held[2] = {a, b};                                                             \
        meet(d, &held[0], &held[1], [threads = blockDim.x](Lane* lanes) {                       \
            for (unsigned t = 0; t < threads; t += 128) wgmma_64x256<PER_WORD>(lanes + t, DECODE); \
        });                                                                                     \
    }
HOST_WGMMA(wgmma_tf32, 1, e_tf32)
HOST_WGMMA(wgmma_f16, 2, e_f16)
HOST_WGMMA(wgmma_bf16, 2, e_bf16)
HOST_WGMMA(wgmma_e4m3, 4, e_e4m3)

// -- launches ------------------------------------------------------------------------------------------------

// `together`: threads that wait for each other: 1, 32 or those of a block.
static void run_grid(unsigned blocks, unsigned threads, unsigned together, const std::function<void()>& kernel) {
    gridDim = {blocks, 1, 1};
    blockDim = {threads, 1, 1};
    for (unsigned block = 0; block < blocks; ++block) {
        blockIdx = {block, 0, 0};
        for (unsigned thread = 0; thread < threads; thread += together) {
            threadIdx = {thread, 0, 0};
            if (together > 1)
                run_together(thread, together, kernel);
            else
                kernel();
        }
    }
}
