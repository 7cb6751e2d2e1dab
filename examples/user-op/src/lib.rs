//! An op in a shared library: `of-opt --library` adds it to those of the program.
//!
//! Its declaration is like that of a built-in op. `swish.c` in this folder is the same op in C.

use of_ir::{DType, OpError, OpView, Sbp, SbpSignature, Tensor, Type};
use of_ops::sample::Rng;
use of_ops::{CudaKernel, Evaluated, Inferred, Inputs, Launch, Op, op, op_basics, shape};

of_library::export_ops!(Swish);

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

impl Op for Swish {
    op_basics!(Swish);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let x = cx.tensor(0)?;
        if x.dtype != DType::F32 {
            return Err(OpError::ty(format!("x must be of f32, it is of {}", x.dtype)));
        }
        Ok(vec![Type::Tensor(x.clone())])
    }

    /// What runs on CPUs, and what everything else is compared with.
    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let x = inputs.tensor(0)?;
        let values = x.as_slice::<f32>().ok_or_else(|| OpError::eval("x must be of f32"))?;
        let alpha = self.alpha as f32;
        let y: Vec<f32> = values.iter().map(|x| x / (1.0 + (-alpha * x).exp())).collect();
        Ok(vec![Tensor::from_slice(x.dims(), &y)?.into()])
    }

    /// What runs on GPUs: a thread an element. Pointers have the names of operands and results.
    fn cuda(&self, _cx: &OpView<'_>, results: &[Type]) -> Result<CudaKernel, String> {
        let y = results[0].as_tensor().and_then(|t| t.fixed_dims()).ok_or("its extents are not all numbers")?;
        let text = format!("y[i] = x[i] * one_sigmoid({:?}f * x[i]);\n", self.alpha as f32);
        Ok(CudaKernel { text, launch: Launch::Threads(y.iter().product::<usize>() as u64) })
    }

    /// Split along any axis, as elements do not know one another.
    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let s = cx.tensor(0).ok().and_then(|t| t.shape.as_ref());
        let splits = s.map_or_else(Vec::new, |s| shape::elementwise_splits(&[s], s));
        splits.into_iter().filter(|s| matches!(s.results[0], Sbp::Split(_))).collect()
    }
}
