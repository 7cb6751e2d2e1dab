//! The op in a shared library that CONTRIBUTING.md describes: its commands, verbatim, the op in C, and a program
//! in Rust that makes it.

mod guide;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use of_codegen::Isa;
use of_codegen::toolchain::cache::Cache;
use of_codegen::{CompileOptions, Target, compile};
use of_frontend::Builder;
use of_ir::{Attrs, DType, Tensor, Type};
use of_ops::elementwise::{Add, Mul};
use of_reference::{Reference, to_runtime};
use of_runtime::{Options, Session};
use of_test_support::plans::{emulated_gpu, nvrtc};

use guide::root;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs of-opt in the repository.
fn of_opt(args: &[&str], cache: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_of-opt"))
        .args(args)
        .current_dir(root())
        .env("OF_CACHE_DIR", cache)
        .output()
        .unwrap()
}

/// What it prints where it succeeds.
fn said(args: &[&str], cache: &Path) -> String {
    let out = of_opt(args, cache);
    assert!(out.status.success(), "{args:?}\n{}", text(&out.stderr));
    text(&out.stdout)
}

/// The same function with the op of the list: the inputs that are made up are always the same.
fn with_swish_of_the_list(dir: &Path) -> String {
    let model = std::fs::read_to_string(root().join("examples/user-op/swish.of")).unwrap();
    let plain = dir.join("plain.of");
    std::fs::write(&plain, model.replace("demo.swish", "of.swish")).unwrap();
    said(&["run", plain.to_str().unwrap(), "--shape", "x=4x8"], dir)
}

/// The numbers of a printed result.
fn numbers(printed: &str) -> Vec<f32> {
    let word = |c: char| !(c.is_ascii_digit() || "+-.e".contains(c));
    printed.split(word).filter(|w| w.contains('.')).filter_map(|w| w.parse().ok()).collect()
}

fn close(a: &str, b: &str) {
    let (x, y) = (numbers(a), numbers(b));
    assert!(x.len() == y.len() && !x.is_empty(), "{a}\n{b}");
    assert!(x.iter().zip(&y).all(|(x, y)| (x - y).abs() <= 1e-4 * y.abs().max(1.0)), "{a}\n{b}");
}

#[test]
fn documented_commands_build_and_run_an_external_op() {
    let dir = tempfile::tempdir().unwrap();
    let mut runs = Vec::new();
    for line in guide::commands("tools/of-opt/tests/user_op.rs", "demo-ops", dir.path()) {
        if line.contains("cuda:emulated") && emulated_gpu().is_none() {
            continue;
        }
        let out = guide::shell(&line, dir.path());
        assert!(out.status.success(), "{line}\n{}", text(&out.stderr));
        if line.contains(" run ") {
            runs.push(text(&out.stdout));
        }
    }
    let plain = with_swish_of_the_list(dir.path());
    assert!(runs.len() >= 2);
    runs.iter().for_each(|run| close(run, &plain));
    // The model that was written names the op by its domain.
    let model = std::fs::read(dir.path().join("demo-ops/swish.onnx")).unwrap();
    assert!(text(&model).contains("com.example.demo"));
    // It is differentiated by the other op of the library.
    let library = guide::target().join("release/libdemo_ops.so").display().to_string();
    let (own, listed) = (gradient_of("demo.swish", dir.path()), gradient_of("of.swish", dir.path()));
    let random = ["--shape", "x=4x8"];
    let with_library = [&["run", &own][..], &random, &["--library", &library]].concat();
    close(&said(&with_library, dir.path()), &said(&[&["run", &listed][..], &random].concat(), dir.path()));
    // Without the library the op is unknown.
    let without = of_opt(&["run", "examples/user-op/swish.of"], dir.path());
    assert_eq!(without.status.code(), Some(2));
    assert!(text(&without.stderr).contains("demo.swish"));
    // NVRTC takes its kernel.
    let plan = dir.path().join("swish.plan").display().to_string();
    if nvrtc() {
        said(
            &["compile", "examples/user-op/swish.of", "-o", &plan, "--target", "cuda:sm_90", "--library", &library],
            dir.path(),
        );
    }
}

/// The library of the op in C.
fn swish_in_c(dir: &Path) -> PathBuf {
    c_library(Path::new("examples/user-op/swish.c"), &dir.join("libswish.so"))
}

fn c_library(source: &Path, library: &Path) -> PathBuf {
    let flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-I", "docs"];
    let cc = Command::new("cc").args(flags).arg(source).arg("-o").arg(library).arg("-lm").current_dir(root()).output();
    let cc = cc.unwrap();
    assert!(cc.status.success(), "{}", text(&cc.stderr));
    library.to_path_buf()
}

