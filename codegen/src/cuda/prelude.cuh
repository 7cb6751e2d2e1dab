/* Head of every kernel for GPUs: types, accesses, mathematical functions with the values of those of native/prelude.c.
   NVRTC and, behind shim.h, the machine's C++ compiler take the same text; it needs no header and no library. */
typedef signed char i8; typedef short i16; typedef int i32; typedef long long i64;
typedef unsigned char u8; typedef unsigned short u16; typedef unsigned int u32; typedef unsigned long long u64;
typedef float f32; typedef double f64; typedef u8 b8;
typedef u16 f16; typedef u16 bf16; /* in memory; values are f32 */
#define INLINE static __device__ __forceinline__
/* Threads of a block, in warps of 32. */
#define THREADS 256

/* Arguments. A kernel says how many bytes each has (SIZES), for the shim that checks accesses. */
#ifndef SHIM
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

/* Functions of extents that are not known before the run; divisors are positive. */
INLINE i64 dim_floordiv(i64 a, i64 b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }
INLINE i64 dim_ceildiv(i64 a, i64 b) { return a > 0 ? (a + b - 1) / b : -(-a / b); }
INLINE i64 dim_mod(i64 a, i64 b) { return a - dim_floordiv(a, b) * b; }
INLINE i64 dim_max(i64 a, i64 b) { return a > b ? a : b; }
INLINE i64 dim_min(i64 a, i64 b) { return a < b ? a : b; }

/* 16 bytes that move together, and four elements that are read or written at once. */
struct alignas(16) u128 { u64 low, high; };
template <class T> struct alignas(sizeof(T) > 4 ? 16 : 4 * sizeof(T)) Four { T at[4]; };
#ifndef SHIM
template <class T> INLINE Four<T> load4(const T *p) { return *(const Four<T> *)p; }
template <class T> INLINE void store4(T *p, const Four<T> &v) { *(Four<T> *)p = v; }
#endif

/* Tensor cores: d += a b of 16x8 and 8x8 elements that a warp holds together, each rounded to ten bits of mantissa
   (mma.m16n8k8 in PTX), or of 16x16 and 16x8 in pairs of 16-bit floats (mma.m16n8k16), and copies to shared memory that a thread does not wait for, if they are of four bytes or more; zeros where there is nothing. */
#ifndef SHIM
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
template <int N, class T> INLINE void async_copy(T *to, const T *from, bool there) {
  const u32 at = (u32)__cvta_generic_to_shared(to);
  const i32 bytes = there ? N * sizeof(T) : 0;
  if constexpr (N * sizeof(T) == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(at), "l"(from), "r"(bytes) : "memory");
  else if constexpr (N * sizeof(T) == 4) asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" :: "r"(at), "l"(from), "r"(bytes) : "memory");
  else *to = there ? *from : T(0);
}
/* Four matrices of 8x8 16-bit floats in shared memory, each lane's pointer at a row of eight: a lane gets two neighbours
   of a row of each, or of a column, as mma takes them (ldmatrix in PTX). */
#define MATRICES(name, how) \
  template <class T> INLINE void name(u32 &a, u32 &b, u32 &c, u32 &d, const T *row) { \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" how ".shared.b16 {%0, %1, %2, %3}, [%4];" \
      : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"((u32)__cvta_generic_to_shared(row)) : "memory"); \
  }
MATRICES(matrices, "") MATRICES(matrices_turned, ".trans")
INLINE void async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> INLINE void async_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(LEFT) : "memory"); }
#endif

