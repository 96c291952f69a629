// A stand-in for libcuda.so.1 (and libcublasLt.so.13): a GPU whose speeds are known.
//
// Small launches run the real kernel sources on the CPU (cuda_on_host.h); large ones only take their time on
// the stream. A stream is busy until a moment, waiting for it sleeps. What a program measures must therefore come
// out as the constants below. Preloaded, the library gives the process a clock of its own (own_clock.h). Pointers and
// sizes of copies are checked. What the default stream was asked for is done no sooner than somebody waits for it, as
// a driver may do.
//
// FAKE_CUDA, words separated by commas: two (GPUs), nodevice, nogreen (a driver without green contexts),
// wrong, wrongown (a kernel of mma.sync, of wgmma computes something else).
#include "cuda_on_host.h"

#define read kernel_read  // not libc's
#include "../../calibrate/measure/kernels/arithmetic.cu"
#include "../../calibrate/measure/kernels/bandwidth.cu"
#include "../../calibrate/measure/kernels/latency.cu"
#include "../../calibrate/measure/kernels/tensor.cu"
#include "../../calibrate/measure/kernels/warpgroup.cu"
#undef read

#define OWN_NAME "libcuda"
#include "own_clock.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr int ONCE_AROUND = 512;  // of launches on 64 KiB, slot after slot of an arena of 32 MiB, so many are run
constexpr double COPY = 400e9, READ = 420e9, TRIAD = 390e9, DTOD = 398e9;  // bytes/s
constexpr double LAUNCH = 1e-6;                                           // s
constexpr double TO_DEVICE = 20e9, TO_HOST = 18e9, PEER = 90e9;           // bytes/s
constexpr double KAPPA_COMPUTE = 5.0, KAPPA_MEMORY = 0.3;
constexpr int SMS = 16, SM_STEP = 4;
const std::map<std::string, double> FLOP_RATE = {
    {"fma_fp32", 40e12},     {"fma_fp64", 20e12},     {"fma_fp16", 80e12},    {"tensor_fp16", 300e12},
    {"tensor_bf16", 300e12}, {"tensor_tf32", 150e12}, {"tensor_fp8", 600e12}, {"tensor_fp64", 15e12},
    {"tensor_fp64_wide", 30e12}, {"warpgroup_fp16", 500e12}, {"warpgroup_bf16", 500e12}, {"warpgroup_tf32", 250e12},
    {"warpgroup_fp8", 1000e12}};
constexpr double GEMM_RATE = 700e12, GEMM_BYTES = 380e9, GEMM_LAUNCH = 2e-6;

enum { OK = 0, INVALID = 1, NO_MEMORY = 2, TIMEOUT = 702, NO_DEVICE = 100, NO_IMAGE = 200, NOT_FOUND = 500, UNSUPPORTED = 801 };

// A held stream counts its work from the moment of the hold; `resolve` moves it to when the host let go.
struct Stream {
    double busy_until = 0.0, share = 1.0;
    const volatile int* go = nullptr;  // set while held
    double held_at = 0.0, shift = 0.0;
    int holds = 0;
};
struct Event {
    double at = 0.0;
    Stream* stream = nullptr;
    int holds = 0;
};
struct Green {
    double share;
};
struct Resource {  // the layout of CUdevResource
    int type;
    char padding[92];
    unsigned sms;
    char rest[44];
};
static_assert(sizeof(Resource) == 144, "CUdevResource");

std::map<uintptr_t, size_t> allocated;
Stream null_stream;
std::vector<std::function<void()>> on_default_stream;

void finish_default_stream() {
    for (auto& work : on_default_stream) work();
    on_default_stream.clear();
}
int contexts[2];

bool has(const char* word) {
    const char* all = getenv("FAKE_CUDA");
    return all && (std::string(",") + all + ",").find(std::string(",") + word + ",") != std::string::npos;
}

double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

void sleep_until(double when) {
    double left;
    while ((left = when - now()) > 0) {
        if (left < 2e-4) continue;  // shorter sleeps overshoot
        const timespec t = {(time_t)(left - 1e-4), (long)(std::fmod(left - 1e-4, 1.0) * 1e9)};
        nanosleep(&t, nullptr);
    }
}

