/* A driver without a device. Device memory is host memory. Enqueued work runs, in order, when a stream is queried; work that another
   stream waits for runs as late as possible, or as early as possible with $STUB_EAGER. A launched kernel only checks its arguments
   and writes $STUB_STATUS to its status word, so this tests the calls of the driver layer and not the kernels. With $STUB_LATE,
   launched work starts after that many milliseconds. The launch with number $STUB_BREAKS fails. With $STUB_SAYS, launches and their
   completion are printed. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* A library call; this is its first field. Returns 1 when done, or 0 if it waits for other ranks. */
typedef int Call(const void *);
typedef struct { int kind; void *to; const void *from; size_t bytes, rows, there, here; unsigned value; } Op;
typedef struct { Op *ops; int count; } List;
typedef struct Stream {
  List waiting, recorded;
  int at, capturing, busy, launched, broken;
  double since;
  struct Stream *other;
} Stream;
/* The number of times it was recorded on a stream, and the number completed. */
typedef struct { Stream *on; unsigned marked, come, untimed; double time; } Event;
enum { COPY, SET, CALL, STAMP, MARK, AWAIT };

static int add(List *list, Op op) {
  list->ops = realloc(list->ops, (size_t)(list->count + 1) * sizeof(Op));
  list->ops[list->count++] = op;
  return 0;
}
/* Several threads query streams. */
static pthread_mutex_t turn = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static int put(Stream *s, Op op) {
  if (!s) return 400;
  pthread_mutex_lock(&turn);
  add(s->capturing ? &s->recorded : &s->waiting, op);
  return pthread_mutex_unlock(&turn);
}
static double milliseconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}
static int number(const char *name) { return getenv(name) ? atoi(getenv(name)) : 0; }
static int done(const Op *op) {
  Event *event = op->to;
  if (op->kind == MARK) event->come = op->value;
  if (op->kind >= MARK) return event->come >= op->value;
  if (op->kind == STAMP) return (event->time = milliseconds()) > 0;
  if (op->kind == CALL) return (*(Call *const *)op->from)(op->from);
  if (op->kind == SET) for (size_t r = 0; r < op->rows; r++)
    memcpy((char *)op->to + r * op->here, &op->value, op->bytes);
  else for (size_t r = 0; r < op->rows; r++)
    memmove((char *)op->to + r * op->here, (const char *)op->from + r * op->there, op->bytes);
  return 1;
}
/* Enqueues a library's call on a stream; without a stream the call runs now. */
int stub_call(const void *call, void *s) {
  Op op = {CALL, 0, call, 0, 0, 0, 0, 0};
  if (s) return put(s, op);
  while (!done(&op)) usleep(50);
  return 0;
}
int cuInit(unsigned f) { return f ? 1 : 0; }
/* $STUB_DEVICES devices, else one. Every use of a device is printed. */
static int devices(void) {
  const char *number = getenv("STUB_DEVICES");
  return number ? atoi(number) : 1;
}
static int contexts[64];
int cuDeviceGetCount(int *n) { *n = devices(); return 0; }
int cuDeviceGet(int *d, int i) { *d = i; return i < devices() ? fprintf(stderr, "device %d\n", i) < 0 : 101; }
int cuDeviceGetAttribute(int *v, int a, int d) { *v = a == 75 ? 9 : a == 76 ? 0 : -1; return d >= devices(); }
int cuDevicePrimaryCtxRetain(void **c, int d) { *c = &contexts[d]; return d >= devices(); }
int cuDevicePrimaryCtxRelease_v2(int d) { return d >= devices(); }
int cuCtxSetCurrent(void *c) { return c ? 0 : 201; }
int cuMemGetInfo_v2(size_t *free, size_t *total) {
  const char *left = getenv("STUB_FREE");
  *free = left ? (size_t)atoll(left) : (size_t)1 << 30;
  *total = (size_t)1 << 30;
  return 0;
}
int cuMemAlloc_v2(uint64_t *p, size_t n) { *p = (uint64_t)(uintptr_t)calloc(1, n); return 0; }
int cuMemFree_v2(uint64_t p) { free((void *)(uintptr_t)p); return 0; }
int cuMemAllocHost_v2(void **p, size_t n) { *p = calloc(1, n); return 0; }
int cuMemFreeHost(void *p) { free(p); return 0; }
/* Bus transfers are printed when they are enqueued, if $STUB_SAYS is set. */
static void crosses(const char *way, size_t n) { if (getenv("STUB_SAYS")) fprintf(stderr, "%s %zu\n", way, n); }
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t n) {
  crosses("up whole", n);
  memcpy((void *)(uintptr_t)to, from, n);
  return 0;
}
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t n) {
  crosses("down whole", n);
  memcpy(to, (void *)(uintptr_t)from, n);
  return 0;
}
static int copy(uint64_t to, uint64_t from, size_t n, void *s) {
  return put(s, (Op){COPY, (void *)(uintptr_t)to, (void *)(uintptr_t)from, n, 1, 0, 0, 0});
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n, void *s) {
  crosses("up", n);
  return copy(to, (uint64_t)(uintptr_t)from, n, s);
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, void *s) {
  crosses("down", n);
  return copy((uint64_t)(uintptr_t)to, from, n, s);
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t n, void *s) { return copy(to, from, n, s); }
typedef struct { size_t x, y; unsigned kind; const void *host; uint64_t device; void *array; size_t pitch; } Side;
typedef struct { Side from, to; size_t bytes, rows; } Rows;
int cuMemcpy2DAsync_v2(const Rows *r, void *s) {
  const Side *sides[2] = {&r->from, &r->to};
  for (int i = 0; i < 2; i++)
    if (sides[i]->x || sides[i]->y || sides[i]->kind != 2 || sides[i]->pitch < r->bytes) return 1;
  void *to = (void *)(uintptr_t)r->to.device, *from = (void *)(uintptr_t)r->from.device;
  return put(s, (Op){COPY, to, from, r->bytes, r->rows, r->from.pitch, r->to.pitch, 0});
}
static int set(uint64_t to, unsigned value, size_t bytes, size_t n, size_t pitch, void *s) {
  return put(s, (Op){SET, (void *)(uintptr_t)to, 0, bytes, n, 0, pitch, value});
}
int cuMemsetD8Async(uint64_t to, unsigned char value, size_t n, void *s) { return set(to, value, 1, n, 1, s); }
int cuMemsetD16Async(uint64_t to, unsigned short value, size_t n, void *s) { return set(to, value, 2, n, 2, s); }
int cuMemsetD32Async(uint64_t to, unsigned value, size_t n, void *s) { return set(to, value, 4, n, 4, s); }
int cuMemsetD2D32Async(uint64_t to, size_t pitch, unsigned value, size_t width, size_t n, void *s) {
  return width == 1 && pitch > 4 ? set(to, value, 4, n, pitch, s) : 1;
}
/* A cubin is an ELF file. */
int cuModuleLoadData(void **m, const void *image) {
  *m = (void *)image;
  return memcmp(image, "\177ELF", 4) ? 200 : 0;
}
int cuModuleUnload(void *m) { return m ? 0 : 400; }
int cuModuleGetFunction(void **f, void *m, const char *name) { *f = m; return strcmp(name, "kernel") ? 500 : 0; }
int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void *s, void **params, void **extra) {
  if (!f || !s || gx < 1 || gy != 1 || gz != 1 || bx != 256 || by != 1 || bz != 1 || shared || extra) return 1;
  if (*(int64_t *)params[1] < 0) return 1;
  const char *status = getenv("STUB_STATUS");
  return cuMemsetD32Async(*(uint64_t *)params[2], status ? (unsigned)atoi(status) : 0, 1, s);
}
int cuStreamCreate(void **s, unsigned f) { *s = calloc(1, sizeof(Stream)); return f == 1 ? 0 : 1; }
int cuStreamDestroy_v2(void *it) {
  Stream *s = it;
  pthread_mutex_lock(&turn);
  if (s && s->other) s->other->other = 0;
  free(s);
  pthread_mutex_unlock(&turn);
  return s ? 0 : 400;
}
/* Whether the stream has work that is ready to run. */
static int idles(const Stream *s) {
  const Op *op = &s->waiting.ops[s->at];
  return s->at == s->waiting.count || (op->kind == AWAIT && ((Event *)op->to)->come < op->value);
}
static void advance(Stream *s) {
  if (s->busy || (s->launched && milliseconds() < s->since + number("STUB_LATE"))) return;
  s->busy = 1;
  for (; s->at < s->waiting.count; s->at++) {
    const Op *op = &s->waiting.ops[s->at];
    if (s->other && getenv("STUB_EAGER")) advance(s->other);
    if (op->kind == AWAIT && !done(op)) advance(((Event *)op->to)->on);
    if (op->kind == CALL && s->other && !idles(s->other) && getenv("STUB_SAYS")) fprintf(stderr, "overlaps\n");
    if (!done(op)) break;
  }
  if (s->at == s->waiting.count) {
    s->at = s->waiting.count = 0;
    if (s->launched && getenv("STUB_SAYS")) fprintf(stderr, "through\n");
    s->launched = 0;
  }
  s->busy = 0;
}
int cuStreamQuery(void *it) {
  Stream *s = it;
  if (s->capturing) return 900;
  pthread_mutex_lock(&turn);
  advance(s);
  int status = s->waiting.count ? 600 : s->broken;
  pthread_mutex_unlock(&turn);
  return status;
}
int cuEventCreate(void **e, unsigned f) {
  *e = calloc(1, sizeof(Event));
  ((Event *)*e)->untimed = f;
  return f == 2 || f == 0 ? 0 : 1;
}
/* In a recording, each run takes the time. */
int cuEventRecordWithFlags(void *it, void *s, unsigned f) {
  if (f != 1 || !((Stream *)s)->capturing || ((Event *)it)->untimed) return 1;
  return put(s, (Op){STAMP, it, 0, 0, 0, 0, 0, 0});
}
int cuEventElapsedTime(float *ms, void *from, void *to) {
  Event *begin = from, *end = to;
  if (begin->untimed || end->untimed) return 400;
  *ms = (float)(end->time - begin->time);
  return begin->time > 0 && end->time > 0 ? 0 : 400;
}
int cuEventDestroy_v2(void *e) { free(e); return e ? 0 : 400; }
int cuEventRecord(void *it, void *s) {
  Event *e = it;
  pthread_mutex_lock(&turn);
  e->on = s;
  put(s, (Op){MARK, e, 0, 0, 0, 0, 0, ++e->marked});
  return pthread_mutex_unlock(&turn);
}
int cuStreamWaitEvent(void *it, void *e, unsigned f) {
  pthread_mutex_lock(&turn);
  Stream *s = it, *other = ((Event *)e)->on;
  if (other && !s->other && !other->other) s->other = other, other->other = s;
  put(s, (Op){AWAIT, e, 0, 0, 0, 0, 0, ((Event *)e)->marked});
  return pthread_mutex_unlock(&turn) || f;
}
int cuStreamSynchronize(void *s) {
  int status;
  /* Nothing is ever enqueued on the default stream. */
  if (!s) return 0;
  while ((status = cuStreamQuery(s)) == 600) usleep(50);
  ((Stream *)s)->broken = 0;
  return status;
}
int cuStreamBeginCapture_v2(void *it, int mode) {
  Stream *s = it;
  s->capturing = 1;
  s->recorded = (List){0, 0};
  return mode == 1 ? 0 : 1;
}
int cuStreamEndCapture(void *it, void **graph) {
  Stream *s = it;
  List *made = malloc(sizeof(List));
  *made = s->recorded;
  s->capturing = 0;
  *graph = made;
  return 0;
}
int cuGraphInstantiateWithFlags(void **e, void *graph, unsigned long long f) {
  List *own = malloc(sizeof(List));
  *own = (List){0, 0};
  for (int i = 0; i < ((List *)graph)->count; i++) add(own, ((List *)graph)->ops[i]);
  *e = own;
  return f ? 1 : 0;
}
int cuGraphDestroy(void *g) { free(((List *)g)->ops); free(g); return 0; }
int cuGraphExecDestroy(void *e) { return cuGraphDestroy(e); }
int cuGraphLaunch(void *e, void *it) {
  static int launches;
  Stream *s = it;
  if (s->capturing) return 900;
  pthread_mutex_lock(&turn);
  if (getenv("STUB_SAYS")) fprintf(stderr, "launched\n");
  if (++launches == number("STUB_BREAKS")) s->broken = 719;
  s->launched = 1;
  s->since = milliseconds();
  for (int i = 0; i < ((List *)e)->count; i++) put(s, ((List *)e)->ops[i]);
  return pthread_mutex_unlock(&turn);
}
int cuGetErrorString(int status, const char **words) { *words = status == 900 ? "recording" : "refused"; return 0; }
