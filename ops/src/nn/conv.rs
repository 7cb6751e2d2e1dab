//! `of.conv`.

use std::sync::Arc;

use of_diag::Diagnostic;
use of_ir::{
    Dim, Elements, OpError, OpView, PartialKind, Rewriter, Sbp, SbpSignature, Tensor, TensorType, Type, ValueId,
};

use super::layout::{self, Activation, Number, Numbers};
use super::window::{self, WindowAttrs, Windows};
use crate::sample::Rng;
use crate::{Evaluated, Expanded, GradCx, Inferred, Inputs, Op, Value, op, op_basics, shape};

op! {
    /// Convolution `y[n, o, p] = b[o] + sum_{c, k} x[n, c, p*stride + k*dilation - pad] * w[o, c, k]`.
    ///
    /// Any number of spatial axes. `w` is `[Cout, Cin/group, kernel…]` in both layouts. Empty `strides` and
    /// `dilations` stand for ones, empty `pads` for zeros. Source: ONNX Conv.
    pub struct Conv = "of.conv" [Primitive, onnx: "Conv"] {
        operands: (x, w, b?),
        results: (y),
        attrs: {
            strides: Vec<i64>,
            /// Begin of every spatial axis, then end of every spatial axis.
            pads: Vec<i64>,
            dilations: Vec<i64>,
            group: i64,
            /// `NOTSET`, `SAME_UPPER`, `SAME_LOWER` or `VALID`; anything but `NOTSET` overrides `pads`.
            auto_pad: Arc<str>,
            /// `x` and `y` are `[N, spatial…, C]`.
            channels_last: bool,
        }
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let rank = r.int(1, 3) as usize;
        let group = r.pick(&[1, 1, 1, 2]);
        let (n, ci, co) = (r.int(1, 3) as usize, r.int(1, 3) as usize, r.int(1, 3) as usize * group as usize);
        let spatial = r.dims(rank, 4, 6);
        let channels_last = r.int(0, 3) == 0;
        let list = |r: &mut Rng, low, high, n: usize| (0..n).map(|_| r.int(low, high)).collect::<Vec<_>>();
        let op = Conv {
            strides: list(&mut r, 1, 2, rank),
            pads: list(&mut r, 0, 2, 2 * rank),
            dilations: if r.int(0, 2) == 0 { list(&mut r, 1, 2, rank) } else { vec![] },
            group,
            auto_pad: r.pick(&["NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]).into(),
            channels_last,
        };
        let cin = ci * group as usize;
        let x = layout::dims(n, cin, &spatial, channels_last);
        let kernel = r.dims(rank, 1, 2);
        let w = [&[co, ci], kernel.as_slice()].concat();
        let mut operands = vec![r.f32s(&x), r.f32s(&w)];
        if r.int(0, 1) == 0 {
            operands.push(r.f32s(&[co]));
        }
        Some((operands, op))
    };
}

/// Everything that a lowering needs to know of a convolution.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConvGeometry<D> {
    /// Samples.
    pub n: D,
    /// Input channels, of all groups.
    pub cin: D,
    /// Output channels, of all groups.
    pub cout: D,
    /// Number of groups.
    pub group: usize,
    /// Spatial axes.
    pub windows: Windows<D>,
}

impl ConvGeometry<Dim> {
    /// The same with numbers; `None` where a symbol remains.
    pub fn fixed(&self) -> Option<ConvGeometry<usize>> {
        let d = window::fixed(&[self.n.clone(), self.cin.clone(), self.cout.clone()])?;
        Some(ConvGeometry { n: d[0], cin: d[1], cout: d[2], group: self.group, windows: self.windows.fixed()? })
    }
}

/// The attribute `group` as a number.
pub(super) fn group(group: i64) -> Result<usize, OpError> {
    Ok(window::sizes("group", &[group], 1, 1, 1)?[0])
}

/// A weight that does not fit the channels.
pub(super) fn channel_error(what: &str, expected: &Dim, got: &Dim) -> OpError {
    OpError::shape(format!("{what} must have {expected} channels, it has {got}"))
}

impl Conv {
    /// Sizes of everything, for operands of the given dimensions.
    ///
    /// # Errors
    /// When they do not fit, or the kernel's size is not known.
    pub fn geometry(&self, x: &[Dim], w: &[Dim]) -> Result<ConvGeometry<Dim>, OpError> {
        let a = self.activation(x, w)?;
        let kernel: Option<Vec<i64>> = w[2..].iter().map(Dim::as_const).collect();
        let kernel = kernel.ok_or_else(|| OpError::shape("the size of the kernel is not known"))?;
        let windows = self.window_attrs().windows(&a.spatial, &kernel)?;
        // A run refuses other channels of the input, so a number that only the weight has is the number of both.
        let of_weight = &w[1] * &Dim::from(group(self.group)?);
        let cin = if of_weight.as_const().is_some() { of_weight } else { a.c };
        Ok(ConvGeometry { n: a.n, cin, cout: w[0].clone(), group: group(self.group)?, windows })
    }

    fn window_attrs(&self) -> WindowAttrs<'_> {
        let Conv { strides, pads, dilations, auto_pad, .. } = self;
        WindowAttrs { strides, pads, dilations, auto_pad, ceil: false }
    }

    /// Pads begin and end of each spatial axis, with `auto_pad` resolved.
    ///
    /// # Errors
    /// When the windows do not fit the input.
    pub fn resolved_pads(&self, spatial: &[Dim], kernel: &[i64]) -> Result<Vec<Dim>, OpError> {
        let w = self.window_attrs().windows(spatial, kernel)?;
        Ok([w.pads_begin, w.pads_end].concat())
    }

    /// Checks ranks and channels.
    fn activation(&self, x: &[Dim], w: &[Dim]) -> Result<Activation, OpError> {
        let a = Activation::of(&x.to_vec(), self.channels_last)?;
        if w.len() != x.len() {
            return Err(OpError::shape(format!("the weight has rank {}, the input {}", w.len(), x.len())));
        }
        let g = Dim::from(group(self.group)?);
        let cin = &w[1] * &g;
        if a.c.provably_ne(&cin) {
            return Err(channel_error("the input", &cin, &a.c));
        }
        if w[0].as_const().is_some() && w[0].exact_div(&g).is_none() {
            return Err(OpError::shape(format!("{} output channels do not divide into {g} groups", w[0])));
        }
        Ok(a)
    }
}

