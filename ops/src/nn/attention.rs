//! `of.attention`.

use of_diag::Diagnostic;
use of_ir::{DType, Dim, DimFn, Elements, OpError, OpView, Rewriter, Shape, Tensor, TensorType, Type, ValueId};

use super::window::fixed;
use crate::build::{Build, BuildResult, diagnostic};
use crate::elementwise::{And, Eq, Ge, Le, Lt, Select, Tanh};
use crate::movement::Concat;
use crate::reduction::Softmax;
use crate::sample::Rng;
use crate::{Expanded, Inferred, Op, OpSpec, Value, op, op_basics, shape};

op! {
    /// Scaled dot-product attention: `y = softmax(cap(scale q kᵀ) + bias) v` for each head.
    ///
    /// Operands are `[N, heads, length, size]`, or `[N, length, heads * size]` with the numbers of heads as attributes;
    /// each head of `k` and `v` serves as many consecutive heads of `q` as there are more of them. `past_k` and `past_v`
    /// go before `k` and `v` along the length. The bias is the sum of `mask` (added, or minus infinity where it is
    /// false; minus infinity beyond its end) and of minus infinity for keys that `is_causal`, the windows, or
    /// `lengths` (valid keys of each sample) leave out; a query that is left without any key gives zeros. Queries
    /// follow the keys of the past, or are the last of the valid ones. Sources: Vaswani et al., "Attention Is All You
    /// Need" (2017); ONNX Attention.
    pub struct Attention = "of.attention" [Composite, onnx: "Attention"] {
        operands: (q, k, v, mask?, past_k?, past_v?, lengths?),
        results: (y, present_k?, present_v?, scores?),
        attrs: {
            is_causal: bool,
            /// Heads of `q`, for operands of rank 3.
            q_num_heads: Option<i64>,
            /// Heads of `k` and `v`, for operands of rank 3.
            kv_num_heads: Option<i64>,
            /// Absent for `1 / sqrt(size)`.
            scale: Option<f64>,
            /// `cap(x) = softcap tanh(x / softcap)`; 0 for none.
            softcap: f64,
            /// Element type of the softmax; absent for that of `q`.
            softmax_precision: Option<DType>,
            /// Keys to the left of a query that it sees; -1 for all.
            left_window_size: i64,
            /// Keys to the right of a query that it sees; -1 for all.
            right_window_size: i64,
            /// What `scores` are: 0 the products, 1 after the cap, 2 with the bias, 3 after the softmax.
            qk_matmul_output_mode: i64,
            /// Whether there are results 1 and 2.
            return_present: bool,
            /// Whether there is result 3, and then also 1 and 2.
            return_scores: bool,
        }
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let (n, kv, group, past) = (r.int(1, 2) as usize, r.int(1, 2) as usize, r.int(1, 2) as usize, r.int(0, 2) as usize);
        let (queries, keys, size, width) = (r.int(1, 3) as usize, r.int(1, 3) as usize, 4, 3);
        let flat = r.int(0, 1) == 0;
        let mut head = |h: usize, length: usize, size: usize| {
            if flat { r.f32s(&[n, length, h * size]) } else { r.f32s(&[n, h, length, size]) }
        };
        let mut operands = vec![head(kv * group, queries, size), head(kv, keys, size), head(kv, keys, width)];
        operands.push(if r.int(0, 1) == 0 { r.f32s(&[queries, past + keys]) } else { Value::None });
        if past > 0 {
            operands.push(r.f32s(&[n, kv, past, size]));
            operands.push(r.f32s(&[n, kv, past, width]));
        }
        let heads = |h: usize| flat.then_some(h as i64);
        let mode = r.int(0, 3);
        Some((operands, Attention {
            is_causal: r.int(0, 1) == 0,
            q_num_heads: heads(kv * group),
            kv_num_heads: heads(kv),
            scale: r.pick(&[None, Some(0.3)]),
            softcap: r.pick(&[0.0, 2.0]),
            softmax_precision: None,
            left_window_size: r.pick(&[-1, 1]),
            right_window_size: r.pick(&[-1, 1]),
            qk_matmul_output_mode: mode,
            return_present: true,
            // Minus infinity in the scores is right, and nothing to compare numbers with.
            return_scores: mode != 2,
        }))
    };
}

