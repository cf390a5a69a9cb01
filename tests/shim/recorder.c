/* Records what a process does to the files of one directory, as a total order over all processes
 * that write into the same log.
 *
 * A change and its record are made under one lock that all recorded processes share, and a process
 * that is to die kills itself under that lock: the log is exactly what the files went through. A
 * flush is two records, begin and end; only changes recorded before its begin are surely flushed
 * by it. Not seen: stores into a map, stdio, io_uring. LMDB's lock file is left out.
 *
 * It is idle until recorder_start(); recorder_slow() makes each flush slow, so that threads queue
 * up and readers see what is about to vanish.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { CREATE = 1, WRITE, TRUNCATE, FLUSH_BEGIN, FLUSH_END, LINK, RENAME, UNLINK, MARK, STRANGE };
enum { DSYNC = 1, DIRECTORY = 2 };

struct record {
    uint32_t bytes; /* of what follows */
    uint8_t op, flags;
    uint16_t unused;
    uint32_t pid, thread;
    uint64_t inode;
    uint64_t at; /* offset, size, or the token that joins begin and end of a flush */
};

static char directory[PATH_MAX], log_path[PATH_MAX];
static int log_fd = -1;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static atomic_ullong tokens;
static long flush_us;
static long long left = -1; /* records until this process dies; negative: it lives on */

#define REAL(type, name, ...)                         \
    static type (*real)(__VA_ARGS__);                 \
    if (!real) real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

/* --- the log ---------------------------------------------------------------------------------- */

static void open_log(void) {
    if (log_fd >= 0) syscall(SYS_close, log_fd);
    log_fd = (int)syscall(SYS_openat, AT_FDCWD, log_path,
                          O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
}

static void enter(void) {
    pthread_mutex_lock(&mutex);
    if (log_fd >= 0)
        while (flock(log_fd, LOCK_EX) && errno == EINTR) {
        }
}

static void leave(void) {
    int saved = errno;
    if (log_fd >= 0) flock(log_fd, LOCK_UN);
    pthread_mutex_unlock(&mutex);
    errno = saved;
}

/* Needs the lock. */
static void put(int op, int flags, uint64_t inode, uint64_t at, const struct iovec *from,
                int count, size_t bytes) {
    struct record head = {(uint32_t)bytes, (uint8_t)op, (uint8_t)flags, 0, (uint32_t)getpid(),
                          (uint32_t)syscall(SYS_gettid), inode, at};
    int saved = errno;
    char *whole = malloc(sizeof head + bytes);
    size_t done = sizeof head;
    if (!whole) abort();
    memcpy(whole, &head, sizeof head);
    for (int i = 0; i < count && done < sizeof head + bytes; i++) {
        size_t part = from[i].iov_len, room = sizeof head + bytes - done;
        if (part > room) part = room;
        memcpy(whole + done, from[i].iov_base, part);
        done += part;
    }
    if (syscall(SYS_write, log_fd, whole, done) != (long)done) abort();
    free(whole);
    if (op != MARK && left > 0 && --left == 0) syscall(SYS_kill, getpid(), SIGKILL);
    errno = saved;
}

static void put_bytes(int op, int flags, uint64_t inode, uint64_t at, const void *from, size_t n) {
    struct iovec one = {(void *)from, n};
    put(op, flags, inode, at, &one, 1, n);
}

static void before_fork(void) { pthread_mutex_lock(&mutex); }
static void in_parent(void) { pthread_mutex_unlock(&mutex); }
static void in_child(void) {
    pthread_mutex_init(&mutex, NULL);
    left = -1;
    if (log_fd >= 0) open_log(); /* a lock belongs to an open file: the child needs its own */
}

static void doze(long us) {
    if (us > 0) {
        int saved = errno;
        struct timespec pause = {us / 1000000, (us % 1000000) * 1000};
        nanosleep(&pause, NULL);
        errno = saved;
    }
}

void recorder_start(const char *watched, const char *log) {
    pthread_mutex_lock(&mutex);
    snprintf(directory, sizeof directory, "%s", watched);
    snprintf(log_path, sizeof log_path, "%s", log);
    open_log();
    pthread_mutex_unlock(&mutex);
}

void recorder_stop(void) {
    pthread_mutex_lock(&mutex);
    if (log_fd >= 0) syscall(SYS_close, log_fd);
    log_fd = -1;
    pthread_mutex_unlock(&mutex);
}

void recorder_mark(const char *text, size_t bytes) {
    if (log_fd < 0) return;
    enter();
    put_bytes(MARK, 0, 0, 0, text, bytes);
    leave();
}

void recorder_die_after(long long records) { left = records; }
void recorder_slow(long us) { flush_us = us; }

__attribute__((constructor)) static void start(void) {
    pthread_atfork(before_fork, in_parent, in_child);
}

/* --- what is watched -------------------------------------------------------------------------- */

static int is_lock(const char *path) {
    static const char *const ends[] = {"-lock", "-lock (deleted)"};
    size_t n = strlen(path);
    for (int i = 0; i < 2; i++) {
        size_t m = strlen(ends[i]);
        if (n >= m && !strcmp(path + n - m, ends[i])) return 1;
    }
    return 0;
}

/* The name within the directory, "" for the directory itself, NULL for what is not watched. */
static const char *inside(const char *path) {
    size_t n = strlen(directory);
    if (strncmp(path, directory, n)) return NULL;
    if (!path[n]) return "";
    if (path[n] != '/' || is_lock(path)) return NULL;
    return path + n + 1;
}

static const char *watched_fd(int fd, char *path, struct stat *status) {
    char link[64];
    int saved = errno;
    const char *name = NULL;
    if (log_fd < 0 || fd < 0) return NULL;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, PATH_MAX - 1);
    if (n > 0) {
        path[n] = 0;
        name = inside(path);
        if (name && fstat(fd, status)) name = NULL;
    }
    errno = saved;
    return name;
}

