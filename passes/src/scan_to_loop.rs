//! `scan-to-loop`: lowers scans to loops, which have native code.

use of_diag::{Diagnostic, Diagnostics};
use of_ir::{DType, Func, OpId, Rewriter, Tensor, TensorType, Type, ValueId};
use of_ops::OpSpec;
use of_ops::control::{Loop, Scan};
use of_ops::elementwise::Sub;
use of_ops::list::as_op;
use of_ops::movement::{Gather, Reshape, Slice, Transpose};
use of_ops::structural::{Constant, ShapeOf, Yield};

/// Replaces every scan whose inputs have known ranks.
///
/// scan(s, x) = loop(n, s) where step i gathers slice i of x (slice n - 1 - i backward). Outputs are stacked along the
/// first axis, then reversed and transposed as needed.
///
/// # Errors
/// When an op does not fit, a bug of the pass.
pub fn scan_to_loop(func: &mut Func) -> Result<(), Diagnostics> {
    let mut rw = Rewriter::new(&mut func.graph, "scan-to-loop");
    // Inner scans first, so that an outer scan moves their loops.
    let mut scans = rw.graph().walk();
    scans.retain(|op| rw.graph().op(*op).name() == Scan::NAME);
    for op in scans.into_iter().rev() {
        replace(&mut rw, op)?;
    }
    Ok(())
}

/// A rank-1 constant.
fn ints(rw: &mut Rewriter<'_>, values: &[i64]) -> Result<ValueId, Diagnostic> {
    rw.create_one(Constant { value: Tensor::from_i64s(values) }, &[])
}

/// The one element of a value as a scalar.
fn scalar(rw: &mut Rewriter<'_>, v: ValueId) -> Result<ValueId, Diagnostic> {
    let none = ints(rw, &[])?;
    rw.create_one(Reshape { allowzero: false }, &[v, none])
}

/// Entry `i` of an optional list of axes; 0 without the list.
fn axis(list: &Option<Vec<i64>>, i: usize, rank: usize) -> Option<usize> {
    let a = list.as_ref().map_or(Some(0), |l| l.get(i).copied())?;
    of_ops::shape::axis(a, rank).ok()
}

fn backward(list: &Option<Vec<i64>>, i: usize) -> bool {
    list.as_ref().is_some_and(|l| l.get(i) == Some(&1))
}

fn tensor<'g>(rw: &'g Rewriter<'_>, v: ValueId) -> Option<&'g TensorType> {
    rw.graph().ty(v).as_tensor()
}

fn replace(rw: &mut Rewriter<'_>, op: OpId) -> Result<(), Diagnostic> {
    let data = rw.graph().op(op);
    let (operands, results, body) = (data.operands.to_vec(), data.results.to_vec(), data.regions[0]);
    let Some(scan) = as_op::<Scan>(rw.graph(), op) else { return Ok(()) };
    let Some(states) = usize::try_from(scan.num_scan_inputs).ok().and_then(|n| operands.len().checked_sub(n)) else {
        return Ok(());
    };
    let rank = |rw: &Rewriter<'_>, v: ValueId| tensor(rw, v).and_then(|t| t.rank());
    let inputs: Option<Vec<(ValueId, usize)>> = operands[states..]
        .iter()
        .enumerate()
        .map(|(i, v)| Some((*v, axis(&scan.scan_input_axes, i, rank(rw, *v)?)?)))
        .collect();
    let outputs: Option<Vec<usize>> =
        results[states..].iter().enumerate().map(|(i, v)| axis(&scan.scan_output_axes, i, rank(rw, *v)?)).collect();
    let (Some(inputs), Some(outputs)) = (inputs, outputs) else { return Ok(()) };
    let Some(&(first, along)) = inputs.first() else { return Ok(()) };
    rw.rewrite(op, &[]);
    let known = tensor(rw, first).and_then(|t| t.shape.as_ref()?[along].as_const());
    let count = match known {
        Some(n) => ints(rw, &[n])?,
        None => rw.create_one(ShapeOf { start: Some(along as i64), end: Some(along as i64 + 1) }, &[first])?,
    };
    let count = scalar(rw, count)?;
    let one = ints(rw, &[1])?;
    let one = scalar(rw, one)?;
    let last = rw.create_one(Sub {}, &[count, one])?;
    let always = Constant::number(rw, 1.0, DType::Bool)?;
    let args = rw.graph().region_args(body).to_vec();
    let (region, filled) = rw.region_with(|rw, region| -> Result<(), Diagnostic> {
        let number = rw.add_arg(region, Type::fixed(DType::I64, &[]), None);
        rw.add_arg(region, Type::fixed(DType::Bool, &[]), None);
        for arg in &args[..states] {
            let (ty, name) = (rw.graph().ty(*arg).clone(), rw.graph().name(*arg).cloned());
            let own = rw.add_arg(region, ty, name);
            rw.replace_uses(*arg, own);
        }
        for (i, (x, axis)) in inputs.iter().enumerate() {
            let at =
                if backward(&scan.scan_input_directions, i) { rw.create_one(Sub {}, &[last, number])? } else { number };
            let slice = rw.create_one(Gather { axis: *axis as i64 }, &[*x, at])?;
            let arg = args[states + i];
            if rank(rw, arg).is_some() {
                let ty = rw.graph().ty(arg).clone();
                rw.set_type(slice, ty);
            }
            rw.replace_uses(arg, slice);
        }
        let yields: Vec<ValueId> = [always].into_iter().chain(rw.graph().yields(body).to_vec()).collect();
        let end = rw.create(Yield {}, &yields)?;
        let mut inner: Vec<OpId> = rw.graph().region_ops(body).collect();
        inner.retain(|o| !rw.graph().op(*o).def.traits().terminator);
        for o in inner {
            rw.move_before(o, end);
        }
        Ok(())
    });
    filled?;
    // The loop is created at the position of the scan.
    rw.rewrite(op, &[]);
    let carried: Vec<ValueId> = [count, always].into_iter().chain(operands[..states].iter().copied()).collect();
    let made = rw.create_with_regions(Loop {}, &carried, &[region])?;
    let mut values = rw.graph().op(made).results.to_vec();
    for (i, to) in outputs.into_iter().enumerate() {
        let (old, stack) = (results[states + i], values[states + i]);
        if let Some(mut t) = tensor(rw, old).cloned() {
            if let Some(s) = &mut t.shape {
                let length = s.remove(to);
                s.insert(0, length);
            }
            rw.set_type(stack, Type::Tensor(t));
        }
        let mut value = stack;
        if backward(&scan.scan_output_directions, i) {
            let (from, end) = (ints(rw, &[-1])?, ints(rw, &[i64::MIN])?);
            let (axis, step) = (ints(rw, &[0])?, ints(rw, &[-1])?);
            value = rw.create_one(Slice {}, &[value, from, end, axis, step])?;
        }
        if to > 0 {
            let rank = rank(rw, value).unwrap_or(to + 1) as i64;
            let perm = (1..=to as i64).chain([0]).chain(to as i64 + 1..rank).collect();
            value = rw.create_one(Transpose { perm: Some(perm) }, &[value])?;
        }
        values[states + i] = value;
    }
    rw.replace(op, &values);
    Ok(())
}
