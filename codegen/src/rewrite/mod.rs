//! Rewrites of the graph that depend on the kernels of an instruction set.
//!
//! The driver runs them as passes, which `--print-changed` and reproducers see. [`compile`](crate::compile) runs none of them.

use std::borrow::Cow;

use of_diag::Diagnostic;
use of_ir::Func;

use crate::isa::Isa;

pub mod duplicate_shared_attention_ops;
pub mod fold_widening_into_contractions;
pub mod join_summed_products;
pub mod split_wide_concats;

/// The function after all rewrites for `isa`, in the order of the driver's passes: for callers that compile without the driver.
///
/// # Errors
/// When a new op is invalid, which is a bug.
pub fn for_isa<'f>(func: &'f Func, isa: &Isa) -> Result<Cow<'f, Func>, Diagnostic> {
    let func = join_summed_products::joined(func)?.map_or(Cow::Borrowed(func), Cow::Owned);
    let func = fold_widening_into_contractions::narrowed(&func, isa)?.map_or(func, Cow::Owned);
    let func = duplicate_shared_attention_ops::separated(&func, isa).map_or(func, Cow::Owned);
    Ok(split_wide_concats::split(&func)?.map_or(func, Cow::Owned))
}