/* The second operand where either is NaN. */
INLINE f32 hwmax(f32 a, f32 b) { return a > b ? a : b; }
INLINE f32 hwmin(f32 a, f32 b) { return a < b ? a : b; }
INLINE f32 magnitude(f32 x) { return __int_as_float(__float_as_int(x) & 0x7fffffff); }
INLINE f32 with_sign(f32 x, f32 s) {
  return __int_as_float((__float_as_int(x) & 0x7fffffff) | (__float_as_int(s) & (i32)0x80000000));
}
/* 16-bit floats, as in native/prelude.c. */
INLINE f32 one_widen_bf16(bf16 h) { return __int_as_float((i32)((u32)h << 16)); }
INLINE bf16 one_narrow_bf16(f32 x) {
  u32 u = (u32)__float_as_int(x);
  return x == x ? (u + 0x7fff + ((u >> 16) & 1)) >> 16 : (u >> 16) | 64;
}
#ifndef SHIM
INLINE f32 one_widen_f16(f16 h) { f32 x; asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h)); return x; }
INLINE f16 one_narrow_f16(f32 x) { f16 h; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x)); return h; }
#else
INLINE f32 one_widen_f16(f16 h) {
  u32 u = (u32)(h & 0x7fff) << 13;
  f32 x = u >= 0x7c00u << 13 ? __int_as_float((i32)(u | 0x7f800000)) : __int_as_float((i32)u) * 5.192296858534828e33f;
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
INLINE f32 one_round(f32 x) { return rintf(x); }
INLINE f32 one_floor(f32 x) { return floorf(x); }
INLINE f32 one_ceil(f32 x) { return ceilf(x); }
INLINE f32 one_sqrt(f32 x) { return sqrtf(x); }
/* p 2^n for whole n from -150 to 128; what is below the smallest normal number rounds once. */
INLINE f32 scale(f32 p, f32 n) {
  i32 e = (i32)n, h = e >> 1;
  return p * __int_as_float((i32)((u32)(h + 127) << 23)) * __int_as_float((i32)((u32)(e - h + 127) << 23));
}
/* The sources of the constants are named in native/prelude.c. */
INLINE f32 one_exp(f32 x) {
  f32 y = hwmin(89.0f, hwmax(-104.0f, x));
  f32 n = rintf(y * 1.44269504f);
  f32 r = (y - n * 0.693359375f) - n * -2.12194440e-4f;
  f32 p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  return x != x ? x : scale(p, n);
}
INLINE f32 one_log(f32 x) {
  bool tiny = x < 1.17549435e-38f;
  i32 bits = __float_as_int(tiny ? x * 8388608.0f : x);
  i32 e = (bits >> 23) - 126;
  f32 m = __int_as_float((bits & 0x007fffff) | 0x3f000000);
  bool low = m < 0.707106781f;
  f32 ef = (f32)e - (low ? 1.0f : 0.0f) - (tiny ? 23.0f : 0.0f);
  m = m + (low ? m : 0.0f) - 1.0f;
  f32 z = m * m;
  f32 p = 7.0376836292e-2f;
  p = p * m + -1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m + -1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m + -1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m + -2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  f32 y = p * m * z + ef * -2.12194440e-4f - 0.5f * z;
  f32 r = m + y + ef * 0.693359375f;
  if (x == INF32) r = INF32;
  if (x == 0.0f) r = -INF32;
  return x < 0.0f || x != x ? NAN32 : r;
}
INLINE f32 one_sigmoid(f32 x) { f32 e = one_exp(hwmin(40.0f, x)); return e / (1.0f + e); }
INLINE f32 one_tanh(f32 x) {
  f32 a = magnitude(x), z = x * x;
  f32 p = -5.70498872745e-3f;
  p = p * z + 2.06390887954e-2f;
  p = p * z + -5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z + -3.33332819422e-1f;
  p = p * z * x + x;
  f32 e = one_exp(hwmin(40.0f, a + a));
  return a >= 0.625f ? with_sign(1.0f - 2.0f / (e + 1.0f), x) : p;
}
INLINE f32 one_erf(f32 x) {
  f32 y = hwmin(3.8325068f, hwmax(-3.8325068f, x)), z = y * y;
  f32 p = -2.72614225801306e-10f;
  p = p * z + 2.77068142495902e-08f;
  p = p * z + -2.10102402082508e-06f;
  p = p * z + -5.69250639462346e-05f;
  p = p * z + -7.34990630326855e-04f;
  p = p * z + -2.95459980854025e-03f;
  p = p * z + -1.60960333262415e-02f;
  f32 q = -1.45660718464996e-05f;
  q = q * z + -2.13374055278905e-04f;
  q = q * z + -1.68282697438203e-03f;
  q = q * z + -7.37332916720468e-03f;
  q = q * z + -1.42647390514189e-02f;
  return magnitude(x) > 3.9192059f ? with_sign(1.0f, x) : y * (p / q);
}
/* The quarter turns in a number above 4, and what is left of it: its bits times those of 2/pi that matter (Payne and Hanek). */
INLINE f32 left_of_turns(f32 x, i32 *quarters) {
  const u32 two_over_pi[] = {0, 0x28be60db, 0x9391054a, 0x7f09d5f4, 0x7d4d3770, 0x36d8a566, 0x4f10e410, 0x7f9458ea};
  u32 bits = (u32)__float_as_int(x);
  u32 m = (bits << 8) | 0x80000000, e = ((bits >> 23) & 0xff) - 126, i = e >> 5;
  u32 high = two_over_pi[i], mid = two_over_pi[i + 1], low = two_over_pi[i + 2];
  e &= 31;
  if (e != 0) {
    high = (high << e) | (mid >> (32 - e));
    mid = (mid << e) | (low >> (32 - e));
    low = (low << e) | (two_over_pi[i + 3] >> (32 - e));
  }
  u64 turns = ((u64)(m * high) << 32) + (u64)m * mid + (((u64)m * low) >> 32);
  i64 part = (i64)(turns << 2) >> 2;
  i32 q = (i32)((turns - (u64)part) >> 62);
  f32 r = (f32)((f64)part * 3.4061215800304694e-19);
  *quarters = (bits >> 31) ? -q : q;
  return (bits >> 31) ? -r : r;
}
INLINE f32 sincos(f32 x, i32 quarter) {
  if (!(magnitude(x) < INF32)) return NAN32;
  f32 k = rintf(x * 0.636619772f);
  f32 r = ((x - k * 1.5703125f) - k * 4.837512969970703125e-4f) - k * 7.54978995489188216e-8f;
  i32 q = (i32)k;
  if (magnitude(x) > 8192.0f) r = left_of_turns(x, &q);
  q += quarter;
  f32 z = r * r;
  f32 s = ((-1.9515295891e-4f * z + 8.3321608736e-3f) * z + -1.6666654611e-1f) * z * r + r;
  f32 c = ((2.443315711809948e-5f * z + -1.388731625493765e-3f) * z + 4.166664568298827e-2f) * z * z - 0.5f * z + 1.0f;
  f32 v = (q & 1) == 0 ? s : c;
  return (q & 2) != 0 ? -v : v;
}
INLINE f32 one_sin(f32 x) { return sincos(x, 0); }
INLINE f32 one_cos(f32 x) { return sincos(x, 1); }
INLINE f32 one_tan(f32 x) { return one_sin(x) / one_cos(x); }
INLINE f32 one_asin(f32 x) {
  f32 a = magnitude(x);
  bool big = a > 0.5f;
  f32 z = big ? 0.5f * (1.0f - a) : a * a, s = big ? one_sqrt(z) : a;
  f32 p = 4.2163199048e-2f;
  p = p * z + 2.4181311049e-2f;
  p = p * z + 4.5470025998e-2f;
  p = p * z + 7.4953002686e-2f;
  p = p * z + 1.6666752422e-1f;
  p = p * z * s + s;
  return with_sign(big ? 1.5707963268f - (p + p) : p, x);
}
INLINE f32 one_acos(f32 x) {
  f32 a = magnitude(x);
  if (a <= 0.5f) return 1.5707963268f - one_asin(x);
  f32 s = 2.0f * one_asin(one_sqrt(0.5f * (1.0f - a)));
  return x < 0.0f ? 3.1415926536f - s : s;
}
INLINE f32 one_atan(f32 x) {
  f32 a = magnitude(x);
  bool far = a > 2.414213562373095f, mid = a > 0.4142135623730950f;
  f32 t = far ? -1.0f / a : mid ? (a - 1.0f) / (a + 1.0f) : a;
  f32 z = t * t;
  f32 p = 8.05374449538e-2f;
  p = p * z + -1.38776856032e-1f;
  p = p * z + 1.99777106478e-1f;
  p = p * z + -3.33329491539e-1f;
  return with_sign((far ? 1.5707963268f : mid ? 0.7853981634f : 0.0f) + (p * z * t + t), x);
}
INLINE f32 one_sinh(f32 x) {
  f32 a = magnitude(x), e = one_exp(0.5f * a), z = x * x;
  f32 p = 2.03721912945e-4f;
  p = p * z + 8.33028376239e-3f;
  p = p * z + 1.66667160211e-1f;
  return a > 1.0f ? with_sign(0.5f * e * e - 0.5f / e / e, x) : p * z * x + x;
}
INLINE f32 one_cosh(f32 x) { f32 e = one_exp(0.5f * magnitude(x)); return 0.5f * e * e + 0.5f / e / e; }
INLINE f32 one_asinh(f32 x) {
  f32 a = magnitude(x), z = x * x;
  f32 p = 2.0122003309e-2f;
  p = p * z + -4.2699340972e-2f;
  p = p * z + 7.4847586088e-2f;
  p = p * z + -1.6666288134e-1f;
  if (a < 0.5f) return p * z * x + x;
  return with_sign(a > 1500.0f ? one_log(a) + 0.69314718056f : one_log(a + one_sqrt(z + 1.0f)), x);
}
INLINE f32 one_acosh(f32 x) {
  f32 z = x - 1.0f;
  f32 p = 1.7596881071e-3f;
  p = p * z + -7.5272886713e-3f;
  p = p * z + 2.6454905019e-2f;
  p = p * z + -1.1784741703e-1f;
  p = p * z + 1.4142135263e0f;
  if (z < 0.5f) return p * one_sqrt(z);
  return x > 1500.0f ? one_log(x) + 0.69314718056f : one_log(x + one_sqrt(z * (x + 1.0f)));
}
INLINE f32 one_atanh(f32 x) {
  f32 a = magnitude(x), z = x * x;
  f32 p = 1.81740078349e-1f;
  p = p * z + 8.24370301058e-2f;
  p = p * z + 1.46691431730e-1f;
  p = p * z + 1.99782164500e-1f;
  p = p * z + 3.33337300303e-1f;
  return a < 0.5f ? p * z * x + x : with_sign(0.5f * one_log((1.0f + a) / (1.0f - a)), x);
}
INLINE f64 log2_f64(f64 a) {
  if (a == 0.0) return -INF64;
  if (!(a < INF64)) return a;
  u64 bits = (u64)__double_as_longlong(a), k = (bits - 0x3fe6a09e667f3bcdULL) & 0xfff0000000000000ULL;
  f64 m = __longlong_as_double((i64)(bits - k)), e = (f64)((i64)k >> 52);
  f64 s = (m - 1.0) / (m + 1.0), z = s * s;
  f64 p = 0.19235933878519512;
  p = p * z + 0.2219530832136867;
  p = p * z + 0.2623081892525388;
  p = p * z + 0.3205988979753252;
  p = p * z + 0.41219858311113244;
  p = p * z + 0.5770780163555853;
  p = p * z + 0.9617966939259757;
  p = p * z + 2.8853900817779268;
  return p * s + e;
}
INLINE f64 exp2_f64(f64 x) {
  x = x > 200.0 ? 200.0 : x < -200.0 ? -200.0 : x;
  f64 t = x + 6755399441055744.0, r = x - (t - 6755399441055744.0);
  f64 p = 1.0178086009239696e-07;
  p = p * r + 1.3215486790144305e-06;
  p = p * r + 1.5252733804059838e-05;
  p = p * r + 0.00015403530393381606;
  p = p * r + 0.0013333558146428441;
  p = p * r + 0.009618129107628477;
  p = p * r + 0.055504108664821576;
  p = p * r + 0.2402265069591007;
  p = p * r + 0.6931471805599453;
  p = p * r + 1.0;
  return p * __longlong_as_double((i64)(((u64)__double_as_longlong(t) << 52) + 0x3ff0000000000000ULL));
}
INLINE f32 one_pow(f32 x, f32 y) {
  f32 ax = magnitude(x), ay = magnitude(y);
  if (x == 1.0f || y == 0.0f || (ax == 1.0f && ay == INF32)) return 1.0f;
  bool whole = ay >= 8388608.0f || one_round(y) == y, odd = whole && ay < 16777216.0f && ((i32)y & 1) != 0;
  if (x < 0.0f && ax < INF32 && !whole) return NAN32;
  f32 r = (f32)exp2_f64((f64)y * log2_f64((f64)ax));
  return odd ? with_sign(r, x) : r;
}
/* Floats in the order of their bits, in which -0 is before 0; behind all of them NaN, whose sign says nothing. */
INLINE i64 order32(f32 e) { i32 i = __float_as_int(e); return e != e ? 0x7fffffff : i ^ ((i >> 31) & 0x7fffffff); }
INLINE i64 order64(f64 e) { i64 i = __double_as_longlong(e); return e != e ? 0x7fffffffffffffffLL : i ^ ((i >> 63) & 0x7fffffffffffffffLL); }

/* How elements combine; NaN wins. */
struct Sum { template <class T> static __device__ __forceinline__ T of(T a, T b) { return a + b; } };
struct Prod { template <class T> static __device__ __forceinline__ T of(T a, T b) { return a * b; } };
struct Max { template <class T> static __device__ __forceinline__ T of(T a, T b) { return a > b || a != a ? a : b; } };
struct Min { template <class T> static __device__ __forceinline__ T of(T a, T b) { return a < b || a != a ? a : b; } };
/* What all lanes of a warp, or all threads of a block, have together; every one of them gets the same bits. */
template <class Op, class T> INLINE T across_warp(T v) {
  for (i32 lane = 16; lane > 0; lane /= 2) v = Op::of(v, __shfl_xor_sync(0xffffffffu, v, lane));
  return v;
}
template <class Op, class T> INLINE T across_block(T v, PTR(T) parts) {
  v = across_warp<Op>(v);
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
  __syncthreads();
  v = parts[threadIdx.x % (THREADS / 32)];
  for (i32 lane = THREADS / 64; lane > 0; lane /= 2) v = Op::of(v, __shfl_xor_sync(0xffffffffu, v, lane));
  return v;
}

#ifndef SHIM
/* The kernel: one block runs the iterations that BLOCKS gives it; the largest status of all threads is kept. */
#define ENTRY \
  extern "C" __global__ void __launch_bounds__(THREADS) kernel(const Args args, const i64 end, i32 *status) { \
    const i32 s = body(args, 0, end); \
    if (s) atomicMax(status, s); \
  }
#endif
