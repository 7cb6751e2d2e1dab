//! Programs in C, C++ and Python that use the library: the examples, and tests written in C.

mod common;

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use common::{
    compile, compile_on_mesh, compile_variants_on_mesh, compile_with, compiler, digits, library, model, root, run,
};
use of_test_support::component::{CC, OPENMPI, PYTHON, require};
use tempfile::TempDir;

/// The folder of the library, built once.
fn built() -> &'static Path {
    static LIBRARY: OnceLock<std::path::PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(library)
}

/// A command that builds a C or C++ program with every warning an error.
fn build(compiler: &str, source: &str, to: &Path) -> Command {
    let mut command = Command::new(compiler);
    command.args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread"]).arg(root().join(source));
    command.arg("-I").arg(root().join("bindings/c/include")).arg("-o").arg(to);
    command
}

/// Runs a program with the shared library.
fn with_library(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", built());
    command
}

/// A folder with the plan of the digits.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    compile(digits(), 1, &[], &folder.path().join("digits.plan"));
    folder
}

const DIGITS: &str = "input image: f32[N, 1, 8, 8]\noutput probability: f32[N, 10]\ndigits: 7 0 3 9 1 4 8 2\n";

#[test]
fn the_example_in_c_recognizes_digits_with_either_library() {
    let Some(cc) = compiler(&CC, "cc") else { return };
    let folder = folder();
    let (shared, fixed) = (folder.path().join("shared"), folder.path().join("static"));
    run(build(cc, "examples/c/digits.c", &shared).args(["-std=c99", "-L"]).arg(built()).arg("-lof_runtime"));
    run(build(cc, "examples/c/digits.c", &fixed).arg(built().join("libof_runtime.a")).args([
        "-lpthread",
        "-ldl",
        "-lm",
    ]));
    for program in [shared, fixed] {
        let mut command = with_library(program);
        command.arg(folder.path().join("digits.plan")).arg(root().join("examples/digits/images.npy"));
        assert_eq!(run(&mut command), DIGITS);
    }
}

#[test]
fn the_example_in_c_needs_a_compiler_alone() {
    let Some(cc) = compiler(&CC, "cc") else { return };
    let folder = folder();
    for (from, to) in [
        (root().join("examples/c/digits.c"), "digits.c"),
        (root().join("bindings/c/include/of_runtime.h"), "of_runtime.h"),
        (root().join("examples/digits/images.npy"), "images.npy"),
        (built().join("libof_runtime.so"), "libof_runtime.so"),
    ] {
        std::fs::copy(from, folder.path().join(to)).unwrap();
    }
    std::fs::create_dir(folder.path().join("home")).unwrap();
    // No variable of this environment, and a home without files.
    let alone = |program: &str| {
        let mut command = Command::new(program);
        command.env_clear().env("HOME", folder.path().join("home")).current_dir(folder.path());
        command
    };
    let link = ["digits.c", "-I.", "-L.", "-lof_runtime", "-Wl,-rpath,$ORIGIN", "-o", "digits"];
    run(alone(cc).env("PATH", "/usr/local/bin:/usr/bin:/bin").args(link));
    assert_eq!(run(alone("./digits").args(["digits.plan", "images.npy"])), DIGITS);
    assert_eq!(std::fs::read_dir(folder.path().join("home")).unwrap().count(), 0, "the runtime keeps nothing");
}

#[test]
fn the_example_in_cpp_recognizes_digits_on_two_threads() {
    let Some(cpp) = compiler(&CC, "c++") else { return };
    let (folder, images) = (folder(), root().join("examples/digits/images.npy"));
    let (program, plan) = (folder.path().join("digits"), folder.path().join("digits.plan"));
    run(build(cpp, "examples/cpp/digits.cpp", &program).args(["-std=c++17", "-L"]).arg(built()).arg("-lof_runtime"));
    let refused = "refused: input `image` (number 0) has rank 2 [1, 64] and must have rank 4 [N, 1, 8, 8]\n";
    assert_eq!(run(with_library(&program).arg(&plan).arg(&images)), format!("{DIGITS}{refused}"));
    let missing = with_library(&program).arg(&images).arg(&images).output().unwrap();
    assert_eq!(missing.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&missing.stderr).starts_with("error: not a plan"), "{missing:?}");
}

