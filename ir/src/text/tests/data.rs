//! Constants in data files.

use std::fs;

use of_diag::SourceMap;

use super::{module, ops, show};
use crate::text::{CheckedData, PrintOptions, parse_indexed, parse_module, read_module, write_module};
use crate::{Attr, Module};

fn with_constants() -> Module {
    let list = |from: i64| (from..from + 100).map(|i| i.to_string()).collect::<Vec<_>>().join(", ");
    module(&format!(
        "func @f() {{
  %a = t.const {{value = dense<[{}]> : tensor<100xi16>}}
  %b = t.const {{value = dense<[{}]> : tensor<100xi64>}}
  %c = t.const {{value = dense<[{}]> : tensor<100xi16>}}
  %d = t.const {{value = dense<7> : tensor<100xi16>}}
  t.return
}}",
        list(0),
        list(5),
        list(0)
    ))
}

#[test]
fn large_constants_are_written_once_and_mapped() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.of");
    let m = with_constants();
    write_module(&path, &m, &PrintOptions::default()).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains("%d = t.const {value = dense<7> : tensor<100xi16>}"), "{text}");
    assert_eq!(text.matches("#of.data<\"m.ofdata\", 0, 200, ").count(), 2, "{text}");
    assert!(text.contains("#of.data<\"m.ofdata\", 256, 800, "), "{text}");
    assert_eq!(fs::metadata(dir.path().join("m.ofdata")).unwrap().len(), 1056);
    let back = read_module(&path, &ops::registry(), &mut SourceMap::default()).unwrap();
    assert_eq!(show(&back, false), show(&m, false));
    // Both constants are the very same mapped bytes.
    let f = back.main().unwrap();
    let bytes = |i: usize| match f.graph.op(f.graph.walk()[i]).attrs.get("value") {
        Some(Attr::Tensor(t)) => t.bytes().unwrap().clone(),
        _ => panic!("no tensor"),
    };
    assert!(bytes(0).same(&bytes(2)));
    // A module may be written over the files that it has mapped.
    write_module(&path, &back, &PrintOptions::default()).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "nothing else is left behind");
}

#[test]
fn a_module_without_large_constants_has_no_data_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.of");
    write_module(&path, &module("func @f() { t.return }"), &PrintOptions::default()).unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn damaged_data_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.of");
    write_module(&path, &with_constants(), &PrintOptions::default()).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    let data = dir.path().join("m.ofdata");
    let error = |text: &str| parse_module(text, "m.of", &ops::registry(), Some(dir.path())).unwrap_err().to_string();

    let mut bytes = fs::read(&data).unwrap();
    fs::write(&data, &bytes[..300]).unwrap();
    assert!(error(&text).contains("bytes 256 to 256+800 are not in 'm.ofdata', which has 300"));
    bytes[3] ^= 1;
    fs::write(&data, &bytes).unwrap();
    assert!(error(&text).contains("the bytes in 'm.ofdata' have another hash"));
    fs::remove_file(&data).unwrap();
    assert!(error(&text).contains("m.ofdata' cannot be read"));
    for name in ["../m.ofdata", "/etc/passwd", "", "a/../../b"] {
        let e = error(&text.replace("m.ofdata", name));
        assert!(e.contains("is not a path inside the folder of the text"), "{e}");
    }
    assert!(error(&text.replace("m.ofdata", ".")).contains("is not a file"));
}

#[cfg(unix)]
#[test]
fn a_link_out_of_the_folder_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let inside = dir.path().join("in");
    fs::create_dir(&inside).unwrap();
    let path = inside.join("m.of");
    write_module(&path, &with_constants(), &PrintOptions::default()).unwrap();
    fs::rename(inside.join("m.ofdata"), dir.path().join("secret")).unwrap();
    std::os::unix::fs::symlink(dir.path().join("secret"), inside.join("m.ofdata")).unwrap();
    let e = read_module(&path, &ops::registry(), &mut SourceMap::default()).unwrap_err().to_string();
    assert!(e.contains("leads outside the folder"), "{e}");
}

#[test]
fn checked_data_is_compared_again_when_its_file_changes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.of");
    write_module(&path, &with_constants(), &PrintOptions::default()).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    let data = dir.path().join("m.ofdata");
    let checked = CheckedData::default();
    let errors = || parse_indexed(&text, "m.of", &ops::registry(), Some(dir.path()), &checked).errors.0.len();
    assert_eq!(errors(), 0);
    // Damage that no stamp shows is not seen, which proves that the bytes were not read.
    let mut bytes = fs::read(&data).unwrap();
    bytes[3] ^= 1;
    let time = fs::metadata(&data).unwrap().modified().unwrap();
    let write = |time| {
        fs::write(&data, &bytes).unwrap();
        fs::File::options().append(true).open(&data).unwrap().set_modified(time).unwrap();
    };
    write(time);
    assert_eq!(errors(), 0);
    write(time + std::time::Duration::from_secs(1));
    assert_eq!(errors(), 2);
    assert_eq!(errors(), 2);
}
