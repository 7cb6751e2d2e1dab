//! Images as values of inputs: decoded, scaled to the size of the input, normalized.

use std::path::Path;

use fast_image_resize::images::Image;
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use of_diag::{Code, Diagnostics};
use of_ir::{Blob, DType, Elements, Tensor, Type};
use of_ops::image::{Picture, decode_rgb};
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use crate::error::{error, io_error};

/// How pixels become numbers. An input of u8 takes them from 0 to 255; one of floats takes `(p / 255 - mean) / std`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ImageOptions {
    /// The mean of each channel, or of all; none is 0.
    pub mean: Vec<f64>,
    /// The standard deviation of each channel, or of all; none is 1.
    pub std: Vec<f64>,
}

/// Whether the name of a file is that of an image.
pub(crate) fn is_image(path: &Path) -> bool {
    const EXTENSIONS: [&str; 12] =
        ["png", "jpg", "jpeg", "bmp", "ppm", "pgm", "pbm", "pnm", "tif", "tiff", "webp", "jp2"];
    path.extension().is_some_and(|e| EXTENSIONS.iter().any(|known| e.eq_ignore_ascii_case(known)))
}

/// Where the axes of an image are in an input, and how long they must be.
#[derive(Clone, Copy, Debug)]
struct Axes {
    /// Rank 4: an axis of length 1 comes first.
    batch: bool,
    channels_first: bool,
    channels: usize,
    /// `None` is the size of the file.
    height: Option<usize>,
    width: Option<usize>,
}

/// Reads an image for the input `name` of type `ty`: `[N, C, H, W]`, `[N, H, W, C]`, or without N, with one or three channels.
///
/// # Errors
/// When the file is no image, or the input does not take one.
pub(crate) fn read(path: &Path, ty: Option<&Type>, name: &str, options: &ImageOptions) -> Result<Tensor, Diagnostics> {
    let place = format!("'{}'", path.display());
    // An input that takes no image is a mistake whatever the file is.
    let input = ImageInput::new(ty, name, options, &place)?;
    let file = std::fs::read(path).map_err(|e| io_error(path, "read", &e))?;
    input.tensor(&file, &|_, _| View::default(), &place)
}

/// What an input takes of an image.
#[derive(Clone, Debug)]
pub(crate) struct ImageInput {
    dtype: DType,
    axes: Axes,
    /// For each channel the bytes of the values of its 256 intensities.
    values: Vec<u8>,
}

/// Memory that images which are read one after another use again.
#[derive(Default)]
pub(crate) struct ImageMemory {
    picture: Picture,
    /// What is shown of it, in the size of the input, with all its channels.
    shown: Vec<u8>,
    resizer: Resizer,
}

/// The part of a picture that is shown, and how.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct View {
    /// Left and upper edge, width and height, in pixels; `None` is all.
    pub crop: Option<[f64; 4]>,
    /// Whether left and right change places.
    pub flipped: bool,
    /// Factors of brightness, contrast and saturation.
    pub colours: Option<[f32; 3]>,
}

impl ImageInput {
    /// The image that the input `name` of type `ty` takes; `place` says where one comes from.
    ///
    /// # Errors
    /// When the input does not take an image, or `options` do not fit its channels.
    pub fn new(ty: Option<&Type>, name: &str, options: &ImageOptions, place: &str) -> Result<ImageInput, Diagnostics> {
        let wrong = |what: String| Diagnostics::from(error(Code::INPUT, format!("{place}: {what}")));
        let tensor = ty.and_then(Type::as_tensor);
        let Some((dtype, axes)) = tensor.and_then(|t| Some((t.dtype, axes(t.shape.as_deref()?)?))) else {
            let ty = ty.map_or_else(|| "of no known type".into(), ToString::to_string);
            let hint = "an image is [N, C, H, W] or [N, H, W, C] with N = 1, or without N, with one or three channels";
            let what = format!("{place}: input '{name}' is {ty}, which is no image");
            return Err(error(Code::INPUT, what).hint(hint).into());
        };
        let channel = |list: &[f64], otherwise: f32, what: &str| match list.len() {
            0 => Ok(vec![otherwise; axes.channels]),
            1 => Ok(vec![list[0] as f32; axes.channels]),
            n if n == axes.channels => Ok(list.iter().map(|x| *x as f32).collect()),
            n => {
                let channels = axes.channels;
                Err(wrong(format!("--image-{what} has {n} numbers, and input '{name}' has {channels} channels")))
            }
        };
        let (mean, std) = (channel(&options.mean, 0.0, "mean")?, channel(&options.std, 1.0, "std")?);
        let is_plain = dtype == DType::U8 && options.mean.is_empty() && options.std.is_empty();
        let holds_floats = dtype.is_float() && dtype.bits().is_some_and(|bits| bits >= 8);
        if !is_plain && !holds_floats {
            let what =
                format!("input '{name}' holds {dtype}: pixels are u8, or floats with --image-mean and --image-std");
            return Err(wrong(what));
        }
        let value = |c: usize, p: u8| if is_plain { f32::from(p) } else { (f32::from(p) / 255.0 - mean[c]) / std[c] };
        let values = (0..axes.channels).flat_map(|c| (0..=u8::MAX).map(move |p| (c, p)));
        let values = values.map(|(c, p)| f64::from(value(c, p))).collect();
        let values = Tensor::from_elements(dtype, vec![axes.channels, 256], Elements::Float(values));
        let values = values.map_err(|e| wrong(e.to_string()))?;
        Ok(ImageInput { dtype, axes, values: values.bytes().map_or_else(Vec::new, |bytes| bytes.to_vec()) })
    }

