//! ONNX models into the IR and out of it, and ONNX tensor files.
//!
//! *Invariant*: this is the only crate that sees the protobuf of ONNX.
//!
//! A model is mapped, decoded and imported node by node:
//!
//! - [`proto`] holds the generated messages; their tensor bytes are slices of the mapped file.
//! - `tensor` and `external` turn stored tensors into [`of_ir::Tensor`] without copying their data.
//! - `import` walks graphs, functions and subgraphs. A node is brought to the form of the newest operator set by the
//!   importers in `ops` (one table, `ops/table.rs`), and `import/emit.rs` maps that form to an op of the IR by the
//!   op's own declaration. Most ONNX operators need no other code.
//! - `export` is the inverse: ops that ONNX lacks are rewritten into ops that it has, and those are written
//!   by the same declarations and tables that they are read by.
//! - Whatever is not supported is collected, and reported all at once.
//! - [`tensor_io`] reads and writes the values of program inputs and outputs, and [`map_io`] reads those that are maps.

mod export;
mod external;
mod failed_download;
mod import;
mod load;
pub mod map_io;
mod ops;
mod options;
pub mod proto;
mod sharding;
mod tensor;
pub mod tensor_io;
mod types;

pub use export::{ExportOptions, Exported, OLDEST_WRITTEN, export_bytes, export_file, export_model};
pub use import::{Imported, NEWEST_OPSET, OLDEST_OPSET};
pub use load::{
    ModelInput, import_bytes, import_file, import_file_with_data, import_with_warnings, model_inputs, read_model,
};
pub use ops::{Operator, Support, operators};
pub use options::Options;
