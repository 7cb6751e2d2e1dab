//! The keys and values of positions that earlier runs attended to.

use std::panic::Location as Caller;

use of_diag::{Code, Diagnostic};
use of_ir::{DType, Dim, Elements, Tensor, TensorType, Type, ValueId};
use of_ops::elementwise::{Add, Lt, Mul, Select};
use of_ops::movement::{Expand, Reshape, TensorScatter, Transpose};
use of_ops::nn::Attention;
use of_ops::structural::{NoneValue, ShapeOf};
use of_ops::training::InitialValue;

use crate::Builder;
use crate::builder::location;

/// Keys and values of the positions so far, `[batch, heads, length, size]` each: `length` positions at most, of which
/// the first ones are there. They are variables of a session ([`KeyValueCache::variables`]), or any other values.
#[derive(Clone, Copy, Debug)]
pub struct KeyValueCache {
    /// The keys.
    pub keys: ValueId,
    /// The values.
    pub values: ValueId,
}

impl KeyValueCache {
    /// Two variables, `keys` and `values`, which are zeros in a new session: `[batch, heads, length, size]`.
    pub fn variables(b: &mut Builder, dtype: DType, batch: Dim, [heads, length, size]: [usize; 3]) -> KeyValueCache {
        let extents = [heads, length, size].map(|n| Dim::from(n as i64));
        let dims: Vec<Dim> = std::iter::once(batch).chain(extents).collect();
        let mut variable = |name| b.variable(name, Type::tensor(dtype, dims.clone()), Some(InitialValue::Zeros));
        KeyValueCache { keys: variable("keys"), values: variable("values") }
    }

    /// Makes the keys and values of `next` those of the next run.
    ///
    /// # Errors
    /// When these are no variables, or have a next value.
    #[track_caller]
    pub fn carry(self, b: &mut Builder, next: KeyValueCache) -> Result<(), Diagnostic> {
        b.set_next(self.keys, next.keys)?;
        b.set_next(self.values, next.values)
    }

    /// Causal attention of new tokens, whose queries, keys and values are `[batch, tokens, heads * size]` each, after
    /// `position` tokens that are in the cache: i64, from 0, one number for all samples or `[batch]`. A new token sees the
    /// cached ones before `position`, the new ones before it, and itself. There may be several times as many heads of
    /// queries as of keys. Returns what is attended to, `[batch, tokens, heads * size]`, and the cache with the new tokens.
    ///
    /// The number of tokens may be open, but must be a number when the function is compiled. A run fails where
    /// `position` is negative or `position + tokens` exceeds `length`. Where the cache is variables, a run writes the new tokens alone.
    ///
    /// Sources: Vaswani et al., "Attention Is All You Need" (2017); Shazeer, "Fast Transformer Decoding" (2019); ONNX
    /// TensorScatter.
    ///
    /// # Errors
    /// When operands have other types or shapes, or there are more tokens than the cache has positions.
    #[track_caller]
    pub fn attend(
        self,
        b: &mut Builder,
        [q, k, v]: [ValueId; 3],
        position: ValueId,
    ) -> Result<(ValueId, KeyValueCache), Diagnostic> {
        let Extents { heads, size, kv_heads } = self.check(b, [q, k, v], position)?;
        let at = for_each_sample(b, position, q)?;
        let keys = append(b, self.keys, k, [kv_heads, size], at)?;
        let values = append(b, self.values, v, [kv_heads, size], at)?;
        let tokens = b.op(ShapeOf { start: Some(1), end: Some(2) }, &[q])?;
        let lengths = b.op(Add {}, &[at, tokens])?;
        // Scaled queries instead of scaled keys, which are all of the cache.
        let dtype = b.ty(q).as_tensor().map_or(DType::F32, |t| t.dtype);
        let scale = Elements::Float(vec![1.0 / (size as f64).sqrt()]);
        let scale = Tensor::from_elements(dtype, Vec::new(), scale);
        let scale = scale.map_err(|e| wrong(Caller::caller(), e.to_string()))?;
        let scale = b.constant(scale)?;
        let q = b.op(Mul {}, &[q, scale])?;
        let attention = Attention {
            is_causal: true,
            q_num_heads: Some(heads),
            kv_num_heads: Some(kv_heads),
            scale: Some(1.0),
            ..Attention::default()
        };
        let none = b.op(NoneValue {}, &[])?;
        let y = b.op(attention, &[q, keys, values, none, none, none, lengths])?;
        Ok((y, KeyValueCache { keys, values }))
    }

