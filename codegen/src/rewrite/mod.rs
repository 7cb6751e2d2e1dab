pub mod narrow_contractions;
pub mod separate_score_matrices;
