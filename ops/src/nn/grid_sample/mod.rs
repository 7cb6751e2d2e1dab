//! `of.grid_sample`.

mod expand;

use std::sync::Arc;

use of_ir::{DType, Elements, OpError, OpView, Rewriter, Sbp, SbpSignature, Shape, Tensor, TensorType, Type, ValueId};

use crate::sample::Rng;
use crate::{Evaluated, Expanded, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// Samples `x` (`[N, C, spatial…]`) at the places that `grid` (`[N, out…, rank]`) names: coordinates in -1..1, the
    /// last spatial axis first. Source: ONNX GridSample.
    pub struct GridSample = "of.grid_sample" [Composite, onnx: "GridSample"] {
        operands: (x, grid),
        results: (y),
        attrs: {
            /// `linear`, `nearest` or `cubic`.
            mode: Arc<str>,
            /// The values outside the input: `zeros`, `border` or `reflection`.
            padding_mode: Arc<str>,
            /// Whether -1 and 1 are the centres of the corner elements rather than their outer edges.
            align_corners: bool,
        }
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let rank = r.int(1, 3) as usize;
        let (n, c) = (r.int(1, 2) as usize, r.int(1, 3) as usize);
        let x = [vec![n, c], r.dims(rank, 2, 5)].concat();
        let grid = [vec![n], r.dims(rank, 1, 4), vec![rank]].concat();
        let op = GridSample {
            mode: r.pick(&["linear", "nearest", "cubic"]).into(),
            padding_mode: r.pick(&["zeros", "border", "reflection"]).into(),
            align_corners: r.int(0, 1) == 0,
        };
        Some((vec![r.f32s(&x), r.tensor(DType::F32, &grid, -1.3, 1.3).into()], op))
    };
}

#[derive(Clone, Copy, PartialEq)]
enum Outside {
    Zeros,
    Border,
    Reflection,
}

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Linear,
    Nearest,
    Cubic,
}

/// Reflects `x` at the ends of `low..=high` as often as needed.
fn reflect(x: f64, low: f64, high: f64) -> f64 {
    let range = high - low;
    if range <= 0.0 || !x.is_finite() {
        return low;
    }
    let beyond = if x < low {
        low - x
    } else if x > high {
        x - high
    } else {
        return x;
    };
    let (reflections, rest) = ((beyond / range).floor(), beyond % range);
    let from_start = (x < low) == (reflections % 2.0 == 0.0);
    if from_start { low + rest } else { high - rest }
}

/// Weights of the elements around `x`: position (which may be outside the input) and factor.
fn taps(mode: Mode, x: f64) -> Vec<(f64, f64)> {
    let (base, t) = (x.floor(), x - x.floor());
    match mode {
        Mode::Nearest => vec![(x, 1.0)],
        Mode::Linear => vec![(base, 1.0 - t), (base + 1.0, t)],
        Mode::Cubic => {
            let near = |d: f64| near().iter().fold(0.0, |y, c| y * d + c);
            let far = |d: f64| far().iter().fold(0.0, |y, c| y * d + c);
            vec![(base - 1.0, far(1.0 + t)), (base, near(t)), (base + 1.0, near(1.0 - t)), (base + 2.0, far(2.0 - t))]
        }
    }
}

/// The parameter of cubic convolution. Source: Keys, "Cubic convolution interpolation" (1981), with the `a` of ONNX.
const A: f64 = -0.75;

/// Weight of an element up to 1 away, a polynomial of the distance; the coefficient of the highest power first.
fn near() -> [f64; 4] {
    [A + 2.0, -(A + 3.0), 0.0, 1.0]
}

/// Weight of an element between 1 and 2 away.
fn far() -> [f64; 4] {
    [A, -5.0 * A, 8.0 * A, -4.0 * A]
}

impl GridSample {
    fn modes(&self) -> Result<(Mode, Outside), OpError> {
        let mode = match &*self.mode {
            "linear" | "bilinear" => Mode::Linear,
            "nearest" => Mode::Nearest,
            "cubic" | "bicubic" => Mode::Cubic,
            other => return Err(OpError::attr(format!("mode '{other}' is not known"))),
        };
        let outside = match &*self.padding_mode {
            "zeros" => Outside::Zeros,
            "border" => Outside::Border,
            "reflection" => Outside::Reflection,
            other => return Err(OpError::attr(format!("padding_mode '{other}' is not known"))),
        };
        Ok((mode, outside))
    }

