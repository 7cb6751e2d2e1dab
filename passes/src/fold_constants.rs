//! `fold-constants`: evaluates at compile time what depends on constants and shapes alone.

use of_diag::Diagnostics;
use of_ir::{DType, Elements, Func, OpId, Rewriter, Tensor, Type, ValueId};
use of_ops::structural::Constant;
use of_ops::{Inputs, Kind, Value};

/// Results above this size stay ops (except when they are no larger than their operands).
const LARGEST_RESULT: usize = 512 << 20;

/// Replaces every op whose results are known by constants.
///
/// # Errors
/// None so far: an op that cannot be evaluated stays, and fails at run time as it would have.
pub fn fold_constants(func: &mut Func) -> Result<(), Diagnostics> {
    let mut rw = Rewriter::new(&mut func.graph, "fold-constants");
    for op in rw.graph().walk() {
        if !rw.graph().is_live(op) || !foldable(&rw, op) {
            continue;
        }
        let values = match from_shapes(&rw, op) {
            Some(t) => Some(vec![t]),
            None => evaluate(&rw, op),
        };
        let Some(values) = values else { continue };
        rw.rewrite(op, &[]);
        let mut results: Vec<ValueId> = Vec::with_capacity(values.len());
        for value in values {
            results.push(rw.create_one(Constant { value }, &[])?);
        }
        rw.replace(op, &results);
    }
    Ok(())
}

fn foldable(rw: &Rewriter<'_>, op: OpId) -> bool {
    let data = rw.graph().op(op);
    let t = data.def.traits();
    !t.constant && !t.effect && !t.terminator && data.regions.is_empty() && !data.results.is_empty()
}

/// An integer tensor that follows from shapes, e.g. the result of `of.shape`.
fn from_shapes(rw: &Rewriter<'_>, op: OpId) -> Option<Tensor> {
    let g = rw.graph();
    let [result] = g.op(op).results.as_slice() else { return None };
    let Type::Tensor(t) = g.ty(*result) else { return None };
    if !t.dtype.is_int() {
        return None;
    }
    let dims = g.dims_value(*result)?;
    let ints = dims.iter().map(|d| d.as_const().map(i128::from)).collect::<Option<Vec<_>>>()?;
    let shape = t.fixed_dims().unwrap_or_else(|| if t.rank() == Some(0) { vec![] } else { vec![ints.len()] });
    Tensor::from_elements(t.dtype, shape, Elements::Int(ints)).ok()
}

/// The op's own evaluation on constant operands.
fn evaluate(rw: &Rewriter<'_>, op: OpId) -> Option<Vec<Tensor>> {
    let g = rw.graph();
    let data = g.op(op);
    let decl = of_ops::decl(data.name())?;
    if decl.kind() == Kind::Structural && data.operands.is_empty() {
        return None;
    }
    let mut operand_bytes = 0;
    let mut values = Vec::with_capacity(data.operands.len());
    for v in &data.operands {
        if *g.ty(*v) == Type::None {
            values.push(Value::None);
        } else {
            let t = g.constant(*v)?;
            operand_bytes += t.bytes().map_or(0, |b| b.len());
            values.push(Value::Tensor(t));
        }
    }
    let types: Vec<Type> = data.results.iter().map(|v| g.ty(*v).clone()).collect();
    if result_bytes(&types) > LARGEST_RESULT.max(operand_bytes) {
        return None;
    }
    let imp = decl.decode(&data.attrs).ok()?;
    let mut no_region = |_: usize, _: &[Value]| Err(of_ir::OpError::eval("the op has no region"));
    let mut inputs = Inputs { values: &values, types: &types, region: &mut no_region };
    let out = imp.eval(&mut inputs).ok()?;
    out.into_iter().map(|v| if let Value::Tensor(t) = v { Some(t) } else { None }).collect()
}

/// Bytes of the results, 0 where unknown (they follow from values, and are small in practice).
fn result_bytes(types: &[Type]) -> usize {
    types
        .iter()
        .filter_map(|t| t.as_tensor())
        .filter(|t| t.dtype != DType::String)
        .filter_map(|t| t.dtype.byte_len(t.fixed_dims()?.iter().try_fold(1usize, |n, d| n.checked_mul(*d))?))
        .fold(0, usize::saturating_add)
}
