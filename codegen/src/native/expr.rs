//! Printing scalar programs as C, on vectors of floats or on single elements of any type.
//!
//! 16-bit floats are f32 between memory and memory: reading widens them, writing narrows what was rounded to their type.

use std::fmt::Write;

use of_ir::DType;
use of_ops::scalar::ScalarOp;

use super::Extent;
use crate::lower::body::{Body, Node};

/// Whether the nodes of `body` can be computed on vectors of 32-bit lanes: floats, truth values, integers of up to 32
/// bits, and functions that the prelude has for them.
pub fn vectorizable(body: &Body) -> bool {
    body.nodes.iter().all(|t| {
        lanes(t.dtype)
            && match &t.node {
                Node::Op(ScalarOp::Cast(_), args) => lanes(body.nodes[args[0]].dtype),
                Node::Op(op, args) => {
                    let operand = args.last().map_or(t.dtype, |a| body.nodes[*a].dtype);
                    match operand {
                        DType::F32 | DType::Bool => float_op(*op),
                        DType::I32 => int_op(*op) || matches!(op, ScalarOp::Neg | ScalarOp::Abs) || wraps(*op),
                        _ => int_op(*op),
                    }
                }
                _ => true,
            }
    }) && body.stores.iter().all(|(_, n)| body.nodes[*n].dtype != DType::Bool)
}

/// Whether vectors hold elements of this type.
fn lanes(dtype: DType) -> bool {
    use DType::*;
    matches!(dtype, F32 | F16 | BF16 | Bool | I8 | U8 | I16 | U16 | I32)
}

/// Whether values of this type are computed as f32: f32 itself, and 16-bit floats.
pub fn is_float(dtype: DType) -> bool {
    dtype == DType::F32 || is_half(dtype)
}

/// Whether this is a 16-bit float.
pub fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// Functions of integers whose result is no wider than its operands.
fn int_op(op: ScalarOp) -> bool {
    use ScalarOp::*;
    matches!(op, Max | Min | Eq | Ne | Lt | Le | Gt | Ge | Select | BitAnd | BitOr | BitXor)
}

/// Functions that wrap around.
fn wraps(op: ScalarOp) -> bool {
    matches!(op, ScalarOp::Add | ScalarOp::Sub | ScalarOp::Mul)
}

/// Functions of floats that the preludes compute in f32.
fn function(op: ScalarOp) -> bool {
    use ScalarOp::*;
    let trigonometric = matches!(op, Sin | Cos | Tan | Asin | Acos | Atan);
    let hyperbolic = matches!(op, Sinh | Cosh | Tanh | Asinh | Acosh | Atanh);
    let rounding = matches!(op, Ceil | Floor | Round);
    trigonometric || hyperbolic || rounding || matches!(op, Sqrt | Rsqrt | Exp | Log | Pow | Erf | Sigmoid)
}

fn float_op(op: ScalarOp) -> bool {
    use ScalarOp::*;
    let arithmetic = matches!(op, Neg | Abs | Recip | Sign | Add | Sub | Mul | Div | Max | Min);
    let logic = matches!(op, Not | And | Or | Xor | Select | IsNan | IsInf);
    function(op) || arithmetic || logic || matches!(op, Eq | Ne | Lt | Le | Gt | Ge)
}

/// Why a body cannot be printed at all, if so.
pub fn unprintable(body: &Body) -> Option<String> {
    for t in &body.nodes {
        let Node::Op(op, args) = &t.node else { continue };
        let float = |d: DType| d == DType::F32;
        let operand = args.last().map_or(t.dtype, |a| body.nodes[*a].dtype);
        use ScalarOp::*;
        let needs_f32 = (function(*op) || matches!(op, Mod | Fmod)) && operand.is_float();
        if needs_f32 && !float(operand) {
            return Some(format!("{op:?} of {operand} has no native code"));
        }
        if *op == Pow && !float(operand) {
            return Some(format!("powers of {operand} have no native code"));
        }
        if matches!(op, Mod | Fmod) && operand.is_float() {
            return Some("the remainder of floats has no native code".into());
        }
    }
    // What f32 does not hold would be rounded twice. Integers that are too large for it are infinite as f16.
    body.nodes.iter().find_map(|t| {
        let Node::Op(ScalarOp::Cast(to), args) = &t.node else { return None };
        let from = body.nodes[args[0]].dtype;
        let wide = from == DType::F64 || (*to == DType::BF16 && from.is_int() && from.bits().is_some_and(|b| b > 16));
        (is_half(*to) && wide).then(|| format!("the conversion of {from} to {to} has no native code"))
    })
}