#[test]
fn rust_programs_load_ops_from_a_library() {
    let dir = tempfile::tempdir().unwrap();
    // It has ops, and no backend.
    assert!(of_library::open(&swish_in_c(dir.path())).unwrap().is_none());
    let swish = of_ops::decl("clib.swish").unwrap().as_def();
    let mut attrs = Attrs::new();
    attrs.put("alpha", 1.5);

    let mut b = Builder::new("swish");
    let x = b.input("x", Type::fixed(DType::F32, &[4, 8]));
    let twice = b.op(Add {}, &[x, x]).unwrap();
    let s = b.op((swish, attrs.clone()), &[twice]).unwrap();
    let y = b.op(Mul {}, &[s, x]).unwrap();
    // What the op refuses is an error where the program made it, in its words.
    let wide = b.input("wide", Type::fixed(DType::F64, &[2]));
    let refused = b.op((swish, attrs), &[wide]).unwrap_err().to_string();
    assert!(refused.contains("x must be of f32") && refused.contains("user_op.rs"), "{refused}");
    let refused = b.op((swish, Attrs::new()), &[x]).unwrap_err().to_string();
    assert!(refused.contains("alpha"), "{refused}");
    let module = b.finish(&[("y", y)]).unwrap();

    let numbers: Vec<f32> = (0..32).map(|i| i as f32 / 8.0 - 2.0).collect();
    let want: Vec<f32> = numbers.iter().map(|x| x * 2.0 * x / (1.0 + (-3.0 * x).exp())).collect();
    let close = |got: &[f32]| got.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-5);
    let func = module.main().unwrap();
    let input = Tensor::from_slice(&[4, 8], &numbers).unwrap();
    let none = Tensor::from_slice(&[2], &[0f64, 0.0]).unwrap();
    let inputs: [of_ops::Value; 2] = [input.into(), none.into()];
    let got = of_ops::interpret::run_graph(&func.graph, &inputs).unwrap();
    let of_ops::Value::Tensor(got) = &got[0] else { panic!("no tensor") };
    let got: Vec<f32> = got.to_f64s().unwrap().into_iter().map(|x| x as f32).collect();
    assert!(got.len() == 32 && close(&got), "{got:?}");

    // The plan, where the op runs on the reference backend between two kernels.
    let options =
        CompileOptions::new(Target::new(Isa::host(), &[&Reference]), Cache::at(dir.path(), Cache::DEFAULT_LIMIT));
    let plan = compile(&[("main".into(), func)], &options).unwrap_or_else(|d| panic!("{d}")).open().unwrap();
    let mut session = Session::new(Arc::new(plan), 0, Options::default(), &[Arc::new(Reference)]).unwrap();
    let values = inputs.iter().map(|v| to_runtime(v).unwrap()).collect();
    let got = session.run(values).unwrap();
    let bytes = got[0].as_tensor().and_then(|t| t.bytes()).unwrap();
    let got: Vec<f32> = bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    assert!(got.len() == 32 && close(&got), "{got:?}");
}

