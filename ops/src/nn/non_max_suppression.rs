//! `of.non_max_suppression`.

use std::cmp::Ordering;

use of_ir::{DType, Dim, Elements, OpError, OpView, Tensor, Type};

use crate::sample::Rng;
use crate::{Evaluated, Inferred, Inputs, Op, Value, op, op_basics};

op! {
    /// Drops the boxes of each class that overlap a box of a higher score; rows of the result are sample, class, box.
    ///
    /// `boxes` is `[N, B, 4]`, `scores` is `[N, C, B]`. In the order of falling scores, a box is taken unless its
    /// intersection over union with one taken before is above `iou_threshold`, at most `max_per_class` a class (none
    /// without it). Boxes whose score is not above `score_threshold` do not take part. Of equal scores the box that
    /// comes first is the better one. Source: ONNX NonMaxSuppression; Neubeck, Van Gool, "Efficient Non-Maximum
    /// Suppression" (2006).
    pub struct NonMaxSuppression = "of.non_max_suppression" [Primitive, onnx: "NonMaxSuppression"] {
        operands: (boxes, scores, max_per_class?, iou_threshold?, score_threshold?),
        results: (selected),
        attrs: {
            /// Whether a box is its centre, width and height; otherwise two opposite corners, y before x.
            center_point_box: bool,
        }
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let (n, c, b) = (r.int(1, 2) as usize, r.int(1, 2) as usize, r.int(1, 6) as usize);
        let operands = vec![
            r.tensor(DType::F32, &[n, b, 4], 0.0, 4.0).into(),
            r.tensor(DType::F32, &[n, c, b], 0.0, 1.0).into(),
            Tensor::scalar(r.int(0, 4)).into(),
            Tensor::scalar(r.float(0.0, 1.0) as f32).into(),
            if r.int(0, 1) == 0 { Value::None } else { Tensor::scalar(0.5f32).into() },
        ];
        Some((operands, NonMaxSuppression { center_point_box: r.int(0, 1) == 0 }))
    };
}

/// Lower and upper corner and area; of elements in f32, so that thresholds decide as in other implementations.
#[derive(Clone, Copy)]
struct Rect {
    low: [f32; 2],
    high: [f32; 2],
    area: f32,
}

impl Rect {
    fn new(b: &[f32], centre: bool) -> Rect {
        let axis = |i: usize| {
            if centre {
                (b[i] - b[i + 2] / 2.0, b[i] + b[i + 2] / 2.0)
            } else {
                (b[i].min(b[i + 2]), b[i].max(b[i + 2]))
            }
        };
        let (a, b) = (axis(0), axis(1));
        Rect { low: [a.0, b.0], high: [a.1, b.1], area: (a.1 - a.0) * (b.1 - b.0) }
    }

    /// Whether intersection over union is above `threshold`; a box without area overlaps none.
    fn overlaps(&self, other: &Rect, threshold: f32) -> bool {
        let side = |i: usize| (self.high[i].min(other.high[i]) - self.low[i].max(other.low[i])).max(0.0);
        let shared = side(0) * side(1);
        let union = self.area + other.area - shared;
        shared > 0.0 && self.area > 0.0 && other.area > 0.0 && union > 0.0 && shared / union > threshold
    }
}

/// Lines of cells along one axis, so that a box is compared with those near it alone: no box is longer than a cell, so
/// what it overlaps begins in its own cell or in a neighbouring one. Detectors that move each class to a place of its own, to
/// treat all of them at once, have thousands of boxes that stay.
struct Cells {
    axis: usize,
    start: f64,
    size: f64,
    count: usize,
}

