//! What recurrent layers share: shapes, layouts, directions, the loop over time.

use of_ir::{DType, Dim, Elements, OpError, OpView, Sbp, SbpSignature, Tensor, TensorType, Type};

use crate::sample::Rng;
use crate::{Evaluated, Inferred, Inputs, Value, estimate, shape};

/// Arithmetic: at every step each sample is multiplied with the weights of all gates and directions.
pub(super) fn flops(cx: &OpView<'_>) -> Option<f64> {
    let x = cx.ty(0)?.as_tensor()?.shape.as_ref()?;
    let samples: f64 = x.iter().take(2).map(estimate::extent).product();
    Some(2.0 * samples * (estimate::elements(cx.ty(1)?) + estimate::elements(cx.ty(2)?)))
}

/// The direction attribute and the layout attribute, checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Form {
    /// 1, or 2 for bidirectional.
    pub directions: usize,
    /// Whether the first direction runs from the end.
    pub reverse: bool,
    /// Batch is the first axis everywhere.
    pub batch_first: bool,
}

impl Form {
    pub fn new(direction: &str, layout: i64) -> Result<Form, OpError> {
        let (directions, reverse) = match direction {
            "forward" => (1, false),
            "reverse" => (1, true),
            "bidirectional" => (2, false),
            other => {
                return Err(OpError::attr(format!("direction '{other}' is not known"))
                    .hint("forward, reverse and bidirectional are"));
            }
        };
        if !(0..=1).contains(&layout) {
            return Err(OpError::attr(format!("layout is {layout}, it must be 0 or 1")));
        }
        Ok(Form { directions, reverse, batch_first: layout == 1 })
    }

    /// Types of the sequence result and of `states` final states.
    pub fn infer(self, cx: &OpView<'_>, gates: usize, states: usize) -> Inferred {
        self.infer_with(cx, [cx.tensor(1)?, cx.tensor(2)?], gates, states)
    }

    /// As [`Form::infer`], for weights of the given types, whatever the operands hold.
    pub fn infer_with(self, cx: &OpView<'_>, [w, r]: [&TensorType; 2], gates: usize, states: usize) -> Inferred {
        let x = cx.tensor(0)?;
        if !x.dtype.is_float() || w.dtype != x.dtype || r.dtype != x.dtype {
            return Err(OpError::ty("x, w and r must have one floating-point type"));
        }
        let axis = |t: &TensorType, i: usize| match &t.shape {
            Some(s) if s.len() != 3 => {
                Err(OpError::shape(format!("an operand has shape {}, it must have rank 3", shape::show(s))))
            }
            Some(s) => Ok(s[i].clone()),
            None => Ok(Dim::unknown()),
        };
        let (steps, batch) = if self.batch_first { (axis(x, 1)?, axis(x, 0)?) } else { (axis(x, 0)?, axis(x, 1)?) };
        let hidden = axis(r, 2)?;
        let d = Dim::from(self.directions);
        let rows = &hidden * &Dim::from(gates);
        let pairs = [
            ("the directions of w", axis(w, 0)?, d.clone()),
            ("the directions of r", axis(r, 0)?, d.clone()),
            ("the rows of w", axis(w, 1)?, rows.clone()),
            ("the rows of r", axis(r, 1)?, rows),
            ("the columns of w", axis(w, 2)?, axis(x, 2)?),
        ];
        if let Some((what, got, expected)) = pairs.iter().find(|(_, a, b)| a.provably_ne(b)) {
            return Err(OpError::shape(format!("{what} are {got}, they must be {expected}")));
        }
        let state = if self.batch_first {
            vec![batch.clone(), d.clone(), hidden.clone()]
        } else {
            vec![d.clone(), batch.clone(), hidden.clone()]
        };
        let two = Dim::from(2i64);
        let mut given = vec![(3, "b", vec![d.clone(), &(&hidden * &Dim::from(gates)) * &two])];
        given.push((4, "sequence_lens", vec![batch.clone()]));
        given.extend((0..states).map(|i| (5 + i, "an initial state", state.clone())));
        if states == 2 {
            given.push((7, "p", vec![d.clone(), &hidden * &Dim::from(3i64)]));
        }
        for (i, what, expected) in given.into_iter().filter(|(i, ..)| cx.operand(*i).is_some()) {
            let Some(s) = &cx.tensor(i)?.shape else { continue };
            if s.len() != expected.len() || s.iter().zip(&expected).any(|(a, b)| a.provably_ne(b)) {
                let (s, expected) = (shape::show(s), shape::show(&expected));
                return Err(OpError::shape(format!("{what} has shape {s}, it must have {expected}")));
            }
        }
        let (all, last) = if self.batch_first {
            (vec![batch.clone(), steps, d.clone(), hidden.clone()], vec![batch, d, hidden])
        } else {
            (vec![steps, d.clone(), batch.clone(), hidden.clone()], vec![d, batch, hidden])
        };
        let mut out = vec![Type::tensor(x.dtype, all)];
        out.extend((0..states).map(|_| Type::tensor(x.dtype, last.clone())));
        Ok(out)
    }

