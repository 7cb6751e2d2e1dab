//! `of.image_decoder`.

use std::sync::Arc;

use of_images::{Picture, decode};
use of_ir::{DType, Dim, OpError, OpView, Tensor, Type};

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
        let Picture { width, height, mut pixels } = decode(&file, MAX_BYTES).map_err(OpError::eval)?;
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

    #[test]
    fn grayscale_decodes_to_grayscale() {
        assert!((0..=255).all(|x| grey(&[x, x, x]) == x));
        assert_eq!([grey(&[255, 0, 0]), grey(&[0, 255, 0]), grey(&[0, 0, 255])], [76, 150, 29]);
    }
}
