//! `cargo xtask run-only`: the smallest build of the runtime, as a program that needs nothing of its machine but a kernel.
//!
//! The library for C without its default features has no compiler, no interpreter, no signatures and no logs. The example in C is
//! linked with it, statically and without symbols, and runs the plan of the digits: on this machine, and by an emulator as a
//! program for AArch64. `cargo xtask wasm` is the same for WebAssembly.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::components::is_required;
use crate::workspace::{cargo, of_opt, root, run, target};
use crate::{aarch64, musl};

/// The program must not be larger, in bytes.
const MAX_BYTES: u64 = 5_000_000;
/// It must not link more crates, its own included.
const MAX_CRATES: usize = 18;
/// From the start of the process to its end, with a run of the plan.
const MAX_TIME: Duration = Duration::from_millis(10);
/// How often it is started; the best time counts, because other programs disturb the others.
const STARTS: usize = 50;
/// Nothing of these may be linked: they are the compiler.
pub const FOREIGN: [&str; 5] = ["of-codegen", "of-ops", "of-ir", "of-reference", "of-driver"];

/// A machine that the program is built for.
struct Machine {
    /// The name of its folder.
    name: &'static str,
    /// What it is called in messages.
    what: &'static str,
    /// Rust's target; `None` for the one of this machine.
    target: Option<&'static str>,
    /// The linker, which has the C library.
    linker: &'static str,
    /// The instruction set of the plan; `None` for the one of this machine.
    isa: Option<&'static str>,
    /// The program that runs its programs, if this machine does not.
    emulator: Option<&'static str>,
}

const GLIBC: Machine =
    Machine { name: "glibc", what: "this machine, with glibc", target: None, linker: "cc", isa: None, emulator: None };

const MUSL: Machine = Machine {
    name: "musl",
    what: "this machine, with musl",
    target: Some(musl::TARGET),
    linker: musl::LINKER,
    isa: None,
    emulator: None,
};

const AARCH64: Machine = Machine {
    name: "aarch64",
    what: "AArch64, with glibc",
    target: Some(aarch64::TARGET),
    linker: aarch64::LINKER,
    isa: Some("aarch64"),
    emulator: Some(aarch64::EMULATOR),
};

/// Builds the program, runs it, and checks its size, its crates and its time.
///
/// # Errors
/// When it cannot be built or run, or exceeds a limit. Where musl is missing, glibc is linked, and where the components for AArch64
/// are missing, that program is skipped, unless OF_REQUIRE names `musl` or `aarch64`.
pub fn run_only(args: &[&str]) -> Result<(), String> {
    if !args.is_empty() {
        return Err(format!("'cargo xtask run-only' does not know {}", args.join(" ")));
    }
    let mut machines = Vec::new();
    match musl::installed() {
        true => machines.push(MUSL),
        false if is_required("musl") => {
            return Err("OF_REQUIRE names musl, which is not installed ('cargo xtask musl')".into());
        }
        false => machines.push(GLIBC),
    }
    match aarch64::installed() {
        true => machines.push(AARCH64),
        false if is_required("aarch64") => {
            return Err("OF_REQUIRE names aarch64, which is not installed ('cargo xtask aarch64')".into());
        }
        false => {
            eprintln!("SKIPPED: the program for AArch64, whose compilers are not installed ('cargo xtask aarch64')")
        }
    }
    run(cargo().args(["build", "--release", "--locked", "--quiet", "-p", "of-opt"]))?;
    machines.iter().try_for_each(build_and_check)
}

fn build_and_check(machine: &Machine) -> Result<(), String> {
    let crates = crates(machine)?;
    let folder = target().join("run-only").join(machine.name);
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let library = library(machine.target, machine.linker)?.join("libof_runtime.a");
    let program = folder.join("digits");
    let mut link = Command::new(machine.linker);
    link.current_dir(root()).args(["-O2", "-static", "-s", "-Wl,--gc-sections", "examples/c/digits.c"]);
    link.args(["-I", "bindings/c/include"]).arg(library);
    if machine.target == Some(musl::TARGET) {
        link.arg(musl::unwinder()?);
    }
    link.args(["-lpthread", "-lm", "-ldl"]);
    run(link.arg("-o").arg(&program))?;
    let plan = folder.join("digits.plan");
    compile_digits(machine.isa, &plan)?;

    let bytes = fs::metadata(&program).map_err(|e| format!("{}: {e}", program.display()))?.len();
    check_static(&program)?;
    println!("{}: {bytes} bytes, static, for {}, {} crates", program.display(), machine.what, crates.len());
    if bytes > MAX_BYTES {
        return Err(format!("the program has more than {MAX_BYTES} bytes"));
    }
    if let Some(emulator) = machine.emulator {
        recognize(Command::new(emulator).arg(&program), &plan)?;
        println!("{emulator} runs it, and it recognizes the digits");
        return Ok(());
    }
    let best = time(&program, &plan)?;
    println!("start, run and end of the process: {best:?}, the best of {STARTS}");
    if best > MAX_TIME {
        return Err(format!("the program takes longer than {MAX_TIME:?}"));
    }
    Ok(())
}