    /// Splits along the batch; `batched` are the operands after the weights: sequence lengths (axis 0) and states.
    pub fn sbp(self, cx: &OpView<'_>, lens: usize, initial: &[usize], states: usize) -> Vec<SbpSignature> {
        let s = |axis: usize| Sbp::Split(if self.batch_first { 0 } else { axis as u8 });
        let mut operands = vec![Sbp::Broadcast; cx.operands.len()];
        operands[0] = s(1);
        if cx.operand(lens).is_some() {
            operands[lens] = Sbp::Split(0);
        }
        for i in initial.iter().filter(|i| cx.operand(**i).is_some()) {
            operands[*i] = s(1);
        }
        let mut results = vec![s(2)];
        results.extend((0..states).map(|_| s(1)));
        vec![SbpSignature::new(&operands, &results)]
    }
}

/// Sizes of a recurrent layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Length of the longest sequence.
    pub steps: usize,
    /// Sequences.
    pub batch: usize,
    /// Elements of an input vector.
    pub input: usize,
    /// Elements of a state vector.
    pub hidden: usize,
}

/// One evaluation: operands as numbers.
pub(super) struct Sequence {
    pub form: Form,
    pub extent: Extent,
    dtype: DType,
    x: Vec<f64>,
    w: Vec<f64>,
    r: Vec<f64>,
    bias: Vec<f64>,
    lens: Vec<usize>,
}

/// The weights of one direction.
pub(super) struct Weights<'a> {
    /// `[gates * hidden, input]`.
    pub w: &'a [f64],
    /// `[gates * hidden, hidden]`.
    pub r: &'a [f64],
    /// Biases of the input, then of the recurrence; `gates * hidden` each.
    pub bias: (&'a [f64], &'a [f64]),
}

/// The elements of an optional operand, which must have the given number of them; zeros where it is left out.
pub(super) fn optional(inputs: &Inputs<'_>, i: usize, n: usize, what: &str) -> Result<Vec<f64>, OpError> {
    let Some(t) = inputs.opt_tensor(i) else {
        return Ok(vec![0.0; n]);
    };
    let v = t.to_f64s().ok_or_else(|| OpError::eval(format!("{what} must be numbers")))?;
    if v.len() == n { Ok(v) } else { Err(OpError::eval(format!("{what} has {} elements, it needs {n}", v.len()))) }
}

/// Adds the product of a matrix and a vector: `out[i] += m[i] . v`.
pub(super) fn multiply_add(out: &mut [f64], m: &[f64], v: &[f64]) {
    if !v.is_empty() {
        out.iter_mut()
            .zip(m.chunks_exact(v.len()))
            .for_each(|(o, row)| *o += row.iter().zip(v).map(|(a, b)| a * b).sum::<f64>());
    }
}

impl Sequence {
    /// Reads and checks operands 0 to 4: x, w, r, b, lengths.
    pub fn new(inputs: &Inputs<'_>, form: Form, gates: usize) -> Result<Sequence, OpError> {
        let (x, w, r) = (inputs.tensor(0)?, inputs.tensor(1)?, inputs.tensor(2)?);
        let (&[a, b, input], &[_, _, hidden]) = (x.dims(), r.dims()) else {
            return Err(OpError::eval("x and r must have rank 3"));
        };
        let (steps, batch) = if form.batch_first { (b, a) } else { (a, b) };
        let rows = gates.saturating_mul(hidden);
        if w.dims() != [form.directions, rows, input] || r.dims() != [form.directions, rows, hidden] {
            return Err(OpError::eval(format!("w {:?} and r {:?} do not fit x {:?}", w.dims(), r.dims(), x.dims())));
        }
        let lens = match inputs.opt_tensor(4) {
            None => vec![steps; batch],
            Some(_) => {
                let lens: Option<Vec<usize>> =
                    inputs.ints(4)?.iter().map(|l| usize::try_from(*l).ok().filter(|l| *l <= steps)).collect();
                lens.filter(|l| l.len() == batch).ok_or_else(|| {
                    OpError::eval(format!("there must be {batch} sequence lengths of at most {steps}"))
                })?
            }
        };
        let number = |t: &Tensor| t.to_f64s().ok_or_else(|| OpError::eval("operands must be numbers"));
        Ok(Sequence {
            form,
            extent: Extent { steps, batch, input, hidden },
            dtype: x.dtype(),
            x: number(x)?,
            w: number(w)?,
            r: number(r)?,
            bias: optional(inputs, 3, form.directions * 2 * rows, "the bias")?,
            lens,
        })
    }

