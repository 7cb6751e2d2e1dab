//! `of.roi_align`.

mod expand;

use std::sync::Arc;

use of_ir::{DType, Dim, Elements, OpError, OpView, Rewriter, Sbp, SbpSignature, Tensor, TensorType, Type, ValueId};

use crate::nn::conv;
use crate::nn::layout::{self, Activation};
use crate::sample::Rng;
use crate::{Evaluated, Expanded, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// Pools each region of interest (`rois`: `[R, 4]`, corners x1, y1, x2, y2) of sample `batch[r]` of `x` into a
    /// grid of fixed size, sampling linearly. Source: ONNX RoiAlign; He et al., "Mask R-CNN" (2017).
    pub struct RoiAlign = "of.roi_align" [Primitive, onnx: "RoiAlign"] {
        operands: (x, rois, batch),
        results: (y),
        attrs: {
            /// `avg` or `max`.
            mode: Arc<str>,
            output_height: i64,
            output_width: i64,
            /// Samples a cell along each axis; 0 for as many as cover it.
            sampling_ratio: i64,
            spatial_scale: f64,
            /// `half_pixel` or `output_half_pixel`.
            coordinate_transformation_mode: Arc<str>,
            /// `x` and `y` are `[N, spatial…, C]`.
            channels_last: bool,
        }
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let rois = r.int(1, 3) as usize;
        let c = r.int(1, 3) as usize;
        let op = RoiAlign {
            mode: r.pick(&["avg", "max"]).into(),
            output_height: r.int(1, 3),
            output_width: r.int(1, 3),
            sampling_ratio: r.int(0, 2),
            spatial_scale: 1.0,
            coordinate_transformation_mode: r.pick(&["half_pixel", "output_half_pixel"]).into(),
            channels_last: r.int(0, 1) == 0,
        };
        let mut corners = Vec::new();
        for _ in 0..rois {
            let (x, y) = (r.float(0.0, 2.0), r.float(0.0, 2.0));
            corners.extend([x, y, x + r.float(1.0, 4.0), y + r.float(1.0, 4.0)]);
        }
        let boxes = Tensor::from_elements(DType::F32, vec![rois, 4], Elements::Float(corners)).ok()?;
        let batch = r.tensor(DType::I64, &[rois], 0.0, 2.0);
        let x = layout::dims(2, c, &[6, 7], op.channels_last);
        Some((vec![r.f32s(&x), boxes.into(), batch.into()], op))
    };
}

/// Most samples of one region: more means a region of absurd size.
const MAX_SAMPLES: f64 = 1e8;

/// Four elements of a plane and their weights; none for a sample outside.
type Corners = Option<[(usize, f64); 4]>;

/// The elements around a sample of an `h x w` plane. A sample up to one element outside is moved to the border.
fn corners(h: usize, w: usize, y: f64, x: f64) -> Corners {
    if !(-1.0..=h as f64).contains(&y) || !(-1.0..=w as f64).contains(&x) {
        return None;
    }
    let axis = |v: f64, n: usize| {
        let v = v.max(0.0);
        let low = v as usize;
        if low + 1 >= n { (n - 1, n - 1, 0.0) } else { (low, low + 1, v - low as f64) }
    };
    let ((y0, y1, ty), (x0, x1, tx)) = (axis(y, h), axis(x, w));
    Some([
        (y0 * w + x0, (1.0 - ty) * (1.0 - tx)),
        (y0 * w + x1, (1.0 - ty) * tx),
        (y1 * w + x0, ty * (1.0 - tx)),
        (y1 * w + x1, ty * tx),
    ])
}

impl RoiAlign {
    fn check(&self) -> Result<(), OpError> {
        if !matches!(&*self.mode, "avg" | "max") {
            return Err(OpError::attr(format!("mode '{}' is not known", self.mode)).hint("avg and max are"));
        }
        if !matches!(&*self.coordinate_transformation_mode, "half_pixel" | "output_half_pixel") {
            return Err(OpError::attr(format!(
                "coordinate_transformation_mode '{}' is not known",
                self.coordinate_transformation_mode
            )));
        }
        let side = 1..1i64 << 12;
        if !side.contains(&self.output_height)
            || !side.contains(&self.output_width)
            || !(0..1 << 16).contains(&self.sampling_ratio)
        {
            return Err(OpError::attr(
                "output_height and output_width must be positive and moderate, sampling_ratio not negative",
            ));
        }
        Ok(())
    }

