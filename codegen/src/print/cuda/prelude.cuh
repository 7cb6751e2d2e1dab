/* The prelude of every kernel for GPUs: types and accesses. NVRTC compiles this text; so does the machine's C++ compiler, after
   emulator.h. It needs no header and no library. */
typedef signed char i8; typedef short i16; typedef int i32; typedef long long i64;
typedef unsigned char u8; typedef unsigned short u16; typedef unsigned int u32; typedef unsigned long long u64;
typedef float f32; typedef double f64; typedef u8 b8;
typedef u16 f16; typedef u16 bf16; /* in memory; values are f32 */
#define INLINE static __device__ __forceinline__
#define CALLED INLINE
/* Threads of a block, in warps of 32. */
#define THREADS 256
/* Sums whose terms are rounded before, products among them. */
#ifdef EMULATOR
template <class T> INLINE T one_rounded(T x) { __asm__("" : "+m"(x)); return x; }
template <class T> INLINE T one_sum(T a, T b) { return one_rounded(a) + one_rounded(b); }
template <class T> INLINE T one_difference(T a, T b) { return one_rounded(a) - one_rounded(b); }
#else
INLINE f32 one_sum(f32 a, f32 b) { return __fadd_rn(a, b); }
INLINE f64 one_sum(f64 a, f64 b) { return __dadd_rn(a, b); }
INLINE f32 one_difference(f32 a, f32 b) { return __fsub_rn(a, b); }
INLINE f64 one_difference(f64 a, f64 b) { return __dsub_rn(a, b); }
#endif

/* Arguments. A kernel declares the bytes of each (SIZES), for the bounds checks of the emulator. */
#ifndef EMULATOR
struct Args { void *at[ARGS]; __device__ void *operator[](int i) const { return at[i]; } };
#define PTR(T) T *
#define ARG(T, i) ((T *)args[i])
#define SIZES(...)
#define SHARED(T, name, n) __shared__ alignas(16) T name[n]
#endif
/* The iterations of a launch that this block runs. */
#define BLOCKS(b) for (i64 b = begin + blockIdx.x; b < end; b += gridDim.x)

#define INF32 __int_as_float(0x7f800000)
#define NAN32 __int_as_float(0x7fc00000)
#define INF64 __longlong_as_double(0x7ff0000000000000LL)
#define NAN64 __longlong_as_double(0x7ff8000000000000LL)

/* 16 bytes that are copied at once, and four elements that are read or written at once. */
struct alignas(16) u128 { u64 low, high; };
template <class T> struct alignas(sizeof(T) > 4 ? 16 : 4 * sizeof(T)) Vec4 { T at[4]; };
#ifndef EMULATOR
template <class T> INLINE Vec4<T> load4(const T *p) { return *(const Vec4<T> *)p; }
template <class T> INLINE void store4(T *p, const Vec4<T> &v) { *(Vec4<T> *)p = v; }
#endif

/* Tensor cores: d += a b of 16x8 and 8x8 elements that a warp holds together, each rounded to ten bits of mantissa
   (mma.m16n8k8 in PTX), or of 16x16 and 16x8 in pairs of 16-bit floats (mma.m16n8k16), and asynchronous copies to shared memory, of four bytes or more; zeros beyond the operand. */
#ifndef EMULATOR
INLINE u32 tf32(f32 x) { u32 r; asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x)); return r; }
INLINE void mma(f32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
INLINE u32 pack_bf16(f32 low, f32 high) { u32 r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low)); return r; }
INLINE u32 pack_f16(f32 low, f32 high) { u32 r; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low)); return r; }
#define MMA_16(T) \
  INLINE void mma_##T(f32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) { \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." #T "." #T ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])); \
  }
MMA_16(bf16) MMA_16(f16)
template <int N, class T> INLINE void async_copy(T *to, const T *from, bool in_bounds) {
  const u32 at = (u32)__cvta_generic_to_shared(to);
  const i32 bytes = in_bounds ? N * sizeof(T) : 0;
  if constexpr (N * sizeof(T) == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(at), "l"(from), "r"(bytes) : "memory");
  else if constexpr (N * sizeof(T) == 4) asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" :: "r"(at), "l"(from), "r"(bytes) : "memory");
  else *to = in_bounds ? *from : T(0);
}
/* Four matrices of 8x8 16-bit floats in shared memory, each lane's pointer at a row of eight: a lane gets two neighbours
   of a row of each, or of a column, as mma takes them (ldmatrix in PTX). */
#define LDMATRIX_X4(name, how) \
  template <class T> INLINE void name(u32 &a, u32 &b, u32 &c, u32 &d, const T *row) { \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" how ".shared.b16 {%0, %1, %2, %3}, [%4];" \
      : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"((u32)__cvta_generic_to_shared(row)) : "memory"); \
  }
LDMATRIX_X4(ldmatrix_x4, "") LDMATRIX_X4(ldmatrix_x4_trans, ".trans")
INLINE void async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> INLINE void async_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(LEFT) : "memory"); }
#endif

