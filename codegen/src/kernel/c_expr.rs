//! Scalar functions and conversions in C.

use of_ir::DType;
use of_ops::scalar::ScalarOp;

use super::c_prelude::{Prelude, mask_elem, reg_name};
use super::ir::{Expr, Kernel, Lit};
use super::print_c::PrintError;
use super::types::Ty;

/// State of a kernel's printing.
pub(super) struct Printer<'a> {
    pub kernel: &'a Kernel,
    pub prelude: Prelude,
}

impl<'a> Printer<'a> {
    pub fn new(kernel: &'a Kernel) -> Self {
        Self { kernel, prelude: Prelude::default() }
    }

    /// A number in every lane.
    pub fn literal(&mut self, ty: Ty, lit: Lit) -> Result<String, PrintError> {
        let v = self.prelude.reg(ty)?;
        let text = match ty.elem {
            DType::F32 => float(f64::from(lit.as_f64() as f32), "f", "f32"),
            DType::F64 => float(lit.as_f64(), "", "f64"),
            DType::F16 | DType::BF16 => {
                return Err(PrintError::Storage(ScalarOp::Cast(DType::F32), ty.elem));
            }
            DType::Bool => if lit.as_f64() == 0.0 { "0" } else { "-1" }.to_string(),
            _ => {
                let x = match lit {
                    Lit::I(x) => x,
                    Lit::F(x) => x as i128,
                };
                if ty.elem.is_signed_int() {
                    let bits = ty.elem.bits().unwrap_or(64) as u32;
                    let x = (x as i64) << (64 - bits) >> (64 - bits);
                    if x == i64::MIN { "(-9223372036854775807LL - 1)".to_string() } else { format!("({x}LL)") }
                } else {
                    format!("({}ULL)", x as u64)
                }
            }
        };
        let elem = reg_name(Ty::scalar(ty.elem))?;
        Ok(if ty.lanes == 1 { format!("(({elem}){text})") } else { format!("splat_{v}(({elem}){text})") })
    }

    /// Parenthesised; integer scalars are cast back from what C promotes them to.
    pub fn wrap(&mut self, ty: Ty, text: String) -> Result<String, PrintError> {
        Ok(if ty.lanes == 1 && !ty.elem.is_float() { format!("(({})({text}))", reg_name(ty)?) } else { format!("({text})") })
    }

    /// A scalar function of values.
    pub fn op(&mut self, op: ScalarOp, args: &[Expr]) -> Result<String, PrintError> {
        use ScalarOp::*;
        let of = args.get(usize::from(op == Select)).map_or(Ty::INDEX, |a| self.kernel.type_of(a));
        if let Cast(to) = op {
            let x = self.expr(&args[0])?;
            return self.cast(x, of, to);
        }
        let storage = matches!(of.elem, DType::F16 | DType::BF16);
        if storage && op != Select {
            return Err(PrintError::Storage(op, of.elem));
        }
        let float = of.elem.is_float();
        let boolean = of.elem == DType::Bool;
        let mut x = Vec::with_capacity(args.len());
        for a in args {
            x.push(self.expr(a)?);
        }
        let (a, b) = (x.first().cloned().unwrap_or_default(), x.get(1).cloned().unwrap_or_default());
        let infix = |o: &str| format!("{a} {o} {b}");
        match op {
            Neg => self.wrap(of, format!("-{a}")),
            Add if boolean => self.wrap(of, infix("|")),
            Mul if boolean => self.wrap(of, infix("&")),
            Add => self.wrap(of, infix("+")),
            Sub => self.wrap(of, infix("-")),
            Mul => self.wrap(of, infix("*")),
            Div if float => self.wrap(of, infix("/")),
            Recip if float => {
                let one = self.literal(of, Lit::F(1.0))?;
                self.wrap(of, format!("{one} / {a}"))
            }
            Rsqrt if float => {
                let f = self.prelude.function("sqrt", of)?;
                let one = self.literal(of, Lit::F(1.0))?;
                self.wrap(of, format!("{one} / {f}({a})"))
            }
            Not | BitNot => self.wrap(of, format!("~{a}")),
            And | BitAnd => self.wrap(of, infix("&")),
            Or | BitOr => self.wrap(of, infix("|")),
            Xor | BitXor => self.wrap(of, infix("^")),
            Ceil | Floor | Round | Abs if !float && (op != Abs || boolean) => Ok(a),
            Max if boolean => self.wrap(of, infix("|")),
            Min if boolean => self.wrap(of, infix("&")),
            Max | Min if float => self.extremum(op, of, args, &a, &b),
            IsNan => self.compare(of, &a, "!=", &a),
            IsInf => {
                let f = self.prelude.function("abs", of)?;
                let inf = self.literal(of, Lit::F(f64::INFINITY))?;
                self.compare(of, &format!("{f}({a})"), "==", &inf)
            }
            Eq | Ne | Lt | Le | Gt | Ge => {
                // Masks of truth values are negative where true.
                let (a, b) = if boolean { (self.wrap(of, format!("-{a}"))?, self.wrap(of, format!("-{b}"))?) } else { (a, b) };
                let o = match op {
                    Eq => "==",
                    Ne => "!=",
                    Lt => "<",
                    Le => "<=",
                    Gt => ">",
                    _ => ">=",
                };
                self.compare(of, &a, o, &b)
            }
            Select => {
                let c = x.get(2).cloned().unwrap_or_default();
                self.select(of, &a, &b, &c)
            }
            _ => {
                let f = self.prelude.function(function_name(op, of.elem)?, of)?;
                Ok(format!("{f}({})", x.join(", ")))
            }
        }
    }

