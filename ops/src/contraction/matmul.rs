//! `of.matmul`.

use of_diag::Diagnostic;
use of_ir::{Elements, OpError, OpView, PartialKind, Sbp, SbpSignature, Shape, Tensor, TensorType, Type, ValueId};

use crate::sample::Rng;
use crate::{Evaluated, GradCx, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// Matrix product `[.., M, K] x [.., K, N] -> [.., M, N]`; leading axes broadcast, a rank-1 operand is a vector.
    ///
    /// Semantics of `numpy.matmul`. Floats accumulate in their own type or wider.
    pub struct MatMul = "of.matmul" [Primitive, onnx: "MatMul"] {
        operands: (a, b),
        results: (c),
        attrs: {},
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let (m, k, n) = (r.int(1, 5) as usize, r.int(1, 6) as usize, r.int(1, 5) as usize);
        let rank = r.int(0, 2) as usize;
        let lead = r.dims(rank, 1, 3);
        let a = [lead.as_slice(), &[m, k]].concat();
        let b = if r.int(0, 1) == 0 { vec![k, n] } else { [lead.as_slice(), &[k, n]].concat() };
        Some((vec![r.f32s(&a), r.f32s(&b)], MatMul {}))
    };
}

/// A product as batch of matrices: leading axes of each operand, M, K, N, and which of M and N the result drops.
struct Parts {
    lead_a: Shape,
    lead_b: Shape,
    result: Shape,
}

fn parts(a: &Shape, b: &Shape) -> Result<Parts, OpError> {
    if a.is_empty() || b.is_empty() {
        return Err(OpError::shape("operands must have at least one axis"));
    }
    let (ka, kb) = (&a[a.len() - 1], if b.len() == 1 { &b[0] } else { &b[b.len() - 2] });
    if ka.provably_ne(kb) {
        return Err(OpError::shape(format!(
            "inner dimensions differ: {ka} in {} and {kb} in {}",
            shape::show(a),
            shape::show(b)
        )));
    }
    let lead_a = a[..a.len().saturating_sub(2)].to_vec();
    let lead_b = b[..b.len().saturating_sub(2)].to_vec();
    let mut result = shape::broadcast(&[&lead_a, &lead_b])?;
    if a.len() > 1 {
        result.push(a[a.len() - 2].clone());
    }
    if b.len() > 1 {
        result.push(b[b.len() - 1].clone());
    }
    Ok(Parts { lead_a, lead_b, result })
}

impl Op for MatMul {
    op_basics!(MatMul);

