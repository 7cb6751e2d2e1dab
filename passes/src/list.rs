//! The list of passes. A new pass is a file and a line here.

use std::collections::BTreeSet;
use std::sync::{PoisonError, RwLock};

use of_diag::{Code, Diagnostic, Diagnostics, Location};
use of_ir::Module;

use crate::canonicalize::CanonicalizeOptions;
use crate::expand_composites::{expand_composites, warn_dropped_alternatives};
use crate::fold_constants::FoldOptions;
use crate::specialize::{Bindings, open_symbols};
use crate::{AnyPass, NoOptions, Pass, PassContext, each_func, pass_options};

macro_rules! list {
    ($($pass:path,)*) => {
        /// Every pass of this crate, in alphabetical order.
        pub static PASSES: &[&dyn AnyPass] = &[$(<$pass as Pass>::ENTRY,)*];
    };
}

list! {
    BindShapeSymbols,
    Canonicalize,
    ChannelsLast,
    Cse,
    Dce,
    Differentiate,
    ExpandComposites,
    FoldConstants,
    crate::sharding::InferSbp,
    InferShapes,
    crate::sharding::InsertBoxing,
    LegalizeFloat16,
    LoopAppendToScanOutput,
    crate::optimize::Optimize,
    crate::print::Print,
    QuantizeContractions,
    crate::recompute::Recompute,
    ScanToLoop,
    crate::sharding::Shard,
    Specialize,
    crate::unflatten_rows::UnflattenRows,
    crate::verify::Verify,
}

/// Passes of other crates, which depend on what this crate does not know.
static REGISTERED: RwLock<Vec<&'static dyn AnyPass>> = RwLock::new(Vec::new());

/// Makes a pass of another crate known to pipelines. A second pass of the same name is ignored.
pub fn register_pass(pass: &'static dyn AnyPass) {
    let mut registered = REGISTERED.write().unwrap_or_else(PoisonError::into_inner);
    if !PASSES.iter().chain(registered.iter()).any(|p| p.name() == pass.name()) {
        registered.push(pass);
    }
}

/// Every pass: those of [`PASSES`], then the registered ones.
pub fn passes() -> Vec<&'static dyn AnyPass> {
    let registered = REGISTERED.read().unwrap_or_else(PoisonError::into_inner);
    PASSES.iter().chain(registered.iter()).copied().collect()
}

/// The pass called `name`.
pub fn find(name: &str) -> Option<&'static dyn AnyPass> {
    passes().into_iter().find(|p| p.name() == name)
}

/// Passes that are one function of a `Func`: type, name, summary, function.
macro_rules! func_passes {
    ($($ty:ident: $name:literal, $summary:literal => $run:expr;)*) => {$(
        #[doc = concat!("`", $name, "`: ", $summary, ".")]
        pub struct $ty;

        impl Pass for $ty {
            const NAME: &'static str = $name;
            const SUMMARY: &'static str = $summary;
            type Options = NoOptions;
            fn run(_options: &NoOptions, module: &mut Module, _cx: &mut PassContext<'_>) -> Result<(), Diagnostics> {
                each_func(module, $run)
            }
        }
    )*};
}

func_passes! {
    ChannelsLast: "channels-last", "converts convolutions and pools to NHWC and sinks transposes" => crate::channels_last::channels_last;
    Cse: "cse", "eliminates common subexpressions" => |f| { crate::cse::cse(f); Ok(()) };
    Dce: "dce", "eliminates dead code: ops whose results have no readers" => |f| { crate::dce::dce(f); Ok(()) };
    Differentiate: "differentiate", "replaces gradients by the ops that compute them (reverse mode)" => crate::differentiate::differentiate;
    InferShapes: "infer-shapes", "repeats shape inference and refines types" => crate::infer_shapes::infer_shapes;
    LoopAppendToScanOutput: "loop-append-to-scan-output", "replaces concatenation in a loop by a scan output" => crate::loop_append_to_scan_output::loop_append_to_scan_output;
    BindShapeSymbols: "bind-shape-symbols", "binds computed extents to shape symbols before the op that needs them" => crate::bind_shape_symbols::bind_shape_symbols;
    ScanToLoop: "scan-to-loop", "lowers scans to loops, which have native code" => crate::scan_to_loop::scan_to_loop;
    QuantizeContractions: "quantize-contractions", "rewrites contractions of dequantized operands as integer contractions" => crate::quantize_contractions::quantize_contractions;
    LegalizeFloat16: "legalize-float16", "computes reductions and contractions of 16-bit floats in f32" => crate::legalize_float16::legalize_float16;
}

