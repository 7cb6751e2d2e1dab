//! The formats of pictures that are read, and which file has which.

use hayro_jpeg2000::{ColorSpace, DecodeSettings, DecoderContext};

use crate::picture::{Area, Picture, check_size};
use crate::{bmp, jpeg, png, pnm, tiff, webp};

/// Reads a picture of at most so many bytes, or says why not.
type Decode = fn(&[u8], usize) -> Result<Picture, String>;

/// The formats: what a file begins with (a dot is any byte), its name, and its decoder.
const FORMATS: &[(&[u8], &str, Decode)] = &[
    (b"\x00\x00\x00\x0cjP  ", "JPEG 2000", jpeg_2000),
    (b"\xff\x4f\xff\x51", "JPEG 2000", jpeg_2000),
    (JPEG, "JPEG", whole_jpeg),
    (b"\x89PNG\r\n\x1a\n", "PNG", png::decode),
    (b"RIFF....WEBP", "WebP", webp::decode),
    (b"MM\x00*", "TIFF", tiff::decode),
    (b"II*\x00", "TIFF", tiff::decode),
    (b"BM", "BMP", bmp::decode),
    (b"P1", "PNM", pnm::decode),
    (b"P2", "PNM", pnm::decode),
    (b"P3", "PNM", pnm::decode),
    (b"P4", "PNM", pnm::decode),
    (b"P5", "PNM", pnm::decode),
    (b"P6", "PNM", pnm::decode),
    (b"P7", "PNM", pnm::decode),
];

const JPEG: &[u8] = b"\xff\xd8\xff";

/// A part of a picture.
#[derive(Clone, Debug, Default)]
pub struct Part {
    /// Pixels of a row of the whole picture.
    pub width: usize,
    /// Rows of the whole picture.
    pub height: usize,
    /// The pixels that were decoded.
    pub area: Area,
    /// `area.height * area.width * 3` bytes: rows of pixels of three bytes, red first.
    pub pixels: Vec<u8>,
}

/// The picture in a file, of at most `most` bytes.
///
/// # Errors
/// When the bytes are no picture, or one that is damaged or too large.
pub fn decode(file: &[u8], most: usize) -> Result<Picture, String> {
    let begins =
        |with: &[u8]| file.len() >= with.len() && with.iter().zip(file).all(|(want, b)| want == b || *want == b'.');
    let (_, name, decode) = FORMATS.iter().find(|(with, ..)| begins(with)).ok_or_else(|| {
        "the bytes are no picture of a known format: BMP, JPEG, JPEG 2000, PNG, PNM, TIFF or WebP".to_owned()
    })?;
    decode(file, most).map_err(|e| format!("this {name} file cannot be decoded: {e}"))
}

/// Decodes into `part` at least those pixels of a picture, of at most `most` bytes, that `wanted` chooses by its width and height. Of a JPEG
/// file, the rest costs less; a sequential one is not read beyond the last row. Other formats give the whole picture.
///
/// # Errors
/// When the bytes are no picture, or one that is too large, or damaged in what was read.
pub fn decode_part(
    file: &[u8],
    most: usize,
    wanted: &dyn Fn(usize, usize) -> Area,
    part: &mut Part,
) -> Result<(), String> {
    if file.starts_with(JPEG) {
        return jpeg::decode(file, most, wanted, part).map_err(|e| format!("this JPEG file cannot be decoded: {e}"));
    }
    let Picture { width, height, pixels } = decode(file, most)?;
    *part = Part { width, height, area: Area::whole(width, height), pixels };
    Ok(())
}

fn whole_jpeg(file: &[u8], most: usize) -> Result<Picture, String> {
    let mut part = Part::default();
    jpeg::decode(file, most, &Area::whole, &mut part)?;
    Ok(Picture { width: part.width, height: part.height, pixels: part.pixels })
}

fn jpeg_2000(file: &[u8], most: usize) -> Result<Picture, String> {
    let settings = DecodeSettings { strict: true, ..DecodeSettings::default() };
    let image = hayro_jpeg2000::Image::new(file, &settings).map_err(|e| e.to_string())?;
    let (width, height) = (image.width() as usize, image.height() as usize);
    // It computes in samples of four bytes.
    check_size(width, height, most / 4)?;
    let colours = match image.color_space() {
        ColorSpace::Gray => 1,
        ColorSpace::RGB => 3,
        ColorSpace::Icc { num_channels: n @ (1 | 3), .. } => usize::from(*n),
        _ => return Err("its colours are neither RGB nor grey".into()),
    };
    let channels = colours + usize::from(image.has_alpha());
    let mut context = DecoderContext::default();
    let bytes = image.decode(&mut context).map_err(|e| e.to_string())?.data_u8();
    if bytes.len() != width * height * channels {
        return Err("its colours differ in size".into());
    }
    Picture::from_samples(width, height, channels, &bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 512 << 20;

    /// A file among the tests' pictures; those of the formats that lose nothing hold the same picture.
    macro_rules! file {
        ($name:literal) => {
            include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/images/", $name)).as_slice()
        };
    }

    fn pixels(file: &[u8]) -> (usize, usize, Vec<u8>) {
        let p = decode(file, MOST).unwrap();
        (p.width, p.height, p.pixels)
    }

    #[test]
    fn lossless_formats_decode_equally() {
        let want = pixels(file!("lossless.ppm"));
        assert_eq!((want.0, want.1, want.2.len()), (7, 5, 105));
        for f in [
            file!("lossless.bmp"),
            file!("lossless.jp2"),
            file!("lossless.png"),
            file!("lossless.tiff"),
            file!("lossless.webp"),
        ] {
            assert!(pixels(f) == want, "{:?}", &f[..4]);
        }
    }

    #[test]
    fn jpeg_decoding_equals_libjpeg() {
        // Colours of half the width with restarts; of half the width and height, in several scans and in one; of the full size; none.
        assert!(pixels(file!("baseline.jpg")) == pixels(file!("baseline.ppm")));
        assert!(pixels(file!("progressive.jpg")) == pixels(file!("progressive.ppm")));
        assert!(pixels(file!("subsampled.jpg")) == pixels(file!("subsampled.ppm")));
        assert!(pixels(file!("full.jpg")) == pixels(file!("full.ppm")));
        assert!(pixels(file!("grey.jpg")) == pixels(file!("grey.ppm")));
        // Of inks, and of inks as luminance and differences, as Pillow converts them.
        assert!(pixels(file!("cmyk.jpg")) == pixels(file!("cmyk.ppm")));
        assert!(pixels(file!("ycck.jpg")) == pixels(file!("ycck.ppm")));
    }

    #[test]
    fn truncated_images_are_refused() {
        for f in [file!("baseline.jpg"), file!("progressive.jpg"), file!("lossless.png"), file!("lossless.jp2")] {
            for n in (0..f.len() - 32).step_by(7) {
                assert!(decode(&f[..n], MOST).is_err(), "{n} of {:?}", &f[..4]);
            }
        }
        let e = decode(b"no picture", MOST).err().unwrap();
        assert!(e.contains("no picture of a known format"), "{e}");
    }

    #[test]
    fn oversized_images_are_refused_before_allocation() {
        for f in [b"P6 60000 60000 255 ".as_slice(), file!("baseline.jpg"), file!("lossless.jp2")] {
            let e = decode(f, if f.starts_with(b"P6") { MOST } else { 100 }).err().unwrap();
            assert!(e.contains("limit") || e.contains("imits"), "{e}");
        }
    }
}