#[test]
fn variables_stay_in_sessions_of_cpp() {
    let Some(cpp) = compiler(&CC, "c++") else { return };
    let folder = tempfile::tempdir().unwrap();
    let (program, plan) = (folder.path().join("variables"), folder.path().join("counter.plan"));
    compile_with(model(COUNTER), &["next_sum=sum", "next_count=count:zeros"], &plan);
    let source = "bindings/c/tests/variables.cpp";
    run(build(cpp, source, &program).args(["-std=c++17", "-L"]).arg(built()).arg("-lof_runtime"));
    let refused = "refused: variable `sum` has no value: set it before the run\n";
    let expected = format!("variable sum: f32[4]\nvariable count: i64[]\n{refused}sum 12 of 2, after a reset of 0\n");
    assert_eq!(run(with_library(&program).arg(&plan)), expected);
}

/// A state of two ranks that is summed up.
const RANKS: &str = r#"of.mesh @m {devices = "cpu", shape = [2]}
func @main(%x: tensor<4x6xf32, #of.sbp<@m, [S(0)]>> {of.name = "x"}, %s: tensor<4x6xf32, #of.sbp<@m, [S(0)]>> {of.name = "state"}) -> (tensor<4x6xf32, #of.sbp<@m, [S(0)]>> {of.name = "y"}, tensor<4x6xf32, #of.sbp<@m, [S(0)]>> {of.name = "next"}) {
  %n = of.add %s, %x : (tensor<4x6xf32, #of.sbp<@m, [S(0)]>>, tensor<4x6xf32, #of.sbp<@m, [S(0)]>>) -> tensor<4x6xf32, #of.sbp<@m, [S(0)]>>
  %y = of.neg %n : (tensor<4x6xf32, #of.sbp<@m, [S(0)]>>) -> tensor<4x6xf32, #of.sbp<@m, [S(0)]>>
  of.return %y, %n : (tensor<4x6xf32, #of.sbp<@m, [S(0)]>>, tensor<4x6xf32, #of.sbp<@m, [S(0)]>>) -> ()
}"#;

#[test]
fn ranks_are_processes_of_a_program_in_c() {
    let Some(cc) = compiler(&CC, "cc") else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let (program, plan, single) = (file("ranks"), file("ranks.plan"), file("digits.plan"));
    compile_on_mesh(model(RANKS), "cpu[2]", &["next=state:zeros"], &plan);
    compile(digits(), 1, &[], &single);
    run(build(cc, "bindings/c/tests/ranks.c", &program).args(["-std=c99", "-L"]).arg(built()).arg("-lof_runtime"));
    let expected = "1 program, input x: f32[4, 6]
variable state: f32[4, 6]
refused: the plan is for 1 rank, and 2 ranks are asked for
refused: rank 1 cannot be started by '/bin/true': it does not serve the rank, and ended with exit status: 0
y -1 -1, state 1 1
y -2 -2, state 2 2
y -1 -24, state 1 24
y -1 -1, state 1 1
output of rank 2 at the caller's memory
refused: there is no variable number 7; there are 1
refused: the run was cancelled
refused: the run was cancelled
";
    assert_eq!(run(with_library(&program).arg(&plan).arg(&single)), expected);
    // Where mpirun starts the program for each rank, both print the same.
    let mpirun = ["mpirun.openmpi", "mpirun"].into_iter().find(|name| {
        let out = Command::new(name).arg("--version").output();
        out.is_ok_and(|out| String::from_utf8_lossy(&out.stdout).contains("Open MPI"))
    });
    let Some(mpirun) = require(&OPENMPI, mpirun.ok_or("there is no mpirun of Open MPI")) else { return };
    let mut command = with_library(mpirun);
    command.envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
    command.envs([("OMPI_MCA_rmaps_base_oversubscribe", "1"), ("OMPI_MCA_hwloc_base_binding_policy", "none")]);
    let printed = run(command.args(["-n", "2"]).arg(&program).arg(&plan).arg(&single).arg("launcher"));
    let mut want: Vec<&str> = expected
        .lines()
        .filter(|line| !line.contains("/bin/true") && !line.contains("cancelled"))
        .flat_map(|l| [l, l])
        .collect();
    let mut got: Vec<&str> = printed.lines().collect();
    want.sort_unstable();
    got.sort_unstable();
    assert_eq!(got, want);
}

#[test]
fn sequences_pass_through_cpp() {
    let Some(cpp) = compiler(&CC, "c++") else { return };
    let folder = tempfile::tempdir().unwrap();
    let (program, plan) = (folder.path().join("sequences"), folder.path().join("sequence.plan"));
    compile(model(SEQUENCE), 1, &[], &plan);
    let source = "bindings/c/tests/sequences.cpp";
    run(build(cpp, source, &program).args(["-std=c++17", "-L"]).arg(built()).arg("-lof_runtime"));
    let expected = "3 items: 1 2 2 3 3 3 \npresent: 5\nrefused: there is no item number 3; there are 3\n";
    assert_eq!(run(with_library(&program).arg(&plan)), expected);
}

#[test]
fn python_passes_sequences_without_a_package() {
    let python = Command::new("python3").arg("--version").output().map(|_| "python3");
    let Some(python) = require(&PYTHON, python) else { return };
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("sequence.plan");
    compile(model(SEQUENCE), 1, &[], &plan);
    let mut command = Command::new(python);
    command.arg(root().join("bindings/c/tests/sequences.py")).arg(built().join("libof_runtime.so")).arg(&plan);
    assert_eq!(run(&mut command), "[[1.0], [2.0, 2.0], [3.0, 3.0, 3.0]]\nabsent\n");
}

#[test]
fn python_calls_the_library_without_a_package() {
    let python = Command::new("python3").arg("--version").output().map(|_| "python3");
    let Some(python) = require(&PYTHON, python) else { return };
    let folder = folder();
    let mut command = Command::new(python);
    command.arg(root().join("bindings/c/tests/digits.py")).arg(built().join("libof_runtime.so"));
    command.arg(folder.path().join("digits.plan")).arg(root().join("examples/digits/images.npy"));
    assert_eq!(run(&mut command), "digits: 7 0 3 9 1 4 8 2\n");
}

#[test]
fn every_wrong_call_gives_an_error_and_buffers_are_used_in_place() {
    let Some(cc) = compiler(&CC, "cc") else { return };
    let folder = folder();
    let file = |name: &str| folder.path().join(name);
    compile(model(ROWS), 1, &[], &file("rows.plan"));
    compile(model(ROWS), 1, &[("N", 3)], &file("fixed.plan"));
    compile(model(TEXT), 1, &[], &file("text.plan"));
    compile(model(LOOP), 1, &[], &file("loop.plan"));
    compile(model(SEQUENCE), 1, &[], &file("sequence.plan"));
    compile(model(INTERPRETED), 1, &[], &file("interpreted.plan"));
    compile_with(model(COUNTER), &["next_sum=sum", "next_count=count:zeros"], &file("counter.plan"));
    sign(&file("digits.plan"));
    let program = file("interface");
    let source = "bindings/c/tests/interface.c";
    run(build(cc, source, &program).args(["-std=c11", "-D_GNU_SOURCE", "-L"]).arg(built()).arg("-lof_runtime"));
    assert_eq!(run(with_library(&program).arg(folder.path())), "all checks passed\n");
}

/// Signs a plan, and puts the keys next to it.
fn sign(plan: &Path) {
    let keys = root().join("signature/tests/data");
    for name in ["ed25519.pub.pem", "p256.pub.pem"] {
        std::fs::copy(keys.join(name), plan.with_file_name(name)).unwrap();
    }
    let key = of_signature::private_key(&keys.join("ed25519.pem")).unwrap();
    let bundle = of_signature::sign(&of_signature::signed_name(plan), &std::fs::read(plan).unwrap(), &key).unwrap();
    std::fs::write(of_signature::signature_file(plan), bundle).unwrap();
}

/// An input and an output of open extents.
const ROWS: &str = "func @main(%x: tensor<?(N)x4xf32>) -> (tensor<?(N)x4xf32>, tensor<?(N)x4xf32>) {
  %y = of.add %x, %x : (tensor<?(N)x4xf32>, tensor<?(N)x4xf32>) -> tensor<?(N)x4xf32>
  of.return %y, %x : (tensor<?(N)x4xf32>, tensor<?(N)x4xf32>) -> ()
}
";

/// Text that comes out as it went in.
const TEXT: &str = "func @main(%s: tensor<?(N)x!of.string>) -> (tensor<?(N)x!of.string>) {
  of.return %s : (tensor<?(N)x!of.string>) -> ()
}
";

/// A sequence and an optional value that come out as they went in.
const SEQUENCE: &str = "func @main(%s: !of.seq<tensor<?xf32>>, %o: !of.opt<tensor<?xf32>>) -> (!of.seq<tensor<?xf32>>, !of.opt<tensor<?xf32>>) {
  of.return %s, %o : (!of.seq<tensor<?xf32>>, !of.opt<tensor<?xf32>>) -> ()
}
";

