/* Vectors of LANES floats in GNU C. Included at the head of every kernel; needs no header and no library. */
typedef signed char i8; typedef short i16; typedef int i32; typedef long long i64;
typedef unsigned char u8; typedef unsigned short u16; typedef unsigned int u32; typedef unsigned long long u64;
typedef float f32; typedef double f64; typedef u8 b8;
typedef u16 f16; typedef u16 bf16; /* in memory; values are f32 */
typedef float vf __attribute__((vector_size(LANES * 4)));
typedef int vi __attribute__((vector_size(LANES * 4)));
typedef u32 vu __attribute__((vector_size(LANES * 4)));
typedef i16 vh __attribute__((vector_size(LANES * 4)));
typedef float vfu __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
#define INLINE static inline __attribute__((always_inline))
/* Arguments, as kernels for GPUs see them too (cuda/prelude.cuh). */
#define PTR(T) T *
#define ARG(T, i) ((T *)args[i])
#define INF32 __builtin_inff()
#define NAN32 __builtin_nanf("")
#define INF64 __builtin_inf()
#define NAN64 __builtin_nan("")
/* All lanes alike. A list of lanes rather than 0 + x: the sum would keep the sign of zero and cost an addition. */
#if LANES == 16
INLINE vf splat(f32 x) { return (vf){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }
#elif LANES == 8
INLINE vf splat(f32 x) { return (vf){x, x, x, x, x, x, x, x}; }
#else
INLINE vf splat(f32 x) { return (vf){x, x, x, x}; }
#endif
#define SPLAT(x) splat((f32)(x))
#define SPLATI(x) ((vi){0} + (i32)(x))

/* Functions of extents that are not known before the run; divisors are positive. */
INLINE i64 dim_floordiv(i64 a, i64 b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }
INLINE i64 dim_ceildiv(i64 a, i64 b) { return a > 0 ? (a + b - 1) / b : -(-a / b); }
INLINE i64 dim_mod(i64 a, i64 b) { return a - dim_floordiv(a, b) * b; }
INLINE i64 dim_max(i64 a, i64 b) { return a > b ? a : b; }
INLINE i64 dim_min(i64 a, i64 b) { return a < b ? a : b; }

INLINE vf load(const f32 *p) { return *(const vfu *)p; }
INLINE void store(f32 *p, vf v) { *(vfu *)p = v; }
#if LANES == 16 && defined(__AVX512F__) && !defined(__clang__)
INLINE vf load_part(const f32 *p, i64 n) { return (vf)__builtin_ia32_loadups512_mask(p, (vf){0}, (1 << n) - 1); }
#else
INLINE vf load_part(const f32 *p, i64 n) { vf v = {0}; for (i64 i = 0; i < n; i++) v[i] = p[i]; return v; }
#endif
#if LANES == 16 && defined(__AVX512F__) && !defined(__clang__)
INLINE void store_part(f32 *p, vf v, i64 n) { __builtin_ia32_storeups512_mask(p, v, (1 << n) - 1); }
#else
INLINE void store_part(f32 *p, vf v, i64 n) { for (i64 i = 0; i < n; i++) p[i] = v[i]; }
#endif
INLINE vf load_step(const f32 *p, i64 step, i64 n) { vf v = {0}; for (i64 i = 0; i < n; i++) v[i] = p[i * step]; return v; }
INLINE vi load_mask(const b8 *p, i64 step, i64 n) { vi v = {0}; for (i64 i = 0; i < n; i++) v[i] = -(i32)p[i * step]; return v; }
INLINE vi head_mask(i32 n) { vi v; for (i32 i = 0; i < LANES; i++) v[i] = i < n ? -1 : 0; return v; }
/* The lanes of a, then of b, with these numbers. */
#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (vi){__VA_ARGS__})
#endif
INLINE vf pick(vi m, vf a, vf b) { return (vf)(((vi)a & m) | ((vi)b & ~m)); }

#if LANES == 16 && defined(__AVX512F__) && !defined(__clang__)
INLINE vi imax(vi a, vi b) { return (vi)__builtin_ia32_pmaxsd512_mask(a, b, a, -1); }
INLINE vi imin(vi a, vi b) { return (vi)__builtin_ia32_pminsd512_mask(a, b, a, -1); }
#else
INLINE vi imax(vi a, vi b) { vi m = a > b; return (a & m) | (b & ~m); }
INLINE vi imin(vi a, vi b) { vi m = a < b; return (a & m) | (b & ~m); }
#endif
INLINE vi ipick(vi m, vi a, vi b) { return (a & m) | (b & ~m); }

/* Integers of up to 32 bits, widened to the lanes of a vi; stores wrap. Compilers widen bytes in many steps, hence the
   instructions by name. */
#if defined(__AVX2__) && LANES >= 8
#define WIDEN(T, INSN) vi v; __asm__(INSN " %1, %0" : "=v"(v) : "m"(*(const any_##T *)p)); return v;
#else
#define WIDEN(T, INSN) return __builtin_convertvector(*(const any_##T *)p, vi);
#endif
#if LANES == 16 && defined(__AVX512BW__)
#define WIDEN_PART(T, INSN) \
  vi v; __asm__(INSN " %1, %0%{%2%}%{z%}" : "=v"(v) : "m"(*(const any_##T *)p), "Yk"((u16)((1 << n) - 1))); return v;
#else
#define WIDEN_PART(T, INSN) vi v = {0}; for (i64 i = 0; i < n; i++) v[i] = p[i]; return v;
#endif
#if LANES == 16 && defined(__AVX512BW__) && !defined(__clang__)
#define STORE_PART(T) \
  if (sizeof(T) == 1) __builtin_ia32_pmovdb512mem_mask((void *)p, v, (1 << n) - 1); \
  else if (sizeof(T) == 2) __builtin_ia32_pmovdw512mem_mask((void *)p, v, (1 << n) - 1); \
  else __builtin_ia32_storedqusi512_mask((void *)p, v, (1 << n) - 1);
#else
#define STORE_PART(T) for (i64 i = 0; i < n; i++) p[i] = (T)v[i];
#endif
#define NARROW(T, INSN) \
  typedef T vec_##T __attribute__((vector_size(LANES * sizeof(T)))); \
  typedef T any_##T __attribute__((vector_size(LANES * sizeof(T)), aligned(1), may_alias)); \
  INLINE vi load_##T(const T *p) { WIDEN(T, INSN) } \
  INLINE vi load_part_##T(const T *p, i64 n) { WIDEN_PART(T, INSN) } \
  INLINE vi load_step_##T(const T *p, i64 step, i64 n) { vi v = {0}; for (i64 i = 0; i < n; i++) v[i] = p[i * step]; return v; } \
  INLINE void store_##T(T *p, vi v) { *(any_##T *)p = __builtin_convertvector(v, vec_##T); } \
  INLINE void store_part_##T(T *p, vi v, i64 n) { STORE_PART(T) }
NARROW(i8, "vpmovsxbd") NARROW(u8, "vpmovzxbd") NARROW(i16, "vpmovsxwd") NARROW(u16, "vpmovzxwd")
#undef WIDEN
#define WIDEN(T, INSN) return *(const any_##T *)p;
NARROW(i32, "vmovdqu32")

/* 16-bit floats, as the low halves of lanes and as f32. f16 by instructions where there are some, else in integers: the
   exponent moves by a product, which also makes normal numbers of subnormal ones; back, a sum that has no room for more
   rounds these, and a carry the others. bf16 is the upper half of f32. */
INLINE vf widen_bf16(vi h) { return (vf)(h << 16); }
INLINE vi narrow_bf16(vf x) {
  vu u = (vu)x;
  return ipick(x == x, (vi)((u + 0x7fff + ((u >> 16) & 1)) >> 16), (vi)(u >> 16) | 64);
}
#if LANES == 16 && defined(__AVX512BW__)
typedef u16 halves __attribute__((vector_size(LANES * 2)));
INLINE vf widen_halves(halves h) { vf v; __asm__("vcvtph2ps %1, %0" : "=v"(v) : "v"(h)); return v; }
INLINE halves narrow_halves(vf x) { halves h; __asm__("vcvtps2ph $0, %1, %0" : "=v"(h) : "v"(x)); return h; }
#elif LANES == 8 && defined(__F16C__)
typedef u16 halves __attribute__((vector_size(LANES * 2)));
INLINE vf widen_halves(halves h) { vf v; __asm__("vcvtph2ps %1, %0" : "=x"(v) : "x"(h)); return v; }
INLINE halves narrow_halves(vf x) { halves h; __asm__("vcvtps2ph $0, %1, %0" : "=x"(h) : "x"(x)); return h; }
#else
INLINE vf widen_f16(vi h) {
  vi u = (h & 0x7fff) << 13;
  vi f = ipick(u >= (0x7c00 << 13), u | 0x7f800000, (vi)((vf)u * SPLAT(5.192296858534828e33f)));
  return (vf)(f | (h & 0x8000) << 16);
}
INLINE vi narrow_f16(vf x) {
  vi u = (vi)x & 0x7fffffff;
  vi small = (vi)((vf)u + SPLAT(0.5f)) - 0x3f000000;
  vi usual = (u - (112 << 23) + 0xfff + ((u >> 13) & 1)) >> 13;
  vi large = ipick(u > 0x7f800000, SPLATI(0x7e00), SPLATI(0x7c00));
  return ipick(u < 0x38800000, small, ipick(u < 0x477ff000, usual, large)) | (((vi)x >> 16) & 0x8000);
}
INLINE vf round_f16(vf x) { return widen_f16(narrow_f16(x)); }
INLINE vf load_f16(const f16 *p) { return widen_f16(load_u16(p)); }
INLINE void store_f16(f16 *p, vf v) { store_u16(p, narrow_f16(v)); }
#define HALVES
#endif
#ifndef HALVES
INLINE vf widen_f16(vi h) { return widen_halves(__builtin_convertvector(h, halves)); }
INLINE vi narrow_f16(vf x) { return __builtin_convertvector(narrow_halves(x), vi); }
INLINE vf round_f16(vf x) { return widen_halves(narrow_halves(x)); }
INLINE vf load_f16(const f16 *p) { return widen_halves((halves)*(const any_u16 *)p); }
INLINE void store_f16(f16 *p, vf v) { *(any_u16 *)p = (any_u16)narrow_halves(v); }
#endif
INLINE vf round_bf16(vf x) { return widen_bf16(narrow_bf16(x)); }
INLINE vf load_bf16(const bf16 *p) { return widen_bf16(load_u16(p)); }
INLINE void store_bf16(bf16 *p, vf v) { store_u16(p, narrow_bf16(v)); }
#define HALF(T) \
  INLINE vf load_part_##T(const T *p, i64 n) { return widen_##T(load_part_u16(p, n)); } \
  INLINE vf load_step_##T(const T *p, i64 step, i64 n) { return widen_##T(load_step_u16(p, step, n)); } \
  INLINE void store_part_##T(T *p, vf v, i64 n) { store_part_u16(p, narrow_##T(v), n); } \
  INLINE f32 one_widen_##T(T h) { return widen_##T(SPLATI(h))[0]; } \
  INLINE T one_narrow_##T(f32 x) { return (T)narrow_##T(SPLAT(x))[0]; } \
  INLINE f32 one_round_##T(f32 x) { return round_##T(SPLAT(x))[0]; }
HALF(f16) HALF(bf16)

/* n bytes from one place to another that does not overlap it. */
INLINE void move(void *to, const void *from, i64 n) {
  u8 *t = to; const u8 *f = from; i64 i = 0;
  for (; i + (i64)sizeof(vi) <= n; i += sizeof(vi)) *(any_i32 *)(t + i) = *(const any_i32 *)(f + i);
  for (; i < n; i++) t[i] = f[i];
}

/* Four bytes, and what there is of fewer. */
typedef i32 word_any __attribute__((aligned(1), may_alias));
INLINE i32 word(const void *p) { return *(const word_any *)p; }
INLINE i32 word_part(const u8 *p, i64 n) { u32 w = 0; for (i64 i = 0; i < n; i++) w |= (u32)p[i] << (8 * i); return (i32)w; }

/* c + a0 b0 + a1 b1 in each lane, of signed 16-bit halves; the sum of two products fits 32 bits unless all are -2^15. */
INLINE vi dot2(vi c, vi a, vi b) {
#if LANES == 16 && defined(__AVX512VNNI__)
  __asm__("vpdpwssd %2, %1, %0" : "+v"(c) : "v"(a), "v"(b)); return c;
#elif LANES == 16 && defined(__AVX512BW__) && !defined(__clang__)
  return c + (vi)__builtin_ia32_pmaddwd512_mask((vh)a, (vh)b, (vi){0}, -1);
#elif LANES == 8 && defined(__AVX2__)
  return c + (vi)__builtin_ia32_pmaddwd256((vh)a, (vh)b);
#elif LANES == 4 && defined(__SSE2__)
  return c + (vi)__builtin_ia32_pmaddwd128((vh)a, (vh)b);
#else
  return c + ((a << 16) >> 16) * ((b << 16) >> 16) + (a >> 16) * (b >> 16);
#endif
}
/* c + a0 b0 + a1 b1 + a2 b2 + a3 b3 in each lane, of unsigned bytes of a and signed bytes of b. Exact: the instruction
   that multiplies bytes without VNNI saturates, so bytes are widened to halves, even ones and odd ones. */
INLINE vi dot4(vi c, vi a, vi b) {
#if LANES == 16 && defined(__AVX512VNNI__)
  __asm__("vpdpbusd %2, %1, %0" : "+v"(c) : "v"(a), "v"(b)); return c;
#else
  vi even = dot2(c, a & 0x00ff00ff, (vi)(((vh)b << 8) >> 8));
  return dot2(even, (vi)((vu)a >> 8) & 0x00ff00ff, (vi)((vh)b >> 8));
#endif
}

/* Two rows of bf16, ld apart, of which each lane gets one element of both. */
INLINE vi load_pair(const bf16 *p, i64 ld) { return load_u16(p) | load_u16(p + ld) << 16; }
INLINE vi load_part_pair(const bf16 *p, i64 ld, i64 n) { return load_part_u16(p, n) | load_part_u16(p + ld, n) << 16; }
/* c + a0 b0 + a1 b1 in each lane, of pairs of bf16; what is no normal number counts as 0. GCC finds no good registers for
   an asm statement here. */
#if LANES == 16 && defined(__AVX512BF16__)
#ifdef __clang__
INLINE vf dot2_bf16(vf c, vi a, vi b) { __asm__("vdpbf16ps %2, %1, %0" : "+v"(c) : "v"(a), "v"(b)); return c; }
#else
#if __GNUC__ >= 13
typedef __bf16 vb __attribute__((vector_size(LANES * 4)));
#else
typedef vh vb;
#endif
INLINE vf dot2_bf16(vf c, vi a, vi b) { return __builtin_ia32_dpbf16ps_v16sf(c, (vb)a, (vb)b); }
#endif
#endif

/* Hardware maximum and minimum: the second operand where either is NaN. */
#if LANES == 16 && defined(__AVX512F__) && !defined(__clang__)
INLINE vf hwmax(vf a, vf b) { return (vf)__builtin_ia32_maxps512_mask(a, b, a, -1, 4); }
INLINE vf hwmin(vf a, vf b) { return (vf)__builtin_ia32_minps512_mask(a, b, a, -1, 4); }
INLINE vf vsqrt(vf a) { return (vf)__builtin_ia32_sqrtps512_mask(a, a, -1, 4); }
#elif LANES == 8 && defined(__AVX__)
INLINE vf hwmax(vf a, vf b) { return __builtin_ia32_maxps256(a, b); }
INLINE vf hwmin(vf a, vf b) { return __builtin_ia32_minps256(a, b); }
INLINE vf vsqrt(vf a) { return __builtin_ia32_sqrtps256(a); }
#else
INLINE vf hwmax(vf a, vf b) { return pick(a > b, a, b); }
INLINE vf hwmin(vf a, vf b) { return pick(a < b, a, b); }
INLINE vf vsqrt(vf a) { for (int i = 0; i < LANES; i++) a[i] = __builtin_sqrtf(a[i]); return a; }
#endif
/* NaN where either operand is NaN. */
INLINE vf vmax(vf a, vf b) { return pick(a != a, a, hwmax(a, b)); }
INLINE vf vmin(vf a, vf b) { return pick(a != a, a, hwmin(a, b)); }
/* c is a number, not NaN. */
INLINE vf vmaxc(f32 c, vf x) { return hwmax(SPLAT(c), x); }
INLINE vf vminc(f32 c, vf x) { return hwmin(SPLAT(c), x); }
INLINE vf vabs(vf x) { return (vf)((vi)x & 0x7fffffff); }
INLINE vf vcopysign(vf x, vf s) { return (vf)(((vi)x & 0x7fffffff) | ((vi)s & (i32)0x80000000)); }
/* Round to nearest even for |x| < 2^22: adding 1.5 * 2^23 pushes the fraction out. */
INLINE vf vround_small(vf x) { vf m = SPLAT(12582912.0f); return (x + m) - m; }
#if LANES == 16 && defined(__AVX512F__) && !defined(__clang__)
INLINE vf vround(vf x) { return (vf)__builtin_ia32_rndscaleps_mask(x, 8, x, -1, 4); }
#elif LANES == 8 && defined(__AVX__)
INLINE vf vround(vf x) { return __builtin_ia32_roundps256(x, 8); }
#else
INLINE vf vround(vf x) { vf r = vround_small(x); return pick(vabs(x) < SPLAT(4194304.0f), vcopysign(r, x), x); }
#endif
INLINE vf vfloor(vf x) { vf r = vround(x); return vcopysign(r - pick(r > x, SPLAT(1), SPLAT(0)), x) ; }
INLINE vf vceil(vf x) { vf r = vround(x); return vcopysign(r + pick(r < x, SPLAT(1), SPLAT(0)), x); }

/* Towards zero into the range of a narrower type; NaN gives lo. */
INLINE vi vnarrow(vf x, f32 lo, f32 hi) { return __builtin_convertvector(hwmin(SPLAT(hi), hwmax(x, SPLAT(lo))), vi); }
/* Towards zero; what is out of range saturates, NaN gives 0. */
INLINE vi vtoint(vf x) {
  vi v = __builtin_convertvector(hwmin(SPLAT(2147483520.0f), hwmax(x, SPLAT(-2147483648.0f))), vi);
  return ipick(x >= SPLAT(2147483648.0f), SPLATI(0x7fffffff), v) & (x == x);
}

/* x / c for a number c with reciprocal r. With fused additions the remainder is exact and the corrected product is the
   rounded quotient (Markstein); without them, and for what is not finite, the division itself. */
INLINE vf vquotient(vf x, f32 c, f32 r) {
#ifdef __FMA__
  vf q = x * SPLAT(r);
  return pick((vabs(q) < SPLAT(1e38f)) & (q != SPLAT(0)), q + (x - q * SPLAT(c)) * SPLAT(r), q);
#else
  return x / SPLAT(c);
#endif
}
/* To nearest even into the range of a narrower type; NaN gives lo. */
INLINE vi vround_narrow(vf x, f32 lo, f32 hi) {
  vf y = hwmin(SPLAT(hi), hwmax(x, SPLAT(lo)));
#if LANES == 16 && defined(__AVX512F__) && !defined(__clang__)
  return (vi)__builtin_ia32_cvtps2dq512_mask(y, (vi){0}, -1, 4);
#elif LANES == 8 && defined(__AVX__)
  return (vi)__builtin_ia32_cvtps2dq256(y);
#else
  return __builtin_convertvector(vround(y), vi);
#endif
}

/* 1 / x for normal numbers whose reciprocals are normal, within 1.5 units in the last place: an estimate of 14 bits and
   Newton's step are a third of a division. */
INLINE vf vrecip(vf x) {
#if LANES == 16 && defined(__AVX512F__) && !defined(__clang__)
  vf r = (vf)__builtin_ia32_rcp14ps512_mask(x, x, -1);
  return r + r * (SPLAT(1.0f) - x * r);
#else
  return SPLAT(1.0f) / x;
#endif
}
/* p 2^n for whole n from -150 to 128, 0 where x < low; what is below the smallest normal number rounds once. Lanes that
   are 0 anyway must not get there: such numbers take a hundred cycles. */
INLINE vf vscale(vf p, vf n, vf x, vf low) {
#if LANES == 16 && defined(__AVX512F__) && !defined(__clang__)
  const int not_less = 5;
  return (vf)__builtin_ia32_scalefps512_mask(p, n, (vf){0}, __builtin_ia32_cmpps512_mask(x, low, not_less, -1, 4), 4);
#else
  p = pick(x < low, SPLAT(0), p);
  vi e = __builtin_convertvector(n, vi), h = e >> 1;
  return p * (vf)((h + 127) << 23) * (vf)((e - h + 127) << 23);
#endif
}

/* e^x: x = n ln 2 + r, a degree-6 polynomial (Taylor with the last terms refitted) on |r| <= ln 2 / 2. Constants: Cody
   and Waite's split of ln 2. The limits keep NaN, and e^89 overflows to infinity by itself. */
INLINE vf vexp(vf x) {
  const vf low = SPLAT(-103.9720770839918f);
  vf y = hwmin(SPLAT(89.0f), hwmax(low, x));
  vf n = vround_small(y * SPLAT(1.44269504f));
  vf r = (y - n * SPLAT(0.693359375f)) - n * SPLAT(-2.12194440e-4f);
  vf p = SPLAT(1.9875691500e-4f);
  p = p * r + SPLAT(1.3981999507e-3f);
  p = p * r + SPLAT(8.3334519073e-3f);
  p = p * r + SPLAT(4.1665795894e-2f);
  p = p * r + SPLAT(1.6666665459e-1f);
  p = p * r + SPLAT(5.0000001201e-1f);
  p = p * (r * r) + r + SPLAT(1.0f);
  return vscale(p, n, x, low);
}
/* ln x for x > 0: x = m 2^e with m in [sqrt 1/2, sqrt 2). Source of the polynomial: Cephes logf (Moshier). */
INLINE vf vlog(vf x) {
  vi tiny = x < SPLAT(1.17549435e-38f);
  vf s = pick(tiny, x * SPLAT(8388608.0f), x);
  vi bits = (vi)s;
  vi e = (bits >> 23) - 126;
  vf m = (vf)((bits & 0x007fffff) | 0x3f000000);
  vi low = m < SPLAT(0.707106781f);
  vf ef = __builtin_convertvector(e, vf) - pick(low, SPLAT(1), SPLAT(0)) - pick(tiny, SPLAT(23), SPLAT(0));
  m = m + pick(low, m, SPLAT(0)) - SPLAT(1.0f);
  vf z = m * m;
  vf p = SPLAT(7.0376836292e-2f);
  p = p * m + SPLAT(-1.1514610310e-1f);
  p = p * m + SPLAT(1.1676998740e-1f);
  p = p * m + SPLAT(-1.2420140846e-1f);
  p = p * m + SPLAT(1.4249322787e-1f);
  p = p * m + SPLAT(-1.6668057665e-1f);
  p = p * m + SPLAT(2.0000714765e-1f);
  p = p * m + SPLAT(-2.4999993993e-1f);
  p = p * m + SPLAT(3.3333331174e-1f);
  vf y = p * m * z + ef * SPLAT(-2.12194440e-4f) - SPLAT(0.5f) * z;
  vf r = m + y + ef * SPLAT(0.693359375f);
  vf inf = (vf)SPLATI(0x7f800000), nan = (vf)SPLATI(0x7fc00000);
  r = pick(x == inf, inf, r);
  r = pick(x == SPLAT(0), -inf, r);
  return pick((x < SPLAT(0)) | (x != x), nan, r);
}
/* e^x / (1 + e^x): what is far below zero has its small weight; from 40 on it is 1. */
INLINE vf vsigmoid(vf x) {
  vf e = vexp(hwmin(SPLAT(40.0f), x));
  return e * vrecip(SPLAT(1.0f) + e);
}
/* tanh: an odd polynomial near zero (Cephes tanhf), 1 - 2 / (e^2x + 1) beyond; from 20 on it is 1. */
INLINE vf vtanh(vf x) {
  vf a = vabs(x), z = x * x;
  vf p = SPLAT(-5.70498872745e-3f);
  p = p * z + SPLAT(2.06390887954e-2f);
  p = p * z + SPLAT(-5.37397155531e-2f);
  p = p * z + SPLAT(1.33314422036e-1f);
  p = p * z + SPLAT(-3.33332819422e-1f);
  p = p * z * x + x;
  vf e = vexp(hwmin(SPLAT(40.0f), a + a));
  vf big = vcopysign(SPLAT(1.0f) - SPLAT(2.0f) * vrecip(e + SPLAT(1.0f)), x);
  return pick(a >= SPLAT(0.625f), big, p);
}
/* erf: the rational minimax form that Eigen publishes (measured: within 5.6 units in the last place), 1 from
   where f32 has no number between. */
INLINE vf verf(vf x) {
  vf y = hwmin(SPLAT(3.8325068f), hwmax(SPLAT(-3.8325068f), x)), z = y * y;
  vf p = SPLAT(-2.72614225801306e-10f);
  p = p * z + SPLAT(2.77068142495902e-08f);
  p = p * z + SPLAT(-2.10102402082508e-06f);
  p = p * z + SPLAT(-5.69250639462346e-05f);
  p = p * z + SPLAT(-7.34990630326855e-04f);
  p = p * z + SPLAT(-2.95459980854025e-03f);
  p = p * z + SPLAT(-1.60960333262415e-02f);
  vf q = SPLAT(-1.45660718464996e-05f);
  q = q * z + SPLAT(-2.13374055278905e-04f);
  q = q * z + SPLAT(-1.68282697438203e-03f);
  q = q * z + SPLAT(-7.37332916720468e-03f);
  q = q * z + SPLAT(-1.42647390514189e-02f);
  return pick(vabs(x) > SPLAT(3.9192059f), vcopysign(SPLAT(1.0f), x), y * (p * vrecip(q)));
}
/* The quarter turns in a number above 4, and what is left of it: its bits times those of 2/pi that matter (Payne and Hanek). */
INLINE f32 left_of_turns(f32 x, i32 *quarters) {
  const u32 two_over_pi[] = {0, 0x28be60db, 0x9391054a, 0x7f09d5f4, 0x7d4d3770, 0x36d8a566, 0x4f10e410, 0x7f9458ea};
  union { f32 f; u32 u; } v = {x};
  u32 bits = v.u;
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
/* sin and cos: polynomials of Cephes on what is left of quarter turns: by pi/2 in three parts (Cody and Waite) up to 8192,
   lane by lane beyond. */
INLINE vf vsincos(vf x, i32 quarter) {
  vf k = vround_small(x * SPLAT(0.636619772f));
  vf r = ((x - k * SPLAT(1.5703125f)) - k * SPLAT(4.837512969970703125e-4f)) - k * SPLAT(7.54978995489188216e-8f);
  vi q = __builtin_convertvector(k, vi), far = vabs(x) > SPLAT(8192.0f);
  i32 any = 0;
  for (int i = 0; i < LANES; i++) any |= far[i];
  for (int i = 0; any && i < LANES; i++) {
    i32 turns = q[i];
    if (far[i]) r[i] = left_of_turns(x[i], &turns);
    q[i] = turns;
  }
  q += quarter;
  vf z = r * r;
  vf s = ((SPLAT(-1.9515295891e-4f) * z + SPLAT(8.3321608736e-3f)) * z + SPLAT(-1.6666654611e-1f)) * z * r + r;
  vf c = ((SPLAT(2.443315711809948e-5f) * z + SPLAT(-1.388731625493765e-3f)) * z + SPLAT(4.166664568298827e-2f)) * z * z - SPLAT(0.5f) * z + SPLAT(1.0f);
  vf v = pick((q & 1) == 0, s, c);
  v = (vf)((vi)v ^ ((q & 2) << 30));
  return pick(vabs(x) < (vf)SPLATI(0x7f800000), v, (vf)SPLATI(0x7fc00000));
}
INLINE vf vsin(vf x) { return vsincos(x, 0); }
INLINE vf vcos(vf x) { return vsincos(x, 1); }
/* tan: as sin and cos, of which it is the quotient. */
INLINE vf vtan(vf x) { return vsin(x) / vcos(x); }
/* asin: a polynomial of Cephes (asinf) up to 1/2, from there on pi/2 - 2 asin(sqrt((1 - x) / 2)). NaN outside of -1..1. */
INLINE vf vasin(vf x) {
  vf a = vabs(x);
  vi big = a > SPLAT(0.5f);
  vf z = pick(big, SPLAT(0.5f) * (SPLAT(1.0f) - a), a * a), s = pick(big, vsqrt(z), a);
  vf p = SPLAT(4.2163199048e-2f);
  p = p * z + SPLAT(2.4181311049e-2f);
  p = p * z + SPLAT(4.5470025998e-2f);
  p = p * z + SPLAT(7.4953002686e-2f);
  p = p * z + SPLAT(1.6666752422e-1f);
  p = p * z * s + s;
  return vcopysign(pick(big, SPLAT(1.5707963268f) - (p + p), p), x);
}
/* acos: pi/2 - asin(x) where that does not cancel, else 2 asin(sqrt((1 - |x|) / 2)) or what it leaves of pi. */
INLINE vf vacos(vf x) {
  vf a = vabs(x), s = vasin(vsqrt(SPLAT(0.5f) * (SPLAT(1.0f) - a)));
  s = s + s;
  vf big = pick(x < SPLAT(0), SPLAT(3.1415926536f) - s, s);
  return pick(a <= SPLAT(0.5f), SPLAT(1.5707963268f) - vasin(x), big);
}
/* atan: a polynomial of Cephes (atanf) up to tan(pi / 8), others turned by pi / 4 or pi / 2. */
INLINE vf vatan(vf x) {
  vf a = vabs(x);
  vi far = a > SPLAT(2.414213562373095f), mid = a > SPLAT(0.4142135623730950f);
  vf t = pick(far, SPLAT(-1.0f) / a, pick(mid, (a - SPLAT(1.0f)) / (a + SPLAT(1.0f)), a));
  vf from = pick(far, SPLAT(1.5707963268f), pick(mid, SPLAT(0.7853981634f), SPLAT(0)));
  vf z = t * t;
  vf p = SPLAT(8.05374449538e-2f);
  p = p * z + SPLAT(-1.38776856032e-1f);
  p = p * z + SPLAT(1.99777106478e-1f);
  p = p * z + SPLAT(-3.33329491539e-1f);
  return vcopysign(from + (p * z * t + t), x);
}
/* sinh and cosh: of e^(|x| / 2), whose square may be infinite only where the result is; near zero sinh is a polynomial
   (Cephes sinhf). */
INLINE vf vsinh(vf x) {
  vf a = vabs(x), e = vexp(SPLAT(0.5f) * a), z = x * x;
  vf p = SPLAT(2.03721912945e-4f);
  p = p * z + SPLAT(8.33028376239e-3f);
  p = p * z + SPLAT(1.66667160211e-1f);
  return pick(a > SPLAT(1.0f), vcopysign(SPLAT(0.5f) * e * e - SPLAT(0.5f) / e / e, x), p * z * x + x);
}
INLINE vf vcosh(vf x) { vf e = vexp(SPLAT(0.5f) * vabs(x)); return SPLAT(0.5f) * e * e + SPLAT(0.5f) / e / e; }
/* asinh, acosh, atanh: polynomials of Cephes near zero, logarithms beyond; from 1500 on ln 2x. */
INLINE vf vasinh(vf x) {
  vf a = vabs(x), z = x * x;
  vf p = SPLAT(2.0122003309e-2f);
  p = p * z + SPLAT(-4.2699340972e-2f);
  p = p * z + SPLAT(7.4847586088e-2f);
  p = p * z + SPLAT(-1.6666288134e-1f);
  vi huge = a > SPLAT(1500.0f);
  vf l = vlog(pick(huge, a, a + vsqrt(z + SPLAT(1.0f)))) + pick(huge, SPLAT(0.69314718056f), SPLAT(0));
  return pick(a < SPLAT(0.5f), p * z * x + x, vcopysign(l, x));
}
INLINE vf vacosh(vf x) {
  vf z = x - SPLAT(1.0f);
  vf p = SPLAT(1.7596881071e-3f);
  p = p * z + SPLAT(-7.5272886713e-3f);
  p = p * z + SPLAT(2.6454905019e-2f);
  p = p * z + SPLAT(-1.1784741703e-1f);
  p = p * z + SPLAT(1.4142135263e0f);
  vi huge = x > SPLAT(1500.0f);
  vf l = vlog(pick(huge, x, x + vsqrt(z * (x + SPLAT(1.0f))))) + pick(huge, SPLAT(0.69314718056f), SPLAT(0));
  return pick(z < SPLAT(0.5f), p * vsqrt(z), l);
}
INLINE vf vatanh(vf x) {
  vf a = vabs(x), z = x * x;
  vf p = SPLAT(1.81740078349e-1f);
  p = p * z + SPLAT(8.24370301058e-2f);
  p = p * z + SPLAT(1.46691431730e-1f);
  p = p * z + SPLAT(1.99782164500e-1f);
  p = p * z + SPLAT(3.33337300303e-1f);
  vf l = SPLAT(0.5f) * vlog((SPLAT(1.0f) + a) / (SPLAT(1.0f) - a));
  return pick(a < SPLAT(0.5f), p * z * x + x, vcopysign(l, x));
}

/* Half a vector in f64. */
typedef f32 vhalf __attribute__((vector_size(LANES * 2)));
typedef f64 vd __attribute__((vector_size(LANES * 4)));
typedef u64 vlu __attribute__((vector_size(LANES * 4)));
#define SPLATD(x) ((vd){0} + (f64)(x))
INLINE vd dpick(vlu m, vd a, vd b) { return (vd)(((vlu)a & m) | ((vlu)b & ~m)); }
/* log2 |x| of what was f32: |x| = m 2^e with m in [sqrt 1/2, sqrt 2), ln m = 2 artanh((m - 1) / (m + 1)), as a series. */
INLINE vd log2_f64(vd x) {
  vlu bits = (vlu)x & 0x7fffffffffffffffULL;
  vd a = (vd)bits;
  vlu k = (bits - 0x3fe6a09e667f3bcdULL) & 0xfff0000000000000ULL;
  vd m = (vd)(bits - k), e = (vd)(((k >> 52) ^ 0x800) | 0x4330000000000000ULL) - SPLATD(4503599627372544.0);
  vd s = (m - SPLATD(1)) / (m + SPLATD(1)), z = s * s;
  vd p = SPLATD(0.19235933878519512);
  p = p * z + SPLATD(0.2219530832136867);
  p = p * z + SPLATD(0.2623081892525388);
  p = p * z + SPLATD(0.3205988979753252);
  p = p * z + SPLATD(0.41219858311113244);
  p = p * z + SPLATD(0.5770780163555853);
  p = p * z + SPLATD(0.9617966939259757);
  p = p * z + SPLATD(2.8853900817779268);
  p = p * s + e;
  p = dpick((vlu)(a == SPLATD(0)), SPLATD(-INF64), p);
  return dpick((vlu)(a < SPLATD(INF64)), p, a);
}
/* 2^x, 0 or infinite as f32 beyond 200: the series of e^(r ln 2) on |r| <= 1/2. */
INLINE vd exp2_f64(vd x) {
  x = dpick((vlu)(x > SPLATD(200)), SPLATD(200), dpick((vlu)(x < SPLATD(-200)), SPLATD(-200), x));
  vd t = x + SPLATD(6755399441055744.0), r = x - (t - SPLATD(6755399441055744.0));
  vd p = SPLATD(1.0178086009239696e-07);
  p = p * r + SPLATD(1.3215486790144305e-06);
  p = p * r + SPLATD(1.5252733804059838e-05);
  p = p * r + SPLATD(0.00015403530393381606);
  p = p * r + SPLATD(0.0013333558146428441);
  p = p * r + SPLATD(0.009618129107628477);
  p = p * r + SPLATD(0.055504108664821576);
  p = p * r + SPLATD(0.2402265069591007);
  p = p * r + SPLATD(0.6931471805599453);
  p = p * r + SPLATD(1.0);
  return p * (vd)(((vlu)t << 52) + 0x3ff0000000000000ULL);
}
/* x^y as IEEE 754 has it, computed in f64 as 2^(y log2 |x|), so that it is rounded once. */
INLINE vf vpow(vf x, vf y) {
  union { vf whole; vhalf half[2]; } a = {x}, b = {y}, r;
  for (int i = 0; i < 2; i++) {
    vd power = __builtin_convertvector(b.half[i], vd) * log2_f64(__builtin_convertvector(a.half[i], vd));
    r.half[i] = __builtin_convertvector(exp2_f64(power), vhalf);
  }
  const vf inf = (vf)SPLATI(0x7f800000);
  vf ax = vabs(x), ay = vabs(y);
  vi whole = (ay >= SPLAT(8388608.0f)) | (vround(y) == y);
  vi odd = (ay < SPLAT(16777216.0f)) & whole & ((vtoint(y) & 1) != 0);
  vf v = (vf)((vi)r.whole ^ ((vi)x & odd & (i32)0x80000000));
  v = pick((x < SPLAT(0)) & (ax < inf) & ~whole, (vf)SPLATI(0x7fc00000), v);
  return pick((x == SPLAT(1.0f)) | (y == SPLAT(0)) | ((ax == SPLAT(1.0f)) & (ay == inf)), SPLAT(1.0f), v);
}

#define AWAY(i, w) ((i) + (w)) % LANES
#if LANES == 16
#define TURN(v, w) SHUFFLE(v, v, AWAY(0, w), AWAY(1, w), AWAY(2, w), AWAY(3, w), AWAY(4, w), AWAY(5, w), AWAY(6, w), AWAY(7, w), AWAY(8, w), AWAY(9, w), AWAY(10, w), AWAY(11, w), AWAY(12, w), AWAY(13, w), AWAY(14, w), AWAY(15, w))
#define FOLD(v, f) v = f(v, TURN(v, 8)); v = f(v, TURN(v, 4)); v = f(v, TURN(v, 2)); v = f(v, TURN(v, 1));
#elif LANES == 8
#define TURN(v, w) SHUFFLE(v, v, AWAY(0, w), AWAY(1, w), AWAY(2, w), AWAY(3, w), AWAY(4, w), AWAY(5, w), AWAY(6, w), AWAY(7, w))
#define FOLD(v, f) v = f(v, TURN(v, 4)); v = f(v, TURN(v, 2)); v = f(v, TURN(v, 1));
#else
#define TURN(v, w) SHUFFLE(v, v, AWAY(0, w), AWAY(1, w), AWAY(2, w), AWAY(3, w))
#define FOLD(v, f) v = f(v, TURN(v, 2)); v = f(v, TURN(v, 1));
#endif
#define PLUS(a, b) a + b
INLINE f32 hsum(vf v) { FOLD(v, PLUS) return v[0]; }
INLINE f32 hprod(vf v) { f32 s = 1; for (int i = 0; i < LANES; i++) s *= v[i]; return s; }
INLINE f32 hmax(vf v) { FOLD(v, vmax) return v[0]; }
INLINE f32 hmin(vf v) { FOLD(v, vmin) return v[0]; }

/* The functions on single numbers. */
#define ONE(f) INLINE f32 one_##f(f32 x) { return v##f(SPLAT(x))[0]; }
ONE(ceil) ONE(floor) ONE(round) ONE(sqrt) ONE(exp) ONE(log) ONE(sin) ONE(cos) ONE(tanh) ONE(erf) ONE(sigmoid)
ONE(tan) ONE(asin) ONE(acos) ONE(atan) ONE(sinh) ONE(cosh) ONE(asinh) ONE(acosh) ONE(atanh)
INLINE f32 one_pow(f32 x, f32 y) { return vpow(SPLAT(x), SPLAT(y))[0]; }
/* Floats in the order of their bits, in which -0 is before 0; behind all of them NaN, whose sign says nothing. */
INLINE i64 order32(f32 e) { union { f32 f; i32 i; } v = { e }; return e != e ? 0x7fffffff : v.i ^ ((v.i >> 31) & 0x7fffffff); }
INLINE i64 order64(f64 e) { union { f64 f; i64 i; } v = { e }; return e != e ? 0x7fffffffffffffffLL : v.i ^ ((v.i >> 63) & 0x7fffffffffffffffLL); }
