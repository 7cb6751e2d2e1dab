//! `cargo xtask bless`: the current output becomes the expected output. Read the difference before you keep it.

use std::path::Path;
use std::process::Command;

use crate::workspace::{cargo, files, of_opt, read, root, run, write};

/// Updates snapshots, or the CHECK lines of the given lit tests.
///
/// # Errors
/// When a test cannot be run or is not of the simple kind that can be updated.
pub fn bless(files: &[&str]) -> Result<(), String> {
    if files.is_empty() {
        let mut command = cargo();
        command.args(["test", "--no-fail-fast"]).env("INSTA_UPDATE", "always");
        for name in crates_with_snapshots()? {
            command.args(["--package", &name]);
        }
        // A test that fails for another reason still fails.
        return run(&mut command);
    }
    run(cargo().args(["build", "--quiet", "--package", "of-opt"]))?;
    let of_opt = of_opt("debug");
    for f in files {
        let path = Path::new(f);
        let text = read(path)?;
        let args = arguments(&text).ok_or_else(|| {
            format!("{f}: only a test with one line 'RUN: of-opt %s … | FileCheck %s' can be updated, write this one by hand")
        })?;
        let words: Vec<String> = args.split_whitespace().map(|w| w.replace("%s", f)).collect();
        let out = Command::new(&of_opt).args(&words).output().map_err(|e| format!("{}: {e}", of_opt.display()))?;
        if !out.status.success() {
            return Err(format!("{f}: of-opt failed:\n{}", String::from_utf8_lossy(&out.stderr)));
        }
        write(path, &updated(&text, &String::from_utf8_lossy(&out.stdout)))?;
        eprintln!("updated {f}");
    }
    Ok(())
}

/// The crates whose tests use insta.
fn crates_with_snapshots() -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    for file in files(&root())?.iter().filter(|f| f.ends_with("Cargo.toml") && f.components().count() > 1) {
        let text = read(&root().join(file))?;
        let name = text.lines().find_map(|l| l.strip_prefix("name = \"")?.strip_suffix('"'));
        if text.contains("\ninsta.workspace = true") {
            names.extend(name.map(str::to_owned));
        }
    }
    Ok(names)
}

/// The arguments of the only RUN line.
fn arguments(text: &str) -> Option<&str> {
    let mut runs = text.lines().filter_map(|l| l.trim().strip_prefix("// RUN:"));
    let (line, None) = (runs.next()?, runs.next()) else { return None };
    line.trim()
        .strip_prefix("of-opt ")?
        .trim_end()
        .strip_suffix("FileCheck %s")?
        .trim_end()
        .strip_suffix('|')
        .map(str::trim_end)
}

/// The text with CHECK lines for every function of `output`, each before the function of that name.
fn updated(text: &str, output: &str) -> String {
    let functions = functions(output);
    let mut out = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("// CHECK") {
            continue;
        }
        if let Some(checks) = name(line).and_then(|n| functions.iter().find(|(m, _)| *m == n)) {
            out.push_str(&checks.1);
        }
        out.push_str(line);
        out.push('\n');
    }
    out
}

/// Each function of a module with its CHECK lines.
fn functions(output: &str) -> Vec<(&str, String)> {
    let mut all: Vec<(&str, String)> = Vec::new();
    for line in output.lines() {
        if let Some(n) = name(line) {
            all.push((n, format!("// CHECK-LABEL: {}\n", escape(line.trim()))));
        } else if let Some((_, checks)) = all.last_mut()
            && !line.trim().is_empty()
        {
            checks.push_str(&format!("// CHECK-NEXT: {}\n", escape(line.trim())));
        }
    }
    // The last op of a function is its return: the braces that follow close the function and the module.
    for (_, checks) in &mut all {
        while let Some(rest) = checks.strip_suffix("// CHECK-NEXT: }\n") {
            checks.truncate(rest.len());
        }
    }
    all
}

/// The name of the function that begins on this line.
fn name(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("func @")?;
    rest.split('(').next()
}

/// Nested brackets and braces mean something else in CHECK lines.
fn escape(line: &str) -> String {
    line.replace("[[", "{{\\[\\[}}").replace("]]", "{{\\]\\]}}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_lines_are_written_before_their_function() {
        let text = "// What it is for.\n// RUN: of-opt %s --passes=dce | FileCheck %s\n\n// CHECK: old\nfunc @f(%x: t) {\n  of.return %x\n}\n";
        assert_eq!(arguments(text), Some("%s --passes=dce"));
        let new = updated(text, "module @m {\n  func @f(%x: t) {\n    %c = dense<[[1]]>\n    of.return %x\n  }\n}\n");
        let want = "// What it is for.\n// RUN: of-opt %s --passes=dce | FileCheck %s\n\n// CHECK-LABEL: func @f(%x: t) {\n\
            // CHECK-NEXT: %c = dense<{{\\[\\[}}1{{\\]\\]}}>\n// CHECK-NEXT: of.return %x\nfunc @f(%x: t) {\n  of.return %x\n}\n";
        assert_eq!(new, want);
        assert_eq!(arguments("// RUN: not of-opt %s\n"), None);
    }
}
