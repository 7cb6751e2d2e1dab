//! The types and helper functions that a printed kernel needs, and no others.

use std::collections::BTreeSet;
use std::fmt::Write;

use of_ir::DType;

use super::c_math;
use super::ir::LaneOp;
use super::print_c::PrintError;
use super::types::Ty;

/// Text in front of every kernel. The memory functions are there because compilers call them for copies and clears;
/// what a kernel does not reach is dropped from its blob.
const HEAD: &str = "\
typedef double f64; typedef float f32;
typedef signed char i8; typedef short i16; typedef int i32; typedef long long i64;
typedef unsigned char u8; typedef unsigned short u16; typedef unsigned int u32; typedef unsigned long long u64;
#define INLINE inline __attribute__((always_inline))
#define LOCAL __attribute__((visibility(\"hidden\")))
LOCAL void *memcpy(void *d, const void *s, unsigned long n) {
  for (unsigned long i = 0; i < n; i++) ((u8 *)d)[i] = ((const u8 *)s)[i];
  return d;
}
LOCAL void *memset(void *d, int c, unsigned long n) {
  for (unsigned long i = 0; i < n; i++) ((u8 *)d)[i] = (u8)c;
  return d;
}
LOCAL void *memmove(void *d, const void *s, unsigned long n) {
  if ((const u8 *)d < (const u8 *)s) return memcpy(d, s, n);
  while (n--) ((u8 *)d)[n] = ((const u8 *)s)[n];
  return d;
}
LOCAL int memcmp(const void *a, const void *b, unsigned long n) {
  for (unsigned long i = 0; i < n; i++)
    if (((const u8 *)a)[i] != ((const u8 *)b)[i]) return ((const u8 *)a)[i] - ((const u8 *)b)[i];
  return 0;
}
static INLINE i64 div_floor(i64 a, i64 b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }
static INLINE i64 mod_floor(i64 a, i64 b) { i64 r = a % b; return r < 0 ? r + b : r; }
";

/// The C spelling of an element type in memory.
pub(super) fn elem_name(d: DType) -> Result<&'static str, PrintError> {
    Ok(match d {
        DType::F64 => "f64",
        DType::F32 => "f32",
        // Stored as their bits.
        DType::F16 | DType::BF16 => "u16",
        DType::I8 => "i8",
        DType::I16 => "i16",
        DType::I32 => "i32",
        DType::I64 => "i64",
        DType::U8 | DType::Bool => "u8",
        DType::U16 => "u16",
        DType::U32 => "u32",
        DType::U64 => "u64",
        _ => return Err(PrintError::Type(d)),
    })
}

/// The C type of a value in a register. Truth values are 32-bit masks: 0 or all ones.
pub(super) fn reg_name(ty: Ty) -> Result<String, PrintError> {
    let elem = if ty.elem == DType::Bool { "i32" } else { elem_name(ty.elem)? };
    Ok(if ty.lanes == 1 { elem.to_string() } else { format!("{elem}x{}", ty.lanes) })
}

/// The signed integer type as wide as an element.
pub(super) fn mask_elem(d: DType) -> DType {
    match d.bits() {
        Some(64) => DType::I64,
        Some(16) => DType::I16,
        Some(8) if d != DType::Bool => DType::I8,
        _ => DType::I32,
    }
}

/// Collects helpers in the order in which C needs them.
#[derive(Debug, Default)]
pub(super) struct Prelude {
    have: BTreeSet<String>,
    text: String,
}

impl Prelude {
    /// The whole text.
    pub fn finish(self) -> String {
        format!("{HEAD}{}", self.text)
    }

    /// Adds a text under a key, once. Returns whether it was new, and then the text is to be added by the caller.
    fn new_key(&mut self, key: String) -> bool {
        self.have.insert(key)
    }

    /// The C name of a register type, declared.
    pub fn reg(&mut self, ty: Ty) -> Result<String, PrintError> {
        let name = reg_name(ty)?;
        if ty.lanes > 1 && self.new_key(name.clone()) {
            let elem = name.split('x').next().unwrap_or("i32");
            let size = match elem {
                "f64" | "i64" | "u64" => 8,
                "f32" | "i32" | "u32" => 4,
                "i16" | "u16" => 2,
                _ => 1,
            };
            let bytes = size * ty.lanes;
            let _ = writeln!(
                self.text,
                "typedef {elem} {name} __attribute__((vector_size({bytes})));\n\
                 typedef {elem} {name}u __attribute__((vector_size({bytes}), aligned({size}), may_alias));"
            );
            let all = vec!["x"; ty.lanes].join(", ");
            let _ = writeln!(self.text, "static INLINE {name} splat_{name}({elem} x) {{ return ({name}){{{all}}}; }}");
        }
        Ok(name)
    }

