// Device memory: copy, read and triad (after McCalpin's STREAM), 16 bytes a thread and step.

// out[i] = in[i]; moves 32 bytes per element.
extern "C" __global__ void copy(const float4* __restrict__ in, float4* __restrict__ out, long long count) {
    const long long stride = (long long)gridDim.x * blockDim.x;
#pragma unroll 4
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) out[i] = in[i];
}

// sums[thread] = sum over the thread's elements; moves 16 bytes per element. The sums make the loads needed.
extern "C" __global__ void read(const float4* __restrict__ in, float* __restrict__ sums, long long count) {
    const long long stride = (long long)gridDim.x * blockDim.x;
    const long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0.0f;
    long long i = first;
    for (; i + 3 * stride < count; i += 4 * stride) {  // four loads in flight
        const float4 p = in[i], q = in[i + stride], r = in[i + 2 * stride], s = in[i + 3 * stride];
        sum += (p.x + p.y + p.z + p.w) + (q.x + q.y + q.z + q.w);
        sum += (r.x + r.y + r.z + r.w) + (s.x + s.y + s.z + s.w);
    }
    for (; i < count; i += stride) {
        const float4 p = in[i];
        sum += p.x + p.y + p.z + p.w;
    }
    sums[first] = sum;
}

// out[i] = b[i] + scalar * c[i]; moves 48 bytes per element.
extern "C" __global__ void triad(const float4* __restrict__ b, const float4* __restrict__ c,
                                 float4* __restrict__ out, float scalar, long long count) {
    const long long stride = (long long)gridDim.x * blockDim.x;
#pragma unroll 2
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        const float4 p = b[i], q = c[i];
        float4 r;
        r.x = p.x + scalar * q.x;
        r.y = p.y + scalar * q.y;
        r.z = p.z + scalar * q.z;
        r.w = p.w + scalar * q.w;
        out[i] = r;
    }
}
