//! Training in 16-bit floats.

use of_diag::{Code, Diagnostics, Location};
use of_ir::{DType, Module};
use of_passes::specialize::Bindings;
use of_passes::{Manager, PRIMITIVES_PIPELINE, quantize};

use crate::compiler::Job;
use crate::error::{count, error};
use crate::name_patterns::matches;
use crate::observer::Observer;
use crate::options::Precision;
use crate::prepare::module_of;

/// The training step with the operands and results of products, forward and backward, rounded to 16 bits. Parameters, sums and all
/// other ops stay as they are. Source: Micikevicius et al., "Mixed Precision Training" (2018).
pub(super) fn in_precision(
    job: Job,
    module: &Module,
    precision: Precision,
    keep_f32: &[String],
    observer: &dyn Observer,
) -> Result<Job, Diagnostics> {
    let dtype = match precision {
        Precision::Bf16 => DType::BF16,
        Precision::F16 => DType::F16,
        Precision::Model | Precision::Int8 => return Ok(job),
    };
    let Job { name, func, bindings } = job;
    let mut single = module_of(func, module);
    let mut manager = Manager::default();
    // What the sharding search does first is late when products have their roundings.
    manager.add::<of_passes::Specialize>(bindings).append("fold-constants,infer-shapes,unflatten-rows")?;
    manager.append(PRIMITIVES_PIPELINE)?;
    manager.run(&mut single, &mut |s| observer.ir(s))?;
    let mut func =
        single.funcs.swap_remove("main").ok_or_else(|| error(Code::NAME, "the training step has no function"))?;
    let mut used = vec![0usize; keep_f32.len()];
    let mut is_kept = |loc: &Location| {
        let named = |pattern: &String| {
            loc.roots().iter().any(|root| match root {
                Location::Onnx { node, op, .. } => matches(pattern, node) || matches(pattern, op),
                _ => false,
            })
        };
        let found = keep_f32.iter().position(named);
        found.into_iter().for_each(|i| used[i] += 1);
        found.is_some()
    };
    let products = quantize::round_contractions_except(&mut func, dtype, &mut is_kept)?;
    if let Some(i) = used.iter().position(|n| *n == 0) {
        let what = format!("no product is of a node or operator '{}', which is to stay f32", keep_f32[i]);
        return Err(error(Code::NAME, what).into());
    }
    if products == 0 {
        let what = format!("{dtype}: the training has no products or convolutions of f32 with more than a few terms");
        return Err(error(Code::UNSUPPORTED, what).into());
    }
    let kept = match used.iter().sum::<usize>() {
        0 => String::new(),
        n => format!(", {n} kept in f32"),
    };
    observer.note(&format!("{dtype}: {} of forward and backward pass{kept}", count(products, "product")));
    Ok(Job { name, func, bindings: Bindings::new() })
}
