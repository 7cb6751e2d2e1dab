//! Elementwise composites of several operands: sum, mean, max, min of any number; clip; prelu.

use of_ir::{OpError, OpView, Rewriter, TensorType, Type, ValueId};

use super::{Add, Ge, Max, Min, Mul, Select};
use crate::build::{Build, in_wide};
use crate::sample::Rng;
use crate::structural::Constant;
use crate::{Expanded, Inferred, Op, Value, op, op_basics, shape};

fn infer(cx: &OpView<'_>) -> Inferred {
    let mut shapes = Vec::new();
    let first = cx.tensor(0)?;
    for i in 0..cx.operands.len() {
        let t = cx.tensor(i)?;
        if t.dtype != first.dtype {
            return Err(OpError::ty(format!("operands have different element types {} and {}", first.dtype, t.dtype)));
        }
        shapes.push(&t.shape);
    }
    let shapes: Option<Vec<_>> = shapes.into_iter().map(Option::as_ref).collect();
    let shape = shapes.map(|s| shape::broadcast(&s)).transpose()?;
    Ok(vec![Type::Tensor(TensorType { dtype: first.dtype, shape, sbp: None })])
}

macro_rules! variadic {
    ($($(#[doc = $doc:literal])* $name:ident = $opname:literal [$onnx:literal] $binary:ident, $mean:literal;)*) => {$(
        op! {
            $(#[doc = $doc])*
            pub struct $name = $opname [Composite, onnx: $onnx] {
                operands: (first, rest*),
                results: (y),
                attrs: {},
            }
            samples: |seed| {
                let mut r = Rng::new(seed);
                let dims = r.dims(2, 1, 4);
                let n = r.int(1, 4);
                let operands: Vec<Value> = (0..n).map(|i| r.f32s(if i % 2 == 0 { &dims } else { &dims[1..] })).collect();
                Some((operands, $name {}))
            };
        }

        impl Op for $name {
            op_basics!($name);

            fn infer(&self, cx: &OpView<'_>) -> Inferred {
                infer(cx)
            }

            fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
                let folded = |rw: &mut Rewriter<'_>, operands: &[ValueId]| {
                    operands[1..].iter().try_fold(operands[0], |y, v| rw.create_one($binary {}, &[y, *v]))
                };
                if !$mean || operands.len() < 2 {
                    return Ok(vec![folded(rw, operands)?]);
                }
                in_wide(rw, operands, |rw, operands| {
                    let b = &mut Build::new(rw);
                    let sum = folded(b.rw, operands)?;
                    let n = b.number(operands.len() as f64, sum)?;
                    Ok(vec![b.div(sum, n)?])
                })
            }
        }
    )*};
}

variadic! {
    /// The largest of all operands.
    VariadicMax = "of.variadic_max" ["Max"] Max, false;
    /// The mean of all operands.
    VariadicMean = "of.variadic_mean" ["Mean"] Add, true;
    /// The smallest of all operands.
    VariadicMin = "of.variadic_min" ["Min"] Min, false;
    /// The sum of all operands.
    VariadicSum = "of.variadic_sum" ["Sum"] Add, false;
}

op! {
    /// min(max(x, low), high); either bound may be left out.
    pub struct Clip = "of.clip" [Composite, onnx: "Clip"] {
        operands: (x, low?, high?),
        results: (y),
        attrs: {},
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let dims = r.dims(2, 1, 4);
        let low = r.tensor(of_ir::DType::F32, &[], -1.0, 0.0);
        let high = r.tensor(of_ir::DType::F32, &[], 0.0, 1.0);
        let operands = match r.int(0, 2) {
            0 => vec![r.f32s(&dims), low.into(), high.into()],
            1 => vec![r.f32s(&dims), low.into()],
            _ => vec![r.f32s(&dims), Value::None, high.into()],
        };
        Some((operands, Clip {}))
    };
}

impl Op for Clip {
    op_basics!(Clip);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let t = cx.tensor(0)?;
        for i in 1..3 {
            if cx.operand(i).is_some() && cx.tensor(i)?.dtype != t.dtype {
                return Err(OpError::ty(format!("a bound is {}, the operand {}", cx.tensor(i)?.dtype, t.dtype)));
            }
            if let (Some(Type::Tensor(TensorType { shape: Some(bound), .. })), Some(s)) = (cx.ty(i), &t.shape) {
                shape::within("a bound", bound, s)?;
            }
        }
        Ok(vec![Type::Tensor(t.with_dtype(t.dtype))])
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        let given = |rw: &Rewriter<'_>, i: usize| operands.get(i).copied().filter(|v| *rw.graph().ty(*v) != Type::None);
        let mut y = operands[0];
        if let Some(low) = given(rw, 1) {
            y = rw.create_one(Max {}, &[y, low])?;
        }
        if let Some(high) = given(rw, 2) {
            y = rw.create_one(Min {}, &[y, high])?;
        }
        Ok(vec![y])
    }
}

op! {
    /// x where x >= 0, else slope x
    pub struct PRelu = "of.prelu" [Composite, onnx: "PRelu"] {
        operands: (x, slope),
        results: (y),
        attrs: {},
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let dims = r.dims(2, 1, 4);
        Some((vec![r.f32s(&dims), r.f32s(&dims[1..])], PRelu {}))
    };
}

impl Op for PRelu {
    op_basics!(PRelu);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        infer(cx)
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        let (x, slope) = (operands[0], operands[1]);
        let dtype = rw.graph().ty(x).as_tensor().map_or(of_ir::DType::F32, |t| t.dtype);
        let zero = Constant::number(rw, 0.0, dtype)?;
        let p = rw.create_one(Ge {}, &[x, zero])?;
        let n = rw.create_one(Mul {}, &[x, slope])?;
        Ok(vec![rw.create_one(Select {}, &[p, x, n])?])
    }
}
