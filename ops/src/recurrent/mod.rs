//! Recurrent layers: whole sequences in one op.

mod activation;
mod dynamic_quantize_lstm;
mod expand;
mod gru;
mod lstm;
mod rnn;
mod sequence;

pub use activation::{Activation, Function};
pub use dynamic_quantize_lstm::DynamicQuantizeLstm;
pub use gru::Gru;
pub use lstm::Lstm;
pub use rnn::Rnn;
pub use sequence::Extent;
