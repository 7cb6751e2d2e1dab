//! Automatic parallelisation: how the tensors of a graph lie on a mesh of devices.
//!
//! [`MeshSpec`] describes the mesh, [`boxing`] what transfers between layouts cost and [`cost`] what ops do,
//! [`candidates`] the ways in which an op may run. [`Model`] makes a search problem of a function, [`search`] solves it
//! with a bound, [`decide`] writes the outcome into the types; [`simulate`] executes it on simulated devices,
//! and [`local`] makes of it what each rank runs.

pub mod across;
pub mod alternatives;
pub mod boxing;
pub mod candidates;
pub mod cost;
pub mod cuts;
pub mod decide;
pub mod execute;
pub mod explain;
pub mod html;
pub mod layout;
pub mod local;
pub mod lower;
pub mod memory;
pub mod mesh;
pub mod meshes;
pub mod microbatches;
pub mod model;
pub mod search;
pub mod simulate;
pub mod stages;

pub use layout::Layout;
pub use mesh::{MeshAxis, MeshSpec, Near, PRESETS};
pub use meshes::Meshes;
pub use model::Model;