/// The defaults of ONNX, with one result.
impl Default for Attention {
    fn default() -> Attention {
        Attention {
            is_causal: false,
            q_num_heads: None,
            kv_num_heads: None,
            scale: None,
            softcap: 0.0,
            softmax_precision: None,
            left_window_size: -1,
            right_window_size: -1,
            qk_matmul_output_mode: 0,
            return_present: false,
            return_scores: false,
        }
    }
}

/// What a shape says about one of `q`, `k` and `v`.
struct Heads {
    n: Dim,
    heads: Dim,
    length: Dim,
    size: Dim,
}

impl Heads {
    /// From `[N, heads, length, size]`, or `[N, length, heads * size]`.
    fn of(s: &Shape, heads: Option<i64>, name: &str) -> Result<Heads, OpError> {
        match (s.as_slice(), heads) {
            ([n, heads, length, size], _) => {
                Ok(Heads { n: n.clone(), heads: heads.clone(), length: length.clone(), size: size.clone() })
            }
            ([n, length, width], Some(heads)) if heads > 0 => {
                let heads = Dim::from(heads);
                if Dim::call(DimFn::Mod, width, &heads).as_const().is_some_and(|r| r != 0) {
                    return Err(OpError::shape(format!(
                        "{name} is {width} wide, which is no multiple of {heads} heads"
                    )));
                }
                let size = Dim::call(DimFn::FloorDiv, width, &heads);
                Ok(Heads { n: n.clone(), heads, length: length.clone(), size })
            }
            ([_, _, _], _) => Err(OpError::attr("operands of rank 3 need q_num_heads and kv_num_heads")),
            _ => Err(OpError::shape(format!("{name} has shape {}, it must have rank 3 or 4", shape::show(s)))),
        }
    }
}