    /// Elements of one axis of length `d` that make up the value at normalised coordinate `v`.
    fn axis(&self, mode: Mode, outside: Outside, d: usize, v: f64) -> Vec<(usize, f64)> {
        let len = d as f64;
        let (low, high) = if self.align_corners { (0.0, len - 1.0) } else { (-0.5, len - 0.5) };
        let mut x = if self.align_corners { (v + 1.0) / 2.0 * (len - 1.0) } else { ((v + 1.0) * len - 1.0) / 2.0 };
        if mode == Mode::Nearest {
            x = x.round_ties_even();
        }
        // Of cubic convolution only the elements are moved, as PyTorch and onnxruntime do it.
        if mode != Mode::Cubic && !(low..=high).contains(&x) {
            x = match outside {
                Outside::Zeros => x,
                Outside::Border => x.clamp(0.0, len - 1.0),
                Outside::Reflection => reflect(x, low, high),
            };
        }
        let inside = |p: f64| match outside {
            Outside::Zeros => (0.0..len).contains(&p).then_some(p as usize),
            Outside::Border => Some(p.clamp(0.0, len - 1.0) as usize),
            Outside::Reflection => Some((reflect(p, low, high).max(0.0) as usize).min(d - 1)),
        };
        taps(mode, x).into_iter().filter_map(|(p, w)| Some((inside(p)?, w))).collect()
    }
}

fn result(x: &Shape, grid: &Shape) -> Result<Shape, OpError> {
    let rank = x.len().saturating_sub(2);
    if rank == 0 || grid.len() != x.len() || grid[grid.len() - 1].as_const().is_some_and(|c| c != rank as i64) {
        let (x, grid) = (shape::show(x), shape::show(grid));
        return Err(OpError::shape(format!("a grid of shape {grid} does not address positions of {x}")));
    }
    if x[0].provably_ne(&grid[0]) {
        return Err(OpError::shape(format!("the batch sizes {} and {} differ", x[0], grid[0])));
    }
    if x[2..].iter().any(|d| d.as_const() == Some(0)) {
        return Err(OpError::shape(format!("an image of {} has no elements to sample", shape::show(x))));
    }
    Ok([&x[..2], &grid[1..=rank]].concat())
}

impl Op for GridSample {
    op_basics!(GridSample);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let (x, grid) = (cx.tensor(0)?, cx.tensor(1)?);
        self.modes()?;
        if !x.dtype.is_float() && !x.dtype.is_int() || !grid.dtype.is_float() {
            return Err(OpError::ty("the input must be numbers and the grid floating-point"));
        }
        let shape = match (&x.shape, &grid.shape) {
            (Some(x), Some(grid)) => Some(result(x, grid)?),
            _ => None,
        };
        Ok(vec![Type::Tensor(TensorType { dtype: x.dtype, shape, sbp: None })])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let (x, grid) = (inputs.tensor(0)?, inputs.tensor(1)?);
        let (mode, outside) = self.modes()?;
        let all = |t: &Tensor| t.ty().shape.unwrap_or_default();
        let dims: Vec<usize> = crate::nn::window::fixed(&result(&all(x), &all(grid))?).unwrap_or_default();
        let number = || OpError::eval("operands must be numbers");
        let (v, places) = (x.to_f64s().ok_or_else(number)?, grid.to_f64s().ok_or_else(number)?);
        let spatial = &x.dims()[2..];
        let (area_in, area_out): (usize, usize) = (spatial.iter().product(), dims[2..].iter().product());
        let mut y = vec![0f64; shape::count(&dims)?];
        for n in 0..dims[0] {
            for place in 0..area_out {
                let at = &places[(n * area_out + place) * spatial.len()..][..spatial.len()];
                // The product of the axes' taps: flat position and weight.
                let mut points = vec![(0, 1.0)];
                for (a, d) in spatial.iter().enumerate() {
                    let along = self.axis(mode, outside, *d, at[spatial.len() - 1 - a]);
                    points =
                        points.iter().flat_map(|(p, w)| along.iter().map(move |(q, f)| (p * d + q, w * f))).collect();
                }
                for c in 0..dims[1] {
                    let plane = &v[(n * dims[1] + c) * area_in..][..area_in];
                    y[(n * dims[1] + c) * area_out + place] = points.iter().map(|(p, w)| plane[*p] * w).sum();
                }
            }
        }
        Ok(vec![Tensor::from_elements(x.dtype(), dims, Elements::Float(y))?.into()])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let Ok(Some(rank)) = cx.tensor(1).map(TensorType::rank) else {
            return Vec::new();
        };
        let s = Sbp::Split;
        let mut out =
            vec![SbpSignature::new(&[s(0), s(0)], &[s(0)]), SbpSignature::new(&[s(1), Sbp::Broadcast], &[s(1)])];
        // Axes of the grid are axes of the result.
        out.extend((1..rank.saturating_sub(1) as u8).map(|a| SbpSignature::new(&[Sbp::Broadcast, s(a)], &[s(a + 1)])));
        out
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        self.parts(rw, operands)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reflection_folds_back() {
        for (x, y) in [(0.0, 0.0), (-1.0, 1.0), (4.0, 2.0), (7.0, 1.0), (-5.0, 1.0)] {
            assert_eq!(reflect(x, 0.0, 3.0), y, "{x}");
        }
    }
}
