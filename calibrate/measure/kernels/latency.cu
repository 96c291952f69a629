// Latencies: of a launch, and of one dependent load.

extern "C" __global__ void nothing() {}

// One thread follows `next` for `steps` loads, each waiting for the one before; end[0] = where it arrived.
extern "C" __global__ void chase(const unsigned int* next, unsigned int* end, unsigned int start, int steps) {
    unsigned int at = start;
    for (int k = 0; k < steps; ++k) at = next[at];
    end[0] = at;
}

// Holds the stream until the host sets *go, so that everything queued behind it runs back to back (as in
// NVIDIA's nvbandwidth); gives up after `limit` clocks, so that no mistake can hang the device.
extern "C" __global__ void hold(const volatile int* go, long long limit) {
    const long long start = clock64();
    while (*go == 0 && clock64() - start < limit) {
    }
}
