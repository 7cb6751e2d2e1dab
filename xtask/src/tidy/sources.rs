//! What Rust files may hold.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::lexer::{self, Code};
use crate::workspace::read;

/// Longer files hold more than one thing.
const MAX_LINES: usize = 900;

/// Files that a command writes.
const GENERATED: &[&str] = &["backends/xla/src/ffi/bindings.rs", "serving/proto/inference.rs"];

/// Files and folders that may hold unsafe code. Backends add their `ffi.rs` or folder `ffi`.
const UNSAFE: &[&str] = &[
    "codegen/src/toolchain/nvrtc.rs",
    "cuda-sys/src/ffi.rs",
    "runtime/src/device/",
    "bindings/c/src/",
    "bindings/python/src/array.rs",
    "bindings/python/src/dlpack.rs",
    "bindings/c/examples/",
    "plan/src/cpu.rs",
    "plan/src/mapped_bytes.rs",
    "plan/src/pages.rs",
    "ir/src/blob.rs",
    "files/src/mapped.rs",
    "images/src/vectors.rs",
    "onnx/src/export/stream.rs",
    "transport/examples/",
    "transport/src/mpi/",
    "transport/src/segment.rs",
    "transport/src/send_queue.rs",
];

/// What must not occur in code, and why.
const FORBIDDEN: &[(&str, &str)] = &[
    ("todo!", "unfinished code gives a typed error"),
    ("unimplemented!", "unfinished code gives a typed error"),
    ("dbg!", "it was meant for debugging"),
];

/// Everything that is wrong.
///
/// # Errors
/// When a file cannot be read.
pub fn check(root: &Path, files: &[PathBuf]) -> Result<Vec<String>, String> {
    let rust: Vec<(String, String)> = files
        .iter()
        .filter(|f| f.extension().is_some_and(|e| e == "rs"))
        .map(|f| Ok((f.to_string_lossy().replace('\\', "/"), read(&root.join(f))?)))
        .collect::<Result<_, String>>()?;
    let mut files: Vec<(&str, Code)> = Vec::new();
    let mut wrong = Vec::new();
    for (name, text) in &rust {
        match lexer::read(text) {
            Ok(code) => files.push((name, code)),
            Err(why) => wrong.push(format!("{name}: {why}")),
        }
    }
    for (name, code) in &files {
        let lines = code.lines.len();
        if lines > MAX_LINES && !GENERATED.contains(name) {
            wrong.push(format!("{name}: {lines} lines; files of more than {MAX_LINES} hold more than one thing"));
        }
        wrong.extend(one(name, code));
    }
    wrong.extend(ops_in_ir(&files));
    Ok(wrong)
}

fn one(name: &str, code: &Code) -> Vec<String> {
    let mut wrong = Vec::new();
    for (n, line) in (1..).zip(&code.lines) {
        // A test that needs a process of its own is started by another test.
        let by_another = |(at, text): &(usize, String)| *at == n && text.starts_with("run by another test");
        if line.contains("#[ignore") && !code.strings.iter().any(by_another) {
            wrong.push(format!("{name}:{n}: #[ignore (a test that is not run tests nothing)"));
        }
        if has_word(line, "unsafe") && !may_be_unsafe(name) {
            wrong.push(format!(
                "{name}:{n}: unsafe code is allowed only in {}, and in ffi.rs of a backend",
                UNSAFE.join(", ")
            ));
        }
        for (what, why) in FORBIDDEN {
            if line.contains(what) {
                wrong.push(format!("{name}:{n}: {what} ({why})"));
            }
        }
    }
    wrong
}

fn may_be_unsafe(name: &str) -> bool {
    let ffi = name.starts_with("backends/") && (name.ends_with("/src/ffi.rs") || name.contains("/src/ffi/"));
    ffi || UNSAFE.iter().any(|u| if u.ends_with('/') { name.starts_with(u) } else { name == *u })
}

fn has_word(line: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back().is_some_and(part);
        let after = line[at + word.len()..].chars().next().is_some_and(part);
        !before && !after
    })
}

/// of-ir names no op: no string in its code, tests apart, is the name of one.
fn ops_in_ir(files: &[(&str, Code)]) -> Vec<String> {
    let is_op = |s: &str| {
        s.strip_prefix("of.").is_some_and(|n| !n.is_empty() && n.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'))
    };
    let ops: BTreeSet<&str> = files
        .iter()
        .filter(|(name, ..)| name.starts_with("ops/src/"))
        .flat_map(|(_, s)| s.strings.iter().map(|(_, t)| t.as_str()))
        .filter(|s| is_op(s))
        .collect();
    let mut wrong = Vec::new();
    for (name, s) in files.iter().filter(|(n, ..)| n.starts_with("ir/src/") && !n.contains("/tests")) {
        // Tests at the end of a file come after its code.
        let tests = s.lines.iter().position(|l| l.contains("#[cfg(test)]")).unwrap_or(usize::MAX);
        for (line, text) in s.strings.iter().filter(|(line, _)| *line <= tests) {
            for op in ops.iter().filter(|op| has_word(text, op)) {
                wrong.push(format!("{name}:{line}: the IR names no op, here it names '{op}'"));
            }
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_and_unfinished_code_is_reported_with_its_line() {
        let text = "fn f() {\n    unsafe { g() }\n    todo!()\n}\n#![deny(unsafe_code)]\n#[ignore]\n#[ignore = \"run by another test\"]\n";
        let code = &lexer::read(text).unwrap();
        let wrong = one("ops/src/x.rs", code);
        assert_eq!(wrong.len(), 3, "{wrong:?}");
        assert_eq!(wrong[2], "ops/src/x.rs:6: #[ignore (a test that is not run tests nothing)");
        assert!(wrong[0].starts_with("ops/src/x.rs:2: unsafe code"));
        assert_eq!(wrong[1], "ops/src/x.rs:3: todo! (unfinished code gives a typed error)");
        assert_eq!(one("runtime/src/device/x.rs", code).len(), 2);
        assert_eq!(one("backends/xla/src/ffi.rs", code).len(), 2);
    }

    #[test]
    fn names_of_ops_in_the_ir_are_found() {
        let file = |text: &str| lexer::read(text).unwrap();
        let files = [
            ("ops/src/a.rs", file("const N: &str = \"of.matmul\";")),
            ("ir/src/b.rs", file("// \"of.matmul\"\nlet x = \"of.matmul %a\"; let y = \"of.matmul_x\";")),
            ("ir/src/text/tests/c.rs", file("let x = \"of.matmul\";")),
        ];
        assert_eq!(ops_in_ir(&files), ["ir/src/b.rs:2: the IR names no op, here it names 'of.matmul'"]);
    }
}
