//! The SSA IR: types with symbolic shapes and SBP, ops in regions, the text form, the verifier and the `Rewriter`.
//!
//! *Invariant*: this crate names no op. Ops are known through [`OpDef`].

mod attr;
mod blob;
mod clone;
mod dim;
mod dtype;
mod graph;
mod id_map;
mod module;
mod op;
mod packing;
mod rewriter;
mod rewrites;
mod sbp;
mod small_float;
pub mod sort;
mod tensor;
pub mod text;
mod types;
mod uses;
mod verify;

pub use attr::{Attr, AttrError, AttrValue, Attrs};
pub use blob::Blob;
pub use dim::{Dim, DimFn, Factor};
pub use dtype::DType;
pub use graph::{Graph, OpData, OpId, RegionId, Use, ValueDef, ValueId, Version};
pub use id_map::{IdMap, IdSet};
pub use module::{Func, Module};
pub use op::{Arity, AttrSlot, OpDef, OpError, OpView, Registry, Signature, Slot, Traits};
pub use rewriter::{NewOp, Rewriter};
pub use rewrites::Rewrite;
pub use sbp::{Mesh, MeshPart, NdSbp, PartialKind, Sbp, SbpSignature};
pub use small_float::{Power, Rounding};
pub use tensor::{Element, Elements, Tensor, TensorError};
pub use types::{Shape, TensorType, Type};
pub use verify::{verify_func, verify_module};
