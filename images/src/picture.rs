//! Pictures of three bytes a pixel, areas of them, and conversion of samples to them.

/// A decoded picture: rows of pixels of three bytes, red first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Picture {
    /// Pixels of a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// `height * width * 3` bytes.
    pub pixels: Vec<u8>,
}

impl Picture {
    /// The picture of interleaved samples: grey, grey and alpha, RGB, or RGB and alpha. Alpha is dropped.
    ///
    /// # Errors
    /// When the number of samples is not `width * height * channels`.
    pub(crate) fn from_samples(
        width: usize,
        height: usize,
        channels: usize,
        samples: &[u8],
    ) -> Result<Picture, String> {
        if !(1..=4).contains(&channels) || samples.len() != width * height * channels {
            return Err(format!("{} samples are not {width} x {height} x {channels}", samples.len()));
        }
        let colours = if channels < 3 { 1 } else { 3 };
        let pixels = samples.chunks_exact(channels).flat_map(|p| [p[0], p[colours / 2], p[colours - 1]]).collect();
        Ok(Picture { width, height, pixels })
    }
}

/// A rectangle of pixels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Area {
    /// Pixels left of it.
    pub left: usize,
    /// Rows above it.
    pub top: usize,
    /// Pixels of a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
}

impl Area {
    /// All of a picture.
    #[must_use]
    pub fn whole(width: usize, height: usize) -> Area {
        Area { left: 0, top: 0, width, height }
    }

    /// The pixels that a picture has of it, at least one.
    #[must_use]
    pub fn within(self, width: usize, height: usize) -> Area {
        let (left, top) = (self.left.min(width.saturating_sub(1)), self.top.min(height.saturating_sub(1)));
        let side = |wanted: usize, rest: usize| wanted.clamp(1, rest.max(1));
        Area { left, top, width: side(self.width, width - left), height: side(self.height, height - top) }
    }
}

/// Checks that three bytes a pixel fit into `most` bytes.
///
/// # Errors
/// When they do not.
pub(crate) fn check_size(width: usize, height: usize, most: usize) -> Result<(), String> {
    match width.checked_mul(height).and_then(|n| n.checked_mul(3)) {
        Some(n) if n <= most => Ok(()),
        _ => Err(format!("its size, {width} x {height}, is above the limit of {} MiB", most >> 20)),
    }
}

/// A sample of 16 bits in 8, rounded to the nearest.
pub(crate) fn narrow(sample: u16) -> u8 {
    ((u32::from(sample) + 128) / 257) as u8
}
