// The latency of a launch.

extern "C" __global__ void nothing() {}

// Holds the stream until the host sets *go, so that everything queued behind it runs back to back (as in
// NVIDIA's nvbandwidth); gives up after `limit` clocks, so that no mistake can hang the device.
extern "C" __global__ void hold(const volatile int* go, long long limit) {
    const long long start = clock64();
    while (*go == 0 && clock64() - start < limit) {
    }
}
