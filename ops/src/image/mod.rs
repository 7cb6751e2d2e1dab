//! Image decoding: a decoder for each format, and the op that selects one.

mod bmp;
mod decoder;
mod jpeg;
mod png;
mod pnm;
mod rgb;
mod tiff;
mod webp;

pub use decoder::{ImageDecoder, Picture, decode_rgb};
