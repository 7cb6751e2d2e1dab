//! Pictures: decoders of common formats, scaling, and values of inputs.
//!
//! All is Rust, because files are untrusted. JPEG files give the pixels of libjpeg, and those of a part alone where no more is wanted.

mod adjust;
mod bmp;
mod formats;
mod jpeg;
mod picture;
mod png;
mod pnm;
mod scale;
mod tiff;
mod vectors;
mod webp;

pub use adjust::{change_colours, flip, look_up, to_grey};
pub use formats::{Part, decode, decode_part};
pub use picture::{Area, Picture};
pub use scale::{Crop, Scaler, needed};
