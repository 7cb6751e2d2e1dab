//! `of.image_decoder`.

use std::sync::Arc;

use hayro_jpeg2000::{ColorSpace, DecodeSettings, DecoderContext};
use of_ir::{DType, Dim, OpError, OpView, Tensor, Type};

use super::rgb::{Rgb, check_size};
use super::{bmp, jpeg, png, pnm, tiff, webp};
use crate::sample::Rng;
use crate::{Evaluated, Inferred, Inputs, Op, op, op_basics};

op! {
    /// Decodes the bytes of an image file to `[H, W, C]`: BMP, JPEG, JPEG 2000, PNG, PNM, TIFF or WebP.
    ///
    /// Transparency is dropped, and of an animation the first frame is decoded. Grey pixels become colours of equal parts;
    /// colours become grey by `0.299 R + 0.587 G + 0.114 B` (ITU-R BT.601). ONNX has an empty result for bytes that are
    /// no picture; here that is an error, so that it is not taken for one. Source: ONNX ImageDecoder.
    pub struct ImageDecoder = "of.image_decoder" [Primitive, onnx: "ImageDecoder"] {
        operands: (stream),
        results: (picture),
        attrs: {
            /// `RGB`, `BGR` or `Grayscale`.
            pixel_format: Arc<str>,
        }
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let (h, w) = (r.int(1, 4) as usize, r.int(1, 4) as usize);
        let mut file = format!("P6\n{w} {h}\n255\n").into_bytes();
        file.extend((0..h * w * 3).map(|_| r.int(0, 255) as u8));
        let op = ImageDecoder { pixel_format: r.pick(&["RGB", "BGR", "Grayscale"]).into() };
        Some((vec![Tensor::from_slice(&[file.len()], &file).ok()?.into()], op))
    };
}

/// Files of a few bytes may claim to hold pictures of any size. Larger ones are refused before memory is taken.
const MAX_BYTES: usize = 512 << 20;

/// The requested order of channels.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Channels {
    Rgb,
    Bgr,
    Grey,
}

/// Reads a picture of at most so many bytes, or says why not.
type Decode = fn(&[u8], usize) -> Result<Rgb, String>;

/// The formats: what a file begins with (a dot is any byte), its name, and its decoder.
const FORMATS: &[(&[u8], &str, Decode)] = &[
    (b"\x00\x00\x00\x0cjP  ", "JPEG 2000", jpeg_2000),
    (b"\xff\x4f\xff\x51", "JPEG 2000", jpeg_2000),
    (b"\xff\xd8\xff", "JPEG", jpeg),
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

/// A decoded picture: rows of pixels of three bytes, red first.
#[derive(Clone, Debug, Default)]
pub struct Picture {
    /// Pixels of a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// `height * width * 3` bytes.
    pub pixels: Vec<u8>,
}

/// The picture in a file, in any format that `of.image_decoder` reads.
///
/// # Errors
/// When the bytes are no picture, or one that is damaged or too large.
pub fn decode_rgb(file: &[u8]) -> Result<Picture, String> {
    let Rgb { width, height, pixels } = decode(file, MAX_BYTES)?;
    Ok(Picture { width, height, pixels })
}

/// The picture in a file, of at most `most` bytes.
fn decode(file: &[u8], most: usize) -> Result<Rgb, String> {
    let begins =
        |with: &[u8]| file.len() >= with.len() && with.iter().zip(file).all(|(want, b)| want == b || *want == b'.');
    let (_, name, decode) = FORMATS.iter().find(|(with, ..)| begins(with)).ok_or_else(|| {
        "the bytes are no picture of a known format: BMP, JPEG, JPEG 2000, PNG, PNM, TIFF or WebP".to_owned()
    })?;
    decode(file, most).map_err(|e| format!("this {name} file cannot be decoded: {e}"))
}

fn jpeg(file: &[u8], most: usize) -> Result<Rgb, String> {
    let p = jpeg::decode(file, most)?;
    Rgb::from_samples(p.width, p.height, p.channels, &p.pixels)
}

fn jpeg_2000(file: &[u8], most: usize) -> Result<Rgb, String> {
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
    Rgb::from_samples(width, height, channels, &bytes)
}

impl ImageDecoder {
    fn channels(&self) -> Result<Channels, OpError> {
        match &*self.pixel_format {
            "RGB" => Ok(Channels::Rgb),
            "BGR" => Ok(Channels::Bgr),
            "Grayscale" => Ok(Channels::Grey),
            other => {
                Err(OpError::attr(format!("pixel_format '{other}' is not known")).hint("RGB, BGR and Grayscale are"))
            }
        }
    }
}

impl Op for ImageDecoder {
    op_basics!(ImageDecoder);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let stream = cx.tensor(0)?;
        if stream.dtype != DType::U8 || stream.rank().is_some_and(|r| r != 1) {
            return Err(OpError::ty(format!(
                "the bytes must be a list of u8, they are {}",
                Type::Tensor(stream.clone())
            )));
        }
        let channels = if self.channels()? == Channels::Grey { 1i64 } else { 3 };
        Ok(vec![Type::tensor(DType::U8, vec![Dim::unknown(), Dim::unknown(), channels.into()])])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let channels = self.channels()?;
        let stream = inputs.tensor(0)?;
        let file = stream.as_slice::<u8>().ok_or_else(|| OpError::eval("the bytes must be u8"))?;
        let Rgb { width, height, mut pixels } = decode(&file, MAX_BYTES).map_err(OpError::eval)?;
        match channels {
            Channels::Rgb => {}
            Channels::Bgr => pixels.chunks_exact_mut(3).for_each(|p| p.swap(0, 2)),
            Channels::Grey => pixels = pixels.chunks_exact(3).map(grey).collect(),
        }
        let n = if channels == Channels::Grey { 1 } else { 3 };
        let picture = Tensor::from_slice(&[height, width, n], &pixels)?;
        Ok(vec![picture.into()])
    }
}