/// `canonicalize`: applies local rewrites that help on every target.
pub struct Canonicalize;

impl Pass for Canonicalize {
    const NAME: &'static str = "canonicalize";
    const SUMMARY: &'static str = "applies local rewrites that help on every target";
    type Options = CanonicalizeOptions;
    fn run(options: &CanonicalizeOptions, module: &mut Module, _cx: &mut PassContext<'_>) -> Result<(), Diagnostics> {
        each_func(module, |f| crate::canonicalize::canonicalize(f, options))
    }
}

/// `fold-constants`: evaluates ops that depend only on constants and shapes.
pub struct FoldConstants;

impl Pass for FoldConstants {
    const NAME: &'static str = "fold-constants";
    const SUMMARY: &'static str = "evaluates ops that depend only on constants and shapes";
    type Options = FoldOptions;
    fn run(options: &FoldOptions, module: &mut Module, _cx: &mut PassContext<'_>) -> Result<(), Diagnostics> {
        each_func(module, |f| crate::fold_constants::fold_constants(f, options))
    }
}

pass_options! {
    /// Options of `expand-composites`.
    pub struct ExpandOptions {
        /// Ops to keep, by full name
        keep: Vec<String> = Vec::new(),
    }
}

/// `expand-composites`: expands composite ops into primitives.
pub struct ExpandComposites;

impl Pass for ExpandComposites {
    const NAME: &'static str = crate::expand_composites::NAME;
    const SUMMARY: &'static str = "expands composite ops into primitives";
    type Options = ExpandOptions;
    fn run(options: &ExpandOptions, module: &mut Module, cx: &mut PassContext<'_>) -> Result<(), Diagnostics> {
        let unknown = options.keep.iter().filter(|name| of_ops::list::decl(name).is_none()).map(|name| {
            let d =
                Diagnostic::error(Code::UNKNOWN_OP, Location::Unknown, format!("unknown op '{name}' in option 'keep'"));
            d.hint("'of-opt ops' lists all ops")
        });
        Diagnostics(unknown.collect()).into_result(())?;
        let kept = |op: &str| options.keep.iter().any(|k| k == op);
        module.funcs.values().filter_map(|f| warn_dropped_alternatives(f, &kept)).for_each(|d| cx.warn(d));
        each_func(module, |f| expand_composites(f, &kept))
    }
}

/// `specialize`: binds symbolic dimensions to numbers.
pub struct Specialize;

impl Pass for Specialize {
    const NAME: &'static str = "specialize";
    const SUMMARY: &'static str = "binds symbolic dimensions to numbers";
    type Options = Bindings;
    fn run(options: &Bindings, module: &mut Module, _cx: &mut PassContext<'_>) -> Result<(), Diagnostics> {
        let open: BTreeSet<String> = module.funcs.values().flat_map(open_symbols).collect();
        let unknown = options.keys().filter(|k| !open.contains(*k)).map(|k| {
            let d = Diagnostic::error(Code::NAME, Location::Unknown, format!("unknown dimension '{k}'"));
            d.hint(match open.is_empty() {
                true => "no dimension is symbolic".into(),
                false => format!("symbolic dimensions are {}", Vec::from_iter(open.iter().cloned()).join(", ")),
            })
        });
        Diagnostics(unknown.collect()).into_result(())?;
        each_func(module, |f| crate::specialize::specialize(f, options))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_and_described() {
        let names: Vec<_> = PASSES.iter().map(|p| p.name()).collect();
        assert!(names.is_sorted(), "{names:?}");
        for p in PASSES {
            assert!(!p.summary().is_empty() && !p.summary().ends_with('.'), "{}", p.name());
            assert!(crate::pipeline(p.name()).is_none(), "{} is also a pipeline", p.name());
        }
    }
}
