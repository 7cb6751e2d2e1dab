//! NumPy's `.npy` and `.npz` (format 1 to 3: numpy.org/doc/stable/reference/generated/numpy.lib.format.html).

use std::fs::File;
use std::io::Read;
use std::path::Path;

use of_diag::{Code, Diagnostic};
use of_ir::{Blob, DType, Tensor};

use crate::error::{error, io_error};

const MAGIC: &[u8] = b"\x93NUMPY";

/// Reads an array. Big-endian and column-major arrays are brought into the usual order.
///
/// # Errors
/// When the file cannot be read, is damaged, or holds elements that no tensor has.
pub fn read(path: &Path) -> Result<Tensor, Diagnostic> {
    let bytes = std::fs::read(path).map_err(|e| io_error(path, "read", &e))?;
    array(&bytes).map_err(|why| damaged(path, &why))
}

/// Reads the arrays of an archive by name.
///
/// # Errors
/// As [`read`].
pub fn read_npz(path: &Path) -> Result<Vec<(String, Tensor)>, Diagnostic> {
    let file = File::open(path).map_err(|e| io_error(path, "read", &e))?;
    let mut archive = zip::ZipArchive::new(file).map_err(|e| {
        // What an archive has is listed at its end.
        let is_cut = matches!(&e, zip::result::ZipError::InvalidArchive(what) if what.contains("EOCD"));
        let cut = "it is no archive, or its end is missing";
        damaged(path, &if is_cut { cut.to_owned() } else { e.to_string() })
    })?;
    let mut arrays = Vec::new();
    for i in 0..archive.len() {
        let mut member = archive.by_index(i).map_err(|e| damaged(path, &e.to_string()))?;
        let name = member.name().map_err(|e| damaged(path, &e.to_string()))?.trim_end_matches(".npy").to_owned();
        let mut bytes = Vec::new();
        member.read_to_end(&mut bytes).map_err(|e| damaged(path, &e.to_string()))?;
        arrays.push((name.clone(), array(&bytes).map_err(|why| damaged(path, &format!("{name}: {why}")))?));
    }
    Ok(arrays)
}

/// Writes an array, in format 1.
///
/// # Errors
/// When the file cannot be written, or NumPy has no such elements.
pub fn write(path: &Path, tensor: &Tensor) -> Result<(), Diagnostic> {
    let (Some(descr), Some(data)) = (descr(tensor.dtype()), tensor.bytes()) else {
        let what = format!("NumPy has no array of {}", tensor.dtype());
        return Err(error(Code::INPUT, what).hint("--output-format pb writes any value"));
    };
    let dims: Vec<String> = tensor.dims().iter().map(|d| format!("{d},")).collect();
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({}), }}", dims.join(" "));
    // The data starts at a multiple of 64 bytes; magic, version, length and line end take 11.
    let padded = (header.len() + 11).next_multiple_of(64) - 11;
    header.extend(std::iter::repeat_n(' ', padded - header.len()));
    header.push('\n');
    let length = u16::try_from(header.len()).map_err(|_| error(Code::INPUT, "the array has too many axes"))?;
    let bytes = [MAGIC, &[1, 0], &length.to_le_bytes(), header.as_bytes(), data].concat();
    of_files::write(path, bytes).map_err(|e| io_error(path, "written", &e))
}

fn damaged(path: &Path, why: &str) -> Diagnostic {
    let what = format!("'{}' cannot be read as NumPy's: {why}", path.display());
    error(Code::INPUT, what)
        .hint("write it again with numpy.save or numpy.savez, or compare its size with that of the original")
}

/// The types that both sides know.
const TYPES: [(DType, &str); 13] = [
    (DType::F64, "f8"),
    (DType::F32, "f4"),
    (DType::F16, "f2"),
    (DType::I8, "i1"),
    (DType::I16, "i2"),
    (DType::I32, "i4"),
    (DType::I64, "i8"),
    (DType::U8, "u1"),
    (DType::U16, "u2"),
    (DType::U32, "u4"),
    (DType::U64, "u8"),
    (DType::Bool, "b1"),
    // How ml_dtypes saves it.
    (DType::BF16, "V2"),
];

fn descr(dtype: DType) -> Option<String> {
    let (_, code) = TYPES.iter().find(|(d, _)| *d == dtype)?;
    let order = if code.ends_with('1') || code.starts_with('V') { '|' } else { '<' };
    Some(format!("{order}{code}"))
}

