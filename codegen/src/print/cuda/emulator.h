/* An emulated GPU: runs the text of a kernel for GPUs with the threads of a block as fibers, so that its results can be
   tested without a GPU. It reports errors that a GPU may not: accesses outside of an argument or of shared
   memory, misaligned vectors, barriers and shuffles that not all threads reach. Shared memory begins as NaN.
   Threads run one after another up to a barrier, alternately from the first and from the last, so that a missing
   barrier gives wrong results. It needs no header and no library, and keeps its state in the scratch memory of the
   call. */
#ifndef __x86_64__
#error "the emulated GPU switches between threads with instructions of x86-64"
#endif
#define EMULATOR
#define __device__
#define __forceinline__ inline __attribute__((always_inline))

extern "C" __attribute__((visibility("hidden"), used)) void *memset(void *to, int c, unsigned long n) {
  for (unsigned long i = 0; i < n; i++) ((volatile char *)to)[i] = (char)c;
  return to;
}
extern "C" __attribute__((visibility("hidden"), used)) void *memcpy(void *to, const void *from, unsigned long n) {
  for (unsigned long i = 0; i < n; i++) ((volatile char *)to)[i] = ((const char *)from)[i];
  return to;
}

namespace emulator {
typedef unsigned long long Word;
/* Statuses of a launch in addition to those of kernels: see emulator.rs. */
enum Status { DIVERGED = 3, OUT_OF_BOUNDS = 4, MISALIGNED = 5, STACK_FULL = 6 };
enum { STACK = 16 << 10, FIBERS = 256, WARP = 32, SHARED_BYTES = 48 << 10, CANARY = 0x5ca1ab1e };
enum State { READY, BARRIER, EXCHANGE, DONE };
enum ExchangeKind { SHUFFLE, BALLOT, SYNC };

struct Dim { int x, y, z; };
struct Args { void *const *at; void *operator[](int i) const { return at[i]; } };
struct Block;

/* A pending asynchronous copy. */
struct PendingCopy { char *to; const char *from; int bytes; };

/* A thread, at the low end of its stack. */
struct Thread {
  void *stack;
  Block *block;
  Dim index;
  State state;
  int site;
  unsigned long shared_used;
  /* An exchange between lanes: kind, mask, value given, source lane, value received. */
  ExchangeKind kind;
  unsigned mask;
  int from;
  Word given, got;
  PendingCopy copies[64];
  int waiting, group[8], groups;
  alignas(16) Word dummy[4];
  unsigned canary;
};

struct Block {
  const Args *args;
  long long begin, end;
  Dim index, grid;
  int status;
  void *caller;
  char *shared, *stacks;
  alignas(16) Word fragments[FIBERS / WARP][WARP][8];
};

static inline __attribute__((always_inline)) Thread *self() {
  return (Thread *)((unsigned long)__builtin_frame_address(0) & ~(unsigned long)(STACK - 1));
}
static inline Thread *thread(Block *b, int i) { return (Thread *)(b->stacks + (unsigned long)i * STACK); }
static void fail(Block *b, int status) { if (b->status == 0) b->status = status; }

/* Switches fibers: saves the callee-saved registers, changes the stack, and restores them from there. */
extern "C" void emulator_switch(void **from, void *to) __attribute__((visibility("hidden")));
__asm__(".text\n.hidden emulator_switch\n.type emulator_switch, @function\nemulator_switch:\n"
        "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
        "  movq %rsp, (%rdi)\n  movq %rsi, %rsp\n"
        "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n  ret\n");

static __attribute__((noinline)) void yield_fiber(State state, int site) {
  Thread *t = self();
  t->state = state;
  t->site = site;
  emulator_switch(&t->stack, t->block->caller);
}

static __attribute__((noinline)) void barrier(int site) { yield_fiber(BARRIER, site); }

static __attribute__((noinline)) Word exchange(int site, ExchangeKind kind, unsigned mask, Word given, int from) {
  Thread *t = self();
  t->kind = kind;
  t->mask = mask;
  t->given = given;
  t->from = from;
  if (!(mask >> (t->index.x % WARP) & 1)) fail(t->block, DIVERGED);
  yield_fiber(EXCHANGE, site);
  return t->got;
}

/* Bounds-checked pointers. */
template <class T> struct Ptr {
  T *p;
  const char *low, *high;
  T *at(long long i, long long n) const {
    T *a = p + i;
    if ((const char *)a < low || (const char *)(a + n) > high) {
      fail(self()->block, OUT_OF_BOUNDS);
      return (T *)self()->dummy;
    }
    return a;
  }
  T &operator[](long long i) const { return *at(i, 1); }
  T &operator*() const { return *at(0, 1); }
  Ptr operator+(long long i) const { return Ptr{p + i, low, high}; }
  Ptr operator-(long long i) const { return Ptr{p - i, low, high}; }
  Ptr &operator+=(long long i) { p += i; return *this; }
  operator Ptr<const T>() const { return Ptr<const T>{p, low, high}; }
};
template <class T> static Ptr<T> argument(void *p, long long bytes) {
  const char *low = (const char *)p;
  return Ptr<T>{(T *)p, low, bytes < 0 ? (const char *)~0ul : low + bytes};
}
template <class T> static Ptr<T> shared(long long n) {
  Thread *t = self();
  unsigned long at = (t->shared_used + 15) & ~15ul, bytes = n * sizeof(T);
  t->shared_used = at + bytes;
  if (t->shared_used > SHARED_BYTES) { fail(t->block, OUT_OF_BOUNDS); bytes = 0; }
  char *p = t->block->shared + at;
  return Ptr<T>{(T *)p, p, p + bytes};
}

template <class T> union Bits { T value; Word word; };
template <class T> static T shuffle(int site, unsigned mask, T v, int from) {
  Bits<T> in, out;
  in.word = 0;
  in.value = v;
  out.word = exchange(site, SHUFFLE, mask, in.word, from);
  return out.value;
}
static inline int lane() { return self()->index.x % WARP; }
/* The lane `to` if it is in the same part of `width` lanes, else the lane itself. */
static inline int shuffle_source_lane(int to, int width) { return to / width == lane() / width && to >= 0 ? to : lane(); }

/* Completes an exchange once all lanes of its mask have arrived, and resumes them. */
static bool resume(Block *b, int warp) {
  bool some = false;
  for (int i = 0; i < WARP; i++) {
    Thread *t = thread(b, warp * WARP + i);
    if (t->state != EXCHANGE) continue;
    bool all = true;
    unsigned ballot = 0;
    for (int j = 0; j < WARP; j++) {
      if (!(t->mask >> j & 1)) continue;
      Thread *o = thread(b, warp * WARP + j);
      all = all && o->state == EXCHANGE && o->site == t->site && o->mask == t->mask && o->kind == t->kind;
      ballot |= (o->given ? 1u : 0u) << j;
    }
    if (!all) continue;
    for (int j = 0; j < WARP; j++) {
      if (!(t->mask >> j & 1)) continue;
      Thread *o = thread(b, warp * WARP + j);
      if (o->kind == BALLOT) o->got = ballot;
      else if (o->kind == SHUFFLE) {
        if (!(t->mask >> o->from & 1)) fail(b, DIVERGED);
        o->got = thread(b, warp * WARP + o->from)->given;
      }
    }
    for (int j = 0; j < WARP; j++) if (t->mask >> j & 1) thread(b, warp * WARP + j)->state = READY;
    some = true;
  }
  return some;
}

static void enter();

static void run(Block *b) {
  for (unsigned long i = 0; i < SHARED_BYTES; i += 8) *(volatile Word *)(b->shared + i) = ~0ull;
  for (int i = 0; i < FIBERS; i++) {
    Thread *t = thread(b, i);
    t->block = b;
    t->index = Dim{i, 0, 0};
    t->state = READY;
    t->shared_used = 0;
    t->waiting = t->groups = 0;
    t->canary = CANARY;
    void **top = (void **)((char *)t + STACK - 64);
    top[6] = (void *)enter;
    t->stack = top;
  }
  for (int turn = b->index.x;; turn++) {
    bool ran = false;
    for (int k = 0; k < FIBERS; k++) {
      Thread *t = thread(b, turn % 2 ? FIBERS - 1 - k : k);
      if (t->state != READY) continue;
      ran = true;
      emulator_switch(&b->caller, t->stack);
      if (t->canary != CANARY) { b->status = STACK_FULL; return; }
    }
    for (int w = 0; w < FIBERS / WARP; w++) ran = resume(b, w) || ran;
    int done = 0, waiting = 0;
    for (int i = 0; i < FIBERS; i++) {
      Thread *t = thread(b, i);
      done += t->state == DONE;
      waiting += t->state == BARRIER && t->site == thread(b, 0)->site;
    }
    if (done == FIBERS) return;
    if (waiting == FIBERS) {
      for (int i = 0; i < FIBERS; i++) thread(b, i)->state = READY;
      ran = true;
    }
    if (!ran) { fail(b, DIVERGED); return; }
  }
}

/* Pending copies: they take effect when they are waited for, and not before. */
static __attribute__((noinline)) void copy(char *to, const char *from, int bytes) {
  Thread *t = self();
  if (t->waiting == 64) { fail(t->block, STACK_FULL); return; }
  t->copies[t->waiting++] = PendingCopy{to, from, bytes};
}
static __attribute__((noinline)) void commit() {
  Thread *t = self();
  if (t->groups == 8) { fail(t->block, STACK_FULL); return; }
  t->group[t->groups++] = t->waiting;
}
/* Waits until at most `left` groups are pending. */
static __attribute__((noinline)) void wait_group(int left) {
  Thread *t = self();
  if (t->groups <= left) return;
  int through = t->groups - left, n = t->group[through - 1];
  for (int i = 0; i < n; i++) {
    if (t->copies[i].from) memcpy(t->copies[i].to, t->copies[i].from, t->copies[i].bytes);
    else memset(t->copies[i].to, 0, t->copies[i].bytes);
  }
  for (int i = n; i < t->waiting; i++) t->copies[i - n] = t->copies[i];
  t->waiting -= n;
  for (int i = through; i < t->groups; i++) t->group[i - through] = t->group[i] - n;
  t->groups = left;
}
}  // namespace emulator

