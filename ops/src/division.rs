//! Divisions and remainders of integers, and which of them must not divide by zero.
//!
//! ONNX does not define their result by zero, and processors trap. A run with such a division fails, unless nothing but the
//! choices of `of.select` read the quotient: models guard divisions that way, and there it is 0 and not chosen.

use of_ir::{DType, Graph, OpId};

use crate::OpSpec;
use crate::elementwise::Select;
use crate::movement::{Expand, Reshape, Squeeze, Transpose, Unsqueeze};
use crate::scalar::ScalarOp;

/// What the error of a run says.
pub const BY_ZERO: &str = "an integer is divided by zero";

/// Ops that only move elements, so that what reads their results reads the quotient.
const MOVES: [&str; 5] = [Expand::NAME, Reshape::NAME, Squeeze::NAME, Transpose::NAME, Unsqueeze::NAME];
/// Most values that are followed to their readers.
const MOST: usize = 64;

/// Whether `op` on operands of type `dtype` has no result where operand 1 is zero.
pub fn divides_integers(op: ScalarOp, dtype: DType) -> bool {
    matches!(op, ScalarOp::Div | ScalarOp::Mod | ScalarOp::Fmod) && dtype.is_int()
}

/// Whether nothing but the choices of `of.select` read the result of `op`, directly or after elementwise ops and ops that move
/// elements.
pub fn is_guarded(g: &Graph, op: OpId) -> bool {
    let mut values = g.op(op).results.to_vec();
    let mut at = 0;
    while let Some(v) = values.get(at).copied() {
        at += 1;
        for u in g.uses(v) {
            let reader = g.op(u.op);
            if reader.name() == Select::NAME && u.operand > 0 {
                continue;
            }
            let elementwise = crate::get(g, u.op).is_some_and(|o| o.scalar().is_some());
            if !(elementwise || MOVES.contains(&reader.name()) && u.operand == 0) {
                return false;
            }
            values.extend(reader.results.iter().filter(|r| !values.contains(r)).copied().collect::<Vec<_>>());
            if values.len() > MOST {
                return false;
            }
        }
    }
    true
}
