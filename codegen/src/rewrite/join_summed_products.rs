//! Makes one product of a sum of products: what a product contributes to the gradient of a matrix that all its batches share.
//!
//! The gradient of `w` in `x w`, where `x` has batches and `w` has none, is the sum of `xᵀ g` over all batches. Summed after the products,
//! it needs memory for a matrix of the size of `w` for each batch, which is written and read once. As one product it sums over batches
//! and rows at once.

use std::collections::HashMap;

use of_diag::Diagnostic;
use of_ir::{Func, Graph, OpId, Rewriter, Type, ValueId};
use of_ops::contraction::MatMul;
use of_ops::list::as_op;
use of_ops::movement::{Reshape, Transpose};
use of_ops::reduction::ReduceSum;
use of_ops::structural::Constant;

/// The name of the pass.
const NAME: &str = "join-summed-products";

/// The function with one product in place of each sum of products over all their batches; `None` if it has none of these.
///
/// # Errors
/// When a new op is invalid, which is a bug.
pub fn joined(func: &Func) -> Result<Option<Func>, Diagnostic> {
    let sums: Vec<Sum> = func.graph.walk().into_iter().filter_map(|op| Sum::of(&func.graph, op)).collect();
    if sums.is_empty() {
        return Ok(None);
    }
    let mut func = func.clone();
    let mut rw = Rewriter::new(&mut func.graph, NAME);
    let order: HashMap<OpId, usize> = rw.graph().walk().into_iter().zip(0..).collect();
    for sum in sums {
        sum.join(&mut rw, &order)?;
    }
    Ok(Some(func))
}

/// A sum of products over all their batches.
struct Sum {
    op: OpId,
    /// The first operand is `from` with these axes: batches, rows of the product, rows that are summed.
    from: ValueId,
    axes: Vec<i64>,
    right: ValueId,
    /// Batches, then rows and columns of the result.
    dims: Vec<i64>,
    /// Rows that are summed.
    inner: i64,
    /// The extents of the result.
    result: Vec<i64>,
}

impl Sum {
    fn of(g: &Graph, op: OpId) -> Option<Sum> {
        as_op::<ReduceSum>(g, op)?;
        let [summed, axes] = g.op(op).operands[..] else { return None };
        let result = fixed_floats(g, g.op(op).results[0])?;
        let product = g.def_op(summed).filter(|def| as_op::<MatMul>(g, *def).is_some() && g.uses(summed).len() == 1)?;
        let [left, right] = g.op(product).operands[..] else { return None };
        let dims = fixed_floats(g, summed)?;
        let (lefts, rights) = (fixed_floats(g, left)?, fixed_floats(g, right)?);
        let batches = dims.len().checked_sub(2).filter(|n| *n > 0)?;
        // Nothing is broadcast, and all batches are summed.
        let whole = lefts.len() == dims.len() && rights.len() == dims.len();
        let same = whole && lefts[..batches] == dims[..batches] && rights[..batches] == dims[..batches];
        let mut over = g.constant(axes)?.to_i64s()?;
        over.iter_mut().filter(|axis| **axis < 0).for_each(|axis| *axis += dims.len() as i64);
        over.sort_unstable();
        if !same || !over.into_iter().eq(0..batches as i64) || dims[..batches].iter().product::<i64>() < 2 {
            return None;
        }
        let identity = || (0..dims.len() as i64).collect::<Vec<_>>();
        let (from, axes) = match g.def_op(left).and_then(|def| Some((def, as_op::<Transpose>(g, def)?))) {
            Some((def, transpose)) => {
                let perm = transpose.permutation(dims.len()).ok()?;
                (g.op(def).operands[0], perm.into_iter().map(|axis| axis as i64).collect())
            }
            None => (left, identity()),
        };
        Some(Sum { op, from, axes, right, inner: lefts[batches + 1], dims, result })
    }

