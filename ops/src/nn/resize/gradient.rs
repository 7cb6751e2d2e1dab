//! The gradient of a resize: each axis is a product with a weight matrix, so the gradient multiplies by its transpose.

use of_diag::Diagnostic;
use of_ir::{Dim, Elements, Tensor, ValueId};

use super::{Resize, Taps};
use crate::GradCx;
use crate::build::{Build, BuildResult, diagnostic};
use crate::contraction::MatMul;

impl Resize {
    /// The weights of every axis that is resized, of a call whose scales or sizes are known; `None` where they are not. An
    /// axis that is open keeps its size, or nothing is known of it.
    fn known_taps(&self, cx: &GradCx<'_, '_>) -> Option<Vec<(usize, Vec<Taps>)>> {
        let graph = cx.rw.graph();
        let operand = |i: usize| cx.operands.get(i).copied().filter(|v| graph.ty(*v).as_tensor().is_some());
        let floats = |i: usize| operand(i).map(|v| graph.constant(v)?.to_f64s()).filter(|v| v.as_deref() != Some(&[]));
        // Absent, or known.
        let (roi, scales) =
            (floats(1).map_or(Some(None), |v| v.map(Some))?, floats(2).map_or(Some(None), |v| v.map(Some))?);
        let x = graph.ty(cx.operands[0]).as_tensor()?.shape.clone()?;
        let axes = self.axes(x.len()).ok()?;
        let sizes = match operand(3) {
            Some(v) if scales.is_none() => Some(graph.dims_value(v)?),
            _ => None,
        };
        let number = |d: &Dim| d.as_const().and_then(|c| usize::try_from(c).ok());
        let mut dims: Vec<usize> = x.iter().map(|d| number(d).unwrap_or(1)).collect();
        let mut to = Vec::new();
        for (i, axis) in axes.iter().enumerate() {
            let size = sizes.as_ref().map(|s| s.get(i).cloned()).unwrap_or_default();
            let keeps = size.as_ref() == Some(&x[*axis]) || scales.as_ref().is_some_and(|s| s.get(i) == Some(&1.0));
            match (number(&x[*axis]), size) {
                (None, _) if !keeps => return None,
                (None, size) => {
                    dims[*axis] = 1;
                    to.extend(size.map(|_| 1));
                }
                (Some(_), Some(size)) => to.push(size.as_const()?),
                (Some(_), None) => {}
            }
        }
        self.taps(&dims, roi.as_deref(), scales.as_deref(), sizes.map(|_| to).as_deref()).ok()
    }

    /// What the derivatives by the result are by `x`; see [`crate::Op::gradient`].
    pub(super) fn derivative(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        let g = cx.grads[0]?;
        let graph = cx.rw.graph();
        let computed = |v: &&ValueId| graph.ty(**v).as_tensor().is_some() && graph.constant(**v).is_none();
        if cx.operands.iter().skip(1).take(2).any(|v| computed(&v)) {
            return cx.not_differentiable("of.resize", "its scales or its region of interest are no constants");
        }
        let taps = self.known_taps(cx)?;
        let rank = cx.rw.graph().ty(cx.operands[0]).as_tensor()?.rank()?;
        let inputs: Vec<Option<usize>> = {
            let shape = cx.rw.graph().ty(cx.operands[0]).as_tensor()?.shape.as_ref()?;
            shape.iter().map(|d| d.as_const().and_then(|c| usize::try_from(c).ok())).collect()
        };
        let mut b = Build::new(cx.rw);
        let mut back = || -> BuildResult {
            let mut dx = g;
            for (axis, taps) in &taps {
                let Some(input) = inputs[*axis] else { continue };
                if input == taps.len() && taps.iter().enumerate().all(|(i, t)| t.weights == [(i, 1.0)]) {
                    continue;
                }
                let mut weights = vec![0.0; taps.len() * input];
                for (row, t) in taps.iter().enumerate() {
                    t.weights.iter().for_each(|(from, weight)| weights[row * input + from] += weight);
                }
                let weights = Tensor::from_elements(b.dtype(g), vec![taps.len(), input], Elements::Float(weights));
                let weights = b.constant(weights.map_err(|e| diagnostic(e.into()))?)?;
                // The axis last, as products have it, and back.
                let swap: Vec<usize> = (0..rank)
                    .map(|a| {
                        if a == *axis {
                            rank - 1
                        } else if a == rank - 1 {
                            *axis
                        } else {
                            a
                        }
                    })
                    .collect();
                let last = b.transpose(dx, &swap)?;
                let product = b.op(MatMul {}, &[last, weights])?;
                dx = b.transpose(product, &swap)?;
            }
            Ok(dx)
        };
        let dx = back();
        let others = std::iter::repeat_n(None, cx.operands.len() - 1);
        Some(dx.map(|dx| std::iter::once(Some(dx)).chain(others).collect()))
    }
}