impl Op for Attention {
    op_basics!(Attention);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let (q, k, v) = (cx.tensor(0)?, cx.tensor(1)?, cx.tensor(2)?);
        if !q.dtype.is_float() || !k.dtype.is_float() || !v.dtype.is_float() {
            return Err(OpError::ty("q, k and v must be floating-point"));
        }
        if self.softmax_precision.is_some_and(|d| !d.is_float()) {
            return Err(OpError::attr("softmax_precision must be floating-point"));
        }
        if self.left_window_size < -1 || self.right_window_size < -1 {
            return Err(OpError::attr("window sizes must be -1 or not negative"));
        }
        if !(0..=3).contains(&self.qk_matmul_output_mode) {
            return Err(OpError::attr(format!(
                "qk_matmul_output_mode is {}, it must be in 0..=3",
                self.qk_matmul_output_mode
            )));
        }
        let given = |i: usize| cx.operand(i).is_some();
        if given(4) != given(5) {
            return Err(OpError::ty("past_k and past_v must be given together"));
        }
        if given(4) && given(6) {
            return Err(OpError::ty("a past and lengths of an external cache exclude each other"));
        }
        let typed = |dtype, shape| Type::Tensor(TensorType { dtype, shape, sbp: None });
        let (mut y, mut present_k, mut present_v, mut scores) = (None, None, None, None);
        if let (Some(qs), Some(ks), Some(vs)) = (&q.shape, &k.shape, &v.shape) {
            let a = Heads::of(qs, self.q_num_heads, "q")?;
            let (b, c) = (Heads::of(ks, self.kv_num_heads, "k")?, Heads::of(vs, self.kv_num_heads, "v")?);
            for (x, y, what) in [
                (&a.size, &b.size, "sizes of q and k"),
                (&b.length, &c.length, "lengths of k and v"),
                (&b.heads, &c.heads, "numbers of heads of k and v"),
                (&a.n, &b.n, "batches of q and k"),
                (&b.n, &c.n, "batches of k and v"),
            ] {
                if x.provably_ne(y) {
                    return Err(OpError::shape(format!("the {what} differ: {x} and {y}")));
                }
            }
            if let (Some(h), Some(kv)) = (a.heads.as_const(), b.heads.as_const())
                && (kv < 1 || h % kv != 0)
            {
                return Err(OpError::shape(format!("{h} heads of q are not a multiple of {kv} heads of k")));
            }
            let past = match cx.operand(4) {
                None => Some(Dim::from(0i64)),
                Some(_) => cx.tensor(4)?.shape.as_ref().and_then(|s| s.get(2)).cloned(),
            };
            let total = past.map_or_else(Dim::unknown, |p| &p + &b.length);
            for (i, size) in [(4, &b.size), (5, &c.size)] {
                if let Some(Type::Tensor(TensorType { shape: Some(s), .. })) = cx.ty(i) {
                    let length = cx.tensor(4)?.shape.as_ref().and_then(|s| s.get(2)).cloned();
                    let right = [b.n.clone(), b.heads.clone(), length.unwrap_or_else(Dim::unknown), size.clone()];
                    if s.len() != 4 || s.iter().zip(&right).any(|(x, y)| x.provably_ne(y)) {
                        let (s, right) = (shape::show(s), shape::show(&right.to_vec()));
                        return Err(OpError::shape(format!(
                            "the past of operand {i} has shape {s}, it must be {right}"
                        )));
                    }
                }
            }
            if let Some(Type::Tensor(TensorType { shape: Some(mask), .. })) = cx.ty(3) {
                // A mask may say nothing about the last keys, which are then hidden.
                let mut whole = vec![a.n.clone(), a.heads.clone(), a.length.clone(), total.clone()];
                if let (Some(own), Some(all)) = (mask.last().and_then(Dim::as_const), total.as_const())
                    && own < all
                {
                    whole[3] = Dim::from(own);
                }
                shape::within("the mask", mask, &whole)?;
            }
            if let Some(Type::Tensor(TensorType { shape: Some(n), .. })) = cx.ty(6)
                && (n.len() != 1 || n[0].provably_ne(&a.n))
            {
                return Err(OpError::shape(format!("the lengths have shape {}, the batch is {}", shape::show(n), a.n)));
            }
            y = Some(if qs.len() == 3 {
                vec![a.n.clone(), a.length.clone(), &a.heads * &c.size]
            } else {
                vec![a.n.clone(), a.heads.clone(), a.length.clone(), c.size.clone()]
            });
            present_k = Some(vec![b.n.clone(), b.heads.clone(), total.clone(), b.size]);
            present_v = Some(vec![b.n, b.heads, total.clone(), c.size]);
            scores = Some(vec![a.n, a.heads, a.length, total]);
        }
        let mut out = vec![typed(q.dtype, y)];
        if self.return_present || self.return_scores {
            out.extend([typed(k.dtype, present_k), typed(v.dtype, present_v)]);
        }
        if self.return_scores {
            out.push(typed(q.dtype, scores));
        }
        Ok(out)
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        let b = &mut Build::new(rw);
        let dtype = b.dtype(operands[0]);
        let flat = b.rank(operands[0])? == 3;
        let q = split_heads(b, operands[0], self.q_num_heads)?;
        let mut k = split_heads(b, operands[1], self.kv_num_heads)?;
        let mut v = split_heads(b, operands[2], self.kv_num_heads)?;
        let past = match (b.given(operands, 4), b.given(operands, 5)) {
            (Some(past_k), Some(past_v)) => {
                k = b.op(Concat { axis: 2 }, &[past_k, k])?;
                v = b.op(Concat { axis: 2 }, &[past_v, v])?;
                dims(b, past_k)?[2]
            }
            _ => 0,
        };
        let (present_k, present_v) = (k, v);
        let heads = dims(b, q)?[1];
        let (k, v) = (repeat_heads(b, k, heads)?, repeat_heads(b, v, heads)?);