/// A run as long as an input says.
const LOOP: &str = "func @main(%n: tensor<i64>, %x: tensor<1024xf32>) -> (tensor<1024xf32>) {
  %none = of.none
  %last = of.loop %n, %none, %x : (tensor<i64>, none, tensor<1024xf32>) -> tensor<1024xf32> {
  ^(%i: tensor<i64>, %c: tensor<i1>, %s: tensor<1024xf32>):
    %m = of.sin %s : (tensor<1024xf32>) -> tensor<1024xf32>
    of.yield %c, %m : (tensor<i1>, tensor<1024xf32>) -> ()
  }
  of.return %last : (tensor<1024xf32>) -> ()
}
";

/// Two variables: a sum, and the number of vectors in it.
const COUNTER: &str = r#"func @main(%sum: tensor<4xf32>, %count: tensor<i64>, %x: tensor<4xf32>) -> (tensor<4xf32> {of.name = "next_sum"}, tensor<i64> {of.name = "next_count"}, tensor<4xf32> {of.name = "double"}) {
  %one = of.constant {value = dense<1> : tensor<i64>}
  %next = of.add %sum, %x
  %more = of.add %count, %one
  %double = of.add %next, %next
  of.return %next, %more, %double
}
"#;

/// An op without native code, whose backend is not part of the library.
const INTERPRETED: &str = "func @main(%m: tensor<65x65xf32>) -> (tensor<f32>) {
  %d = of.det %m : (tensor<65x65xf32>) -> tensor<f32>
  of.return %d : (tensor<f32>) -> ()
}
";

