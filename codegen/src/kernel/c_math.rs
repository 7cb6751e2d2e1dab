//! The C text of the math functions: polynomials on vectors, for f32 and f64.
//!
//! In a template `@V` stands for the vector type (`f32x16`, `f64x8`, …), `@I` for the integer vector of the same shape
//! and `@N` for the number of lanes. Every template works on vectors alone; the printer runs scalars through four
//! lanes. The polynomials are minimax fits (Remez exchange at 60 digits) of the functions that stand beside them; the
//! errors given are those of the fit. Argument reduction is Cody and Waite's with constants whose leading parts have
//! trailing zeros, so that no fused multiply-add is needed for it.

use of_ir::DType;

/// A function of vectors, in C.
#[derive(Debug)]
pub(super) struct Template {
    /// Its name before the type suffix.
    pub name: &'static str,
    /// The element type it is for.
    pub elem: DType,
    /// Functions that it calls, of the same type unless the name ends in `:f64`.
    pub needs: &'static [&'static str],
    /// The text.
    pub text: &'static str,
}

const fn t(name: &'static str, elem: DType, needs: &'static [&'static str], text: &'static str) -> Template {
    Template { name, elem, needs, text }
}

/// The template of a function for an element type.
pub(super) fn template(name: &str, elem: DType) -> Option<&'static Template> {
    F32.iter().chain(super::c_math64::F64).find(|t| t.name == name && t.elem == elem)
}

const F32: &[Template] = &[
    // exp(r) = 1 + r + r^2 P(r) on |r| <= ln(2)/2, relative error 3e-9; results must be normal numbers.
    t(
        "expn",
        DType::F32,
        &["ldexp2"],
        "static INLINE @V expn_@V(@V x) {
  @V t = x * 1.44269504f + 12582912.0f;
  @V n = t - 12582912.0f;
  @V r = x - n * 0.69140625f;
  r = r - n * 0.00174093056f;
  @V p = r * 0.00138146093f + 0.00836871006f;
  p = p * r + 0.041668389f;
  p = p * r + 0.166665211f;
  p = p * r + 0.49999994f;
  p = p * (r * r) + r;
  p = p + 1.0f;
#if defined(__AVX512F__) && !defined(__clang__) && @N == 16
  return __builtin_ia32_scalefps512_mask(p, n, p, (unsigned short)-1, 4);
#else
  return (@V)((@I)p + (((@I)t) << 23));
#endif
}
",
    ),
    t(
        "exp",
        DType::F32,
        &["xmin", "xmax"],
        "static INLINE @V exp_@V(@V x) {
  x = xmin_@V(splat_@V(89.0f), xmax_@V(splat_@V(-105.0f), x));
  @V t = x * 1.44269504f + 12582912.0f;
  @V n = t - 12582912.0f;
  @V r = x - n * 0.69140625f;
  r = r - n * 0.00174093056f;
  @V p = r * 0.00138146093f + 0.00836871006f;
  p = p * r + 0.041668389f;
  p = p * r + 0.166665211f;
  p = p * r + 0.49999994f;
  p = p * (r * r) + r;
  p = p + 1.0f;
#if defined(__AVX512F__) && !defined(__clang__) && @N == 16
  return __builtin_ia32_scalefps512_mask(p, n, p, (unsigned short)-1, 4);
#else
  @I i = (@I)t - 0x4b400000;
  @I h = i >> 1;
  return p * (@V)((h + 127) << 23) * (@V)((i - h + 127) << 23);
#endif
}
",
    ),
    // log(1 + f) = f - f^2/2 + f^3 P(f) on sqrt(1/2) <= 1 + f < sqrt(2), relative error 6e-9.
    t(
        "log",
        DType::F32,
        &["selm"],
        "static INLINE @V log_@V(@V x) {
  @I tiny = x < 1.17549435e-38f;
  @V y = selm_@V(tiny, x * 8388608.0f, x);
  @I b = (@I)y - 0x3f3504f3;
  @V m = (@V)((b & 0x007fffff) + 0x3f3504f3);
  @V e = __builtin_convertvector((b >> 23) - (tiny & 23), @V);
  @V f = m - 1.0f;
  @V p = f * -0.0763419792f + 0.127613872f;
  p = p * f - 0.131602049f;
  p = p * f + 0.142017871f;
  p = p * f - 0.166233584f;
  p = p * f + 0.200012252f;
  p = p * f - 0.250008196f;
  p = p * f + 0.333333313f;
  @V q = f * f;
  p = p * (q * f) + e * 0.00174093056f;
  p = p - q * 0.5f;
  p = p + f;
  p = e * 0.69140625f + p;
  p = selm_@V(x == __builtin_inff(), x, p);
  p = selm_@V(x == 0.0f, splat_@V(-__builtin_inff()), p);
  return selm_@V(x >= 0.0f, p, splat_@V(__builtin_nanf(\"\")));
}
",
    ),
    // tanh(x) = x + x^3 P(x^2) on |x| < 0.625, relative error 4e-9; 1 - 2 / (exp(2|x|) + 1) beyond.
    t(
        "tanh",
        DType::F32,
        &["selm", "xmin", "expn"],
        "static INLINE @V tanh_@V(@V x) {
  @I s = (@I)x & (-2147483647 - 1);
  @V a = (@V)((@I)x ^ s);
  @V z = a * a;
  @V p = z * -0.0057170419f + 0.0206505843f;
  p = p * z - 0.0537434965f;
  p = p * z + 0.133314908f;
  p = p * z - 0.333332837f;
  p = p * (z * a) + a;
  @V b = xmin_@V(splat_@V(10.0f), a);
  @V q = 1.0f - 2.0f / (expn_@V(b + b) + 1.0f);
  return (@V)((@I)selm_@V(a < 0.625f, p, q) | s);
}
",
    ),
    // erf(x) = x P(x^2) on |x| < 1, relative error 1e-9; 1 - exp(Q(|x|)) on 1 <= |x| < 3.95, error 1e-9; 1 beyond.
    t(
        "erf",
        DType::F32,
        &["selm", "xmin", "expn"],
        "static INLINE @V erf_@V(@V x) {
  @I s = (@I)x & (-2147483647 - 1);
  @V a = (@V)((@I)x ^ s);
  @V z = a * a;
  @V p = z * 7.85383963e-05f - 0.000801018672f;
  p = p * z + 0.00518832682f;
  p = p * z - 0.026853811f;
  p = p * z + 0.112835854f;
  p = p * z - 0.37612626f;
  p = p * z + 1.12837911f;
  p = p * a;
  @V b = xmin_@V(splat_@V(3.95f), a);
  @V q = b * 0.000185573226f - 0.0029395998f;
  q = q * b + 0.0218052883f;
  q = q * b - 0.103037313f;
  q = q * b - 0.638225734f;
  q = q * b - 1.12704003f;
  q = q * b - 0.000353728974f;
  q = 1.0f - expn_@V(q);
  return (@V)((@I)selm_@V(a < 1.0f, p, q) | s);
}
",
    ),
    t(
        "sigmoid",
        DType::F32,
        &["xmin", "xmax", "expn"],
        "static INLINE @V sigmoid_@V(@V x) {
  @V c = xmin_@V(splat_@V(87.0f), xmax_@V(splat_@V(-87.0f), x));
  return 1.0f / (1.0f + expn_@V(-c));
}
",
    ),
];