using emulator::Args;
#define PTR(T) emulator::Ptr<T>
#define ARG(T, i) emulator::argument<T>(args[i], argument_bytes[i])
#define SIZES(...) const long long argument_bytes[] = {__VA_ARGS__}
#define SHARED(T, name, n) const emulator::Ptr<T> name = emulator::shared<T>(n)
#define threadIdx (emulator::self()->index)
#define blockIdx (emulator::self()->block->index)
#define gridDim (emulator::self()->block->grid)
#define __syncthreads() emulator::barrier(__LINE__)
#define __syncwarp(mask) ((void)emulator::exchange(__LINE__, emulator::SYNC, mask, 0, 0))
#define __shfl_sync(mask, v, from) emulator::shuffle(__LINE__, mask, v, (from) % emulator::WARP)
#define __shfl_xor_sync(mask, v, by) emulator::shuffle(__LINE__, mask, v, emulator::lane() ^ (by))
#define __shfl_down_sync(mask, v, by) emulator::shuffle(__LINE__, mask, v, emulator::shuffle_source_lane(emulator::lane() + (by), emulator::WARP))
#define __shfl_up_sync(mask, v, by) emulator::shuffle(__LINE__, mask, v, emulator::shuffle_source_lane(emulator::lane() - (by), emulator::WARP))
#define __ballot_sync(mask, p) ((unsigned)emulator::exchange(__LINE__, emulator::BALLOT, mask, (p) ? 1 : 0, 0))
#define __any_sync(mask, p) (__ballot_sync(mask, p) != 0)
#define __all_sync(mask, p) (__ballot_sync(mask, p) == (mask))

