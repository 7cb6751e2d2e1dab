//! `of.bit_cast`.

use of_ir::{Blob, DType, OpError, OpView, SbpSignature, Tensor, Type};

use crate::sample::Rng;
use crate::{Evaluated, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// The bits of each element read as another type of the same width. A bool is a byte; any byte but 0 becomes true.
    /// Source: ONNX BitCast.
    pub struct BitCast = "of.bit_cast" [Primitive, onnx: "BitCast"] {
        operands: (x),
        results: (y),
        attrs: { to: DType },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let dims = r.dims(2, 1, 4);
        let (from, to) = r.pick(&[
            (DType::F32, DType::I32),
            (DType::U8, DType::I8),
            (DType::I64, DType::U64),
            (DType::F64, DType::I64),
            (DType::F16, DType::U16),
            (DType::I4, DType::U4),
            (DType::I2, DType::U2),
            (DType::F4E2M1FN, DType::U4),
            (DType::U8, DType::Bool),
        ]);
        Some((vec![r.tensor(from, &dims, 0.0, 4.0).into()], BitCast { to }))
    };
}

/// Checks that one type can be read as the other.
fn check(from: DType, to: DType) -> Result<(), OpError> {
    if from.bits().is_some() && from.bits() == to.bits() {
        return Ok(());
    }
    Err(OpError::ty(format!("{from} cannot be read as {to}: the widths differ")))
}

impl Op for BitCast {
    op_basics!(BitCast);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let x = cx.tensor(0)?;
        check(x.dtype, self.to)?;
        Ok(vec![Type::Tensor(x.with_dtype(self.to))])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let x = inputs.tensor(0)?;
        check(x.dtype(), self.to)?;
        let bytes = x.bytes().ok_or_else(|| OpError::eval("strings have no bits"))?;
        let bytes = if self.to == DType::Bool {
            Blob::new(bytes.iter().map(|b| u8::from(*b != 0)).collect())
        } else {
            bytes.clone()
        };
        Ok(vec![Tensor::from_bytes(self.to, x.dims().to_vec(), bytes)?.into()])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let Some(s) = cx.tensor(0).ok().and_then(|t| t.shape.as_ref()) else { return Vec::new() };
        shape::elementwise_splits(&[s], s)
    }
}
