//! Snapshots of what `of-opt` prints: a diagnostic, a plan, an explanation of a layout, and one kernel in C and in CUDA of each kind
//! of loop nest. `cargo xtask bless` updates them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use of_lit::suite;
use of_test_support::component::{CUDA_EMULATED, require};

/// A function with these arguments, result and ops; the last op makes `%y`.
fn function(args: &str, result: &str, ops: &[&str]) -> String {
    let ops: String = ops.iter().map(|op| format!("  {op}\n")).collect();
    format!("func @main({args}) -> ({result}) {{\n{ops}  of.return %y\n}}\n")
}

fn classifier() -> String {
    let ops = [
        "%w = of.constant {value = dense<0.5> : tensor<8x3xf32>}",
        "%p = of.matmul %x, %w",
        "%y = of.softmax %p {axis = -1}",
    ];
    function("%x: tensor<4x8xf32> {of.name = \"x\"}", "tensor<4x3xf32> {of.name = \"y\"}", &ops)
}

/// Runs of-opt in a folder with an empty cache of kernels.
fn of_opt(dir: &Path, args: &[&str], variables: &[(&str, &str)]) -> Output {
    let program = suite::of_opt().unwrap_or_else(|why| panic!("{why}"));
    let mut command = Command::new(program);
    command.args(args).current_dir(dir).env("OF_CACHE_DIR", dir.join("cache")).env("NO_COLOR", "1");
    command.envs(variables.iter().copied()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn diagnostics_match_their_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let ops =
        ["%w = of.constant {value = dense<0.5> : tensor<3x4xf32>}", "%y = of.matmul %x, %w", "%z = of.nothing %y"];
    fs::write(dir.path().join("wrong.of"), function("%x: tensor<2x8xf32>", "tensor<2x4xf32>", &ops)).unwrap();
    let out = of_opt(dir.path(), &["wrong.of"], &[]);
    assert_eq!(out.status.code(), Some(2));
    insta::assert_snapshot!("diagnostics", text(&out.stderr));
}

/// From the program on: what is before it names checksums, and sizes of machine code, which a compiler decides.
#[test]
fn plan_description_matches_its_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("net.of"), classifier()).unwrap();
    let compiled = of_opt(dir.path(), &["compile", "net.of", "-o", "net.plan", "--isa", "x86-64"], &[]);
    assert!(compiled.status.success(), "{}", text(&compiled.stderr));
    let plan = text(&of_opt(dir.path(), &["inspect", "net.plan"], &[]).stdout);
    let program = plan.find("program `main`").unwrap_or_else(|| panic!("{plan}"));
    insta::assert_snapshot!("plan", &plan[program..]);
}

#[test]
fn explanation_matches_its_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("net.of"), classifier()).unwrap();
    let out = of_opt(dir.path(), &["explain", "net.of", "--mesh", "cpu[2]"], &[]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    insta::assert_snapshot!("explain", text(&out.stdout));
}

/// A function of one kernel for each kind of loop nest.
fn nests() -> [(&'static str, String); 5] {
    let pool = "%y = of.max_pool %x {kernel = [2, 2], strides = [2, 2], pads = [0, 0, 0, 0], dilations = [1, 1], \
        ceil_mode = false, storage_order = 0, return_indices = false, auto_pad = \"NOTSET\", channels_last = false}";
    let conv = "%y = of.conv %x, %w, %none {strides = [1, 1], pads = [1, 1, 1, 1], dilations = [1, 1], group = 1, \
        auto_pad = \"NOTSET\", channels_last = false}";
    let filter = "%w = of.constant {value = dense<0.25> : tensor<4x3x3x3xf32>}";
    let (row, rows) = ("tensor<8xf32>", "tensor<4x8xf32>");
    [
        ("map", function(&format!("%x: {rows}, %b: {row}"), rows, &["%a = of.add %x, %b", "%y = of.tanh %a"])),
        ("row_reduction", function(&format!("%x: {rows}"), rows, &["%y = of.softmax %x {axis = -1}"])),
        (
            "contraction",
            function(
                "%x: tensor<16x24xf32>, %w: tensor<24x32xf32>",
                "tensor<16x32xf32>",
                &["%p = of.matmul %x, %w", "%y = of.relu %p"],
            ),
        ),
        ("window", function("%x: tensor<1x2x8x8xf32>", "tensor<1x2x4x4xf32>", &[pool])),
        ("convolution", function("%x: tensor<1x3x8x8xf32>", "tensor<1x4x8x8xf32>", &[filter, "%none = of.none", conv])),
    ]
}

/// The last line of the functions that every kernel begins with.
const PRELUDE_ENDS: &str = "INLINE i64 order64(";

/// The text of the kernels of a function for a target, which a compiler in front of the real one writes down.
fn kernels(function: &str, target: &[&str]) -> String {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("nest.of"), function).unwrap();
    let record = |name: &str, compiler: &str| {
        let path = dir.path().join(name);
        let script = format!(
            "#!/bin/sh\n[ -f kernel.c ] && cp kernel.c \"{}/$$.kernel\"\nexec {compiler} \"$@\"\n",
            dir.path().display()
        );
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path.display().to_string()
    };
    let (cc, cxx) = (record("cc", "cc"), record("c++", "c++"));
    let args = [&["compile", "nest.of", "-o", "nest.plan"], target].concat();
    let out = of_opt(dir.path(), &args, &[("CC", &cc), ("CXX", &cxx)]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let recorded = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().path());
    let mut kernels: Vec<String> = recorded
        .filter(|p| p.extension().is_some_and(|e| e == "kernel"))
        .map(|p| fs::read_to_string(p).unwrap())
        .map(|text| {
            let rest = text.split_once(PRELUDE_ENDS).unwrap_or_else(|| panic!("the prelude has no {PRELUDE_ENDS}")).1;
            rest.split_once('\n').unwrap().1.trim_start().to_owned()
        })
        .collect();
    assert!(!kernels.is_empty(), "nothing was compiled");
    // Kernels are compiled in any order.
    kernels.sort();
    kernels.join("\n")
}

#[test]
fn c_kernels_match_their_snapshots() {
    for (name, function) in nests() {
        insta::assert_snapshot!(format!("{name}_c"), kernels(&function, &["--isa", "x86-64"]));
    }
}

#[test]
fn cuda_kernels_match_their_snapshots() {
    let compiler = Command::new("c++").arg("--version").output();
    if require(&CUDA_EMULATED, compiler.map_err(|e| format!("c++: {e}"))).is_none() {
        return;
    }
    for (name, function) in nests() {
        insta::assert_snapshot!(format!("{name}_cuda"), kernels(&function, &["--target", "cuda:emulated"]));
    }
}