    /// A named helper of a vector or scalar type; returns the C name to call.
    pub fn function(&mut self, name: &str, ty: Ty) -> Result<String, PrintError> {
        let v = self.reg(ty)?;
        let full = format!("{name}_{v}");
        if self.have.contains(&full) {
            return Ok(full);
        }
        let text = if ty.lanes == 1 { self.scalar_text(name, ty, &full)? } else { self.vector_text(name, ty, &v)? };
        if self.new_key(full.clone()) {
            self.text.push_str(&text);
        }
        Ok(full)
    }

    fn vector_text(&mut self, name: &str, ty: Ty, v: &str) -> Result<String, PrintError> {
        if let Some(t) = c_math::template(name, ty.elem) {
            self.function("selm", ty)?;
            for need in t.needs {
                if *need != "ldexp2" {
                    self.function(need, ty)?;
                }
            }
            return self.fill(t.text, ty);
        }
        if let Some(text) = super::c_text::vector(name, ty) {
            for need in super::c_text::needs(name) {
                self.function(need, ty)?;
            }
            return self.fill(text, ty);
        }
        // A function that exists for f64 alone serves f32 through it.
        if ty.elem == DType::F32 && c_math::template(name, DType::F64).is_some() {
            let wide = ty.with_elem(DType::F64);
            let f = self.function(name, wide)?;
            let d = self.reg(wide)?;
            let args = if name == "pow" { "@V x, @V y" } else { "@V x" };
            let call = args.split(", ").filter_map(|a| a.split(' ').nth(1));
            let call: Vec<String> = call.map(|a| format!("__builtin_convertvector({a}, {d})")).collect();
            let text = format!(
                "static INLINE @V {name}_@V({args}) {{ return __builtin_convertvector({f}({}), @V); }}\n",
                call.join(", ")
            );
            return self.fill(&text, ty);
        }
        // Lane by lane.
        let f = self.function(name, Ty::scalar(ty.elem))?;
        let one = super::c_text::is_unary(name);
        let elem = reg_name(Ty::scalar(ty.elem))?;
        Ok(if one {
            format!("static {v} {name}_{v}({v} a) {{ {v} r; for (int l = 0; l < {n}; l++) r[l] = ({elem}){f}(a[l]); return r; }}\n", n = ty.lanes)
        } else {
            format!("static {v} {name}_{v}({v} a, {v} b) {{ {v} r; for (int l = 0; l < {n}; l++) r[l] = ({elem}){f}(a[l], b[l]); return r; }}\n", n = ty.lanes)
        })
    }

    fn scalar_text(&mut self, name: &str, ty: Ty, full: &str) -> Result<String, PrintError> {
        let elem = reg_name(ty)?;
        if name == "mod" && ty.elem.is_float() {
            self.function("fmod", ty)?;
        }
        if let Some(text) = super::c_text::scalar(name, ty.elem) {
            return Ok(text.replace("@E", &elem));
        }
        // Through four lanes.
        if c_math::template(name, ty.elem).is_none()
            && super::c_text::vector(name, Ty::new(ty.elem, 4)).is_none()
            && !(ty.elem == DType::F32 && c_math::template(name, DType::F64).is_some())
        {
            return Err(PrintError::Function(name.to_string(), ty.elem));
        }
        let wide = Ty::new(ty.elem, 4);
        let f = self.function(name, wide)?;
        let w = self.reg(wide)?;
        Ok(if super::c_text::is_unary(name) {
            format!("static INLINE {elem} {full}({elem} a) {{ return {f}(splat_{w}(a))[0]; }}\n")
        } else {
            format!("static INLINE {elem} {full}({elem} a, {elem} b) {{ return {f}(splat_{w}(a), splat_{w}(b))[0]; }}\n")
        })
    }

    fn fill(&mut self, text: &str, ty: Ty) -> Result<String, PrintError> {
        let v = self.reg(ty)?;
        let i = self.reg(ty.with_elem(mask_elem(ty.elem)))?;
        let e = reg_name(Ty::scalar(ty.elem))?;
        Ok(text.replace("@V", &v).replace("@I", &i).replace("@E", &e).replace("@N", &ty.lanes.to_string()))
    }

    /// A function that shuffles two vectors: `lanes[i]` of the concatenation goes to lane `i`.
    pub fn shuffle(&mut self, ty: Ty, key: &str, lanes: &[usize]) -> Result<String, PrintError> {
        let v = self.reg(ty)?;
        let i = self.reg(ty.with_elem(mask_elem(ty.elem)))?;
        let full = format!("{key}_{v}");
        if self.new_key(full.clone()) {
            let list = lanes.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
            let _ = writeln!(
                self.text,
                "static INLINE {v} {full}({v} a, {v} b) {{\n#if defined(__clang__)\n  return __builtin_shufflevector(a, b, {list});\n\
                 #else\n  return __builtin_shuffle(a, b, ({i}){{{list}}});\n#endif\n}}"
            );
        }
        Ok(full)
    }

