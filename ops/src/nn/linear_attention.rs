//! `of.linear_attention`.

use std::sync::Arc;

use of_diag::Diagnostic;
use of_ir::{DType, Dim, OpError, OpView, Rewriter, TensorType, Type, ValueId};

use crate::build::{Build, diagnostic};
use crate::contraction::MatMul;
use crate::control::Scan;
use crate::elementwise::Exp;
use crate::movement::Concat;
use crate::sample::Rng;
use crate::structural::{ShapeOf, Yield};
use crate::{Expanded, Inferred, Op, Value, op, op_basics, shape};

op! {
    /// Linear attention with a matrix state per head: `o[t] = scale * q[t] S[t]` with `S[t] = D S[t-1] + k[t]^T u[t]`.
    ///
    /// By `update_rule`, `D` is 1 (`linear`, `delta`) or `exp(decay[t])` (`gated`, `gated_delta`), and `u[t]` is `v[t]`
    /// (`linear`, `gated`) or `beta[t] * (v[t] - k[t] D S[t-1])` (`delta`, `gated_delta`).
    /// `q` is `[N, T, heads * dk]`, `k` `[N, T, kv_heads * dk]`, `v` `[N, T, kv_heads * dv]`; neighbouring heads of `q`
    /// share one of `k`. `S` is `[N, kv_heads, dk, dv]`, `past` the first, zeros if left out, result 1 the last.
    /// `decay` is `[N, T, kv_heads]` or one a key element, `beta` `[N, T, kv_heads or 1]`. A scale of 0 stands for
    /// `1 / sqrt(dk)`. Source: ONNX LinearAttention.
    pub struct LinearAttention = "of.linear_attention" [Composite, onnx: "LinearAttention"] {
        operands: (q, k, v, past?, decay?, beta?),
        results: (y, present),
        attrs: {
            q_num_heads: i64,
            kv_num_heads: i64,
            scale: f64,
            update_rule: Arc<str>,
        }
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let (n, t) = (r.int(1, 2) as usize, r.int(1, 3) as usize);
        let (kv, group) = (r.int(1, 2), r.int(1, 2));
        let (dk, dv) = (r.int(1, 3) as usize, r.int(1, 3) as usize);
        let rule = r.pick(&["linear", "gated", "delta", "gated_delta"]);
        let heads = kv as usize;
        let small = |r: &mut Rng, width: usize| Value::from(r.tensor(DType::F32, &[n, t, width], -0.5, 0.5));
        let (q, k) = (small(&mut r, heads * group as usize * dk), small(&mut r, heads * dk));
        let mut operands = vec![q, k, small(&mut r, heads * dv)];
        operands.push(if r.int(0, 1) == 0 { Value::None } else { r.f32s(&[n, heads, dk, dv]) });
        let width = if r.int(0, 1) == 0 { heads } else { heads * dk };
        operands.push(if rule.starts_with("gated") { small(&mut r, width) } else { Value::None });
        operands.push(if rule.ends_with("delta") { small(&mut r, heads) } else { Value::None });
        let scale = r.pick(&[0.0, 0.7]);
        let op =
            LinearAttention { q_num_heads: kv * group, kv_num_heads: kv, scale, update_rule: rule.into() };
        Some((operands, op))
    };
}

impl LinearAttention {
    /// Whether the rule decays, and whether it corrects.
    fn rule(&self) -> Result<(bool, bool), OpError> {
        match &*self.update_rule {
            "linear" => Ok((false, false)),
            "gated" => Ok((true, false)),
            "delta" => Ok((false, true)),
            "gated_delta" => Ok((true, true)),
            other => {
                Err(OpError::attr(format!("update_rule '{other}' is not one of linear, gated, delta, gated_delta")))
            }
        }
    }
}

/// The size of one of `heads` in a packed axis.
fn size(packed: &Dim, heads: i64, what: &str) -> Result<Dim, OpError> {
    if packed.is_unknown() {
        return Ok(Dim::unknown());
    }
    let each = packed.exact_div(&Dim::from(heads));
    match (each, packed.as_const()) {
        (Some(d), _) => Ok(d),
        (None, Some(n)) => Err(OpError::shape(format!("{n} elements of {what} are not shared by {heads} heads"))),
        (None, None) => Ok(Dim::unknown()),
    }
}

