//! `of.multinomial`.

use of_ir::{DType, Dim, Elements, OpError, OpView, Tensor, TensorType, Type};

use super::generator::Generator;
use crate::sample::Rng;
use crate::{Evaluated, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// For each row of `logits[batch, classes]`, `sample_size` classes drawn with the probabilities `softmax(row)`.
    ///
    /// The same seed gives the same classes. Source: ONNX Multinomial.
    pub struct Multinomial = "of.multinomial" [Primitive] {
        operands: (logits),
        results: (classes),
        attrs: {
            dtype: DType,
            sample_size: i64,
            /// Its low 32 bits count.
            seed: i64,
        },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let dims = r.dims(2, 1, 5);
        let dtype = r.pick(&[DType::I32, DType::I64]);
        Some((vec![r.f32s(&dims)], Multinomial { dtype, sample_size: r.int(0, 6), seed: r.int(0, 9) }))
    };
}

impl Multinomial {
    fn draws(&self) -> Result<usize, OpError> {
        let size = usize::try_from(self.sample_size).ok();
        size.ok_or_else(|| OpError::attr(format!("sample_size is {}", self.sample_size)))
    }
}

impl Op for Multinomial {
    op_basics!(Multinomial);

    fn is_random(&self, _cx: &OpView<'_>) -> bool {
        true
    }

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let x = cx.tensor(0)?;
        if !x.dtype.is_float() || !self.dtype.is_int() {
            let what = format!("floats become integers, they are {} and {}", x.dtype, self.dtype);
            return Err(OpError::ty(what));
        }
        let batch = match &x.shape {
            Some(s) if s.len() == 2 => s[0].clone(),
            Some(s) => return Err(OpError::shape(format!("the input must be a matrix, it is {}", shape::show(s)))),
            None => Dim::unknown(),
        };
        let dims = vec![batch, Dim::from(self.draws()?)];
        Ok(vec![Type::Tensor(TensorType { dtype: self.dtype, shape: Some(dims), sbp: None })])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let x = inputs.tensor(0)?;
        let (&[batch, classes], Some(v)) = (x.dims(), x.to_f64s()) else {
            return Err(OpError::eval("the input must be a matrix of numbers"));
        };
        let dims = vec![batch, self.draws()?];
        let count = shape::count(&dims)?;
        if classes == 0 && count > 0 {
            return Err(OpError::eval("there is no class to draw"));
        }
        let mut generator = Generator::new(self.seed);
        let mut out = Vec::with_capacity(count);
        for row in v.chunks_exact(classes.max(1)) {
            let most = row.iter().fold(f64::NEG_INFINITY, |a, b| a.max(*b));
            let mut sum = 0.0;
            let sums: Vec<f64> = row
                .iter()
                .map(|x| {
                    sum += (x - most).exp();
                    sum
                })
                .collect();
            for _ in 0..dims[1] {
                let drawn = generator.uniform() * sum;
                let class = sums.partition_point(|s| *s <= drawn).min(classes - 1);
                out.push(class as i128);
            }
        }
        Ok(vec![Tensor::from_elements(self.dtype, dims, Elements::Int(out))?.into()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{OpSpec, Value};

    #[test]
    fn multinomial_frequencies_match_probabilities() {
        let logits = Tensor::from_slice(&[1, 3], &[0.0f64, f64::NEG_INFINITY, 3f64.ln()]).unwrap();
        let op = Multinomial { dtype: DType::I32, sample_size: 4000, seed: 1 };
        let mut none = |_: usize, _: &[Value]| Err(OpError::eval("no region"));
        let mut inputs = Inputs { values: &[logits.into()], types: &[], region: &mut none };
        let out = op.eval(&mut inputs).unwrap();
        let Value::Tensor(t) = &out[0] else { panic!("{} gives a tensor", Multinomial::NAME) };
        let drawn = t.to_i64s().unwrap();
        let times = |c: i64| drawn.iter().filter(|d| **d == c).count();
        assert_eq!(times(1), 0);
        assert!((2850..3150).contains(&times(2)), "{}", times(2));
    }
}
