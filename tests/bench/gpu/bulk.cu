// A copy through the bulk copy engine (sm_90 and later; PTX ISA, "cp.async.bulk"): one thread of each block keeps
// STAGES chunks of CHUNK bytes on their way through shared memory. Tried beside the copy kernel, not shipped.
//
// count: 16-byte elements, a multiple of CHUNK / 16.

#ifndef CHUNK
#define CHUNK 8192
#endif
#ifndef STAGES
#define STAGES 5
#endif

using u32 = unsigned int;
using u64 = unsigned long long;

__device__ __forceinline__ u32 shared(const void* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void fetch(void* to, const char* from, u64* arrived) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared(arrived)), "r"(CHUNK) : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared(to)),
        "l"(from), "r"(CHUNK), "r"(shared(arrived))
        : "memory");
}

__device__ __forceinline__ void wait_for(u64* arrived, u32 parity) {
    asm volatile(
        "{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1; @!done bra again; }" ::"r"(
            shared(arrived)),
        "r"(parity)
        : "memory");
}

extern "C" __global__ void copy_bulk(const char* in, char* out, long long count) {
    __shared__ __align__(128) char stage[STAGES][CHUNK];
    __shared__ __align__(8) u64 arrived[STAGES];
    if (threadIdx.x != 0) return;
    for (int s = 0; s < STAGES; ++s)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared(&arrived[s])) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    const long long chunks = count * 16 / CHUNK;
    const long long mine = blockIdx.x < chunks ? (chunks - blockIdx.x + gridDim.x - 1) / gridDim.x : 0;
    auto at = [&](long long k) { return (blockIdx.x + k * gridDim.x) * (long long)CHUNK; };
    for (int s = 0; s < STAGES && s < mine; ++s) fetch(stage[s], in + at(s), &arrived[s]);
    for (long long k = 0; k < mine; ++k) {
        const int s = (int)(k % STAGES);
        wait_for(&arrived[s], (u32)(k / STAGES & 1));
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(out + at(k)),
                     "r"(shared(stage[s])), "r"(CHUNK)
                     : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");  // the chunk before this one has left its stage
        const long long next = k - 1 + STAGES;
        if (k > 0 && next < mine) fetch(stage[(k - 1) % STAGES], in + at(next), &arrived[(k - 1) % STAGES]);
    }
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
