//! Automatic parallelization: SBP layouts (sharding), pipeline stages and recomputation on a mesh of devices.
//!
//! [`MeshSpec`] describes the mesh. [`boxing`] costs the collectives that change a layout (resharding), [`cost`] costs
//! ops, and [`candidates`] lists the sharding strategies of each op. [`Model`] states a function as a discrete
//! optimization problem. [`search`] solves it and gives a lower bound. [`decide`] writes the solution into the types,
//! and [`lower`] replaces layout changes by collectives. [`simulate`] and [`execute`] run the result on simulated
//! devices. [`spmd`] makes the program of each rank. [`stages`] cuts a function into pipeline stages with microbatches.
//!
//! Related work: GSPMD (an SPMD partitioner with sharding propagation), Alpa (automatic parallelization).

pub mod alternatives;
pub mod assignment;
pub mod boxing;
pub mod candidates;
pub mod cost;
pub mod cross_mesh;
pub mod cut_points;
pub mod decide;
pub mod execute;
pub mod explain;
pub mod layout;
pub mod liveness;
pub mod lower;
pub mod memory;
pub mod mesh;
pub mod meshes;
pub mod microbatches;
pub mod model;
pub mod overlap;
mod overlappable;
pub mod overlapped_step;
mod parts;
mod regions;
pub mod search;
pub mod simulate;
pub mod spmd;
pub mod stages;
pub mod value_names;
pub mod weights;

pub use layout::Layout;
pub use mesh::{CacheLevel, MeshAxis, MeshSpec, PRESETS};
pub use meshes::Meshes;
pub use model::Model;
