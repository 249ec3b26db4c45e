// Preloaded into a process, shifts its wall clock by the nanoseconds in the first 8 bytes of the file
// $CHAOS_CLOCK_FILE, which may change at any time. Clocks other than CLOCK_REALTIME stay as they are.
//
// The kernel compares absolute times with its own clock, so absolute times of the shifted clock are shifted
// back before they are passed on. A wait that is in progress when the clock jumps keeps its length.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t kSecond = 1000000000;
// No host has been up for 30 years: a larger absolute time is one of the wall clock.
static const time_t kMinWallSeconds = 946684800;

static const int64_t zero = 0;
static const volatile int64_t* offset = &zero;

__attribute__((constructor)) static void Open(void) {
  const char* path = getenv("CHAOS_CLOCK_FILE");
  const int fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  void* mapped = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  if (mapped != MAP_FAILED) offset = mapped;
}

static struct timespec Shift(struct timespec t, int64_t by) {
  const int64_t all = t.tv_sec * kSecond + t.tv_nsec + by;
  return (struct timespec){all / kSecond, all % kSecond};
}

// The kernel's time of `t`, which is an absolute time if it is one of the wall clock.
static const struct timespec* ToKernel(const struct timespec* t, struct timespec* out) {
  if (t == NULL || t->tv_sec < kMinWallSeconds) return t;
  *out = Shift(*t, -*offset);
  return out;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int clock_gettime(clockid_t clock, struct timespec* t) {
  const int result = syscall(SYS_clock_gettime, clock, t);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    *t = Shift(*t, *offset);
  }
  return result;
}

int gettimeofday(struct timeval* t, void* zone) {
  (void)zone;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  t->tv_sec = now.tv_sec;
  t->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out != NULL) *out = now.tv_sec;
  return now.tv_sec;
}

int pthread_cond_timedwait(pthread_cond_t* c, pthread_mutex_t* m, const struct timespec* t) {
  static __typeof__(&pthread_cond_timedwait) real;
  if (real == NULL) real = REAL(pthread_cond_timedwait);
  struct timespec shifted;
  return real(c, m, ToKernel(t, &shifted));
}

int pthread_cond_clockwait(pthread_cond_t* c, pthread_mutex_t* m, clockid_t clock,
                           const struct timespec* t) {
  static __typeof__(&pthread_cond_clockwait) real;
  if (real == NULL) real = REAL(pthread_cond_clockwait);
  struct timespec shifted;
  return real(c, m, clock, ToKernel(t, &shifted));
}

int pthread_mutex_timedlock(pthread_mutex_t* m, const struct timespec* t) {
  static __typeof__(&pthread_mutex_timedlock) real;
  if (real == NULL) real = REAL(pthread_mutex_timedlock);
  struct timespec shifted;
  return real(m, ToKernel(t, &shifted));
}

int sem_timedwait(sem_t* s, const struct timespec* t) {
  static __typeof__(&sem_timedwait) real;
  if (real == NULL) real = REAL(sem_timedwait);
  struct timespec shifted;
  return real(s, ToKernel(t, &shifted));
}

// Abseil waits for futexes by syscall(SYS_futex, address, operation, value, time, ...).
long syscall(long number, ...) {
  static __typeof__(&syscall) real;
  if (real == NULL) real = REAL(syscall);
  va_list list;
  va_start(list, number);
  long a[6];
  for (int i = 0; i < 6; ++i) a[i] = va_arg(list, long);
  va_end(list);
  struct timespec shifted;
  if (number == SYS_futex && (a[1] & FUTEX_CLOCK_REALTIME)) {
    a[3] = (long)ToKernel((const struct timespec*)a[3], &shifted);
  }
  return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
