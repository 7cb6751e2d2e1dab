//! Scalar programs as expressions of the C family: types, literals and functions of single elements.

use std::fmt::Write;

use of_ir::DType;
use of_ops::scalar::ScalarOp;

use crate::kernel::body::{Body, Node, ReduceKind};
use crate::kernel::extent::Extent;
use crate::kernel::float::{is_float, is_half};

/// A number as a C literal of the type of a `dtype` value.
pub fn literal(c: f64, dtype: DType) -> String {
    let dtype = if is_half(dtype) { DType::F32 } else { dtype };
    match dtype {
        DType::F32 if c.is_nan() => "NAN32".into(),
        DType::F32 if c.is_infinite() => (if c < 0.0 { "(-INF32)" } else { "INF32" }).into(),
        DType::F32 => format!("{:?}f", c as f32),
        DType::F64 if c.is_nan() => "NAN64".into(),
        DType::F64 if c.is_infinite() => (if c < 0.0 { "(-INF64)" } else { "INF64" }).into(),
        DType::F64 => format!("{c:?}"),
        DType::Bool => format!("{}", i32::from(c != 0.0)),
        _ if c == -9_223_372_036_854_775_808.0 => "(-9223372036854775807LL - 1)".into(),
        _ => format!("{}LL", c as i128),
    }
}

/// The C type of an element in memory.
pub fn ctype(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "f64",
        DType::F32 => "f32",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        DType::I8 => "i8",
        DType::I16 => "i16",
        DType::I32 => "i32",
        DType::I64 => "i64",
        DType::U8 => "u8",
        DType::U16 => "u16",
        DType::U32 => "u32",
        DType::U64 => "u64",
        _ => "b8",
    }
}

/// The C type that holds a single value.
pub fn stype(dtype: DType) -> &'static str {
    if is_half(dtype) { "f32" } else { ctype(dtype) }
}

/// The value of `element`, a C expression of an element in memory.
pub fn widened(dtype: DType, element: &str) -> String {
    if is_half(dtype) { format!("one_widen_{dtype}({element})") } else { element.into() }
}

/// The element in memory that holds `value`, a C expression.
pub fn narrowed(dtype: DType, value: &str) -> String {
    if is_half(dtype) { format!("one_narrow_{dtype}({value})") } else { value.into() }
}

pub(crate) fn comparison(op: ScalarOp) -> &'static str {
    match op {
        ScalarOp::Eq => "==",
        ScalarOp::Ne => "!=",
        ScalarOp::Lt => "<",
        ScalarOp::Le => "<=",
        ScalarOp::Gt => ">",
        _ => ">=",
    }
}

/// The statement before a division of integers that ends the kernel with status 7 where the divisor is 0; empty for other nodes.
pub fn division_check(body: &Body, node: &Node, name: &dyn Fn(usize) -> String) -> String {
    body.divisor(node).map_or_else(String::new, |by| format!("      if ({} == 0) return 7;\n", name(by)))
}