impl Cells {
    /// Along the axis that has more cells; one cell where there are numbers that are not finite.
    fn new(rects: &[Rect]) -> Cells {
        let along = |axis: usize| {
            let low = |r: &Rect| f64::from(r.low[axis]);
            let start = rects.iter().map(low).fold(f64::INFINITY, f64::min);
            let end = rects.iter().map(low).fold(f64::NEG_INFINITY, f64::max);
            let longest = rects.iter().map(|r| f64::from(r.high[axis]) - low(r)).fold(0.0, f64::max);
            // Longer by more than rounding errors.
            let size = longest.max((end - start) / rects.len() as f64) * (1.0 + 1e-6);
            Cells { axis, start, size, count: ((end - start) / size) as usize + 1 }
        };
        let finite = rects.iter().all(|r| r.low.iter().chain(&r.high).all(|x| x.is_finite()));
        let best = (0..2).filter(|_| finite).map(along).filter(|c| c.size > 0.0).max_by_key(|c| c.count);
        best.unwrap_or(Cells { axis: 0, start: 0.0, size: f64::INFINITY, count: 1 })
    }

    /// Where a box begins.
    fn of(&self, r: &Rect) -> usize {
        (((f64::from(r.low[self.axis]) - self.start) / self.size) as usize).min(self.count - 1)
    }
}

/// The one number of an optional operand.
fn number(inputs: &Inputs<'_>, i: usize) -> Result<Option<f32>, OpError> {
    let Some(t) = inputs.opt_tensor(i) else { return Ok(None) };
    match t.to_f64s().as_deref() {
        Some([x]) => Ok(Some(*x as f32)),
        _ => Err(OpError::eval(format!("operand {i} must be one number"))),
    }
}

impl Op for NonMaxSuppression {
    op_basics!(NonMaxSuppression);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let (boxes, scores) = (cx.tensor(0)?, cx.tensor(1)?);
        if boxes.dtype != DType::F32 || scores.dtype != DType::F32 {
            return Err(OpError::ty(format!(
                "boxes and scores must be f32, they are {} and {}",
                boxes.dtype, scores.dtype
            )));
        }
        if [boxes, scores].iter().any(|t| t.rank().is_some_and(|r| r != 3)) {
            return Err(OpError::shape("boxes must be [N, B, 4] and scores [N, C, B]"));
        }
        if let (Some(b), Some(s)) = (&boxes.shape, &scores.shape)
            && (b[0].provably_ne(&s[0]) || b[1].provably_ne(&s[2]) || b[2].provably_ne(&Dim::from(4i64)))
        {
            let (b, s) = (crate::shape::show(b), crate::shape::show(s));
            return Err(OpError::shape(format!("boxes {b} and scores {s} must be [N, B, 4] and [N, C, B]")));
        }
        for i in 2..cx.operands.len() {
            if let Some(Type::Tensor(t)) = cx.ty(i) {
                let fits = if i == 2 { t.dtype.is_int() } else { t.dtype.is_float() };
                if !fits || t.fixed_dims().is_some_and(|d| d.iter().any(|n| *n != 1)) {
                    return Err(OpError::ty(format!(
                        "operand {i} must be one number, it is {}",
                        Type::Tensor(t.clone())
                    )));
                }
            }
        }
        Ok(vec![Type::tensor(DType::I64, vec![Dim::unknown(), 3i64.into()])])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let (boxes, scores) = (inputs.tensor(0)?, inputs.tensor(1)?);
        let most = match inputs.opt_tensor(2) {
            None => 0,
            Some(_) => usize::try_from(inputs.ints(2)?.first().copied().unwrap_or(0)).unwrap_or(0),
        };
        let (iou, least) = (number(inputs, 3)?.unwrap_or(0.0), number(inputs, 4)?);
        let (&[n, b, 4], &[m, classes, k]) = (boxes.dims(), scores.dims()) else {
            return Err(OpError::eval("boxes must be [N, B, 4] and scores [N, C, B]"));
        };
        let (Some(corners), Some(scores)) = (boxes.as_slice::<f32>(), scores.as_slice::<f32>()) else {
            return Err(OpError::eval("boxes and scores must be f32"));
        };
        if (n, b) != (m, k) {
            return Err(OpError::eval(format!("there are boxes for {n} x {b} and scores for {m} x {k}")));
        }
        let mut rows: Vec<i128> = Vec::new();
        for sample in 0..n {
            let rects: Vec<Rect> = corners[sample * b * 4..][..b * 4]
                .chunks_exact(4)
                .map(|c| Rect::new(c, self.center_point_box))
                .collect();
            let cells = Cells::new(&rects);
            for class in 0..classes {
                let own = &scores[(sample * classes + class) * b..][..b];
                let mut order: Vec<usize> = (0..b).filter(|i| least.is_none_or(|s| own[*i] > s)).collect();
                // A stable sort keeps the first of equal scores first.
                order.sort_by(|i, j| falling(own[*i], own[*j]));
                let (mut taken, mut count) = (vec![Vec::new(); cells.count], 0);
                for i in order {
                    if count >= most {
                        break;
                    }
                    let (rect, cell) = (&rects[i], cells.of(&rects[i]));
                    let mut near = taken[cell.saturating_sub(1)..taken.len().min(cell + 2)].iter().flatten();
                    if !near.any(|other| rect.overlaps(other, iou)) {
                        taken[cell].push(*rect);
                        count += 1;
                        rows.extend([sample as i128, class as i128, i as i128]);
                    }
                }
            }
        }
        Ok(vec![Tensor::from_elements(DType::I64, vec![rows.len() / 3, 3], Elements::Int(rows))?.into()])
    }
}

