//! TIFF images, by the crate `tiff`.

use std::io::Cursor;

use tiff::ColorType;
use tiff::decoder::{BufferLayoutPreference, Decoder, DecodingResult, Limits};

use super::picture::{Picture, check_size, narrow};

/// The first picture in a TIFF file, of at most `most` bytes.
///
/// # Errors
/// When the file is damaged, its picture too large, or its samples neither of 1, 8 or 16 bits nor f32.
pub(super) fn decode(file: &[u8], most: usize) -> Result<Picture, String> {
    let failed = |e: tiff::TiffError| e.to_string();
    let mut limits = Limits::default();
    limits.decoding_buffer_size = most;
    limits.intermediate_buffer_size = most;
    limits.ifd_value_size = most;
    let mut decoder = Decoder::new(Cursor::new(file)).map_err(failed)?.with_limits(limits);
    let (width, height) = decoder.dimensions().map_err(failed)?;
    let (width, height) = (width as usize, height as usize);
    check_size(width, height, most)?;
    let color = decoder.colortype().map_err(failed)?;
    let channels = match color {
        ColorType::Gray(_) => 1,
        ColorType::GrayA(_) => 2,
        ColorType::RGB(_) => 3,
        ColorType::RGBA(_) | ColorType::CMYK(_) => 4,
        other => return Err(format!("colours of type {other:?} are not supported")),
    };
    let mut samples = DecodingResult::U8(Vec::new());
    let layout = decoder.read_image_to_buffer(&mut samples).map_err(failed)?;
    if samples.as_buffer(0).as_bytes().len() < layout.complete_len {
        return Err("its samples are above the limit".into());
    }
    let cmyk = matches!(color, ColorType::CMYK(_));
    let samples = match samples {
        DecodingResult::U8(v) if color == ColorType::Gray(1) => expand_bits(&v, width),
        DecodingResult::U8(v) if cmyk => from_cmyk(&interleaved(v, &layout, channels), 255.0, |x| x as u8),
        DecodingResult::U8(v) => interleaved(v, &layout, channels),
        DecodingResult::U16(v) if cmyk => from_cmyk(&interleaved(v, &layout, channels), 65535.0, |x| narrow(x as u16)),
        DecodingResult::U16(v) => interleaved(v, &layout, channels).into_iter().map(narrow).collect(),
        // A NaN becomes 0.
        DecodingResult::F32(v) if !cmyk => {
            interleaved(v, &layout, channels).into_iter().map(|x| (x.clamp(0.0, 1.0) * 255.0).round() as u8).collect()
        }
        _ => return Err(format!("samples of this type are not supported (colours are {color:?})")),
    };
    Picture::from_samples(width, height, if cmyk { 3 } else { channels }, &samples)
}

/// Samples whose channels alternate; TIFF may store a plane for each channel instead.
fn interleaved<T: Copy>(samples: Vec<T>, layout: &BufferLayoutPreference, channels: usize) -> Vec<T> {
    let stride = layout.plane_stride.map_or(0, |n| n.get()) / size_of::<T>();
    if layout.planes <= 1 || stride == 0 {
        return samples;
    }
    let planes: Vec<&[T]> = samples.chunks_exact(stride).take(channels).collect();
    (0..stride).flat_map(|i| planes.iter().map(move |p| p[i])).collect()
}

/// Rows of bits, padded to whole bytes, as samples of 0 and 255.
fn expand_bits(rows: &[u8], width: usize) -> Vec<u8> {
    let row = |row: &[u8]| (0..width).map(|x| (row[x / 8] >> (7 - x % 8) & 1) * 255).collect::<Vec<u8>>();
    rows.chunks_exact(width.div_ceil(8).max(1)).flat_map(row).collect()
}

/// RGB of CMYK without a colour profile: `(1 - c) (1 - k)`.
fn from_cmyk<T: Copy + Into<f32>>(samples: &[T], most: f32, sample: impl Fn(f32) -> u8) -> Vec<u8> {
    let mut out = Vec::with_capacity(samples.len() / 4 * 3);
    for p in samples.chunks_exact(4) {
        let light = 1.0 - p[3].into() / most;
        out.extend(p[..3].iter().map(|c| sample((most - (*c).into()) * light)));
    }
    out
}
