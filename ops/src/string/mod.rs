//! Ops on strings.

mod concat;
mod normalizer;
mod regex_full_match;
mod split;
mod tf_idf;
mod tokenizer;

pub use concat::StringConcat;
pub use normalizer::StringNormalizer;
pub use regex_full_match::RegexFullMatch;
pub use split::StringSplit;
pub use tf_idf::TfIdfVectorizer;
pub use tokenizer::Tokenizer;

use of_ir::{DType, OpError, OpView, Tensor, TensorType};

/// Operand `i`, which must hold strings.
fn operand<'a>(cx: &OpView<'a>, i: usize) -> Result<&'a TensorType, OpError> {
    let t = cx.tensor(i)?;
    if t.dtype == DType::String {
        return Ok(t);
    }
    Err(OpError::ty(format!("operand {i} must hold strings, it holds {}", t.dtype)))
}

/// The strings of `t`.
fn strings(t: &Tensor) -> Result<&[String], OpError> {
    t.strings().ok_or_else(|| OpError::eval("an operand holds no strings"))
}
