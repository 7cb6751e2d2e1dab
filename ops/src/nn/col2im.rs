//! `of.col2im`.

use of_diag::Diagnostic;
use of_ir::{Dim, Elements, OpError, OpView, PartialKind, Sbp, SbpSignature, Tensor, TensorType, Type, ValueId};

use super::conv::symbolic;
use super::conv_gradient::columns;
use super::window::{self, WindowAttrs, Windows};
use crate::build::Build;
use crate::sample::Rng;
use crate::{Evaluated, GradCx, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// Adds blocks back into an image: `x` is `[N, C * block…, L]` with one column a window position; the result is
    /// `[N, C, image…]`. The inverse of cutting windows out, where overlaps add. Source: ONNX Col2Im.
    pub struct Col2Im = "of.col2im" [Primitive, onnx: "Col2Im"] {
        operands: (x, image_shape, block_shape),
        results: (y),
        attrs: {
            strides: Vec<i64>,
            /// Begin of every spatial axis, then end of every spatial axis.
            pads: Vec<i64>,
            dilations: Vec<i64>,
        }
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let (n, c) = (r.int(1, 2) as usize, r.int(1, 3) as usize);
        let (image, block) = ([r.int(3, 5), r.int(3, 5)], [r.int(1, 3), r.int(1, 3)]);
        let op = Col2Im { strides: vec![1, 1], pads: vec![], dilations: vec![] };
        let positions: i64 = (0..2).map(|a| image[a] - block[a] + 1).product();
        let x = r.f32s(&[n, c * (block[0] * block[1]) as usize, positions as usize]);
        Some((vec![x, Tensor::from_i64s(&image).into(), Tensor::from_i64s(&block).into()], op))
    };
}

impl Col2Im {
    /// The windows whose columns are added up.
    ///
    /// # Errors
    /// When the attributes do not fit them.
    pub fn windows(&self, image: &[i64], block: &[i64]) -> Result<Windows<usize>, OpError> {
        let image = window::sizes("image_shape", image, image.len(), 0, 0)?;
        let attrs = WindowAttrs {
            strides: &self.strides,
            pads: &self.pads,
            dilations: &self.dilations,
            auto_pad: "NOTSET",
            ceil: false,
        };
        let windows = attrs.windows(&symbolic(&image), block)?;
        windows.fixed().ok_or_else(|| OpError::eval("the result has a negative size"))
    }
}

impl Op for Col2Im {
    op_basics!(Col2Im);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let x = cx.tensor(0)?;
        if !x.dtype.is_float() && !x.dtype.is_int() {
            return Err(OpError::ty(format!("x must be numbers, it is {}", x.dtype)));
        }
        let image = cx.dims(1).or_else(|| {
            // The number of axes may be known without the sizes.
            let rank = cx.tensor(1).ok()?.fixed_dims()?.first().copied()?;
            Some(vec![Dim::unknown(); rank.min(64)])
        });
        let Some(image) = image else {
            return Ok(vec![Type::Tensor(TensorType::unranked(x.dtype))]);
        };
        let (mut n, mut c) = (Dim::unknown(), Dim::unknown());
        if let Some(s) = &x.shape {
            if s.len() != 3 {
                return Err(OpError::shape(format!("x must be [N, C * block, L], it is {}", shape::show(s))));
            }
            n = s[0].clone();
            if let Some(block) = cx.dims(2) {
                let size = block.iter().fold(Dim::from(1i64), |p, d| &p * d);
                c = s[1].exact_div(&size).unwrap_or_else(Dim::unknown);
            }
        }
        Ok(vec![Type::tensor(x.dtype, [vec![n, c], image].concat())])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let x = inputs.tensor(0)?;
        let (image, block) = (inputs.ints(1)?, inputs.ints(2)?);
        let w = self.windows(&image, &block)?;
        let (area, positions) = w.areas();
        let elements: usize = w.kernel.iter().product();
        let &[n, rows, columns] = x.dims() else {
            return Err(OpError::eval("x must be [N, C * block, L]"));
        };
        if columns != positions || rows % elements != 0 {
            return Err(OpError::eval(format!(
                "blocks of {block:?} give {positions} columns of a multiple of {elements} rows, x is {rows} x {columns}"
            )));
        }
        let c = rows / elements;
        let dims = [&[n, c], w.input.as_slice()].concat();
        let mut y = vec![0f64; shape::count(&dims)?];
        let v = x.to_f64s().ok_or_else(|| OpError::eval("x must be numbers"))?;
        let (runs, step) = (w.runs(), w.step());
        for plane in 0..n * c {
            let to = &mut y[plane * area..][..area];
            for (k, list) in &runs {
                let column = &v[(plane * elements + k) * positions..][..positions];
                for r in list {
                    let from = &column[r.output..][..r.len];
                    to[r.input..].iter_mut().step_by(step).zip(from).for_each(|(t, v)| *t += v);
                }
            }
        }
        Ok(vec![Tensor::from_elements(x.dtype(), dims, Elements::Float(y))?.into()])
    }

    fn sbp(&self, _cx: &OpView<'_>) -> Vec<SbpSignature> {
        let (b, sum, s) = (Sbp::Broadcast, Sbp::Partial(PartialKind::Sum), Sbp::Split(0));
        vec![SbpSignature::new(&[s, b, b], &[s]), SbpSignature::new(&[sum, b, b], &[sum])]
    }

    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        let g = cx.grads[0]?;
        let graph = cx.rw.graph();
        let known = |v: ValueId| graph.constant(v)?.to_i64s();
        let windows = self.windows(&known(cx.operands[1])?, &known(cx.operands[2])?).ok()?;
        let channels = usize::try_from(graph.ty(g).as_tensor()?.shape.as_ref()?.get(1)?.as_const()?).ok()?;
        let dx = columns(&mut Build::new(cx.rw), &windows, channels, g);
        Some(dx.map(|dx| vec![Some(dx), None, None]))
    }
}
