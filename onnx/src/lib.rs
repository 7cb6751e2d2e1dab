//! ONNX models into the IR, and ONNX tensor files.
//!
//! *Invariant*: this is the only crate that sees the protobuf of ONNX.
//!
//! A model is mapped, decoded and imported node by node:
//!
//! - [`proto`] holds the generated messages; their tensor bytes are slices of the mapped file.
//! - `tensor` and `external` turn stored tensors into [`of_ir::Tensor`] without copying their data.
//! - `import` walks graphs, functions and subgraphs. A node is brought to the form of the newest operator set by the
//!   importers in `ops` (one table, `ops/table.rs`), and `import/emit.rs` maps that form to an op of the IR by the
//!   op's own declaration. Most ONNX operators need nothing else.
//! - Whatever is not supported is collected, and reported all at once.
//! - [`tensor_io`] reads and writes the values of program inputs and outputs.

mod external;
mod import;
mod load;
mod ops;
mod options;
pub mod proto;
mod tensor;
pub mod tensor_io;
mod types;

pub use import::{Imported, NEWEST_OPSET, OLDEST_OPSET};
pub use load::{import_bytes, import_file, import_with_warnings};
pub use ops::{Operator, Reading, operators};
pub use options::Options;
