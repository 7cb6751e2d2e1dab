//! Finds the tests, runs them in parallel, and says what failed.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use of_test_support::cargo::cargo;
use of_test_support::component::{self, Component};

use crate::command::{self, Context};

/// What became of one file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Everything as it says.
    Passed,
    /// Something that it requires is not installed.
    Skipped(&'static Component),
    /// What went wrong.
    Failed(String),
}

/// Every `*.of` file in the areas below `root`, sorted. Files directly in `root` are no tests.
///
/// # Errors
/// When a folder cannot be read.
pub fn find(root: &Path) -> std::io::Result<Vec<PathBuf>> {
    fn walk(dir: &Path, out: &mut Vec<PathBuf>) -> std::io::Result<()> {
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            if path.is_dir() {
                walk(&path, out)?;
            } else if path.extension().is_some_and(|e| e == "of") {
                out.push(path);
            }
        }
        Ok(())
    }
    let mut all = Vec::new();
    for entry in fs::read_dir(root)? {
        let area = entry?.path();
        // The runner's own code holds texts for its tests.
        if area.is_dir() && !matches!(area.file_name().and_then(|n| n.to_str()), Some("src" | "tests")) {
            walk(&area, &mut all)?;
        }
    }
    all.sort();
    Ok(all)
}

/// Runs one file; its own files go below `temp`.
pub fn run_file(file: &Path, of_opt: &Path, temp: &Path) -> Outcome {
    let text = match fs::read_to_string(file) {
        Ok(t) => t,
        Err(e) => return Outcome::Failed(e.to_string()),
    };
    for name in directives(&text, "REQUIRES:") {
        match component::ALL.into_iter().find(|c| c.name == name) {
            None => {
                return Outcome::Failed(format!("REQUIRES names '{name}', which is no component of of-test-support"));
            }
            Some(component) if !installed(&name) => return Outcome::Skipped(component),
            Some(_) => {}
        }
    }
    let lines = directives(&text, "RUN:");
    if lines.is_empty() {
        return Outcome::Failed("there is no RUN: line".into());
    }
    let cx = Context { of_opt: of_opt.into(), file: file.into(), temp: temp.into() };
    match lines.iter().try_for_each(|l| command::run(l, &cx)) {
        Ok(()) => Outcome::Passed,
        Err(why) => Outcome::Failed(why),
    }
}

/// What follows `key` in the comments of a text; lines that end with `\` are joined.
fn directives(text: &str, key: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut open: Option<String> = None;
    for line in text.lines() {
        let Some(rest) = line.trim().strip_prefix("//").and_then(|l| l.trim().strip_prefix(key)) else {
            continue;
        };
        let rest = rest.trim();
        let joined = match open.take() {
            Some(begun) => format!("{begun} {rest}"),
            None => rest.to_owned(),
        };
        match joined.strip_suffix('\\') {
            Some(begun) => open = Some(begun.trim_end().to_owned()),
            None => all.push(joined),
        }
    }
    // A backslash on the last line has nothing to join.
    all.extend(open);
    all
}

fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|d| d.join(program).is_file())
}

/// Runs files on all cores and gives what became of each, in their order.
pub fn run_all(files: &[PathBuf], of_opt: &Path, temp: &Path) -> Vec<Outcome> {
    let next = AtomicUsize::new(0);
    let outcomes = Mutex::new(vec![Outcome::Passed; files.len()]);
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(files.len());
    std::thread::scope(|s| {
        for _ in 0..threads {
            s.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(file) = files.get(i) else { return };
                    let outcome = run_file(file, of_opt, &temp.join(format!("{i}")));
                    if let Ok(mut all) = outcomes.lock() {
                        all[i] = outcome;
                    }
                }
            });
        }
    });
    outcomes.into_inner().unwrap_or_default()
}

/// Builds `of-opt` as the running test was built and gives its path. `OF_OPT` names another one.
///
/// # Errors
/// When it does not build.
pub fn of_opt() -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os("OF_OPT") {
        return Ok(path.into());
    }
    // …/target/debug/deps/lit-0123: the program is two levels up.
    let exe = std::env::current_exe().map_err(|e| e.to_string())?;
    let profile_dir = exe.ancestors().nth(2).ok_or("the test's program is not in a target folder")?;
    let target = profile_dir.parent().ok_or("the test's program is not in a target folder")?;
    let profile = match profile_dir.file_name().and_then(|n| n.to_str()) {
        Some("debug") | None => "dev",
        Some(other) => other,
    };
    // Always, because an old program would be tested silently; it takes no time when there is nothing to do.
    let build = cargo()
        .args(["build", "--quiet", "--package", "of-opt", "--profile", profile, "--target-dir"])
        .arg(target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .map_err(|e| format!("cargo cannot be run: {e}"))?;
    if !build.status.success() {
        return Err(format!("of-opt does not build:\n{}", String::from_utf8_lossy(&build.stderr)));
    }
    Ok(profile_dir.join(format!("of-opt{}", std::env::consts::EXE_SUFFIX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_are_found_and_joined() {
        let text = "// RUN: a \\\n// RUN:   b\nof.x // RUN: no\n  //RUN: c\n// REQUIRES: z\n";
        assert_eq!(directives(text, "RUN:"), ["a b", "c"]);
        assert_eq!(directives(text, "REQUIRES:"), ["z"]);
    }

    #[cfg(unix)]
    #[test]
    fn files_are_found_run_and_reported() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let p = dir.path().join(name);
            fs::create_dir_all(p.parent().unwrap()).unwrap();
            fs::write(p, text).unwrap();
        };
        put("a/good.of", "// RUN: of-opt x y | FileCheck %s\n// CHECK: x y\n");
        put("a/b/bad.of", "// RUN: of-opt x | FileCheck %s\n// CHECK: z\n");
        put("c/none.of", "of.x\n");
        put("c/skip.of", "// REQUIRES: no-such-program\n// RUN: no-such-program\n");
        put("src/no.of", "");
        put("no.of", "");
        let files = find(dir.path()).unwrap();
        let names: Vec<_> = files.iter().map(|f| f.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["bad.of", "good.of", "none.of", "skip.of"]);
        let all = run_all(&files, Path::new("/bin/echo"), dir.path());
        assert!(matches!(&all[0], Outcome::Failed(why) if why.contains("bad.of:2: this is not found")), "{all:?}");
        assert_eq!(all[1], Outcome::Passed);
        assert_eq!(all[2], Outcome::Failed("there is no RUN: line".into()));
        assert!(matches!(&all[3], Outcome::Failed(why) if why.contains("no-such-program")), "{:?}", all[3]);
    }
}