/// Luminance, with 16 bits behind the point; the weights add up to one, so that grey stays what it is.
fn grey(p: &[u8]) -> u8 {
    let sum = 19595 * u32::from(p[0]) + 38470 * u32::from(p[1]) + 7471 * u32::from(p[2]);
    ((sum + (1 << 15)) >> 16) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file among the tests' pictures; those of the formats that lose nothing hold the same picture.
    macro_rules! file {
        ($name:literal) => {
            include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/images/", $name)).as_slice()
        };
    }

    fn pixels(file: &[u8]) -> (usize, usize, Vec<u8>) {
        let p = decode(file, MAX_BYTES).unwrap();
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
        // Colours of half the width with restarts; of half the width and height, in several scans.
        assert!(pixels(file!("baseline.jpg")) == pixels(file!("baseline.ppm")));
        assert!(pixels(file!("progressive.jpg")) == pixels(file!("progressive.ppm")));
    }

    #[test]
    fn truncated_images_are_refused() {
        for f in [file!("baseline.jpg"), file!("progressive.jpg"), file!("lossless.png"), file!("lossless.jp2")] {
            for n in (0..f.len() - 32).step_by(7) {
                assert!(decode(&f[..n], MAX_BYTES).is_err(), "{n} of {:?}", &f[..4]);
            }
        }
        let e = decode(b"no picture", MAX_BYTES).err().unwrap();
        assert!(e.contains("no picture of a known format"), "{e}");
    }

    #[test]
    fn oversized_images_are_refused_before_allocation() {
        for f in [b"P6 60000 60000 255 ".as_slice(), file!("baseline.jpg"), file!("lossless.jp2")] {
            let e = decode(f, if f.starts_with(b"P6") { MAX_BYTES } else { 100 }).err().unwrap();
            assert!(e.contains("limit") || e.contains("imits"), "{e}");
        }
    }

    #[test]
    fn grayscale_decodes_to_grayscale() {
        assert!((0..=255).all(|x| grey(&[x, x, x]) == x));
        assert_eq!([grey(&[255, 0, 0]), grey(&[0, 255, 0]), grey(&[0, 0, 255])], [76, 150, 29]);
    }
}
