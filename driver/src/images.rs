//! Images as values of inputs: decoded, scaled to the size of the input, normalized.

use std::path::Path;

use of_diag::{Code, Diagnostics};
use of_images::{Area, Crop, Part, Scaler, change_colours, decode_part, flip, look_up, needed, to_grey};
use of_ir::{Blob, DType, Elements, Tensor, Type};

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
    /// The pixels of a file that are needed.
    decoded: Part,
    /// What is shown of it, in the size of the input, with all its channels.
    shown: Vec<u8>,
    scaler: Scaler,
}

/// The part of a picture that is shown, and how.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct View {
    /// `None` is all.
    pub crop: Option<Crop>,
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
        let size = |width, height| (self.axes.width.unwrap_or(width), self.axes.height.unwrap_or(height));
        let wanted = |width: usize, height: usize| match view(width, height).crop {
            Some(crop) => needed(crop, size(width, height)),
            None => Area::whole(width, height),
        };
        let ImageMemory { decoded, shown, scaler } = memory;
        decode_part(file, MAX_BYTES, &wanted, decoded).map_err(wrong)?;
        let (view, size) = (view(decoded.width, decoded.height), size(decoded.width, decoded.height));
        scaler.scale(decoded, view.crop, size, shown).map_err(wrong)?;
        if let Some(factors) = view.colours {
            change_colours(shown, factors);
        }
        let channels = self.axes.channels;
        if channels == 1 {
            to_grey(shown);
        }
        let (width, height) = size;
        if view.flipped {
            flip(shown, width, channels);
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
        let tables = self.values.as_chunks::<BYTES>().0.as_chunks::<256>().0;
        look_up(pixels, tables, self.axes.channels_first, to.as_chunks_mut::<BYTES>().0);
    }
}

/// Bytes of a picture at most: files of a few bytes may claim to hold pictures of any size.
const MAX_BYTES: usize = 512 << 20;

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
