//! The C text of the f64 math functions, see [`super::c_math`].
//!
//! The less common f32 functions are these, rounded: that is accurate to half an ulp and still runs on vectors.

use of_ir::DType;

use super::c_math::Template;

const fn t(name: &'static str, needs: &'static [&'static str], text: &'static str) -> Template {
    Template { name, elem: DType::F64, needs, text }
}

pub(super) const F64: &[Template] = &[
    // exp(r) = 1 + r + r^2 P(r) on |r| <= ln(2)/2, relative error 4e-18.
    t(
        "exp",
        &["xmin", "xmax"],
        "static @V exp_@V(@V x) {
  x = xmin_@V(splat_@V(710.0), xmax_@V(splat_@V(-746.0), x));
  @V t = x * 1.4426950408889634 + 6755399441055744.0;
  @V n = t - 6755399441055744.0;
  @V r = x - n * 0.6931471803691238;
  r = r - n * 1.9082149292705877e-10;
  @V p = r * 2.511788354328517e-08 + 2.7631261975130905e-07;
  p = p * r + 2.7557216245144626e-06;
  p = p * r + 2.4801489991088995e-05;
  p = p * r + 0.0001984126991742528;
  p = p * r + 0.001388888894697169;
  p = p * r + 0.008333333333307196;
  p = p * r + 0.04166666666651558;
  p = p * r + 0.166666666666667;
  p = p * r + 0.5000000000000012;
  p = p * (r * r) + r;
  p = p + 1.0;
  @I i = (@I)t - 0x4338000000000000;
  @I h = i >> 1;
  return p * (@V)((h + 1023) << 52) * (@V)((i - h + 1023) << 52);
}
",
    ),
    // log(1 + f) = 2 s + s^3 P(s^2), s = f / (2 + f), on sqrt(1/2) <= 1 + f < sqrt(2), relative error 3e-18.
    t(
        "log",
        &["selm"],
        "static @V log_@V(@V x) {
  @I tiny = x < 2.2250738585072014e-308;
  @V y = selm_@V(tiny, x * 18014398509481984.0, x);
  @I b = (@I)y - 0x3fe6a09e667f3bcd;
  @V m = (@V)((b & 0x000fffffffffffff) + 0x3fe6a09e667f3bcd);
  @I k = (b >> 52) - (tiny & 54);
  @V e = (@V)(k + 0x4338000000000000) - 6755399441055744.0;
  @V f = m - 1.0;
  @V s = f / (2.0 + f);
  @V z = s * s;
  @V p = z * 0.14795953620869226 + 0.15314050141982863;
  p = p * z + 0.18183564343338965;
  p = p * z + 0.22222198572815374;
  p = p * z + 0.28571428742391847;
  p = p * z + 0.39999999999414654;
  p = p * z + 0.6666666666666734;
  @V h = f * f * 0.5;
  p = s * (h + p * z) + e * 1.9082149292705877e-10;
  p = e * 0.6931471803691238 - ((h - p) - f);
  p = selm_@V(x == __builtin_inf(), x, p);
  p = selm_@V(x == 0.0, splat_@V(-__builtin_inf()), p);
  return selm_@V(x >= 0.0, p, splat_@V(__builtin_nan(\"\")));
}
",
    ),
    // exp(x) - 1 and log(1 + x) keep their precision near 0 by Kahan's quotients: the rounding errors cancel.
    t(
        "expm1",
        &["exp", "log", "selm"],
        "static @V expm1_@V(@V x) {
  @V u = exp_@V(x);
  @V d = u - 1.0;
  @V r = d * x / log_@V(u);
  r = selm_@V((u == 1.0) | (x == 0.0), x, r);
  r = selm_@V(x > 40.0, d, r);
  return selm_@V(x < -40.0, splat_@V(-1.0), r);
}
",
    ),
    t(
        "log1p",
        &["log", "selm"],
        "static @V log1p_@V(@V x) {
  @V u = x + 1.0;
  @V r = log_@V(u) * x / (u - 1.0);
  return selm_@V(u == 1.0, x, selm_@V(u == __builtin_inf(), u, r));
}
",
    ),
    t(
        "sinh",
        &["exp", "expm1", "selm"],
        "static @V sinh_@V(@V x) {
  @I s = (@I)x & (-0x7fffffffffffffff - 1);
  @V a = (@V)((@I)x ^ s);
  @V m = expm1_@V(a);
  @V h = exp_@V(a * 0.5);
  @V r = selm_@V(a > 40.0, (h * 0.5) * h, (m + m / (m + 1.0)) * 0.5);
  return (@V)((@I)r | s);
}
",
    ),
    t(
        "cosh",
        &["exp", "selm"],
        "static @V cosh_@V(@V x) {
  @V h = exp_@V(x * 0.5);
  @V g = exp_@V(x * -0.5);
  @V e = h * h;
  @V r = (e + 1.0 / e) * 0.5;
  r = selm_@V(x > 40.0, (h * 0.5) * h, r);
  return selm_@V(x < -40.0, (g * 0.5) * g, r);
}
",
    ),
    t(
        "tanh",
        &["expm1", "selm"],
        "static @V tanh_@V(@V x) {
  @I s = (@I)x & (-0x7fffffffffffffff - 1);
  @V a = (@V)((@I)x ^ s);
  @V m = expm1_@V(a * -2.0);
  @V r = -m / (m + 2.0);
  return (@V)((@I)r | s);
}
",
    ),
    t("sigmoid", &["exp"], "static @V sigmoid_@V(@V x) { return 1.0 / (1.0 + exp_@V(-x)); }\n"),
    t(
        "asinh",
        &["log", "log1p", "sqrt", "selm"],
        "static @V asinh_@V(@V x) {
  @I s = (@I)x & (-0x7fffffffffffffff - 1);
  @V a = (@V)((@I)x ^ s);
  @V q = a * a;
  @V r = log1p_@V(a + q / (1.0 + sqrt_@V(q + 1.0)));
  r = selm_@V(a > 1e8, log_@V(a) + 0.6931471805599453, r);
  return (@V)((@I)r | s);
}
",
    ),
    t(
        "acosh",
        &["log", "log1p", "sqrt", "selm"],
        "static @V acosh_@V(@V x) {
  @V d = x - 1.0;
  @V r = log1p_@V(d + sqrt_@V(d * 2.0 + d * d));
  r = selm_@V(x > 1e8, log_@V(x) + 0.6931471805599453, r);
  return selm_@V(x >= 1.0, r, splat_@V(__builtin_nan(\"\")));
}
",
    ),
    t(
        "atanh",
        &["log1p"],
        "static @V atanh_@V(@V x) {
  @I s = (@I)x & (-0x7fffffffffffffff - 1);
  @V a = (@V)((@I)x ^ s);
  @V r = log1p_@V((a + a) / (1.0 - a)) * 0.5;
  return (@V)((@I)r | s);
}
",
    ),
    // atan(t) = t + t^3 P(t^2) on |t| <= sqrt(2) - 1, relative error 2e-18.
    t(
        "atan",
        &["selm"],
        "static @V atan_@V(@V x) {
  @I s = (@I)x & (-0x7fffffffffffffff - 1);
  @V a = (@V)((@I)x ^ s);
  @I big = a > 2.414213562373095;
  @I mid = (a > 0.4142135623730951) & ~big;
  @V u = selm_@V(big, splat_@V(-1.0), selm_@V(mid, a - 1.0, a));
  @V v = selm_@V(big, a, selm_@V(mid, a + 1.0, splat_@V(1.0)));
  @V q = u / v;
  @V z = q * q;
  @V p = z * -0.017907193245930784 + 0.03806479282614769;
  p = p * z - 0.05039323321252053;
  p = p * z + 0.058478954314391526;
  p = p * z - 0.06663105137936942;
  p = p * z + 0.07692060328678167;
  p = p * z - 0.09090897764857306;
  p = p * z + 0.11111110783721033;
  p = p * z - 0.14285714280201714;
  p = p * z + 0.19999999999953633;
  p = p * z - 0.333333333333332;
  p = p * (z * q) + q;
  p = p + selm_@V(big, splat_@V(6.123233995736766e-17), selm_@V(mid, splat_@V(3.061616997868383e-17), splat_@V(0.0)));
  p = p + selm_@V(big, splat_@V(1.5707963267948966), selm_@V(mid, splat_@V(0.7853981633974483), splat_@V(0.0)));
  return (@V)((@I)p | s);
}
",
    ),
    t(
        "asin",
        &["atan", "sqrt"],
        "static @V asin_@V(@V x) { return atan_@V(x / sqrt_@V((1.0 - x) * (1.0 + x))); }\n",
    ),
    t(
        "acos",
        &["atan", "sqrt"],
        "static @V acos_@V(@V x) { return 2.0 * atan_@V(sqrt_@V((1.0 - x) / (1.0 + x))); }\n",
    ),
    // x = k pi/2 + r, |r| <= pi/4. Beyond 2^19 the product with 2/pi is taken from 192 of its bits (Payne and Hanek).
    t(
        "trig",
        &[],
        "static const unsigned long long two_over_pi_@V[21] = {0,
  0xa2f9836e4e441529, 0xfc2757d1f534ddc0, 0xdb6295993c439041, 0xfe5163abdebbc561, 0xb7246e3a424dd2e0,
  0x06492eea09d1921c, 0xfe1deb1cb129a73e, 0xe88235f52ebb4484, 0xe99c7026b45f7e41, 0x3991d639835339f4,
  0x9c845f8bbdf9283b, 0x1ff897ffde05980f, 0xef2f118b5a0a6d1f, 0x6d367ecf27cb09b7, 0x4f463f669e5fea2d,
  0x7527bac7ebe5f17b, 0x3d0739f78a5292ea, 0x6bfb5fb11f8d5d08, 0x56033046fc7b6bab, 0xf0cfbc209af4361d};
