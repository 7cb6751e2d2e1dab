//! Prints a kernel as C with the vector extensions that gcc and clang share.
//!
//! The text holds one function, `of_kernel`, and what it needs; it depends on the kernel alone, not on its name, so
//! that equal kernels compile once. The instruction set comes with the compiler's flags.

use std::fmt::Write;

use of_ir::DType;
use of_ops::scalar::ScalarOp;

use super::c_expr::Printer;
use super::check::{self, CheckError};
use super::ir::{Access, Compare, Cond, Expr, IndexExpr, Kernel, Stmt};
use super::types::{Affine, Mem, Ty};

/// The name of the function that [`print_c`] defines:
/// `void of_kernel(void *const *args, int64_t begin, int64_t end, void *scratch)`.
pub const ENTRY: &str = "of_kernel";

/// Why a kernel has no C form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PrintError {
    /// An element type that C has no arithmetic for here.
    #[error("kernels do not handle elements of type {0}")]
    Type(DType),
    /// A function that is not defined for a type.
    #[error("kernels have no `{0}` for {1}")]
    Function(String, DType),
    /// An operation on 16-bit floats, which are for storage: cast to f32 first.
    #[error("kernels have no {0:?} on {1}: it is a storage type")]
    Storage(ScalarOp, DType),
    /// The kernel breaks a rule of the IR.
    #[error(transparent)]
    Check(#[from] CheckError),
}

/// The C text of a kernel.
///
/// # Errors
/// For kernels that break a rule of the IR or use a type or function that has no C form.
pub fn print_c(kernel: &Kernel) -> Result<String, PrintError> {
    check::check(kernel)?;
    let mut p = Printer::new(kernel);
    let mut body = String::new();
    for s in &kernel.setup {
        stmt(&mut p, s, 1, &mut body)?;
    }
    let _ = writeln!(body, "  for (i64 v{o} = begin; v{o} < end; v{o}++) {{", o = kernel.outer.index());
    for s in &kernel.body {
        stmt(&mut p, s, 2, &mut body)?;
    }
    body.push_str("  }\n");
    let mut head = String::new();
    for (i, param) in kernel.params.iter().enumerate() {
        let elem = super::c_prelude::elem_name(param.elem)?;
        let c = if param.writes { "" } else { "const " };
        let _ = writeln!(head, "  {c}{elem} *p{i} = ({c}{elem} *)__builtin_assume_aligned(args[{i}], 64);");
    }
    let (starts, _) = kernel.scratch_layout();
    for (i, (s, start)) in kernel.scratch.iter().zip(starts).enumerate() {
        let elem = super::c_prelude::elem_name(s.elem)?;
        let _ = writeln!(head, "  {elem} *s{i} = ({elem} *)__builtin_assume_aligned((char *)scratch + {start}, 64);");
    }
    Ok(format!(
        "{}void {ENTRY}(void *const *args, i64 begin, i64 end, void *scratch) {{\n  (void)args; (void)scratch;\n{head}{body}}}\n",
        p.prelude.finish()
    ))
}

fn indent(out: &mut String, depth: usize) {
    for _ in 0..depth {
        out.push_str("  ");
    }
}

fn stmt(p: &mut Printer<'_>, s: &Stmt, depth: usize, out: &mut String) -> Result<(), PrintError> {
    match s {
        Stmt::Let { var, mutable, value } => {
            let ty = p.kernel.type_of(value);
            let (t, v) = (p.prelude.reg(ty)?, p.expr(value)?);
            indent(out, depth);
            let c = if *mutable { "" } else { "const " };
            let _ = writeln!(out, "{c}{t} v{} = {v};", var.index());
        }
        Stmt::Set { var, value } => {
            let v = p.expr(value)?;
            indent(out, depth);
            let _ = writeln!(out, "v{} = {v};", var.index());
        }
        Stmt::Index { var, value } => {
            let v = index_expr(p, value)?;
            indent(out, depth);
            let _ = writeln!(out, "const i64 v{} = {v};", var.index());
        }
        Stmt::For { var, begin, end, step, unroll, body } => {
            if *unroll > 1 {
                indent(out, depth);
                let _ = writeln!(out, "#pragma GCC unroll {unroll}");
            }
            indent(out, depth);
            let v = var.index();
            let _ = writeln!(out, "for (i64 v{v} = {}; v{v} < {}; v{v} += {step}) {{", affine(begin), affine(end));
            for s in body {
                stmt(p, s, depth + 1, out)?;
            }
            indent(out, depth);
            out.push_str("}\n");
        }
        Stmt::If { cond, then, otherwise } => {
            indent(out, depth);
            let _ = writeln!(out, "if ({}) {{", condition(cond));
            for s in then {
                stmt(p, s, depth + 1, out)?;
            }
            if !otherwise.is_empty() {
                indent(out, depth);
                out.push_str("} else {\n");
                for s in otherwise {
                    stmt(p, s, depth + 1, out)?;
                }
            }
            indent(out, depth);
            out.push_str("}\n");
        }
        Stmt::Store { to, value } => {
            let v = p.expr(value)?;
            let text = p.store(to, &v)?;
            indent(out, depth);
            let _ = writeln!(out, "{text}");
        }
        Stmt::Transpose(vars) => transpose(p, vars, depth, out)?,
        Stmt::Prefetch { mem, index } => {
            indent(out, depth);
            let _ = writeln!(out, "__builtin_prefetch({});", address(*mem, index));
        }
    }
    Ok(())
}