/// A number as a C literal of the type that values of `dtype` have.
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

/// The C type that holds a node on vectors: integers widened to 32 bits, a mask for truth values.
pub fn vtype(dtype: DType) -> &'static str {
    if is_float(dtype) { "vf" } else { "vi" }
}

/// Reads a vector of elements from the address `at` that lie `stride` apart: all lanes, or the first `part` (a C
/// expression).
pub fn load(dtype: DType, at: &str, stride: &Extent, part: Option<&str>) -> String {
    let t = if dtype == DType::F32 { String::new() } else { format!("_{}", ctype(dtype)) };
    let lanes = part.unwrap_or("LANES");
    let dense = || match part {
        None => format!("load{t}({at})"),
        Some(n) => format!("load_part{t}({at}, {n})"),
    };
    match (dtype, stride.number()) {
        // Truth values are bytes of 0 and 1, masks 0 and -1.
        (DType::Bool, Some(1)) => match part {
            None => format!("-load_u8({at})"),
            Some(n) => format!("-load_part_u8({at}, {n})"),
        },
        (DType::Bool, _) => format!("load_mask({at}, {stride}, {lanes})"),
        (_, Some(0)) => splat(dtype, at),
        (_, Some(1)) => dense(),
        (_, Some(_)) => format!("load_step{t}({at}, {stride}, {lanes})"),
        // Most strides that are not known turn out to be 1.
        (_, None) => format!("({stride} == 1 ? {} : load_step{t}({at}, {stride}, {lanes}))", dense()),
    }
}

/// The element at the address `at` in all lanes.
pub fn splat(dtype: DType, at: &str) -> String {
    match dtype {
        _ if is_float(dtype) => format!("SPLAT({})", widened(dtype, &format!("*({at})"))),
        DType::Bool => format!("SPLATI(-(i32)*({at}))"),
        _ => format!("SPLATI(*({at}))"),
    }
}

/// Writes all lanes of node `n`, the variable `t` with its number, to the address `at`, or the first `part` (a C
/// expression).
pub fn store(body: &Body, n: usize, at: &str, part: Option<&str>) -> String {
    let dtype = body.nodes[n].dtype;
    let value = match &body.nodes[n].node {
        // Stores of 16-bit floats round by themselves.
        Node::Op(ScalarOp::Cast(to), args) if is_half(*to) && body.nodes[args[0]].dtype == DType::F32 => args[0],
        _ => n,
    };
    let t = if dtype == DType::F32 { String::new() } else { format!("_{}", ctype(dtype)) };
    match part {
        None => format!("store{t}({at}, t{value});"),
        Some(n) => format!("store_part{t}({at}, t{value}, {n});"),
    }
}

/// `x / c`: the product with the reciprocal where that is exact, else corrected by what it leaves.
fn quotient(x: &str, c: f32) -> String {
    let (by, r) = (literal(f64::from(c), DType::F32), 1.0 / c);
    if !(c.is_normal() && r.is_normal()) {
        return format!("{x} / SPLAT({by})");
    }
    let r_text = literal(f64::from(r), DType::F32);
    if c.to_bits() << 9 == 0 { format!("{x} * SPLAT({r_text})") } else { format!("vquotient({x}, {by}, {r_text})") }
}

/// The conversion of `round(x)` or `round(x) + c` to a narrow integer, which hardware rounds by itself.
fn rounded(body: &Body, node: usize, to: DType, name: &dyn Fn(usize) -> String) -> Option<String> {
    let of = |n: usize, op: ScalarOp| match &body.nodes[n].node {
        Node::Op(o, args) if *o == op => Some(args),
        _ => None,
    };
    if !matches!(to, DType::U8 | DType::I8 | DType::U16 | DType::I16) || body.nodes[node].dtype != DType::F32 {
        return None;
    }
    let (round, c) = match of(node, ScalarOp::Add) {
        Some(args) => match body.nodes[args[1]].node {
            Node::Const(c) if c.fract() == 0.0 && c.abs() < 65536.0 => (args[0], c),
            _ => return None,
        },
        None => (node, 0.0),
    };
    let x = name(*of(round, ScalarOp::Round)?.first()?);
    let (lo, hi) = to.int_range()?;
    let x = if lo == 0 { x } else { format!("pick({x} == {x}, {x}, SPLAT({}))", -c) };
    let shift = if c == 0.0 { String::new() } else { format!(" + {}", c as i64) };
    Some(format!("(vround_narrow({x}, {}, {}){shift})", lo as f64 - c, hi as f64 - c))
}