impl Op for LinearAttention {
    op_basics!(LinearAttention);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let (heads, kv) = (self.q_num_heads, self.kv_num_heads);
        if kv < 1 || heads < 1 || heads % kv != 0 {
            return Err(OpError::attr(format!("{heads} heads of q must be a positive multiple of {kv} heads of k")));
        }
        let (gated, corrected) = self.rule()?;
        for (i, wanted, what) in [(4, gated, "decay"), (5, corrected, "beta")] {
            if cx.operand(i).is_some() != wanted {
                let verb = if wanted { "needs" } else { "has no" };
                return Err(OpError::ty(format!("update_rule '{}' {verb} {what}", self.update_rule)));
            }
        }
        let q = cx.tensor(0)?;
        if !q.dtype.is_float() {
            return Err(OpError::ty(format!("q must be floating-point, it is {}", q.dtype)));
        }
        let first = q.shape.as_ref();
        let packed = |i: usize, what: &str| -> Result<Vec<Dim>, OpError> {
            let t = cx.tensor(i)?;
            if t.dtype != q.dtype {
                return Err(OpError::ty(format!("{what} is {}, q is {}", t.dtype, q.dtype)));
            }
            match &t.shape {
                Some(s) if first.is_some_and(|q| q.iter().zip(s).take(2).any(|(a, b)| a.provably_ne(b))) => {
                    let both = (shape::show(s), shape::show(first.unwrap_or(s)));
                    Err(OpError::shape(format!("batch and time of {what} {} are not those of q {}", both.0, both.1)))
                }
                Some(s) if s.len() == 3 => Ok(s.clone()),
                Some(s) => Err(OpError::shape(format!("{what} must have rank 3, it is {}", shape::show(s)))),
                None => Ok(vec![Dim::unknown(); 3]),
            }
        };
        let (qs, ks, vs) = (packed(0, "q")?, packed(1, "k")?, packed(2, "v")?);
        let (dq, dk, dv) = (size(&qs[2], heads, "q")?, size(&ks[2], kv, "k")?, size(&vs[2], kv, "v")?);
        let dk = if dq.is_unknown() {
            dk
        } else if dq.provably_ne(&dk) {
            return Err(OpError::shape(format!("heads of q have {dq} elements, those of k {dk}")));
        } else {
            dq
        };
        let one = Dim::from(1i64);
        let count = Dim::from(kv);
        if gated {
            let d = &packed(4, "decay")?[2];
            if d.provably_ne(&count) && d.provably_ne(&ks[2]) {
                return Err(OpError::shape(format!("decay is one a head or one a key element, not {d}")));
            }
        }
        if corrected {
            let d = &packed(5, "beta")?[2];
            if d.provably_ne(&count) && d.provably_ne(&one) {
                return Err(OpError::shape(format!("beta is one or one a head, not {d}")));
            }
        }
        let state = vec![qs[0].clone(), count, dk, dv.clone()];
        let mut kept = q.dtype;
        if cx.operand(3).is_some() {
            let past = cx.tensor(3)?;
            kept = past.dtype;
            let differs = |s: &Vec<Dim>| s.len() != 4 || s.iter().zip(&state).any(|(a, b)| a.provably_ne(b));
            if let Some(s) = past.shape.as_ref().filter(|s| differs(s)) {
                let what = format!("the past must be {}, it is {}", shape::show(&state), shape::show(s));
                return Err(OpError::shape(what));
            }
            if !kept.is_float() {
                return Err(OpError::ty(format!("the past must be floating-point, it is {kept}")));
            }
        }
        let width = if dv.is_unknown() { Dim::unknown() } else { &dv * &Dim::from(heads) };
        let y = vec![qs[0].clone(), qs[1].clone(), width];
        Ok(vec![Type::tensor(q.dtype, y), Type::tensor(kept, state)])
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        let b = &mut Build::new(rw);
        let dtype = b.dtype(operands[0]);
        let wide = if dtype == DType::F64 { dtype } else { DType::F32 };
        let (kv, group) = (self.kv_num_heads, self.q_num_heads / self.kv_num_heads.max(1));
        let last = |b: &Build<'_, '_>, i: usize| {
            let d = operands.get(i).and_then(|v| b.shape(*v)?.last()?.as_const());
            d.ok_or_else(|| diagnostic(OpError::shape("the sizes of heads must be known to expand this op")))
        };
        let (dk, dv) = (last(b, 1)? / kv, last(b, 2)? / kv);
        // Each operand with the axes of the state behind batch and time.
        let shaped = |b: &mut Build<'_, '_>, i: usize, dims: [i64; 3]| {
            let x = b.cast(operands[i], wide)?;
            b.reshape(x, &[0, 0, dims[0], dims[1], dims[2]])
        };
        let mut steps = vec![shaped(b, 0, [kv, group, dk])?, shaped(b, 1, [kv, dk, 1])?, shaped(b, 2, [kv, 1, dv])?];
        let (gated, corrected) = self.rule().map_err(diagnostic)?;
        if gated {
            let each = if last(b, 4)? == kv { 1 } else { dk };
            steps.push(shaped(b, 4, [kv, each, 1])?);
        }
        if corrected {
            let heads = last(b, 5)?;
            steps.push(shaped(b, 5, [heads, 1, 1])?);
        }
        let (first, kept) = match b.given(operands, 3) {
            Some(past) => (b.cast(past, wide)?, b.dtype(past)),
            None => {
                let batch = b.op(ShapeOf { start: None, end: Some(1) }, &[operands[0]])?;
                let inner = b.ints(&[kv, dk, dv])?;
                let dims = b.op(Concat { axis: 0 }, &[batch, inner])?;
                let zero = b.number(0.0, steps[0])?;
                (b.expand(zero, dims)?, dtype)
            }
        };
        let (state, y) = if b.shape(operands[0]).and_then(|s| s.get(1)?.as_const()) == Some(1) {
            // One step, as in decoding, needs no loop.
            let now = steps.iter().map(|v| b.squeeze(*v, &[1])).collect::<Result<Vec<_>, _>>()?;
            let (state, y) = self.step(b, first, &now)?;
            (state, b.unsqueeze(y, &[1])?)
        } else {
            self.scan(b, first, &steps)?
        };
        let y = b.reshape(y, &[0, 0, self.q_num_heads * dv])?;
        Ok(vec![b.cast(y, dtype)?, b.cast(state, kept)?])
    }
}

