//! Rewrites of the graph that depend on what kernels of an instruction set compute.

pub mod narrow_contractions;
pub mod separate_score_matrices;