static const char *watched_path(int at, const char *path, char *whole) {
    int saved = errno;
    char link[64];
    ssize_t n = 0;
    const char *name = NULL;
    if (log_fd < 0) return NULL;
    if (path[0] != '/') {
        if (at == AT_FDCWD) snprintf(link, sizeof link, "/proc/self/cwd");
        else snprintf(link, sizeof link, "/proc/self/fd/%d", at);
        n = readlink(link, whole, PATH_MAX - 1);
        if (n < 0) n = 0;
        if (n < PATH_MAX - 1) whole[n++] = '/';
    }
    if ((size_t)n + strlen(path) < PATH_MAX) {
        strcpy(whole + n, path);
        name = inside(whole);
    }
    errno = saved;
    return name;
}

static uint64_t inode_of(int at, const char *path) {
    struct stat status;
    int saved = errno;
    uint64_t inode = fstatat(at, path, &status, AT_SYMLINK_NOFOLLOW) ? 0 : status.st_ino;
    errno = saved;
    return inode;
}

/* --- opening ---------------------------------------------------------------------------------- */

static int opened(int at, const char *path, int flags, mode_t mode) {
    REAL(int, "openat64", int, const char *, int, ...);
    char whole[PATH_MAX];
    const char *name = NULL;
    if (flags & (O_CREAT | O_TRUNC)) name = watched_path(at, path, whole);
    if (!name) return real(at, path, flags, mode);
    enter();
    int existed = inode_of(at, path) != 0;
    int fd = real(at, path, flags, mode);
    uint64_t inode = inode_of(at, path);
    if (fd >= 0 && !existed) put_bytes(CREATE, 0, inode, 0, name, strlen(name));
    else if (fd >= 0 && (flags & O_TRUNC)) put_bytes(TRUNCATE, 0, inode, 0, "", 0);
    leave();
    return fd;
}

#define MODE(flags, mode)                              \
    mode_t mode = 0;                                   \
    if ((flags) & (O_CREAT | __O_TMPFILE)) {           \
        va_list more;                                  \
        va_start(more, flags);                         \
        mode = va_arg(more, mode_t);                   \
        va_end(more);                                  \
    }

