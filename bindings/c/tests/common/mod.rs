//! The library as C programs link it, and plans to run.
#![allow(dead_code, reason = "every test uses another part")]

use std::path::{Path, PathBuf};
use std::process::Command;

use of_driver::{CompileOptions, Compiler, CpuCode, MeshOptions, Model};
use of_test_support::cargo::cargo;
use of_test_support::component::{Component, require};

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The folder of the library, which is built here: cargo builds what C programs link for no test.
pub fn library() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let profile = program.parent().and_then(Path::parent).unwrap();
    let mut cargo = cargo();
    cargo.args(["build", "--quiet", "--offline", "-p", "of-runtime-c"]).current_dir(root());
    cargo.env("CARGO_TARGET_DIR", profile.parent().unwrap());
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    let status = cargo.status().unwrap();
    assert!(status.success(), "the library cannot be built");
    profile.to_path_buf()
}

/// Compiles a model.
pub fn compile(model: Model, threads: usize, shapes: &[(&str, usize)], to: &Path) {
    let options = CompileOptions { cpu_code: CpuCode::Machine, threads, ..CompileOptions::default() };
    let compiler = shapes.iter().fold(Compiler::with_options(options), |c, (name, extent)| c.shape(name, *extent));
    compiler.compile(model).and_then(|compiled| compiled.save(to)).unwrap_or_else(|e| panic!("{e}"));
}

/// Compiles a model with variables.
pub fn compile_with(model: Model, variables: &[&str], to: &Path) {
    let variables = variables.iter().map(|text| (*text).to_owned()).collect();
    let options = CompileOptions { cpu_code: CpuCode::Machine, threads: 1, variables, ..CompileOptions::default() };
    let compiled = Compiler::with_options(options).compile(model);
    compiled.and_then(|compiled| compiled.save(to)).unwrap_or_else(|e| panic!("{e}"));
}

/// Compiles a model with variables for the ranks of a mesh.
pub fn compile_on_mesh(model: Model, mesh: &str, variables: &[&str], to: &Path) {
    let variables = variables.iter().map(|text| (*text).to_owned()).collect();
    let mesh = MeshOptions { mesh: mesh.into(), search: Vec::new(), stages: None, layouts: Vec::new() };
    let options = CompileOptions { cpu_code: CpuCode::Machine, threads: 2, variables, ..CompileOptions::default() };
    let compiled = Compiler::with_options(options).mesh(mesh).compile(model);
    compiled.and_then(|compiled| compiled.save(to)).unwrap_or_else(|e| panic!("{e}"));
}

/// Compiles a model for the ranks of a mesh, with a program for each of these shapes.
pub fn compile_variants_on_mesh(model: Model, mesh: &str, variants: &[&str], to: &Path) {
    let variants: Vec<String> = variants.iter().map(|text| (*text).to_owned()).collect();
    let mesh = MeshOptions { mesh: mesh.into(), search: Vec::new(), stages: None, layouts: Vec::new() };
    let options = CompileOptions { cpu_code: CpuCode::Machine, threads: 2, ..CompileOptions::default() };
    let compiled = Compiler::with_options(options).variants(&variants).mesh(mesh).compile(model);
    compiled.and_then(|compiled| compiled.save(to)).unwrap_or_else(|e| panic!("{e}"));
}

/// The model of examples/digits.
pub fn digits() -> Model {
    Model::open(root().join("examples/digits/digits.onnx")).unwrap()
}

/// A model of the IR's text.
pub fn model(text: &str) -> Model {
    Model::from_text(text, "test.of", None).unwrap_or_else(|e| panic!("{e}"))
}

/// A compiler, if there is one.
#[track_caller]
pub fn compiler(component: &Component, name: &'static str) -> Option<&'static str> {
    let found = Command::new(name).arg("--version").output();
    require(component, found.map_err(|e| format!("{name}: {e}")))?;
    Some(name)
}

/// Runs a command, which must succeed. Returns what it printed.
#[track_caller]
pub fn run(command: &mut Command) -> String {
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{command:?}: {}\n{text}{}", out.status, String::from_utf8_lossy(&out.stderr));
    text
}
