/* A stand-in for libnvidia-ml.so.1, so that the unmodified Python binding runs without a GPU.
 *
 * FAKE_NVML chooses the machine, as words separated by commas:
 *   hopper (default)  one H100 with GPM
 *   ampere            one A100 without GPM
 *   two               two GPUs
 *   mig               MIG on: instances 1 and 2 in slots 0 and 2
 *   lost              GPU 1 disappears after its third energy reading
 *   gone              GPU 1 is lost from the start
 *   noperm            GPM, energy and clock reasons are forbidden
 *   partial           the FP64 counter is not there, NVLink traffic is not a number
 *   hot               thermal slowdown, SM clock at 60 %
 *   nodriver          the kernel driver is not loaded
 *   quiet             no processes
 *   hurdle            the second reading of the energy, of NVLink is put aside for 150 ms after its counter was looked at
 * FAKE_NVML_LOAD: gemm (default), copy, idle, input, comm, latency.
 * Like the real library it refuses GPM samples less than 100 ms apart.
 * Compiled with -DOLD_DRIVER the GPM functions are not there at all.
 *
 * Preloaded, it gives the process a clock of its own (own_clock.h), which calls below move as well.
 */
#define _GNU_SOURCE
#define OWN_NAME "libnvidia-ml"
#include "own_clock.h"

#include <math.h>
#include <stdio.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, SHORT = 7, NO_DRIVER = 9, LOST = 15 };

typedef struct { int index; int slot; int energy_reads; } Device; /* slot -1: the whole GPU */
typedef struct { double at; int device; int instance; } Sample;
typedef struct { unsigned metric; int status; double value; const char *names[3]; } Metric;
typedef struct { unsigned version, count; Sample *first, *second; Metric metrics[512]; } Metrics;
typedef struct { unsigned version, supported; } Support;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned pid; unsigned long long memory; unsigned instance, compute; } Process;
typedef struct { unsigned pid; unsigned long long at; unsigned sm, memory, encoder, decoder; } ProcessUse;
typedef struct {
    unsigned field, scope; long long at, latency; int type, status;
    union { double d; unsigned u; unsigned long long ull; } value;
} Field;

static Device devices[2] = {{0, -1, 0}, {1, -1, 0}};
static Device instances[4] = {{0, 0, 0}, {0, 1, 0}, {0, 2, 0}, {0, 3, 0}};

static int has(const char *word) {
    const char *all = getenv("FAKE_NVML");
    size_t n = strlen(word);
    for (const char *p = all ? all : ""; (p = strstr(p, word)); p += n)
        if ((p == all || p[-1] == ',') && (p[n] == 0 || p[n] == ',')) return 1;
    return 0;
}

static int load_is(const char *word) {
    const char *load = getenv("FAKE_NVML_LOAD");
    return strcmp(load ? load : "gemm", word) == 0;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static void pass(double seconds) {
    const struct timespec t = {0, (long)(seconds * 1e9)};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL);
}

/* What a counter that rises by `per_s` shows in the middle of a call of 0.4 ms; the second such call may be put aside. */
static unsigned long long count(double per_s, int *calls) {
    pass(2e-4);
    const unsigned long long value = (unsigned long long)(now() * per_s);
    pass(++*calls == 2 && has("hurdle") ? 0.15 : 2e-4);
    return value;
}

