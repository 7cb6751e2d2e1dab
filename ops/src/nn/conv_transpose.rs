//! `of.conv_transpose`.

use std::sync::Arc;

use of_diag::Diagnostic;
use of_ir::{Dim, DimFn, Elements, OpError, OpView, Rewriter, SbpSignature, Tensor, TensorType, Type, ValueId};

use super::conv::{self, ConvGeometry, symbolic};
use super::layout::{self, Activation, Number, Numbers};
use super::window::{self, AutoPad, WindowAttrs, Windows};
use crate::sample::Rng;
use crate::{Evaluated, Expanded, GradCx, Inferred, Inputs, Op, Value, op, op_basics, shape};

op! {
    /// Transposed convolution: each input element adds its multiple of the kernel to the output;
    /// `y[n, o, p*stride + k*dilation - pad] += x[n, c, p] * w[c, o, k]`.
    ///
    /// `w` is `[Cin, Cout/group, kernel…]` in both layouts. The output has
    /// `stride*(in - 1) + output_padding + (kernel - 1)*dilation + 1 - pads` elements an axis, or `output_shape`, which
    /// then decides the pads. Source: ONNX ConvTranspose.
    pub struct ConvTranspose = "of.conv_transpose" [Primitive, onnx: "ConvTranspose"] {
        operands: (x, w, b?),
        results: (y),
        attrs: {
            strides: Vec<i64>,
            /// Begin of every spatial axis, then end of every spatial axis.
            pads: Vec<i64>,
            dilations: Vec<i64>,
            output_padding: Vec<i64>,
            /// Spatial dimensions of the result; empty where they follow from the pads.
            output_shape: Vec<i64>,
            group: i64,
            /// `NOTSET`, `SAME_UPPER`, `SAME_LOWER` or `VALID`; `SAME_…` makes the output `in*stride`.
            auto_pad: Arc<str>,
            /// `x` and `y` are `[N, spatial…, C]`.
            channels_last: bool,
        }
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let rank = r.int(1, 2) as usize;
        let group = r.pick(&[1, 1, 2]);
        let (n, ci, co) = (r.int(1, 3) as usize, r.int(1, 2) as usize * group as usize, r.int(1, 3) as usize);
        let spatial = r.dims(rank, 3, 4);
        let channels_last = r.int(0, 3) == 0;
        let op = ConvTranspose {
            strides: vec![2; rank],
            pads: (0..2 * rank).map(|_| r.int(0, 1)).collect(),
            dilations: vec![],
            output_padding: (0..rank).map(|_| r.int(0, 1)).collect(),
            output_shape: vec![],
            group,
            auto_pad: r.pick(&["NOTSET", "NOTSET", "SAME_UPPER", "VALID"]).into(),
            channels_last,
        };
        let x = layout::dims(n, ci, &spatial, channels_last);
        let kernel = r.dims(rank, 2, 3);
        let w = [&[ci, co], kernel.as_slice()].concat();
        let mut operands = vec![r.f32s(&x), r.f32s(&w)];
        if r.int(0, 1) == 0 {
            operands.push(r.f32s(&[co * group as usize]));
        }
        Some((operands, op))
    };
}

impl ConvTranspose {
    /// Sizes of everything. `windows` describes the adjoint convolution: its `input` is this op's
    /// output, its `output` is this op's input.
    ///
    /// # Errors
    /// When operands or attributes do not fit, or the kernel's size is not known.
    pub fn geometry(&self, x: &[Dim], w: &[Dim]) -> Result<ConvGeometry<Dim>, OpError> {
        let (a, cout) = self.activation(x, w)?;
        let rank = a.spatial.len();
        let kernel: Option<Vec<i64>> = w[2..].iter().map(Dim::as_const).collect();
        let kernel = kernel.ok_or_else(|| OpError::shape("the size of the kernel is not known"))?;
        let kernel = window::sizes("kernel", &kernel, rank, 1, 1)?;
        let ConvTranspose { strides, pads, dilations, auto_pad, .. } = self;
        let auto = AutoPad::parse(auto_pad)?;
        let attrs = WindowAttrs { strides, pads, dilations, auto_pad, ceil: false };
        let [strides, dilations, begin, end] = attrs.lists(rank)?;
        let extra = window::sizes("output_padding", &self.output_padding, rank, 0, 0)?;
        let wanted = window::sizes("output_shape", &self.output_shape, rank, 0, 0)?;
        let (mut output, mut pads_begin, mut pads_end) = (Vec::new(), Vec::new(), Vec::new());
        for i in 0..rank {
            let d = |v: usize| Dim::from(v);
            let dilated_extent = &(&a.spatial[i] - &d(1)) * &d(strides[i]);
            let full = &dilated_extent + &d(extra[i] + dilations[i] * (kernel[i] - 1) + 1);
            let target = match auto {
                _ if !self.output_shape.is_empty() => Some(d(wanted[i])),
                AutoPad::SameUpper | AutoPad::SameLower => Some(&a.spatial[i] * &d(strides[i])),
                _ => None,
            };
            let (size, b, e) = match target {
                Some(size) => {
                    let total = Dim::call(DimFn::Max, &(&full - &size), &d(0));
                    let half = Dim::call(DimFn::FloorDiv, &total, &d(2));
                    let rest = &total - &half;
                    if auto == AutoPad::SameUpper { (size, half, rest) } else { (size, rest, half) }
                }
                None if auto == AutoPad::Valid => (full, d(0), d(0)),
                None => (&full - &d(begin[i] + end[i]), d(begin[i]), d(end[i])),
            };
            if size.as_const().is_some_and(|c| c < 0) {
                return Err(OpError::shape(format!(
                    "pads {b} and {e} leave nothing of the result along spatial axis {i}"
                )));
            }
            output.push(size);
            pads_begin.push(b);
            pads_end.push(e);
        }
        let windows = Windows { input: output, output: a.spatial, kernel, strides, dilations, pads_begin, pads_end };
        Ok(ConvGeometry { n: a.n, cin: a.c, cout, group: conv::group(self.group)?, windows })
    }

