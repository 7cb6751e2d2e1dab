//! Elementwise ops, from their scalar expressions.

use of_ir::{DType, OpId};
use of_ops::elementwise::BitCast;
use of_ops::scalar::ScalarOp;

use super::{Emitter, Table, Val};

/// Elementwise ops without a scalar expression. The others need no row: see [`print`].
pub const TABLE: Table = &[("of.bit_cast", bit_cast)];

fn bit_cast(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let to = e.attrs::<BitCast>(op)?.to;
    let x = e.operand(op, 0)?;
    Ok(vec![match (x.dtype, to) {
        (from, to) if from == to => x,
        // A bool is a byte in memory and an i1 in XLA.
        (DType::Bool, to) => e.convert(&x, to),
        (_, DType::Bool) => {
            let zero = e.full_like(&x, 0.0);
            e.compare("NE", &x, &zero)
        }
        (_, to) => e.emit("stablehlo.bitcast_convert", &[&x], "", to, &x.dims),
    }])
}

/// Prints an elementwise op: its operands broadcast to the result, then the scalar expression.
pub fn print(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let scalar = of_ops::get(e.g, op).and_then(|o| o.scalar()).ok_or("with these attributes it is not elementwise")?;
    let (_, dims) = e.result(op, 0)?;
    let operands = e.operands(op)?;
    let stretched: Vec<Val> = operands.iter().map(|v| e.broadcast_to(v, &dims)).collect();
    apply(e, scalar, &stretched).map(|v| vec![v])
}

/// The function on values of one shape.
pub fn apply(e: &mut Emitter<'_>, f: ScalarOp, args: &[Val]) -> Result<Val, String> {
    use ScalarOp::*;
    let x = &args[0];
    let dtype = if f == Select { args[1].dtype } else { x.dtype };
    let (float, bool) = (dtype.is_float(), dtype == DType::Bool);
    if let Some(name) = of_floats(f) {
        return if float { Ok(e.unary(name, x)) } else { Err(format!("{f:?} of {dtype}")) };
    }
    let y = args.get(1);
    let missing = || "an operand is left out".to_string();
    if bool && matches!(f, Add | Sub | Mul | Div | Mod | Fmod | Pow | Neg | Abs | Sign | Shl | Shr) {
        return Err(format!("{f:?} of bools"));
    }
    Ok(match f {
        Ceil | Floor | Round if !float => x.clone(),
        Ceil => e.unary("ceil", x),
        Floor => e.unary("floor", x),
        Round => e.unary("round_nearest_even", x),
        Neg => e.unary("negate", x),
        Abs if dtype.is_int() && !dtype.is_signed_int() => x.clone(),
        Abs => e.unary("abs", x),
        Sign if dtype.is_int() && !dtype.is_signed_int() => {
            let one = e.full_like(x, 1.0);
            e.binary("minimum", x, &one)
        }
        Sign => e.unary("sign", x),
        Reciprocal if float => {
            let one = e.full_like(x, 1.0);
            e.binary("divide", &one, x)
        }
        Reciprocal => return Err(format!("Reciprocal of {dtype}")),
        Not | BitwiseNot => e.unary("not", x),
        IsNan => e.compare("NE", x, x),
        IsInf if float => {
            let (abs, inf) = (e.unary("abs", x), e.full_like(x, f64::INFINITY));
            e.compare("EQ", &abs, &inf)
        }
        IsInf => return Err(format!("IsInf of {dtype}")),
        Add => e.binary("add", x, y.ok_or_else(missing)?),
        Sub => e.binary("subtract", x, y.ok_or_else(missing)?),
        Mul => e.binary("multiply", x, y.ok_or_else(missing)?),
        Max => e.binary("maximum", x, y.ok_or_else(missing)?),
        Min => e.binary("minimum", x, y.ok_or_else(missing)?),
        And | BitwiseAnd => e.binary("and", x, y.ok_or_else(missing)?),
        Or | BitwiseOr => e.binary("or", x, y.ok_or_else(missing)?),
        Xor | BitwiseXor => e.binary("xor", x, y.ok_or_else(missing)?),
        Shl => e.binary("shift_left", x, y.ok_or_else(missing)?),
        Shr if dtype.is_signed_int() => e.binary("shift_right_arithmetic", x, y.ok_or_else(missing)?),
        Shr => e.binary("shift_right_logical", x, y.ok_or_else(missing)?),
        Pow => e.binary("power", x, y.ok_or_else(missing)?),
        Div if float => e.binary("divide", x, y.ok_or_else(missing)?),
        Div => by_nonzero(e, "divide", x, y.ok_or_else(missing)?),
        Fmod if float => e.binary("remainder", x, y.ok_or_else(missing)?),
        Fmod => by_nonzero(e, "remainder", x, y.ok_or_else(missing)?),
        Mod => modulo(e, x, y.ok_or_else(missing)?),
        Eq => e.compare("EQ", x, y.ok_or_else(missing)?),
        Ne => e.compare("NE", x, y.ok_or_else(missing)?),
        Lt => e.compare("LT", x, y.ok_or_else(missing)?),
        Le => e.compare("LE", x, y.ok_or_else(missing)?),
        Gt => e.compare("GT", x, y.ok_or_else(missing)?),
        Ge => e.compare("GE", x, y.ok_or_else(missing)?),
        Select => e.select(x, y.ok_or_else(missing)?, args.get(2).ok_or_else(missing)?),
        Cast(to) => cast(e, x, to),
        Sqrt | Rsqrt | Exp | Log | Sin | Cos | Tan | Asin | Acos | Atan | Sinh | Cosh | Tanh | Asinh | Acosh
        | Atanh | Erf | Sigmoid => return Err(format!("{f:?} of {dtype}")),
    })
}