/// A plan for a mesh has a program for each set of shapes, of which a session of ranks runs one.
#[test]
fn ranks_run_each_program_of_a_plan() {
    let Some(cc) = compiler(&CC, "cc") else { return };
    let folder = tempfile::tempdir().unwrap();
    let (program, plan) = (folder.path().join("entry_points"), folder.path().join("ranks.plan"));
    let text = "func @main(%x: tensor<?(N)x4xf32> {of.name = \"x\"}) -> (tensor<?(N)x4xf32> {of.name = \"y\"}) {
  %y = of.neg %x : (tensor<?(N)x4xf32>) -> tensor<?(N)x4xf32>
  of.return %y : (tensor<?(N)x4xf32>) -> ()
}";
    compile_variants_on_mesh(model(text), "cpu[2]", &["N=2", "N=6"], &plan);
    let source = "bindings/c/tests/entry_points.c";
    run(build(cc, source, &program).args(["-std=c99", "-L"]).arg(built()).arg("-lof_runtime"));
    let expected = "program 0, f32[2, 4]: 2 rows, the last is -7
program 1, f32[6, 4]: 6 rows, the last is -23
refused: there is no program number 2; there are 2
";
    assert_eq!(run(with_library(&program).arg(&plan)), expected);
}

#[test]
fn ranks_are_processes_of_a_program_in_cpp() {
    let Some(cpp) = compiler(&CC, "c++") else { return };
    let folder = tempfile::tempdir().unwrap();
    let (program, plan) = (folder.path().join("ranks"), folder.path().join("ranks.plan"));
    compile_on_mesh(model(RANKS), "cpu[2]", &["next=state:zeros"], &plan);
    let source = "bindings/c/tests/ranks.cpp";
    run(build(cpp, source, &program).args(["-std=c++17", "-pthread", "-L"]).arg(built()).arg("-lof_runtime"));
    let expected = "y -1 -24\nencrypted: y -1 -24\ncancelled after some runs: the run was cancelled\n";
    assert_eq!(run(with_library(&program).arg(&plan)), expected);
}