/// One node on single elements. [`division_check`] comes before it.
pub fn scalar(body: &Body, op: ScalarOp, args: &[usize], dtype: DType, name: &dyn Fn(usize) -> String) -> String {
    let a = |i: usize| name(args[i]);
    let operand = body.nodes[*args.last().unwrap_or(&0)].dtype;
    let t = ctype(dtype);
    let one = |f: &str| format!("one_{f}({})", a(0));
    let product = |i: usize| body.nodes[args[i]].dtype.is_float() && body.keeps_product(args[i]);
    let unfused = product(0) || args.len() > 1 && product(1);
    use ScalarOp::*;
    match op {
        Neg => format!("({t})-{}", a(0)),
        Abs => format!("({t})({0} < 0 ? -{0} : {0})", a(0)),
        Sign if operand.is_float() => format!("({0} != {0} ? {0} : ({t})(({0} > 0) - ({0} < 0)))", a(0)),
        Sign => format!("({t})(({0} > 0) - ({0} < 0))", a(0)),
        Ceil | Floor | Round if operand.is_int() => a(0),
        Ceil => one("ceil"),
        Floor => one("floor"),
        Round => one("round"),
        Sqrt => one("sqrt"),
        Rsqrt => format!("1.0f / one_sqrt({})", a(0)),
        Reciprocal => format!("({t})1 / {}", a(0)),
        Exp => one("exp"),
        Log => one("log"),
        Sin => one("sin"),
        Cos => one("cos"),
        Tan => one("tan"),
        Asin => one("asin"),
        Acos => one("acos"),
        Atan => one("atan"),
        Sinh => one("sinh"),
        Cosh => one("cosh"),
        Tanh => one("tanh"),
        Asinh => one("asinh"),
        Acosh => one("acosh"),
        Atanh => one("atanh"),
        Pow => format!("one_pow({}, {})", a(0), a(1)),
        Erf => one("erf"),
        Sigmoid => one("sigmoid"),
        Not => format!("!{}", a(0)),
        BitwiseNot => format!("({t})~{}", a(0)),
        IsNan => format!("({0} != {0})", a(0)),
        IsInf => format!("({0} == {0} && {0} - {0} != {0} - {0})", a(0)),
        Add | Sub | Mul if operand.is_signed_int() => {
            // Wraps: signed overflow is undefined in C, unsigned is not.
            let sign = match op {
                Add => "+",
                Sub => "-",
                _ => "*",
            };
            format!("({t})((u64){} {sign} (u64){})", a(0), a(1))
        }
        Add if unfused => format!("one_sum({}, {})", a(0), a(1)),
        Sub if unfused => format!("one_difference({}, {})", a(0), a(1)),
        Add => format!("({t})({} + {})", a(0), a(1)),
        Sub => format!("({t})({} - {})", a(0), a(1)),
        Mul => format!("({t})({} * {})", a(0), a(1)),
        Div if operand.is_signed_int() => {
            format!("({t})({1} == -1 ? (i64)(0 - (u64){0}) : {0} / {1})", a(0), a(1))
        }
        Div if operand.is_int() => format!("({t})({} / {})", a(0), a(1)),
        Div => format!("{} / {}", a(0), a(1)),
        Fmod if operand.is_signed_int() => {
            format!("({t})({1} == -1 ? 0 : {0} % {1})", a(0), a(1))
        }
        Fmod | Mod if !operand.is_signed_int() => format!("({t})({} % {})", a(0), a(1)),
        Mod | Fmod => format!(
            "({t})({1} == -1 ? 0 : ({0} % {1} + (({0} % {1} != 0 && (({0} < 0) != ({1} < 0))) ? {1} : 0)))",
            a(0),
            a(1)
        ),
        Max if operand.is_float() => format!("(({0} > {1} || {0} != {0}) ? {0} : {1})", a(0), a(1)),
        Min if operand.is_float() => format!("(({0} < {1} || {0} != {0}) ? {0} : {1})", a(0), a(1)),
        Max => format!("({0} > {1} ? {0} : {1})", a(0), a(1)),
        Min => format!("({0} < {1} ? {0} : {1})", a(0), a(1)),
        And => format!("({} && {})", a(0), a(1)),
        Or => format!("({} || {})", a(0), a(1)),
        Xor => format!("(!{} != !{})", a(0), a(1)),
        BitwiseAnd => format!("({t})({} & {})", a(0), a(1)),
        BitwiseOr => format!("({t})({} | {})", a(0), a(1)),
        BitwiseXor => format!("({t})({} ^ {})", a(0), a(1)),
        Shl => format!("({t})((u64){1} < {2} ? (u64){0} << {1} : 0)", a(0), a(1), dtype.bits().unwrap_or(64)),
        Shr => format!("({t})((u64){1} < {2} ? {0} >> {1} : {0} < 0 ? -1 : 0)", a(0), a(1), dtype.bits().unwrap_or(64)),
        Eq | Ne | Lt | Le | Gt | Ge => format!("({} {} {})", a(0), comparison(op), a(1)),
        Select => format!("({} ? {} : {})", a(0), a(1), a(2)),
        Cast(DType::Bool) => format!("({} != 0)", a(0)),
        Cast(to) if to.is_int() && operand.is_float() => {
            // Truncates; out of range saturates, NaN gives 0.
            let (lo, hi) = to.int_range().unwrap_or((0, 1));
            let f = if is_float(operand) { "f" } else { "" };
            format!(
                "({0} != {0} ? 0 : {0} <= {lo}.0{f} ? ({t}){1} : {0} >= {hi}.0{f} ? ({t}){2} : ({t}){0})",
                a(0),
                int_literal(lo),
                int_literal(hi)
            )
        }
        Cast(to) if is_half(to) => format!("one_round_{to}((f32){})", a(0)),
        Cast(_) => format!("({t}){}", a(0)),
    }
}

/// An integer as a C literal.
pub fn int_literal(v: i128) -> String {
    match v {
        -9_223_372_036_854_775_808 => "(-9223372036854775807LL - 1)".into(),
        v if v > i64::MAX as i128 => format!("{v}ULL"),
        v => format!("{v}LL"),
    }
}

/// Statements that declare constants once, as scalars.
pub fn scalar_constants(body: &Body, out: &mut String) {
    for (i, t) in body.nodes.iter().enumerate() {
        if let Node::Const(c) = t.node {
            let _ = writeln!(out, "  const {} t{i} = {};", stype(t.dtype), literal(c, t.dtype));
        }
    }
}

/// The neutral element of a reduction, in C.
pub fn neutral(kind: ReduceKind) -> &'static str {
    match kind {
        ReduceKind::Sum => "0",
        ReduceKind::Prod => "1",
        ReduceKind::Max => "-INF32",
        ReduceKind::Min => "INF32",
    }
}

/// Statements that write values derived from extents.
pub fn shape_values(values: &[Extent], dtype: DType) -> String {
    let (t, mut c) = (ctype(dtype), String::new());
    for (i, value) in values.iter().enumerate() {
        let _ = writeln!(c, "  ARG({t}, 0)[{i}] = {value};");
    }
    c
}

/// The statement that copies one element.
pub fn copy_scalar(dtype: DType) -> String {
    let t = ctype(dtype);
    format!("  *ARG({t}, 1) = *ARG(const {t}, 0);\n")
}
