//! Values that are known at import: indices, numbers of iterations.

use of_ir::{Tensor, ValueId};
use of_ops::elementwise::Cast;
use of_ops::movement::{Expand, Reshape};
use of_ops::{OpSpec, scalar_eval};

use super::Importer;

/// Larger values are left to the passes.
const LARGEST: usize = 1 << 12;
/// Ops in a row.
const DEEPEST: usize = 24;

impl Importer<'_, '_> {
    /// The value of `v` if it follows from constants.
    pub fn fold(&self, v: ValueId) -> Option<Tensor> {
        self.folded(v, DEEPEST)
    }

    /// The same as one integer.
    pub fn fold_int(&self, v: ValueId) -> Option<i64> {
        match self.fold(v)?.to_i64s()?.as_slice() {
            [one] => Some(*one),
            _ => None,
        }
    }

    fn folded(&self, v: ValueId, depth: usize) -> Option<Tensor> {
        let g = self.rw.graph();
        let dims = g.ty(v).as_tensor()?.fixed_dims()?;
        if dims.iter().product::<usize>() > LARGEST {
            return None;
        }
        if let Some(t) = g.constant(v) {
            return Some(t);
        }
        let id = g.def_op(v)?;
        let data = g.op(id);
        let depth = depth.checked_sub(1)?;
        let operand = |i: usize| self.folded(*data.operands.get(i)?, depth);
        match data.name() {
            Reshape::NAME => return operand(0)?.reshaped(dims).ok(),
            Cast::NAME => {
                let x = operand(0)?;
                let to = of_ops::list::as_op::<Cast>(g, id)?.to;
                return Tensor::from_elements(to, dims, x.elements()).ok();
            }
            Expand::NAME => {
                let x = operand(0)?;
                // Adding nothing broadcasts.
                return (x.len() == 1).then(|| splat(&x, dims)).flatten();
            }
            _ => {}
        }
        let scalar = of_ops::get(g, id)?.scalar()?;
        let operands: Vec<Tensor> = (0..data.operands.len()).map(operand).collect::<Option<_>>()?;
        let divides = of_ops::division::divides_integers(scalar, operands.last()?.dtype());
        if divides && operands.last()?.to_i64s()?.contains(&0) {
            return None;
        }
        scalar_eval::broadcast(scalar, &operands.iter().collect::<Vec<_>>(), &dims).ok()
    }
}

/// One element repeated.
fn splat(x: &Tensor, dims: Vec<usize>) -> Option<Tensor> {
    let n = dims.iter().product();
    let cells = x.cells()?.1.repeat(n);
    Tensor::from_cells(x.dtype(), dims, cells).ok()
}