fn index_expr(p: &mut Printer<'_>, e: &IndexExpr) -> Result<String, PrintError> {
    Ok(match e {
        IndexExpr::Affine(a) => affine(a),
        IndexExpr::Div(a, by) => format!("div_floor({}, {by})", affine(a)),
        IndexExpr::Mod(a, by) => format!("mod_floor({}, {by})", affine(a)),
        IndexExpr::Min(a, b) => format!("({0}) < ({1}) ? ({0}) : ({1})", affine(a), affine(b)),
        IndexExpr::Max(a, b) => format!("({0}) > ({1}) ? ({0}) : ({1})", affine(a), affine(b)),
        IndexExpr::Value(e) => format!("(i64)({})", p.expr(e)?),
    })
}

fn condition(c: &Cond) -> String {
    let op = match c.op {
        Compare::Lt => "<",
        Compare::Eq => "==",
        Compare::Ne => "!=",
    };
    format!("{} {op} {}", affine(&c.lhs), affine(&c.rhs))
}

/// An affine index in C.
pub(super) fn affine(a: &Affine) -> String {
    let mut out = String::new();
    for (v, c) in a.terms() {
        if !out.is_empty() {
            out.push_str(" + ");
        }
        if *c == 1 {
            let _ = write!(out, "v{}", v.index());
        } else {
            let _ = write!(out, "v{} * {c}", v.index());
        }
    }
    if out.is_empty() {
        return int(a.offset());
    }
    if a.offset() != 0 {
        let _ = write!(out, " + {}", int(a.offset()));
    }
    out
}

/// A 64-bit integer literal.
fn int(x: i64) -> String {
    if x == i64::MIN {
        "(-9223372036854775807LL - 1)".to_string()
    } else if i32::try_from(x).is_ok() {
        x.to_string()
    } else {
        format!("{x}LL")
    }
}

/// The address of an element.
pub(super) fn address(mem: Mem, index: &Affine) -> String {
    let base = match mem {
        Mem::Param(i) => format!("p{i}"),
        Mem::Scratch(i) => format!("s{i}"),
    };
    if index.as_const() == Some(0) { base } else { format!("{base} + ({})", affine(index)) }
}

/// A butterfly: step `h` exchanges blocks of `h` lanes between variables `h` apart.
fn transpose(p: &mut Printer<'_>, vars: &[super::types::Var], depth: usize, out: &mut String) -> Result<(), PrintError> {
    let n = vars.len();
    let ty = vars.first().and_then(|v| p.kernel.vars.get(v.index())).copied().unwrap_or(Ty::INDEX);
    let t = p.prelude.reg(ty)?;
    let mut h = n / 2;
    while h > 0 {
        let low: Vec<usize> = (0..n).map(|l| if l & h == 0 { l } else { n + l - h }).collect();
        let high: Vec<usize> = (0..n).map(|l| if l & h == 0 { l + h } else { n + l }).collect();
        let low = p.prelude.shuffle(ty, &format!("low{h}"), &low)?;
        let high = p.prelude.shuffle(ty, &format!("high{h}"), &high)?;
        for i in (0..n).filter(|i| i & h == 0) {
            let (a, b) = (vars[i].index(), vars[i + h].index());
            indent(out, depth);
            let _ = writeln!(out, "{{ {t} a = v{a}, b = v{b}; v{a} = {low}(a, b); v{b} = {high}(a, b); }}");
        }
        h /= 2;
    }
    Ok(())
}

