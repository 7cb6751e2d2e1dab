//! The C text of helpers that are not math functions: selection, extrema, rounding, integer division, conversion.
//!
//! `@V`, `@I`, `@E`, `@N`: vector type, its mask type, element type, lanes. Builtins of one compiler and instruction
//! set stand behind the preprocessor, each with a portable text beside it.

use of_ir::DType;

use super::types::Ty;

/// Whether a helper takes one operand.
pub(super) fn is_unary(name: &str) -> bool {
    !matches!(name, "pow" | "max" | "min" | "xmax" | "xmin" | "mod" | "fmod" | "div" | "shl" | "shr")
}

/// Helpers that a vector helper calls.
pub(super) fn needs(name: &str) -> &'static [&'static str] {
    match name {
        "max" => &["xmax", "selm"],
        "min" => &["xmin", "selm"],
        "floor" | "ceil" => &["round", "selm"],
        "round" | "sign" => &["selm"],
        _ => &[],
    }
}

/// The text of a helper on vectors.
pub(super) fn vector(name: &str, ty: Ty) -> Option<&'static str> {
    let float = ty.elem.is_float();
    let bytes = ty.elem.bits().unwrap_or(8) / 8 * ty.lanes;
    Some(match (name, ty.elem, bytes) {
        ("selm", ..) => "static INLINE @V selm_@V(@I m, @V a, @V b) { return (@V)(((@I)a & m) | ((@I)b & ~m)); }\n",
        ("xmax", DType::F32, 64) => XMAX_PS512,
        ("xmax", DType::F32, 32) => XMAX_PS256,
        ("xmax", DType::F32, 16) => XMAX_PS,
        ("xmin", DType::F32, 64) => XMIN_PS512,
        ("xmin", DType::F32, 32) => XMIN_PS256,
        ("xmin", DType::F32, 16) => XMIN_PS,
        ("xmax", ..) => "static INLINE @V xmax_@V(@V a, @V b) { @I m = a > b; return (@V)(((@I)a & m) | ((@I)b & ~m)); }\n",
        ("xmin", ..) => "static INLINE @V xmin_@V(@V a, @V b) { @I m = a < b; return (@V)(((@I)a & m) | ((@I)b & ~m)); }\n",
        ("max", ..) if float => "static INLINE @V max_@V(@V a, @V b) { return selm_@V(a != a, a, xmax_@V(a, b)); }\n",
        ("min", ..) if float => "static INLINE @V min_@V(@V a, @V b) { return selm_@V(a != a, a, xmin_@V(a, b)); }\n",
        ("max", ..) => "static INLINE @V max_@V(@V a, @V b) { return xmax_@V(a, b); }\n",
        ("min", ..) => "static INLINE @V min_@V(@V a, @V b) { return xmin_@V(a, b); }\n",
        ("round", DType::F32, 64) => ROUND_PS512,
        ("floor", DType::F32, 64) => FLOOR_PS512,
        ("ceil", DType::F32, 64) => CEIL_PS512,
        ("round", DType::F32, _) => {
            "static INLINE @V round_@V(@V x) {
  @I s = (@I)x & (-2147483647 - 1);
  @V a = (@V)((@I)x ^ s);
  @V t = (a + 8388608.0f) - 8388608.0f;
  return (@V)((@I)selm_@V(a < 8388608.0f, t, a) | s);
}
"
        }
        ("round", DType::F64, _) => {
            "static INLINE @V round_@V(@V x) {
  @I s = (@I)x & (-0x7fffffffffffffff - 1);
  @V a = (@V)((@I)x ^ s);
  @V t = (a + 4503599627370496.0) - 4503599627370496.0;
  return (@V)((@I)selm_@V(a < 4503599627370496.0, t, a) | s);
}
"
        }
        ("floor", ..) if float => {
            "static INLINE @V floor_@V(@V x) { @V t = round_@V(x); return selm_@V(t > x, t - 1, t); }\n"
        }
        ("ceil", ..) if float => {
            "static INLINE @V ceil_@V(@V x) { @V t = round_@V(x); return selm_@V(t < x, t + 1, t); }\n"
        }
        ("sqrt", DType::F32, 64) => SQRT_PS512,
        ("sqrt", DType::F32, _) => "static INLINE @V sqrt_@V(@V x) { @V r; for (int l = 0; l < @N; l++) r[l] = __builtin_sqrtf(x[l]); return r; }\n",
        ("sqrt", DType::F64, 64) => SQRT_PD512,
        ("sqrt", DType::F64, _) => "static INLINE @V sqrt_@V(@V x) { @V r; for (int l = 0; l < @N; l++) r[l] = __builtin_sqrt(x[l]); return r; }\n",
        ("abs", DType::F32, _) => "static INLINE @V abs_@V(@V x) { return (@V)((@I)x & 0x7fffffff); }\n",
        ("abs", DType::F64, _) => "static INLINE @V abs_@V(@V x) { return (@V)((@I)x & 0x7fffffffffffffff); }\n",
        ("sign", ..) if float => {
            "static INLINE @V sign_@V(@V x) { return selm_@V(x > 0, splat_@V(1), selm_@V(x < 0, splat_@V(-1), x)); }\n"
        }
        // Rounding a float to bfloat16: to nearest even on the upper half of its bits; NaN stays NaN.
        ("to_bf16", DType::F32, _) => {
            "static INLINE @I to_bf16_@V(@V x) {
  @I b = (@I)x;
  @I r = (b + 0x7fff + ((b >> 16) & 1)) >> 16;
  @I n = x != x;
  return ((r & ~n) | (0x7fc0 & n)) & 0xffff;
}
"
        }
        ("from_bf16", DType::F32, _) => "static INLINE @V from_bf16_@V(@I b) { return (@V)(b << 16); }\n",
        // binary16 by integer arithmetic: normal, subnormal and special numbers.
        ("to_f16", DType::F32, _) => {
            "static INLINE @I to_f16_@V(@V x) {
  @I b = (@I)x, s = (b >> 16) & 0x8000, a = b & 0x7fffffff;
  @I normal = (a + 0x0fff + ((a >> 13) & 1) - 0x38000000) >> 13;
  @I small = (@I)((@V)a + 0.5f) - 0x3f000000;
  @I is_small = a < 0x38800000, is_big = a >= 0x477ff000, is_nan = a > 0x7f800000;
  @I r = (small & is_small) | (normal & ~is_small);
  r = (0x7c00 & is_big) | (r & ~is_big);
  r = (0x7e00 & is_nan) | (r & ~is_nan);
  return r | s;
}
"
        }
        ("from_f16", DType::F32, _) => {
            "static INLINE @V from_f16_@V(@I h) {
  @I s = (h & 0x8000) << 16, a = (h & 0x7fff) << 13;
  @I special = a >= 0x0f800000, small = a < 0x00800000;
  @V normal = (@V)(a + 0x38000000);
  @V tiny = (@V)(a + 0x38800000) - 6.103515625e-05f;
  @I r = ((@I)tiny & small) | ((@I)normal & ~small);
  r = ((a + 0x70000000) & special) | (r & ~special);
  return (@V)(r | s);
}
"
        }
        // Truncation that saturates; NaN gives 0. The largest float below 2^31 is 2147483520.
        ("to_i32", DType::F32, _) => {
            "static INLINE @I to_i32_@V(@V x) {
  @I high = x >= 2147483648.0f, low = x < -2147483648.0f, ok = ~(high | low) & (x == x);
  @I r = __builtin_convertvector((@V)((@I)x & ok), @I);
  return r | (high & 2147483647) | (low & (-2147483647 - 1));
}
"
        }
        _ => return None,
    })
}