Stream& stream_of(void* handle) { return handle ? *(Stream*)handle : null_stream; }

void busy(void* stream, double seconds) {
    Stream& s = stream_of(stream);
    s.busy_until = (s.go ? s.busy_until : std::max(s.busy_until, now())) + seconds;
}

void hold_stream(void* stream, const volatile int* go) {
    Stream& s = stream_of(stream);
    s.busy_until = s.held_at = std::max(s.busy_until, now());
    s.go = go;
    s.shift = 0.0;
    ++s.holds;
}

bool resolve(Stream& s) {  // false: waiting for a stream that nobody lets go
    if (!s.go) return true;
    if (*s.go == 0) return false;
    s.shift = std::max(0.0, now() - s.held_at);
    s.busy_until += s.shift;
    s.go = nullptr;
    return true;
}

bool inside(uintptr_t pointer, size_t size) {
    auto it = allocated.upper_bound(pointer);
    if (it == allocated.begin()) return false;
    --it;
    return pointer + size <= it->first + it->second;
}

double speed(double share, double kappa) { return (1 + kappa) * share / (share + kappa); }

template <typename T>
T argument(void** arguments, int k) {
    return *(T*)arguments[k];
}

// -- kernels -------------------------------------------------------------------------------------------------

using Arguments = void**;

bool is_warpgroup(const std::string& name) { return name.rfind("warpgroup_", 0) == 0; }
bool is_tensor(const std::string& name) { return name.rfind("tensor_", 0) == 0 || is_warpgroup(name); }
bool ends_with(const std::string& name, const std::string& end) {
    return name.size() >= end.size() && name.compare(name.size() - end.size(), end.size(), end) == 0;
}

void call_kernel(const std::string& name, Arguments a) {
    auto in = [&](int k) { return argument<float4*>(a, k); };
    if (name == "copy") return copy(in(0), in(1), argument<long long>(a, 2));
    if (name == "read") return kernel_read(in(0), argument<float*>(a, 1), argument<long long>(a, 2));
    if (name == "triad") return triad(in(0), in(1), in(2), argument<float>(a, 3), argument<long long>(a, 4));
    if (name == "fma_fp32")
        return fma_fp32(argument<float*>(a, 0), argument<float>(a, 1), argument<float>(a, 2), argument<int>(a, 3));
    if (name == "fma_fp64")
        return fma_fp64(argument<double*>(a, 0), argument<double>(a, 1), argument<double>(a, 2), argument<int>(a, 3));
    if (name == "fma_fp16")
        return fma_fp16(argument<u32*>(a, 0), argument<u32>(a, 1), argument<u32>(a, 2), argument<u32>(a, 3),
                        argument<int>(a, 4));
    if (name == "tensor_fp64" || name == "tensor_fp64_wide")
        return (name == "tensor_fp64" ? tensor_fp64 : tensor_fp64_wide)(argument<double*>(a, 0), argument<double*>(a, 1), argument<double*>(a, 2),
                           argument<int>(a, 3));
    if (is_warpgroup(name)) {
        auto group = name == "warpgroup_fp16"   ? warpgroup_fp16
                     : name == "warpgroup_bf16" ? warpgroup_bf16
                     : name == "warpgroup_tf32" ? warpgroup_tf32
                                                : warpgroup_fp8;
        return group(argument<uint4*>(a, 0), argument<uint4*>(a, 1), argument<float*>(a, 2), argument<int>(a, 3));
    }
    auto tensor = name == "tensor_fp16"   ? tensor_fp16
                  : name == "tensor_bf16" ? tensor_bf16
                  : name == "tensor_tf32" ? tensor_tf32
                                          : tensor_fp8;
    tensor(argument<u32*>(a, 0), argument<u32*>(a, 1), argument<float*>(a, 2), argument<int>(a, 3));
}

bool is_stream(const std::string& name) { return name == "copy" || name == "read" || name == "triad"; }

