//! Attention between positions.

use std::panic::Location as Caller;

use of_diag::{Code, Diagnostic};
use of_ir::{DType, Dim, TensorError, ValueId};

use super::Layer;
use super::cache::KeyValueCache;
use super::init::Init;
use super::linear::Linear;
use crate::Builder;
use crate::builder::location;

/// Multi-head attention of `[batch, positions, size]`. Source: Vaswani et al., "Attention Is All You Need" (2017).
#[derive(Clone, Debug)]
pub struct MultiHeadAttention {
    /// The projections of queries, keys and values, and that of the result.
    pub projections: [Linear; 4],
    /// Number of heads.
    pub heads: i64,
    /// Whether a position sees those before it alone.
    pub is_causal: bool,
}

/// Names of the projections.
const NAMES: [&str; 4] = ["q_proj", "k_proj", "v_proj", "out_proj"];

impl MultiHeadAttention {
    /// Projections with first values as those of [`Linear`].
    ///
    /// # Errors
    /// When the weights would be larger than memory can address.
    pub fn new(init: &mut Init, size: usize, heads: usize) -> Result<MultiHeadAttention, TensorError> {
        let mut linear = || Linear::new(init, size, size);
        let projections = [linear()?, linear()?, linear()?, linear()?];
        Ok(MultiHeadAttention { projections, heads: heads as i64, is_causal: false })
    }

    /// In which a position sees those before it alone.
    pub fn causal(self) -> MultiHeadAttention {
        MultiHeadAttention { is_causal: true, ..self }
    }

    /// The attention of queries `x` to the positions of `y`. A mask `[…, queries, keys]` of bool says which are seen; one of floats is
    /// added to the scores.
    ///
    /// # Errors
    /// When operands have types that do not fit.
    #[track_caller]
    pub fn attend(
        &self,
        b: &mut Builder,
        x: ValueId,
        y: ValueId,
        mask: Option<ValueId>,
    ) -> Result<ValueId, Diagnostic> {
        let mut operands = self.project(b, [x, y, y])?.to_vec();
        operands.extend(mask);
        let attention = of_ops::nn::Attention {
            is_causal: self.is_causal,
            q_num_heads: Some(self.heads),
            kv_num_heads: Some(self.heads),
            ..of_ops::nn::Attention::default()
        };
        let mixed = b.op(attention, &operands)?;
        b.within(NAMES[3], |b| self.projections[3].apply(b, mixed))
    }

    /// The attention of new tokens `x`, `[batch, tokens, size]`, to themselves and to those before them, whose keys and values two
    /// variables of the session keep: `keys` and `values`, `[batch, heads, length, size / heads]`. Each run appends to them. `position`
    /// counts the tokens before, as [`KeyValueCache::attend`] says: an input, or a variable. A run may have one token (decode) or several
    /// (prefill).
    ///
    /// ```
    /// use of_frontend::Builder;
    /// use of_frontend::nn::{Init, MultiHeadAttention};
    /// use of_ir::{DType, Dim, Tensor, Type};
    /// use of_ops::elementwise::Add;
    /// use of_ops::training::InitialValue;
    ///
    /// let layer = MultiHeadAttention::new(&mut Init::new(1), 64, 4)?.causal();
    /// let mut b = Builder::new("decode");
    /// let x = b.input("x", Type::tensor(DType::F32, vec![Dim::from(1i64), Dim::from(1i64), Dim::from(64i64)]));
    /// // The position counts the runs.
    /// let position = b.variable("position", Type::fixed(DType::I64, &[]), Some(InitialValue::Zeros));
    /// let y = layer.apply_cached(&mut b, x, 128, position)?;
    /// let one = b.constant(Tensor::scalar(1i64))?;
    /// let next = b.op(Add {}, &[position, one])?;
    /// b.set_next(position, next)?;
    /// let module = b.finish(&[("y", y)])?;
    /// assert_eq!(module.main().unwrap().inputs, ["x", "position", "keys", "values"]);
    /// assert_eq!(module.main().unwrap().outputs, ["y", "position.next", "keys.next", "values.next"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`MultiHeadAttention::attend_cached`].
    #[track_caller]
    pub fn apply_cached(
        &self,
        b: &mut Builder,
        x: ValueId,
        length: usize,
        position: ValueId,
    ) -> Result<ValueId, Diagnostic> {
        let own = b.ty(x).as_tensor().cloned();
        let dtype = own.as_ref().map_or(DType::F32, |t| t.dtype);
        let batch = own.and_then(|t| t.shape?.first().cloned()).unwrap_or_else(Dim::unknown);
        let (size, heads) = (self.size(), self.heads.max(1) as usize);
        let cache = KeyValueCache::variables(b, dtype, batch, [heads, length, size / heads]);
        let (y, next) = self.attend_cached(b, x, cache, position)?;
        cache.carry(b, next)?;
        Ok(y)
    }

    /// As [`MultiHeadAttention::apply_cached`], with a cache of the caller's. Returns the result and the cache with the new tokens.
    ///
    /// # Errors
    /// When the layer is not causal, so that keys of later tokens would change what earlier ones attend to, and as
    /// [`KeyValueCache::attend`].
    #[track_caller]
    pub fn attend_cached(
        &self,
        b: &mut Builder,
        x: ValueId,
        cache: KeyValueCache,
        position: ValueId,
    ) -> Result<(ValueId, KeyValueCache), Diagnostic> {
        if !self.is_causal {
            let what = "attention with a cache must be causal: earlier tokens are not computed again";
            return Err(Diagnostic::error(Code::UNSUPPORTED, location(Caller::caller()), what)
                .hint("make the layer by `causal()`"));
        }
        let operands = self.project(b, [x; 3])?;
        let (mixed, next) = cache.attend(b, operands, position)?;
        Ok((b.within(NAMES[3], |b| self.projections[3].apply(b, mixed))?, next))
    }

    /// Queries, keys and values of these.
    #[track_caller]
    fn project(&self, b: &mut Builder, from: [ValueId; 3]) -> Result<[ValueId; 3], Diagnostic> {
        let mut out = from;
        for ((name, projection), x) in NAMES.iter().zip(&self.projections).zip(&mut out) {
            *x = b.within(*name, |b| projection.apply(b, *x))?;
        }
        Ok(out)
    }

    /// The size of a position: rows of a projection's weight.
    fn size(&self) -> usize {
        self.projections[0].weight.dims().first().copied().unwrap_or(0)
    }
}

impl Layer for MultiHeadAttention {
    #[track_caller]
    fn apply(&self, b: &mut Builder, x: ValueId) -> Result<ValueId, Diagnostic> {
        self.attend(b, x, x, None)
    }
}