    /// The element type of values.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The value of the input for a file; `view` gives what is shown of a picture, by its width and height.
    ///
    /// # Errors
    /// When the file is no image.
    pub fn tensor(&self, file: &[u8], view: &dyn Fn(usize, usize) -> View, place: &str) -> Result<Tensor, Diagnostics> {
        let mut memory = ImageMemory::default();
        let dims = self.show(file, view, place, &mut memory)?;
        let mut bytes = vec![0; dims.iter().product::<usize>() * self.element_bytes()];
        self.fill(&memory, &mut bytes);
        Tensor::from_bytes(self.dtype, dims, Blob::new(bytes))
            .map_err(|e| error(Code::INPUT, format!("{place}: {e}")).into())
    }

    /// Decodes a file into `memory`, with what `view` shows of the picture, by its width and height, in the size of the input. Returns the
    /// extents of its value.
    ///
    /// # Errors
    /// When the file is no image.
    pub fn show(
        &self,
        file: &[u8],
        view: &dyn Fn(usize, usize) -> View,
        place: &str,
        memory: &mut ImageMemory,
    ) -> Result<Vec<usize>, Diagnostics> {
        let wrong = |what: String| Diagnostics::from(error(Code::INPUT, format!("{place}: {what}")));
        decode(file, &mut memory.picture).map_err(wrong)?;
        let Picture { width, height, .. } = memory.picture;
        let view = view(width, height);
        let channels = self.axes.channels;
        let (height, width) = (self.axes.height.unwrap_or(height), self.axes.width.unwrap_or(width));
        memory.resize(view.crop, (width, height)).map_err(wrong)?;
        let pixels = &mut memory.shown;
        if let Some(factors) = view.colours {
            change_colours(pixels, factors);
        }
        if channels == 1 {
            *pixels = pixels.chunks_exact(3).map(|p| grey(p).round() as u8).collect();
        }
        if view.flipped {
            flip(pixels, width, channels);
        }
        let mut dims = match self.axes.channels_first {
            true => vec![channels, height, width],
            false => vec![height, width, channels],
        };
        if self.axes.batch {
            dims.insert(0, 1);
        }
        Ok(dims)
    }

    /// Writes the value of the picture that was decoded into `memory`, of as many bytes as its extents say.
    pub fn fill(&self, memory: &ImageMemory, to: &mut [u8]) {
        match self.element_bytes() {
            1 => self.fill_elements::<1>(&memory.shown, to),
            2 => self.fill_elements::<2>(&memory.shown, to),
            4 => self.fill_elements::<4>(&memory.shown, to),
            _ => self.fill_elements::<8>(&memory.shown, to),
        }
    }

    fn element_bytes(&self) -> usize {
        self.dtype.bits().unwrap_or(8) / 8
    }

    /// As [`ImageInput::fill`], for elements of so many bytes.
    fn fill_elements<const BYTES: usize>(&self, pixels: &[u8], to: &mut [u8]) {
        let (tables, to) = (self.values.as_chunks::<BYTES>().0.as_chunks::<256>().0, to.as_chunks_mut::<BYTES>().0);
        let channels = tables.len().max(1);
        if !self.axes.channels_first {
            for (i, (value, p)) in to.iter_mut().zip(pixels).enumerate() {
                *value = tables[i % channels][usize::from(*p)];
            }
            return;
        }
        if let [red, green, blue] = tables {
            let pixels = pixels.as_chunks::<3>().0;
            let (reds, others) = to.split_at_mut(pixels.len());
            let (greens, blues) = others.split_at_mut(pixels.len());
            for (((p, r), g), b) in pixels.iter().zip(reds).zip(greens).zip(blues) {
                (*r, *g, *b) = (red[usize::from(p[0])], green[usize::from(p[1])], blue[usize::from(p[2])]);
            }
        } else if let [table] = tables {
            to.iter_mut().zip(pixels).for_each(|(value, p)| *value = table[usize::from(*p)]);
        }
    }
}