int open(const char *path, int flags, ...) {
    MODE(flags, mode)
    return opened(AT_FDCWD, path, flags, mode);
}
int open64(const char *path, int flags, ...) {
    MODE(flags, mode)
    return opened(AT_FDCWD, path, flags, mode);
}
int openat(int at, const char *path, int flags, ...) {
    MODE(flags, mode)
    return opened(at, path, flags, mode);
}
int openat64(int at, const char *path, int flags, ...) {
    MODE(flags, mode)
    return opened(at, path, flags, mode);
}
int creat(const char *path, mode_t mode) {
    return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

/* --- writing ---------------------------------------------------------------------------------- */

/* One write of any kind: at < 0 means at the descriptor's own position. */
static ssize_t wrote(int fd, const struct iovec *from, int count, off_t at) {
    REAL(ssize_t, "pwritev64", int, const struct iovec *, int, off_t);
    static ssize_t (*plain)(int, const struct iovec *, int);
    char path[PATH_MAX];
    struct stat status;
    if (!plain) plain = (ssize_t(*)(int, const struct iovec *, int))dlsym(RTLD_NEXT, "writev");
    const char *name = watched_fd(fd, path, &status);
    if (!name || !S_ISREG(status.st_mode))
        return at < 0 ? plain(fd, from, count) : real(fd, from, count, at);
    enter();
    int flags = fcntl(fd, F_GETFL);
    off_t begin = at;
    if (flags & O_APPEND) begin = fstat(fd, &status) ? 0 : status.st_size;
    else if (at < 0) begin = lseek(fd, 0, SEEK_CUR);
    ssize_t bytes = at < 0 ? plain(fd, from, count) : real(fd, from, count, at);
    if (bytes > 0)
        put(WRITE, flags & O_DSYNC ? DSYNC : 0, status.st_ino, (uint64_t)begin, from, count,
            (size_t)bytes);
    leave();
    return bytes;
}

ssize_t write(int fd, const void *from, size_t bytes) {
    struct iovec one = {(void *)from, bytes};
    REAL(ssize_t, "write", int, const void *, size_t);
    if (log_fd < 0) return real(fd, from, bytes);
    return wrote(fd, &one, 1, -1);
}
ssize_t pwrite(int fd, const void *from, size_t bytes, off_t at) {
    struct iovec one = {(void *)from, bytes};
    return wrote(fd, &one, 1, at);
}
ssize_t pwrite64(int fd, const void *from, size_t bytes, off64_t at) {
    return pwrite(fd, from, bytes, at);
}
ssize_t writev(int fd, const struct iovec *from, int count) { return wrote(fd, from, count, -1); }
ssize_t pwritev(int fd, const struct iovec *from, int count, off_t at) {
    return wrote(fd, from, count, at);
}
ssize_t pwritev64(int fd, const struct iovec *from, int count, off64_t at) {
    return wrote(fd, from, count, at);
}

/* What Python's os.pwritev calls. Nobody here gives flags. */
ssize_t pwritev2(int fd, const struct iovec *from, int count, off_t at, int flags) {
    REAL(ssize_t, "pwritev64v2", int, const struct iovec *, int, off_t, int);
    char path[PATH_MAX];
    struct stat status;
    if (!flags) return wrote(fd, from, count, at);
    if (!watched_fd(fd, path, &status)) return real(fd, from, count, at, flags);
    enter();
    ssize_t bytes = real(fd, from, count, at, flags);
    put_bytes(STRANGE, 0, status.st_ino, 0, "pwritev2", 8);
    leave();
    return bytes;
}
ssize_t pwritev64v2(int fd, const struct iovec *from, int count, off64_t at, int flags) {
    return pwritev2(fd, from, count, at, flags);
}

/* What the kernel copied is read back. Needs the lock. */
static void put_copied(int fd, uint64_t inode, off_t at, ssize_t bytes) {
    char again[64], *buffer = bytes > 0 ? malloc((size_t)bytes) : NULL;
    if (!buffer) return;
    snprintf(again, sizeof again, "/proc/self/fd/%d", fd); /* it may be open for writing only */
    int readable = (int)syscall(SYS_openat, AT_FDCWD, again, O_RDONLY | O_CLOEXEC, 0);
    if (readable < 0 || pread(readable, buffer, (size_t)bytes, at) != bytes) abort();
    syscall(SYS_close, readable);
    put_bytes(WRITE, 0, inode, (uint64_t)at, buffer, (size_t)bytes);
    free(buffer);
}

ssize_t sendfile(int to, int from, off_t *at, size_t bytes) {
    REAL(ssize_t, "sendfile64", int, int, off_t *, size_t);
    char path[PATH_MAX];
    struct stat status;
    if (!watched_fd(to, path, &status)) return real(to, from, at, bytes);
    enter();
    off_t begin = lseek(to, 0, SEEK_CUR);
    ssize_t done = real(to, from, at, bytes);
    put_copied(to, status.st_ino, begin, done);
    leave();
    return done;
}
ssize_t sendfile64(int to, int from, off64_t *at, size_t bytes) {
    return sendfile(to, from, at, bytes);
}
ssize_t copy_file_range(int from, off64_t *at, int to, off64_t *onto, size_t bytes, unsigned flags) {
    REAL(ssize_t, "copy_file_range", int, off64_t *, int, off64_t *, size_t, unsigned);
    char path[PATH_MAX];
    struct stat status;
    if (!watched_fd(to, path, &status)) return real(from, at, to, onto, bytes, flags);
    enter();
    off_t begin = onto ? *onto : lseek(to, 0, SEEK_CUR);
    ssize_t done = real(from, at, to, onto, bytes, flags);
    put_copied(to, status.st_ino, begin, done);
    leave();
    return done;
}

/* --- size ------------------------------------------------------------------------------------- */

static int resized(int fd, off_t size, int (*real)(int, off_t)) {
    char path[PATH_MAX];
    struct stat status;
    if (!watched_fd(fd, path, &status)) return real(fd, size);
    enter();
    int result = real(fd, size);
    if (!result) put_bytes(TRUNCATE, 0, status.st_ino, (uint64_t)size, "", 0);
    leave();
    return result;
}
int ftruncate(int fd, off_t size) {
    REAL(int, "ftruncate", int, off_t);
    return resized(fd, size, real);
}
int ftruncate64(int fd, off64_t size) { return ftruncate(fd, size); }
int truncate(const char *path, off_t size) {
    int fd = opened(AT_FDCWD, path, O_WRONLY | O_CLOEXEC, 0);
    int result = fd < 0 ? -1 : ftruncate(fd, size);
    if (fd >= 0) close(fd);
    return result;
}
int truncate64(const char *path, off64_t size) { return truncate(path, size); }

/* Room alone changes nothing that a reader sees; a larger size does. */
static int allocated(int fd, int mode, off_t at, off_t bytes, int (*real)(int, int, off_t, off_t)) {
    char path[PATH_MAX];
    struct stat before, after;
    if (!watched_fd(fd, path, &before)) return real(fd, mode, at, bytes);
    enter();
    int result = fstat(fd, &before) ? -1 : real(fd, mode, at, bytes);
    if (!result && !fstat(fd, &after)) {
        if (mode & ~1) put_bytes(STRANGE, 0, before.st_ino, 0, "fallocate", 9);
        else if (after.st_size != before.st_size)
            put_bytes(TRUNCATE, 0, before.st_ino, (uint64_t)after.st_size, "", 0);
    }
    leave();
    return result;
}
int fallocate(int fd, int mode, off_t at, off_t bytes) {
    REAL(int, "fallocate64", int, int, off_t, off_t);
    return allocated(fd, mode, at, bytes, real);
}
int fallocate64(int fd, int mode, off64_t at, off64_t bytes) {
    return fallocate(fd, mode, at, bytes);
}
static int posix(int fd, int mode, off_t at, off_t bytes) {
    REAL(int, "posix_fallocate64", int, off_t, off_t);
    (void)mode;
    return real(fd, at, bytes);
}
int posix_fallocate(int fd, off_t at, off_t bytes) { return allocated(fd, 0, at, bytes, posix); }
int posix_fallocate64(int fd, off64_t at, off64_t bytes) { return posix_fallocate(fd, at, bytes); }

/* --- flushing --------------------------------------------------------------------------------- */

static int flushed(int fd, int (*real)(int)) {
    char path[PATH_MAX];
    struct stat status;
    if (!watched_fd(fd, path, &status)) return real(fd);
    uint64_t token = (uint64_t)getpid() << 32 | (atomic_fetch_add(&tokens, 1) & 0xffffffff);
    int flags = S_ISDIR(status.st_mode) ? DIRECTORY : 0;
    enter();
    put_bytes(FLUSH_BEGIN, flags, status.st_ino, token, "", 0);
    leave();
    doze(flush_us);
    int result = real(fd);
    if (!result) {
        enter();
        put_bytes(FLUSH_END, flags, status.st_ino, token, "", 0);
        leave();
    }
    return result;
}
int fsync(int fd) {
    REAL(int, "fsync", int);
    return flushed(fd, real);
}
int fdatasync(int fd) {
    REAL(int, "fdatasync", int);
    return flushed(fd, real);
}

/* --- names ------------------------------------------------------------------------------------ */

static int renamed(int from_at, const char *from, int to_at, const char *to, unsigned flags,
                   int keeps) {
    static int (*relink)(int, const char *, int, const char *, int);
    REAL(int, "renameat2", int, const char *, int, const char *, unsigned);
    char before[PATH_MAX], after[PATH_MAX];
    if (!relink) relink = (int (*)(int, const char *, int, const char *, int))dlsym(RTLD_NEXT, "linkat");
    const char *old = watched_path(from_at, from, before), *new = watched_path(to_at, to, after);
    int watched = old || new;
    if (watched) enter();
    uint64_t inode = watched ? inode_of(from_at, from) : 0;
    int result = keeps ? relink(from_at, from, to_at, to, (int)flags)
                       : real(from_at, from, to_at, to, flags);
    if (watched) {
        struct iovec both[2] = {{(void *)old, old ? strlen(old) + 1 : 0},
                                {(void *)new, new ? strlen(new) : 0}};
        int strange = !old || !new || (!keeps && (flags & ~1u)); /* 1: RENAME_NOREPLACE */
        if (!result)
            put(strange ? STRANGE : keeps ? LINK : RENAME, 0, inode, 0, both, 2,
                both[0].iov_len + both[1].iov_len);
        leave();
    }
    return result;
}
int rename(const char *from, const char *to) {
    return renamed(AT_FDCWD, from, AT_FDCWD, to, 0, 0);
}
int renameat(int from_at, const char *from, int to_at, const char *to) {
    return renamed(from_at, from, to_at, to, 0, 0);
}
int renameat2(int from_at, const char *from, int to_at, const char *to, unsigned flags) {
    return renamed(from_at, from, to_at, to, flags, 0);
}
int link(const char *from, const char *to) { return renamed(AT_FDCWD, from, AT_FDCWD, to, 0, 1); }
int linkat(int from_at, const char *from, int to_at, const char *to, int flags) {
    return renamed(from_at, from, to_at, to, (unsigned)flags, 1);
}

int unlinkat(int at, const char *path, int flags) {
    REAL(int, "unlinkat", int, const char *, int);
    char whole[PATH_MAX];
    const char *name = watched_path(at, path, whole);
    if (!name) return real(at, path, flags);
    enter();
    uint64_t inode = inode_of(at, path);
    int result = real(at, path, flags);
    if (!result) put_bytes(UNLINK, 0, inode, 0, name, strlen(name));
    leave();
    return result;
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