/* The scalar interface that functions.c uses. */
#define LANES 1
typedef f32 vf; typedef i32 vi; typedef u32 vu; typedef bool mask;
#define SPLAT(x) ((f32)(x))
#define BITS(x) __float_as_int(x)
#define FLOAT(bits) __int_as_float(bits)
#define TO_INT(x) ((i32)(x))
#define TO_FLOAT(i) ((f32)(i))
#define LANE(v, i) (v)
#define ANY(m) (m)
typedef f32 vpart; typedef f64 vd; typedef u64 vlu;
#define PARTS 1
#define PART(v, i) (v)
#define WITH_PART(v, i, p) (p)
#define TO_F64(x) ((f64)(x))
#define FROM_F64(x) ((f32)(x))
#define SPLATD(x) ((f64)(x))
#define LONG_BITS(x) ((u64)__double_as_longlong(x))
#define DOUBLE(bits) __longlong_as_double((i64)(bits))
#define SELECT_F64(m, a, b) ((m) ? (a) : (b))
INLINE f32 pick(bool m, f32 a, f32 b) { return m ? a : b; }
/* The second operand where either is NaN. */
INLINE f32 hwmax(f32 a, f32 b) { return a > b ? a : b; }
INLINE f32 hwmin(f32 a, f32 b) { return a < b ? a : b; }
INLINE f32 vabs(f32 x) { return FLOAT(BITS(x) & 0x7fffffff); }
INLINE f32 vcopysign(f32 x, f32 s) { return FLOAT((BITS(x) & 0x7fffffff) | (BITS(s) & (i32)0x80000000)); }
INLINE f32 vround(f32 x) { return rintf(x); }
INLINE f32 vround_small(f32 x) { return rintf(x); }
INLINE f32 vfloor(f32 x) { return floorf(x); }
INLINE f32 vceil(f32 x) { return ceilf(x); }
INLINE f32 vsqrt(f32 x) { return sqrtf(x); }
INLINE f32 vrecip(f32 x) { return 1.0f / x; }
INLINE i32 vtoint(f32 x) { return (i32)x; }
/* p 2^n for whole n from -150 to 128, 0 where x < low; subnormal results are rounded once. */
INLINE f32 vscale(f32 p, f32 n, f32 x, f32 low) {
  i32 e = (i32)n, h = e >> 1;
  f32 scaled = p * FLOAT((i32)((u32)(h + 127) << 23)) * FLOAT((i32)((u32)(e - h + 127) << 23));
  return x < low ? 0.0f : scaled;
}
/* p 2^n where that is a normal number. */
INLINE f32 vscale_normal(f32 p, f32 n) { return vscale(p, n, 0.0f, -1.0f); }
/* p 2^n / (1 + p 2^n) for whole n from -159 to 58. */
INLINE f32 vshare(f32 p, f32 n) { f32 e = vscale(p, n, 0.0f, -1.0f); return e * vrecip(1.0f + e); }
/* 16-bit floats, as in c/prelude.c. */
INLINE f32 one_widen_bf16(bf16 h) { return __int_as_float((i32)((u32)h << 16)); }
INLINE bf16 one_narrow_bf16(f32 x) {
  u32 u = (u32)__float_as_int(x);
  return x == x ? (u + 0x7fff + ((u >> 16) & 1)) >> 16 : (u >> 16) | 64;
}
#ifndef EMULATOR
INLINE f32 one_widen_f16(f16 h) { f32 x; asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h)); return x; }
INLINE f16 one_narrow_f16(f32 x) { f16 h; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x)); return h; }
#else
INLINE f32 one_widen_f16(f16 h) {
  u32 m = h & 0x7fff, u = m << 13;
  f32 x = m >= 0x7c00 ? __int_as_float((i32)(u | 0x7f800000))
    : m < 0x400 ? (f32)m * 5.9604644775390625e-8f : __int_as_float((i32)(u + (112 << 23)));
  return __int_as_float(__float_as_int(x) | (i32)((u32)(h & 0x8000) << 16));
}
INLINE f16 one_narrow_f16(f32 x) {
  u32 u = (u32)__float_as_int(x) & 0x7fffffff;
  u32 h = u < 0x38800000 ? (u32)__float_as_int(__int_as_float((i32)u) + 0.5f) - 0x3f000000
    : u < 0x477ff000 ? (u - (112 << 23) + 0xfff + ((u >> 13) & 1)) >> 13 : u > 0x7f800000 ? 0x7e00 : 0x7c00;
  return (f16)(h | ((u32)__float_as_int(x) >> 16 & 0x8000));
}
#endif
INLINE f32 one_round_f16(f32 x) { return one_widen_f16(one_narrow_f16(x)); }
INLINE f32 one_round_bf16(f32 x) { return one_widen_bf16(one_narrow_bf16(x)); }

/* Reduction operators; NaN propagates. */
struct Sum { template <class T> static __device__ __forceinline__ T of(T a, T b) { return a + b; } };
struct Prod { template <class T> static __device__ __forceinline__ T of(T a, T b) { return a * b; } };
struct Max { template <class T> static __device__ __forceinline__ T of(T a, T b) { return a > b || a != a ? a : b; } };
struct Min { template <class T> static __device__ __forceinline__ T of(T a, T b) { return a < b || a != a ? a : b; } };
/* Reductions over the lanes of a warp, or the threads of a block; each gets the same bits. */
template <class Op, class T> INLINE T warp_reduce(T v) {
  for (i32 lane = 16; lane > 0; lane /= 2) v = Op::of(v, __shfl_xor_sync(0xffffffffu, v, lane));
  return v;
}
template <class Op, class T> INLINE T block_reduce(T v, PTR(T) parts) {
  v = warp_reduce<Op>(v);
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
  __syncthreads();
  v = parts[threadIdx.x % (THREADS / 32)];
  for (i32 lane = THREADS / 64; lane > 0; lane /= 2) v = Op::of(v, __shfl_xor_sync(0xffffffffu, v, lane));
  return v;
}

#ifndef EMULATOR
/* The kernel: one block runs the iterations that BLOCKS gives it; the result is the largest status of all threads. */
#define ENTRY \
  extern "C" __global__ void __launch_bounds__(THREADS) kernel(const Args args, const i64 end, i32 *status) { \
    const i32 s = body(args, 0, end); \
    if (s) atomicMax(status, s); \
  }
#endif