    /// The larger or smaller of two floats, NaN if one is. The machine's instruction gives its second operand where
    /// one is NaN, so a constant goes first and needs no more; in general a NaN in the first operand is kept apart.
    fn extremum(&mut self, op: ScalarOp, ty: Ty, args: &[Expr], a: &str, b: &str) -> Result<String, PrintError> {
        let max = op == ScalarOp::Max;
        let number = |e: &Expr| matches!(e, Expr::Const(_, l) if !l.as_f64().is_nan());
        let (x, y) = if number(&args[1]) { (b, a) } else { (a, b) };
        if ty.lanes > 1 && (number(&args[0]) || number(&args[1])) {
            let f = self.prelude.function(if max { "xmax" } else { "xmin" }, ty)?;
            return Ok(format!("{f}({x}, {y})"));
        }
        let f = self.prelude.function(if max { "max" } else { "min" }, ty)?;
        Ok(format!("{f}({a}, {b})"))
    }

    fn compare(&mut self, ty: Ty, a: &str, op: &str, b: &str) -> Result<String, PrintError> {
        if ty.lanes == 1 {
            return Ok(format!("(-(i32)({a} {op} {b}))"));
        }
        let m = self.prelude.reg(ty.with_elem(DType::Bool))?;
        Ok(if mask_elem(ty.elem) == DType::I32 {
            format!("(({m})({a} {op} {b}))")
        } else {
            format!("__builtin_convertvector({a} {op} {b}, {m})")
        })
    }

    fn select(&mut self, ty: Ty, m: &str, a: &str, b: &str) -> Result<String, PrintError> {
        if ty.lanes == 1 {
            return Ok(format!("({m} ? {a} : {b})"));
        }
        let f = self.prelude.function("selm", ty)?;
        let mask = self.prelude.reg(ty.with_elem(mask_elem(ty.elem)))?;
        Ok(if mask_elem(ty.elem) == DType::I32 {
            format!("{f}({m}, {a}, {b})")
        } else {
            format!("{f}(__builtin_convertvector({m}, {mask}), {a}, {b})")
        })
    }

    /// A value converted to another element type.
    fn cast(&mut self, x: String, from: Ty, to: DType) -> Result<String, PrintError> {
        let (n, src) = (from.lanes, from.elem);
        let target = from.with_elem(to);
        let t = self.prelude.reg(target)?;
        if src == to {
            return Ok(x);
        }
        let half = |d: DType| matches!(d, DType::F16 | DType::BF16);
        // 16-bit floats go through f32, scalars of them through four lanes.
        if half(src) || half(to) {
            if n == 1 {
                let wide = Ty::new(src, 4);
                let w = self.prelude.reg(wide)?;
                let inner = self.cast(format!("splat_{w}({x})"), wide, to)?;
                return Ok(format!("({inner})[0]"));
            }
            let f = from.with_elem(DType::F32);
            let (fv, iv) = (self.prelude.reg(f)?, self.prelude.reg(from.with_elem(DType::I32))?);
            if half(src) {
                let name = if src == DType::F16 { "from_f16" } else { "from_bf16" };
                self.prelude.function("selm", f)?;
                let _ = fv;
                let call = self.prelude.function(name, f)?;
                return self.cast(format!("{call}(__builtin_convertvector({x}, {iv}))"), f, to);
            }
            let x = self.cast(x, from, DType::F32)?;
            let name = if to == DType::F16 { "to_f16" } else { "to_bf16" };
            let call = self.prelude.function(name, f)?;
            return Ok(format!("__builtin_convertvector({call}({x}), {t})"));
        }
        if to == DType::Bool {
            let zero = self.literal(from, Lit::I(0))?;
            return self.compare(from, &x, "!=", &zero);
        }
        if src == DType::Bool {
            return Ok(if n == 1 { format!("(({t})({x} & 1))") } else { format!("__builtin_convertvector({x} & 1, {t})") });
        }
        if src.is_float() && to.is_int() {
            return self.float_to_int(x, from, to);
        }
        if n == 1 {
            return Ok(format!("(({t}){x})"));
        }
        // Small integers reach floats through 32 bits, which machines convert.
        if to.is_float() && src.bits().is_some_and(|b| b < 32) {
            let i = self.prelude.reg(from.with_elem(DType::I32))?;
            return Ok(format!("__builtin_convertvector(__builtin_convertvector({x}, {i}), {t})"));
        }
        Ok(format!("__builtin_convertvector({x}, {t})"))
    }