/// The text of a helper on scalars.
pub(super) fn scalar(name: &str, elem: DType) -> Option<&'static str> {
    let float = elem.is_float();
    Some(match name {
        "max" if float => "static INLINE @E max_@E(@E a, @E b) { return a != a || a > b ? a : b; }\n",
        "min" if float => "static INLINE @E min_@E(@E a, @E b) { return a != a || a < b ? a : b; }\n",
        "max" => "static INLINE @E max_@E(@E a, @E b) { return a > b ? a : b; }\n",
        "min" => "static INLINE @E min_@E(@E a, @E b) { return a < b ? a : b; }\n",
        "fmod" if elem == DType::F64 => FMOD64,
        "fmod" if elem == DType::F32 => FMOD32,
        "mod" if elem == DType::F64 => MOD64,
        "mod" if elem == DType::F32 => MOD32,
        "div" if elem.is_signed_int() => {
            "static INLINE @E div_@E(@E a, @E b) { return b == 0 ? 0 : b == -1 ? (@E)-(u64)a : (@E)(a / b); }\n"
        }
        "div" => "static INLINE @E div_@E(@E a, @E b) { return b == 0 ? 0 : (@E)(a / b); }\n",
        "fmod" if elem.is_signed_int() => {
            "static INLINE @E fmod_@E(@E a, @E b) { return b == 0 || b == -1 ? 0 : (@E)(a % b); }\n"
        }
        "mod" if elem.is_signed_int() => {
            "static INLINE @E mod_@E(@E a, @E b) {
  if (b == 0 || b == -1) return 0;
  @E r = (@E)(a % b);
  return r != 0 && (r < 0) != (b < 0) ? (@E)(r + b) : r;
}
"
        }
        "fmod" => "static INLINE @E fmod_@E(@E a, @E b) { return b == 0 ? 0 : (@E)(a % b); }\n",
        "mod" => "static INLINE @E mod_@E(@E a, @E b) { return b == 0 ? 0 : (@E)(a % b); }\n",
        // A negative power of an integer is 1, -1 or, truncated, 0; of zero it saturates as the conversion from
        // infinity does.
        "pow" if elem.is_signed_int() => {
            "static @E pow_@E(@E a, @E n) {
  u64 r = 1, x = (u64)(i64)a;
  if (n < 0) return a == 1 ? 1 : a == -1 ? (n & 1 ? -1 : 1) : a == 0 ? (@E)(((u64)1 << (sizeof(@E) * 8 - 1)) - 1) : 0;
  for (u64 k = (u64)n; k; k >>= 1) { if (k & 1) r *= x; x *= x; }
  return (@E)r;
}
"
        }
        "pow" if elem.is_int() => {
            "static @E pow_@E(@E a, @E n) {
  u64 r = 1, x = a;
  for (u64 k = n; k; k >>= 1) { if (k & 1) r *= x; x *= x; }
  return (@E)r;
}
"
        }
        "shl" => "static INLINE @E shl_@E(@E a, @E n) { return (u64)n < sizeof(@E) * 8 ? (@E)((u64)a << n) : 0; }\n",
        "shr" => "static INLINE @E shr_@E(@E a, @E n) { return (u64)n < sizeof(@E) * 8 ? (@E)(a >> n) : 0; }\n",
        "abs" if elem.is_signed_int() => "static INLINE @E abs_@E(@E a) { return a < 0 ? (@E)-(u64)a : a; }\n",
        "abs" if elem.is_int() => "static INLINE @E abs_@E(@E a) { return a; }\n",
        "sign" if elem.is_int() => "static INLINE @E sign_@E(@E a) { return (@E)((a > 0) - (a != 0 && !(a > 0))); }\n",
        _ => return None,
    })
}

