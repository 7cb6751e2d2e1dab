//! `of.random_uniform`.

use of_ir::{DType, OpView, Tensor};

use super::generator::Generator;
use crate::sample::Rng;
use crate::{Evaluated, Inferred, Inputs, Op, op, op_basics};

op! {
    /// Independent numbers, evenly distributed in `low..high`, in a tensor of the dimensions given.
    ///
    /// The same seed and dimensions give the same numbers. Source: ONNX RandomUniform.
    pub struct RandomUniform = "of.random_uniform" [Primitive] {
        operands: (shape),
        results: (y),
        attrs: {
            dtype: DType,
            low: f64,
            high: f64,
            /// Its low 32 bits count.
            seed: i64,
        },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let dims: Vec<i64> = (0..r.int(0, 3)).map(|_| r.int(0, 4)).collect();
        let op = RandomUniform { dtype: r.pick(&[DType::F32, DType::F64]), low: -1.0, high: 3.0, seed: r.int(0, 9) };
        Some((vec![Tensor::from_i64s(&dims).into()], op))
    };
}

impl Op for RandomUniform {
    op_basics!(RandomUniform);

    fn shape_operand(&self) -> Option<usize> {
        Some(0)
    }

    fn is_random(&self, _cx: &OpView<'_>) -> bool {
        true
    }

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        super::infer(cx, self.dtype)
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let mut generator = Generator::new(self.seed);
        super::fill(inputs, self.dtype, || self.low + (self.high - self.low) * generator.uniform())
    }
}
