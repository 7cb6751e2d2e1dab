//! IDX files, in which MNIST comes, and the binary files of CIFAR.

use std::io::Read;
use std::path::Path;

use of_diag::{Code, Diagnostics};
use of_ir::{Blob, DType, Elements, Tensor};

use crate::error::{error, io_error};
use crate::images::ImageOptions;

/// The most bytes of a file after decompression.
const MOST: u64 = 1 << 36;

fn wrong(path: &Path, what: &str) -> Diagnostics {
    error(Code::INPUT, format!("'{}' {what}", path.display())).into()
}

/// The bytes of a file, decompressed if it is called `.gz`.
fn bytes(path: &Path) -> Result<Vec<u8>, Diagnostics> {
    let failed = |e: std::io::Error| Diagnostics::from(io_error(path, "read", &e));
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut out = Vec::new();
    match path.extension().is_some_and(|e| e == "gz") {
        true => flate2::read::GzDecoder::new(file).take(MOST).read_to_end(&mut out),
        false => file.take(MOST).read_to_end(&mut out),
    }
    .map_err(failed)?;
    Ok(out)
}

/// Whether a file is called as IDX files are: `train-images-idx3-ubyte`, `x.idx`, either with `.gz`.
pub fn is_idx(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    name.ends_with(".idx") || name.ends_with("-ubyte")
}

/// Reads an IDX file. Source of the format: LeCun's page of MNIST: two zeros, element type, rank, extents (u32), values, big-endian.
///
/// # Errors
/// When it cannot be read, or is no IDX file.
pub fn read_idx(path: &Path) -> Result<Tensor, Diagnostics> {
    let bytes = bytes(path)?;
    let [0, 0, code, rank, rest @ ..] = &bytes[..] else { return Err(wrong(path, "is no IDX file")) };
    let (dtype, size) = match code {
        0x08 => (DType::U8, 1),
        0x09 => (DType::I8, 1),
        0x0b => (DType::I16, 2),
        0x0c => (DType::I32, 4),
        0x0d => (DType::F32, 4),
        0x0e => (DType::F64, 8),
        _ => return Err(wrong(path, &format!("is no IDX file: there is no element type {code:#04x}"))),
    };
    let short = || wrong(path, "is an IDX file that ends too early");
    let (head, values) = rest.split_at_checked(4 * usize::from(*rank)).ok_or_else(short)?;
    let extent = |b: &[u8]| b.try_into().map_or(0, u32::from_be_bytes) as usize;
    let dims: Vec<usize> = head.chunks_exact(4).map(extent).collect();
    let expected = dims.iter().try_fold(size, |n: usize, d| n.checked_mul(*d)).ok_or_else(short)?;
    if values.len() != expected {
        let what = format!("is an IDX file of {dims:?} with {} bytes of values instead of {expected}", values.len());
        return Err(wrong(path, &what));
    }
    let mut values = values.to_vec();
    values.chunks_exact_mut(size).for_each(<[u8]>::reverse);
    Tensor::from_bytes(dtype, dims, Blob::new(values)).map_err(|e| wrong(path, &format!("does not fit: {e}")))
}

/// Bytes of an image of CIFAR: 3 x 32 x 32.
const PIXELS: usize = 3072;

/// Whether a file is called as the binary files of CIFAR are.
pub fn is_cifar(path: &Path) -> bool {
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case("bin"))
}

/// Reads a binary file of CIFAR-10 or CIFAR-100: images `[n, 3, 32, 32]` and labels; of CIFAR-100 the fine ones. Source of the format:
/// Krizhevsky's page of CIFAR: one byte of label, for CIFAR-100 coarse and fine, then red, green and blue.
///
/// # Errors
/// When it cannot be read, or its length is that of neither.
pub fn read_cifar(path: &Path) -> Result<(Tensor, Tensor), Diagnostics> {
    let bytes = bytes(path)?;
    let labels = [1, 2].into_iter().find(|n| !bytes.is_empty() && bytes.len().is_multiple_of(PIXELS + n));
    let labels = labels.ok_or_else(|| {
        wrong(path, &format!("is no file of CIFAR: {} bytes are no multiple of 3073 or 3074", bytes.len()))
    })?;
    let (mut pixels, mut classes) = (Vec::with_capacity(bytes.len()), Vec::new());
    for record in bytes.chunks_exact(PIXELS + labels) {
        classes.push(i64::from(record[labels - 1]));
        pixels.extend_from_slice(&record[labels..]);
    }
    let failed = |e: of_ir::TensorError| wrong(path, &format!("does not fit: {e}"));
    let n = classes.len();
    let images = Tensor::from_bytes(DType::U8, vec![n, 3, 32, 32], Blob::new(pixels)).map_err(failed)?;
    Ok((images, Tensor::from_slice(&[n], &classes).map_err(failed)?))
}

