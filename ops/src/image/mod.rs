//! Pictures from files.

mod decoder;
mod jpeg;

pub use decoder::ImageDecoder;