/* Without an instruction for it the compiler would call the C library. */
static inline int __popc(unsigned x) {
  x -= x >> 1 & 0x55555555;
  x = (x & 0x33333333) + (x >> 2 & 0x33333333);
  return (int)(((x + (x >> 4)) & 0x0f0f0f0f) * 0x01010101 >> 24);
}
static inline int __float_as_int(float x) { int i; __builtin_memcpy(&i, &x, 4); return i; }
static inline float __int_as_float(int i) { float x; __builtin_memcpy(&x, &i, 4); return x; }
static inline long long __double_as_longlong(double x) { long long i; __builtin_memcpy(&i, &x, 8); return i; }
static inline double __longlong_as_double(long long i) { double x; __builtin_memcpy(&x, &i, 8); return x; }
static inline float sqrtf(float x) { return __builtin_sqrtf(x); }
/* To nearest even: adding 1.5 * 2^23 rounds the fraction of smaller numbers away. */
static inline float rintf(float x) {
  volatile float pushed = x + 12582912.0f;
  float r = pushed - 12582912.0f;
  if (!((__float_as_int(x) & 0x7fffffff) < __float_as_int(4194304.0f))) return x;
  return __int_as_float((__float_as_int(r) & 0x7fffffff) | (__float_as_int(x) & (int)0x80000000));
}
static inline float floorf(float x) { float r = rintf(x); return r > x ? r - 1.0f : r; }
static inline float ceilf(float x) {
  float r = rintf(x);
  return __int_as_float(__float_as_int(r < x ? r + 1.0f : r) | (__float_as_int(x) & (int)0x80000000));
}

