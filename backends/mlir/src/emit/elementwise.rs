//! Elementwise ops, from their scalar expressions.

use of_ir::{DType, OpId};
use of_ops::elementwise::BitCast;

use super::arith::Item;
use super::{Emitter, Table, Val};

/// Elementwise ops without a scalar expression. The others need no row: see [`print`].
pub const TABLE: Table = &[("of.bit_cast", bit_cast)];

/// Prints an elementwise op: its operands broadcast to the result, then the scalar expression.
pub fn print(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let scalar = of_ops::get(e.g, op).and_then(|o| o.scalar()).ok_or("with these attributes it is not elementwise")?;
    let (dtype, dims) = e.result(op, 0)?;
    let operands = e.operands(op)?;
    let operands: Vec<&Val> = operands.iter().collect();
    Ok(vec![e.pointwise(&operands, dtype, &dims, |s, items| s.apply(scalar, items))?])
}

fn bit_cast(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let to = e.attrs::<BitCast>(op)?.to;
    let x = e.operand(op, 0)?;
    if x.dtype == DType::Bool || to == DType::Bool || x.dtype.is_float() == to.is_float() {
        // The bit pattern is kept; a bool is a byte that is 0 or 1.
        return Ok(vec![e.pointwise(&[&x], to, &x.dims, |s, items| match (items[0].dtype, to) {
            (from, to) if from.is_float() && from != to => Err(format!("bits of {from} as {to}")),
            (DType::Bool, _) | (_, DType::Bool) => s.cast(&items[0], to),
            _ => Ok(Item { name: items[0].name.clone(), dtype: to }),
        })?]);
    }
    Ok(vec![e.pointwise(&[&x], to, &x.dims, |s, items| Ok(s.convert("bitcast", &items[0], to)))?])
}
