//! `of.mel_weight_matrix`.

use of_diag::Diagnostic;
use of_ir::{DType, Dim, Elements, OpError, OpView, Tensor, Type, ValueId};

use crate::sample::Rng;
use crate::{Evaluated, GradCx, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// The matrix that maps a spectrum to mel bands: `[dft_length / 2 + 1, num_mel_bins]`.
    ///
    /// The band edges are evenly spaced between the frequencies on the scale `mel(f) = 2595 log10(1 + f / 700)`, each
    /// rounded down to a bin; a band is a triangle of height 1 from its edge over the next to the one after. Source: ONNX
    /// MelWeightMatrix.
    pub struct MelWeightMatrix = "of.mel_weight_matrix" [Primitive, onnx: "MelWeightMatrix"] {
        operands: (num_mel_bins, dft_length, sample_rate, lower_edge_hertz, upper_edge_hertz),
        results: (y),
        attrs: { output_datatype: Option<DType> },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let operands = vec![
            Tensor::scalar(r.int(1, 8)).into(),
            Tensor::scalar(r.pick(&[16i64, 32])).into(),
            Tensor::scalar(8192i64).into(),
            Tensor::scalar(r.float(0.0, 100.0) as f32).into(),
            Tensor::scalar(r.float(2000.0, 4000.0) as f32).into(),
        ];
        Some((operands, MelWeightMatrix { output_datatype: r.pick(&[None, Some(DType::F64)]) }))
    };
}

impl Op for MelWeightMatrix {
    op_basics!(MelWeightMatrix);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        for i in 0..5 {
            let t = cx.tensor(i)?;
            let fits = if i < 3 { t.dtype.is_int() } else { t.dtype.is_float() };
            if !fits || t.fixed_dims().is_some_and(|d| d.iter().any(|n| *n != 1)) {
                return Err(OpError::ty(format!("operand {i} must be one number")));
            }
        }
        let dtype = self.output_datatype.unwrap_or(DType::F32);
        if !dtype.is_float() && !dtype.is_int() {
            return Err(OpError::attr(format!("output_datatype is {dtype}, it must be a number type")));
        }
        let known = |i: usize| cx.ints(i).and_then(|v| v.first().copied()).filter(|n| (0..1 << 40).contains(n));
        let bins = known(1).map_or_else(Dim::unknown, |n| (n / 2 + 1).into());
        Ok(vec![Type::tensor(dtype, vec![bins, known(0).map_or_else(Dim::unknown, Dim::from)])])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let number = |i: usize| match inputs.tensor(i)?.to_f64s().as_deref() {
            Some([x]) if x.is_finite() => Ok(*x),
            _ => Err(OpError::eval(format!("operand {i} must be one number"))),
        };
        let (mels, length, rate) = (number(0)?, number(1)?, number(2)?);
        if mels < 1.0 || length < 1.0 || rate < 1.0 {
            return Err(OpError::eval("the numbers of bands, of samples and the rate must be positive"));
        }
        let (low, high) = (number(3)?, number(4)?);
        if !(0.0..=rate / 2.0).contains(&low) || !(low..=rate / 2.0).contains(&high) {
            return Err(OpError::eval(format!("{low} to {high} Hz is outside the band of a sample rate of {rate}")));
        }
        let dims = vec![(length / 2.0) as usize + 1, mels as usize];
        let total = shape::count(&dims)?;
        let mel = |hertz: f64| 2595.0 * (hertz / 700.0).ln_1p() / std::f64::consts::LN_10;
        let step = (mel(high) - mel(low)) / (mels + 2.0);
        // The bin of each edge.
        let edge = |i: usize| {
            let hertz = 700.0 * ((mel(low) + i as f64 * step) / 2595.0 * std::f64::consts::LN_10).exp_m1();
            ((((length + 1.0) * hertz) / rate).floor() as usize).min(dims[0] - 1)
        };
        let mut y = vec![0.0; total];
        for band in 0..dims[1] {
            let (left, peak, right) = (edge(band), edge(band + 1), edge(band + 2));
            for bin in left..right {
                y[bin * dims[1] + band] = if bin < peak {
                    (bin - left) as f64 / (peak - left) as f64
                } else {
                    (right - bin) as f64 / (right - peak) as f64
                };
            }
            y[peak * dims[1] + band] = 1.0;
        }
        let dtype = self.output_datatype.unwrap_or(DType::F32);
        Ok(vec![Tensor::from_elements(dtype, dims, Elements::Float(y))?.into()])
    }

    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        cx.flat()
    }
}
