//! Layers: an op and its parameters.

use of_diag::Diagnostic;
use of_ir::{Tensor, TensorError, ValueId};
use of_ops::contraction::Gemm;
use of_ops::nn::Conv;
use of_ops::sample::Rng;

use crate::Builder;

/// Initial values of parameters; a seed gives the same values on every machine.
pub struct Init(Rng);

impl Init {
    /// The generator for `seed`.
    pub fn new(seed: u64) -> Init {
        Init(Rng::new(seed))
    }

    /// Uniform in ±sqrt(3 / fan_in), which keeps the variance of a signal.
    ///
    /// Source: He et al., "Delving Deep into Rectifiers" (2015), with gain 1.
    fn uniform(&mut self, dims: &[usize], fan_in: usize) -> Result<Tensor, TensorError> {
        let bound = (3.0 / fan_in.max(1) as f64).sqrt();
        let values: Vec<f32> = (0..dims.iter().product()).map(|_| self.0.float(-bound, bound) as f32).collect();
        Tensor::from_slice(dims, &values)
    }
}

/// `y = x wᵀ + b`.
#[derive(Clone, Debug)]
pub struct Linear {
    /// `[outputs, inputs]`.
    pub weight: Tensor,
    /// `[outputs]`.
    pub bias: Tensor,
}

impl Linear {
    /// Random weights, bias 0.
    ///
    /// # Errors
    /// When the weights would be larger than memory can address.
    pub fn new(init: &mut Init, inputs: usize, outputs: usize) -> Result<Linear, TensorError> {
        let weight = init.uniform(&[outputs, inputs], inputs)?;
        Ok(Linear { weight, bias: Tensor::from_slice(&[outputs], &vec![0f32; outputs])? })
    }

    /// Applies the layer to `x`, `[batch, inputs]`.
    ///
    /// # Errors
    /// When `x` is of another type.
    #[track_caller]
    pub fn apply(&self, b: &mut Builder, x: ValueId) -> Result<ValueId, Diagnostic> {
        let (w, bias) = (b.constant(self.weight.clone())?, b.constant(self.bias.clone())?);
        b.op(Gemm { alpha: 1.0, beta: 1.0, trans_a: false, trans_b: true }, &[x, w, bias])
    }
}

/// A convolution of images, `[batch, channels, height, width]`, whose window moves by `stride`.
#[derive(Clone, Debug)]
pub struct Conv2d {
    /// `[outputs, inputs, kernel, kernel]`.
    pub weight: Tensor,
    /// `[outputs]`.
    pub bias: Tensor,
    /// Step of the window.
    pub stride: i64,
    /// Zeros around the image.
    pub padding: i64,
}

impl Conv2d {
    /// Random weights, bias 0, step 1, and the padding that keeps the size of the image for an odd kernel.
    ///
    /// # Errors
    /// When the weights would be larger than memory can address.
    pub fn new(init: &mut Init, inputs: usize, outputs: usize, kernel: usize) -> Result<Conv2d, TensorError> {
        let weight = init.uniform(&[outputs, inputs, kernel, kernel], inputs * kernel * kernel)?;
        let bias = Tensor::from_slice(&[outputs], &vec![0f32; outputs])?;
        Ok(Conv2d { weight, bias, stride: 1, padding: kernel as i64 / 2 })
    }

    /// Applies the layer to `x`.
    ///
    /// # Errors
    /// When `x` is of another type.
    #[track_caller]
    pub fn apply(&self, b: &mut Builder, x: ValueId) -> Result<ValueId, Diagnostic> {
        let (w, bias) = (b.constant(self.weight.clone())?, b.constant(self.bias.clone())?);
        let conv = Conv {
            strides: vec![self.stride; 2],
            pads: vec![self.padding; 4],
            dilations: vec![1, 1],
            group: 1,
            auto_pad: "NOTSET".into(),
            channels_last: false,
        };
        b.op(conv, &[x, w, bias])
    }
}

#[cfg(test)]
mod tests {
    use of_ir::{DType, Type};
    use of_ops::Value;
    use of_ops::interpret::run_graph;

    use super::*;

    #[test]
    fn layers_match_reference_values() {
        let mut init = Init::new(7);
        let mut conv = Conv2d::new(&mut init, 1, 2, 3).unwrap();
        conv.bias = Tensor::from_slice(&[2], &[0.5f32, -0.5]).unwrap();
        let mut b = Builder::new("m");
        let x = b.input("x", Type::fixed(DType::F32, &[1, 1, 4, 4]));
        let y = conv.apply(&mut b, x).unwrap();
        assert_eq!(*b.ty(y), Type::fixed(DType::F32, &[1, 2, 4, 4]));
        let m = b.finish(&[("y", y)]).unwrap();
        // An image with one pixel gives the kernel, mirrored, around it.
        let mut image = [0f32; 16];
        image[5] = 1.0;
        let out =
            run_graph(&m.main().unwrap().graph, &[Tensor::from_slice(&[1, 1, 4, 4], &image).unwrap().into()]).unwrap();
        let Value::Tensor(y) = &out[0] else { panic!("no tensor") };
        let (y, w) = (y.as_slice::<f32>().unwrap(), conv.weight.as_slice::<f32>().unwrap());
        assert_eq!(y[0], w[8] + 0.5);
        assert_eq!(y[16 + 10], w[9] - 0.5);
        assert_eq!(y[15], 0.5);
    }

    #[test]
    fn parameters_depend_only_on_the_seed() {
        let make = |seed| Linear::new(&mut Init::new(seed), 64, 8).unwrap();
        assert_eq!(make(3).weight, make(3).weight);
        assert_ne!(make(3).weight, make(4).weight);
        let bound = (3.0f32 / 64.0).sqrt();
        assert!(make(3).weight.as_slice::<f32>().unwrap().iter().all(|x| x.abs() <= bound));
    }
}