    /// The samples of every cell of a region, cell by cell.
    fn samples(&self, roi: &[f64], h: usize, w: usize) -> Result<Vec<Vec<Corners>>, OpError> {
        let half = &*self.coordinate_transformation_mode == "half_pixel";
        let offset = if half { 0.5 } else { 0.0 };
        let p: Vec<f64> = roi.iter().map(|v| v * self.spatial_scale - offset).collect();
        let size = |from: f64, to: f64| if half { to - from } else { (to - from).max(1.0) };
        let cells = (self.output_height as f64, self.output_width as f64);
        let cell = (size(p[1], p[3]) / cells.0, size(p[0], p[2]) / cells.1);
        let number = |cell: f64| {
            if self.sampling_ratio > 0 { self.sampling_ratio as f64 } else { cell.ceil().max(0.0) }
        };
        let (nh, nw) = (number(cell.0), number(cell.1));
        let total = nh * nw * cells.0 * cells.1;
        if total.is_nan() || total > MAX_SAMPLES {
            return Err(OpError::eval(format!("region {roi:?} is too large")));
        }
        let mut out = Vec::new();
        for i in 0..self.output_height {
            for j in 0..self.output_width {
                let mut list = Vec::new();
                for a in 0..nh as usize {
                    for b in 0..nw as usize {
                        let y = p[1] + i as f64 * cell.0 + (a as f64 + 0.5) * cell.0 / nh;
                        let x = p[0] + j as f64 * cell.1 + (b as f64 + 0.5) * cell.1 / nw;
                        list.push(corners(h, w, y, x));
                    }
                }
                out.push(list);
            }
        }
        Ok(out)
    }
}

impl Op for RoiAlign {
    op_basics!(RoiAlign);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        self.check()?;
        let (x, rois, batch) = (cx.tensor(0)?, cx.tensor(1)?, cx.tensor(2)?);
        if !x.dtype.is_float() || !rois.dtype.is_float() || !batch.dtype.is_int() {
            return Err(OpError::ty("x and rois must be floating-point, batch must be integers"));
        }
        let ranks = [(x, 4), (rois, 2), (batch, 1)];
        if let Some((t, rank)) = ranks.iter().find(|(t, rank)| t.rank().is_some_and(|r| r != *rank)) {
            return Err(OpError::shape(format!("an operand has rank {}, it must have {rank}", t.rank().unwrap_or(0))));
        }
        let count = |t: &TensorType, axis: usize| t.shape.as_ref().map_or_else(Dim::unknown, |s| s[axis].clone());
        let r = if batch.shape.is_some() { count(batch, 0) } else { count(rois, 0) };
        let channels = count(x, layout::channel_axis(4, self.channels_last));
        let grid = [self.output_height.into(), self.output_width.into()];
        Ok(vec![Type::tensor(x.dtype, Activation::shape(&r, &channels, &grid, self.channels_last))])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let (x, rois) = (inputs.tensor(0)?, inputs.tensor(1)?);
        let batch = inputs.ints(2)?;
        let (&[n, a, b, c], Some(mut v), Some(boxes)) = (x.dims(), x.to_f64s(), rois.to_f64s()) else {
            return Err(OpError::eval("x must be [N, C, H, W] of numbers"));
        };
        let (c, h, w) = if self.channels_last { (c, a, b) } else { (a, b, c) };
        if self.channels_last {
            v = layout::transpose_samples(&v, n, h * w, c);
        }
        if boxes.len() != batch.len() * 4 || h * w == 0 {
            return Err(OpError::eval(format!("{} numbers do not make {} regions of 4", boxes.len(), batch.len())));
        }
        let grid = [self.output_height as usize, self.output_width as usize];
        let mut y = Vec::with_capacity(shape::count(&[batch.len(), c, grid[0], grid[1]])?);
        for (b, roi) in batch.iter().zip(boxes.chunks_exact(4)) {
            let b = shape::axis(*b, n).map_err(|_| OpError::eval(format!("there is no sample {b}")))?;
            let cells = self.samples(roi, h, w)?;
            for channel in 0..c {
                let plane = &v[(b * c + channel) * h * w..][..h * w];
                for list in &cells {
                    let parts = list.iter().map(|s| s.map(|s| s.map(|(at, weight)| plane[at] * weight)));
                    y.push(if &*self.mode == "avg" {
                        parts.map(|p| p.map_or(0.0, |p| p.iter().sum())).sum::<f64>() / list.len().max(1) as f64
                    } else {
                        // The largest weighted corner of all samples: what ONNX specifies by its implementations.
                        parts
                            .map(|p| p.map_or(0.0, |p| p.into_iter().fold(f64::NEG_INFINITY, f64::max)))
                            .reduce(f64::max)
                            .unwrap_or(0.0)
                    });
                }
            }
        }
        let (y, dims) = conv::finish(y, batch.len(), c, &grid, self.channels_last);
        Ok(vec![Tensor::from_elements(x.dtype(), dims, Elements::Float(y))?.into()])
    }

    fn expands(&self) -> bool {
        true
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        self.parts(rw, operands)
    }

    fn sbp(&self, _cx: &OpView<'_>) -> Vec<SbpSignature> {
        let (b, s) = (Sbp::Broadcast, Sbp::Split);
        let channels = s(layout::channel_axis(4, self.channels_last) as u8);
        vec![SbpSignature::new(&[b, s(0), s(0)], &[s(0)]), SbpSignature::new(&[channels, b, b], &[channels])]
    }
}
