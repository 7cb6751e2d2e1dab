//! `loop-append-to-scan-output`: replaces concatenation in a loop by a scan output.
//!
//! A loop-carried tensor that grows by concatenation is copied in every iteration, which takes quadratic time. A scan
//! output is written once. Exporters emit such tensors for lists that a script collects.

use of_diag::{Diagnostic, Diagnostics};
use of_ir::{Dim, Func, Graph, OpId, Rewriter, Shape, Tensor, TensorType, Type, ValueId};
use of_ops::OpSpec;
use of_ops::control::Loop;
use of_ops::elementwise::Mul;
use of_ops::movement::{Concat, Reshape};
use of_ops::structural::{Constant, ShapeOf, Yield};

use crate::matchers::def;

/// Replaces every such loop-carried value.
///
/// loop(n, s) { yield concat(s, x) } = concat(s, reshape(loop(n) { scan x }))
///
/// # Errors
/// When an op does not fit, a bug of the pass.
pub fn loop_append_to_scan_output(func: &mut Func) -> Result<(), Diagnostics> {
    let mut rw = Rewriter::new(&mut func.graph, "loop-append-to-scan-output");
    for op in rw.graph().walk() {
        while rw.graph().is_live(op) && rw.graph().op(op).name() == Loop::NAME {
            let Some(append) = Append::find(rw.graph(), op) else { break };
            append.replace(&mut rw, op)?;
        }
    }
    Ok(())
}

/// A loop-carried value that is only appended to.
struct Append {
    /// Its position among the carried values.
    slot: usize,
    /// The value that an iteration appends.
    part: ValueId,
    /// The shape of every part: that of `part`, with the carried value's extents after the first.
    shape: Shape,
}

impl Append {
    fn find(g: &Graph, op: OpId) -> Option<Append> {
        let data = g.op(op);
        let body = data.regions[0];
        (0..data.operands.len().checked_sub(2)?).find_map(|slot| {
            let (arg, next) = (g.region_args(body)[slot + 2], *g.yields(body).get(slot + 1)?);
            let (concat, Concat { axis }) = def::<Concat>(g, next)?;
            let [first, part] = g.op(concat).operands[..] else { return None };
            let rank = g.ty(part).as_tensor()?.rank()?;
            let along = of_ops::shape::axis(axis, rank).ok()?;
            let once = |v: ValueId| g.uses(v).len() == 1;
            if along != 0 || first != arg || !once(arg) || !once(next) || g.op(concat).parent != body {
                return None;
            }
            // The runtime stacks whole bytes.
            g.ty(part).as_tensor()?.dtype.bits().filter(|b| *b >= 8)?;
            let own = |v: ValueId| g.ty(v).as_tensor()?.shape.as_ref();
            let start = own(data.operands[slot + 2])?;
            let length = own(part)?[0].clone();
            // Parts of different lengths cannot be stacked.
            let fits = length.as_const().is_some_and(|n| n > 0) && start.len() == rank;
            let shape = std::iter::once(length).chain(start[1..].iter().cloned()).collect();
            fits.then_some(Append { slot, part, shape })
        })
    }

    fn replace(self, rw: &mut Rewriter<'_>, op: OpId) -> Result<(), Diagnostic> {
        let Append { slot, part, shape } = self;
        let data = rw.graph().op(op);
        let (mut operands, results, old) = (data.operands.to_vec(), data.results.to_vec(), data.regions[0]);
        let start = operands.remove(slot + 2);
        let dtype = rw.graph().ty(part).as_tensor().map(|t| t.dtype);
        let args = rw.graph().region_args(old).to_vec();
        let mut yields = rw.graph().yields(old).to_vec();
        let appended = yields.remove(slot + 1);
        yields.push(part);
        let concat = rw.graph().def_op(appended);
        rw.rewrite(op, &[]);
        let (region, filled) = rw.region_with(|rw, region| -> Result<(), Diagnostic> {
            for (_, arg) in args.iter().enumerate().filter(|(i, _)| *i != slot + 2) {
                let (ty, name) = (rw.graph().ty(*arg).clone(), rw.graph().name(*arg).cloned());
                let own = rw.add_arg(region, ty, name);
                rw.replace_uses(*arg, own);
                yields.iter_mut().filter(|v| **v == *arg).for_each(|v| *v = own);
            }
            let end = rw.create(Yield {}, &yields)?;
            let mut inner: Vec<OpId> = rw.graph().region_ops(old).collect();
            inner.retain(|o| !rw.graph().op(*o).def.traits().terminator && Some(*o) != concat);
            for o in inner {
                rw.move_before(o, end);
            }
            Ok(())
        });
        filled?;
        rw.rewrite(op, &[]);
        let made = rw.create_with_regions(Loop {}, &operands, &[region])?;
        let mut values = rw.graph().op(made).results.to_vec();
        let Some(stack) = values.pop() else { return Ok(()) };
        // Without an iteration the stack has the extents of its type; otherwise the run checks them.
        let trips = rw.graph().ty(stack).as_tensor().and_then(|t| t.shape.as_ref()?.first().cloned());
        let whole = std::iter::once(trips.unwrap_or_else(Dim::unknown)).chain(shape.iter().cloned()).collect();
        if let Some(dtype) = dtype {
            rw.set_type(stack, Type::Tensor(TensorType { dtype, shape: Some(whole), sbp: None }));
        }
        let count = rw.create_one(ShapeOf { start: Some(0), end: Some(1) }, &[stack])?;
        let each = Tensor::from_i64s(&[shape[0].as_const().unwrap_or(1)]);
        let each = rw.create_one(Constant { value: each }, &[])?;
        let length = rw.create_one(Mul {}, &[count, each])?;
        let rest = rw.create_one(ShapeOf { start: Some(2), end: None }, &[stack])?;
        let to = rw.create_one(Concat { axis: 0 }, &[length, rest])?;
        let parts = rw.create_one(Reshape { allowzero: true }, &[stack, to])?;
        let empty = rw.graph().ty(start).as_tensor().and_then(|t| t.shape.as_ref()?[0].as_const()) == Some(0);
        let all = if empty { parts } else { rw.create_one(Concat { axis: 0 }, &[start, parts])? };
        values.insert(slot, all);
        debug_assert_eq!(values.len(), results.len());
        rw.replace(op, &values);
        Ok(())
    }
}