/// Element types of a convolution's operands: one number type for all.
pub(super) fn check_types(cx: &OpView<'_>) -> Result<(), OpError> {
    let t = cx.tensor(0)?;
    if !t.dtype.is_float() && !t.dtype.is_int() {
        return Err(OpError::ty(format!("operands must be numbers, they are {}", t.dtype)));
    }
    for i in 1..cx.operands.len() {
        if let Some(Type::Tensor(o)) = cx.ty(i)
            && o.dtype != t.dtype
        {
            return Err(OpError::ty(format!("operands have different element types {} and {}", t.dtype, o.dtype)));
        }
    }
    Ok(())
}

/// The bias must be one number an output channel.
pub(super) fn check_bias(cx: &OpView<'_>, cout: &Dim) -> Result<(), OpError> {
    match cx.ty(2) {
        Some(Type::Tensor(TensorType { shape: Some(s), .. })) if s.len() != 1 || s[0].provably_ne(cout) => {
            Err(OpError::shape(format!("the bias must be [{cout}], it is {}", shape::show(s))))
        }
        Some(Type::Tensor(_)) | None => Ok(()),
        Some(other) => Err(OpError::ty(format!("the bias must be a tensor, it is {other}"))),
    }
}

/// Signatures of a convolution: batch; output channels and input channels where there is one group; linearity.
/// `out_axis` and `in_axis` are the weight's channel axes.
pub(super) fn signatures(
    cx: &OpView<'_>,
    channels_last: bool,
    group: i64,
    out_axis: u8,
    in_axis: u8,
) -> Vec<SbpSignature> {
    let Ok(Some(rank)) = cx.tensor(0).map(TensorType::rank) else {
        return Vec::new();
    };
    let c = Sbp::Split(layout::channel_axis(rank, channels_last) as u8);
    let (b, sum) = (Sbp::Broadcast, Sbp::Partial(PartialKind::Sum));
    let bias = cx.operand(2).is_some();
    let mut out = Vec::new();
    let mut add = |x: Sbp, w: Sbp, bias_sbp: Sbp, y: Sbp| {
        let all = [x, w, if bias { bias_sbp } else { b }];
        out.push(SbpSignature::new(&all[..cx.operands.len().min(3)], &[y]));
    };
    add(Sbp::Split(0), b, b, Sbp::Split(0));
    if group == 1 {
        add(b, Sbp::Split(out_axis), Sbp::Split(0), c);
        add(c, Sbp::Split(in_axis), sum, sum);
    }
    add(sum, b, sum, sum);
    add(b, sum, sum, sum);
    out
}

/// The sum over channels and window, for `x` in `[N, C, spatial…]`.
fn convolve<T: Number>(x: &[T], w: &[T], bias: Option<&Vec<T>>, g: &ConvGeometry<usize>) -> Vec<T> {
    let (area_in, area_out) = g.windows.areas();
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
        for o in 0..g.cout {
            let to = &mut y[(n * g.cout + o) * area_out..][..area_out];
            for c in 0..ci {
                let from = &x[(n * g.cin + (o / co) * ci + c) * area_in..][..area_in];
                let taps = &w[(o * ci + c) * elements..][..elements];
                for (k, list) in &runs {
                    let f = taps[*k];
                    for r in list {
                        let (to, from) = (&mut to[r.output..][..r.len], &from[r.input..]);
                        if step == 1 {
                            to.iter_mut().zip(from).for_each(|(t, v)| *t += f * *v);
                        } else {
                            to.iter_mut().zip(from.iter().step_by(step)).for_each(|(t, v)| *t += f * *v);
                        }
                    }
                }
            }
        }
    }
    y
}

