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
#ifdef CALL_FUNCTIONS
#define CALLED static __attribute__((noinline))
#else
#define CALLED INLINE
#endif
/* Arguments, by the same macros as in kernels for GPUs (cuda/prelude.cuh). */
#define PTR(T) T *
#define ARG(T, i) ((T *)args[i])
#define INF32 __builtin_inff()
#define NAN32 __builtin_nanf("")
#define INF64 __builtin_inf()
#define NAN64 __builtin_nan("")
/* Broadcasts a scalar. A list of lanes rather than 0 + x: the sum would keep the sign of zero and cost an addition. */
#if LANES == 16
INLINE vf splat(f32 x) { return (vf){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }
#elif LANES == 8
INLINE vf splat(f32 x) { return (vf){x, x, x, x, x, x, x, x}; }
#else
INLINE vf splat(f32 x) { return (vf){x, x, x, x}; }
#endif
#define SPLAT(x) splat((f32)(x))
#define SPLATI(x) ((vi){0} + (i32)(x))
/* A product that is rounded before it is added: the compiler does not see where the number comes from. */
#if LANES == 16 && defined(__AVX512F__)
INLINE vf vrounded(vf x) { __asm__("" : "+v"(x)); return x; }
#elif LANES == 8 && defined(__AVX__)
INLINE vf vrounded(vf x) { __asm__("" : "+x"(x)); return x; }
#elif defined(__wasm__) /* no instruction adds a product without rounding it */
INLINE vf vrounded(vf x) { return x; }
#else
INLINE vf vrounded(vf x) { for (i32 i = 0; i < LANES; i++) { f32 one = x[i]; __asm__("" : "+r"(one)); x[i] = one; } return x; }
#endif
#define one_sum(a, b) (one_rounded(a) + one_rounded(b))
#define one_difference(a, b) (one_rounded(a) - one_rounded(b))
#ifdef __wasm__
#define one_rounded(x) (x)
#else
#define one_rounded(x) ({ __typeof__((x) + 0) one = (x); __asm__("" : "+m"(one)); one; })
#endif

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
/* The lanes of x with these numbers. */
#ifdef __clang__
INLINE vf permute(vf x, vi lanes) { vf v; for (i32 i = 0; i < LANES; i++) v[i] = x[lanes[i]]; return v; }
#else
INLINE vf permute(vf x, vi lanes) { return __builtin_shuffle(x, lanes); }
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
   intrinsics. */
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

/* 16-bit floats, as the low 16 bits of lanes and as f32. f16 by instructions where available, else in integers:
   an addition rescales the exponent, and a conversion from integers normalises subnormal numbers. Back, a sum with a large
   constant rounds subnormal results, and an integer addition the others. bf16 is the upper 16 bits of f32. */
INLINE vf widen_bf16(vi h) { return (vf)(h << 16); }
INLINE vi narrow_bf16(vf x) {
  vu u = (vu)x;
  return ipick(x == x, (vi)((u + 0x7fff + ((u >> 16) & 1)) >> 16), (vi)(u >> 16) | 64);
}
#if LANES == 16 && defined(__AVX512BW__)
typedef u16 packed_f16 __attribute__((vector_size(LANES * 2)));
INLINE vf widen_packed(packed_f16 h) { vf v; __asm__("vcvtph2ps %1, %0" : "=v"(v) : "v"(h)); return v; }
INLINE packed_f16 narrow_packed(vf x) { packed_f16 h; __asm__("vcvtps2ph $0, %1, %0" : "=v"(h) : "v"(x)); return h; }
#elif LANES == 8 && defined(__F16C__)
typedef u16 packed_f16 __attribute__((vector_size(LANES * 2)));
INLINE vf widen_packed(packed_f16 h) { vf v; __asm__("vcvtph2ps %1, %0" : "=x"(v) : "x"(h)); return v; }
INLINE packed_f16 narrow_packed(vf x) { packed_f16 h; __asm__("vcvtps2ph $0, %1, %0" : "=x"(h) : "x"(x)); return h; }
#else
INLINE vf widen_f16(vi h) {
  vi m = h & 0x7fff, u = m << 13;
  vi small = (vi)(__builtin_convertvector(m, vf) * SPLAT(5.9604644775390625e-8f));
  vi f = ipick(m >= 0x7c00, u | 0x7f800000, ipick(m < 0x400, small, u + (112 << 23)));
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
#define PACKED_F16
#endif
#ifndef PACKED_F16
INLINE vf widen_f16(vi h) { return widen_packed(__builtin_convertvector(h, packed_f16)); }
INLINE vi narrow_f16(vf x) { return __builtin_convertvector(narrow_packed(x), vi); }
INLINE vf round_f16(vf x) { return widen_packed(narrow_packed(x)); }
INLINE vf load_f16(const f16 *p) { return widen_packed((packed_f16)*(const any_u16 *)p); }
INLINE void store_f16(f16 *p, vf v) { *(any_u16 *)p = (any_u16)narrow_packed(v); }
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

/* Copies n bytes between buffers that do not overlap. */
CALLED void move(void *to, const void *from, i64 n) {
  u8 *t = to; const u8 *f = from; i64 i = 0;
  for (; i + (i64)sizeof(vi) <= n; i += sizeof(vi)) *(any_i32 *)(t + i) = *(const any_i32 *)(f + i);
  for (; i < n; i++) t[i] = f[i];
}

/* Eight bytes anywhere. */
typedef u64 u64_any __attribute__((aligned(1), may_alias));
INLINE u64 eight(const void *p) { return *(const u64_any *)p; }
INLINE void put_eight(void *p, u64 x) { *(u64_any *)p = x; }

/* Fills n bytes with a pattern of eight. */
CALLED void fill(void *to, u64 pattern, i64 n) {
  u8 *t = to; i64 i = 0;
  for (; i + 8 <= n; i += 8) put_eight(t + i, pattern);
  for (; i < n; i++) { t[i] = (u8)pattern; pattern >>= 8; }
}

/* Loads four bytes, or fewer and zeros. */
typedef i32 word_any __attribute__((aligned(1), may_alias));
INLINE i32 word(const void *p) { return *(const word_any *)p; }
INLINE i32 word_part(const u8 *p, i64 n) { u32 w = 0; for (i64 i = 0; i < n; i++) w |= (u32)p[i] << (8 * i); return (i32)w; }

/* c + a0 b0 + a1 b1 in each lane, of signed 16-bit parts; the sum of two products fits 32 bits unless all are -2^15. */
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
   that multiplies bytes without VNNI saturates, so bytes are widened to 16 bits, even ones and odd ones. */
INLINE vi dot4(vi c, vi a, vi b) {
#if LANES == 16 && defined(__AVX512VNNI__)
  __asm__("vpdpbusd %2, %1, %0" : "+v"(c) : "v"(a), "v"(b)); return c;
#else
  vi even = dot2(c, a & 0x00ff00ff, (vi)(((vh)b << 8) >> 8));
  return dot2(even, (vi)((vu)a >> 8) & 0x00ff00ff, (vi)((vh)b >> 8));
#endif
}
/* The same, where no sum of two adjacent products exceeds 16 bits. */
INLINE vi dot4_unsaturated(vi c, vi a, vi b) {
#if LANES == 16 && defined(__AVX512BW__) && !defined(__clang__)
  typedef char bytes __attribute__((vector_size(64)));
  return dot2(c, (vi)__builtin_ia32_pmaddubsw512_mask((bytes)a, (bytes)b, (vh){0}, -1), SPLATI(0x00010001));
#elif LANES == 8 && defined(__AVX2__)
  typedef char bytes __attribute__((vector_size(32)));
  return dot2(c, (vi)__builtin_ia32_pmaddubsw256((bytes)a, (bytes)b), SPLATI(0x00010001));
#else
  return dot4(c, a, b);
#endif
}

/* Matrix registers. Loads and stores are of rows so many bytes apart; a product adds to the first register the rows of the second
   times the columns of the third, in groups of four bytes. */
#ifdef __AMX_INT8__
#define tile_config(p) __asm__ volatile("ldtilecfg %0" :: "m"(*(const u8(*)[64])(p)))
#define tile_release() __asm__ volatile("tilerelease" :::)
#define tile_zero(n) __asm__ volatile("tilezero %%tmm" #n :::)
#define tile_load(n, p, s) __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #n :: "r"(p), "r"((i64)(s)) : "memory")
#define tile_store(n, p, s) __asm__ volatile("tilestored %%tmm" #n ", (%0,%1,1)" :: "r"(p), "r"((i64)(s)) : "memory")
#define tile_dot_signed(c, a, b) __asm__ volatile("tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #c :::)
#define tile_dot_unsigned(c, a, b) __asm__ volatile("tdpbusd %%tmm" #b ", %%tmm" #a ", %%tmm" #c :::)
INLINE void tile_shapes(i64 *t, i64 low, i64 high, i64 rows) {
  t[0] = 1; t[1] = 0; t[2] = low; t[3] = high; t[4] = 0; t[5] = 0; t[6] = rows; t[7] = 0;
  tile_config(t);
}
#endif

/* Two rows of bf16, ld apart, of which each lane gets one element of both. */
INLINE vi load_pair(const bf16 *p, i64 ld) { return load_u16(p) | load_u16(p + ld) << 16; }
INLINE vi load_part_pair(const bf16 *p, i64 ld, i64 n) { return load_part_u16(p, n) | load_part_u16(p + ld, n) << 16; }
/* c + a0 b0 + a1 b1 in each lane, of pairs of bf16; subnormal numbers count as 0. GCC allocates registers badly for
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
#elif defined(__wasm_simd128__)
INLINE vf hwmax(vf a, vf b) { return __builtin_wasm_pmax_f32x4(b, a); }
INLINE vf hwmin(vf a, vf b) { return __builtin_wasm_pmin_f32x4(b, a); }
INLINE vf vsqrt(vf a) { return __builtin_wasm_sqrt_f32x4(a); }
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
/* Round to nearest even for |x| < 2^22: adding 1.5 * 2^23 rounds the fraction away. */
INLINE vf vround_small(vf x) { vf m = SPLAT(12582912.0f); return (x + m) - m; }
#if LANES == 16 && defined(__AVX512F__) && !defined(__clang__)
INLINE vf vround(vf x) { return (vf)__builtin_ia32_rndscaleps_mask(x, 8, x, -1, 4); }
#elif LANES == 8 && defined(__AVX__)
INLINE vf vround(vf x) { return __builtin_ia32_roundps256(x, 8); }
#elif defined(__wasm_simd128__)
INLINE vf vround(vf x) { return __builtin_wasm_nearest_f32x4(x); }
#else
INLINE vf vround(vf x) { vf r = vround_small(x); return pick(vabs(x) < SPLAT(4194304.0f), vcopysign(r, x), x); }
#endif
INLINE vf vfloor(vf x) { vf r = vround(x); return vcopysign(r - pick(r > x, SPLAT(1), SPLAT(0)), x) ; }
INLINE vf vceil(vf x) { vf r = vround(x); return vcopysign(r + pick(r < x, SPLAT(1), SPLAT(0)), x); }

/* Rounds towards zero and saturates to a narrower type; NaN gives lo. */
INLINE vi vnarrow(vf x, f32 lo, f32 hi) { return __builtin_convertvector(hwmin(SPLAT(hi), hwmax(x, SPLAT(lo))), vi); }
/* Rounds towards zero and saturates; NaN gives 0. */
INLINE vi vtoint(vf x) {
  vi v = __builtin_convertvector(hwmin(SPLAT(2147483520.0f), hwmax(x, SPLAT(-2147483648.0f))), vi);
  return ipick(x >= SPLAT(2147483648.0f), SPLATI(0x7fffffff), v) & (x == x);
}

/* x / c rounded to nearest, unless |x| is above most, which counts as most, or the quotient is tiny. r is 1 / c rounded to nearest. A product, its exact remainder and a correction are a sixth of a division.
   Source: Brisebarre, Muller, Raina, "Accelerating correctly rounded floating-point division when the divisor is known in
   advance", algorithm 1. */
INLINE vf vquotient(vf x, f32 c, f32 r, f32 most) {
#ifdef __FMA__
  x = hwmin(SPLAT(most), hwmax(SPLAT(-most), x));
  vf q = vrounded(x * SPLAT(r));
  return q + (x - q * SPLAT(c)) * SPLAT(r);
#else
  return x / SPLAT(c);
#endif
}
INLINE vf number_or(vf x, f32 other) { return pick(x == x, x, SPLAT(other)); }

/* Rounds to nearest even and saturates to a narrower type; NaN gives lo. */
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
/* p 2^n for whole n from -150 to 128, 0 where x < low; subnormal results are rounded once. Lanes that
   are 0 anyway must not compute them: subnormal numbers take a hundred cycles. */
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
/* p 2^n where that is a normal number. */
INLINE vf vscale_normal(vf p, vf n) {
#if LANES == 16 && defined(__AVX512F__) && !defined(__clang__)
  return (vf)__builtin_ia32_scalefps512_mask(p, n, (vf){0}, -1, 4);
#else
  return p * (vf)((__builtin_convertvector(n, vi) + 127) << 23);
#endif
}
/* p 2^n / (1 + p 2^n) for whole n from -159 to 58. The factor 2^64 keeps small numbers normal until the end. */
INLINE vf vshare(vf p, vf n) {
  const vf unit = SPLAT(5.421010862427522e-20f);
  vf e = vscale_normal(p, n + SPLAT(64.0f));
  return e * vrecip(SPLAT(1.0f) + e * unit) * unit;
}

/* Whether a lane of a mask is set. */
#if LANES == 16 && defined(__AVX512F__) && !defined(__clang__)
INLINE i32 vany(vi m) { return __builtin_ia32_ptestmd512(m, m, -1) != 0; }
#elif LANES == 8 && defined(__AVX__)
INLINE i32 vany(vi m) { return __builtin_ia32_movmskps256((vf)m) != 0; }
#elif defined(__wasm_simd128__)
INLINE i32 vany(vi m) { return __builtin_wasm_any_true_v128((signed char __attribute__((vector_size(16))))m); }
#else
INLINE i32 vany(vi m) { i32 any = 0; for (i32 i = 0; i < LANES; i++) any |= m[i]; return any; }
#endif

/* The vector interface that functions.c uses. */
typedef vi mask;
#define BITS(x) ((vi)(x))
#define FLOAT(bits) ((vf)(bits))
#define TO_INT(x) __builtin_convertvector(x, vi)
#define TO_FLOAT(i) __builtin_convertvector(i, vf)
#define LANE(v, i) (v)[i]
#define ANY(m) vany(m)
/* Vectors of f64 with as many bytes as vf. */
typedef f32 vpart __attribute__((vector_size(LANES * 2)));
typedef f64 vd __attribute__((vector_size(LANES * 4)));
typedef u64 vlu __attribute__((vector_size(LANES * 4)));
#define PARTS 2
INLINE vpart part(vf v, i32 i) { union { vf whole; vpart part[PARTS]; } u = {v}; return u.part[i]; }
INLINE vf with_part(vf v, i32 i, vpart p) { union { vf whole; vpart part[PARTS]; } u = {v}; u.part[i] = p; return u.whole; }
#define PART(v, i) part(v, i)
#define WITH_PART(v, i, p) with_part(v, i, p)
#define TO_F64(x) __builtin_convertvector(x, vd)
#define FROM_F64(x) __builtin_convertvector(x, vpart)
#define SPLATD(x) ((vd){0} + (f64)(x))
#define LONG_BITS(x) ((vlu)(x))
#define DOUBLE(bits) ((vd)(bits))
INLINE vd select_f64(vlu m, vd a, vd b) { return (vd)(((vlu)a & m) | ((vlu)b & ~m)); }
#define SELECT_F64(m, a, b) select_f64((vlu)(m), a, b)

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
