/* A driver without a device: memory is the host's, what is recorded is done when the graph is launched, and a launched
   kernel only checks how it was called and writes $STUB_STATUS to its status word. It sees that the driver layer calls
   what it means to call; of kernels it says nothing. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { int kind; void *to; const void *from; size_t bytes; unsigned value; } Op;
static Op ops[256];
static int count, capturing, recorded;
/* A call of a library, which is the first thing that lies there. */
typedef void Call(const void *);

static int put(Op op) {
  if (!capturing || count == 256) return 900;
  ops[count++] = op;
  return 0;
}
/* What a library puts on a stream: done now where nothing is recorded. */
int stub_call(const void *call, void *s) {
  if (s && s != &capturing) return 1;
  if (s && capturing) return put((Op){2, 0, call, 0, 0});
  (*(Call *const *)call)(call);
  return 0;
}
int cuInit(unsigned f) { return f ? 1 : 0; }
/* $STUB_DEVICES of them, else one; each that is taken is said. */
static int devices(void) {
  const char *number = getenv("STUB_DEVICES");
  return number ? atoi(number) : 1;
}
int cuDeviceGetCount(int *n) { *n = devices(); return 0; }
int cuDeviceGet(int *d, int i) { *d = i; return i < devices() ? fprintf(stderr, "device %d\n", i) < 0 : 101; }
int cuDeviceGetAttribute(int *v, int a, int d) { *v = a == 75 ? 9 : a == 76 ? 0 : -1; return d >= devices(); }
int cuDevicePrimaryCtxRetain(void **c, int d) { *c = ops; return d >= devices(); }
int cuDevicePrimaryCtxRelease_v2(int d) { return d >= devices(); }
int cuCtxSetCurrent(void *c) { return c == ops ? 0 : 201; }
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
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t n) { memcpy((void *)(uintptr_t)to, from, n); return 0; }
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n, void *s) {
  return s ? put((Op){0, (void *)(uintptr_t)to, from, n, 0}) : 400;
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, void *s) {
  return s ? put((Op){0, to, (void *)(uintptr_t)from, n, 0}) : 400;
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t n, void *s) {
  return s ? put((Op){0, (void *)(uintptr_t)to, (void *)(uintptr_t)from, n, 0}) : 400;
}
int cuMemsetD32Async(uint64_t to, unsigned value, size_t n, void *s) {
  return s ? put((Op){1, (void *)(uintptr_t)to, 0, n, value}) : 400;
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
  return put((Op){1, (void *)(uintptr_t)*(uint64_t *)params[2], 0, 1, status ? (unsigned)atoi(status) : 0});
}
int cuStreamCreate(void **s, unsigned f) { *s = &capturing; return f == 1 ? 0 : 1; }
int cuStreamDestroy_v2(void *s) { return s ? 0 : 400; }
int cuStreamSynchronize(void *s) { return s ? 0 : 400; }
int cuStreamBeginCapture_v2(void *s, int mode) { capturing = 1; count = 0; return mode == 1 && s ? 0 : 1; }
int cuStreamEndCapture(void *s, void **graph) { capturing = 0; *graph = &count; return s ? 0 : 400; }
int cuGraphInstantiateWithFlags(void **e, void *graph, unsigned long long f) {
  *e = &recorded;
  recorded = count;
  return f || graph != &count ? 1 : 0;
}
int cuGraphDestroy(void *g) { return g == &count ? 0 : 400; }
int cuGraphExecDestroy(void *e) { return e == &recorded ? 0 : 400; }
int cuGraphLaunch(void *e, void *s) {
  if (e != &recorded || !s) return 400;
  for (int i = 0; i < recorded; i++) {
    if (ops[i].kind == 2) (*(Call *const *)ops[i].from)(ops[i].from);
    else if (ops[i].kind == 0) memmove(ops[i].to, ops[i].from, ops[i].bytes);
    else for (size_t k = 0; k < ops[i].bytes; k++) ((unsigned *)ops[i].to)[k] = ops[i].value;
  }
  return 0;
}
int cuGetErrorString(int status, const char **words) { *words = status == 900 ? "not recording" : "refused"; return 0; }
