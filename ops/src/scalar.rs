//! The scalar language: what an elementwise op computes on one element.
//!
//! One enum is shared by the reference evaluation (here), the fusion of elementwise ops and every code printer, so
//! that adding an elementwise op means adding a row here, a row in a family table, and a printer line for each target
//! that can do better than the generic expansion.

use of_ir::DType;

/// A function of one, two or three scalars.
///
/// Unless noted, operands and result have one common element type.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[allow(missing_docs, reason = "the names are the functions")]
pub enum ScalarOp {
    // one operand
    Neg,
    Abs,
    Sign,
    Ceil,
    Floor,
    /// Round to nearest, ties to even.
    Round,
    Sqrt,
    Rsqrt,
    Reciprocal,
    Exp,
    Log,
    Sin,
    Cos,
    Tan,
    Asin,
    Acos,
    Atan,
    Sinh,
    Cosh,
    Tanh,
    Asinh,
    Acosh,
    Atanh,
    Erf,
    /// 1 / (1 + exp(-x)).
    Sigmoid,
    /// Bool to bool.
    Not,
    BitwiseNot,
    /// Any float to bool.
    IsNan,
    /// Any float to bool, either sign.
    IsInf,
    // two operands
    Add,
    Sub,
    Mul,
    /// Integers truncate towards zero. By zero see [`crate::division`].
    Div,
    /// Remainder with the sign of the divisor (Python's `%`). Integers by zero see [`crate::division`].
    Mod,
    /// Remainder with the sign of the dividend (C's `fmod` and `%`). Integers by zero see [`crate::division`].
    Fmod,
    Pow,
    /// NaN if either operand is NaN.
    Max,
    /// NaN if either operand is NaN.
    Min,
    And,
    Or,
    Xor,
    BitwiseAnd,
    BitwiseOr,
    BitwiseXor,
    Shl,
    Shr,
    // comparisons: two operands of one type to bool
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    // three operands
    /// (bool, a, a) to a.
    Select,
    // conversion
    /// To the given type: float to int truncates, out of range saturates, NaN gives 0; to bool is `x != 0`.
    Cast(DType),
}

impl ScalarOp {
    /// How far the f32 results of native code may be from the exact ones, relative to them and in units of `f32::EPSILON / 2`,
    /// of functions that are approximated. Other functions are one operation, rounded once.
    pub fn max_error(self) -> Option<f64> {
        use ScalarOp::*;
        match self {
            Pow => Some(2.0),
            Exp | Log | Sin | Cos | Tan | Asin | Acos | Atan | Sinh | Cosh | Tanh | Asinh | Acosh | Atanh => Some(4.0),
            Erf => Some(6.0),
            Sigmoid => Some(16.0),
            _ => None,
        }
    }

    /// Number of operands.
    pub const fn arity(self) -> usize {
        use ScalarOp::*;
        match self {
            Select => 3,
            Add | Sub | Mul | Div | Mod | Fmod | Pow | Max | Min | And | Or | Xor | BitwiseAnd | BitwiseOr
            | BitwiseXor | Shl | Shr | Eq | Ne | Lt | Le | Gt | Ge => 2,
            _ => 1,
        }
    }

    /// Element type of the result for operands of type `operand` (for `Select`: the type of the two choices).
    pub const fn result_type(self, operand: DType) -> DType {
        use ScalarOp::*;
        match self {
            Not | IsNan | IsInf | And | Or | Xor | Eq | Ne | Lt | Le | Gt | Ge => DType::Bool,
            Cast(to) => to,
            _ => operand,
        }
    }
}
