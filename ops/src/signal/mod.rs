//! Signals: Fourier transforms.

mod dft;
mod fft;
mod stft;

pub use dft::Dft;
pub use stft::Stft;