int iterations(const std::string& name, Arguments a) { return argument<int>(a, name == "fma_fp16" ? 4 : 3); }

double flop(const std::string& name, double threads, Arguments a) {
    const double k = iterations(name, a);
    if (name == "fma_fp16") return threads * k * 32;
    if (!is_tensor(name)) return threads * k * 16;
    if (name == "tensor_fp64") return threads / 32 * k * 4 * 2 * 8 * 8 * 4;
    const double depth = ends_with(name, "tf32") ? 8 : ends_with(name, "fp8") ? 32 : 16;
    if (is_warpgroup(name)) return threads / 128 * k * 8 * 2 * 64 * 256 * depth;
    return threads / 32 * k * 4 * 2 * 16 * 8 * depth;
}

bool small(const std::string& name, double threads, Arguments a) {
    if (is_stream(name)) {
        static std::map<std::string, int> launched;
        const long long count = argument<long long>(a, name == "triad" ? 4 : 2);
        return count <= 1024 || (count <= 4096 && ++launched[name] <= ONCE_AROUND);
    }
    return threads * iterations(name, a) <= (is_tensor(name) ? 1e4 : 1e6);
}

double seconds(const std::string& name, double threads, double share, Arguments a) {
    if (name == "nothing") return LAUNCH;
    if (is_stream(name)) {
        const double count = (double)argument<long long>(a, name == "triad" ? 4 : 2) * 16;
        const double at = name == "copy" ? 2 / COPY : name == "read" ? 1 / READ : 3 / TRIAD;
        return LAUNCH + count * at / speed(share, KAPPA_MEMORY);
    }
    return LAUNCH + flop(name, threads, a) / FLOP_RATE.at(name) / speed(share, KAPPA_COMPUTE);
}

struct Kernel {
    std::string name;
};

}  // namespace

// -- the driver's interface ----------------------------------------------------------------------------------