static long long far_@V(double x, double *r) {
  unsigned long long b, m, w[4], v[3];
  __builtin_memcpy(&b, &x, 8);
  int e = (int)((b >> 52) & 2047) - 1075;
  if (e > 971) { *r = x - x; return 0; }
  m = (b & 0xfffffffffffffULL) | 0x10000000000000ULL;
  int at = e + 62;
  for (int i = 0; i < 4; i++) w[i] = at / 64 + i < 21 ? two_over_pi_@V[at / 64 + i] : 0;
  int sh = at % 64;
  for (int i = 0; i < 3; i++) v[i] = sh ? (w[i] << sh) | (w[i + 1] >> (64 - sh)) : w[i];
  unsigned __int128 lo = (unsigned __int128)m * v[2];
  unsigned __int128 hi = ((unsigned __int128)m * v[0] << 64) + (unsigned __int128)m * v[1] + (lo >> 64);
  long long k = (long long)(unsigned long long)(hi >> 126);
  unsigned __int128 f = (hi << 2) | ((unsigned long long)lo >> 62);
  long long top = (long long)(unsigned long long)(f >> 64);
  if (top < 0) k++;
  double y = ((double)top * 0x1p-64 + (double)(unsigned long long)f * 0x1p-128) * 1.5707963267948966;
  int neg = (int)(b >> 63);
  *r = neg ? -y : y;
  return neg ? -k : k;
}
static @V trig_@V(@V x, @I *quadrant) {
  @V t = x * 0.6366197723675814 + 6755399441055744.0;
  @V n = t - 6755399441055744.0;
  @V r = x - n * 1.5707963267341256;
  r = r - n * 6.077100506303966e-11;
  r = r - n * 2.0222662487959506e-21;
  @I k = (@I)t;
  for (int l = 0; l < @N; l++) {
    if (!(x[l] < 524288.0 && x[l] > -524288.0)) {
      double y;
      k[l] = far_@V(x[l], &y);
      r[l] = y;
    }
  }
  *quadrant = k;
  return r;
}
static @V sin_kernel_@V(@V r) {
  @V z = r * r;
  @V p = z * 1.589666530349796e-10 - 2.505075593822871e-08;
  p = p * z + 2.7557313678496326e-06;
  p = p * z - 0.00019841269829770587;
  p = p * z + 0.00833333333332237;
  p = p * z - 0.16666666666666632;
  return p * (z * r) + r;
}
static @V cos_kernel_@V(@V r) {
  @V z = r * r;
  @V p = z * -1.1359559232113965e-11 + 2.087572162152388e-09;
  p = p * z - 2.7557314340640275e-07;
  p = p * z + 2.48015872894434e-05;
  p = p * z - 0.0013888888888874064;
  p = p * z + 0.0416666666666666;
  return (p * (z * z) - z * 0.5) + 1.0;
}
",
    ),
    t(
        "sin",
        &["trig", "selm"],
        "static @V sin_@V(@V x) {
  @I k;
  @V r = trig_@V(x, &k);
  @V y = selm_@V((k & 1) == 1, cos_kernel_@V(r), sin_kernel_@V(r));
  y = (@V)((@I)y ^ ((k & 2) << 62));
  return selm_@V(x == 0.0, x, y);
}
",
    ),
    t(
        "cos",
        &["trig", "selm"],
        "static @V cos_@V(@V x) {
  @I k;
  @V r = trig_@V(x, &k);
  @V y = selm_@V((k & 1) == 1, sin_kernel_@V(r), cos_kernel_@V(r));
  return (@V)((@I)y ^ (((k + 1) & 2) << 62));
}
",
    ),
    t(
        "tan",
        &["trig", "selm"],
        "static @V tan_@V(@V x) {
  @I k;
  @V r = trig_@V(x, &k);
  @V s = sin_kernel_@V(r), c = cos_kernel_@V(r);
  @I odd = (k & 1) == 1;
  @V y = selm_@V(odd, -c, s) / selm_@V(odd, s, c);
  return selm_@V(x == 0.0, x, y);
}
",
    ),
    // The series of Abramowitz and Stegun 7.1.6 near zero, their continued fraction 7.1.14 of erfc beyond.
    t(
        "erf",
        &["exp", "selm"],
        "static @V erf_@V(@V x) {
  @I s = (@I)x & (-0x7fffffffffffffff - 1);
  @V a = (@V)((@I)x ^ s);
  @V z = a * a;
  @V term = a, sum = a;
  for (int n = 1; n < 60; n++) {
    term = term * z * (2.0 / (2.0 * n + 1.0));
    sum = sum + term;
  }
  @V e = exp_@V(-z);
  @V near = e * sum * 1.1283791670955126;
  @V f = splat_@V(0.0);
  for (int k = 60; k > 0; k--) f = (k * 0.5) / (a + f);
  @V far = 1.0 - e * 0.5641895835477563 / (a + f);
  @V r = selm_@V(a < 2.5, near, far);
  r = selm_@V(a > 6.5, splat_@V(1.0), r);
  r = selm_@V(a != a, a, r);
  return (@V)((@I)r | s);
}
",
    ),
    t(
        "pow",
        &["exp", "log", "floor", "selm"],
        "static @V pow_@V(@V x, @V y) {
  @I s = (@I)x & (-0x7fffffffffffffff - 1);
  @V a = (@V)((@I)x ^ s);
  @V r = exp_@V(y * log_@V(a));
  @V h = y * 0.5;
  @I whole = floor_@V(y) == y;
  @I odd = whole & (floor_@V(h) != h);
  r = selm_@V((x < 0.0) & (a < __builtin_inf()) & ~whole, splat_@V(__builtin_nan(\"\")), r);
  r = (@V)((@I)r ^ (s & odd));
  @V b = (@V)((@I)y & 0x7fffffffffffffff);
  r = selm_@V((a == 1.0) & (b == __builtin_inf()), splat_@V(1.0), r);
  return selm_@V((y == 0.0) | (x == 1.0), splat_@V(1.0), r);
}
",
    ),
];