static int gone(Device *d) {
    return d->index == 1 && (has("gone") || (has("lost") && d->energy_reads >= 3));
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; return has("nodriver") ? NO_DRIVER : OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { (void)code; return "fake error"; }
int nvmlSystemGetDriverVersion(char *text, unsigned n) { snprintf(text, n, "580.65.06"); return OK; }
int nvmlSystemGetNVMLVersion(char *text, unsigned n) { snprintf(text, n, "13.580.65.06"); return OK; }
int nvmlSystemGetCudaDriverVersion(int *version) { *version = 13000; return OK; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = has("two") || has("lost") || has("gone") ? 2 : 1; return OK; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
    if (index > 1) return INVALID;
    *device = &devices[index];
    return gone(*device) ? LOST : OK;
}

int nvmlDeviceGetName(Device *d, char *text, unsigned n) {
    if (gone(d)) return LOST;
    const char *whole = has("ampere") ? "NVIDIA A100-SXM4-80GB" : "NVIDIA H100 80GB HBM3";
    snprintf(text, n, "%s%s", whole, d->slot < 0 ? "" : " MIG 1g.10gb");
    return OK;
}

int nvmlDeviceGetUUID(Device *d, char *text, unsigned n) {
    const char *kind = d->slot < 0 ? "GPU" : "MIG";
    snprintf(text, n, "%s-00000000-0000-0000-0000-%010d%02d", kind, d->index, d->slot + 1);
    return gone(d) ? LOST : OK;
}

int nvmlDeviceGetCudaComputeCapability(Device *d, int *major, int *minor) {
    *major = has("ampere") ? 8 : 9; *minor = 0;
    return gone(d) ? LOST : OK;
}

int nvmlDeviceGetMemoryInfo(Device *d, Memory *m) {
    m->total = (d->slot < 0 ? 80ull : 10ull) << 30; m->used = 20ull << 30; m->free = m->total - m->used;
    if (d->slot >= 0) { m->used = 3ull << 30; m->free = m->total - m->used; }
    return gone(d) ? LOST : OK;
}

int nvmlDeviceGetMigMode(Device *d, unsigned *current, unsigned *pending) {
    if (has("ampere")) return NOT_SUPPORTED;
    *current = *pending = has("mig");
    return gone(d) ? LOST : OK;
}

int nvmlDeviceGetMaxMigDeviceCount(Device *d, unsigned *count) { (void)d; *count = 4; return OK; }

int nvmlDeviceGetMigDeviceHandleByIndex(Device *d, unsigned slot, Device **instance) {
    if (!has("mig") || d->slot >= 0 || (slot != 0 && slot != 2)) return NOT_FOUND;
    *instance = &instances[slot];
    return OK;
}

int nvmlDeviceGetGpuInstanceId(Device *d, unsigned *id) {
    if (d->slot < 0) return INVALID;
    *id = d->slot == 0 ? 1 : 2;
    return OK;
}

int nvmlDeviceGetComputeInstanceId(Device *d, unsigned *id) { *id = 0; return d->slot < 0 ? INVALID : OK; }
int nvmlDeviceGetEccMode(Device *d, int *current, int *pending) { (void)d; *current = *pending = 1; return OK; }
int nvmlDeviceGetEnforcedPowerLimit(Device *d, unsigned *mw) { *mw = 700000; return gone(d) ? LOST : OK; }
int nvmlDeviceGetMaxClockInfo(Device *d, unsigned t, unsigned *mhz) { (void)d; *mhz = t == 2 ? 2619 : 1980; return OK; }
int nvmlDeviceGetApplicationsClock(Device *d, unsigned t, unsigned *mhz) { (void)d; (void)t; (void)mhz; return NOT_SUPPORTED; }
int nvmlDeviceGetTemperatureThreshold(Device *d, int t, unsigned *c) { (void)d; *c = t == 1 ? 87 : 92; return OK; }
int nvmlDeviceGetCurrPcieLinkGeneration(Device *d, unsigned *g) { (void)d; *g = 5; return OK; }
int nvmlDeviceGetCurrPcieLinkWidth(Device *d, unsigned *w) { (void)d; *w = 16; return OK; }

int nvmlDeviceGetClockInfo(Device *d, unsigned type, unsigned *mhz) {
    if (d->slot >= 0) return NOT_SUPPORTED;
    *mhz = type == 2 ? 2619 : has("hot") ? 1188 : load_is("idle") ? 345 : 1935;
    return gone(d) ? LOST : OK;
}

int nvmlDeviceGetTemperature(Device *d, int sensor, unsigned *c) {
    (void)sensor;
    if (d->slot >= 0) return NOT_SUPPORTED;
    *c = has("hot") ? 90 : 61;
    return gone(d) ? LOST : OK;
}

int nvmlDeviceGetPowerUsage(Device *d, unsigned *mw) {
    if (d->slot >= 0) return NOT_SUPPORTED;
    *mw = 111000; /* far from the energy counter's 500 W on purpose */
    return gone(d) ? LOST : OK;
}

int nvmlDeviceGetTotalEnergyConsumption(Device *d, unsigned long long *mj) {
    if (d->slot >= 0) return NOT_SUPPORTED;
    if (has("noperm")) return NO_PERMISSION;
    if (gone(d)) return LOST;
    d->energy_reads++;
    static int calls = 0;
    *mj = count(500.0 * 1000.0, &calls);
    return OK;
}

int nvmlDeviceGetUtilizationRates(Device *d, Utilization *u) {
    if (d->slot >= 0 || has("mig")) return NOT_SUPPORTED;
    u->gpu = load_is("idle") ? 0 : 97; u->memory = 40;
    return gone(d) ? LOST : OK;
}

int nvmlDeviceGetCurrentClocksEventReasons(Device *d, unsigned long long *reasons) {
    if (d->slot >= 0) return NOT_SUPPORTED;
    if (has("noperm")) return NO_PERMISSION;
    *reasons = has("hot") ? 0x20 : 0;
    return gone(d) ? LOST : OK;
}

int nvmlDeviceGetPcieThroughput(Device *d, int counter, unsigned *kib) {
    if (d->slot >= 0) return NOT_SUPPORTED;
    pass(0.02);
    *kib = counter == 0 ? 2048 : 4096;
    return gone(d) ? LOST : OK;
}

int nvmlDeviceGetFieldValues(Device *d, int many, Field *fields) {
    static int calls = 0;
    for (int k = 0; k < many; k++) {
        Field *f = &fields[k];
        f->status = OK; f->type = 3;
        if (f->field == 91) { f->type = 1; f->value.u = 18; }
        else if (f->field == 90) { f->type = 1; f->value.u = 25000; }
        else if ((f->field == 138 || f->field == 139) && f->scope == 0xFFFFFFFFu)
            f->value.ull = count(1e6, &calls); /* KiB: 1.024 GB/s */
        else f->status = NOT_SUPPORTED;
    }
    return gone(d) ? LOST : OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(Device *d, unsigned *count, Process *list) {
    if (gone(d)) return LOST;
    if (has("quiet")) { *count = 0; return OK; }
    if (*count < 1 || !list) { *count = 1; return SHORT; }
    *count = 1;
    list[0].pid = 1; list[0].memory = 15ull << 30;
    list[0].instance = has("mig") ? 1 : 0xFFFFFFFFu; list[0].compute = 0xFFFFFFFFu;
    return OK;
}

int nvmlDeviceGetProcessUtilization(Device *d, ProcessUse *list, unsigned *count, unsigned long long since) {
    (void)since;
    if (gone(d)) return LOST;
    if (has("mig")) return NOT_SUPPORTED;
    if (!list) { *count = 1; return SHORT; }
    *count = 1;
    list[0].pid = 1; list[0].at = 1; list[0].sm = 95; list[0].memory = 40;
    return OK;
}