    /// Truncation that saturates; NaN gives 0.
    fn float_to_int(&mut self, x: String, from: Ty, to: DType) -> Result<String, PrintError> {
        let t = self.prelude.reg(from.with_elem(to))?;
        let bits = to.bits().unwrap_or(64);
        let (lo, hi) = to.int_range().unwrap_or((0, 0));
        if from.lanes > 1 && from.elem == DType::F32 && (bits < 32 || to == DType::I32) {
            let i = self.prelude.reg(from.with_elem(DType::I32))?;
            if bits == 32 {
                let f = self.prelude.function("to_i32", from)?;
                return Ok(format!("{f}({x})"));
            }
            let (xmin, xmax) = (self.prelude.function("xmin", from)?, self.prelude.function("xmax", from)?);
            let v = self.prelude.reg(from)?;
            let name = format!("to_{}_{v}", super::c_prelude::elem_name(to)?);
            self.prelude.raw(
                &name,
                &format!(
                    "static INLINE {t} {name}({v} x) {{\n  x = ({v})(({i})x & (x == x));\n  \
                     return __builtin_convertvector(__builtin_convertvector({xmin}(splat_{v}({hi}.0f), {xmax}(splat_{v}({lo}.0f), x)), {i}), {t});\n}}\n"
                ),
            );
            return Ok(format!("{name}({x})"));
        }
        let (e, f) = (super::c_prelude::elem_name(to)?, super::c_prelude::elem_name(from.elem)?);
        let name = format!("to_{e}_{f}");
        // Limits as powers of two, which floats hold exactly.
        let top = 2f64.powi(if to.is_signed_int() { bits as i32 - 1 } else { bits as i32 });
        let min = if lo == i128::from(i64::MIN) { "(-9223372036854775807LL - 1)".to_string() } else { format!("({lo}LL)") };
        self.prelude.raw(
            &name,
            &format!(
                "static INLINE {e} {name}({f} x) {{\n  \
                 return x >= {top:.1} ? ({e}){hi}ULL : x <= {lo}.0 ? ({e}){min} : x == x ? ({e})x : 0;\n}}\n"
            ),
        );
        if from.lanes == 1 {
            return Ok(format!("{name}({x})"));
        }
        let v = self.prelude.reg(from)?;
        let full = format!("{name}_{v}");
        self.prelude.raw(
            &full,
            &format!("static {t} {full}({v} x) {{ {t} r; for (int l = 0; l < {}; l++) r[l] = {name}(x[l]); return r; }}\n", from.lanes),
        );
        Ok(format!("{full}({x})"))
    }
}

/// A float literal.
fn float(x: f64, suffix: &str, ty: &str) -> String {
    if x.is_nan() {
        format!("({ty})__builtin_nan(\"\")")
    } else if x.is_infinite() {
        format!("({ty}){}__builtin_inf()", if x < 0.0 { "-" } else { "" })
    } else {
        format!("{x:e}{suffix}")
    }
}

/// The helper that computes an operation.
fn function_name(op: ScalarOp, elem: DType) -> Result<&'static str, PrintError> {
    use ScalarOp::*;
    let name = match op {
        Abs => "abs",
        Sign => "sign",
        Max => "max",
        Min => "min",
        Div => "div",
        Mod => "mod",
        Fmod => "fmod",
        Pow => "pow",
        Shl => "shl",
        Shr => "shr",
        _ if !elem.is_float() => return Err(PrintError::Function(format!("{op:?}"), elem)),
        Ceil => "ceil",
        Floor => "floor",
        Round => "round",
        Sqrt => "sqrt",
        Exp => "exp",
        Log => "log",
        Sin => "sin",
        Cos => "cos",
        Tan => "tan",
        Asin => "asin",
        Acos => "acos",
        Atan => "atan",
        Sinh => "sinh",
        Cosh => "cosh",
        Tanh => "tanh",
        Asinh => "asinh",
        Acosh => "acosh",
        Atanh => "atanh",
        Erf => "erf",
        Sigmoid => "sigmoid",
        _ => return Err(PrintError::Function(format!("{op:?}"), elem)),
    };
    Ok(name)
}
