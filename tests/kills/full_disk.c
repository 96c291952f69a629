/* A disk that fails: after `arm(dir, n, code)` every change below `dir` from the n-th on fails with errno `code`;
   after `clock_back(n, s)` the clock is s seconds behind from the n-th reading on.
   Loaded with LD_PRELOAD. Counts what changes a disk: writes, files made, renames, folders made. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static char below[PATH_MAX];
static size_t length;
static long from;
static int code;
static atomic_long count;
static atomic_long clock_reads;
static long back_after = -1, back_s;

void arm(const char *dir, long n, int error) {
    strncpy(below, dir, sizeof below - 1);
    from = n;
    code = error;
    count = 0;
    length = strlen(below);
}

void clock_back(long after, long seconds) {
    back_s = seconds;
    clock_reads = 0;
    back_after = after;
}

long changes(void) { return count; }

static int fails(const char *path) {
    char whole[PATH_MAX];
    if (!length || !path) return 0;
    if (path[0] != '/') {
        if (!getcwd(whole, sizeof whole / 2)) return 0;
        strncat(whole, "/", 2);
        strncat(whole, path, sizeof whole / 2 - 2);
        path = whole;
    }
    if (strncmp(path, below, length)) return 0;
    if (atomic_fetch_add(&count, 1) + 1 < from) return 0;
    errno = code;
    return 1;
}

static int fails_at(int fd) {
    char link[64], path[PATH_MAX];
    if (!length) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t got = readlink(link, path, sizeof path - 1);
    if (got <= 0) return 0;
    path[got] = 0;
    return path[0] == '/' && fails(path); /* no pipe */
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define WRITES(name, head, call) \
    ssize_t name head { return fails_at(fd) ? -1 : REAL(name) call; }

WRITES(write, (int fd, const void *data, size_t size), (fd, data, size))
WRITES(pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
WRITES(pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))
WRITES(writev, (int fd, const struct iovec *parts, int n), (fd, parts, n))
int ftruncate(int fd, off_t size) { return fails_at(fd) ? -1 : REAL(ftruncate)(fd, size); }
int ftruncate64(int fd, off64_t size) { return fails_at(fd) ? -1 : REAL(ftruncate64)(fd, size); }
int rename(const char *old, const char *new) { return fails(new) ? -1 : REAL(rename)(old, new); }
int mkdir(const char *path, mode_t mode) { return fails(path) ? -1 : REAL(mkdir)(path, mode); }

static int changing(const char *path, int flags) {
    struct stat found;
    if (!(flags & O_CREAT)) return code == EROFS && (flags & (O_WRONLY | O_RDWR)) && fails(path);
    return (code == EROFS || stat(path, &found)) && fails(path); /* a file that is there needs no room to open */
}

#define OPENS(name)                                        \
    int name(const char *path, int flags, ...) {           \
        va_list more;                                      \
        va_start(more, flags);                             \
        mode_t mode = va_arg(more, mode_t);                \
        va_end(more);                                      \
        return changing(path, flags) ? -1 : REAL(name)(path, flags, mode); \
    }
OPENS(open)
OPENS(open64)

int clock_gettime(clockid_t which, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = REAL(clock_gettime);
    int result = real(which, now);
    if (which == CLOCK_REALTIME && back_after >= 0 && atomic_fetch_add(&clock_reads, 1) >= back_after)
        now->tv_sec -= back_s;
    return result;
}
