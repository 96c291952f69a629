/* Puts threads aside at random looks at the clock, as a busy machine does: `make test-pauses`.
 *
 * Preloaded (LD_PRELOAD) into the tests and all that they start. One of PAUSES_EVERY looks (400) takes PAUSES_MS (200),
 * before or after the clock was read. A test that needs luck with the clock fails; idle processors are not needed.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static uint64_t looks, every = 400;
static long pause_ms = 200;

__attribute__((constructor)) static void start(void) {
    struct timespec t;
    const char *given = getenv("PAUSES_EVERY"), *ms = getenv("PAUSES_MS");
    if (given && atol(given) > 0) every = (uint64_t)atol(given);
    if (ms) pause_ms = atol(ms);
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &t);
    looks = (uint64_t)t.tv_nsec * 2654435761u ^ (uint64_t)getpid() << 32;
}

static uint64_t dice(void) { /* SplitMix64 (Steele, Lea and Flood 2014) */
    uint64_t x = __atomic_add_fetch(&looks, 0x9E3779B97F4A7C15u, __ATOMIC_RELAXED);
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

static void put_aside(void) {
    const struct timespec t = {pause_ms / 1000, pause_ms % 1000 * 1000000};
    syscall(SYS_nanosleep, &t, NULL);
}

int clock_gettime(clockid_t id, struct timespec *t) {
    const uint64_t thrown = id == CLOCK_MONOTONIC || id == CLOCK_REALTIME ? dice() : 1;
    const int paused = thrown % every == 0, before = thrown >> 63;
    if (paused && before) put_aside();
    const int code = (int)syscall(SYS_clock_gettime, id, t);
    if (paused && !before) put_aside();
    return code;
}