/// The bias where there is one, checked against the number of channels.
pub(super) fn bias_of<'a>(inputs: &'a Inputs<'_>, cout: usize) -> Result<Option<&'a Tensor>, OpError> {
    match inputs.opt_tensor(2) {
        Some(b) if b.dims() != [cout] => Err(OpError::eval(format!("the bias must be [{cout}], it is {:?}", b.dims()))),
        other => Ok(other),
    }
}

/// Dimensions as symbols, for rules that serve inference too.
pub(super) fn symbolic(dims: &[usize]) -> Vec<Dim> {
    dims.iter().map(|d| Dim::from(*d)).collect()
}

/// The result of a kernel that works on `[N, C, spatial…]`, in the op's layout.
pub(super) fn finish<T: Copy>(
    y: Vec<T>,
    n: usize,
    c: usize,
    spatial: &[usize],
    channels_last: bool,
) -> (Vec<T>, Vec<usize>) {
    let dims = layout::dims(n, c, spatial, channels_last);
    let y = if channels_last { layout::transpose_samples(&y, n, c, spatial.iter().product()) } else { y };
    (y, dims)
}

impl Op for Conv {
    op_basics!(Conv);

    fn flops(&self, cx: &OpView<'_>, results: &[Type]) -> Option<f64> {
        crate::estimate::filter(cx, results.first()?)
    }

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let (x, w) = (cx.tensor(0)?, cx.tensor(1)?);
        check_types(cx)?;
        let (Some(xs), Some(ws)) = (&x.shape, &w.shape) else {
            return Ok(vec![Type::Tensor(TensorType { dtype: x.dtype, shape: None, sbp: None })]);
        };
        let a = self.activation(xs, ws)?;
        check_bias(cx, &ws[0])?;
        let spatial = if ws[2..].iter().all(|d| d.as_const().is_some()) {
            self.geometry(xs, ws)?.windows.output
        } else {
            vec![Dim::unknown(); a.spatial.len()]
        };
        Ok(vec![Type::tensor(x.dtype, Activation::shape(&a.n, &ws[0], &spatial, self.channels_last))])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let (x, w) = (inputs.tensor(0)?, inputs.tensor(1)?);
        let g = self.geometry(&symbolic(x.dims()), &symbolic(w.dims()))?;
        let g = g.fixed().ok_or_else(|| OpError::eval("the result has a negative size"))?;
        shape::count(&[&[g.n, g.cout], g.windows.output.as_slice()].concat())?;
        let mut list = vec![x, w];
        list.extend(bias_of(inputs, g.cout)?);
        let (area_in, _) = g.windows.areas();
        macro_rules! run {
            ($v:expr, $wrap:expr) => {{
                let mut v = $v;
                if self.channels_last {
                    v[0] = layout::transpose_samples(&v[0], g.n, area_in, g.cin);
                }
                let y = convolve(&v[0], &v[1], v.get(2), &g);
                let (y, dims) = finish(y, g.n, g.cout, &g.windows.output, self.channels_last);
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
        signatures(cx, self.channels_last, self.group, 0, 1)
    }

    fn expands(&self) -> bool {
        self.channels_last
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        layout::channels_first(rw, operands, 1, Conv { channels_last: false, ..self.clone() })
    }

    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        // Layouts are chosen after differentiation.
        if self.channels_last {
            return None;
        }
        let g = cx.grads[0]?;
        let dims = |v: ValueId| cx.rw.graph().ty(v).as_tensor().and_then(|t| t.shape.clone());
        let geometry = self.geometry(&dims(cx.operands[0])?, &dims(cx.operands[1])?).ok()?;
        super::conv_gradient::conv(cx, g, &geometry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_dimensional_conv_matches_an_example() {
        let op = Conv {
            strides: vec![],
            pads: vec![1, 1],
            dilations: vec![],
            group: 1,
            auto_pad: window::notset(),
            channels_last: false,
        };
        let x = Tensor::from_slice(&[1, 1, 3], &[1f32, 2.0, 3.0]).unwrap();
        let w = Tensor::from_slice(&[1, 1, 3], &[1f32, 10.0, 100.0]).unwrap();
        let values = [x.into(), w.into()];
        let mut inputs = Inputs { values: &values, types: &[], region: &mut |_, _| Ok(vec![]) };
        let y = op.eval(&mut inputs).unwrap();
        let Value::Tensor(y) = &y[0] else { panic!("no tensor") };
        assert_eq!(y.to_f64s().unwrap(), [210.0, 321.0, 32.0]);
    }
}
