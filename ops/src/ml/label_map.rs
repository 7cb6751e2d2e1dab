//! `of.label_map`.

use std::collections::HashMap;

use of_ir::{DType, OpError, OpView, Sbp, SbpSignature, Tensor, Type};

use crate::movement::cells::Cells;
use crate::sample::Rng;
use crate::{Evaluated, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// Replaces each element that is one of `keys` by the value at its position, any other by `default`.
    ///
    /// Of equal keys the last counts; NaN is a key like any other. Source: ai.onnx.ml LabelEncoder.
    pub struct LabelMap = "of.label_map" [Primitive] {
        operands: (x),
        results: (y),
        attrs: {
            /// Rank 1, of the element type of `x`.
            keys: Tensor,
            /// As many, of the element type of the result.
            values: Tensor,
            /// One element of the same type.
            default: Tensor,
        }
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let dtype = r.pick(&[DType::I64, DType::F32, DType::String]);
        let x = r.tensor(dtype, &[2, 3], 0.0, 5.0);
        let first = match Key::of(&x).into_iter().next()? {
            Key::Str(s) => Tensor::from_strings(vec![1], vec![s]).ok()?,
            _ => Tensor::from_elements(dtype, vec![1], of_ir::Elements::Int(vec![3])).ok()?,
        };
        let values = r.tensor(DType::F32, &[1], 0.0, 9.0);
        Some((vec![x.into()], LabelMap { keys: first, values, default: Tensor::from_slice(&[1], &[-1f32]).ok()? }))
    };
}

/// An element that can be looked up.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Key {
    Int(i128),
    /// The bits of a float; one pattern for every NaN, and for both zeros.
    Float(u64),
    Str(String),
}

impl Key {
    /// The elements of `t`.
    fn of(t: &Tensor) -> Vec<Key> {
        match t.elements() {
            of_ir::Elements::Int(v) => v.into_iter().map(Key::Int).collect(),
            of_ir::Elements::Float(v) => {
                v.into_iter().map(|x| Key::Float(if x.is_nan() { f64::NAN } else { x + 0.0 }.to_bits())).collect()
            }
            of_ir::Elements::Str(v) => v.into_iter().map(Key::Str).collect(),
        }
    }
}

impl Op for LabelMap {
    op_basics!(LabelMap);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let x = cx.tensor(0)?;
        if x.dtype != self.keys.dtype() {
            return Err(OpError::ty(format!("operand 0 is {}, the keys are {}", x.dtype, self.keys.dtype())));
        }
        if self.keys.len() != self.values.len() {
            let (k, v) = (self.keys.len(), self.values.len());
            return Err(OpError::attr(format!("there are {k} keys and {v} values")));
        }
        if self.default.len() != 1 || self.default.dtype() != self.values.dtype() {
            return Err(OpError::attr("the default must be one element of the type of the values"));
        }
        Ok(vec![Type::Tensor(x.with_dtype(self.values.dtype()))])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let x = inputs.tensor(0)?;
        let places: HashMap<Key, usize> = Key::of(&self.keys).into_iter().enumerate().map(|(i, k)| (k, i)).collect();
        let (values, default) = (Cells::of(&self.values), Cells::of(&self.default));
        let mut out = Cells::with_room(self.values.dtype(), shape::count(x.dims())?)?;
        for key in Key::of(x) {
            match places.get(&key) {
                Some(i) => out.push(&values, *i, 1),
                None => out.push(&default, 0, 1),
            }
        }
        Ok(vec![out.into_tensor(self.values.dtype(), x.dims().to_vec())?.into()])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let rank = cx.tensor(0).ok().and_then(of_ir::TensorType::rank).unwrap_or(0);
        (0..rank.min(255)).map(|a| SbpSignature::new(&[Sbp::Split(a as u8)], &[Sbp::Split(a as u8)])).collect()
    }
}