template <class T> static T atomicAdd(emulator::Ptr<T> p, T v) {
  T *a = p.at(0, 1), old = *a, now;
  do now = old + v; while (!__atomic_compare_exchange(a, &old, &now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return old;
}
template <class T> static T atomicMax(emulator::Ptr<T> p, T v) {
  T *a = p.at(0, 1), old = *a, now;
  do now = old > v ? old : v; while (!__atomic_compare_exchange(a, &old, &now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return old;
}

template <class T> struct Vec4;
template <class F, class T> static F *aligned(T *p) {
  if ((unsigned long)p % alignof(F)) { emulator::fail(emulator::self()->block, emulator::MISALIGNED); return (F *)emulator::self()->dummy; }
  return (F *)p;
}
template <class T> static Vec4<T> load4(emulator::Ptr<const T> p) { return *aligned<const Vec4<T>>(p.at(0, 4)); }
template <class T> static Vec4<T> load4(emulator::Ptr<T> p) { return *aligned<const Vec4<T>>(p.at(0, 4)); }
template <class T> static void store4(emulator::Ptr<T> p, const Vec4<T> &v) { *aligned<Vec4<T>>(p.at(0, 4)) = v; }

template <int N, class T> static void async_copy(emulator::Ptr<T> to, emulator::Ptr<const T> from, bool in_bounds) {
  const unsigned long bytes = N * sizeof(T);
  char *p = (char *)to.at(0, N);
  const char *q = in_bounds ? (const char *)from.at(0, N) : (const char *)0;
  if ((unsigned long)p % bytes || (unsigned long)q % bytes) emulator::fail(emulator::self()->block, emulator::MISALIGNED);
  if (bytes < 4) *to = in_bounds ? *from : T(0);
  else emulator::copy(p, q, (int)bytes);
}
static inline void async_commit() { emulator::commit(); }
template <int LEFT> static void async_wait() { emulator::wait_group(LEFT); }
/* To nearest with ten bits of mantissa, ties away from zero. */
static inline unsigned tf32(float x) { return ((unsigned)__float_as_int(x) + 0x1000u) & ~0x1fffu; }
/* The fragment layout is that of PTX's mma.m16n8k8 for tf32. */
static __attribute__((noinline)) void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  emulator::Thread *t = emulator::self();
  emulator::Word (*all)[8] = t->block->fragments[t->index.x / emulator::WARP];
  const int lane = emulator::lane(), g = lane / 4, q = lane % 4;
  for (int i = 0; i < 4; i++) all[lane][i] = a[i];
  for (int i = 0; i < 2; i++) all[lane][4 + i] = b[i];
  emulator::exchange(1, emulator::SYNC, 0xffffffffu, 0, 0);
  for (int i = 0; i < 4; i++) {
    const int row = g + i / 2 * 8, column = 2 * q + i % 2;
    for (int k = 0; k < 8; k++) {
      const float x = __int_as_float((int)all[row % 8 * 4 + k % 4][row / 8 + k / 4 * 2]);
      const float y = __int_as_float((int)all[column * 4 + k % 4][4 + k / 4]);
      d[i] += x * y;
    }
  }
  emulator::exchange(2, emulator::SYNC, 0xffffffffu, 0, 0);
}

/* 16-bit floats and back, to nearest even. */
static inline unsigned to_bf16(float x) {
  const unsigned b = (unsigned)__float_as_int(x);
  return x != x ? 0x7fc0u : (b + 0x7fffu + (b >> 16 & 1)) >> 16;
}
static inline float from_bf16(unsigned h) { return __int_as_float((int)(h << 16)); }
static inline unsigned to_f16(float x) {
  const unsigned sign = (unsigned)__float_as_int(x) >> 16 & 0x8000u;
  const float a = __int_as_float(__float_as_int(x) & 0x7fffffff);
  if (x != x) return 0x7e00u;
  if (a >= 65520.0f) return sign | 0x7c00u;
  /* Subnormal numbers have a fixed last place, 2^-24. */
  if (a < 6.103515625e-5f) return sign | (unsigned)rintf(a * 16777216.0f);
  const unsigned b = (unsigned)__float_as_int(a) - (112u << 23);
  return sign | (b + 0xfffu + (b >> 13 & 1)) >> 13;
}
static inline float from_f16(unsigned h) {
  const unsigned e = h >> 10 & 31, m = h & 1023;
  const float a = e == 31 ? __int_as_float((int)(0x7f800000u | m << 13))
    : e ? __int_as_float((int)((e + 112) << 23 | m << 13)) : (float)m / 16777216.0f;
  return h >> 15 ? -a : a;
}
static inline unsigned pack_bf16(float low, float high) { return to_bf16(low) | to_bf16(high) << 16; }
static inline unsigned pack_f16(float low, float high) { return to_f16(low) | to_f16(high) << 16; }
/* The fragment layout is that of PTX's mma.m16n8k16 for 16-bit floats. */
template <float from(unsigned)> static __attribute__((noinline)) void mma_16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  emulator::Thread *t = emulator::self();
  emulator::Word (*all)[8] = t->block->fragments[t->index.x / emulator::WARP];
  const int lane = emulator::lane(), g = lane / 4, q = lane % 4;
  for (int i = 0; i < 4; i++) all[lane][i] = a[i];
  for (int i = 0; i < 2; i++) all[lane][4 + i] = b[i];
  emulator::exchange(3, emulator::SYNC, 0xffffffffu, 0, 0);
  for (int i = 0; i < 4; i++) {
    const int row = g + i / 2 * 8, column = 2 * q + i % 2;
    for (int k = 0; k < 16; k++) {
      const int half = k % 2 * 16, from_lane = k % 8 / 2;
      const unsigned x = (unsigned)all[row % 8 * 4 + from_lane][row / 8 + k / 8 * 2] >> half & 0xffff;
      const unsigned y = (unsigned)all[column * 4 + from_lane][4 + k / 8] >> half & 0xffff;
      d[i] += from(x) * from(y);
    }
  }
  emulator::exchange(4, emulator::SYNC, 0xffffffffu, 0, 0);
}
/* The fragment layout is that of PTX's ldmatrix.x4. */
template <bool transposed, class T> static __attribute__((noinline)) void ldmatrix(unsigned &a, unsigned &b, unsigned &c, unsigned &d, emulator::Ptr<T> row) {
  emulator::Thread *t = emulator::self();
  emulator::Word (*all)[8] = t->block->fragments[t->index.x / emulator::WARP];
  const int lane = emulator::lane(), g = lane / 4, q = lane % 4;
  T *own = row.at(0, 8);
  if ((unsigned long)own % 16) emulator::fail(t->block, emulator::MISALIGNED);
  all[lane][0] = (emulator::Word)own;
  emulator::exchange(5, emulator::SYNC, 0xffffffffu, 0, 0);
  unsigned got[4];
  for (int m = 0; m < 4; m++) {
    unsigned part[2];
    for (int i = 0; i < 2; i++) part[i] = transposed ? ((const T *)all[m * 8 + 2 * q + i][0])[g] : ((const T *)all[m * 8 + g][0])[2 * q + i];
    got[m] = part[0] | part[1] << 16;
  }
  emulator::exchange(6, emulator::SYNC, 0xffffffffu, 0, 0);
  a = got[0]; b = got[1]; c = got[2]; d = got[3];
}
#define ldmatrix_x4 ldmatrix<false>
#define ldmatrix_x4_trans ldmatrix<true>
#define mma_bf16 mma_16<from_bf16>
#define mma_f16 mma_16<from_f16>

/* The entry point of a kernel for CPUs: its iterations are blocks. Every block of a launch runs two of them, so that
   state left from the previous iteration is detected. */
#define ENTRY \
  void emulator::enter() { \
    Thread *t = self(); \
    const int s = body(*t->block->args, t->block->begin, t->block->end); \
    if (s) fail(t->block, s); \
    yield_fiber(DONE, 0); \
  } \
  extern "C" i32 kernel(void *const *args, i64 begin, i64 end, void *scratch) { \
    using namespace emulator; \
    Args all = {args}; \
    char *base = (char *)(((unsigned long)scratch + STACK - 1) & ~(unsigned long)(STACK - 1)); \
    Block *b = (Block *)(base + (unsigned long)FIBERS * STACK + SHARED_BYTES); \
    b->args = &all; b->begin = begin; b->end = end; b->status = 0; \
    b->stacks = base; b->shared = base + (unsigned long)FIBERS * STACK; \
    const int grid = (int)((end - begin + 1) / 2); \
    b->grid = Dim{grid > 0 ? grid : 1, 1, 1}; \
    for (int i = 0; i < b->grid.x && b->status == 0; i++) { b->index = Dim{i, 0, 0}; run(b); } \
    return b->status; \
  }