        // The root of the scale on both sides keeps 16-bit products in range.
        let size = dims(b, q)?[3];
        let root = self.scale.unwrap_or(1.0 / (size as f64).sqrt()).sqrt();
        let (qs, ks) = (b.scale(q, root)?, b.scale(k, root)?);
        let kt = b.transpose(ks, &[0, 1, 3, 2])?;
        let products = b.op(crate::contraction::MatMul {}, &[qs, kt])?;
        let capped = if self.softcap == 0.0 {
            products
        } else {
            let small = b.scale(products, 1.0 / self.softcap)?;
            let tanh = b.op(Tanh {}, &[small])?;
            b.scale(tanh, self.softcap)?
        };
        let bias = self.bias(b, operands, &dims(b, products)?, past, dtype)?;
        let logits = match bias {
            Some(bias) => b.add(capped, bias)?,
            None => capped,
        };
        let precise = b.cast(logits, self.softmax_precision.unwrap_or(dtype))?;
        let mut weights = b.op(Softmax { axis: -1 }, &[precise])?;
        if let Some(bias) = bias {
            // A query without any key: its softmax is 0 / 0.
            let most = b.max(bias, &[3], true)?;
            let none = b.number(f64::NEG_INFINITY, most)?;
            let empty = b.op(Eq {}, &[most, none])?;
            let zero = b.number(0.0, weights)?;
            weights = b.op(Select {}, &[empty, zero, weights])?;
        }
        let weights = b.cast(weights, dtype)?;
        let y = b.op(crate::contraction::MatMul {}, &[weights, v])?;
        let y = if flat { merge_heads(b, y)? } else { y };
        let mut out = vec![y];
        if self.return_present || self.return_scores {
            out.extend([present_k, present_v]);
        }
        if self.return_scores {
            out.push([products, capped, logits, weights][self.qk_matmul_output_mode as usize]);
        }
        Ok(out)
    }
}

impl Attention {
    /// What is added to the products, of rank 4 and `[N or 1, heads or 1, queries or 1, keys]`.
    fn bias(
        &self,
        b: &mut Build<'_, '_>,
        operands: &[ValueId],
        products: &[usize],
        past: usize,
        dtype: DType,
    ) -> Result<Option<ValueId>, Diagnostic> {
        let (queries, keys) = (products[2], products[3]);
        let mut bias = None;
        if let Some(mask) = b.given(operands, 3) {
            bias = Some(additive(b, mask, keys, dtype)?);
        }
        let lengths = b.given(operands, 6);
        let key = b.constant(counting(0, keys, &[1, 1, 1, keys]))?;
        let mut visible = Vec::new();
        let (left, right) = (self.left_window_size, self.right_window_size);
        if self.is_causal || left >= 0 || right >= 0 {
            // The position of each query in the key sequence.
            let position = match lengths {
                None => b.constant(counting(past, queries, &[1, 1, queries, 1]))?,
                Some(n) => {
                    let first = column(b, n)?;
                    let first = b.add_number(first, -(queries as f64))?;
                    let index = b.constant(counting(0, queries, &[1, 1, queries, 1]))?;
                    b.add(first, index)?
                }
            };
            if self.is_causal {
                visible.push(b.op(Le {}, &[key, position])?);
            }
            if left >= 0 {
                let first = b.add_number(position, -(left as f64))?;
                visible.push(b.op(Ge {}, &[key, first])?);
            }
            if right >= 0 {
                let last = b.add_number(position, right as f64)?;
                visible.push(b.op(Le {}, &[key, last])?);
            }
        }
        if let Some(n) = lengths {
            let n = column(b, n)?;
            visible.push(b.op(Lt {}, &[key, n])?);
        }
        let mut all = None;
        for condition in visible {
            all = Some(match all {
                None => condition,
                Some(before) => b.op(And {}, &[before, condition])?,
            });
        }
        if let Some(all) = all {
            let masked = infinity_unless(b, all, dtype)?;
            bias = Some(match bias {
                None => masked,
                Some(mask) => b.add(mask, masked)?,
            });
        }
        Ok(bias)
    }
}

/// The dimensions of a value, which the expansion must know.
fn dims(b: &Build<'_, '_>, v: ValueId) -> Result<Vec<usize>, Diagnostic> {
    let unknown = || diagnostic(OpError::shape(format!("'{}' is expanded for known dimensions", Attention::NAME)));
    b.shape(v).and_then(|s| fixed(&s)).ok_or_else(unknown)
}