/// Bytes of a picture that the fast decoder makes at most.
const MAX_JPEG_BYTES: usize = 256 << 20;

/// Decodes the picture in a file: JPEG by a fast decoder, which leaves large pictures, and rare kinds such as arithmetic coding, to that of
/// the op `of.image_decoder`, as all other formats are.
fn decode(file: &[u8], picture: &mut Picture) -> Result<(), String> {
    if file.starts_with(&[0xff, 0xd8, 0xff]) {
        let options = DecoderOptions::new_fast().set_strict_mode(true).jpeg_set_out_colorspace(ColorSpace::RGB);
        let mut decoder = JpegDecoder::new_with_options(ZCursor::new(file), options);
        if decoder.decode_headers().is_ok()
            && let Some((width, height)) = decoder.dimensions()
            && let Some(bytes) = decoder.output_buffer_size()
            && bytes <= MAX_JPEG_BYTES
            && bytes == width * height * 3
        {
            picture.pixels.resize(bytes, 0);
            (picture.width, picture.height) = (width, height);
            if decoder.decode_into(&mut picture.pixels).is_ok() {
                return Ok(());
            }
        }
    }
    *picture = decode_rgb(file)?;
    Ok(())
}

/// The axes of a shape that an image fits into.
fn axes(shape: &[of_ir::Dim]) -> Option<Axes> {
    let extent = |d: &of_ir::Dim| d.as_const().and_then(|n| usize::try_from(n).ok());
    let (batch, rest) = match shape {
        [n, rest @ ..] if rest.len() == 3 && extent(n).is_none_or(|n| n == 1) => (true, rest),
        rest if rest.len() == 3 => (false, rest),
        _ => return None,
    };
    let [first, second, third] = [extent(&rest[0]), extent(&rest[1]), extent(&rest[2])];
    let channels = |extent: Option<usize>| extent.filter(|n| *n == 1 || *n == 3);
    match (channels(first), channels(third)) {
        (Some(channels), _) => Some(Axes { batch, channels_first: true, channels, height: second, width: third }),
        (None, Some(channels)) => Some(Axes { batch, channels_first: false, channels, height: first, width: second }),
        _ => None,
    }
}

/// Grey of a pixel: `0.299 R + 0.587 G + 0.114 B` (ITU-R BT.601).
fn grey(p: &[u8]) -> f32 {
    0.299 * f32::from(p[0]) + 0.587 * f32::from(p[1]) + 0.114 * f32::from(p[2])
}

impl ImageMemory {
    /// Shows a part of the picture in another size: linear interpolation, and where it shrinks, averages over the covered pixels.
    fn resize(&mut self, crop: Option<[f64; 4]>, (width, height): (usize, usize)) -> Result<(), String> {
        let Picture { width: own_width, height: own_height, pixels } = &mut self.picture;
        if crop.is_none() && (*own_width, *own_height) == (width, height) {
            std::mem::swap(pixels, &mut self.shown);
            return Ok(());
        }
        let size = |n: usize| u32::try_from(n).map_err(|_| format!("{n} pixels in a row or column are too many"));
        let (to_width, to_height) = (size(width)?, size(height)?);
        self.shown.resize(width * height * 3, 0);
        let from = Image::from_slice_u8(size(*own_width)?, size(*own_height)?, pixels, PixelType::U8x3);
        let to = Image::from_slice_u8(to_width, to_height, &mut self.shown, PixelType::U8x3);
        let (from, mut to) = (from.map_err(|e| e.to_string())?, to.map_err(|e| e.to_string())?);
        let mut options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear));
        if let Some([left, top, width, height]) = crop {
            options = options.crop(left, top, width, height);
        }
        self.resizer.resize(&from, &mut to, &options).map_err(|e| e.to_string())
    }
}

/// Multiplies the brightness of pixels, then their distance from the mean grey, then that from their own grey.
fn change_colours(pixels: &mut [u8], [brightness, contrast, saturation]: [f32; 3]) {
    let blend = |p: u8, with: f32, factor: f32| (with + (f32::from(p) - with) * factor).clamp(0.0, 255.0) as u8;
    let by_table = |pixels: &mut [u8], with: f32, factor: f32| {
        let table: [u8; 256] = std::array::from_fn(|p| blend(p as u8, with, factor));
        pixels.iter_mut().for_each(|p| *p = table[usize::from(*p)]);
    };
    by_table(pixels, 0.0, brightness);
    let mean = pixels.chunks_exact(3).map(|p| f64::from(grey(p))).sum::<f64>() / (pixels.len() / 3).max(1) as f64;
    by_table(pixels, mean as f32, contrast);
    for pixel in pixels.chunks_exact_mut(3) {
        let own = grey(pixel);
        pixel.iter_mut().for_each(|p| *p = blend(*p, own, saturation));
    }
}

