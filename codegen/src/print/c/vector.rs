//! Scalar programs as vector C: loads, functions and stores of all lanes or the first of them.
//!
//! The remainder of a vectorized loop is a masked tail: the first lanes of a vector.

use std::fmt::Write;

use of_ir::DType;
use of_ops::scalar::ScalarOp;

use crate::kernel::body::{Body, Node};
use crate::kernel::expr::is_prelude_function;
use crate::kernel::extent::Extent;
use crate::kernel::float::{exact_reciprocal, is_float, is_half};
use crate::print::expr::{comparison, ctype, literal, widened};

/// Whether `body` has a vector form in C in a kernel that may store a value of a row, which is no vector.
pub fn vectorizable(body: &Body) -> bool {
    fits_lanes(body) && body.stores.iter().all(|(_, n)| body.nodes[*n].dtype != DType::Bool)
}

/// Whether the nodes of `body` can be computed on vectors of 32-bit lanes: floats, booleans, integers of up to 32 bits, and
/// functions that the prelude has for them.
pub fn fits_lanes(body: &Body) -> bool {
    body.nodes.iter().all(|t| {
        lanes(t.dtype)
            && match &t.node {
                Node::Op(ScalarOp::Cast(to), args) => {
                    let from = body.nodes[args[0]].dtype;
                    lanes(from) && !(*to == DType::U32 && is_float(from))
                }
                Node::Op(op, args) => {
                    let operand = args.last().map_or(t.dtype, |a| body.nodes[*a].dtype);
                    match operand {
                        DType::F32 | DType::Bool => float_op(*op),
                        DType::U32 => {
                            let distance = args.get(1).map(|a| &body.nodes[*a].node);
                            let shifts = matches!(distance, Some(Node::Const(c)) if (0.0..32.0).contains(c));
                            bits_op(*op) || wraps(*op) || matches!(op, ScalarOp::Shl | ScalarOp::Shr) && shifts
                        }
                        DType::I32 => int_op(*op) || matches!(op, ScalarOp::Neg | ScalarOp::Abs) || wraps(*op),
                        _ => int_op(*op),
                    }
                }
                _ => true,
            }
    })
}

/// Whether this type has a vector form.
fn lanes(dtype: DType) -> bool {
    use DType::*;
    matches!(dtype, F32 | F16 | BF16 | Bool | I8 | U8 | I16 | U16 | I32 | U32)
}

/// The type of a node in memory: unsigned words are loaded and stored as signed ones of the same bits.
fn stored(dtype: DType) -> DType {
    if dtype == DType::U32 { DType::I32 } else { dtype }
}

/// Integer functions whose result is no wider than the operands.
fn int_op(op: ScalarOp) -> bool {
    use ScalarOp::*;
    bits_op(op) || matches!(op, Max | Min | Lt | Le | Gt | Ge)
}

/// Integer functions that are the same for signed and unsigned words.
fn bits_op(op: ScalarOp) -> bool {
    use ScalarOp::*;
    matches!(op, Eq | Ne | Select | BitwiseAnd | BitwiseOr | BitwiseXor)
}

/// Functions that wrap on overflow.
fn wraps(op: ScalarOp) -> bool {
    matches!(op, ScalarOp::Add | ScalarOp::Sub | ScalarOp::Mul)
}

fn float_op(op: ScalarOp) -> bool {
    use ScalarOp::*;
    let arithmetic = matches!(op, Neg | Abs | Reciprocal | Sign | Add | Sub | Mul | Div | Max | Min);
    let logic = matches!(op, Not | And | Or | Xor | Select | IsNan | IsInf);
    is_prelude_function(op) || arithmetic || logic || matches!(op, Eq | Ne | Lt | Le | Gt | Ge)
}

/// The C vector type of a node: integers widened to 32 bits, a mask for booleans.
pub fn vtype(dtype: DType) -> &'static str {
    if is_float(dtype) { "vf" } else { "vi" }
}

