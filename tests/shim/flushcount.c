/* Counts flushes and writes of the process it is preloaded into; can make each flush slow.
 *
 * A flush is fsync, fdatasync, msync(MS_SYNC), or a write to a descriptor opened with O_SYNC or
 * O_DSYNC. FLUSHCOUNT_DELAY_US (or flushcount_delay) sleeps that long at each flush.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static atomic_ullong flushes, writes, written;
static atomic_long delay_us;

#define REAL(type, name, ...)                         \
    static type (*real)(__VA_ARGS__);                 \
    if (!real) real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

unsigned long long flushcount_flushes(void) { return atomic_load(&flushes); }
unsigned long long flushcount_writes(void) { return atomic_load(&writes); }
unsigned long long flushcount_bytes(void) { return atomic_load(&written); }
void flushcount_delay(long us) { atomic_store(&delay_us, us); }
void flushcount_reset(void) {
    atomic_store(&flushes, 0);
    atomic_store(&writes, 0);
    atomic_store(&written, 0);
}

__attribute__((constructor)) static void start(void) {
    const char *us = getenv("FLUSHCOUNT_DELAY_US");
    if (us) flushcount_delay(atol(us));
}

static void flushed(void) {
    long us = atomic_load(&delay_us);
    atomic_fetch_add(&flushes, 1);
    if (us > 0) {
        struct timespec pause = {us / 1000000, (us % 1000000) * 1000};
        nanosleep(&pause, NULL);
    }
}

static ssize_t wrote(int fd, ssize_t bytes) {
    if (bytes >= 0) {
        atomic_fetch_add(&writes, 1);
        atomic_fetch_add(&written, (unsigned long long)bytes);
        int flags = fcntl(fd, F_GETFL);
        if (flags != -1 && (flags & O_DSYNC)) flushed();
    }
    return bytes;
}

int fsync(int fd) {
    REAL(int, "fsync", int);
    flushed();
    return real(fd);
}

int fdatasync(int fd) {
    REAL(int, "fdatasync", int);
    flushed();
    return real(fd);
}

int msync(void *start, size_t bytes, int flags) {
    REAL(int, "msync", void *, size_t, int);
    if (flags & MS_SYNC) flushed();
    return real(start, bytes, flags);
}

ssize_t write(int fd, const void *from, size_t bytes) {
    REAL(ssize_t, "write", int, const void *, size_t);
    return wrote(fd, real(fd, from, bytes));
}

ssize_t writev(int fd, const struct iovec *from, int count) {
    REAL(ssize_t, "writev", int, const struct iovec *, int);
    return wrote(fd, real(fd, from, count));
}

ssize_t pwrite(int fd, const void *from, size_t bytes, off_t at) {
    REAL(ssize_t, "pwrite", int, const void *, size_t, off_t);
    return wrote(fd, real(fd, from, bytes, at));
}

ssize_t pwrite64(int fd, const void *from, size_t bytes, off64_t at) {
    REAL(ssize_t, "pwrite64", int, const void *, size_t, off64_t);
    return wrote(fd, real(fd, from, bytes, at));
}

ssize_t pwritev(int fd, const struct iovec *from, int count, off_t at) {
    REAL(ssize_t, "pwritev", int, const struct iovec *, int, off_t);
    return wrote(fd, real(fd, from, count, at));
}

ssize_t pwritev64(int fd, const struct iovec *from, int count, off64_t at) {
    REAL(ssize_t, "pwritev64", int, const struct iovec *, int, off64_t);
    return wrote(fd, real(fd, from, count, at));
}