impl Printer<'_> {
    /// A load in C.
    pub(super) fn load(&mut self, a: &Access) -> Result<String, PrintError> {
        let at = address(a.mem, &a.index);
        // Truth values are bytes in memory and masks in registers.
        let raw = if a.ty.elem == DType::Bool { a.ty.with_elem(DType::U8) } else { a.ty };
        let v = self.prelude.reg(raw)?;
        let n = a.ty.lanes;
        let text = if n == 1 {
            format!("*({at})")
        } else if a.stride == 0 && a.active == n {
            format!("splat_{v}(*({at}))")
        } else if a.stride == 1 && a.active == n {
            format!("*(const {v}u *)({at})")
        } else if a.stride == 1 {
            format!("{}({at})", self.prelude.load_part(raw, a.active)?)
        } else {
            let elem = v.split('x').next().unwrap_or("i32").to_string();
            let name = format!("gather{}_{v}", a.active);
            let lanes: Vec<String> = (0..n).map(|l| if l < a.active { format!("p[{l} * s]") } else { "0".to_string() }).collect();
            self.prelude.raw(
                &name,
                &format!("static INLINE {v} {name}(const {elem} *p, i64 s) {{ return ({v}){{{}}}; }}\n", lanes.join(", ")),
            );
            format!("{name}({at}, {})", a.stride)
        };
        if a.ty.elem != DType::Bool {
            return Ok(text);
        }
        if n == 1 {
            return Ok(format!("(i32)-(i32)({text})"));
        }
        let m = self.prelude.reg(a.ty)?;
        Ok(format!("-__builtin_convertvector({text}, {m})"))
    }

    /// A store in C.
    pub(super) fn store(&mut self, a: &Access, value: &str) -> Result<String, PrintError> {
        let at = address(a.mem, &a.index);
        let n = a.ty.lanes;
        let (raw, value) = if a.ty.elem == DType::Bool {
            let raw = a.ty.with_elem(DType::U8);
            let u = self.prelude.reg(raw)?;
            self.prelude.reg(a.ty)?;
            (raw, if n == 1 { format!("(u8)(({value}) & 1)") } else { format!("__builtin_convertvector(({value}) & 1, {u})") })
        } else {
            (a.ty, value.to_string())
        };
        let v = self.prelude.reg(raw)?;
        Ok(if n == 1 {
            format!("*({at}) = {value};")
        } else if a.stride == 1 && a.active == n {
            format!("*({v}u *)({at}) = {value};")
        } else if a.stride == 1 {
            format!("{}({at}, {value});", self.prelude.store_part(raw, a.active)?)
        } else {
            let elem = v.split('x').next().unwrap_or("i32").to_string();
            let name = format!("scatter{}_{v}", a.active);
            let lanes: Vec<String> = (0..a.active).map(|l| format!("p[{l} * s] = x[{l}];")).collect();
            self.prelude.raw(
                &name,
                &format!("static INLINE void {name}({elem} *p, {v} x, i64 s) {{ {} }}\n", lanes.join(" ")),
            );
            format!("{name}({at}, {value}, {});", a.stride)
        })
    }

    /// A value in C.
    pub(super) fn expr(&mut self, e: &Expr) -> Result<String, PrintError> {
        Ok(match e {
            Expr::Var(v) => format!("v{}", v.index()),
            Expr::Const(ty, lit) => self.literal(*ty, *lit)?,
            Expr::Index(a) => format!("(i64)({})", affine(a)),
            Expr::Iota(ty) => {
                let v = self.prelude.reg(*ty)?;
                let all: Vec<String> = (0..ty.lanes).map(|l| l.to_string()).collect();
                if ty.lanes == 1 { "0".to_string() } else { format!("(({v}){{{}}})", all.join(", ")) }
            }
            Expr::Load(a) => self.load(a)?,
            Expr::Splat(lanes, e) => {
                let ty = Ty::new(self.kernel.type_of(e).elem, *lanes);
                let (v, x) = (self.prelude.reg(ty)?, self.expr(e)?);
                if *lanes == 1 { x } else { format!("splat_{v}({x})") }
            }
            Expr::Op(op, args) => self.op(*op, args)?,
            Expr::MulAdd(args) => {
                let ty = self.kernel.type_of(e);
                let (a, b, c) = (self.expr(&args[0])?, self.expr(&args[1])?, self.expr(&args[2])?);
                self.wrap(ty, format!("{a} * {b} + {c}"))?
            }
            Expr::Reduce(op, e) => {
                let ty = self.kernel.type_of(e);
                let x = self.expr(e)?;
                if ty.lanes == 1 { x } else { format!("{}({x})", self.prelude.reduce(*op, ty)?) }
            }
            Expr::Keep(e, n, other) => {
                let ty = self.kernel.type_of(e);
                let (x, o) = (self.expr(e)?, self.literal(ty, *other)?);
                let sel = self.prelude.function("selm", ty)?;
                let m = self.prelude.reg(ty.with_elem(super::c_prelude::mask_elem(ty.elem)))?;
                let lanes: Vec<&str> = (0..ty.lanes).map(|l| if l < *n { "-1" } else { "0" }).collect();
                if ty.lanes == 1 { x } else { format!("{sel}(({m}){{{}}}, {x}, {o})", lanes.join(", ")) }
            }
        })
    }
}
