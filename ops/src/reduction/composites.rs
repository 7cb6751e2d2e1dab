//! Reductions that are made of sums and elementwise functions.

use of_diag::Diagnostic;
use of_ir::{OpError, OpView, Rewriter, Tensor, ValueId};

use super::reduce::{infer, reduced_axes};
use super::{ReduceMax, ReduceSum};
use crate::build::{Build, in_wide};
use crate::elementwise::{Abs, Add, Div, Exp, Log, Mul, Sqrt, Sub};
use crate::sample::Rng;
use crate::structural::Constant;
use crate::{Expanded, Inferred, Op, op, op_basics, shape};

macro_rules! composites {
    ($($(#[doc = $doc:literal])* $name:ident = $opname:literal [$onnx:literal] in $low:literal..$high:literal
       |$c:ident| $expand:expr;)*) => {$(
        op! {
            $(#[doc = $doc])*
            pub struct $name = $opname [Composite, onnx: $onnx] {
                operands: (x, axes?),
                results: (y),
                attrs: {
                    /// Reduced axes stay with extent 1.
                    keepdims: bool,
                },
            }
            samples: |seed| {
                let mut r = Rng::new(seed);
                let dims = r.dims(3, 1, 4);
                let axes = r.pick(&[vec![0], vec![-1], vec![1, 2], vec![0, 2]]);
                let x = r.tensor(of_ir::DType::F32, &dims, $low, $high);
                Some((vec![x.into(), Tensor::from_i64s(&axes).into()], $name { keepdims: r.int(0, 1) == 1 }))
            };
        }

        impl Op for $name {
            op_basics!($name);

            fn infer(&self, cx: &OpView<'_>) -> Inferred {
                infer(cx, self.keepdims)
            }

            fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
                in_wide(rw, operands, |rw, operands| {
                    let mut $c = Cx { rw, operands, keepdims: self.keepdims };
                    let y: Result<ValueId, Diagnostic> = (|| $expand)();
                    Ok(vec![y?])
                })
            }
        }
    )*};
}

struct Cx<'r, 'g> {
    rw: &'r mut Rewriter<'g>,
    operands: &'r [ValueId],
    keepdims: bool,
}

type BuildResult = Result<ValueId, Diagnostic>;

impl Cx<'_, '_> {
    fn x(&self) -> ValueId {
        self.operands[0]
    }

    fn sum(&mut self, x: ValueId) -> BuildResult {
        self.sum_keeping(x, self.keepdims)
    }

    fn sum_keeping(&mut self, x: ValueId, keepdims: bool) -> BuildResult {
        let mut operands = vec![x];
        operands.extend(self.operands.get(1));
        self.rw.create_one(ReduceSum { keepdims }, &operands)
    }

    fn max(&mut self, keepdims: bool) -> BuildResult {
        self.rw.create_one(ReduceMax { keepdims }, self.operands)
    }

    /// The number of elements that one result combines, in the element type of the operand.
    fn count(&mut self) -> BuildResult {
        let view = OpView { graph: self.rw.graph(), operands: self.operands, attrs: &Default::default(), regions: &[] };
        let error = |e: OpError| e.at("of.reduce_mean", &of_diag::Location::Unknown);
        let t = view.tensor(0).map_err(error)?;
        let dtype = t.dtype;
        let axes = t.shape.as_ref().and_then(|s| {
            let axes = view.ints(1);
            if view.operand(1).is_some() && axes.is_none() {
                return None;
            }
            reduced_axes(axes.as_deref(), s.len()).ok()
        });
        let (x, b) = (self.x(), &mut Build::new(self.rw));
        if let Some(axes) = axes {
            let known = |a: &usize| b.shape(x)?.get(*a)?.as_const();
            if let Some(n) = axes.iter().try_fold(1i64, |n, a| n.checked_mul(known(a)?)) {
                return b.number(n as f64, x);
            }
            let one = b.ints(&[1])?;
            let count = axes.iter().try_fold(one, |n, a| {
                let length = b.extent(x, *a)?;
                b.mul(n, length)
            })?;
            let count = b.reshape(count, &[])?;
            return b.cast(count, dtype);
        }
        // A sum of ones counts the elements even if the axes are unknown.
        let (one, dims) = (b.number(1.0, x)?, b.shape_of(x)?);
        let ones = b.expand(one, dims)?;
        self.sum(ones)
    }

    fn square(&mut self) -> BuildResult {
        self.rw.create_one(Mul {}, &[self.x(), self.x()])
    }
}

composites! {
    /// Sum of absolute values along axes.
    ReduceL1 = "of.reduce_l1" ["ReduceL1"] in -2.0..2.0 |c| {
        let a = c.rw.create_one(Abs {}, &[c.x()])?;
        c.sum(a)
    };
    /// Root of the sum of squares along axes.
    ReduceL2 = "of.reduce_l2" ["ReduceL2"] in 0.5..2.0 |c| {
        let q = c.square()?;
        let s = c.sum(q)?;
        c.rw.create_one(Sqrt {}, &[s])
    };
    /// Logarithm of the sum along axes.
    ReduceLogSum = "of.reduce_log_sum" ["ReduceLogSum"] in 0.5..2.0 |c| {
        let s = c.sum(c.x())?;
        c.rw.create_one(Log {}, &[s])
    };
    /// log(sum(exp(x))) along axes, shifted by the maximum so that nothing overflows.
    ReduceLogSumExp = "of.reduce_log_sum_exp" ["ReduceLogSumExp"] in -2.0..2.0 |c| {
        let m = c.max(true)?;
        let d = c.rw.create_one(Sub {}, &[c.x(), m])?;
        let e = c.rw.create_one(Exp {}, &[d])?;
        let s = c.sum(e)?;
        let l = c.rw.create_one(Log {}, &[s])?;
        let m = if c.keepdims { m } else { c.max(false)? };
        c.rw.create_one(Add {}, &[l, m])
    };
    /// Mean along axes.
    ReduceMean = "of.reduce_mean" ["ReduceMean"] in -2.0..2.0 |c| {
        let s = c.sum(c.x())?;
        let n = c.count()?;
        c.rw.create_one(Div {}, &[s, n])
    };
    /// Sum of squares along axes.
    ReduceSumSquare = "of.reduce_sum_square" ["ReduceSumSquare"] in -2.0..2.0 |c| {
        let q = c.square()?;
        c.sum(q)
    };
}

/// Axes of `v` except those named, for softmax and the like.
pub(super) fn one_axis(rw: &mut Rewriter<'_>, v: ValueId, axis: i64) -> BuildResult {
    let rank = rw.graph().ty(v).as_tensor().and_then(|t| t.rank());
    let axis = match rank {
        Some(r) => shape::axis(axis, r.max(1)).map_err(|e| e.at("softmax", &of_diag::Location::Unknown))? as i64,
        None => axis,
    };
    Constant::ints(rw, &[axis])
}

#[cfg(test)]
mod tests {
    use of_ir::{DType, Dim, Graph, Type};

    use super::*;
    use crate::interpret::run_graph;
    use crate::structural::Return;

    #[test]
    fn size_counts_elements_of_any_type() {
        let mut g = Graph::new();
        let entry = g.entry();
        let mut rw = Rewriter::new(&mut g, "test");
        let x = rw.add_arg(entry, Type::tensor(DType::F32, vec![Dim::symbol("n"), Dim::symbol("m")]), None);
        let axes = Constant::ints(&mut rw, &[1]).unwrap();
        let mean = ReduceMean { keepdims: false }.expand(&mut rw, &[x, axes]).unwrap();
        rw.create(Return {}, &mean).unwrap();
        let rows = Tensor::from_slice(&[2, 2], &[f32::INFINITY, 1.0, 2.0, 3.0]).unwrap();
        let want = Tensor::from_slice(&[2], &[f32::INFINITY, 2.5]).unwrap();
        assert_eq!(run_graph(&g, &[rows.into()]).unwrap(), [want.into()]);
    }
}
