//! `cargo xtask wheel`: builds the wheel of the Python package, and tests it, in an environment with NumPy alone, too.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::components::is_required;
use crate::python;
use crate::workspace::{root, run, target, without_package};

/// A wheel must not be larger, in bytes.
const MAX_WHEEL: u64 = 20_000_000;

/// Builds the wheel; with `--test`, runs the package's tests on what it installs.
///
/// # Errors
/// When maturin fails, the wheel is too large, or a test fails. Without the Python packages the work is skipped, unless OF_REQUIRE
/// names `python`.
pub fn wheel(args: &[&str]) -> Result<(), String> {
    let with_tests = match args {
        [] => false,
        ["--test"] => true,
        other => return Err(format!("'cargo xtask wheel' does not know {}", other.join(" "))),
    };
    if !python::installed() {
        let missing = "the Python packages that build and test it are not installed ('cargo xtask python-packages')";
        if !with_tests || is_required("python") {
            return Err(format!("the wheel cannot be built: {missing}"));
        }
        eprintln!("SKIPPED: the wheel is neither built nor tested, as {missing}");
        return Ok(());
    }
    let wheel = build()?;
    let bytes = fs::metadata(&wheel).map_err(|e| format!("{}: {e}", wheel.display()))?.len();
    eprintln!("{}: {bytes} bytes", wheel.display());
    if bytes > MAX_WHEEL {
        return Err(format!("the wheel has more than {MAX_WHEEL} bytes"));
    }
    if with_tests {
        test(&wheel)?;
        test_alone(&wheel)?;
        test_drop_in()?;
    }
    Ok(())
}

/// Builds the wheel with the compiled crates of the workspace.
fn build() -> Result<PathBuf, String> {
    let folder = target().join("wheels");
    let work = |e: std::io::Error| format!("{}: {e}", folder.display());
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(work)?;
    }
    let python = python::interpreter()?;
    let mut maturin = Command::new(&python);
    maturin.current_dir(root()).args(["-m", "maturin", "build", "--release", "--locked"]);
    maturin.args(["--manifest-path", "bindings/python/Cargo.toml", "--interpreter"]).arg(&python);
    without_package(&mut maturin);
    run(maturin.arg("--out").arg(&folder))?;
    let files = fs::read_dir(&folder).map_err(work)?.filter_map(Result::ok).map(|entry| entry.path());
    let mut wheels = files.filter(|path| path.extension().is_some_and(|e| e == "whl"));
    wheels.next().ok_or_else(|| "maturin made no wheel".into())
}

/// Unpacks the wheel into a folder of its own and runs the tests there.
fn test(wheel: &Path) -> Result<(), String> {
    let folder = target().join("wheels/installed");
    let python = python::interpreter()?;
    run(Command::new(&python).args(["-m", "zipfile", "-e"]).arg(wheel).arg(&folder))?;
    let mut pytest = Command::new(&python);
    pytest.current_dir(root().join("bindings/python")).env("PYTHONPATH", &folder);
    run(pytest.args(["-m", "pytest", "--quiet", "-p", "no:cacheprovider"]).env("PYTHONDONTWRITEBYTECODE", "1"))
}

/// Runs public programs that import onnxruntime with this package in its place, and demands the same results.
fn test_drop_in() -> Result<(), String> {
    if !python::has_drop_in() {
        let missing = "the programs that import onnxruntime are not installed ('cargo xtask drop-in-packages')";
        if is_required("drop-in") {
            return Err(format!("OF_REQUIRE names drop-in, and {missing}"));
        }
        eprintln!("SKIPPED: of_opt.onnxruntime is not tested in public programs, as {missing}");
        return Ok(());
    }
    let mut programs = Command::new(python::drop_in_interpreter()?);
    programs.current_dir(root()).env("PYTHONPATH", target().join("wheels/installed"));
    programs.env("PYTHONDONTWRITEBYTECODE", "1");
    run(programs.args(["bindings/python/benches/drop_in.py", "--rounds", "1"]))
}

/// What a newcomer writes.
const FIVE_LINES: &str = r#"
import numpy as np, of_opt
plan = of_opt.compile("digits.onnx")
session = of_opt.Session(plan)
probability = session.run({"image": np.load("images.npy")})["probability"]
print(*probability.argmax(axis=1))
"#;

/// Copies NumPy, the one dependency, so that no registry is needed.
const COPY_NUMPY: &str = "
import numpy, pathlib, shutil, sys
for folder in pathlib.Path(numpy.__file__).parents[1].glob('numpy*'):
    if folder.is_dir():
        shutil.copytree(folder, pathlib.Path(sys.argv[1]) / folder.name)
";

/// Installs the wheel with pip into an environment that has NumPy alone, and runs a model there without a C compiler, with an empty
/// home and no other variable of the environment.
fn test_alone(wheel: &Path) -> Result<(), String> {
    let folder = target().join("wheels/alone");
    let work = |e: std::io::Error| format!("{}: {e}", folder.display());
    let (environment, home, models) = (folder.join("env"), folder.join("home"), root().join("examples/digits"));
    fs::create_dir_all(&home).map_err(work)?;
    run(Command::new("python3").args(["-m", "venv", "--without-pip"]).arg(&environment))?;
    let alone = environment.join("bin/python3");
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "--python"]).arg(&alone).args(["install", "--quiet", "--no-index", "--no-deps"]);
    run(pip.arg(wheel))?;
    let mut packages = Command::new(&alone);
    packages.args(["-c", "import sysconfig; print(sysconfig.get_path('platlib'), end='')"]);
    let packages = String::from_utf8_lossy(&packages.output().map_err(work)?.stdout).into_owned();
    run(Command::new(python::interpreter()?).args(["-c", COPY_NUMPY]).arg(packages))?;
    let mut program = Command::new(&alone);
    program.env_clear().env("HOME", &home).env("PATH", &home).current_dir(models).args(["-c", FIVE_LINES]);
    let out = program.output().map_err(work)?;
    let said = String::from_utf8_lossy(&out.stdout);
    if out.status.success() && said == "7 0 3 9 1 4 8 2\n" {
        return Ok(());
    }
    Err(format!("the wheel alone: {}\n{said}{}", out.status, String::from_utf8_lossy(&out.stderr)))
}