/// A file with the gradient of the sum of an op's squares.
fn gradient_of(op: &str, dir: &Path) -> String {
    let path = dir.join(format!("{op}.of"));
    let text = format!(
        "func @main(%x: tensor<4x8xf32>) -> (tensor<4x8xf32>) {{\n  %y = {op} %x {{alpha = 1.5}} : (tensor<4x8xf32>) -> \
         tensor<4x8xf32>\n  %z = of.mul %y, %y : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>\n  \
         %s = of.reduce_sum %z {{keepdims = false}} : (tensor<4x8xf32>) -> tensor<f32>\n  %g = of.gradient %s, %x : \
         (tensor<f32>, tensor<4x8xf32>) -> tensor<4x8xf32>\n  of.return %g : (tensor<4x8xf32>) -> ()\n}}\n"
    );
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn ops_of_a_library_are_differentiated() {
    let dir = tempfile::tempdir().unwrap();
    let library = swish_in_c(dir.path());
    let library = library.to_str().unwrap();
    let (own, listed) = (gradient_of("clib.swish", dir.path()), gradient_of("of.swish", dir.path()));
    let random = ["--shape", "x=4x8"];
    let run = |model: &str, more: &[&str]| said(&[&["run", model][..], &random, more].concat(), dir.path());
    close(&run(&own, &["--library", library]), &run(&listed, &[]));
    // A training step updates a parameter in front of the op.
    let module = dir.path().join("step.of");
    let step = "func @main(%x: tensor<4x8xf32>) -> (tensor<4x8xf32>) {\n  %w = of.constant {value = dense<[0.5, -0.25, 1.0, 2.0, \
                -1.0, 0.75, 0.1, -0.3]> : tensor<8xf32>} : () -> tensor<8xf32>\n  %p = of.mul %x, %w : (tensor<4x8xf32>, \
                tensor<8xf32>) -> tensor<4x8xf32>\n  %y = SWISH %p {alpha = 1.5} : (tensor<4x8xf32>) -> tensor<4x8xf32>\n  \
                of.return %y : (tensor<4x8xf32>) -> ()\n}\n";
    let mut trained = Vec::new();
    for (op, more) in [("of.swish", &[][..]), ("clib.swish", &["--library", library])] {
        std::fs::write(&module, step.replace("SWISH", op)).unwrap();
        let out = dir.path().join("trained.of.onnx");
        let data = dir.path().join("x.npy");
        let labels = dir.path().join("labels.npy");
        write_npy(&data, |i| (i % 13) as f32 / 6.0 - 1.0);
        write_npy(&labels, |i| (i % 5) as f32 / 5.0);
        let given = [format!("x={}", data.display()), format!("labels={}", labels.display())];
        let mut args = vec!["train", module.to_str().unwrap(), "--loss", "mse", "--optimizer", "sgd", "--epochs", "4"];
        args.extend(["--batch", "4", "--learning-rate", "0.5", "--schedule", "constant", "--json", "-o"]);
        args.extend([out.to_str().unwrap(), "--data", &given[0], "--data", &given[1]]);
        args.extend(more);
        trained.push(said(&args, dir.path()));
    }
    let losses = |said: &str| -> Vec<f64> {
        let of_line = |line: &str| line.split("\"loss\":").nth(1)?.split([',', '}']).next()?.trim().parse().ok();
        said.lines().filter_map(of_line).collect()
    };
    let (listed, own) = (losses(&trained[0]), losses(&trained[1]));
    assert!(own.len() == 4 && own[3] < own[0], "{}", trained[1]);
    assert!(own.iter().zip(&listed).all(|(a, b)| (a - b).abs() <= 1e-5 * b.abs()), "{own:?} {listed:?}");
    // Not every op has a gradient.
    let none = std::fs::read_to_string(root().join("examples/user-op/swish.c")).unwrap();
    let none = none.replace(".gradient = \"clib.swish_gradient\",", "");
    let source = dir.path().join("none.c");
    std::fs::write(&source, none).unwrap();
    let plain = c_library(&source, &dir.path().join("libnone.so"));
    let model = gradient_of("clib.swish", dir.path());
    let refused = of_opt(&["run", &model, "--shape", "x=4x8", "--library", plain.to_str().unwrap()], dir.path());
    assert!(text(&refused.stderr).contains("'clib.swish' has no gradient"), "{}", text(&refused.stderr));
}

/// 32 numbers of 4 rows.
fn write_npy(path: &Path, value: impl Fn(usize) -> f32) {
    let mut header = String::from("{'descr': '<f4', 'fortran_order': False, 'shape': (4, 8), }");
    header.extend(std::iter::repeat_n(' ', 117 - header.len()));
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.bytes());
    bytes.extend((0..32).flat_map(|i| value(i).to_le_bytes()));
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn c_library_defines_an_op() {
    let dir = tempfile::tempdir().unwrap();
    let library = swish_in_c(dir.path());
    let library = library.to_str().unwrap();
    let model = std::fs::read_to_string(root().join("examples/user-op/swish.of")).unwrap();
    let own = dir.path().join("c.of");
    std::fs::write(&own, model.replace("demo.swish", "clib.swish").replace("4x8", "?(N)x8")).unwrap();
    let own = own.to_str().unwrap();
    let plain = with_swish_of_the_list(dir.path());
    close(&said(&["run", own, "--shape", "N=4", "--library", library], dir.path()), &plain);
    // Open extents stay what they are; layouts are those that the library gives.
    let sharded = said(&[own, "--passes", "cpu", "--library", library], dir.path());
    assert!(sharded.contains("clib.swish") && sharded.contains("tensor<?(N)x8xf32>"), "{sharded}");
    assert!(said(&["ops", "clib.swish", "--library", library], dir.path()).contains("alpha"));
    if emulated_gpu().is_some() {
        let on = ["run", own, "--shape", "N=4", "--target", "cuda:emulated", "--library", library];
        close(&said(&on, dir.path()), &plain);
    }
    // What the op refuses is an error with its words.
    let wrong = dir.path().join("wrong.of");
    let text_of = "func @main(%x: tensor<2xf64>) -> (tensor<2xf64>) {\n  %y = clib.swish %x {alpha = 1.0 : f64} : \
                   (tensor<2xf64>) -> tensor<2xf64>\n  of.return %y : (tensor<2xf64>) -> ()\n}\n";
    std::fs::write(&wrong, text_of).unwrap();
    let refused = of_opt(&["run", wrong.to_str().unwrap(), "--library", library], dir.path());
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("x must be of f32"), "{}", text(&refused.stderr));
    // Twice is once too often.
    let twice = of_opt(&["ops", "--library", library, "--library", library], dir.path());
    assert!(text(&twice.stderr).contains("there is an op 'clib.swish' already"), "{}", text(&twice.stderr));
}