    /// A function that combines the lanes of a vector; `combine` prints the combination of two values.
    pub fn reduce(&mut self, op: LaneOp, ty: Ty) -> Result<String, PrintError> {
        let v = self.reg(ty)?;
        let full = format!("reduce_{op:?}_{v}");
        if self.have.contains(&full) {
            return Ok(full);
        }
        let mut body = String::new();
        let mut half = ty.lanes / 2;
        while half > 0 {
            let lanes: Vec<usize> = (0..ty.lanes).map(|l| (l + half) % ty.lanes).collect();
            let rot = self.shuffle(ty, &format!("rotate{half}"), &lanes)?;
            let value = match op {
                LaneOp::Add => format!("v + {rot}(v, v)"),
                LaneOp::Mul => format!("v * {rot}(v, v)"),
                LaneOp::Max => format!("{}(v, {rot}(v, v))", self.function("max", ty)?),
                LaneOp::Min => format!("{}(v, {rot}(v, v))", self.function("min", ty)?),
            };
            let _ = writeln!(body, "  v = {value};");
            half /= 2;
        }
        let elem = reg_name(Ty::scalar(ty.elem))?;
        if self.new_key(full.clone()) {
            let _ = writeln!(self.text, "static INLINE {elem} {full}({v} v) {{\n{body}  return v[0];\n}}");
        }
        Ok(full)
    }

    /// Loads of the first `n` lanes, the others zero.
    pub fn load_part(&mut self, ty: Ty, n: usize) -> Result<String, PrintError> {
        let v = self.reg(ty)?;
        let full = format!("load{n}_{v}");
        if self.new_key(full.clone()) {
            let elem = v.split('x').next().unwrap_or("i32");
            let masked = masked(&v, n, |t, vt, m| {
                format!("({v})__builtin_ia32_loadu{t}512_mask((const {vt} *)p, ({v_int}){{0}}, {m})", v_int = builtin_vector(t))
            });
            let bytes = "sizeof(*p)";
            let plain = format!("  {v} r = {{0}};\n  __builtin_memcpy(&r, p, {n} * {bytes});\n  return r;\n");
            let _ = writeln!(self.text, "static INLINE {v} {full}(const {elem} *p) {{");
            match masked {
                Some(m) => {
                    let _ = write!(self.text, "#if defined(__AVX512F__) && !defined(__clang__)\n  return {m};\n#else\n{plain}#endif\n}}\n");
                }
                None => {
                    let _ = write!(self.text, "{plain}}}\n");
                }
            }
        }
        Ok(full)
    }

    /// Stores of the first `n` lanes.
    pub fn store_part(&mut self, ty: Ty, n: usize) -> Result<String, PrintError> {
        let v = self.reg(ty)?;
        let full = format!("store{n}_{v}");
        if self.new_key(full.clone()) {
            let elem = v.split('x').next().unwrap_or("i32");
            let masked = masked(&v, n, |t, vt, m| {
                format!("__builtin_ia32_storeu{t}512_mask(({vt} *)p, ({v_int})r, {m})", v_int = builtin_vector(t))
            });
            let plain = format!("  __builtin_memcpy(p, &r, {n} * sizeof(*p));\n");
            let _ = writeln!(self.text, "static INLINE void {full}({elem} *p, {v} r) {{");
            match masked {
                Some(m) => {
                    let _ = write!(self.text, "#if defined(__AVX512F__) && !defined(__clang__)\n  {m};\n#else\n{plain}#endif\n}}\n");
                }
                None => {
                    let _ = write!(self.text, "{plain}}}\n");
                }
            }
        }
        Ok(full)
    }

    /// Any other text under a key.
    pub fn raw(&mut self, key: &str, text: &str) {
        if self.new_key(key.to_string()) {
            self.text.push_str(text);
        }
    }
}

/// The masked AVX-512 access for vectors of a full register, printed by `f(kind, pointee, mask)`.
fn masked(v: &str, n: usize, f: impl Fn(&str, &str, String) -> String) -> Option<String> {
    let mask = (1u32 << n) - 1;
    match v {
        "f32x16" => Some(f("ps", "f32", format!("(unsigned short){mask:#x}"))),
        "i32x16" | "u32x16" => Some(f("si", "i32", format!("(unsigned short){mask:#x}"))),
        "f64x8" => Some(f("pd", "f64", format!("(unsigned char){mask:#x}"))),
        "i64x8" | "u64x8" => Some(f("di", "i64", format!("(unsigned char){mask:#x}"))),
        _ => None,
    }
}

/// The vector type that a masked access of a kind is declared with.
fn builtin_vector(kind: &str) -> &'static str {
    match kind {
        "ps" => "f32x16",
        "si" => "i32x16",
        "pd" => "f64x8",
        _ => "i64x8",
    }
}