    fn flops(&self, cx: &OpView<'_>, results: &[Type]) -> Option<f64> {
        crate::estimate::product(cx, results)
    }

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let (a, b) = (cx.tensor(0)?, cx.tensor(1)?);
        if a.dtype != b.dtype {
            return Err(OpError::ty(format!("operands have different element types {} and {}", a.dtype, b.dtype)));
        }
        if !a.dtype.is_float() && !a.dtype.is_int() {
            return Err(OpError::ty(format!("operands must be numbers, they are {}", a.dtype)));
        }
        let shape = match (&a.shape, &b.shape) {
            (Some(x), Some(y)) => Some(parts(x, y)?.result),
            _ => None,
        };
        Ok(vec![Type::Tensor(TensorType { dtype: a.dtype, shape, sbp: None })])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let (a, b) = (inputs.tensor(0)?, inputs.tensor(1)?);
        let ty = |t: &Tensor| t.ty().shape.unwrap_or_default();
        let p = parts(&ty(a), &ty(b))?;
        let fixed = |s: &Shape| s.iter().filter_map(|d| d.as_const()).map(|d| d as usize).collect::<Vec<_>>();
        let out_dims = fixed(&p.result);
        shape::count(&out_dims)?;
        let k = a.dims()[a.dims().len() - 1];
        let m = if a.dims().len() > 1 { a.dims()[a.dims().len() - 2] } else { 1 };
        let n = if b.dims().len() > 1 { b.dims()[b.dims().len() - 1] } else { 1 };
        let lead = fixed(&shape::broadcast(&[&p.lead_a, &p.lead_b])?);
        let offsets = |own: &[usize]| {
            // Batch number of an operand for each batch of the result.
            let st = shape::strides(own);
            let mut out = Vec::new();
            shape::for_each_index(&lead, |i| {
                let skip = lead.len() - own.len();
                out.push(
                    own.iter().enumerate().map(|(j, d)| if *d == 1 { 0 } else { i[skip + j] * st[j] }).sum::<usize>(),
                );
            });
            out
        };
        let (oa, ob) = (offsets(&fixed(&p.lead_a)), offsets(&fixed(&p.lead_b)));
        macro_rules! product {
            ($x:expr, $y:expr, $zero:expr) => {{
                let (x, y) = ($x, $y);
                let mut out = vec![$zero; oa.len() * m * n];
                for (batch, (i, j)) in oa.iter().zip(&ob).enumerate() {
                    for row in 0..m {
                        let to = &mut out[(batch * m + row) * n..][..n];
                        for l in 0..k {
                            let f = x[(i * m + row) * k + l];
                            let from = &y[(j * k + l) * n..][..n];
                            to.iter_mut().zip(from).for_each(|(t, v)| *t += f * v);
                        }
                    }
                }
                out
            }};
        }
        let elements = match (a.elements(), b.elements()) {
            (Elements::Float(x), Elements::Float(y)) => Elements::Float(product!(x, y, 0f64)),
            (Elements::Int(x), Elements::Int(y)) => Elements::Int(product!(x, y, 0i128)),
            _ => return Err(OpError::eval("operands must be numbers of one class")),
        };
        Ok(vec![Tensor::from_elements(a.dtype(), out_dims, elements)?.into()])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let (Ok(a), Ok(b)) = (cx.tensor(0), cx.tensor(1)) else { return Vec::new() };
        let (Some(a), Some(b)) = (&a.shape, &b.shape) else { return Vec::new() };
        let Ok(p) = parts(a, b) else { return Vec::new() };
        let (ra, rb, rc) = (a.len(), b.len(), p.result.len());
        let split = |axis: usize| Sbp::Split(axis as u8);
        let sum = Sbp::Partial(PartialKind::Sum);
        let mut out = Vec::new();
        // rows of a, columns of b
        if ra > 1 {
            out.push(SbpSignature::new(&[split(ra - 2), Sbp::Broadcast], &[split(rc - if rb > 1 { 2 } else { 1 })]));
        }
        if rb > 1 {
            out.push(SbpSignature::new(&[Sbp::Broadcast, split(rb - 1)], &[split(rc - 1)]));
        }
        // the inner axis gives partial sums; partial sums pass through, the product is linear in each operand
        out.push(SbpSignature::new(&[split(ra - 1), split(rb.saturating_sub(2))], &[sum]));
        out.push(SbpSignature::new(&[sum, Sbp::Broadcast], &[sum]));
        out.push(SbpSignature::new(&[Sbp::Broadcast, sum], &[sum]));
        let Ok(lead) = shape::broadcast(&[&p.lead_a, &p.lead_b]) else { return out };
        out.extend(shape::elementwise_splits(&[&p.lead_a, &p.lead_b], &lead));
        out
    }

    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        let g = cx.grads[0]?;
        let (a, b) = (cx.operands[0], cx.operands[1]);
        let rank = |v: ValueId| cx.rw.graph().ty(v).as_tensor().and_then(TensorType::rank);
        // Vectors are reshaped to matrices before differentiation.
        if rank(a)? < 2 || rank(b)? < 2 {
            return None;
        }
        // dA = G B^T, dB = A^T G, summed over the axes along which an operand was broadcast.
        let mut run = || -> Result<Vec<Option<ValueId>>, Diagnostic> {
            let bt = crate::movement::swap_last_axes(cx.rw, b)?;
            let at = crate::movement::swap_last_axes(cx.rw, a)?;
            let ga = cx.rw.create_one(MatMul {}, &[g, bt])?;
            let gb = cx.rw.create_one(MatMul {}, &[at, g])?;
            Ok(vec![Some(cx.unbroadcast(ga, a)?), Some(cx.unbroadcast(gb, b)?)])
        };
        Some(run())
    }
}
