//! External tensor data.

mod support;

use std::path::Path;

use of_diag::{Code, Diagnostic};
use of_ir::Blob;
use of_onnx::proto::tensor_proto::{DataLocation, DataType};
use of_onnx::proto::{ModelProto, StringStringEntryProto, TensorProto};
use of_onnx::{Options, import_bytes, import_file};
use support::*;

fn external(name: &str, dims: &[usize], entries: &[(&str, &str)]) -> TensorProto {
    let entry = |(k, v): &(&str, &str)| StringStringEntryProto { key: Some((*k).into()), value: Some((*v).into()) };
    TensorProto {
        data_location: Some(DataLocation::External as i32),
        external_data: entries.iter().map(entry).collect(),
        ..empty(name, F32, dims)
    }
}

/// The data of 1, 2, 3 and 4 as a file.
fn data(path: &Path) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, [1.0f32, 2.0, 3.0, 4.0].map(f32::to_le_bytes).concat()).unwrap();
}

fn model(tensors: Vec<TensorProto>) -> ModelProto {
    let names: Vec<String> = tensors.iter().map(|t| t.name().to_owned()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    tensors.into_iter().fold(Build::new(), Build::init).outputs(&names).model(18)
}

fn import_in(folder: &Path, model: &ModelProto) -> Result<of_ir::Module, Vec<Diagnostic>> {
    let options = Options { folder: Some(folder.into()), ..Options::default() };
    import_bytes(encode(model), &options).map_err(|d| d.0)
}

/// The errors of a tensor of 4 numbers with the given entries.
fn errors(folder: &Path, entries: &[(&str, &str)]) -> Vec<Diagnostic> {
    match import_in(folder, &model(vec![external("w", &[4], entries)])) {
        Ok(_) => panic!("{entries:?} is imported"),
        Err(errors) => {
            assert!(errors.iter().all(|d| d.code == Code::EXTERNAL_DATA), "{errors:#?}");
            assert_eq!(onnx(&errors[0].location), ("w".into(), 0, "Initializer".into()));
            // A fault of the file is reported for the file, others for the tensor.
            let names = ["'w'", "external data: "];
            assert!(names.iter().any(|name| errors[0].message.contains(name)), "{errors:#?}");
            errors
        }
    }
}

fn weights(module: &of_ir::Module) -> Vec<Blob> {
    let g = &module.main().unwrap().graph;
    g.outputs().iter().map(|v| g.constant(*v).unwrap().bytes().unwrap().clone()).collect()
}

#[test]
fn offset_and_length_choose_a_part() {
    let folder = tempfile::tempdir().unwrap();
    data(&folder.path().join("w.bin"));
    let model = model(vec![
        external("all", &[2, 2], &[("location", "w.bin")]),
        external("rest", &[2], &[("location", "w.bin"), ("offset", "8")]),
        external("part", &[2], &[("location", "./w.bin"), ("offset", "4"), ("length", "8"), ("checksum", "ignored")]),
        external("none", &[0], &[("location", "w.bin"), ("offset", "16"), ("length", "0")]),
    ]);
    let path = folder.path().join("model.onnx");
    std::fs::write(&path, encode(&model)).unwrap();
    // The folder is that of the file, or the one that is given.
    for module in [import_file(&path, &Options::default()).unwrap(), import_in(folder.path(), &model).unwrap()] {
        verified(&module);
        let got: Vec<Vec<f64>> = run(&module, &[]).iter().map(|v| numbers(v).1).collect();
        assert_eq!(got, [vec![1.0, 2.0, 3.0, 4.0], vec![3.0, 4.0], vec![2.0, 3.0], vec![]]);
    }
}

#[test]
fn data_is_mapped_once_and_not_copied() {
    let folder = tempfile::tempdir().unwrap();
    data(&folder.path().join("w.bin"));
    let tensors = vec![
        external("a", &[4], &[("location", "w.bin")]),
        external("b", &[4], &[("location", "w.bin")]),
        external("c", &[2], &[("location", "w.bin"), ("offset", "8")]),
    ];
    let weights = weights(&import_in(folder.path(), &model(tensors)).unwrap());
    assert!(weights[0].same(&weights[1]));
    assert_eq!(weights[2].as_ptr() as usize - weights[0].as_ptr() as usize, 8);
}

#[test]
fn external_data_in_subfolders_is_read() {
    let folder = tempfile::tempdir().unwrap();
    data(&folder.path().join("sub/w.bin"));
    let module = import_in(folder.path(), &model(vec![external("w", &[4], &[("location", "sub/w.bin")])])).unwrap();
    assert_eq!(numbers(&run(&module, &[])[0]).1, [1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn constants_in_nodes_may_be_external() {
    let folder = tempfile::tempdir().unwrap();
    data(&folder.path().join("w.bin"));
    let t = external("", &[4], &[("location", "w.bin")]);
    let model = Build::new().node("Constant", &[], &["c"], &[tensor("value", t)]).outputs(&["c"]).model(18);
    let module = import_in(folder.path(), &model).unwrap();
    assert_eq!(numbers(&run(&module, &[])[0]).1, [1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn paths_outside_the_folder_are_refused() {
    let top = tempfile::tempdir().unwrap();
    let folder = top.path().join("model");
    data(&top.path().join("w.bin"));
    data(&folder.join("w.bin"));
    let absolute = folder.join("w.bin");
    for location in ["../w.bin", "../model/w.bin", "sub/../w.bin", "..", "", "w\0.bin", absolute.to_str().unwrap()] {
        let found = errors(&folder, &[("location", location)]);
        refused(&found, Code::EXTERNAL_DATA, &["not a path inside the model's folder"]);
    }
}

#[cfg(unix)]
#[test]
fn links_may_not_leave_the_folder() {
    use std::os::unix::fs::symlink;
    let top = tempfile::tempdir().unwrap();
    let folder = top.path().join("model");
    data(&folder.join("w.bin"));
    data(&top.path().join("model2/w.bin"));
    symlink(top.path().join("model2/w.bin"), folder.join("file")).unwrap();
    symlink("../model2", folder.join("folder")).unwrap();
    symlink("w.bin", folder.join("inside")).unwrap();
    for location in ["file", "folder/w.bin"] {
        refused(&errors(&folder, &[("location", location)]), Code::EXTERNAL_DATA, &["link that leaves"]);
    }
    assert!(import_in(&folder, &model(vec![external("w", &[4], &[("location", "inside")])])).is_ok());
    // The folder itself may be reached by a link.
    symlink(&folder, top.path().join("alias")).unwrap();
    let alias = top.path().join("alias");
    assert!(import_in(&alias, &model(vec![external("w", &[4], &[("location", "w.bin")])])).is_ok());
}

#[test]
fn ranges_beyond_the_file_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    data(&folder.path().join("w.bin"));
    let huge = u64::MAX.to_string();
    for (offset, length) in [("0", "17"), ("1", "16"), ("17", "0"), (huge.as_str(), "16"), ("0", huge.as_str())] {
        let entries = [("location", "w.bin"), ("offset", offset), ("length", length)];
        refused(&errors(folder.path(), &entries), Code::EXTERNAL_DATA, &["outside", "16 bytes"]);
    }
    refused(&errors(folder.path(), &[("location", "w.bin"), ("offset", "20")]), Code::EXTERNAL_DATA, &["outside"]);
}

#[test]
fn entries_must_fit_the_tensor() {
    let folder = tempfile::tempdir().unwrap();
    data(&folder.path().join("w.bin"));
    std::fs::create_dir(folder.path().join("sub")).unwrap();
    // Too few and too many bytes.
    errors(folder.path(), &[("location", "w.bin"), ("length", "12")]);
    errors(folder.path(), &[("location", "w.bin"), ("offset", "4")]);
    refused(&errors(folder.path(), &[("offset", "4")]), Code::EXTERNAL_DATA, &["no location"]);
    for number in ["-4", "four", "1e3", "99999999999999999999999"] {
        let entries = [("location", "w.bin"), ("offset", number)];
        refused(&errors(folder.path(), &entries), Code::EXTERNAL_DATA, &["is not a number"]);
    }
    refused(&errors(folder.path(), &[("location", "absent.bin")]), Code::EXTERNAL_DATA, &["absent.bin"]);
    refused(&errors(folder.path(), &[("location", "sub")]), Code::EXTERNAL_DATA, &["not a file"]);
}

#[test]
fn a_missing_file_is_reported_once() {
    let folder = tempfile::tempdir().unwrap();
    let all = (0..40).map(|i| external(&format!("w{i}"), &[4], &[("location", "absent.bin")])).collect();
    let errors = import_in(folder.path(), &model(all)).err().unwrap();
    assert_eq!(errors.len(), 1, "{errors:#?}");
    assert!(errors[0].message.contains("absent.bin"), "{errors:#?}");
    assert!(errors[0].notes[0].starts_with("the same for 39 more places: 'w1' (#1)"), "{errors:#?}");
    // A pointer of Git LFS is no data.
    std::fs::write(folder.path().join("w.bin"), "version https://git-lfs.github.com/spec/v1\noid sha256:0\n").unwrap();
    refused(&self::errors(folder.path(), &[("location", "w.bin")]), Code::EXTERNAL_DATA, &["w.bin", "Git LFS"]);
}

#[test]
fn strings_are_never_external() {
    let folder = tempfile::tempdir().unwrap();
    data(&folder.path().join("w.bin"));
    let mut t = external("w", &[4], &[("location", "w.bin")]);
    t.data_type = Some(DataType::String as i32);
    refused(&import_in(folder.path(), &model(vec![t])).err().unwrap(), Code::MODEL, &["string_data"]);
}

#[test]
fn models_in_memory_have_no_folder() {
    let model = model(vec![external("w", &[4], &[("location", "Cargo.toml")])]);
    refused(&bad(&model), Code::EXTERNAL_DATA, &["folder"]);
}