// The remainder of doubles, exact: long division on the significands.
const FMOD64: &str = "static f64 fmod_f64(f64 x, f64 y) {
  u64 a, b, s, r;
  __builtin_memcpy(&a, &x, 8);
  __builtin_memcpy(&b, &y, 8);
  s = a & (1ULL << 63); a ^= s; b &= ~(1ULL << 63);
  if (b == 0 || a >= 0x7ff0000000000000ULL || b > 0x7ff0000000000000ULL) return (x * y) / (x * y) * __builtin_nan(\"\");
  if (a < b) return x;
  int ea = (int)(a >> 52), eb = (int)(b >> 52);
  u64 m = 0xfffffffffffffULL, h = 1ULL << 52;
  u64 ma = ea ? (a & m) | h : a, mb = eb ? (b & m) | h : b;
  if (!ea) ea = 1;
  if (!eb) eb = 1;
  for (; ea > eb; ea--) { if (ma >= mb) ma -= mb; ma <<= 1; }
  if (ma >= mb) ma -= mb;
  if (ma == 0) r = 0;
  else {
    while (ma < h && ea > 1) { ma <<= 1; ea--; }
    r = ma >= h ? (ma & m) | ((u64)ea << 52) : ma;
  }
  r |= s;
  __builtin_memcpy(&x, &r, 8);
  return x;
}
";
// Quotients below 2^28 leave the product with the divisor exact in double precision.
const FMOD32: &str = "static f32 fmod_f32(f32 x, f32 y) {
  f64 a = x < 0 ? -(f64)x : (f64)x, b = y < 0 ? -(f64)y : (f64)y, q, r;
  if (!(a < (f64)__builtin_inff()) || !(b > 0)) return __builtin_nanf(\"\");
  if (a < b) return x;
  q = a / b;
  if (q < 268435456.0) {
    r = a - (f64)(i64)q * b;
    if (r < 0) r += b;
    if (r >= b) r -= b;
  } else {
    f64 c = b;
    r = a;
    while (c * 67108864.0 <= r) c *= 67108864.0;
    for (;; c *= 0x1p-26) {
      r = r - (f64)(i64)(r / c) * c;
      if (r < 0) r += c;
      if (r >= c) r -= c;
      if (c <= b) break;
    }
  }
  u32 bits;
  __builtin_memcpy(&bits, &x, 4);
  return bits >> 31 ? (f32)-r : (f32)r;
}
";
const MOD64: &str = "static f64 mod_f64(f64 x, f64 y) {
  f64 r = fmod_f64(x, y);
  return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}