/// `[N, length, heads * size]` as `[N, heads, length, size]`.
fn split_heads(b: &mut Build<'_, '_>, x: ValueId, heads: Option<i64>) -> BuildResult {
    let d = dims(b, x)?;
    let ([n, length, width], Some(heads)) = (d.as_slice(), heads) else { return Ok(x) };
    let size = *width as i64 / heads.max(1);
    let wide = b.reshape(x, &[*n as i64, *length as i64, heads, size])?;
    b.transpose(wide, &[0, 2, 1, 3])
}

/// The way back.
fn merge_heads(b: &mut Build<'_, '_>, y: ValueId) -> BuildResult {
    let d = dims(b, y)?;
    let y = b.transpose(y, &[0, 2, 1, 3])?;
    b.reshape(y, &[d[0] as i64, d[2] as i64, (d[1] * d[3]) as i64])
}

/// Each head as often as `heads` needs.
fn repeat_heads(b: &mut Build<'_, '_>, x: ValueId, heads: usize) -> BuildResult {
    let d = dims(b, x)?;
    if d[1] == heads || d[1] == 0 {
        return Ok(x);
    }
    let column = b.unsqueeze(x, &[2])?;
    let to = b.ints(&[d[0] as i64, d[1] as i64, (heads / d[1]) as i64, d[2] as i64, d[3] as i64])?;
    let wide = b.expand(column, to)?;
    b.reshape(wide, &[d[0] as i64, heads as i64, d[2] as i64, d[3] as i64])
}

/// A mask of any rank up to 4 as a bias of rank 4 over all `keys`.
fn additive(b: &mut Build<'_, '_>, mask: ValueId, keys: usize, dtype: DType) -> BuildResult {
    let mut bias = if b.dtype(mask) == DType::Bool { infinity_unless(b, mask, dtype)? } else { b.cast(mask, dtype)? };
    let mut d = dims(b, bias)?;
    if d.len() > 4 || d.is_empty() {
        return Err(diagnostic(OpError::shape("a mask must have rank 1 to 4")));
    }
    let missing = 4 - d.len();
    if missing > 0 {
        bias = b.unsqueeze(bias, &(0..missing).collect::<Vec<_>>())?;
        d = dims(b, bias)?;
    }
    // A single column is broadcast to all keys; a shorter mask ends before them.
    if d[3] == 1 && keys > 1 {
        let to = b.ints(&[d[0] as i64, d[1] as i64, d[2] as i64, keys as i64])?;
        return b.expand(bias, to);
    }
    if d[3] < keys {
        let rest = [d[0], d[1], d[2], keys - d[3]];
        let values = Elements::Float(vec![f64::NEG_INFINITY; rest.iter().product()]);
        let rest = Tensor::from_elements(dtype, rest.to_vec(), values).map_err(|e| diagnostic(e.into()))?;
        let rest = b.constant(rest)?;
        bias = b.op(Concat { axis: 3 }, &[bias, rest])?;
    }
    Ok(bias)
}

/// 0 where it holds, minus infinity elsewhere.
fn infinity_unless(b: &mut Build<'_, '_>, condition: ValueId, dtype: DType) -> BuildResult {
    let number = |x: f64| Tensor::from_elements(dtype, vec![], Elements::Float(vec![x]));
    let zero = b.constant(number(0.0).map_err(|e| diagnostic(e.into()))?)?;
    let infinity = b.constant(number(f64::NEG_INFINITY).map_err(|e| diagnostic(e.into()))?)?;
    b.op(Select {}, &[condition, zero, infinity])
}

/// `first, first + 1, …` in i64.
fn counting(first: usize, n: usize, dims: &[usize]) -> Tensor {
    let values: Vec<i64> = (first..first + n).map(|i| i as i64).collect();
    Tensor::from_i64s(&values).reshaped(dims.to_vec()).unwrap_or_else(|_| Tensor::from_i64s(&values))
}

/// One number a sample, as `[N, 1, 1, 1]`.
fn column(b: &mut Build<'_, '_>, x: ValueId) -> BuildResult {
    let x = b.cast(x, DType::I64)?;
    b.reshape(x, &[-1, 1, 1, 1])
}