extern "C" {

int cuInit(unsigned) { return has("nodevice") ? NO_DEVICE : OK; }
int cuGetErrorName(int code, const char** text) {
    static const std::map<int, const char*> names = {{INVALID, "CUDA_ERROR_INVALID_VALUE"},
                                                     {NO_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
                                                     {NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
                                                     {NO_IMAGE, "CUDA_ERROR_INVALID_IMAGE"},
                                                     {NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
                                                     {TIMEOUT, "CUDA_ERROR_LAUNCH_TIMEOUT"},
                                                     {UNSUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"}};
    auto it = names.find(code);
    *text = it == names.end() ? nullptr : it->second;
    return OK;
}
int cuGetExportTable(const void** table, const void*) { return *table = nullptr, NOT_FOUND; }  // NVRTC asks
int cuDriverGetVersion(int* v) { return *v = 13000, OK; }
int cuDeviceGetCount(int* n) { return *n = has("two") ? 2 : 1, OK; }
int cuDeviceGet(int* device, int index) { return *device = index, index < 2 ? OK : INVALID; }
int cuDeviceGetName(char* text, int n, int) { return snprintf(text, n, "NVIDIA H100 80GB HBM3"), OK; }
int cuDeviceGetUuid_v2(unsigned char* bytes, int device) {
    memset(bytes, 0, 16);
    return bytes[14] = (unsigned char)device, OK;  // as fake_nvml.c writes it
}
int cuDeviceTotalMem_v2(size_t* size, int) { return *size = 512u << 20, OK; }
int cuMemGetInfo_v2(size_t* left, size_t* total) { return *left = 256u << 20, *total = 512u << 20, OK; }
int cuDeviceGetAttribute(int* value, int attribute, int) {
    const std::map<int, int> known = {{16, SMS}, {38, 1 << 20}, {75, 9}, {76, 0}};
    auto it = known.find(attribute);
    if (it == known.end()) return INVALID;
    return *value = it->second, OK;
}
int cuDevicePrimaryCtxRetain(void** context, int device) { return *context = &contexts[device], OK; }
int cuCtxSetCurrent(void*) { return OK; }
int cuDeviceCanAccessPeer(int* possible, int, int) { return *possible = 1, OK; }
int cuCtxEnablePeerAccess(void*, unsigned) { return OK; }

int cuMemAlloc_v2(uint64_t* pointer, size_t size) {
    if (size == 0 || size > (512u << 20)) return size ? NO_MEMORY : INVALID;
    *pointer = (uintptr_t)calloc(1, size);
    allocated[*pointer] = size;
    return OK;
}
int cuMemFree_v2(uint64_t pointer) {
    finish_default_stream();
    if (!allocated.erase(pointer)) return INVALID;
    free((void*)pointer);
    return OK;
}
int cuMemHostAlloc(void** pointer, size_t size, unsigned) { return *pointer = calloc(1, size), OK; }
int cuMemFreeHost(void* pointer) { return free(pointer), OK; }
int cuMemHostGetDevicePointer_v2(uint64_t* device, void* host, unsigned) { return *device = (uintptr_t)host, OK; }

int cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t n) {
    if (!inside(to, n)) return INVALID;
    std::vector<char> staged((const char*)from, (const char*)from + n);
    on_default_stream.push_back([to, staged = std::move(staged)] { memcpy((void*)to, staged.data(), staged.size()); });
    return OK;
}
int cuMemcpyDtoH_v2(void* to, uint64_t from, size_t n) {
    if (!inside(from, n)) return INVALID;
    finish_default_stream();
    return memcpy(to, (void*)from, n), OK;
}
int cuMemsetD32_v2(uint64_t to, unsigned word, size_t n) {
    if (!inside(to, 4 * n)) return INVALID;
    on_default_stream.push_back([=] { std::fill_n((unsigned*)to, n, word); });
    return OK;
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t n, void* stream) {
    if (!inside(to, n)) return INVALID;
    if (n <= 1u << 20) memcpy((void*)to, from, n);
    return busy(stream, 1e-5 + n / TO_DEVICE), OK;
}
int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t n, void* stream) {
    if (!inside(from, n)) return INVALID;
    if (n <= 1u << 20) memcpy(to, (void*)from, n);
    return busy(stream, 1e-5 + n / TO_HOST), OK;
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t n, void* stream) {
    if (!inside(to, n) || !inside(from, n)) return INVALID;
    return busy(stream, LAUNCH + 2 * n / DTOD), OK;
}
int cuMemcpyPeerAsync(uint64_t to, void*, uint64_t from, void*, size_t n, void* stream) {
    if (!inside(to, n) || !inside(from, n)) return INVALID;
    return busy(stream, 1e-5 + n / PEER), OK;
}

int cuStreamCreate(void** stream, unsigned) { return *stream = new Stream, OK; }
int cuStreamDestroy_v2(void* stream) { return delete (Stream*)stream, OK; }
int cuStreamSynchronize(void* stream) {
    if (!stream) finish_default_stream();
    if (!resolve(stream_of(stream))) return TIMEOUT;
    return sleep_until(stream_of(stream).busy_until), OK;
}
int cuEventCreate(void** event, unsigned) { return *event = new Event, OK; }
int cuEventRecord(void* event, void* stream) {
    Stream& s = stream_of(stream);
    return *(Event*)event = {s.go ? s.busy_until : std::max(s.busy_until, now()), &s, s.holds}, OK;
}
int cuEventSynchronize(void* event) {
    const Event& e = *(Event*)event;
    if (!resolve(*e.stream)) return TIMEOUT;
    return sleep_until(e.at + (e.holds == e.stream->holds ? e.stream->shift : 0.0)), OK;
}
int cuEventElapsedTime(float* ms, void* start, void* end) {
    return *ms = (float)(1e3 * (((Event*)end)->at - ((Event*)start)->at)), OK;
}

int cuLibraryLoadData(void** library, const char* code, void*, void*, unsigned, void*, void*, unsigned) {
    if (memcmp(code, "\x7f"  "ELF", 4)) return NO_IMAGE;
    return *library = (void*)code, OK;
}
int cuLibraryGetKernel(void** kernel, void*, const char* name) {
    const std::string known = " copy read triad fma_fp32 fma_fp64 fma_fp16 nothing hold tensor_fp16 "
                              "tensor_bf16 tensor_tf32 tensor_fp8 tensor_fp64 tensor_fp64_wide warpgroup_fp16 "
                              "warpgroup_bf16 warpgroup_tf32 warpgroup_fp8 ";
    if (known.find(" " + std::string(name) + " ") == std::string::npos) return NOT_FOUND;
    return *kernel = new Kernel{name}, OK;
}
int cuLaunchKernel(void* kernel, unsigned blocks, unsigned gy, unsigned gz, unsigned threads, unsigned by, unsigned bz,
                   unsigned, void* stream, void** arguments, void**) {
    const std::string& name = ((Kernel*)kernel)->name;
    if (gy != 1 || gz != 1 || by != 1 || bz != 1 || threads == 0 || threads > 1024 || blocks == 0) return INVALID;
    if (name == "hold") {
        const volatile int* go = argument<const volatile int*>(arguments, 0);
        clock_now = 0;
        hold(go, argument<long long>(arguments, 1));  // gives up at once: this clock is fast
        return hold_stream(stream, go), OK;
    }
    const double all = (double)blocks * threads;
    if (name != "nothing" && small(name, all, arguments))
        run_grid(blocks, threads, is_warpgroup(name) ? threads : is_tensor(name) ? 32 : 1,
                 [&] { call_kernel(name, arguments); });
    if (name == (has("wrong") ? "tensor_bf16" : has("wrongown") ? "warpgroup_bf16" : ""))
        argument<float*>(arguments, 2)[0] += 1.0f;
    return busy(stream, seconds(name, all, stream_of(stream).share, arguments)), OK;
}

int cuDeviceGetDevResource(int, Resource* resource, int type) {
    if (has("nogreen")) return UNSUPPORTED;
    if (type != 1) return INVALID;
    return resource->type = 1, resource->sms = SMS, OK;
}
int cuDevSmResourceSplitByCount(Resource* result, unsigned* groups, const Resource* input, Resource* rest,
                                unsigned, unsigned least) {
    const unsigned granted = std::min((least + SM_STEP - 1) / SM_STEP * SM_STEP, input->sms);
    *result = *input;
    *rest = *input;
    result->sms = granted;
    rest->sms = input->sms - granted;
    return *groups = 1, OK;
}
int cuDevResourceGenerateDesc(void** descriptor, Resource* resource, unsigned n) {
    return *descriptor = resource, n == 1 ? OK : INVALID;
}
int cuGreenCtxCreate(void** context, void* descriptor, int, unsigned flags) {
    return *context = new Green{(double)((Resource*)descriptor)->sms / SMS}, flags == 1 ? OK : INVALID;
}
int cuGreenCtxStreamCreate(void** stream, void* context, unsigned, int) {
    auto* made = new Stream;
    made->share = ((Green*)context)->share;
    return *stream = made, OK;
}
int cuGreenCtxDestroy(void* context) { return delete (Green*)context, OK; }

// -- cuBLASLt ------------------------------------------------------------------------------------------------

struct Description {
    int compute, transpose_a = 0, transpose_b = 0;
    float *scale_a = nullptr, *scale_b = nullptr;
};
struct Layout {
    int type;
    uint64_t rows, columns;
    int64_t stride;
};
struct Heuristic {
    uint64_t algorithm[8];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};

int cublasLtCreate(void** handle) { return *handle = new int, OK; }
int cublasLtDestroy(void* handle) { return delete (int*)handle, OK; }
size_t cublasLtGetVersion() { return 130000; }
int cublasLtMatmulDescCreate(Description** d, int compute, int) { return *d = new Description{compute}, OK; }
int cublasLtMatmulDescDestroy(Description* d) { return delete d, OK; }
int cublasLtMatmulDescSetAttribute(Description* d, int attribute, const void* value, size_t size) {
    if (attribute == 3 && size == 4) return d->transpose_a = *(const int*)value, OK;
    if (attribute == 4 && size == 4) return d->transpose_b = *(const int*)value, OK;
    if (attribute == 17 && size == 8) return d->scale_a = *(float* const*)value, OK;
    if (attribute == 18 && size == 8) return d->scale_b = *(float* const*)value, OK;
    return 7;
}
int cublasLtMatrixLayoutCreate(Layout** l, int type, uint64_t rows, uint64_t columns, int64_t stride) {
    return *l = new Layout{type, rows, columns, stride}, OK;
}
int cublasLtMatrixLayoutDestroy(Layout* l) { return delete l, OK; }
int cublasLtMatmulPreferenceCreate(void** p) { return *p = new size_t(0), OK; }
int cublasLtMatmulPreferenceDestroy(void* p) { return delete (size_t*)p, OK; }
int cublasLtMatmulPreferenceSetAttribute(void*, int attribute, const void*, size_t size) {
    return attribute == 1 && size == 8 ? OK : 7;
}
int cublasLtMatmulAlgoGetHeuristic(void*, Description* d, Layout* a, Layout* b, Layout* c, Layout* out, void*,
                                   int wanted, Heuristic* results, int* found) {
    if (d->transpose_a != 1 || d->transpose_b != 0 || a->rows != b->rows || out->rows != a->columns ||
        out->columns != b->columns || c->rows != out->rows)
        return 7;
    *found = std::min(wanted, 2);
    for (int k = 0; k < *found; ++k) results[k] = Heuristic{{(uint64_t)k}, 0, 0, 1.0f, {}};
    return OK;
}

static float element(int type, uint64_t base, uint64_t k) {
    if (type == 0) return ((float*)base)[k];
    if (type == 2) return from_half(((uint16_t*)base)[k]);
    if (type == 14) return f32((u32)((uint16_t*)base)[k] << 16);
    return from_e4m3(((uint8_t*)base)[k]);
}

static void store(int type, uint64_t base, uint64_t k, float value) {
    u32 bits;
    memcpy(&bits, &value, 4);
    if (type == 0) ((float*)base)[k] = value;
    if (type == 2) ((uint16_t*)base)[k] = to_half(value);
    if (type == 14) ((uint16_t*)base)[k] = (uint16_t)((bits + 0x8000) >> 16);
}

int cublasLtMatmul(void*, Description* d, const float* alpha, uint64_t a, Layout* la, uint64_t b, Layout* lb,
                   const float* beta, uint64_t, Layout*, uint64_t out, Layout* lo, const Heuristic* algorithm,
                   uint64_t workspace, size_t workspace_size, void* stream) {
    const uint64_t n = lo->rows, m = lo->columns, k = la->rows;
    const double width = la->type == 0 ? 4 : la->type == 28 ? 1 : 2, out_width = lo->type == 0 ? 4 : 2;
    if (!inside(a, n * k * width) || !inside(b, m * k * width) || !inside(out, m * n * out_width)) return 7;
    if (!inside(workspace, workspace_size)) return 7;
    if (la->type == 28 && (!d->scale_a || !d->scale_b || *d->scale_a != 1.0f)) return 7;
    if (m * n * k <= 200000)
        for (uint64_t j = 0; j < m; ++j)  // column-major: out[i + j * n]
            for (uint64_t i = 0; i < n; ++i) {
                float sum = 0;
                for (uint64_t x = 0; x < k; ++x)
                    sum += element(la->type, a, x + i * la->stride) * element(lb->type, b, x + j * lb->stride);
                store(lo->type, out, i + j * lo->stride, *alpha * sum + *beta * 0.0f);
            }
    const double traffic = width * (m * k + n * k) + out_width * m * n;
    const double rough = algorithm->algorithm[0] == 1 ? 1.0 : 1.5;  // the second algorithm is the fast one
    busy(stream, GEMM_LAUNCH + rough * std::max(2.0 * m * n * k / GEMM_RATE, traffic / GEMM_BYTES));
    return OK;
}

}  // extern "C"