/// Pixels of u8, `[n, channels, h, w]` or `[n, h, w]`, as `(p / 255 - mean) / std`.
///
/// # Errors
/// When there are means or deviations for another number of channels.
pub(super) fn pixels(values: &Tensor, options: &ImageOptions) -> Result<Tensor, Diagnostics> {
    let dims = values.dims().to_vec();
    let channels = if dims.len() == 4 { dims[1] } else { 1 };
    let each = dims.iter().skip(1).product::<usize>() / channels.max(1);
    let channel = |list: &[f64], otherwise: f64, what: &str| match list.len() {
        0 => Ok(vec![otherwise; channels]),
        1 => Ok(vec![list[0]; channels]),
        n if n == channels => Ok(list.to_vec()),
        n => {
            let what = format!("--image-{what} has {n} numbers, and the images have {channels} channels");
            Err(Diagnostics::from(error(Code::INPUT, what)))
        }
    };
    let (mean, std) = (channel(&options.mean, 0.0, "mean")?, channel(&options.std, 1.0, "std")?);
    let scale = |(i, p): (usize, i64)| {
        let channel = i / each.max(1) % channels.max(1);
        (p as f64 / 255.0 - mean[channel]) / std[channel]
    };
    let scaled = values.to_i64s().unwrap_or_default().into_iter().enumerate().map(scale).collect();
    Tensor::from_elements(DType::F32, dims, Elements::Float(scaled))
        .map_err(|e| error(Code::INPUT, e.to_string()).into())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn idx_files_have_big_endian_values() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.idx");
        let head = [0, 0, 0x0b, 2, 0, 0, 0, 2, 0, 0, 0, 1];
        std::fs::write(&path, [&head[..], &[1, 2, 0xff, 0xfe]].concat()).unwrap();
        let read = read_idx(&path).unwrap();
        assert_eq!((read.dims(), read.to_i64s().unwrap()), (&[2, 1][..], vec![258, -2]));
        let packed = dir.path().join("train-labels-idx1-ubyte.gz");
        let mut file =
            flate2::write::GzEncoder::new(std::fs::File::create(&packed).unwrap(), flate2::Compression::fast());
        file.write_all(&[0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 255]).unwrap();
        file.finish().unwrap();
        assert!(is_idx(&packed) && is_idx(&path) && !is_idx(&dir.path().join("x.npy")));
        assert_eq!(read_idx(&packed).unwrap().to_i64s().unwrap(), [7, 8, 255]);
        for (bytes, words) in [
            (&b"abc"[..], "is no IDX file"),
            (&[0, 0, 7, 1], "no element type 0x07"),
            (&[0, 0, 8, 2, 0, 0], "ends too early"),
            (&[0, 0, 8, 1, 0, 0, 0, 2, 1], "with 1 bytes of values instead of 2"),
            (&[0, 0, 14, 2, 255, 255, 255, 255, 255, 255, 255, 255], "ends too early"),
        ] {
            std::fs::write(&path, bytes).unwrap();
            let e = read_idx(&path).unwrap_err().to_string();
            assert!(e.contains(words), "{e}");
        }
    }

    #[test]
    fn cifar_files_have_labels_before_pixels() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data_batch_1.bin");
        for (labels, class) in [(1, 3), (2, 77)] {
            let mut record = vec![5; labels];
            record[labels - 1] = class;
            record.extend((0..PIXELS).map(|i| (i % 251) as u8));
            std::fs::write(&path, [record.clone(), record].concat()).unwrap();
            let (images, classes) = read_cifar(&path).unwrap();
            assert_eq!((images.dims(), classes.to_i64s().unwrap()), (&[2, 3, 32, 32][..], vec![i64::from(class); 2]));
            assert_eq!(images.to_i64s().unwrap()[PIXELS + 1], 1);
        }
        std::fs::write(&path, [0; 3000]).unwrap();
        assert!(read_cifar(&path).unwrap_err().to_string().contains("is no file of CIFAR"));
    }
}