    /// Checks ranks and channels; gives the output channels too.
    fn activation(&self, x: &[Dim], w: &[Dim]) -> Result<(Activation, Dim), OpError> {
        let a = Activation::of(&x.to_vec(), self.channels_last)?;
        if w.len() != x.len() {
            return Err(OpError::shape(format!("the weight has rank {}, the input {}", w.len(), x.len())));
        }
        if a.c.provably_ne(&w[0]) {
            return Err(conv::channel_error("the input", &w[0], &a.c));
        }
        let g = Dim::from(conv::group(self.group)?);
        if w[0].as_const().is_some() && w[0].exact_div(&g).is_none() {
            return Err(OpError::shape(format!("{} input channels do not divide into {g} groups", w[0])));
        }
        Ok((a, &w[1] * &g))
    }
}

/// Adds up the kernels, for `x` in `[N, C, spatial…]`.
fn scatter<T: Number>(x: &[T], w: &[T], bias: Option<&Vec<T>>, g: &ConvGeometry<usize>) -> Vec<T> {
    // The windows belong to the adjoint convolution: their input is the output written here.
    let (area_out, area_in) = g.windows.areas();
    let (ci, co) = (g.cin / g.group, g.cout / g.group);
    let (runs, step) = (g.windows.runs(), g.windows.step());
    let elements: usize = g.windows.kernel.iter().product();
    let mut y = vec![T::default(); g.n * g.cout * area_out];
    if let Some(b) = bias
        && area_out > 0
    {
        y.chunks_exact_mut(area_out).enumerate().for_each(|(i, plane)| plane.fill(b[i % g.cout]));
    }
    for n in 0..g.n {
        for c in 0..g.cin {
            let from = &x[(n * g.cin + c) * area_in..][..area_in];
            for o in 0..co {
                let to = &mut y[(n * g.cout + (c / ci) * co + o) * area_out..][..area_out];
                let taps = &w[(c * co + o) * elements..][..elements];
                for (k, list) in &runs {
                    let f = taps[*k];
                    for r in list {
                        let from = &from[r.output..][..r.len];
                        to[r.input..].iter_mut().step_by(step).zip(from).for_each(|(t, v)| *t += f * *v);
                    }
                }
            }
        }
    }
    y
}

impl Op for ConvTranspose {
    op_basics!(ConvTranspose);

    fn has_zero_coefficients(&self) -> bool {
        true
    }

    fn flops(&self, cx: &OpView<'_>, _results: &[Type]) -> Option<f64> {
        crate::estimate::filter(cx, cx.ty(0)?)
    }

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let (x, w) = (cx.tensor(0)?, cx.tensor(1)?);
        conv::check_types(cx)?;
        let (Some(xs), Some(ws)) = (&x.shape, &w.shape) else {
            return Ok(vec![Type::Tensor(TensorType { dtype: x.dtype, shape: None, sbp: None })]);
        };
        let (a, cout) = self.activation(xs, ws)?;
        conv::check_bias(cx, &cout)?;
        let spatial = if ws[2..].iter().all(|d| d.as_const().is_some()) {
            self.geometry(xs, ws)?.windows.input
        } else {
            vec![Dim::unknown(); a.spatial.len()]
        };
        Ok(vec![Type::tensor(x.dtype, Activation::shape(&a.n, &cout, &spatial, self.channels_last))])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let (x, w) = (inputs.tensor(0)?, inputs.tensor(1)?);
        let g = self.geometry(&symbolic(x.dims()), &symbolic(w.dims()))?;
        let g = g.fixed().ok_or_else(|| OpError::eval("the result has a negative size"))?;
        shape::count(&[&[g.n, g.cout], g.windows.input.as_slice()].concat())?;
        let mut list = vec![x, w];
        list.extend(conv::bias_of(inputs, g.cout)?);
        let (_, area_in) = g.windows.areas();
        macro_rules! run {
            ($v:expr, $wrap:expr) => {{
                let mut v = $v;
                if self.channels_last {
                    v[0] = layout::transpose_samples(&v[0], g.n, area_in, g.cin);
                }
                let y = scatter(&v[0], &v[1], v.get(2), &g);
                let (y, dims) = conv::finish(y, g.n, g.cout, &g.windows.input, self.channels_last);
                (dims, $wrap(y))
            }};
        }
        let (dims, y) = match layout::numbers(&list)? {
            Numbers::Float(v) => run!(v, Elements::Float),
            Numbers::Int(v) => run!(v, layout::from_wrapping),
        };
        Ok(vec![Value::Tensor(Tensor::from_elements(x.dtype(), dims, y)?)])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        conv::signatures(cx, self.channels_last, self.group, 1, 0)
    }

    fn expands(&self) -> bool {
        self.channels_last
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        layout::channels_first(rw, operands, 1, ConvTranspose { channels_last: false, ..self.clone() })
    }

    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        // Layouts are chosen after differentiation.
        if self.channels_last {
            return None;
        }
        let g = cx.grads[0]?;
        let dims = |v: ValueId| cx.rw.graph().ty(v).as_tensor().and_then(|t| t.shape.clone());
        let geometry = self.geometry(&dims(cx.operands[0])?, &dims(cx.operands[1])?).ok()?;
        super::conv_gradient::conv_transpose(cx, g, &geometry)
    }
}