    fn join(mut self, rw: &mut Rewriter<'_>, order: &HashMap<OpId, usize>) -> Result<(), Diagnostic> {
        let rank = self.dims.len();
        self.axes.swap(rank - 2, rank - 1);
        rw.rewrite(self.op, &[]);
        let batches: i64 = self.dims[..rank - 2].iter().product();
        let (rows, columns) = (self.dims[rank - 2], self.dims[rank - 1]);
        // The operand with its rows in order is often there: the forward pass read it.
        let left = match self.axes.iter().copied().eq(0..rank as i64) {
            true => self.from,
            false => match self.earlier_transpose(rw.graph(), order) {
                Some(value) => value,
                None => rw.create_one(Transpose { perm: Some(self.axes.clone()) }, &[self.from])?,
            },
        };
        let left = reshape(rw, left, &[batches * self.inner, rows])?;
        let left = rw.create_one(Transpose { perm: Some(vec![1, 0]) }, &[left])?;
        let right = reshape(rw, self.right, &[batches * self.inner, columns])?;
        let product = rw.create_one(MatMul {}, &[left, right])?;
        let result = reshape(rw, product, &self.result)?;
        let summed = rw.graph().op(self.op).operands[0];
        rw.replace(self.op, &[result]);
        // The products, and what alone they read.
        if let Some(product) = rw.graph().def_op(summed).filter(|_| rw.graph().uses(summed).is_empty()) {
            let left = rw.graph().op(product).operands[0];
            rw.erase(product);
            let unused = rw.graph().uses(left).is_empty();
            if let Some(op) =
                rw.graph().def_op(left).filter(|op| unused && as_op::<Transpose>(rw.graph(), *op).is_some())
            {
                rw.erase(op);
            }
        }
        Ok(())
    }

    fn earlier_transpose(&self, g: &Graph, order: &HashMap<OpId, usize>) -> Option<ValueId> {
        let own = g.op(self.op).parent;
        let is_same = |op: OpId| {
            let perm = as_op::<Transpose>(g, op).and_then(|t| t.permutation(self.dims.len()).ok());
            let before = order.get(&op).zip(order.get(&self.op)).is_some_and(|(op, own)| op < own);
            before
                && g.op(op).parent == own
                && perm.is_some_and(|perm| perm.iter().map(|axis| *axis as i64).eq(self.axes.iter().copied()))
        };
        g.uses(self.from).iter().map(|u| u.op).find(|op| is_same(*op)).map(|op| g.op(op).results[0])
    }
}

fn reshape(rw: &mut Rewriter<'_>, x: ValueId, dims: &[i64]) -> Result<ValueId, Diagnostic> {
    let dims = Constant::ints(rw, dims)?;
    rw.create_one(Reshape { allowzero: true }, &[x, dims])
}

/// The extents of a tensor of floats, all of which are known.
fn fixed_floats(g: &Graph, v: ValueId) -> Option<Vec<i64>> {
    let Type::Tensor(tensor) = g.ty(v) else { return None };
    let dims = tensor.fixed_dims().filter(|_| tensor.dtype.is_float())?;
    Some(dims.into_iter().map(|d| d as i64).collect())
}

#[cfg(test)]
mod tests {
    use of_ops::interpret;
    use of_ops::sample::Rng;

    use super::*;

    fn parsed(text: &str) -> Func {
        let module =
            of_ir::text::parse_module(text, "test", &of_ops::registry(), None).unwrap_or_else(|d| panic!("{d}"));
        module.funcs["main"].clone()
    }

