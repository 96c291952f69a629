// Device memory: copy, read and triad (after McCalpin's STREAM), 16 bytes a thread and step.
//
// Elements are dealt to blocks in tiles of UNROLL * blockDim.x: a thread loads its UNROLL elements of a tile, each
// blockDim.x behind the one before, and only then uses them, so that all these loads are in flight together. A grid
// of fewer blocks than tiles goes round.

#ifndef COPY_UNROLL
#define COPY_UNROLL 1
#endif
#ifndef READ_UNROLL
#define READ_UNROLL 4
#endif
#ifndef TRIAD_UNROLL
#define TRIAD_UNROLL 4
#endif

// Runs `whole(first)` for each of the thread's full tiles, `single(element)` for each element of a cut one.
template <int UNROLL, typename Whole, typename Single>
__device__ __forceinline__ void over_tiles(long long count, Whole whole, Single single) {
    const long long tile = (long long)UNROLL * blockDim.x, round = tile * gridDim.x;
    for (long long first = blockIdx.x * tile + threadIdx.x; first < count; first += round) {
        if (first + (UNROLL - 1) * (long long)blockDim.x < count) {
            whole(first);
        } else {
            for (long long i = first; i < count; i += blockDim.x) single(i);
        }
    }
}

// out[i] = in[i]; moves 32 bytes per element.
extern "C" __global__ void copy(const float4* __restrict__ in, float4* __restrict__ out, long long count) {
    over_tiles<COPY_UNROLL>(
        count,
        [=](long long first) {
            float4 held[COPY_UNROLL];
#pragma unroll
            for (int u = 0; u < COPY_UNROLL; ++u) held[u] = load_once(in + first + u * blockDim.x);
#pragma unroll
            for (int u = 0; u < COPY_UNROLL; ++u) store_once(out + first + u * blockDim.x, held[u]);
        },
        [=](long long i) { store_once(out + i, load_once(in + i)); });
}

// sums[thread] = sum over the thread's elements; moves 16 bytes per element. The sums make the loads needed.
extern "C" __global__ void read(const float4* __restrict__ in, float* __restrict__ sums, long long count) {
    float sum = 0.0f;
    over_tiles<READ_UNROLL>(
        count,
        [&](long long first) {
            float4 held[READ_UNROLL];
#pragma unroll
            for (int u = 0; u < READ_UNROLL; ++u) held[u] = load_once(in + first + u * blockDim.x);
#pragma unroll
            for (int u = 0; u < READ_UNROLL; ++u) sum += (held[u].x + held[u].y) + (held[u].z + held[u].w);
        },
        [&](long long i) {
            const float4 p = load_once(in + i);
            sum += (p.x + p.y) + (p.z + p.w);
        });
    sums[(long long)blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

__device__ __forceinline__ float4 scaled_sum(float4 p, float scalar, float4 q) {
    float4 r;
    r.x = p.x + scalar * q.x;
    r.y = p.y + scalar * q.y;
    r.z = p.z + scalar * q.z;
    r.w = p.w + scalar * q.w;
    return r;
}

// out[i] = b[i] + scalar * c[i]; moves 48 bytes per element.
extern "C" __global__ void triad(const float4* __restrict__ b, const float4* __restrict__ c,
                                 float4* __restrict__ out, float scalar, long long count) {
    over_tiles<TRIAD_UNROLL>(
        count,
        [=](long long first) {
            float4 p[TRIAD_UNROLL], q[TRIAD_UNROLL];
#pragma unroll
            for (int u = 0; u < TRIAD_UNROLL; ++u) {
                p[u] = load_streamed(b + first + u * blockDim.x);
                q[u] = load_streamed(c + first + u * blockDim.x);
            }
#pragma unroll
            for (int u = 0; u < TRIAD_UNROLL; ++u)
                store_streamed(out + first + u * blockDim.x, scaled_sum(p[u], scalar, q[u]));
        },
        [=](long long i) {
            store_streamed(out + i, scaled_sum(load_streamed(b + i), scalar, load_streamed(c + i)));
        });
}
