//! Rewrites of the graph that depend on the kernels of an instruction set.

pub mod narrow_contractions;
pub mod separate_score_matrices;
