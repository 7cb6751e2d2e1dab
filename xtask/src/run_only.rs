//! `cargo xtask run-only`: the smallest build of the runtime, as a program that needs nothing of its machine but a kernel.
//!
//! The library for C without its default features has no compiler, no interpreter, no signatures and no logs. The example in C is
//! linked with it, statically and without symbols, and runs the plan of the digits.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::workspace::{cargo, of_opt, root, run, target};

/// The program must not be larger, in bytes.
const MAX_BYTES: u64 = 5_000_000;
/// It must not link more crates, its own included.
const MAX_CRATES: usize = 18;
/// From the start of the process to its end, with a run of the plan.
const MAX_TIME: Duration = Duration::from_millis(10);
/// How often it is started; the best time counts, because other programs disturb the others.
const STARTS: usize = 50;
/// The target of static programs without glibc. Where its standard library is not installed, glibc is linked statically.
const MUSL: &str = "x86_64-unknown-linux-musl";
/// Nothing of these may be linked.
const FOREIGN: [&str; 5] = ["of-codegen", "of-ops", "of-ir", "of-reference", "of-driver"];

/// Builds the program, runs it, and checks its size, its crates and its time.
///
/// # Errors
/// When it cannot be built or run, or exceeds a limit.
pub fn run_only(args: &[&str]) -> Result<(), String> {
    if !args.is_empty() {
        return Err(format!("'cargo xtask run-only' does not know {}", args.join(" ")));
    }
    let crates = crates()?;
    let folder = target().join("run-only");
    let musl = has_musl();
    let mut build = cargo();
    build.args(["build", "--release", "--locked", "-p", "of-runtime-c", "--no-default-features", "--target-dir"]);
    build.arg(&folder).env_remove("CARGO_TARGET_DIR");
    if musl {
        build.args(["--target", MUSL]);
    }
    run(&mut build)?;
    let built = if musl { folder.join(MUSL) } else { folder.clone() }.join("release");
    let program = folder.join("digits");
    let mut link = Command::new(if musl { "musl-gcc" } else { "cc" });
    link.current_dir(root()).args(["-O2", "-static", "-s", "-Wl,--gc-sections", "examples/c/digits.c"]);
    link.args(["-I", "bindings/c/include"]).arg(built.join("libof_runtime.a")).args(["-lpthread", "-lm", "-ldl"]);
    run(link.arg("-o").arg(&program))?;
    run(cargo().args(["build", "--release", "--locked", "--quiet", "-p", "of-opt"]))?;
    let plan = folder.join("digits.plan");
    let mut compile = Command::new(of_opt("release"));
    compile.current_dir(root()).args(["compile", "examples/digits/digits.onnx", "--threads", "1", "--quiet", "-o"]);
    run(compile.arg(&plan))?;

    let bytes = fs::metadata(&program).map_err(|e| format!("{}: {e}", program.display()))?.len();
    check_static(&program)?;
    let best = time(&program, &plan)?;
    let libc = if musl { "musl" } else { "glibc" };
    println!("{}: {bytes} bytes, static with {libc}, {} crates", program.display(), crates.len());
    println!("start, run and end of the process: {best:?}, the best of {STARTS}");
    if bytes > MAX_BYTES {
        return Err(format!("the program has more than {MAX_BYTES} bytes"));
    }
    if best > MAX_TIME {
        return Err(format!("the program takes longer than {MAX_TIME:?}"));
    }
    Ok(())
}

/// The crates that are linked, without macros, which only the build runs.
fn crates() -> Result<BTreeSet<String>, String> {
    let mut tree = cargo();
    tree.args(["tree", "--locked", "-p", "of-runtime-c", "--no-default-features", "--prefix", "none"]);
    let out = tree.args(["--edges", "normal,no-proc-macro", "--format", "{p}"]).output().map_err(|e| e.to_string())?;
    if !out.status.success() {
        return Err(format!("cargo tree: {}", String::from_utf8_lossy(&out.stderr)));
    }
    let text = String::from_utf8_lossy(&out.stdout);
    // "name v1.2.3 (folder)"; two versions of a crate are two.
    let crates = text.lines().map(|line| line.split(" (").next().unwrap_or(line).to_owned());
    let crates: BTreeSet<String> = crates.filter(|line| !line.is_empty()).collect();
    let name = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
    if let Some(foreign) = crates.iter().map(|line| name(line)).find(|name| FOREIGN.contains(&name.as_str())) {
        return Err(format!("the runtime links {foreign}"));
    }
    if crates.len() > MAX_CRATES {
        return Err(format!("the runtime links {} crates, more than {MAX_CRATES}: {crates:?}", crates.len()));
    }
    Ok(crates)
}

fn has_musl() -> bool {
    let libraries = Command::new("rustc").args(["--print", "target-libdir", "--target", MUSL]).output();
    let folder = libraries.ok().filter(|out| out.status.success());
    let folder = folder.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned());
    folder.is_some_and(|folder| Path::new(&folder).exists())
        && Command::new("musl-gcc").arg("--version").output().is_ok_and(|out| out.status.success())
}

/// A static program names no interpreter: the section `.interp` is missing.
fn check_static(program: &Path) -> Result<(), String> {
    let bytes = fs::read(program).map_err(|e| format!("{}: {e}", program.display()))?;
    let dynamic = bytes.windows(9).any(|window| window == b"/ld-linux" || window == b"/ld-musl-");
    if dynamic { Err(format!("{} is not a static program", program.display())) } else { Ok(()) }
}

/// The best time of the program, in an empty environment.
fn time(program: &Path, plan: &Path) -> Result<Duration, String> {
    let mut best = Duration::MAX;
    for _ in 0..STARTS {
        let mut command = Command::new(program);
        command.arg(plan).arg(root().join("examples/digits/images.npy")).env_clear();
        let start = Instant::now();
        let out = command.output().map_err(|e| format!("{}: {e}", program.display()))?;
        best = best.min(start.elapsed());
        let said = String::from_utf8_lossy(&out.stdout);
        if !out.status.success() || !said.ends_with("digits: 7 0 3 9 1 4 8 2\n") {
            return Err(format!(
                "{}: {}\n{said}{}",
                program.display(),
                out.status,
                String::from_utf8_lossy(&out.stderr)
            ));
        }
    }
    Ok(best)
}