impl LinearAttention {
    /// The next state and the output of one step, whose operands are those of [`LinearAttention::scan`] without time.
    fn step(&self, b: &mut Build<'_, '_>, state: ValueId, now: &[ValueId]) -> Result<(ValueId, ValueId), Diagnostic> {
        let (gated, corrected) = self.rule().map_err(diagnostic)?;
        let (q, k, v) = (now[0], now[1], now[2]);
        let mut state = state;
        if gated {
            let factor = b.op(Exp {}, &[now[3]])?;
            state = b.mul(state, factor)?;
        }
        let mut update = v;
        if corrected {
            let row = b.transpose(k, &[0, 1, 3, 2])?;
            let found = b.op(MatMul {}, &[row, state])?;
            let missing = b.sub(v, found)?;
            update = b.mul(now[now.len() - 1], missing)?;
        }
        let written = b.mul(k, update)?;
        let state = b.add(state, written)?;
        let y = b.op(MatMul {}, &[q, state])?;
        let size = b.shape(q).and_then(|s| s.last()?.as_const()).unwrap_or(1);
        let scale = if self.scale == 0.0 { 1.0 / (size as f64).sqrt() } else { self.scale };
        Ok((state, b.scale(y, scale)?))
    }

    /// The last state and all outputs. `steps` are `q[N, T, kv, group, dk]`, `k[N, T, kv, dk, 1]`,
    /// `v[N, T, kv, 1, dv]`, then decay and beta where the rule has them.
    fn scan(&self, b: &mut Build<'_, '_>, first: ValueId, steps: &[ValueId]) -> Result<(ValueId, ValueId), Diagnostic> {
        let slice = |v: &ValueId| {
            let mut t = b.rw.graph().ty(*v).as_tensor().cloned().unwrap_or(TensorType::unranked(DType::F32));
            if let Some(s) = t.shape.as_mut().filter(|s| s.len() > 1) {
                s.remove(1);
            }
            Type::Tensor(t)
        };
        let types: Vec<Type> = std::iter::once(b.rw.graph().ty(first).clone()).chain(steps.iter().map(slice)).collect();
        let (region, filled) = b.rw.region_with(|rw, region| {
            let args: Vec<ValueId> = types.into_iter().map(|ty| rw.add_arg(region, ty, None)).collect();
            let (state, y) = self.step(&mut Build::new(rw), args[0], &args[1..])?;
            rw.create(Yield {}, &[state, y])
        });
        filled?;
        let scan = Scan {
            num_scan_inputs: steps.len() as i64,
            scan_input_axes: Some(vec![1; steps.len()]),
            scan_input_directions: None,
            scan_output_axes: Some(vec![1]),
            scan_output_directions: None,
        };
        let operands: Vec<ValueId> = std::iter::once(first).chain(steps.iter().copied()).collect();
        let op = b.rw.create_with_regions(scan, &operands, &[region])?;
        let results = &b.rw.graph().op(op).results;
        Ok((results[0], results[1]))
    }
}