/// The order of falling scores; NaN of either sign comes first.
fn falling(a: f32, b: f32) -> Ordering {
    b.partial_cmp(&a).unwrap_or_else(|| b.is_nan().cmp(&a.is_nan()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nms_order_ignores_the_signs_of_nan_and_zero() {
        let scores = [0.0, -f32::NAN, 1.0, -0.0, f32::NAN];
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|i, j| falling(scores[*i], scores[*j]));
        assert_eq!(order, [1, 4, 2, 0, 3]);
    }

    /// What the definition says, box by box.
    fn plain(rects: &[Rect], order: &[usize], threshold: f32) -> Vec<i64> {
        let mut taken: Vec<usize> = Vec::new();
        for i in order {
            if !taken.iter().any(|j| rects[*i].overlaps(&rects[*j], threshold)) {
                taken.push(*i);
            }
        }
        taken.into_iter().map(|i| i as i64).collect()
    }

    #[test]
    fn nms_grid_search_equals_definition() {
        for seed in 0..300 {
            let mut r = Rng::new(seed);
            let b = r.int(1, 60) as usize;
            // From boxes that all overlap to boxes that hardly do, also along one axis alone, and some that are no boxes.
            let (x, y) = ([1.0, 10.0, 300.0][seed as usize % 3], [1.0, 40.0][seed as usize % 2]);
            let mut corners = Vec::new();
            for _ in 0..b {
                let (left, top) = (r.float(-x, x) as f32, r.float(-y, y) as f32);
                corners.extend([top, left, top + r.float(0.0, 2.0) as f32, left + r.float(0.0, 2.0) as f32]);
            }
            if seed % 7 == 0 {
                corners[r.int(0, 4 * b as i64 - 1) as usize] = [f32::NAN, f32::INFINITY, 1e30][seed as usize % 3];
            }
            let scores: Vec<f32> = (0..b).map(|_| r.int(0, 9) as f32).collect();
            let mut order: Vec<usize> = (0..b).collect();
            order.sort_by(|i, j| falling(scores[*i], scores[*j]));
            let threshold = r.float(0.0, 0.7) as f32;
            let center_point_box = seed % 5 == 0;
            let rects: Vec<Rect> = corners.chunks_exact(4).map(|c| Rect::new(c, center_point_box)).collect();
            let operands: Vec<Value> = vec![
                Tensor::from_slice(&[1, b, 4], &corners).unwrap().into(),
                Tensor::from_slice(&[1, 1, b], &scores).unwrap().into(),
                Tensor::scalar(b as i64).into(),
                Tensor::scalar(threshold).into(),
                Value::None,
            ];
            let got = NonMaxSuppression { center_point_box }
                .eval(&mut Inputs { values: &operands, types: &[], region: &mut |_, _| unreachable!() })
                .unwrap();
            let Value::Tensor(got) = &got[0] else { panic!("{got:?}") };
            let got = got.to_i64s().unwrap();
            let chosen: Vec<i64> = got.chunks(3).map(|row| row[2]).collect();
            assert_eq!(chosen, plain(&rects, &order, threshold), "seed {seed}");
        }
    }
}
