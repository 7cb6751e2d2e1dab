//! Reductions between ranks at the earliest place.
//!
//! `insert-boxing` puts a collective where its result is read. A gradient is read by the update of its parameter, after the whole backward
//! pass, so all reductions of gradients would come at the end, those of the first layers first. At the earliest place they come in the order
//! in which the backward pass makes their operands, and a rank goes on with it while data is under way. A reduction makes nothing
//! larger, so memory stays about the same. Gathers, which do, stay where they are.

use std::collections::HashMap;

use of_diag::Diagnostic;
use of_ir::{Func, OpId, Rewriter};
use of_ops::OpSpec;
use of_ops::boxing::{AllReduce, ReduceScatter};
use of_ops::time::TimeShape;

/// Moves each reduction of partial values behind the op that makes its operand. A function with microbatches is left as it is: there the
/// schedule says when transfers take place. Returns the number of reductions that moved.
///
/// # Errors
/// When the function's microbatches contradict each other.
pub fn hoist_reductions(func: &mut Func) -> Result<usize, Diagnostic> {
    let g = &func.graph;
    if TimeShape::of(g, g.entry())?.is_some() {
        return Ok(0);
    }
    let ops: Vec<OpId> = g.region_ops(g.entry()).collect();
    let mut made: HashMap<_, usize> = HashMap::new();
    for (place, op) in ops.iter().enumerate() {
        g.op(*op).results.iter().for_each(|value| _ = made.insert(*value, place));
    }
    // For each op, the reductions that follow it.
    let mut behind: HashMap<usize, Vec<usize>> = HashMap::new();
    let mut moved = vec![false; ops.len()];
    let mut count = 0;
    for (place, op) in ops.iter().enumerate() {
        let data = g.op(*op);
        let reduces = [AllReduce::NAME, ReduceScatter::NAME].contains(&data.name());
        if let Some(from) = data.operands.first().and_then(|value| made.get(value)).filter(|_| reduces) {
            behind.entry(*from).or_default().push(place);
            moved[place] = true;
            count += usize::from(from + 1 != place);
        }
    }
    if count == 0 {
        return Ok(0);
    }
    let mut order: Vec<OpId> = Vec::with_capacity(ops.len());
    let mut pending: Vec<usize> = Vec::new();
    for place in (0..ops.len()).filter(|place| !moved[*place]) {
        pending.push(place);
        while let Some(next) = pending.pop() {
            order.push(ops[next]);
            pending.extend(behind.remove(&next).unwrap_or_default().into_iter().rev());
        }
    }
    let mut rw = Rewriter::new(&mut func.graph, "hoist-reductions");
    for pair in order.windows(2).rev() {
        rw.move_before(pair[0], pair[1]);
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use of_ir::{DType, Graph, NdSbp, PartialKind, Sbp, Type};
    use of_ops::elementwise::{Exp, Mul};
    use of_ops::structural::Return;

    use super::*;

    #[test]
    fn reductions_follow_what_makes_their_operands() {
        let sbp = |sbp| NdSbp { mesh: "m".into(), axes: [sbp].into_iter().collect() };
        let mut graph = Graph::new();
        let entry = graph.entry();
        let mut rw = Rewriter::new(&mut graph, "test");
        let ty = Type::fixed(DType::F32, &[8, 8]);
        let x = rw.add_arg(entry, ty, None);
        let a = rw.create_one(Exp {}, &[x]).unwrap();
        let b = rw.create_one(Mul {}, &[a, x]).unwrap();
        let partial = |rw: &mut Rewriter<'_>, v| {
            let mut ty = rw.graph().ty(v).clone();
            if let Type::Tensor(t) = &mut ty {
                t.sbp = Some(sbp(Sbp::Partial(PartialKind::Sum)));
            }
            rw.set_type(v, ty);
        };
        partial(&mut rw, a);
        partial(&mut rw, b);
        // The sum of the second comes first, and both are at the end.
        let last = rw.create_one(Exp {}, &[x]).unwrap();
        let all = AllReduce { axes: vec![0], sharding: sbp(Sbp::Broadcast) };
        let of_b = rw.create_one(all.clone(), &[b]).unwrap();
        let of_a = rw.create_one(all, &[a]).unwrap();
        rw.create(Return {}, &[last, of_a, of_b]).unwrap();
        let mut func = Func::numbered(graph);
        assert_eq!(hoist_reductions(&mut func).unwrap(), 2);
        let g = &func.graph;
        let names: Vec<&str> = g.region_ops(g.entry()).map(|op| g.op(op).name()).collect();
        let sum = AllReduce::NAME;
        assert_eq!(names, [Exp::NAME, sum, Mul::NAME, sum, Exp::NAME, Return::NAME]);
        assert_eq!(hoist_reductions(&mut func).unwrap(), 0);
    }
}