/// Builds the library for C without its default features; the folder where it is.
///
/// # Errors
/// When cargo fails.
pub fn library(triple: Option<&str>, linker: &str) -> Result<PathBuf, String> {
    let folder = target().join("run-only/build");
    let mut build = cargo();
    build.args(["build", "--release", "--locked", "-p", "of-runtime-c", "--no-default-features", "--target-dir"]);
    build.arg(&folder).env_remove("CARGO_TARGET_DIR");
    if let Some(triple) = triple {
        let variable = format!("CARGO_TARGET_{}_LINKER", triple.to_uppercase().replace('-', "_"));
        build.args(["--target", triple]).env(variable, linker);
    }
    run(&mut build)?;
    Ok(triple.map_or_else(|| folder.clone(), |triple| folder.join(triple)).join("release"))
}

/// Compiles the plan of the digits for one thread.
///
/// # Errors
/// When of-opt fails.
pub fn compile_digits(isa: Option<&str>, plan: &Path) -> Result<(), String> {
    let mut compile = Command::new(of_opt("release"));
    compile.current_dir(root()).args(["compile", "examples/digits/digits.onnx", "--threads", "1", "--quiet"]);
    if let Some(isa) = isa {
        compile.args(["--isa", isa]);
    }
    run(compile.arg("-o").arg(plan))
}

fn crates(machine: &Machine) -> Result<BTreeSet<String>, String> {
    let target = machine.target.map_or_else(Vec::new, |triple| vec!["--target", triple]);
    let crates = linked_crates(&[&["-p", "of-runtime-c", "--no-default-features"][..], &target].concat())?;
    let name = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
    if let Some(foreign) = crates.iter().map(|line| name(line)).find(|name| FOREIGN.contains(&name.as_str())) {
        return Err(format!("the runtime links {foreign}"));
    }
    if crates.len() > MAX_CRATES {
        return Err(format!("the runtime links {} crates, more than {MAX_CRATES}: {crates:?}", crates.len()));
    }
    Ok(crates)
}

/// The crates that are linked, each with its version, without macros, which only the build runs. `package` are arguments of cargo.
///
/// # Errors
/// When cargo fails.
pub fn linked_crates(package: &[&str]) -> Result<BTreeSet<String>, String> {
    let mut tree = cargo();
    tree.args(["tree", "--locked", "--prefix", "none", "--edges", "normal,no-proc-macro", "--format", "{p}"]);
    let out = tree.args(package).output().map_err(|e| e.to_string())?;
    if !out.status.success() {
        return Err(format!("cargo tree: {}", String::from_utf8_lossy(&out.stderr)));
    }
    let text = String::from_utf8_lossy(&out.stdout);
    // "name v1.2.3 (folder)"; two versions of a crate are two.
    let crates = text.lines().map(|line| line.split(" (").next().unwrap_or(line).to_owned());
    Ok(crates.filter(|line| !line.is_empty()).collect())
}

/// Checks that a program is static: it names no interpreter, as the section `.interp` is missing.
///
/// # Errors
/// When it does, or cannot be read.
pub fn check_static(program: &Path) -> Result<(), String> {
    let bytes = fs::read(program).map_err(|e| format!("{}: {e}", program.display()))?;
    let dynamic = bytes.windows(9).any(|window| window == b"/ld-linux" || window == b"/ld-musl-");
    if dynamic { Err(format!("{} is not a static program", program.display())) } else { Ok(()) }
}

/// The best time of the program, in an empty environment.
fn time(program: &Path, plan: &Path) -> Result<Duration, String> {
    let mut best = Duration::MAX;
    for _ in 0..STARTS {
        best = best.min(recognize(Command::new(program).env_clear(), plan)?);
    }
    Ok(best)
}

/// Runs the program on the images, checks what it recognizes, and says how long it took.
fn recognize(command: &mut Command, plan: &Path) -> Result<Duration, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.arg(plan).arg(root().join("examples/digits/images.npy"));
    let start = Instant::now();
    let out = command.output().map_err(|e| format!("{name}: {e}"))?;
    let time = start.elapsed();
    let said = String::from_utf8_lossy(&out.stdout);
    if out.status.success() && said.ends_with("digits: 7 0 3 9 1 4 8 2\n") {
        return Ok(time);
    }
    Err(format!("{name}: {}\n{said}{}", out.status, String::from_utf8_lossy(&out.stderr)))
}
