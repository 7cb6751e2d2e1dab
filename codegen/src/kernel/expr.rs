//! Checks which scalar programs kernels can compute.
//!
//! 16-bit floats are f32 between loads and stores: loads widen them, and stores narrow values that were rounded to their type.

use of_ir::DType;
use of_ops::scalar::ScalarOp;

use crate::kernel::body::{Body, Node};
use crate::kernel::float::is_half;

/// Functions of floats that the preludes compute in f32.
pub(crate) fn is_prelude_function(op: ScalarOp) -> bool {
    use ScalarOp::*;
    let trigonometric = matches!(op, Sin | Cos | Tan | Asin | Acos | Atan);
    let hyperbolic = matches!(op, Sinh | Cosh | Tanh | Asinh | Acosh | Atanh);
    let rounding = matches!(op, Ceil | Floor | Round);
    trigonometric || hyperbolic || rounding || matches!(op, Sqrt | Rsqrt | Exp | Log | Pow | Erf | Sigmoid)
}

/// The reason why a body cannot be printed, if any.
pub fn unsupported_reason(body: &Body) -> Option<String> {
    for t in &body.nodes {
        let Node::Op(op, args) = &t.node else { continue };
        let float = |d: DType| d == DType::F32;
        let operand = args.last().map_or(t.dtype, |a| body.nodes[*a].dtype);
        use ScalarOp::*;
        let needs_f32 = (is_prelude_function(*op) || matches!(op, Mod | Fmod)) && operand.is_float();
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
    // Values that f32 cannot represent would be rounded twice. Integers too large for f16 become infinite.
    body.nodes.iter().find_map(|t| {
        let Node::Op(ScalarOp::Cast(to), args) = &t.node else { return None };
        let from = body.nodes[args[0]].dtype;
        let wide = from == DType::F64 || (*to == DType::BF16 && from.is_int() && from.bits().is_some_and(|b| b > 16));
        (is_half(*to) && wide).then(|| format!("the conversion of {from} to {to} has no native code"))
    })
}
