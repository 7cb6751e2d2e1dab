//! Work estimates: arithmetic operations and bytes of an op, from its shapes. Cost models start from them.

use of_ir::{Graph, OpId, OpView, Rewriter, Type};

use crate::movement::{Flatten, Gather, GatherElements, GatherNd, Reshape, Slice, Squeeze, Unsqueeze};
use crate::scalar::ScalarOp;
use crate::structural::{Alternatives, Constant, NoneValue, OptimizationBarrier, Return, ShapeOf, Size, Yield};
use crate::{Kind, Op, OpSpec, list};

pub use crate::estimate::{OPEN, bytes, elements, extent};

/// Arithmetic and memory traffic of an op that runs alone.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Work {
    /// Floating point (or integer) operations; a multiply-add counts 2, an elementary function [`ELEMENTARY`].
    pub flops: f64,
    /// Bytes of the operands that are read.
    pub read: f64,
    /// Bytes of the results.
    pub written: f64,
}

impl Work {
    /// Bytes in both directions.
    pub fn bytes(&self) -> f64 {
        self.read + self.written
    }
}

impl std::ops::Add for Work {
    type Output = Work;
    fn add(self, o: Work) -> Work {
        Work { flops: self.flops + o.flops, read: self.read + o.read, written: self.written + o.written }
    }
}

/// What exp, tanh and their like count: about the length of the polynomials that compute them.
pub const ELEMENTARY: f64 = 16.0;

/// Views: the result is the operand's memory under another shape.
pub fn is_view(name: &str) -> bool {
    matches!(
        name,
        Reshape::NAME
            | Squeeze::NAME
            | Unsqueeze::NAME
            | Flatten::NAME
            | OptimizationBarrier::NAME
            | Alternatives::NAME
    )
}

/// The work of `op`. Structure and views have none; control flow has the work of its regions, each once.
pub fn of(graph: &Graph, op: OpId) -> Work {
    let data = graph.op(op);
    match data.name() {
        Constant::NAME | NoneValue::NAME | Return::NAME | Yield::NAME | ShapeOf::NAME | Size::NAME => {
            return Work::default();
        }
        name if is_view(name) => return Work::default(),
        _ => {}
    }
    if !data.regions.is_empty() {
        let inner = data.regions.iter().flat_map(|r| graph.region_ops(*r));
        return inner.fold(Work::default(), |sum, o| sum + of(graph, o));
    }
    let results: Vec<Type> = data.results.iter().map(|v| graph.ty(*v).clone()).collect();
    let written: f64 = results.iter().map(bytes).sum();
    let all: f64 = data.operands.iter().map(|v| bytes(graph.ty(*v))).sum();
    // What picks elements reads no more than it writes.
    let picks = matches!(data.name(), Slice::NAME | Gather::NAME | GatherElements::NAME | GatherNd::NAME);
    let read = if picks { all.min(written) } else { all };
    let flops = list::get(graph, op).map_or(0.0, |o| flops(&*o, &graph.view(op), &results));
    Work { flops, read, written }
}

/// Arithmetic: what the op says ([`Op::flops`]); of a composite, that of its expansion; one for each element of the
/// largest operand or result otherwise.
fn flops(op: &dyn Op, cx: &OpView<'_>, results: &[Type]) -> f64 {
    if let Some(n) = op.flops(cx, results) {
        return n;
    }
    if let Some(s) = op.scalar() {
        return scalar_flops(s) * results.iter().map(elements).sum::<f64>();
    }
    if op.decl().kind() == Kind::Composite
        && let Some(n) = expanded(op, cx)
    {
        return n;
    }
    cx.operands.iter().map(|v| elements(cx.graph.ty(*v))).chain(results.iter().map(elements)).fold(0.0, f64::max)
}

/// Arithmetic of a function of one point.
pub fn scalar_flops(s: ScalarOp) -> f64 {
    use ScalarOp::*;
    match s {
        s if s.max_error().is_some() => ELEMENTARY,
        Sqrt | Rsqrt | Reciprocal | Div | Mod | Fmod => 4.0,
        _ => 1.0,
    }
}

/// The sum over the expansion on operands of the same types.
fn expanded(op: &dyn Op, cx: &OpView<'_>) -> Option<f64> {
    // An expansion relies on what inference checks. Where ranks were unknown before, it has not checked these types.
    op.infer(cx).ok()?;
    let mut graph = Graph::new();
    let entry = graph.entry();
    let mut rw = Rewriter::new(&mut graph, "work");
    let mut operands = Vec::with_capacity(cx.operands.len());
    for v in cx.operands {
        operands.push(match (cx.graph.constant(*v), cx.graph.ty(*v)) {
            (_, Type::None) => rw.create_one(NoneValue {}, &[]).ok()?,
            (Some(value), _) => rw.create_one(Constant { value }, &[]).ok()?,
            (None, ty) => rw.add_arg(entry, ty.clone(), None),
        });
    }
    op.expand(&mut rw, &operands).ok()?;
    Some(graph.region_ops(entry).map(|o| of(&graph, o).flops).sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contraction::MatMul;
    use crate::elementwise::Add;
    use crate::nn::Conv;
    use crate::reduction::Softmax;
    use of_ir::{DType, NewOp};

    fn work(op: impl NewOp, operands: &[&[usize]]) -> Work {
        let mut g = Graph::new();
        let entry = g.entry();
        let mut rw = Rewriter::new(&mut g, "test");
        let args: Vec<_> = operands.iter().map(|d| rw.add_arg(entry, Type::fixed(DType::F32, d), None)).collect();
        let op = rw.create(op, &args).unwrap();
        of(&g, op)
    }

    #[test]
    fn work_counts_equal_formulas() {
        assert_eq!(work(Add {}, &[&[2, 3], &[3]]), Work { flops: 6.0, read: 36.0, written: 24.0 });
        assert_eq!(work(MatMul {}, &[&[2, 3], &[3, 4]]), Work { flops: 48.0, read: 72.0, written: 32.0 });
        let conv = Conv {
            strides: vec![],
            pads: vec![],
            dilations: vec![],
            group: 1,
            auto_pad: "NOTSET".into(),
            channels_last: false,
        };
        // 4 x 4 positions of 5 channels, each a sum over 3 channels of 9 elements.
        assert_eq!(work(conv, &[&[1, 3, 6, 6], &[5, 3, 3, 3]]).flops, (2 * 16 * 5 * 27) as f64);
        // Maximum, difference, exponential, sum, quotient.
        assert_eq!(work(Softmax { axis: -1 }, &[&[8, 10]]).flops, 80.0 * (1.0 + 1.0 + ELEMENTARY + 1.0 + 4.0));
    }
}
