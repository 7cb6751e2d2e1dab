//! `of.resize`.

mod coords;
mod gradient;

use std::sync::Arc;

use of_diag::Diagnostic;
use of_ir::{
    DType, Dim, DimFn, Elements, OpError, OpView, Sbp, SbpSignature, Shape, Tensor, TensorType, Type, ValueId,
};

pub use coords::{Coordinates, Filter, Interpolation, Nearest, Taps, Transform};

use crate::sample::Rng;
use crate::{Evaluated, GradCx, Inferred, Inputs, Op, Value, op, op_basics, shape};

op! {
    /// Resamples a tensor along some axes by nearest neighbour, linear or cubic interpolation.
    ///
    /// Exactly one of `scales` (floats) and `sizes` (integers) says how large the result is: `floor(in * scale)` or
    /// the size itself. `roi` matters for `tf_crop_and_resize` only. Source: ONNX Resize.
    pub struct Resize = "of.resize" [Primitive, onnx: "Resize"] {
        operands: (x, roi?, scales?, sizes?),
        results: (y),
        attrs: {
            /// `nearest`, `linear` or `cubic`.
            mode: Arc<str>,
            /// `half_pixel`, `half_pixel_symmetric`, `pytorch_half_pixel`, `align_corners`, `asymmetric` or
            /// `tf_crop_and_resize`.
            coordinate_transformation_mode: Arc<str>,
            /// `round_prefer_floor`, `round_prefer_ceil`, `floor` or `ceil`.
            nearest_mode: Arc<str>,
            cubic_coeff_a: f64,
            /// Widen the filter when downsampling.
            antialias: bool,
            /// Give no weight to taps outside the input.
            exclude_outside: bool,
            /// The value outside the region of interest.
            extrapolation_value: f64,
            /// `stretch`, `not_larger` or `not_smaller`; what `sizes` bound.
            keep_aspect_ratio_policy: Arc<str>,
            /// The axes that `roi`, `scales` and `sizes` are about; absent for all.
            axes: Option<Vec<i64>>,
        }
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let dims = [r.dims(2, 1, 3), r.dims(2, 3, 6)].concat();
        let antialias = r.int(0, 3) == 0;
        let op = Resize {
            mode: if antialias { r.pick(&["linear", "cubic"]) } else { r.pick(&["nearest", "linear", "cubic"]) }.into(),
            coordinate_transformation_mode:
                r.pick(&["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"]).into(),
            nearest_mode: r.pick(&["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]).into(),
            cubic_coeff_a: -0.75,
            antialias,
            exclude_outside: r.int(0, 2) == 0,
            extrapolation_value: 0.0,
            keep_aspect_ratio_policy: r.pick(&["stretch", "stretch", "not_larger", "not_smaller"]).into(),
            axes: Some(vec![2, -1]),
        };
        let x = r.f32s(&dims);
        let (scales, sizes) = if r.int(0, 1) == 0 {
            (r.tensor(DType::F32, &[2], 0.5, 2.5).into(), Value::None)
        } else {
            (Value::None, Tensor::from_i64s(&[r.int(2, 9), r.int(2, 9)]).into())
        };
        Some((vec![x, Value::None, scales, sizes], op))
    };
}

/// The defaults of ONNX.
impl Default for Resize {
    fn default() -> Resize {
        Resize {
            mode: "nearest".into(),
            coordinate_transformation_mode: "half_pixel".into(),
            nearest_mode: "round_prefer_floor".into(),
            cubic_coeff_a: -0.75,
            antialias: false,
            exclude_outside: false,
            extrapolation_value: 0.0,
            keep_aspect_ratio_policy: "stretch".into(),
            axes: None,
        }
    }
}

/// Which of two scales counts for all axes.
type Choice = fn(f64, f64) -> f64;

/// What happens along one axis.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Plan {
    axis: usize,
    output: usize,
    scale: f64,
    roi: (f64, f64),
}

impl Resize {
    /// The interpolation that the attributes describe.
    ///
    /// # Errors
    /// When one has a value that is not known.
    pub fn interpolation(&self) -> Result<Interpolation, OpError> {
        let filter = match &*self.mode {
            "nearest" => Filter::Nearest(Nearest::parse(&self.nearest_mode)?),
            "linear" => Filter::Linear,
            "cubic" => Filter::Cubic(self.cubic_coeff_a),
            other => {
                return Err(OpError::attr(format!("mode '{other}' is not known")).hint("nearest, linear and cubic are"));
            }
        };
        Ok(Interpolation {
            filter,
            transform: Transform::parse(&self.coordinate_transformation_mode)?,
            antialias: self.antialias,
            exclude_outside: self.exclude_outside,
        })
    }

    /// Whether an enlargement by integer factors repeats elements: output `i` reads input `floor(i / factor)`, since
    /// `(i + 1/2) / factor - 1/2` is within 1/2 of it and never halfway.
    pub fn repeats_elements(&self) -> bool {
        let below = matches!(
            (&*self.coordinate_transformation_mode, &*self.nearest_mode),
            ("asymmetric", "floor") | ("half_pixel", "round_prefer_floor" | "round_prefer_ceil")
        );
        &*self.mode == "nearest" && below && &*self.keep_aspect_ratio_policy == "stretch"
    }

    fn axes(&self, rank: usize) -> Result<Vec<usize>, OpError> {
        match &self.axes {
            None => Ok((0..rank).collect()),
            Some(list) => {
                shape::axes(list, rank)?;
                list.iter().map(|a| shape::axis(*a, rank)).collect()
            }
        }
    }

    fn policy(&self) -> Result<Option<Choice>, OpError> {
        match &*self.keep_aspect_ratio_policy {
            "stretch" => Ok(None),
            "not_larger" => Ok(Some(f64::min)),
            "not_smaller" => Ok(Some(f64::max)),
            other => Err(OpError::attr(format!("keep_aspect_ratio_policy '{other}' is not known"))
                .hint("stretch, not_larger and not_smaller are")),
        }
    }

    /// Output sizes and scales of the resized axes.
    fn plan(
        &self,
        dims: &[usize],
        roi: Option<&[f64]>,
        scales: Option<&[f64]>,
        sizes: Option<&[i64]>,
    ) -> Result<Vec<Plan>, OpError> {
        let axes = self.axes(dims.len())?;
        let n = axes.len();
        let length = |what: &str, got: usize, expected: usize| {
            if got == expected {
                Ok(())
            } else {
                Err(OpError::shape(format!("{what} has {got} entries, it needs {expected}")))
            }
        };
        let pairs: Vec<(usize, f64)> = match (scales, sizes) {
            (Some(s), None) => {
                length("scales", s.len(), n)?;
                positive(s)?;
                axes.iter().zip(s).map(|(a, s)| ((dims[*a] as f64 * s).floor() as usize, *s)).collect()
            }
            (None, Some(s)) => {
                length("sizes", s.len(), n)?;
                if let Some(bad) = s.iter().find(|s| **s < 0) {
                    return Err(OpError::eval(format!("sizes holds {bad}")));
                }
                let ratio = |i: usize| s[i] as f64 / dims[axes[i]] as f64;
                match self.policy()? {
                    None => (0..n).map(|i| (s[i] as usize, ratio(i))).collect(),
                    Some(choose) => {
                        let scale = (0..n).map(ratio).reduce(choose).unwrap_or(1.0);
                        axes.iter().map(|a| ((scale * dims[*a] as f64 + 0.5).floor() as usize, scale)).collect()
                    }
                }
            }
            _ => return Err(OpError::eval("exactly one of scales and sizes must be given")),
        };
        if let Some(r) = roi {
            length("roi", r.len(), 2 * n)?;
        }
        let roi = |i: usize| roi.map_or((0.0, 1.0), |r| (r[i], r[n + i]));
        Ok((0..n).map(|i| Plan { axis: axes[i], output: pairs[i].0, scale: pairs[i].1, roi: roi(i) }).collect())
    }

    /// The axes that are resized, and what each of their result elements is made of; `dims` are those of the input.
    ///
    /// # Errors
    /// When scales or sizes do not fit, or the result is too large.
    pub fn taps(
        &self,
        dims: &[usize],
        roi: Option<&[f64]>,
        scales: Option<&[f64]>,
        sizes: Option<&[i64]>,
    ) -> Result<Vec<(usize, Vec<Taps>)>, OpError> {
        let (plan, how) = (self.plan(dims, roi, scales, sizes)?, self.interpolation()?);
        let mut result = dims.to_vec();
        plan.iter().for_each(|p| result[p.axis] = p.output);
        shape::count(&result)?;
        let of = |p: &Plan| {
            let input = dims[p.axis];
            if input == 0 && p.output > 0 {
                return Err(OpError::eval(format!("axis {} has no element to resize", p.axis)));
            }
            Ok((p.axis, how.taps(&Coordinates { input, output: p.output, scale: p.scale, roi: p.roi })))
        };
        plan.iter().map(of).collect()
    }

    /// Result dimensions where they follow from what is known.
    fn result(&self, cx: &OpView<'_>, x: &Shape) -> Result<Shape, OpError> {
        let axes = self.axes(x.len())?;
        let policy = self.policy()?;
        let mut out = x.clone();
        let unknown = |mut out: Shape| {
            axes.iter().for_each(|a| out[*a] = Dim::unknown());
            out
        };
        let present = |i: usize| cx.operand(i).is_some() && cx.constant(i).is_none_or(|c| !c.is_empty());
        if present(2) == present(3) {
            return Err(OpError::ty("exactly one of scales and sizes must be given"));
        }
        if present(2) {
            let Some(scales) = cx.constant(2).and_then(|c| c.to_f64s()) else {
                return Ok(unknown(out));
            };
            if scales.len() != axes.len() {
                return Err(OpError::shape(format!("scales has {} entries, it needs {}", scales.len(), axes.len())));
            }
            positive(&scales)?;
            for (a, s) in axes.iter().zip(scales) {
                out[*a] = scaled(&x[*a], s);
            }
            return Ok(out);
        }
        let Some(sizes) = cx.dims(3) else {
            return Ok(unknown(out));
        };
        if sizes.len() != axes.len() {
            return Err(OpError::shape(format!("sizes has {} entries, it needs {}", sizes.len(), axes.len())));
        }
        if policy.is_none() {
            axes.iter().zip(sizes).for_each(|(a, s)| out[*a] = s);
            return Ok(out);
        }
        let fixed = (super::window::fixed(x), sizes.iter().map(Dim::as_const).collect::<Option<Vec<_>>>());
        let (Some(dims), Some(sizes)) = fixed else {
            return Ok(unknown(out));
        };
        for p in self.plan(&dims, None, None, Some(&sizes))? {
            out[p.axis] = Dim::from(p.output);
        }
        Ok(out)
    }
}

/// Refuses scales that give no size.
fn positive(scales: &[f64]) -> Result<(), OpError> {
    match scales.iter().find(|s| !s.is_finite() || **s <= 0.0) {
        Some(bad) => Err(OpError::shape(format!("scales holds {bad}, scales must be positive"))),
        None => Ok(()),
    }
}

/// `floor(d * s)`, exactly where `s` or `1 / s` is an integer.
fn scaled(d: &Dim, s: f64) -> Dim {
    let whole = |v: f64| (1.0..1e9).contains(&v) && v.fract() == 0.0;
    match d.as_const() {
        Some(c) => Dim::from((c as f64 * s).floor() as i64),
        None if whole(s) => d * &Dim::from(s as i64),
        None if whole(1.0 / s) => Dim::call(DimFn::FloorDiv, d, &Dim::from((1.0 / s) as i64)),
        None => Dim::unknown(),
    }
}

/// Applies the taps of one axis: `x` is `[outer, taps' input, inner]`.
fn apply(x: &[f64], taps: &[Taps], input: usize, inner: usize) -> Vec<f64> {
    let outer = x.len().checked_div(input * inner).unwrap_or(0);
    let mut y = vec![0f64; outer * taps.len() * inner];
    for o in 0..outer {
        for (p, t) in taps.iter().enumerate() {
            let to = &mut y[(o * taps.len() + p) * inner..][..inner];
            for (at, weight) in &t.weights {
                let from = &x[(o * input + at) * inner..][..inner];
                // The weight 1 copies, so that infinities and integers survive.
                if *weight == 1.0 && t.weights.len() == 1 {
                    to.copy_from_slice(from);
                } else {
                    to.iter_mut().zip(from).for_each(|(t, v)| *t += weight * v);
                }
            }
        }
    }
    y
}

/// Sets the elements at position `p` of the axis to `value`.
fn fill(y: &mut [f64], len: usize, inner: usize, p: usize, value: f64) {
    for block in y.chunks_mut((len * inner).max(1)) {
        if let Some(part) = block.get_mut(p * inner..(p + 1) * inner) {
            part.fill(value);
        }
    }
}

impl Op for Resize {
    op_basics!(Resize);

    fn has_zero_coefficients(&self) -> bool {
        true
    }

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let x = cx.tensor(0)?;
        if x.dtype == DType::String {
            return Err(OpError::ty("strings cannot be resized"));
        }
        self.interpolation()?;
        let shape = match &x.shape {
            Some(s) => Some(self.result(cx, s)?),
            None => None,
        };
        Ok(vec![Type::Tensor(TensorType { dtype: x.dtype, shape, sbp: None })])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let x = inputs.tensor(0)?;
        let floats = |i: usize| inputs.opt_tensor(i).filter(|t| !t.is_empty()).and_then(Tensor::to_f64s);
        let (roi, scales) = (floats(1), floats(2));
        let sizes = inputs.opt_tensor(3).filter(|t| !t.is_empty()).and_then(Tensor::to_i64s);
        let resized = self.taps(x.dims(), roi.as_deref(), scales.as_deref(), sizes.as_deref())?;
        let mut dims = x.dims().to_vec();
        resized.iter().for_each(|(axis, taps)| dims[*axis] = taps.len());
        let mut v = x.to_f64s().ok_or_else(|| OpError::eval("the input must be numbers"))?;
        let mut at = x.dims().to_vec();
        let mut outside = Vec::new();
        for (axis, taps) in &resized {
            let input = at[*axis];
            outside.extend(taps.iter().enumerate().filter(|(_, t)| t.weights.is_empty()).map(|(i, _)| (*axis, i)));
            at[*axis] = taps.len();
            let inner = at[*axis + 1..].iter().product();
            if taps.iter().enumerate().any(|(i, t)| t.weights != [(i, 1.0)]) || input != taps.len() {
                shape::count(&at)?;
                v = apply(&v, taps, input, inner);
            }
        }
        for (axis, p) in outside {
            fill(&mut v, dims[axis], dims[axis + 1..].iter().product(), p, self.extrapolation_value);
        }
        Ok(vec![Tensor::from_elements(x.dtype(), dims, Elements::Float(v))?.into()])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let Ok(Some(rank)) = cx.tensor(0).map(TensorType::rank) else {
            return Vec::new();
        };
        let Ok(axes) = self.axes(rank) else { return Vec::new() };
        let scales = cx.constant(2).and_then(|c| c.to_f64s()).unwrap_or_default();
        let crops = &*self.coordinate_transformation_mode == "tf_crop_and_resize";
        // An axis that always keeps its size: not listed, or scaled by one. `sizes` are global, wrong for a slice.
        let free = |axis: &usize| match axes.iter().position(|a| a == axis) {
            None => true,
            Some(i) => !crops && scales.get(i) == Some(&1.0),
        };
        let split = |axis: usize| {
            let mut operands = vec![Sbp::Broadcast; cx.operands.len()];
            operands[0] = Sbp::Split(axis as u8);
            SbpSignature::new(&operands, &[Sbp::Split(axis as u8)])
        };
        (0..rank).filter(free).map(split).collect()
    }

    /// `roi` and `scales`.
    fn operands_without_gradient(&self) -> &'static [usize] {
        &[1, 2]
    }

    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        self.derivative(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Resizes one axis.
    fn run(mode: &str, transform: &str, x: &[f32], scale: f32) -> Vec<f64> {
        let op = Resize { mode: mode.into(), coordinate_transformation_mode: transform.into(), ..Resize::default() };
        let x = Tensor::from_slice(&[x.len()], x).unwrap();
        let values = [x.into(), Value::None, Tensor::from_slice(&[1], &[scale]).unwrap().into()];
        let mut inputs = Inputs { values: &values, types: &[], region: &mut |_, _| Ok(vec![]) };
        match op.eval(&mut inputs).unwrap().remove(0) {
            Value::Tensor(t) => t.to_f64s().unwrap(),
            _ => panic!("no tensor"),
        }
    }

    #[test]
    fn resize_of_one_axis_matches_examples() {
        assert_eq!(run("linear", "half_pixel", &[1.0, 2.0], 2.0), [1.0, 1.25, 1.75, 2.0]);
        assert_eq!(run("nearest", "half_pixel", &[1.0, 2.0], 2.0), [1.0, 1.0, 2.0, 2.0]);
        assert_eq!(run("linear", "align_corners", &[1.0, 2.0], 2.0)[3], 2.0);
        assert_eq!(run("cubic", "asymmetric", &[1.0, 2.0, 3.0], 1.0), [1.0, 2.0, 3.0]);
        assert_eq!(run("nearest", "asymmetric", &[1.0, 2.0, 3.0, 4.0], 0.5), [1.0, 3.0]);
    }
    /// Between the border and an element half an extent away, every result is exactly the outermost element.
    #[test]
    fn results_beyond_the_border_are_the_outermost_element() {
        let third = 1.0f32 / 3.0;
        for mode in ["linear", "cubic"] {
            let y = run(mode, "half_pixel", &[third], 7.0);
            assert_eq!(y, [f64::from(third); 7], "{mode}");
        }
        let y = run("linear", "half_pixel", &[third, 2.0], 6.0);
        assert_eq!((&y[..2], &y[10..]), ([f64::from(third); 2].as_slice(), [2.0; 2].as_slice()));
    }
}
