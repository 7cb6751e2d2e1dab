//! Rewrites of the code generator as passes, so that `--print-changed`, `--print-after` and reproducers see them.
//!
//! They depend on the instruction set, which `of-passes` does not know. [`register`] makes them known to pipelines.

use of_codegen::Isa;
use of_codegen::rewrite::{
    duplicate_shared_attention_ops, fold_widening_into_contractions, join_summed_products, split_wide_concats,
};
use of_diag::{Code, Diagnostics};
use of_ir::{Func, Module};
use of_passes::{Manager, NoOptions, Pass, PassContext, each_func, pass_options, register_pass};

use crate::error::error;
use crate::observer::{Activity, Observer, checkpoint, report};
use crate::options::CompileOptions;
use crate::prepare::module_of;

pass_options! {
    /// Options of `fold-widening-into-contractions` and `duplicate-shared-attention-ops`.
    pub struct IsaOptions {
        /// Instruction set, such as avx512bf16 or sm_90; empty for the best of this machine
        isa: String = String::new(),
    }
}

impl IsaOptions {
    fn isa(&self) -> Result<&'static Isa, Diagnostics> {
        if self.isa.is_empty() {
            return Ok(Isa::host());
        }
        Isa::by_name(&self.isa).ok_or_else(|| {
            let known: Vec<_> = of_codegen::isa::ISAS.iter().map(|i| i.name).collect();
            error(Code::PIPELINE, format!("unknown instruction set '{}'", self.isa))
                .hint(format!("choose from {}", known.join(", ")))
                .into()
        })
    }
}

/// `fold-widening-into-contractions`: contractions of widened 16-bit floats multiply these directly.
pub struct FoldWideningIntoContractions;

impl Pass for FoldWideningIntoContractions {
    const NAME: &'static str = "fold-widening-into-contractions";
    const SUMMARY: &'static str =
        "contractions of widened 16-bit floats multiply these directly, where the instruction set does";
    type Options = IsaOptions;
    fn run(options: &IsaOptions, module: &mut Module, _cx: &mut PassContext<'_>) -> Result<(), Diagnostics> {
        let isa = options.isa()?;
        each_func(module, |f| {
            if let Some(narrow) = fold_widening_into_contractions::narrowed(f, isa)? {
                *f = narrow;
            }
            Ok(())
        })
    }
}

/// `duplicate-shared-attention-ops`: each recomputed score matrix gets its own copies of shared ops.
pub struct DuplicateSharedAttentionOps;

impl Pass for DuplicateSharedAttentionOps {
    const NAME: &'static str = "duplicate-shared-attention-ops";
    const SUMMARY: &'static str =
        "each score matrix that a GPU recomputes in the gradient of attention gets its own copies of shared ops";
    type Options = IsaOptions;
    fn run(options: &IsaOptions, module: &mut Module, _cx: &mut PassContext<'_>) -> Result<(), Diagnostics> {
        let isa = options.isa()?;
        each_func(module, |f| {
            if let Some(separate) = duplicate_shared_attention_ops::separated(f, isa) {
                *f = separate;
            }
            Ok(())
        })
    }
}

/// `split-wide-concats`: concatenations of many operands become trees of narrower ones.
pub struct SplitWideConcats;

impl Pass for SplitWideConcats {
    const NAME: &'static str = "split-wide-concats";
    const SUMMARY: &'static str = "concatenations of more than 128 operands become trees of narrower ones";
    type Options = NoOptions;
    fn run(_: &NoOptions, module: &mut Module, _cx: &mut PassContext<'_>) -> Result<(), Diagnostics> {
        each_func(module, |f| {
            if let Some(narrow) = split_wide_concats::split(f)? {
                *f = narrow;
            }
            Ok(())
        })
    }
}

/// `join-summed-products`: a sum of products over all their batches becomes one product.
pub struct JoinSummedProducts;

impl Pass for JoinSummedProducts {
    const NAME: &'static str = "join-summed-products";
    const SUMMARY: &'static str =
        "a sum of products over all their batches becomes one product, which needs no memory for them";
    type Options = NoOptions;
    fn run(_: &NoOptions, module: &mut Module, _cx: &mut PassContext<'_>) -> Result<(), Diagnostics> {
        each_func(module, |f| {
            if let Some(joined) = join_summed_products::joined(f)? {
                *f = joined;
            }
            Ok(())
        })
    }
}

/// Makes the passes known to pipelines.
pub fn register() {
    register_pass(JoinSummedProducts::ENTRY);
    register_pass(SplitWideConcats::ENTRY);
    register_pass(FoldWideningIntoContractions::ENTRY);
    register_pass(DuplicateSharedAttentionOps::ENTRY);
}

/// Runs the passes on functions for the CPU, before code generation. The CUDA backend rewrites the functions of its subgraphs itself:
/// it knows their instruction set, and may compile them as late as in a run.
///
/// # Errors
/// An unknown instruction set, or a broken pass.
pub(crate) fn run(
    funcs: &mut [&mut Func],
    module: &Module,
    options: &CompileOptions,
    observer: &dyn Observer,
) -> Result<(), Diagnostics> {
    let isa = crate::generate::isa(options.target.isa.as_deref())?;
    if !isa.language.is_for_cpus() {
        return Ok(());
    }
    for func in funcs {
        let mut single = module_of(func.clone(), module);
        let mut manager = Manager::default();
        manager.add::<JoinSummedProducts>(NoOptions);
        manager.add::<FoldWideningIntoContractions>(IsaOptions { isa: isa.name.into() });
        manager.add::<DuplicateSharedAttentionOps>(IsaOptions { isa: isa.name.into() });
        manager.add::<SplitWideConcats>(NoOptions);
        manager.settings.reproducers.clone_from(&options.reproducers);
        manager.checkpoint = checkpoint(&Activity::default(), &options.limits);
        let run = manager.run(&mut single, &mut |s| observer.ir(s))?;
        report(observer, &run.warnings);
        if let Some(f) = single.funcs.swap_remove("main") {
            **func = f;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registered_passes_are_found_by_name() {
        register();
        register();
        let with_isa = |name| (name, format!("{name}{{isa=avx512bf16}}"));
        let both = [FoldWideningIntoContractions::NAME, DuplicateSharedAttentionOps::NAME].map(with_isa);
        let plain = [JoinSummedProducts::NAME, SplitWideConcats::NAME].map(|name| (name, name.to_string()));
        for (name, pipeline) in both.into_iter().chain(plain) {
            assert!(Manager::parse(&pipeline).is_ok());
            assert_eq!(of_passes::passes().iter().filter(|p| p.name() == name).count(), 1);
        }
    }
}