/// Swaps left and right.
fn flip(pixels: &mut [u8], width: usize, channels: usize) {
    for row in pixels.chunks_exact_mut((width * channels).max(1)) {
        for x in 0..width / 2 {
            for c in 0..channels {
                row.swap(x * channels + c, (width - 1 - x) * channels + c);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A picture of two red pixels above two blue ones.
    fn file(dir: &Path) -> std::path::PathBuf {
        let path = dir.join("p.ppm");
        let mut bytes = b"P6\n2 2\n255\n".to_vec();
        bytes.extend([255, 0, 0, 255, 0, 0, 0, 0, 255, 0, 0, 255]);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn read_as(ty: &str, options: &ImageOptions) -> Result<Tensor, String> {
        let dir = tempfile::tempdir().unwrap();
        let text = format!("func @main(%x: {ty}) {{ of.return }}");
        let module = of_ir::text::parse_module(&text, "t", &of_ops::registry(), None).unwrap();
        let ty = module.main().unwrap().input_types().remove(0);
        read(&file(dir.path()), Some(&ty), "x", options).map_err(|e| e.0[0].message.clone())
    }

    #[test]
    fn pixels_take_the_layout_and_the_size_of_the_input() {
        let plain = ImageOptions::default();
        let t = read_as("tensor<1x3x2x2xf32>", &plain).unwrap();
        assert_eq!(
            (t.dims(), t.to_f64s().unwrap()),
            (&[1, 3, 2, 2][..], [1., 1., 0., 0., 0., 0., 0., 0., 0., 0., 1., 1.].into())
        );
        let t = read_as("tensor<?x?x3xui8>", &plain).unwrap();
        assert_eq!(
            (t.dims(), t.to_f64s().unwrap()),
            (&[2, 2, 3][..], [255., 0., 0., 255., 0., 0., 0., 0., 255., 0., 0., 255.].into())
        );
        // One pixel is the average of all four, rounded.
        let t = read_as("tensor<3x1x1xf32>", &plain).unwrap();
        assert_eq!(t.to_f64s().unwrap(), [128.0, 0.0, 128.0].map(|p: f32| f64::from(p / 255.0)));
        let normalized = ImageOptions { mean: vec![0.5], std: vec![0.5, 1.0, 2.0] };
        let half = 128.0 / 255.0f32 - 0.5;
        let normal = [half / 0.5, -0.5, half / 2.0].map(f64::from);
        assert_eq!(read_as("tensor<3x1x1xf32>", &normalized).unwrap().to_f64s().unwrap(), normal);
    }

    #[test]
    fn views_crop_mirror_and_change_colours() {
        let dir = tempfile::tempdir().unwrap();
        let file = std::fs::read(file(dir.path())).unwrap();
        let ty = Type::tensor(DType::U8, [2i64, 2, 3].map(of_ir::Dim::from).to_vec());
        let input = ImageInput::new(Some(&ty), "x", &ImageOptions::default(), "p").unwrap();
        let shown = |view: View| input.tensor(&file, &|_, _| view, "p").unwrap().to_f64s().unwrap();
        let (red, blue) = ([255., 0., 0.], [0., 0., 255.]);
        assert_eq!(shown(View::default()), [red, red, blue, blue].concat());
        // Half of the pixels of the lower row are those below the part.
        let top = View { crop: Some([0.0, 0.0, 2.0, 1.0]), ..View::default() };
        let mixed = [191., 0., 64.];
        assert_eq!(shown(top), [red, red, mixed, mixed].concat());
        let grey = View { colours: Some([1.0, 1.0, 0.0]), ..View::default() };
        assert_eq!(shown(grey), [[76.; 3], [76.; 3], [29.; 3], [29.; 3]].concat());
        let dark = View { colours: Some([0.0, 1.0, 1.0]), ..View::default() };
        assert_eq!(shown(dark), [0.0; 12]);
        let mut pixels = vec![1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0, 0];
        flip(&mut pixels, 2, 3);
        assert_eq!(pixels, [4, 5, 6, 1, 2, 3, 0, 0, 0, 7, 8, 9]);
    }

    #[test]
    fn inputs_that_take_no_image_are_named() {
        let normalized = ImageOptions { mean: vec![0.5, 0.5], std: Vec::new() };
        for (ty, what) in [
            ("tensor<2x2xf32>", "which is no image"),
            ("tensor<8x3x2x2xf32>", "which is no image"),
            ("tensor<3x2x2xi64>", "input 'x' holds i64"),
        ] {
            let e = read_as(ty, &ImageOptions::default()).unwrap_err();
            assert!(e.contains(what) && e.contains("p.ppm"), "{e}");
        }
        assert!(read_as("tensor<3x2x2xf32>", &normalized).unwrap_err().contains("--image-mean has 2 numbers"));
    }
}
