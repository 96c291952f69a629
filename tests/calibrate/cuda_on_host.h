// Enough of CUDA C++ to run the kernel files on a CPU: one call a thread, warps in lock step where tensor
// instructions need their 32 lanes together. The instructions' meaning and their fragment layouts are written
// here from the PTX ISA, independently of the kernels.
#pragma once
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __restrict__
#define __CUDA_ARCH__ 900
#define HAS_FP8 1

using u32 = unsigned int;
struct float4 {
    float x, y, z, w;
};
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

// -- a warp in lock step -------------------------------------------------------------------------------------

struct Lane {
    ucontext_t context;
    std::vector<char> stack = std::vector<char>(64 * 1024);
    Dim thread;
    bool done = false;
    std::function<void(Lane (&)[32])> wants;  // what the whole warp does once all 32 lanes are here
    void* d = nullptr;
    const void *a = nullptr, *b = nullptr;
};
static thread_local ucontext_t scheduler;
static thread_local Lane* current = nullptr;
static thread_local std::function<void()>* body = nullptr;

static void meet(void* d, const void* a, const void* b, std::function<void(Lane (&)[32])> operation) {
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

static void run_warp(unsigned first_thread, std::function<void()> kernel) {
    Lane lanes[32];
    body = &kernel;
    for (int k = 0; k < 32; ++k) {
        getcontext(&lanes[k].context);
        lanes[k].context.uc_stack.ss_sp = lanes[k].stack.data();
        lanes[k].context.uc_stack.ss_size = lanes[k].stack.size();
        lanes[k].context.uc_link = nullptr;
        makecontext(&lanes[k].context, lane_main, 0);
        lanes[k].thread = {first_thread + k, 0, 0};
    }
    for (;;) {
        int finished = 0;
        for (Lane& lane : lanes) {
            current = &lane;
            threadIdx = lane.thread;
            if (!lane.done) swapcontext(&scheduler, &lane.context);
            finished += lane.done;
        }
        if (finished == 32) return;
        if (finished) __builtin_trap();  // some lanes left while others wait: undefined on a GPU
        lanes[0].wants(lanes);
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
static void mma_16x8(Lane (&lanes)[32], float (*decode)(u32, int)) {
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

static void mma_8x8x4(Lane (&lanes)[32]) {
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
        meet(d, a, b, [](Lane(&lanes)[32]) { mma_16x8<PER_WORD>(lanes, DECODE); });         \
    }
HOST_MMA(mma_tf32, 1, e_tf32)
HOST_MMA(mma_f16, 2, e_f16)
HOST_MMA(mma_bf16, 2, e_bf16)
HOST_MMA(mma_e4m3, 4, e_e4m3)

static inline void mma_f64(double (&d)[2], double a, double b) { meet(d, &a, &b, mma_8x8x4); }

// -- launches ------------------------------------------------------------------------------------------------

static void run_grid(unsigned blocks, unsigned threads, bool warps, const std::function<void()>& kernel) {
    gridDim = {blocks, 1, 1};
    blockDim = {threads, 1, 1};
    for (unsigned block = 0; block < blocks; ++block) {
        blockIdx = {block, 0, 0};
        for (unsigned thread = 0; thread < threads; thread += warps ? 32 : 1) {
            threadIdx = {thread, 0, 0};
            if (warps)
                run_warp(thread, kernel);
            else
                kernel();
        }
    }
}
