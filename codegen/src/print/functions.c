/* Functions for kernels of every target, included after the target's prelude. They compute on vectors of LANES floats (vf),
   with their bits (vi, vu) and comparisons (mask); where LANES is 1, on scalars. */
/* Functions of extents that are not known before the run; divisors are positive. */
INLINE i64 dim_floordiv(i64 a, i64 b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }
INLINE i64 dim_ceildiv(i64 a, i64 b) { return a > 0 ? (a + b - 1) / b : -(-a / b); }
INLINE i64 dim_mod(i64 a, i64 b) { return a - dim_floordiv(a, b) * b; }
INLINE i64 dim_max(i64 a, i64 b) { return a > b ? a : b; }
INLINE i64 dim_min(i64 a, i64 b) { return a < b ? a : b; }
/* The bits of single numbers. */
INLINE i32 bits_of_f32(f32 x) { union { f32 f; i32 i; } v = {x}; return v.i; }
INLINE i64 bits_of_f64(f64 x) { union { f64 f; i64 i; } v = {x}; return v.i; }

/* p for e^x = p 2^n: x = n ln 2 + r, a degree-6 polynomial (Taylor with the last terms refitted) on |r| <= ln 2 / 2. Constants:
   Cody and Waite's split of ln 2. */
INLINE vf exp_fraction(vf x, vf n) {
  vf r = (x - n * SPLAT(0.693359375f)) - n * SPLAT(-2.12194440e-4f);
  vf p = SPLAT(1.9875691500e-4f);
  p = p * r + SPLAT(1.3981999507e-3f);
  p = p * r + SPLAT(8.3334519073e-3f);
  p = p * r + SPLAT(4.1665795894e-2f);
  p = p * r + SPLAT(1.6666665459e-1f);
  p = p * r + SPLAT(5.0000001201e-1f);
  return p * (r * r) + r + SPLAT(1.0f);
}
/* e^x. The limits keep NaN, and e^89 overflows to infinity by itself. */
CALLED vf vexp(vf x) {
  const vf low = SPLAT(-103.9720770839918f);
  vf y = hwmin(SPLAT(89.0f), hwmax(low, x));
  vf n = vround_small(y * SPLAT(1.44269504f));
  return vscale(exp_fraction(y, n), n, x, low);
}
/* ln x for x > 0: x = m 2^e with m in [sqrt 1/2, sqrt 2). Source of the polynomial: Cephes logf (Moshier). */
CALLED vf vlog(vf x) {
  mask tiny = x < SPLAT(1.17549435e-38f);
  vf s = pick(tiny, x * SPLAT(8388608.0f), x);
  vi bits = BITS(s);
  vi e = (bits >> 23) - 126;
  vf m = FLOAT((bits & 0x007fffff) | 0x3f000000);
  mask low = m < SPLAT(0.707106781f);
  vf ef = TO_FLOAT(e) - pick(low, SPLAT(1), SPLAT(0)) - pick(tiny, SPLAT(23), SPLAT(0));
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
  r = pick(x == SPLAT(INF32), SPLAT(INF32), r);
  r = pick(x == SPLAT(0), SPLAT(-INF32), r);
  return pick((x < SPLAT(0)) | (x != x), SPLAT(NAN32), r);
}
/* e^x / (1 + e^x): exact for large negative x, where 1 / (1 + e^-x) would lose it; from 40 on it is 1. At -110 it rounds to 0. */
CALLED vf vsigmoid(vf x) {
  vf y = hwmin(SPLAT(40.0f), hwmax(SPLAT(-110.0f), x));
  vf n = vround_small(y * SPLAT(1.44269504f));
  return vshare(exp_fraction(y, n), n);
}
/* tanh: an odd polynomial near zero (Cephes tanhf), 1 - 2 / (e^2x + 1) beyond; from 20 on it is 1. */
CALLED vf vtanh(vf x) {
  vf a = vabs(x), z = x * x;
  vf p = SPLAT(-5.70498872745e-3f);
  p = p * z + SPLAT(2.06390887954e-2f);
  p = p * z + SPLAT(-5.37397155531e-2f);
  p = p * z + SPLAT(1.33314422036e-1f);
  p = p * z + SPLAT(-3.33332819422e-1f);
  p = p * z * x + x;
  vf y = hwmin(SPLAT(40.0f), a + a);
  vf n = vround_small(y * SPLAT(1.44269504f));
  vf e = vscale_normal(exp_fraction(y, n), n);
  vf big = vcopysign(SPLAT(1.0f) - SPLAT(2.0f) * vrecip(e + SPLAT(1.0f)), x);
  return pick(a >= SPLAT(0.625f), big, p);
}
/* erf: the rational minimax form that Eigen publishes (measured: within 5.6 units in the last place), 1 from
   the point on where f32 rounds it to 1. */