/// Loads a vector of elements from the address `at` with stride `stride`: all lanes, or the first `part` (a C expression).
pub fn load(dtype: DType, at: &str, stride: &Extent, part: Option<&str>) -> String {
    if stored(dtype) != dtype {
        return load(stored(dtype), &format!("(const i32 *)({at})"), stride, part);
    }
    let t = if dtype == DType::F32 { String::new() } else { format!("_{}", ctype(dtype)) };
    let lanes = part.unwrap_or("LANES");
    let dense = || match part {
        None => format!("load{t}({at})"),
        Some(n) => format!("load_part{t}({at}, {n})"),
    };
    match (dtype, stride.number()) {
        // Booleans are bytes of 0 and 1, masks 0 and -1.
        (DType::Bool, Some(1)) => match part {
            None => format!("-load_u8({at})"),
            Some(n) => format!("-load_part_u8({at}, {n})"),
        },
        (DType::Bool, _) => format!("load_mask({at}, {stride}, {lanes})"),
        (_, Some(0)) => splat(dtype, at),
        (_, Some(1)) => dense(),
        (_, Some(_)) => format!("load_step{t}({at}, {stride}, {lanes})"),
        // Most unknown strides are 1 at run time.
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

/// Stores all lanes of node `n`, the variable `t` with its index, at the address `at`, or the first `part` (a C expression).
pub fn store(body: &Body, n: usize, at: &str, part: Option<&str>) -> String {
    let dtype = body.nodes[n].dtype;
    let value = match &body.nodes[n].node {
        // Stores of 16-bit floats round.
        Node::Op(ScalarOp::Cast(to), args) if is_half(*to) && body.nodes[args[0]].dtype == DType::F32 => args[0],
        _ => n,
    };
    if dtype == DType::Bool {
        // Masks are 0 and -1, booleans bytes of 0 and 1.
        return match part {
            None => format!("store_u8({at}, t{value} & 1);"),
            Some(n) => format!("store_part_u8({at}, t{value} & 1, {n});"),
        };
    }
    let at = if stored(dtype) == dtype { at.to_owned() } else { format!("(i32 *)({at})") };
    let t = if dtype == DType::F32 { String::new() } else { format!("_{}", ctype(stored(dtype))) };
    match part {
        None => format!("store{t}({at}, t{value});"),
        Some(n) => format!("store_part{t}({at}, t{value}, {n});"),
    }
}

/// `x / c`: a product with the reciprocal where that is exact. Elsewhere a division: a product with a correction needs a branch for
/// subnormal remainders, and is slower.
fn quotient(x: &str, c: f32) -> String {
    match exact_reciprocal(c) {
        Some(r) => format!("{x} * SPLAT({})", literal(f64::from(r), DType::F32)),
        None => format!("{x} / SPLAT({})", literal(f64::from(c), DType::F32)),
    }
}

/// `x / c` where it is rounded to a narrow integer: huge quotients saturate and tiny ones are 0, so that a product with the reciprocal
/// can be corrected without a branch.
fn quotient_to_round(x: &str, c: f32) -> Option<String> {
    const CONSTANTS: std::ops::Range<f32> = 1e-15..1e15;
    /// Beyond every narrow integer.
    const HUGE: f32 = 1e6;
    if exact_reciprocal(c).is_some() || !CONSTANTS.contains(&c.abs()) {
        return None;
    }
    let numbers = [c, 1.0 / c, HUGE * c.abs()].map(|x| literal(f64::from(x), DType::F32));
    Some(format!("vquotient({x}, {})", numbers.join(", ")))
}

/// The conversion of `round(x)` or `round(x) + c` to a narrow integer, which the conversion instruction rounds.
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
    let x = *of(round, ScalarOp::Round)?.first()?;
    let quotient = of(x, ScalarOp::Div).and_then(|args| match body.nodes[args[1]].node {
        Node::Const(c) => quotient_to_round(&name(args[0]), c as f32),
        _ => None,
    });
    let x = quotient.unwrap_or_else(|| name(x));
    let (lo, hi) = to.int_range()?;
    let x = if lo == 0 { x } else { format!("number_or({x}, {})", -c) };
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
        // Each part is exact, so that the sum rounds once.
        (U32, F32) => {
            let part = |x: &str| format!("__builtin_convertvector({x}, vf)");
            let (high, low) = (part(&format!("(vi)((vu){x} >> 16)")), part(&format!("({x} & 65535)")));
            format!("({high} * SPLAT(65536) + {low})")
        }
        (U32, I32) | (_, U32) => x,
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
    let term = |i: usize| if body.keeps_product(args[i]) { format!("vrounded({})", a(i)) } else { a(i) };
    let constant = |i: usize| match body.nodes[args[i]].node {
        Node::Const(c) if !c.is_nan() => Some(literal(c, DType::F32)),
        _ => None,
    };
    let operand = args.last().map_or(DType::F32, |a| body.nodes[*a].dtype);
    let ints = !matches!(operand, DType::F32 | DType::Bool);
    let distance = match args.get(1).map(|a| &body.nodes[*a].node) {
        Some(Node::Const(c)) => *c as u32,
        _ => 0,
    };
    use ScalarOp::*;
    match op {
        Neg if ints => format!("(vi)(0 - (vu){})", a(0)),
        Abs if ints => format!("ipick({0} < 0, (vi)(0 - (vu){0}), {0})", a(0)),
        Add if ints => format!("(vi)((vu){} + (vu){})", a(0), a(1)),
        Sub if ints => format!("(vi)((vu){} - (vu){})", a(0), a(1)),
        Mul if ints => format!("(vi)((vu){} * (vu){})", a(0), a(1)),
        Shl if ints => format!("(vi)((vu){} << {})", a(0), distance),
        Shr if ints => format!("(vi)((vu){} >> {})", a(0), distance),
        Max if ints => format!("imax({}, {})", a(0), a(1)),
        Min if ints => format!("imin({}, {})", a(0), a(1)),
        Neg => format!("-{}", a(0)),
        Abs => format!("vabs({})", a(0)),
        Ceil => format!("vceil({})", a(0)),
        Floor => format!("vfloor({})", a(0)),
        Round => format!("vround({})", a(0)),
        Sqrt => format!("vsqrt({})", a(0)),
        Rsqrt => format!("SPLAT(1) / vsqrt({})", a(0)),
        Reciprocal => format!("SPLAT(1) / {}", a(0)),
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
        Pow => match body.nodes[args[1]].node {
            // Within the error of a power.
            Node::Const(3.0) => format!("vrounded({0} * {0} * {0})", a(0)),
            _ => format!("vpow({}, {})", a(0), a(1)),
        },
        Erf => format!("verf({})", a(0)),
        Sigmoid => format!("vsigmoid({})", a(0)),
        Sign => {
            format!("pick({0} == {0}, pick({0} > SPLAT(0), SPLAT(1), pick({0} < SPLAT(0), SPLAT(-1), {0})), {0})", a(0))
        }
        Not => format!("~{}", a(0)),
        IsNan => format!("({0} != {0})", a(0)),
        IsInf => format!("(vabs({}) == (vf)SPLATI(0x7f800000))", a(0)),
        Add => format!("{} + {}", term(0), term(1)),
        Sub => format!("{} - {}", term(0), term(1)),
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
        And | BitwiseAnd => format!("{} & {}", a(0), a(1)),
        Or | BitwiseOr => format!("{} | {}", a(0), a(1)),
        Xor | BitwiseXor => format!("{} ^ {}", a(0), a(1)),
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

/// Statements that declare constants once, as vectors, outside of all loops.
pub fn vector_constants(body: &Body, out: &mut String) {
    for (i, t) in body.nodes.iter().enumerate() {
        if let Node::Const(c) = t.node {
            let _ = match t.dtype {
                DType::Bool => writeln!(out, "  const vi t{i} = SPLATI({});", if c != 0.0 { -1 } else { 0 }),
                d if is_float(d) => writeln!(out, "  const vf t{i} = SPLAT({});", literal(c, d)),
                d => writeln!(out, "  const vi t{i} = SPLATI((i32){});", literal(c, d)),
            };
        }
    }
}
