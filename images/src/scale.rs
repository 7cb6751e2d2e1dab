//! Pictures in another size.

use fast_image_resize::images::{Image, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};

use crate::formats::Part;
use crate::picture::Area;

/// Shows pictures, or parts of them, in another size. It keeps its memory for the next one.
#[derive(Default)]
pub struct Scaler {
    resizer: Resizer,
}

/// A rectangle in a picture: left, top, width, height, in pixels.
pub type Crop = [f64; 4];

impl Scaler {
    /// Shows `crop` of a picture, or all of it, in a size of so many pixels across and down: linear interpolation, and where it shrinks,
    /// averages over the covered pixels. Pixels next to a crop count where they would without it.
    ///
    /// # Errors
    /// When the crop is not within the picture, or a size is out of range.
    pub fn scale(
        &mut self,
        part: &mut Part,
        crop: Option<Crop>,
        (width, height): (usize, usize),
        shown: &mut Vec<u8>,
    ) -> Result<(), String> {
        let area = part.area;
        if crop.is_none() && area == Area::whole(width, height) {
            std::mem::swap(&mut part.pixels, shown);
            return Ok(());
        }
        let size = |n: usize| u32::try_from(n).map_err(|_| format!("{n} pixels in a row or column are too many"));
        shown.resize(width * height * 3, 0);
        let from = ImageRef::new(size(area.width)?, size(area.height)?, &part.pixels, PixelType::U8x3);
        let to = Image::from_slice_u8(size(width)?, size(height)?, shown, PixelType::U8x3);
        let (from, mut to) = (from.map_err(|e| e.to_string())?, to.map_err(|e| e.to_string())?);
        let mut options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear));
        if let Some([left, top, width, height]) = crop {
            options = options.crop(left - area.left as f64, top - area.top as f64, width, height);
        }
        self.resizer.resize(&from, &mut to, &options).map_err(|e| e.to_string())
    }
}

/// The pixels that [`Scaler::scale`] reads for a crop in this size.
#[must_use]
pub fn needed(crop: Crop, (width, height): (usize, usize)) -> Area {
    let [left, top, own_width, own_height] = crop;
    // The filter has a width of one pixel of the larger of the two sizes on either side.
    let side = |begin: f64, length: f64, shown: usize| {
        let margin = (length / shown.max(1) as f64).max(1.0) + 1.0;
        let (first, end) = ((begin - margin).floor().max(0.0), (begin + length + margin).ceil().max(0.0));
        (first as usize, (end - first) as usize)
    };
    let (left, width) = side(left, own_width, width);
    let (top, height) = side(top, own_height, height);
    Area { left, top, width, height }
}
