//! An op in a shared library: `of-opt --library` adds it to those of the program.
//!
//! Its declaration is like that of a built-in op, and another op of the library computes its gradient. `swish.c` in this folder is the same
//! op in C.

use std::borrow::Cow;

use of_ir::{DType, OpError, OpView, Sbp, SbpSignature, Tensor, Type};
use of_ops::sample::Rng;
use of_ops::{CudaKernel, Evaluated, Inferred, Inputs, Launch, Op, op, op_basics, shape};

of_library::export_ops!(Swish => SwishGradient, SwishGradient);

op! {
    /// `x sigmoid(alpha x)`, of f32.
    pub struct Swish = "demo.swish" [Primitive, onnx: "com.example.demo::Swish"] {
        operands: (x),
        results: (y),
        attrs: { alpha: f64 },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let dims = r.dims(3, 1, 4);
        Some((vec![r.f32s(&dims)], Swish { alpha: 1.5 }))
    };
}

op! {
    /// The gradient of `demo.swish` with respect to `x`: operands, results and gradients of results of that op come in, gradients of its
    /// operands go out under their names. With `s = sigmoid(alpha x)`, the derivative is `s + alpha x s (1 - s)`.
    pub struct SwishGradient = "demo.swish_gradient" [Primitive] {
        operands: (x, y, y_gradient),
        results: (x),
        attrs: { alpha: f64 },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let dims = r.dims(3, 1, 4);
        Some((vec![r.f32s(&dims), r.f32s(&dims), r.f32s(&dims)], SwishGradient { alpha: 1.5 }))
    };
}

/// The type of both results: that of `x`.
fn like_x(cx: &OpView<'_>) -> Inferred {
    let x = cx.tensor(0)?;
    if x.dtype != DType::F32 {
        return Err(OpError::ty(format!("x must be of f32, it is of {}", x.dtype)));
    }
    Ok(vec![Type::Tensor(x.clone())])
}

/// The elements of an operand.
fn f32s<'t>(inputs: &'t Inputs<'_>, operand: usize) -> Result<Cow<'t, [f32]>, OpError> {
    inputs.tensor(operand)?.as_slice::<f32>().ok_or_else(|| OpError::eval("operands must be of f32"))
}

/// All operands and results split along any axis, as elements do not know one another.
fn splits(cx: &OpView<'_>) -> Vec<SbpSignature> {
    let Some(x) = cx.tensor(0).ok().and_then(|t| t.shape.as_ref()) else { return Vec::new() };
    let shapes = vec![x; cx.operands.len()];
    let splits = shape::elementwise_splits(&shapes, x);
    splits.into_iter().filter(|s| matches!(s.results[0], Sbp::Split(_))).collect()
}

impl Op for Swish {
    op_basics!(Swish);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        like_x(cx)
    }

    /// What runs on CPUs, and what everything else is compared with.
    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let alpha = self.alpha as f32;
        let y: Vec<f32> = f32s(inputs, 0)?.iter().map(|x| x / (1.0 + (-alpha * x).exp())).collect();
        Ok(vec![Tensor::from_slice(inputs.tensor(0)?.dims(), &y)?.into()])
    }

    /// What runs on GPUs: a thread an element. Pointers have the names of operands and results.
    fn cuda(&self, _cx: &OpView<'_>, results: &[Type]) -> Result<CudaKernel, String> {
        let y = results[0].as_tensor().and_then(|t| t.fixed_dims()).ok_or("its extents are not all numbers")?;
        let text = format!("y[i] = x[i] * one_sigmoid({:?}f * x[i]);\n", self.alpha as f32);
        Ok(CudaKernel { text, launch: Launch::Threads(y.iter().product::<usize>() as u64) })
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        splits(cx)
    }
}

impl Op for SwishGradient {
    op_basics!(SwishGradient);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        like_x(cx)
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let alpha = self.alpha as f32;
        let derivative = |x: &f32| {
            let s = 1.0 / (1.0 + (-alpha * x).exp());
            s + alpha * x * s * (1.0 - s)
        };
        let (x, gradient) = (f32s(inputs, 0)?, f32s(inputs, 2)?);
        let x: Vec<f32> = x.iter().zip(gradient.iter()).map(|(x, gradient)| gradient * derivative(x)).collect();
        Ok(vec![Tensor::from_slice(inputs.tensor(0)?.dims(), &x)?.into()])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        splits(cx)
    }
}
