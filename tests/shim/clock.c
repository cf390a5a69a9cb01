/* A clock that is wrong: adds nanoseconds from a file to what the process reads as the time of day.
 *
 * CLOCK_FILE names a file of eight bytes, a signed number in the machine's own order, which another
 * process may change at any time. Clocks that only measure how long something takes stay right.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

static const volatile int64_t *offset;

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("CLOCK_FILE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED) offset = mapped;
}

int clock_gettime(clockid_t which, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(which, now);
    if (!failed && offset && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) {
        int64_t told = now->tv_sec * SECOND + now->tv_nsec + *offset;
        now->tv_sec = told / SECOND;
        now->tv_nsec = told % SECOND;
    }
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec told;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &told)) return -1;
    now->tv_sec = told.tv_sec;
    now->tv_usec = told.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result) {
    struct timespec told;
    if (clock_gettime(CLOCK_REALTIME, &told)) return (time_t)-1;
    if (result) *result = told.tv_sec;
    return told.tv_sec;
}
