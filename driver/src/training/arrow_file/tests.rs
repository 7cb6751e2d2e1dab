//! Files that pyarrow wrote: those in `files`, and new ones where there is a pyarrow.

use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use of_diag::Diagnostics;
use of_ir::{DType, Dim, Type};

use super::super::columns::texts;
use super::super::data::{ColumnSpec, DataOptions, Dataset};
use super::open;

fn files() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/training/arrow_file/files")
}

fn column(name: &str, dtype: DType, dims: &[Dim]) -> ColumnSpec {
    let shape = std::iter::once(Dim::symbol("n")).chain(dims.iter().cloned()).collect();
    ColumnSpec { name: name.into(), ty: Type::tensor(dtype, shape) }
}

fn read(files: &[PathBuf], wanted: &[ColumnSpec], cached_bytes: usize) -> Result<Dataset, Diagnostics> {
    let files: Vec<OsString> = files.iter().map(OsString::from).collect();
    Dataset::read_with(&files, wanted, &DataOptions { cached_bytes, ..DataOptions::default() })
}

/// The values of a column of numbers, as f64, of all rows.
fn all(path: &Path, name: &str, dtype: DType, dims: &[Dim]) -> Result<Vec<f64>, String> {
    let wanted = [column(name, dtype, dims), column("last", DType::I64, &[])];
    let read = read(&[path.to_owned()], &wanted, 1).and_then(|data| data.batch(&(0..data.len()).collect::<Vec<_>>()));
    let batch = read.map_err(|d| d.to_string())?;
    let tensor = batch[0].as_tensor().unwrap();
    Ok(match dtype {
        DType::F32 => tensor.to_elements::<f32>().unwrap().into_iter().map(f64::from).collect(),
        DType::F64 => tensor.to_elements::<f64>().unwrap(),
        _ => tensor.to_elements::<i64>().unwrap().into_iter().map(|n| n as f64).collect(),
    })
}

/// Checks all files of a folder.
fn check(folder: &Path) {
    let rows = || (0..8).map(f64::from);
    let pairs: Vec<f64> = rows().flat_map(|i| [i, i + 0.5]).collect();
    let open_extent = [Dim::symbol("t")];
    for name in ["plain.arrow", "lz4.feather", "zstd.feather"] {
        let path = folder.join(name);
        for column in ["x", "large", "fixed"] {
            assert_eq!(all(&path, column, DType::F32, &open_extent).unwrap(), pairs, "{name}: {column}");
        }
        for (column, dtype, want) in [
            ("y", DType::I64, rows().collect::<Vec<_>>()),
            ("z", DType::F64, rows().map(|i| -i).collect()),
            ("tiny", DType::I64, rows().collect()),
            ("negative", DType::I64, rows().map(|i| -i).collect()),
            ("unsigned", DType::I64, rows().map(|i| 4_294_967_295.0 - i).collect()),
            ("flag", DType::F32, rows().map(|i| f64::from(i % 3.0 == 0.0)).collect()),
            ("code", DType::I64, rows().map(|i| 10.0 * (i / 2.0).floor()).collect()),
            ("one", DType::I64, rows().collect()),
            ("day", DType::I64, rows().collect()),
        ] {
            assert_eq!(all(&path, column, dtype, &[]).unwrap(), want, "{name}: {column}");
        }
        let nested: Vec<f64> = rows().flat_map(|i| [i, i + 1.0]).collect();
        assert_eq!(all(&path, "nested", DType::I64, &[Dim::from(2i64), Dim::from(1i64)]).unwrap(), nested);
        for (column, dtype, dims, words) in [
            ("x", DType::F32, &[Dim::from(3i64)][..], "a row has 2 numbers for 'x'"),
            ("gap", DType::I64, &[], "column 'gap', record batch 1: a value is absent"),
            ("none", DType::I64, &[], "column 'none', record batch 0: a value is absent"),
            (
                "uneven",
                DType::F32,
                &open_extent,
                "column 'uneven', record batch 1: lists have different lengths, and 2",
            ),
            ("empty", DType::F32, &open_extent, "column 'empty', record batch 1: a value is absent"),
            ("text", DType::F32, &[], "column 'text' has texts, and the input is f32"),
            ("z", DType::I64, &[], "column 'z' has other numbers, and the input is i64"),
            ("huge", DType::I64, &[], "a whole number is 2^63 or more"),
            ("two", DType::I64, &[], "column 'two' has several parts"),
            ("pairs", DType::I64, &[], "column 'pairs' has several parts"),
            ("decimal", DType::F32, &[], "column 'decimal', record batch 0: its type is none of numbers and texts"),
            ("other", DType::F32, &[], "the data has no values for 'other'"),
        ] {
            let wrong = all(&path, column, dtype, dims).unwrap_err();
            assert!(wrong.contains(words), "{name}: {words}: {wrong}");
        }
        for (column, want) in [("text", "row 3"), ("wide", "row 3"), ("kind", "odd")] {
            let found = texts(&path, column, Some("y")).unwrap();
            assert_eq!((found.len(), &found[3]), (8, &(want.to_owned(), Some(3))), "{name}: {column}");
        }
        let views = texts(&path, "view", None).unwrap();
        assert_eq!((views[2].0.as_str(), views[3].0.as_str()), ("row 2", "row 3row 3row 3row 3row 3"));
    }
    for name in ["stream.arrows", "deltas.arrows"] {
        let found = texts(&folder.join(name), "kind", Some("y")).unwrap();
        let want: Vec<_> = (0..8).map(|i| (format!("row {i}"), Some(i))).collect();
        assert_eq!(found, want, "{name}");
    }
    check_images(&folder.join("images.feather"));
}