";
const MOD32: &str = "static f32 mod_f32(f32 x, f32 y) {
  f32 r = fmod_f32(x, y);
  return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}
";

const XMAX_PS512: &str = "static INLINE @V xmax_@V(@V a, @V b) {
#if defined(__AVX512F__) && !defined(__clang__)
  return __builtin_ia32_maxps512_mask(a, b, a, (unsigned short)-1, 4);
#else
  @I m = a > b; return (@V)(((@I)a & m) | ((@I)b & ~m));
#endif
}
";
const XMIN_PS512: &str = "static INLINE @V xmin_@V(@V a, @V b) {
#if defined(__AVX512F__) && !defined(__clang__)
  return __builtin_ia32_minps512_mask(a, b, a, (unsigned short)-1, 4);
#else
  @I m = a < b; return (@V)(((@I)a & m) | ((@I)b & ~m));
#endif
}
";
const XMAX_PS256: &str = "static INLINE @V xmax_@V(@V a, @V b) {
#if defined(__AVX__)
  return __builtin_ia32_maxps256(a, b);
#else
  @I m = a > b; return (@V)(((@I)a & m) | ((@I)b & ~m));
#endif
}
";
const XMIN_PS256: &str = "static INLINE @V xmin_@V(@V a, @V b) {
#if defined(__AVX__)
  return __builtin_ia32_minps256(a, b);
#else
  @I m = a < b; return (@V)(((@I)a & m) | ((@I)b & ~m));
#endif
}
";
const XMAX_PS: &str = "static INLINE @V xmax_@V(@V a, @V b) {
#if defined(__SSE__)
  return __builtin_ia32_maxps(a, b);
#else
  @I m = a > b; return (@V)(((@I)a & m) | ((@I)b & ~m));
#endif
}
";
const XMIN_PS: &str = "static INLINE @V xmin_@V(@V a, @V b) {
#if defined(__SSE__)
  return __builtin_ia32_minps(a, b);
#else
  @I m = a < b; return (@V)(((@I)a & m) | ((@I)b & ~m));
#endif
}
";
const ROUND_PS512: &str = "static INLINE @V round_@V(@V x) {
#if defined(__AVX512F__) && !defined(__clang__)
  return __builtin_ia32_rndscaleps_mask(x, 8, x, (unsigned short)-1, 4);
#else
  @I s = (@I)x & (-2147483647 - 1);
  @V a = (@V)((@I)x ^ s);
  @V t = (a + 8388608.0f) - 8388608.0f;
  return (@V)((@I)selm_@V(a < 8388608.0f, t, a) | s);
#endif
}
";
const FLOOR_PS512: &str = "static INLINE @V floor_@V(@V x) {
#if defined(__AVX512F__) && !defined(__clang__)
  return __builtin_ia32_rndscaleps_mask(x, 9, x, (unsigned short)-1, 4);
#else
  @V t = round_@V(x); return selm_@V(t > x, t - 1, t);
#endif
}
";
const CEIL_PS512: &str = "static INLINE @V ceil_@V(@V x) {
#if defined(__AVX512F__) && !defined(__clang__)
  return __builtin_ia32_rndscaleps_mask(x, 10, x, (unsigned short)-1, 4);
#else
  @V t = round_@V(x); return selm_@V(t < x, t + 1, t);
#endif
}
";
const SQRT_PS512: &str = "static INLINE @V sqrt_@V(@V x) {
#if defined(__AVX512F__) && !defined(__clang__)
  return __builtin_ia32_sqrtps512_mask(x, x, (unsigned short)-1, 4);
#else
  @V r; for (int l = 0; l < @N; l++) r[l] = __builtin_sqrtf(x[l]); return r;
#endif
}
";
const SQRT_PD512: &str = "static INLINE @V sqrt_@V(@V x) {
#if defined(__AVX512F__) && !defined(__clang__)
  return __builtin_ia32_sqrtpd512_mask(x, x, (unsigned char)-1, 4);
#else
  @V r; for (int l = 0; l < @N; l++) r[l] = __builtin_sqrt(x[l]); return r;
#endif
}
";