/// The op that computes a function of one float.
fn of_floats(f: ScalarOp) -> Option<&'static str> {
    use ScalarOp::*;
    Some(match f {
        Sqrt => "sqrt",
        Rsqrt => "rsqrt",
        Exp => "exponential",
        Log => "log",
        Sin => "sine",
        Cos => "cosine",
        Tan => "tan",
        Tanh => "tanh",
        Sigmoid => "logistic",
        Asin => "chlo.asin",
        Acos => "chlo.acos",
        Atan => "chlo.atan",
        Sinh => "chlo.sinh",
        Cosh => "chlo.cosh",
        Asinh => "chlo.asinh",
        Acosh => "chlo.acosh",
        Atanh => "chlo.atanh",
        Erf => "chlo.erf",
        _ => return None,
    })
}

/// Division of integers: 0 where the divisor is 0.
fn by_nonzero(e: &mut Emitter<'_>, name: &str, x: &Val, y: &Val) -> Val {
    let (zero, one) = (e.full_like(y, 0.0), e.full_like(y, 1.0));
    let none = e.compare("EQ", y, &zero);
    let by = e.select(&none, &one, y);
    let out = e.binary(name, x, &by);
    e.select(&none, &zero, &out)
}

/// The remainder with the sign of the divisor.
fn modulo(e: &mut Emitter<'_>, x: &Val, y: &Val) -> Val {
    let r = if x.dtype.is_float() { e.binary("remainder", x, y) } else { by_nonzero(e, "remainder", x, y) };
    let zero = e.full_like(x, 0.0);
    let (some, low) = (e.compare("NE", &r, &zero), e.compare("LT", &r, &zero));
    let by_low = e.compare("LT", y, &zero);
    let differ = e.binary("xor", &low, &by_low);
    let shift = e.binary("and", &some, &differ);
    let shifted = e.binary("add", &r, y);
    e.select(&shift, &shifted, &r)
}

/// Conversion: floats to integers truncate and saturate, NaN becomes 0.
fn cast(e: &mut Emitter<'_>, x: &Val, to: DType) -> Val {
    if to == DType::Bool && x.dtype != DType::Bool {
        let zero = e.full_like(x, 0.0);
        return e.compare("NE", x, &zero);
    }
    if !(x.dtype.is_float() && to.is_int()) {
        return e.convert(x, to);
    }
    // StableHLO leaves out-of-range conversions unspecified.
    let (low, high) = to.int_range().unwrap_or((0, 0));
    let (low, high) = (low as f64, high as f64);
    let wide = if x.dtype == DType::F64 { x.clone() } else { e.convert(x, DType::F64) };
    let (bottom, top, zero) = (e.full_like(&wide, low), e.full_like(&wide, high), e.full_like(&wide, 0.0));
    // The largest i64 is not an f64: values that reach the next f64 are replaced after the conversion.
    let (under, over) = (e.compare("LE", &wide, &bottom), e.compare("GE", &wide, &top));
    let (nan, outside) = (e.compare("NE", &wide, &wide), e.binary("or", &under, &over));
    let odd = e.binary("or", &nan, &outside);
    let safe = e.select(&odd, &zero, &wide);
    let out = e.convert(&safe, to);
    let (least, most) = extremes(e, to, &x.dims);
    let out = e.select(&over, &most, &out);
    e.select(&under, &least, &out)
}

/// The smallest and the largest number of an integer type.
fn extremes(e: &mut Emitter<'_>, dtype: DType, dims: &[usize]) -> (Val, Val) {
    // The largest number is not representable in f64, so it is built from bits.
    let zero = e.splat(dtype, dims, 0.0);
    let ones = e.unary("not", &zero);
    if !dtype.is_signed_int() {
        return (zero, ones);
    }
    let bits = dtype.bits().unwrap_or(8) - 1;
    let shift = e.splat(dtype, dims, bits as f64);
    let least = e.binary("shift_left", &ones, &shift);
    let most = e.unary("not", &least);
    (least, most)
}
