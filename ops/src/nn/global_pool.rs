//! Pools over all spatial axes: `of.global_average_pool`, `of.global_max_pool`, `of.global_lp_pool`.

use of_ir::{Dim, OpError, OpView, Rewriter, TensorType, Type, ValueId};

use crate::build::{Build, BuildResult, in_wide};
use crate::elementwise::{Abs, Pow};
use crate::sample::Rng;
use crate::{Expanded, Inferred, Op, op, op_basics};

/// The spatial axes of a tensor of the given rank.
fn spatial(rank: usize, channels_last: bool) -> Vec<usize> {
    if channels_last { (1..rank.saturating_sub(1)).collect() } else { (2..rank).collect() }
}

fn infer(cx: &OpView<'_>, channels_last: bool) -> Inferred {
    let x = cx.tensor(0)?;
    if !x.dtype.is_float() {
        return Err(OpError::ty(format!("the input must be floating-point, it is {}", x.dtype)));
    }
    let mut shape = x.shape.clone();
    if let Some(s) = &mut shape {
        if s.len() < 2 {
            return Err(OpError::shape("the input has no batch and channel axes"));
        }
        spatial(s.len(), channels_last).into_iter().for_each(|a| s[a] = Dim::from(1i64));
    }
    Ok(vec![Type::Tensor(TensorType { dtype: x.dtype, shape, sbp: None })])
}

/// The sum of `|x|^p`, then the root.
fn p_norm(b: &mut Build<'_, '_>, x: ValueId, axes: &[usize], p: i64) -> BuildResult {
    let a = b.op(Abs {}, &[x])?;
    if p == 1 {
        return b.sum(a, axes, true);
    }
    let exponent = b.number(p as f64, a)?;
    let powers = b.op(Pow {}, &[a, exponent])?;
    let sum = b.sum(powers, axes, true)?;
    let root = b.number(1.0 / p as f64, sum)?;
    b.op(Pow {}, &[sum, root])
}

macro_rules! global {
    ($($(#[doc = $doc:literal])* $name:ident = $opname:literal [$onnx:literal] { $($attr:ident: $ty:ty = $sample:expr),* }
       |$op:ident, $b:ident, $x:ident, $axes:ident| $expand:expr;)*) => {$(
        op! {
            $(#[doc = $doc])*
            pub struct $name = $opname [Composite, onnx: $onnx] {
                operands: (x),
                results: (y),
                attrs: {
                    $($attr: $ty,)*
                    /// `x` and `y` are `[N, spatial…, C]`.
                    channels_last: bool,
                }
            }
            samples: |seed| {
                let mut r = Rng::new(seed);
                let rank = r.int(3, 5) as usize;
                let dims = r.dims(rank, 1, 4);
                Some((vec![r.f32s(&dims)], $name { $($attr: $sample,)* channels_last: r.int(0, 1) == 0 }))
            };
        }

        impl Op for $name {
            op_basics!($name);

            fn infer(&self, cx: &OpView<'_>) -> Inferred {
                infer(cx, self.channels_last)
            }

            fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
                in_wide(rw, operands, |rw, operands| {
                    let ($op, mut $b, $x) = (self, Build::new(rw), operands[0]);
                    let $axes = spatial($b.rank($x)?, $op.channels_last);
                    Ok(vec![if $axes.is_empty() { $x } else { $expand? }])
                })
            }
        }
    )*};
}

global! {
    /// The mean over all spatial axes. Source: ONNX GlobalAveragePool.
    GlobalAveragePool = "of.global_average_pool" ["GlobalAveragePool"] {} |op, b, x, axes| b.mean(x, &axes);
    /// The p-norm over all spatial axes. Source: ONNX GlobalLpPool.
    GlobalLpPool = "of.global_lp_pool" ["GlobalLpPool"] { p: i64 = 2 } |op, b, x, axes| p_norm(&mut b, x, &axes, op.p);
    /// The maximum over all spatial axes. Source: ONNX GlobalMaxPool.
    GlobalMaxPool = "of.global_max_pool" ["GlobalMaxPool"] {} |op, b, x, axes| b.max(x, &axes, true);
}
