//! PNG images, by the crate `png`.

use std::io::Cursor;

use png::{BitDepth, Decoder, Limits, Transformations};

use super::picture::{Picture, check_size, narrow};

/// The picture in a PNG file, of at most `most` bytes.
///
/// # Errors
/// When the file is damaged or its picture too large.
pub(super) fn decode(file: &[u8], most: usize) -> Result<Picture, String> {
    let mut decoder = Decoder::new_with_limits(Cursor::new(file), Limits { bytes: most });
    // Palettes become colours and samples of fewer bits bytes.
    decoder.set_transformations(Transformations::EXPAND);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let mut reader = decoder.read_info().map_err(|e| e.to_string())?;
    let (width, height) = (reader.info().width as usize, reader.info().height as usize);
    check_size(width, height, most)?;
    let bytes = reader.output_buffer_size().filter(|n| *n <= most);
    let mut samples = vec![0; bytes.ok_or("its samples are above the limit")?];
    reader.next_frame(&mut samples).map_err(|e| e.to_string())?;
    let (color, depth) = reader.output_color_type();
    if depth == BitDepth::Sixteen {
        samples = samples.chunks_exact(2).map(|s| narrow(u16::from_be_bytes([s[0], s[1]]))).collect();
    }
    Picture::from_samples(width, height, color.samples(), &samples)
}