/// A conversion on vectors.
fn convert(x: String, from: DType, to: DType) -> String {
    use DType::*;
    let range = |t: DType| t.int_range().unwrap_or((0, 1));
    match (from, to) {
        _ if from == to => x,
        (F16 | BF16, _) => convert(x, F32, to),
        (_, F16 | BF16) => format!("round_{to}({})", convert(x, from, F32)),
        (F32, Bool) => format!("({x} != SPLAT(0))"),
        (_, Bool) => format!("({x} != 0)"),
        (Bool, F32) => format!("pick({x}, SPLAT(1), SPLAT(0))"),
        (Bool, _) => format!("({x} & 1)"),
        (F32, I32) => format!("vtoint({x})"),
        (F32, U8 | U16) => format!("vnarrow({x}, 0, {})", range(to).1),
        (F32, _) => format!("vnarrow(pick({x} == {x}, {x}, SPLAT(0)), {}, {})", range(to).0, range(to).1),
        (_, F32) => format!("__builtin_convertvector({x}, vf)"),
        _ if range(from).0 >= range(to).0 && range(from).1 <= range(to).1 => x,
        (_, U8) => format!("({x} & 255)"),
        (_, U16) => format!("({x} & 65535)"),
        (_, I8) => format!("(({x} << 24) >> 24)"),
        _ => format!("(({x} << 16) >> 16)"),
    }
}

/// One node on vectors; operands are the variables `name(i)`.
pub fn vector(body: &Body, op: ScalarOp, args: &[usize], name: &dyn Fn(usize) -> String) -> String {
    let a = |i: usize| name(args[i]);
    let constant = |i: usize| match body.nodes[args[i]].node {
        Node::Const(c) if !c.is_nan() => Some(literal(c, DType::F32)),
        _ => None,
    };
    let operand = args.last().map_or(DType::F32, |a| body.nodes[*a].dtype);
    let ints = !matches!(operand, DType::F32 | DType::Bool);
    use ScalarOp::*;
    match op {
        Neg if ints => format!("(vi)(0 - (vu){})", a(0)),
        Abs if ints => format!("ipick({0} < 0, (vi)(0 - (vu){0}), {0})", a(0)),
        Add if ints => format!("(vi)((vu){} + (vu){})", a(0), a(1)),
        Sub if ints => format!("(vi)((vu){} - (vu){})", a(0), a(1)),
        Mul if ints => format!("(vi)((vu){} * (vu){})", a(0), a(1)),
        Max if ints => format!("imax({}, {})", a(0), a(1)),
        Min if ints => format!("imin({}, {})", a(0), a(1)),
        Neg => format!("-{}", a(0)),
        Abs => format!("vabs({})", a(0)),
        Ceil => format!("vceil({})", a(0)),
        Floor => format!("vfloor({})", a(0)),
        Round => format!("vround({})", a(0)),
        Sqrt => format!("vsqrt({})", a(0)),
        Rsqrt => format!("SPLAT(1) / vsqrt({})", a(0)),
        Recip => format!("SPLAT(1) / {}", a(0)),
        Exp => format!("vexp({})", a(0)),
        Log => format!("vlog({})", a(0)),
        Sin => format!("vsin({})", a(0)),
        Cos => format!("vcos({})", a(0)),
        Tan => format!("vtan({})", a(0)),
        Asin => format!("vasin({})", a(0)),
        Acos => format!("vacos({})", a(0)),
        Atan => format!("vatan({})", a(0)),
        Sinh => format!("vsinh({})", a(0)),
        Cosh => format!("vcosh({})", a(0)),
        Tanh => format!("vtanh({})", a(0)),
        Asinh => format!("vasinh({})", a(0)),
        Acosh => format!("vacosh({})", a(0)),
        Atanh => format!("vatanh({})", a(0)),
        Pow => format!("vpow({}, {})", a(0), a(1)),
        Erf => format!("verf({})", a(0)),
        Sigmoid => format!("vsigmoid({})", a(0)),
        Sign => {
            format!("pick({0} == {0}, pick({0} > SPLAT(0), SPLAT(1), pick({0} < SPLAT(0), SPLAT(-1), {0})), {0})", a(0))
        }
        Not => format!("~{}", a(0)),
        IsNan => format!("({0} != {0})", a(0)),
        IsInf => format!("(vabs({}) == (vf)SPLATI(0x7f800000))", a(0)),
        Add => format!("{} + {}", a(0), a(1)),
        Sub => format!("{} - {}", a(0), a(1)),
        Mul => format!("{} * {}", a(0), a(1)),
        Div => match body.nodes[args[1]].node {
            Node::Const(c) => quotient(&a(0), c as f32),
            _ => format!("{} / {}", a(0), a(1)),
        },
        Max | Min => {
            let f = if op == Max { "vmax" } else { "vmin" };
            match (constant(0), constant(1)) {
                (_, Some(c)) => format!("{f}c({c}, {})", a(0)),
                (Some(c), _) => format!("{f}c({c}, {})", a(1)),
                _ => format!("{f}({}, {})", a(0), a(1)),
            }
        }
        And | BitAnd => format!("{} & {}", a(0), a(1)),
        Or | BitOr => format!("{} | {}", a(0), a(1)),
        Xor | BitXor => format!("{} ^ {}", a(0), a(1)),
        Eq | Ne | Lt | Le | Gt | Ge => format!("({} {} {})", a(0), comparison(op), a(1)),
        Select => {
            let (x, y) = (a(1), a(2));
            if body.nodes[args[1]].dtype != DType::F32 {
                format!("(({0} & {x}) | (~{0} & {y}))", a(0))
            } else {
                format!("pick({}, {x}, {y})", a(0))
            }
        }
        Cast(to) => rounded(body, args[0], to, name).unwrap_or_else(|| convert(a(0), operand, to)),
        _ => unreachable!("vectorizable() was asked first"),
    }
}

