//! Images as values of inputs: decoded, scaled to the size of the input, normalized.

use std::path::Path;

use of_diag::{Code, Diagnostics};
use of_ir::{DType, Elements, Tensor, Type};
use of_ops::image::{Picture, decode_rgb};

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
    element_and_axes(ty, name, &place)?;
    let file = std::fs::read(path).map_err(|e| io_error(path, "read", &e))?;
    decode(&file, ty, name, options, &place)
}

/// The element type of an input that takes an image, and where its axes are.
fn element_and_axes(ty: Option<&Type>, name: &str, place: &str) -> Result<(DType, Axes), Diagnostics> {
    let tensor = ty.and_then(Type::as_tensor);
    let found = tensor.and_then(|t| Some((t.dtype, axes(t.shape.as_deref()?)?)));
    found.ok_or_else(|| {
        let ty = ty.map_or_else(|| "of no known type".into(), ToString::to_string);
        let hint = "an image is [N, C, H, W] or [N, H, W, C] with N = 1, or without N, with one or three channels";
        error(Code::INPUT, format!("{place}: input '{name}' is {ty}, which is no image")).hint(hint).into()
    })
}

/// As [`read`], of the bytes of a file; `place` says where they come from.
///
/// # Errors
/// As [`read`].
pub(crate) fn decode(
    file: &[u8],
    ty: Option<&Type>,
    name: &str,
    options: &ImageOptions,
    place: &str,
) -> Result<Tensor, Diagnostics> {
    let wrong = |what: String| Diagnostics::from(error(Code::INPUT, format!("{place}: {what}")));
    let (dtype, axes) = element_and_axes(ty, name, place)?;
    let channel = |list: &[f64], otherwise: f64, what: &str| match list.len() {
        0 => Ok(vec![otherwise; axes.channels]),
        1 => Ok(vec![list[0]; axes.channels]),
        n if n == axes.channels => Ok(list.to_vec()),
        n => Err(wrong(format!("--image-{what} has {n} numbers, and input '{name}' has {} channels", axes.channels))),
    };
    let (mean, std) = (channel(&options.mean, 0.0, "mean")?, channel(&options.std, 1.0, "std")?);
    let picture = decode_rgb(file).map_err(wrong)?;
    let (height, width) = (axes.height.unwrap_or(picture.height), axes.width.unwrap_or(picture.width));
    let pixels =
        scaled(&channels_of(&picture, axes.channels), (picture.height, picture.width), (height, width), axes.channels);
    let elements = match dtype {
        DType::U8 if options.mean.is_empty() && options.std.is_empty() => {
            Elements::Int(pixels.iter().map(|p| p.round() as i128).collect())
        }
        t if t.is_float() => Elements::Float(
            pixels
                .iter()
                .enumerate()
                .map(|(i, p)| (p / 255.0 - mean[i % axes.channels]) / std[i % axes.channels])
                .collect(),
        ),
        t => {
            return Err(wrong(format!(
                "input '{name}' holds {t}: pixels are u8, or floats with --image-mean and --image-std"
            )));
        }
    };
    let elements = if axes.channels_first { channels_first(elements, axes.channels) } else { elements };
    let mut dims = match axes.channels_first {
        true => vec![axes.channels, height, width],
        false => vec![height, width, axes.channels],
    };
    if axes.batch {
        dims.insert(0, 1);
    }
    Tensor::from_elements(dtype, dims, elements).map_err(|e| wrong(e.to_string()))
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

/// The channels of a picture: three, or grey by `0.299 R + 0.587 G + 0.114 B` (ITU-R BT.601).
fn channels_of(picture: &Picture, channels: usize) -> Vec<f64> {
    let colours = picture.pixels.chunks_exact(3);
    match channels {
        1 => colours.map(|p| 0.299 * f64::from(p[0]) + 0.587 * f64::from(p[1]) + 0.114 * f64::from(p[2])).collect(),
        _ => colours.flatten().map(|p| f64::from(*p)).collect(),
    }
}

/// An image of another size: linear interpolation, and where it shrinks, averages over the covered pixels.
fn scaled(pixels: &[f64], from: (usize, usize), to: (usize, usize), channels: usize) -> Vec<f64> {
    if from == to {
        return pixels.to_vec();
    }
    let rows = resized_rows(pixels, from.0, from.1 * channels, to.0);
    // Columns are rows of each row's pixels.
    let one = from.1 * channels;
    rows.chunks_exact(one).flat_map(|row| resized_rows(row, from.1, channels, to.1)).collect()
}

/// `to` rows out of `from` rows of `length` numbers, by a triangular filter whose centres are aligned at half pixels.
fn resized_rows(pixels: &[f64], from: usize, length: usize, to: usize) -> Vec<f64> {
    let scale = from as f64 / to as f64;
    let reach = scale.max(1.0);
    let mut out = vec![0.0; to * length];
    for (i, row) in out.chunks_exact_mut(length).enumerate() {
        let centre = (i as f64 + 0.5) * scale;
        let first = (centre - reach).floor().max(0.0) as usize;
        let last = ((centre + reach).ceil() as usize).min(from);
        let weight = |j: usize| (1.0 - ((j as f64 + 0.5 - centre) / reach).abs()).max(0.0);
        let sum: f64 = (first..last).map(weight).sum();
        for j in first..last {
            let share = weight(j) / sum;
            row.iter_mut().zip(&pixels[j * length..]).for_each(|(out, pixel)| *out += share * pixel);
        }
    }
    out
}

/// `[H, W, C]` as `[C, H, W]`.
fn channels_first(elements: Elements, channels: usize) -> Elements {
    fn planes<T: Copy>(v: &[T], channels: usize) -> Vec<T> {
        (0..channels).flat_map(|c| v.iter().skip(c).step_by(channels).copied()).collect()
    }
    match elements {
        Elements::Float(v) => Elements::Float(planes(&v, channels)),
        Elements::Int(v) => Elements::Int(planes(&v, channels)),
        text @ Elements::Str(_) => text,
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
        // One pixel is the average of all four.
        let t = read_as("tensor<3x1x1xf32>", &plain).unwrap();
        assert_eq!(t.to_f64s().unwrap(), [0.5, 0.0, 0.5]);
        let normalized = ImageOptions { mean: vec![0.5], std: vec![0.5, 1.0, 2.0] };
        assert_eq!(read_as("tensor<3x1x1xf32>", &normalized).unwrap().to_f64s().unwrap(), [0.0, -0.5, 0.0]);
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