pub(crate) fn array(bytes: &[u8]) -> Result<Tensor, String> {
    let rest = bytes.strip_prefix(MAGIC).ok_or("it does not begin as one")?;
    let (version, rest) = rest.split_at_checked(2).ok_or("it ends early")?;
    let width = match version[0] {
        1 => 2,
        2 | 3 => 4,
        v => return Err(format!("format {v} is not known")),
    };
    let (length, rest) = rest.split_at_checked(width).ok_or("it ends early")?;
    let length = length.iter().rev().fold(0usize, |n, b| n << 8 | usize::from(*b));
    let (header, data) = rest.split_at_checked(length).ok_or("it ends early")?;
    let header = std::str::from_utf8(header).map_err(|_| "its header is not text")?;
    let descr = field(header, "descr").ok_or("its header names no type")?;
    let descr = descr.trim_matches(['\'', '"']);
    let (order, code) = match descr.split_at_checked(1) {
        Some((o @ ("<" | ">" | "|" | "="), code)) => (o, code),
        _ => ("|", descr),
    };
    let known = TYPES.iter().find(|(_, c)| *c == code);
    let dtype = known.ok_or_else(|| format!("elements of type '{descr}' have no counterpart"))?.0;
    let dims = field(header, "shape").ok_or("its header has no shape")?;
    let dims = dims.trim_matches(['(', ')']).split(',').map(str::trim).filter(|d| !d.is_empty());
    let dims: Vec<usize> =
        dims.map(|d| d.parse().map_err(|_| format!("'{d}' is no dimension"))).collect::<Result<_, _>>()?;
    let column_major = field(header, "fortran_order").is_some_and(|v| v == "True");

    let size = dtype.bits().unwrap_or(8) / 8;
    let count = dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d)).and_then(|n| n.checked_mul(size));
    if count != Some(data.len()) {
        return Err(format!("shape {dims:?} does not fit {} bytes", data.len()));
    }
    let mut data = data.to_vec();
    if order == ">" {
        data.chunks_exact_mut(size).for_each(<[u8]>::reverse);
    }
    if column_major {
        data = row_major(&data, &dims, size);
    }
    if dtype == DType::Bool && data.iter().any(|b| *b > 1) {
        return Err("a truth value is neither 0 nor 1".into());
    }
    Tensor::from_bytes(dtype, dims, Blob::new(data)).map_err(|e| e.to_string())
}

/// The value of `key` in the header, a Python dictionary.
fn field<'a>(header: &'a str, key: &str) -> Option<&'a str> {
    let rest = header.split_once(&format!("'{key}'"))?.1.trim_start().strip_prefix(':')?.trim_start();
    let end = if rest.starts_with('(') { rest.find(')')? + 1 } else { rest.find([',', '}'])? };
    Some(rest[..end].trim())
}

/// Elements whose first index runs fastest, with the last running fastest.
fn row_major(data: &[u8], dims: &[usize], size: usize) -> Vec<u8> {
    let strides: Vec<usize> = dims.iter().scan(1, |s, d| Some(std::mem::replace(s, *s * d))).collect();
    let mut out = Vec::with_capacity(data.len());
    let mut index = vec![0; dims.len()];
    while out.len() < data.len() {
        let at: usize = index.iter().zip(&strides).map(|(i, s)| i * s * size).sum();
        out.extend_from_slice(&data[at..at + size]);
        for (i, d) in index.iter_mut().zip(dims).rev() {
            *i += 1;
            if *i < *d {
                break;
            }
            *i = 0;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        [MAGIC, &[1, 0], &(header.len() as u16).to_le_bytes(), header.as_bytes(), data].concat()
    }

    #[test]
    fn npy_arrays_round_trip() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.npy");
        for dims in [vec![], vec![3], vec![2, 1, 3], vec![0, 2]] {
            let values: Vec<f32> = (0..dims.iter().product()).map(|i| i as f32 * 0.5).collect();
            let t = Tensor::from_slice(&dims, &values).unwrap();
            write(&path, &t).unwrap();
            assert_eq!(std::fs::read(&path).unwrap().len() % 64, values.len() * 4 % 64);
            assert_eq!(read(&path).unwrap(), t);
        }
        let strings = Tensor::from_strings(vec![1], vec!["a".into()]).unwrap();
        assert!(write(&path, &strings).is_err());
        for dtype in [DType::I2, DType::U4, DType::F4E2M1FN, DType::F8E8M0FNU] {
            let t = Tensor::from_cells(dtype, vec![1], vec![1]).unwrap();
            let why = write(&path, &t).unwrap_err().message;
            assert_eq!(why, format!("NumPy has no array of {dtype}"));
        }
    }

    #[test]
    fn npy_of_other_byte_and_axis_order_is_converted() {
        let t = array(&file(
            "{'descr': '>i2', 'fortran_order': True, 'shape': (2, 3), }\n",
            &[0, 0, 0, 3, 0, 1, 0, 4, 0, 2, 0, 5],
        ));
        assert_eq!(t.unwrap(), Tensor::from_slice(&[2, 3], &[0i16, 1, 2, 3, 4, 5]).unwrap());
    }

    #[test]
    fn npz_arrays_are_read_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.npz");
        let mut zip = zip::ZipWriter::new(File::create(&path).unwrap());
        zip.start_file("x.npy", zip::write::SimpleFileOptions::default()).unwrap();
        zip.write_all(&file("{'descr': '|u1', 'fortran_order': False, 'shape': (2,)}", &[7, 8])).unwrap();
        zip.finish().unwrap();
        let arrays = read_npz(&path).unwrap();
        assert_eq!(arrays, [("x".to_owned(), Tensor::from_slice(&[2], &[7u8, 8]).unwrap())]);
    }

    #[test]
    fn damaged_npy_is_refused() {
        let good = file("{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", &[0; 4]);
        assert!(array(&good).is_ok());
        for end in 0..good.len() {
            assert!(array(&good[..end]).is_err());
        }
        for (header, data) in [
            ("{'descr': '<c8', 'fortran_order': False, 'shape': (1,)}", &[0u8; 8][..]),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", &[]),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}", &[]),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 8)}", &[]),
            ("{'descr': '|b1', 'fortran_order': False, 'shape': (1,)}", &[2]),
        ] {
            assert!(array(&file(header, data)).is_err(), "{header}");
        }
    }
}