CALLED vf verf(vf x) {
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
/* |x| above 4 in quarters of a full circle (multiples of pi/2), modulo 4, with 62 bits after the point: its mantissa times the relevant bits of
   2/pi (Payne and Hanek). */
INLINE u64 quarters_of(f32 x) {
  const u32 two_over_pi[] = {0, 0x28be60db, 0x9391054a, 0x7f09d5f4, 0x7d4d3770, 0x36d8a566, 0x4f10e410, 0x7f9458ea};
  u32 bits = (u32)bits_of_f32(x);
  u32 m = (bits << 8) | 0x80000000, e = ((bits >> 23) & 0xff) - 126, i = e >> 5;
  u32 high = two_over_pi[i], mid = two_over_pi[i + 1], low = two_over_pi[i + 2];
  e &= 31;
  if (e != 0) {
    high = (high << e) | (mid >> (32 - e));
    mid = (mid << e) | (low >> (32 - e));
    low = (low << e) | (two_over_pi[i + 3] >> (32 - e));
  }
  return ((u64)(m * high) << 32) + (u64)m * mid + (((u64)m * low) >> 32);
}
/* sin and cos: polynomials of Cephes after range reduction: with pi/2 in three parts (Cody and Waite) up to 8192,
   lane by lane beyond. */
CALLED vf vsincos(vf x, i32 quarter) {
  vf k = vround_small(x * SPLAT(0.636619772f));
  vf r = ((x - k * SPLAT(1.5703125f)) - k * SPLAT(4.837512969970703125e-4f)) - k * SPLAT(7.54978995489188216e-8f);
  vi q = TO_INT(k);
  mask far = vabs(x) > SPLAT(8192.0f);
  if (ANY(far)) for (i32 i = 0; i < LANES; i++) {
    if (!LANE(far, i)) continue;
    u64 quarters = quarters_of(LANE(x, i));
    i64 part = (i64)(quarters << 2) >> 2;
    i32 whole = (i32)((quarters - (u64)part) >> 62);
    f32 rest = (f32)((f64)part * 3.4061215800304694e-19);
    i32 negative = bits_of_f32(LANE(x, i)) < 0;
    LANE(q, i) = negative ? -whole : whole;
    LANE(r, i) = negative ? -rest : rest;
  }
  q += quarter;
  vf z = r * r;
  vf s = ((SPLAT(-1.9515295891e-4f) * z + SPLAT(8.3321608736e-3f)) * z + SPLAT(-1.6666654611e-1f)) * z * r + r;
  vf c = ((SPLAT(2.443315711809948e-5f) * z + SPLAT(-1.388731625493765e-3f)) * z + SPLAT(4.166664568298827e-2f)) * z * z - SPLAT(0.5f) * z + SPLAT(1.0f);
  vf v = pick((q & 1) == 0, s, c);
  v = FLOAT(BITS(v) ^ (vi)((vu)(q & 2) << 30));
  return pick(vabs(x) < SPLAT(INF32), v, SPLAT(NAN32));
}
CALLED vf vsin(vf x) { return vsincos(x, 0); }
CALLED vf vcos(vf x) { return vsincos(x, 1); }
/* tan: as sin and cos, of which it is the quotient. */
CALLED vf vtan(vf x) { return vsin(x) / vcos(x); }
/* asin: a polynomial of Cephes (asinf) up to 1/2, from there on pi/2 - 2 asin(sqrt((1 - x) / 2)). NaN outside of -1..1. */
CALLED vf vasin(vf x) {
  vf a = vabs(x);
  mask big = a > SPLAT(0.5f);
  vf z = pick(big, SPLAT(0.5f) * (SPLAT(1.0f) - a), a * a), s = pick(big, vsqrt(z), a);
  vf p = SPLAT(4.2163199048e-2f);
  p = p * z + SPLAT(2.4181311049e-2f);
  p = p * z + SPLAT(4.5470025998e-2f);
  p = p * z + SPLAT(7.4953002686e-2f);
  p = p * z + SPLAT(1.6666752422e-1f);
  p = p * z * s + s;
  return vcopysign(pick(big, SPLAT(1.5707963268f) - (p + p), p), x);
}
/* acos: pi/2 - asin(x) where that does not cancel, else 2 asin(sqrt((1 - |x|) / 2)), or pi minus it. */
CALLED vf vacos(vf x) {
  vf a = vabs(x), s = vasin(vsqrt(SPLAT(0.5f) * (SPLAT(1.0f) - a)));
  s = s + s;
  vf big = pick(x < SPLAT(0), SPLAT(3.1415926536f) - s, s);
  return pick(a <= SPLAT(0.5f), SPLAT(1.5707963268f) - vasin(x), big);
}
/* atan: a polynomial of Cephes (atanf) up to tan(pi / 8), others reduced by pi / 4 or pi / 2. */
CALLED vf vatan(vf x) {
  vf a = vabs(x);
  mask far = a > SPLAT(2.414213562373095f), mid = a > SPLAT(0.4142135623730950f);
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
CALLED vf vsinh(vf x) {
  vf a = vabs(x), e = vexp(SPLAT(0.5f) * a), z = x * x;
  vf p = SPLAT(2.03721912945e-4f);
  p = p * z + SPLAT(8.33028376239e-3f);
  p = p * z + SPLAT(1.66667160211e-1f);
  return pick(a > SPLAT(1.0f), vcopysign(SPLAT(0.5f) * e * e - SPLAT(0.5f) / e / e, x), p * z * x + x);
}
CALLED vf vcosh(vf x) { vf e = vexp(SPLAT(0.5f) * vabs(x)); return SPLAT(0.5f) * e * e + SPLAT(0.5f) / e / e; }
/* asinh, acosh, atanh: polynomials of Cephes near zero, logarithms beyond; from 1500 on ln 2x. */
CALLED vf vasinh(vf x) {
  vf a = vabs(x), z = x * x;
  vf p = SPLAT(2.0122003309e-2f);
  p = p * z + SPLAT(-4.2699340972e-2f);
  p = p * z + SPLAT(7.4847586088e-2f);
  p = p * z + SPLAT(-1.6666288134e-1f);
  mask huge = a > SPLAT(1500.0f);
  vf l = vlog(pick(huge, a, a + vsqrt(z + SPLAT(1.0f)))) + pick(huge, SPLAT(0.69314718056f), SPLAT(0));
  return pick(a < SPLAT(0.5f), p * z * x + x, vcopysign(l, x));
}
CALLED vf vacosh(vf x) {
  vf z = x - SPLAT(1.0f);
  vf p = SPLAT(1.7596881071e-3f);
  p = p * z + SPLAT(-7.5272886713e-3f);
  p = p * z + SPLAT(2.6454905019e-2f);
  p = p * z + SPLAT(-1.1784741703e-1f);
  p = p * z + SPLAT(1.4142135263e0f);
  mask huge = x > SPLAT(1500.0f);
  vf l = vlog(pick(huge, x, x + vsqrt(z * (x + SPLAT(1.0f))))) + pick(huge, SPLAT(0.69314718056f), SPLAT(0));
  return pick(z < SPLAT(0.5f), p * vsqrt(z), l);
}
CALLED vf vatanh(vf x) {
  vf a = vabs(x), z = x * x;
  vf p = SPLAT(1.81740078349e-1f);
  p = p * z + SPLAT(8.24370301058e-2f);
  p = p * z + SPLAT(1.46691431730e-1f);
  p = p * z + SPLAT(1.99782164500e-1f);
  p = p * z + SPLAT(3.33337300303e-1f);
  vf l = SPLAT(0.5f) * vlog((SPLAT(1.0f) + a) / (SPLAT(1.0f) - a));
  return pick(a < SPLAT(0.5f), p * z * x + x, vcopysign(l, x));
}

/* log2 |x| of a number that f32 represents: |x| = m 2^e with m in [sqrt 1/2, sqrt 2), ln m = 2 artanh((m - 1) / (m + 1)), as a series. */
INLINE vd log2_f64(vd x) {
  vlu bits = LONG_BITS(x) & 0x7fffffffffffffffULL;
  vd a = DOUBLE(bits);
  vlu k = (bits - 0x3fe6a09e667f3bcdULL) & 0xfff0000000000000ULL;
  vd m = DOUBLE(bits - k), e = DOUBLE(((k >> 52) ^ 0x800) | 0x4330000000000000ULL) - SPLATD(4503599627372544.0);
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
  p = SELECT_F64(a == SPLATD(0), SPLATD(-INF64), p);
  return SELECT_F64(a < SPLATD(INF64), p, a);
}
/* 2^x; f32 rounds it to 0 or infinity beyond 200: the series of e^(r ln 2) on |r| <= 1/2. */
INLINE vd exp2_f64(vd x) {
  x = SELECT_F64(x > SPLATD(200), SPLATD(200), SELECT_F64(x < SPLATD(-200), SPLATD(-200), x));
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
  return p * DOUBLE((LONG_BITS(t) << 52) + 0x3ff0000000000000ULL);
}
/* x^y as IEEE 754 has it, computed in f64 as 2^(y log2 |x|), so that it is rounded once. */
CALLED vf vpow(vf x, vf y) {
  vf size = x;
  for (i32 i = 0; i < PARTS; i++)
    size = WITH_PART(size, i, FROM_F64(exp2_f64(TO_F64(PART(y, i)) * log2_f64(TO_F64(PART(x, i))))));
  vf ax = vabs(x), ay = vabs(y), inf = SPLAT(INF32);
  mask whole = (ay >= SPLAT(8388608.0f)) | (vround(y) == y);
  mask odd = (ay < SPLAT(16777216.0f)) & whole & ((vtoint(y) & 1) != 0);
  vf v = pick(odd, vcopysign(size, x), size);
  v = pick((x < SPLAT(0)) & (ax < inf) & (whole == 0), SPLAT(NAN32), v);
  return pick((x == SPLAT(1.0f)) | (y == SPLAT(0)) | ((ax == SPLAT(1.0f)) & (ay == inf)), SPLAT(1.0f), v);
}

/* The functions on single numbers. */
#define ONE(f) INLINE f32 one_##f(f32 x) { return LANE(v##f(SPLAT(x)), 0); }
ONE(ceil) ONE(floor) ONE(round) ONE(sqrt) ONE(exp) ONE(log) ONE(sin) ONE(cos) ONE(tanh) ONE(erf) ONE(sigmoid)
ONE(tan) ONE(asin) ONE(acos) ONE(atan) ONE(sinh) ONE(cosh) ONE(asinh) ONE(acosh) ONE(atanh)
INLINE f32 one_pow(f32 x, f32 y) { return LANE(vpow(SPLAT(x), SPLAT(y)), 0); }
/* The total order of floats: -0 before 0, and NaN of either sign last. */
INLINE i64 order32(f32 e) { i32 i = bits_of_f32(e); return e != e ? 0x7fffffff : i ^ ((i >> 31) & 0x7fffffff); }
INLINE i64 order64(f64 e) { i64 i = bits_of_f64(e); return e != e ? 0x7fffffffffffffffLL : i ^ ((i >> 63) & 0x7fffffffffffffffLL); }
