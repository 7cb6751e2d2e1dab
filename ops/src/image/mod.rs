//! Image decoding.

mod decoder;
mod jpeg;

pub use decoder::ImageDecoder;
