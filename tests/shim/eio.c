/* Makes system calls on one file fail, or kills the process at one of them.
 *
 * EIO_PATH names the file; its temporary names (PATH.new-*) count as the file itself, its lock file
 * does not. What fails is chosen by eio_arm, or at the start of the process by the variable
 * EIO_ARM="KINDS:ERRNO:SKIP:COUNT", with the kinds w (writes), m (of these, the ones into the first
 * two pages), f (flushes), r (reads by descriptor), t (truncation), n (names: creation, link, rename,
 * unlink). SKIP calls succeed, COUNT calls fail (-1: for ever), then calls succeed again. ERRNO -9:
 * SIGKILL in place of the call; ERRNO -109: SIGKILL right behind it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(type, name, ...)                         \
    static type (*real)(__VA_ARGS__);                 \
    if (!real) real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

#define META_BYTES 8192
#define ELSEWHERE (2 * META_BYTES)

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char path[PATH_MAX];
static char kinds[16];
static int failure;
static long skip, count, failures, calls;

void eio_arm(const char *which, int error, long skipped, long counted) {
    pthread_mutex_lock(&mutex);
    snprintf(kinds, sizeof kinds, "%s", which);
    failure = error;
    skip = skipped;
    count = counted;
    calls = failures = 0;
    pthread_mutex_unlock(&mutex);
}

long eio_failures(void) { return __atomic_load_n(&failures, __ATOMIC_SEQ_CST); }
long eio_calls(void) { return __atomic_load_n(&calls, __ATOMIC_SEQ_CST); }

__attribute__((constructor)) static void start(void) {
    const char *name = getenv("EIO_PATH"), *rule = getenv("EIO_ARM");
    char which[16] = "";
    int error = 0;
    long skipped = 0, counted = 0;
    if (name) snprintf(path, sizeof path, "%s", name);
    if (rule && sscanf(rule, "%15[a-z]:%d:%ld:%ld", which, &error, &skipped, &counted) == 4)
        eio_arm(which, error, skipped, counted);
}

static int is_ours(const char *name) {
    size_t length = strlen(path), whole = strlen(name);
    if (!length || strncmp(name, path, length)) return 0;
    if (whole >= 5 && !strcmp(name + whole - 5, "-lock")) return 0;
    return whole == length || !strncmp(name + length, ".new-", 5);
}

/* Whether this call has to fail. */
static int due(char kind) {
    int hit = 0;
    pthread_mutex_lock(&mutex);
    if (strchr(kinds, kind)) {
        __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
        if (skip > 0) skip--;
        else if (count) {
            hit = 1;
            if (count > 0) count--;
            __atomic_add_fetch(&failures, 1, __ATOMIC_SEQ_CST);
        }
    }
    if (hit && failure == -9) kill(getpid(), SIGKILL);
    pthread_mutex_unlock(&mutex);
    if (hit && failure > 0) errno = failure;
    return hit;
}

/* Behind a call that was due: nothing of the process runs any more. */
static int killed(void) {
    if (failure != -109) return 0;
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

static int fails(int fd, char kind, off64_t at) {
    char link[40], name[PATH_MAX];
    if (kind == 'w' && at < META_BYTES && strchr(kinds, 'm')) kind = 'm';
    if (!strchr(kinds, kind)) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, name, sizeof name - 1);
    if (length < 0) return 0;
    name[length] = 0;
    return is_ours(name) && due(kind);
}

static int name_fails(const char *name) {
    return strchr(kinds, 'n') && is_ours(name) && due('n');
}

#define ON_FD(type, name, kind, at, parameters, arguments)              \
    type name parameters {                                              \
        static type (*real) parameters;                                 \
        if (!real) real = (type (*) parameters)dlsym(RTLD_NEXT, #name); \
        if (!fails(fd, kind, at)) return real arguments;                \
        if (failure > 0) return -1;                                     \
        type result = real arguments;                                   \
        return killed() ? -1 : result;                                  \
    }

typedef const struct iovec *pieces;

ON_FD(int, fsync, 'f', ELSEWHERE, (int fd), (fd))
ON_FD(int, fdatasync, 'f', ELSEWHERE, (int fd), (fd))
ON_FD(int, ftruncate, 't', ELSEWHERE, (int fd, off_t size), (fd, size))
ON_FD(int, ftruncate64, 't', ELSEWHERE, (int fd, off64_t size), (fd, size))
ON_FD(ssize_t, write, 'w', ELSEWHERE, (int fd, const void *from, size_t n), (fd, from, n))
ON_FD(ssize_t, writev, 'w', ELSEWHERE, (int fd, pieces from, int n), (fd, from, n))
ON_FD(ssize_t, pwrite, 'w', at, (int fd, const void *from, size_t n, off_t at), (fd, from, n, at))
ON_FD(ssize_t, pwrite64, 'w', at, (int fd, const void *from, size_t n, off64_t at),
      (fd, from, n, at))
ON_FD(ssize_t, pwritev, 'w', at, (int fd, pieces from, int n, off_t at), (fd, from, n, at))
ON_FD(ssize_t, pwritev64, 'w', at, (int fd, pieces from, int n, off64_t at), (fd, from, n, at))
ON_FD(ssize_t, read, 'r', ELSEWHERE, (int fd, void *to, size_t n), (fd, to, n))
ON_FD(ssize_t, pread, 'r', at, (int fd, void *to, size_t n, off_t at), (fd, to, n, at))
ON_FD(ssize_t, pread64, 'r', at, (int fd, void *to, size_t n, off64_t at), (fd, to, n, at))

int link(const char *from, const char *to) {
    REAL(int, "link", const char *, const char *);
    return name_fails(from) ? -1 : real(from, to);
}

int linkat(int where, const char *from, int there, const char *to, int flags) {
    REAL(int, "linkat", int, const char *, int, const char *, int);
    return name_fails(from) ? -1 : real(where, from, there, to, flags);
}

int rename(const char *from, const char *to) {
    REAL(int, "rename", const char *, const char *);
    return name_fails(from) ? -1 : real(from, to);
}

int unlink(const char *name) {
    REAL(int, "unlink", const char *);
    return name_fails(name) ? -1 : real(name);
}

#define OPENS(name)                                                   \
    int name(const char *file, int flags, ...) {                      \
        REAL(int, #name, const char *, int, ...);                     \
        va_list more;                                                 \
        va_start(more, flags);                                        \
        int mode = flags & O_CREAT ? va_arg(more, int) : 0;           \
        va_end(more);                                                 \
        if ((flags & O_CREAT) && name_fails(file)) return -1;         \
        return real(file, flags, mode);                               \
    }

OPENS(open)
OPENS(open64)
