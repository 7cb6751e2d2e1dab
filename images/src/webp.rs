//! WebP images, by the crate `image-webp`.

use std::io::Cursor;

use image_webp::WebPDecoder;

use super::picture::{Picture, check_size};

/// The picture in a WebP file, of at most `most` bytes.
///
/// # Errors
/// When the file is damaged or its picture too large.
pub(super) fn decode(file: &[u8], most: usize) -> Result<Picture, String> {
    let mut decoder = WebPDecoder::new(Cursor::new(file)).map_err(|e| e.to_string())?;
    decoder.set_memory_limit(most);
    let (width, height) = decoder.dimensions();
    let (width, height) = (width as usize, height as usize);
    check_size(width, height, most)?;
    let channels = if decoder.has_alpha() { 4 } else { 3 };
    let mut samples = vec![0; width * height * channels];
    decoder.read_image(&mut samples).map_err(|e| e.to_string())?;
    Picture::from_samples(width, height, channels, &samples)
}