/// Checks images of which some are files next to the table.
fn check_images(source: &Path) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("images.feather");
    std::fs::copy(source, &path).unwrap();
    std::fs::create_dir(dir.path().join("pixels")).unwrap();
    for grey in [1, 3, 5] {
        let pixel = [&b"P6\n1 1\n255\n"[..], &[grey; 3]].concat();
        std::fs::write(dir.path().join(format!("pixels/{grey}.ppm")), pixel).unwrap();
    }
    let pixel = [Dim::from(1i64), Dim::from(1i64), Dim::from(3i64)];
    let wanted = [column("image", DType::U8, &pixel), column("y", DType::I64, &[])];
    let data = read(std::slice::from_ref(&path), &wanted, 1).unwrap();
    let batch = data.batch(&[5, 0, 6, 1, 3]).unwrap();
    let greys = batch[0].as_tensor().unwrap().to_elements::<u8>().unwrap();
    assert_eq!(greys.chunks(3).map(|pixel| pixel[0]).collect::<Vec<_>>(), [5, 0, 6, 1, 3]);
    let wrong = data.batch(&[7]).unwrap_err().to_string();
    assert!(wrong.contains("row 7 of column 'image' in '") && wrong.contains("its file 'pixels/7.ppm'"), "{wrong}");
}

#[test]
fn files_of_pyarrow_are_read() {
    check(&files());
}

#[test]
fn files_of_the_installed_pyarrow_are_read() {
    let found = of_test_support::component::python_with(&["pyarrow"]);
    let Some(python) = of_test_support::component::require(&of_test_support::component::PYARROW, found) else { return };
    let dir = tempfile::tempdir().unwrap();
    let out = std::process::Command::new(python).arg(files().join("write.py")).arg(dir.path()).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    check(dir.path());
}

#[test]
fn record_batches_are_parts_of_data_that_is_larger_than_memory() {
    let path = files().join("lz4.feather");
    let wanted = [column("x", DType::F32, &[Dim::from(2i64)]), column("y", DType::I64, &[])];
    // Two files after one another, of different compression; a record batch of x has 32 bytes.
    let data = read(&[path, files().join("zstd.feather")], &wanted, 33).unwrap();
    let batch = data.batch(&[15, 2, 9, 3]).unwrap();
    assert_eq!(batch[0].as_tensor().unwrap().to_elements::<f32>().unwrap(), [7.0, 7.5, 2.0, 2.5, 1.0, 1.5, 3.0, 3.5]);
    let order = data.order(3, 1);
    let mut sorted = order.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (0..16).collect::<Vec<_>>());
    // One record batch stays in memory.
    for window in order.chunks(4) {
        assert!(window.iter().all(|sample| sample / 4 == window[0] / 4), "{window:?}");
    }
}

#[test]
fn other_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.feather");
    let wanted = [column("y", DType::I64, &[])];
    let whole = std::fs::read(files().join("plain.arrow")).unwrap();
    let stream = std::fs::read(files().join("stream.arrows")).unwrap();
    for (bytes, words) in [
        (&b"FEA1 and more"[..], "it is Feather of version 1; write it again as version 2"),
        (&whole[..whole.len() - 1], "it has no end: it was not written completely"),
        (&stream[..stream.len() - 20], "in the middle of its data"),
        (&[0; 4], "it has no schema"),
        (b"ARROW1", "it has no end"),
    ] {
        std::fs::write(&path, bytes).unwrap();
        let wrong = read(std::slice::from_ref(&path), &wanted, 1).unwrap_err().to_string();
        assert!(wrong.contains("a.feather' cannot be read as Arrow: ") && wrong.contains(words), "{words}: {wrong}");
    }
}

/// Which columns of which parts can be read; `None` where the file cannot be opened.
fn readable(path: &Path) -> Option<Vec<bool>> {
    let file = open(path).ok()?;
    let leaves = file.leaves().len();
    Some((0..file.rows().len() * leaves).map(|i| file.decode(i / leaves, i % leaves, None).is_ok()).collect())
}

/// A damaged file is an error or has other values, whichever byte was changed: every 7th of the larger file, all of the other.
#[test]
fn damaged_files_are_no_panics() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.arrow");
    let mut refused = 0;
    for (name, each) in [("lz4.feather", 7), ("deltas.arrows", 1)] {
        let whole = std::fs::read(files().join(name)).unwrap();
        let sound = readable(&files().join(name));
        for at in (0..whole.len()).step_by(each) {
            let mut bytes = whole.clone();
            bytes[at] ^= [0x01, 0x80, 0xff][at % 3];
            std::fs::write(&path, &bytes).unwrap();
            let result = catch_unwind(AssertUnwindSafe(|| readable(&path)));
            let result = result.unwrap_or_else(|_| panic!("{name}: byte {at} was changed"));
            refused += usize::from(result != sound);
        }
    }
    assert!(refused > 300, "{refused}");
}
