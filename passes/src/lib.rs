//! Passes: transformations of modules, behind one small trait.
//!
//! A pass is a [`Pass`]: a name, a summary, typed options and `run`. [`PASSES`] lists every pass, [`PIPELINES`] every
//! pipeline as text, and a [`Manager`] runs such a text: `infer-shapes,canonicalize,specialize{batch=8}`. The manager
//! prints, times, verifies and writes crash reproducers; a pass only changes the module.

pub mod bind_shape_symbols;
mod builders;
pub mod canonicalize;
pub mod channels_last;
mod conv_transpose;
pub mod cse;
pub mod dce;
pub mod differentiate;
pub mod egraph;
pub mod exactness;
pub mod expand_composites;
pub mod fold_constants;
mod infer_ranks;
pub mod infer_shapes;
pub mod legalize_float16;
mod list;
pub mod loop_append_to_scan_output;
mod manager;
pub mod matchers;
mod module_state;
pub mod optimize;
mod options;
mod pass;
mod pipelines;
mod print;
pub mod quantize;
pub mod quantize_contractions;
pub mod recompute;
mod report;
mod reproducer;
pub mod rules;
pub mod scan_to_loop;
pub mod sharding;
pub mod specialize;
mod syntax;
#[cfg(test)]
mod test_values;
mod unflatten_rows;
mod unified_diff;
mod verify;

pub use list::{
    BindShapeSymbols, Canonicalize, ChannelsLast, Cse, Dce, Differentiate, ExpandComposites, ExpandOptions,
    FoldConstants, InferShapes, LegalizeFloat16, LoopAppendToScanOutput, PASSES, QuantizeContractions, ScanToLoop,
    Specialize, find, passes, register_pass,
};
pub use manager::{Checkpoint, Manager, Progress, Settings};
pub use optimize::{Optimize, OptimizeOptions};
pub use options::{NoOptions, OptionError, OptionSlot, OptionValue, PassOptions};
pub use pass::{AnyPass, Configured, Pass, PassContext, each_func, each_op};
pub use pipelines::{
    CPU_PIPELINE, PIPELINES, PRIMITIVES_PIPELINE, Pipeline, SHARDING_AFTER_OPTIMIZE_PIPELINE, SHARDING_PIPELINE,
    pipeline,
};
pub use print::{Print, PrintPassOptions};
pub use report::{PassRun, Report};
pub use syntax::{FILE as PIPELINE_FILE, Item, parse_items};
pub use unflatten_rows::UnflattenRows;
pub use unified_diff::unified_diff;
pub use verify::Verify;

/// A shape for messages: `[N, 3, 224, 224]`.
pub fn show_shape(shape: &[of_ir::Dim]) -> String {
    let dims: Vec<String> = shape.iter().map(ToString::to_string).collect();
    format!("[{}]", dims.join(", "))
}