    /// Names of the ops after the rewrite, whose results are those from before.
    fn names_after(text: &str) -> Option<Vec<&'static str>> {
        let func = parsed(text);
        let after = joined(&func).expect("the product is valid")?;
        let mut r = Rng::new(1);
        let types = func.input_types();
        let inputs: Vec<of_ops::Value> = types
            .iter()
            .map(|ty| r.tensor(of_ir::DType::F32, &ty.as_tensor().unwrap().fixed_dims().unwrap(), -1.0, 1.0).into())
            .collect();
        let values = |func: &Func| {
            let out = interpret::run_graph(&func.graph, &inputs).unwrap_or_else(|d| panic!("{d}"));
            let of_ops::Value::Tensor(tensor) = &out[0] else { panic!("no tensor") };
            (tensor.dims().to_vec(), tensor.to_f64s().unwrap())
        };
        let ((dims, want), (got_dims, got)) = (values(&func), values(&after));
        assert_eq!(dims, got_dims);
        for (want, got) in want.iter().zip(&got) {
            assert!((want - got).abs() <= 1e-4, "{want} {got}");
        }
        let g = &after.graph;
        Some(g.walk().into_iter().map(|op| g.op(op).name()).filter(|name| *name != "of.constant").collect())
    }

    /// A sum over `axes` of products of `left`, whose text makes `%l` of `%x`.
    fn sum(x: &str, left: &str, l: &str, r: &str, products: &str, axes: &str, result: &str) -> String {
        let rank = axes.split(',').count();
        format!(
            "func @main(%x: tensor<{x}xf32>, %r: tensor<{r}xf32>) -> (tensor<{result}xf32>) {{
  {left}
  %p = of.matmul %l, %r : (tensor<{l}xf32>, tensor<{r}xf32>) -> tensor<{products}xf32>
  %axes = of.constant {{value = dense<[{axes}]> : tensor<{rank}xi64>}} : () -> tensor<{rank}xi64>
  %y = of.reduce_sum %p, %axes {{keepdims = {}}} : (tensor<{products}xf32>, tensor<{rank}xi64>) -> tensor<{result}xf32>
  of.return %y
}}",
            result.starts_with("1x")
        )
    }

    #[test]
    fn sums_over_all_batches_become_one_product() {
        let swap = "%l = of.transpose %x {perm = [0, 2, 1]} : (tensor<3x5x4xf32>) -> tensor<3x4x5xf32>";
        let one = ["of.reshape", "of.transpose", "of.reshape", "of.matmul", "of.reshape", "of.return"];
        let names = names_after(&sum("3x5x4", swap, "3x4x5", "3x5x6", "3x4x6", "0", "4x6"));
        assert_eq!(names.as_deref(), Some(&one[..]));
        let names = names_after(&sum("3x5x4", swap, "3x4x5", "3x5x6", "3x4x6", "-3", "1x4x6"));
        assert_eq!(names.as_deref(), Some(&one[..]));
        // Batches of two axes, and an operand that is no transpose.
        let id = "%l = of.relu %x : (tensor<2x3x4x5xf32>) -> tensor<2x3x4x5xf32>";
        let names = names_after(&sum("2x3x4x5", id, "2x3x4x5", "2x3x5x6", "2x3x4x6", "1, 0", "4x6")).unwrap();
        assert_eq!((&names[..2], &names[2..]), (&["of.relu", "of.transpose"][..], &one[..]));
        // The sequence is first: the forward pass has the rows in order.
        let sequence = "%f = of.transpose %x {perm = [1, 0, 2]} : (tensor<5x3x4xf32>) -> tensor<3x5x4xf32>
  %l = of.transpose %x {perm = [1, 2, 0]} : (tensor<5x3x4xf32>) -> tensor<3x4x5xf32>";
        let names = names_after(&sum("5x3x4", sequence, "3x4x5", "3x5x6", "3x4x6", "0", "4x6")).unwrap();
        assert_eq!((&names[..1], &names[1..]), (&["of.transpose"][..], &one[..]));
    }

    #[test]
    fn other_sums_stay() {
        let id = "%l = of.relu %x : (tensor<2x3x4x5xf32>) -> tensor<2x3x4x5xf32>";
        let text = sum("2x3x4x5", id, "2x3x4x5", "2x3x5x6", "2x3x4x6", "0", "3x4x6");
        assert_eq!(names_after(&text), None, "one axis of the batches stays");
        let text = sum("2x3x4x5", id, "2x3x4x5", "3x5x6", "2x3x4x6", "0, 1", "4x6");
        assert_eq!(names_after(&text), None, "an operand is broadcast");
        let one = "%l = of.relu %x : (tensor<1x4x5xf32>) -> tensor<1x4x5xf32>";
        assert_eq!(names_after(&sum("1x4x5", one, "1x4x5", "1x5x6", "1x4x6", "0", "4x6")), None, "one batch");
    }
}
