//! `of.gemm`.

use of_ir::{Dim, OpError, OpView, Rewriter, Shape, TensorType, Type, ValueId};

use super::MatMul;
use crate::build::{Build, in_wide};
use crate::sample::Rng;
use crate::{Expanded, Inferred, Op, op, op_basics, shape};

op! {
    /// `alpha * A' B' + beta * C`, where `A'` and `B'` are the operands or their transposes and `C` is broadcast.
    ///
    /// Factors of 1 make no ops. Source: ONNX Gemm.
    pub struct Gemm = "of.gemm" [Composite, onnx: "Gemm"] {
        operands: (a, b, c?),
        results: (y),
        attrs: { alpha: f64, beta: f64, trans_a: bool, trans_b: bool }
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let d = r.dims(3, 1, 5);
        let (trans_a, trans_b) = (r.int(0, 1) == 0, r.int(0, 1) == 0);
        let a = if trans_a { [d[1], d[0]] } else { [d[0], d[1]] };
        let b = if trans_b { [d[2], d[1]] } else { [d[1], d[2]] };
        let mut operands = vec![r.f32s(&a), r.f32s(&b)];
        if r.int(0, 2) > 0 {
            let c = r.pick(&[vec![d[0], d[2]], vec![d[2]], vec![d[0], 1], vec![]]);
            operands.push(r.f32s(&c));
        }
        Some((operands, Gemm { alpha: r.pick(&[1.0, 0.5]), beta: r.pick(&[1.0, 0.25]), trans_a, trans_b }))
    };
}

/// Rows and columns of a matrix that may be transposed.
fn matrix(s: &Shape, transposed: bool) -> Result<(Dim, Dim), OpError> {
    match s.as_slice() {
        [a, b] if transposed => Ok((b.clone(), a.clone())),
        [a, b] => Ok((a.clone(), b.clone())),
        _ => Err(OpError::shape(format!("a and b must be matrices, one is {}", shape::show(s)))),
    }
}

impl Op for Gemm {
    op_basics!(Gemm);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let (a, b) = (cx.tensor(0)?, cx.tensor(1)?);
        if !a.dtype.is_float() && !a.dtype.is_int() {
            return Err(OpError::ty(format!("operands must be numbers, they are {}", a.dtype)));
        }
        if a.dtype != b.dtype || matches!(cx.ty(2), Some(Type::Tensor(c)) if c.dtype != a.dtype) {
            return Err(OpError::ty("operands have different element types"));
        }
        let (mut m, mut n) = (Dim::unknown(), Dim::unknown());
        let left = a.shape.as_ref().map(|s| matrix(s, self.trans_a)).transpose()?;
        let right = b.shape.as_ref().map(|s| matrix(s, self.trans_b)).transpose()?;
        if let (Some((_, k)), Some((l, _))) = (&left, &right)
            && k.provably_ne(l)
        {
            return Err(OpError::shape(format!("inner dimensions differ: {k} and {l}")));
        }
        if let Some((rows, _)) = left {
            m = rows;
        }
        if let Some((_, columns)) = right {
            n = columns;
        }
        let result = vec![m, n];
        if let Some(Type::Tensor(TensorType { shape: Some(c), .. })) = cx.ty(2)
            && (c.len() > 2 || shape::broadcast(&[c, &result])?.iter().zip(&result).any(|(a, b)| a.provably_ne(b)))
        {
            return Err(OpError::shape(format!(
                "c of shape {} does not broadcast to {}",
                shape::show(c),
                shape::show(&result)
            )));
        }
        Ok(vec![Type::tensor(a.dtype, result)])
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        // A product that is scaled may leave the range of small floats, where the result does not.
        if self.alpha == 1.0 { self.parts(rw, operands) } else { in_wide(rw, operands, |rw, o| self.parts(rw, o)) }
    }
}

impl Gemm {
    fn parts(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        let mut b = Build::new(rw);
        let (mut left, mut right) = (operands[0], operands[1]);
        if self.trans_a {
            left = b.transpose(left, &[1, 0])?;
        }
        if self.trans_b {
            right = b.transpose(right, &[1, 0])?;
        }
        let product = b.op(MatMul {}, &[left, right])?;
        let mut y = b.scale(product, self.alpha)?;
        if let Some(c) = b.given(operands, 2).filter(|_| self.beta != 0.0) {
            let c = b.scale(c, self.beta)?;
            y = b.add(y, c)?;
        }
        Ok(vec![y])
    }
}
