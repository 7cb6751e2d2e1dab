//! Images of three bytes a pixel, and conversion of samples to them.

/// A picture of three bytes a pixel.
pub(super) struct Rgb {
    pub(super) width: usize,
    pub(super) height: usize,
    pub(super) pixels: Vec<u8>,
}

impl Rgb {
    /// The picture of interleaved samples: grey, grey and alpha, RGB, or RGB and alpha. Alpha is dropped.
    ///
    /// # Errors
    /// When the number of samples is not `width * height * channels`.
    pub(super) fn from_samples(width: usize, height: usize, channels: usize, samples: &[u8]) -> Result<Rgb, String> {
        if !(1..=4).contains(&channels) || samples.len() != width * height * channels {
            return Err(format!("{} samples are not {width} x {height} x {channels}", samples.len()));
        }
        let colours = if channels < 3 { 1 } else { 3 };
        let pixels = samples.chunks_exact(channels).flat_map(|p| [p[0], p[colours / 2], p[colours - 1]]).collect();
        Ok(Rgb { width, height, pixels })
    }
}

/// Checks that three bytes a pixel fit into `most` bytes.
///
/// # Errors
/// When they do not.
pub(super) fn check_size(width: usize, height: usize, most: usize) -> Result<(), String> {
    match width.checked_mul(height).and_then(|n| n.checked_mul(3)) {
        Some(n) if n <= most => Ok(()),
        _ => Err(format!("its size, {width} x {height}, is above the limit of {} MiB", most >> 20)),
    }
}

/// A sample of 16 bits in 8, rounded to the nearest.
pub(super) fn narrow(sample: u16) -> u8 {
    ((u32::from(sample) + 128) / 257) as u8
}
