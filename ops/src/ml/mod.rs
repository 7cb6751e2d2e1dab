//! Classical machine learning: what the operators of ai.onnx.ml need beyond linear algebra, comparisons and gathering.

mod label_map;
mod pairwise_coupling;
mod post_transform;
mod tree_ensemble;

pub use label_map::LabelMap;
pub use pairwise_coupling::PairwiseCoupling;
pub use post_transform::{Probit, SoftmaxIgnoreZero};
pub use tree_ensemble::TreeEnsemble;