    /// The extents of operands that fit.
    #[track_caller]
    fn check(self, b: &Builder, [q, k, v]: [ValueId; 3], position: ValueId) -> Result<Extents, Diagnostic> {
        let caller = Caller::caller();
        let tensor = |v: ValueId| b.ty(v).as_tensor().cloned().unwrap_or(TensorType::unranked(DType::F32));
        let keys = tensor(self.keys);
        let extents = |t: &TensorType| t.shape.iter().flatten().map(Dim::as_const).collect::<Vec<_>>();
        let &[_, Some(kv_heads), Some(length), Some(size)] = &extents(&keys)[..] else {
            let what = format!("a cache of keys is [batch, heads, length, size], not {}", b.ty(self.keys));
            return Err(wrong(caller, what).hint("all extents but that of the batch must be numbers"));
        };
        if b.ty(self.values) != b.ty(self.keys) {
            let (keys, values) = (b.ty(self.keys), b.ty(self.values));
            return Err(wrong(caller, format!("a cache has keys {keys} and values {values}"))
                .hint("keys and values of a cache have one type"));
        }
        let mut widths = [0; 3];
        for ((name, x), width) in [("queries", q), ("keys", k), ("values", v)].into_iter().zip(&mut widths) {
            let own = tensor(x);
            if own.dtype != keys.dtype {
                let what = format!("the {name} are {} and the cache is {}", own.dtype, keys.dtype);
                return Err(wrong(caller, what).hint("cast them, or make a cache of their element type"));
            }
            let &[_, tokens, Some(n)] = &extents(&own)[..] else {
                let what = format!("{name} are [batch, tokens, heads * size], not {}", b.ty(x));
                return Err(wrong(caller, what).hint("their last extent must be a number"));
            };
            if let Some(tokens) = tokens.filter(|tokens| *tokens > length) {
                let what = format!("{tokens} new tokens do not fit into a cache of {length} positions");
                return Err(wrong(caller, what).hint("make the cache longer, or run the tokens in parts"));
            }
            *width = n;
        }
        let ([queries, keys, values], wide) = (widths, kv_heads.saturating_mul(size));
        if keys != wide || values != keys || queries % size.max(1) != 0 {
            let what = format!("queries, keys and values are {queries}, {keys} and {values} wide");
            let hint = format!("the cache has {kv_heads} heads of {size}: keys and values are {wide} wide");
            return Err(wrong(caller, what).hint(hint));
        }
        let at = tensor(position);
        if at.dtype != DType::I64 || at.rank().is_none_or(|rank| rank > 1) {
            let what = format!("a position is one i64, or one for each sample, not {}", b.ty(position));
            return Err(wrong(caller, what).hint("it counts the tokens before the new ones"));
        }
        Ok(Extents { heads: queries / size.max(1), size, kv_heads })
    }
}

/// Heads of queries, the size of a head, and heads of keys.
struct Extents {
    heads: i64,
    size: i64,
    kv_heads: i64,
}

fn wrong(caller: &Caller<'_>, what: String) -> Diagnostic {
    Diagnostic::error(Code::TYPE, location(caller), what)
}

/// Added to by the number of tokens, still no position of any cache.
const NOWHERE: i64 = 1 << 62;

/// A position of all samples of `x` as `[batch]`. A negative one is a place that no cache has: a scatter would count it from the end.
#[track_caller]
fn for_each_sample(b: &mut Builder, position: ValueId, x: ValueId) -> Result<ValueId, Diagnostic> {
    let (zero, nowhere) = (b.constant(Tensor::scalar(0i64))?, b.constant(Tensor::scalar(NOWHERE))?);
    let is_negative = b.op(Lt {}, &[position, zero])?;
    let at = b.op(Select {}, &[is_negative, nowhere, position])?;
    if b.ty(position).as_tensor().and_then(TensorType::rank) == Some(1) {
        return Ok(at);
    }
    let batch = b.op(ShapeOf { start: Some(0), end: Some(1) }, &[x])?;
    b.op(Expand {}, &[at, batch])
}

/// `cache` with `new`, `[batch, tokens, heads * size]`, from the positions `at` on.
#[track_caller]
fn append(
    b: &mut Builder,
    cache: ValueId,
    new: ValueId,
    [heads, size]: [i64; 2],
    at: ValueId,
) -> Result<ValueId, Diagnostic> {
    let dims = b.constant(Tensor::from_i64s(&[0, 0, heads, size]))?;
    let new = b.op(Reshape { allowzero: false }, &[new, dims])?;
    let new = b.op(Transpose { perm: Some(vec![0, 2, 1, 3]) }, &[new])?;
    b.op(TensorScatter { axis: 2, mode: "linear".into() }, &[cache, new, at])
}