fn comparison(op: ScalarOp) -> &'static str {
    match op {
        ScalarOp::Eq => "==",
        ScalarOp::Ne => "!=",
        ScalarOp::Lt => "<",
        ScalarOp::Le => "<=",
        ScalarOp::Gt => ">",
        _ => ">=",
    }
}

/// One node on single elements.
pub fn scalar(body: &Body, op: ScalarOp, args: &[usize], dtype: DType, name: &dyn Fn(usize) -> String) -> String {
    let a = |i: usize| name(args[i]);
    let operand = body.nodes[*args.last().unwrap_or(&0)].dtype;
    let t = ctype(dtype);
    let one = |f: &str| format!("one_{f}({})", a(0));
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
        Recip => format!("({t})1 / {}", a(0)),
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
        BitNot => format!("({t})~{}", a(0)),
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
        Add => format!("({t})({} + {})", a(0), a(1)),
        Sub => format!("({t})({} - {})", a(0), a(1)),
        Mul => format!("({t})({} * {})", a(0), a(1)),
        Div if operand.is_signed_int() => {
            format!("({t})({1} == 0 ? 0 : {1} == -1 ? (i64)(0 - (u64){0}) : {0} / {1})", a(0), a(1))
        }
        Div if operand.is_int() => format!("({t})({1} == 0 ? 0 : {0} / {1})", a(0), a(1)),
        Div => format!("{} / {}", a(0), a(1)),
        Fmod if operand.is_signed_int() => format!("({t})({1} == 0 || {1} == -1 ? 0 : {0} % {1})", a(0), a(1)),
        Fmod | Mod if !operand.is_signed_int() => format!("({t})({1} == 0 ? 0 : {0} % {1})", a(0), a(1)),
        Mod | Fmod => format!(
            "({t})({1} == 0 || {1} == -1 ? 0 : ({0} % {1} + (({0} % {1} != 0 && (({0} < 0) != ({1} < 0))) ? {1} : 0)))",
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
        BitAnd => format!("({t})({} & {})", a(0), a(1)),
        BitOr => format!("({t})({} | {})", a(0), a(1)),
        BitXor => format!("({t})({} ^ {})", a(0), a(1)),
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

/// A number as C has it.
pub fn int_literal(v: i128) -> String {
    match v {
        -9_223_372_036_854_775_808 => "(-9223372036854775807LL - 1)".into(),
        v if v > i64::MAX as i128 => format!("{v}ULL"),
        v => format!("{v}LL"),
    }
}

/// Statements that declare constants once, as vectors, outside of all loops.
pub fn vector_constants(body: &Body, out: &mut String) {
    for (i, t) in body.nodes.iter().enumerate() {
        if let Node::Const(c) = t.node {
            let _ = match t.dtype {
                DType::Bool => writeln!(out, "  const vi t{i} = SPLATI({});", if c != 0.0 { -1 } else { 0 }),
                d if is_float(d) => writeln!(out, "  const vf t{i} = SPLAT({});", literal(c, d)),
                d => writeln!(out, "  const vi t{i} = SPLATI({});", literal(c, d)),
            };
        }
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