    /// Position of a state vector among all.
    fn state(&self, d: usize, b: usize) -> usize {
        if self.form.batch_first { b * self.form.directions + d } else { d * self.extent.batch + b }
    }

    /// Runs `step(direction, weights, input, states)` over all sequences. `initial` holds one tensor of start values a
    /// state; the first state is what the result lists.
    pub fn run(
        &self,
        initial: &[Vec<f64>],
        mut step: impl FnMut(usize, &Weights<'_>, &[f64], &mut [Vec<f64>]),
    ) -> Evaluated {
        let Extent { steps, batch, input, hidden } = self.extent;
        let n = self.form.directions;
        let dims = if self.form.batch_first { vec![batch, steps, n, hidden] } else { vec![steps, n, batch, hidden] };
        let mut y = vec![0f64; shape::count(&dims)?];
        let mut last = vec![vec![0f64; n * batch * hidden]; initial.len()];
        for d in 0..n {
            let part = |v: &'_ [f64]| (v.len() / n * d)..(v.len() / n * (d + 1));
            let (w, r, bias) = (&self.w[part(&self.w)], &self.r[part(&self.r)], &self.bias[part(&self.bias)]);
            let weights = Weights { w, r, bias: bias.split_at(bias.len() / 2) };
            for b in 0..batch {
                let own = self.state(d, b) * hidden..(self.state(d, b) + 1) * hidden;
                let mut states: Vec<Vec<f64>> = initial.iter().map(|s| s[own.clone()].to_vec()).collect();
                for i in 0..self.lens[b] {
                    let t = if self.form.reverse || d == 1 { self.lens[b] - 1 - i } else { i };
                    let at = if self.form.batch_first { b * steps + t } else { t * batch + b };
                    step(d, &weights, &self.x[at * input..][..input], &mut states);
                    let to = if self.form.batch_first { (b * steps + t) * n + d } else { (t * n + d) * batch + b };
                    y[to * hidden..][..hidden].copy_from_slice(&states[0]);
                }
                last.iter_mut().zip(states).for_each(|(l, s)| l[own.clone()].copy_from_slice(&s));
            }
        }
        let states = if self.form.batch_first { vec![batch, n, hidden] } else { vec![n, batch, hidden] };
        let mut out = vec![Tensor::from_elements(self.dtype, dims, Elements::Float(y))?.into()];
        for s in last {
            out.push(Tensor::from_elements(self.dtype, states.clone(), Elements::Float(s))?.into());
        }
        Ok(out)
    }
}

/// Bounds the input of an activation.
pub(super) fn clip(x: f64, bound: Option<f64>) -> f64 {
    match bound {
        // min and max of NaN would yield the bounds.
        Some(c) if !x.is_nan() => x.max(-c.abs()).min(c.abs()),
        _ => x,
    }
}

/// Operands 0 to 5 for the list-wide tests, with direction and layout.
pub(super) fn sample(r: &mut Rng, gates: usize, states: usize) -> (Vec<Value>, &'static str, i64, [usize; 3]) {
    let direction = r.pick(&["forward", "reverse", "bidirectional"]);
    let d = if direction == "bidirectional" { 2 } else { 1 };
    let layout = r.int(0, 1);
    let (t, b, i, h) = (r.int(1, 4) as usize, r.int(1, 3) as usize, r.int(1, 3) as usize, r.int(1, 3) as usize);
    let state = if layout == 1 { vec![b, d, h] } else { vec![d, b, h] };
    let x = if layout == 1 { [b, t, i] } else { [t, b, i] };
    let mut out = vec![r.f32s(&x), r.f32s(&[d, gates * h, i]), r.f32s(&[d, gates * h, h])];
    out.push(if r.int(0, 1) == 0 { r.f32s(&[d, 2 * gates * h]) } else { Value::None });
    let lens = r.tensor(DType::I32, &[b], 0.0, t as f64 + 1.0);
    out.push(if r.int(0, 1) == 0 { lens.into() } else { Value::None });
    for _ in 0..states {
        out.push(if r.int(0, 1) == 0 { r.f32s(&state) } else { Value::None });
    }
    (out, direction, layout, [d, b, h])
}
