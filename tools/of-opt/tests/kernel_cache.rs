//! The C compiler and the cache of its kernels, as users see them.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

use tempfile::TempDir;

fn of_opt(dir: &TempDir, args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_of-opt"));
    c.args(args).env("OF_CACHE_DIR", dir.path().join("cache")).env_remove("CC").env_remove("RUST_LOG");
    c.current_dir(dir.path());
    c
}

/// Compiles the model of digits with the C compiler.
fn compile(dir: &TempDir) -> Command {
    let mut c = compile_in_process(dir);
    c.args(["--cpu-code", "c"]);
    c
}

/// The same with the default, the compiler in process.
fn compile_in_process(dir: &TempDir) -> Command {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits/digits.onnx");
    let mut c = of_opt(dir, &["compile", "-o", "out.plan"]);
    c.arg(model);
    c
}

fn run(c: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = c.output().unwrap();
    let text = |b| String::from_utf8(b).unwrap();
    (status.code().expect("no signal"), text(stdout), text(stderr))
}

/// How many kernels were compiled, of how many.
fn compiled(c: &mut Command) -> (usize, usize) {
    let (code, _, said) = run(c);
    assert_eq!(code, 0, "{said}");
    let line = said.lines().find(|l| l.contains(" kernels (")).unwrap_or_else(|| panic!("{said}"));
    let before = |what: &str| {
        let number = line.split(what).next().filter(|b| b.len() < line.len())?;
        number.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    (before(" compiled now").unwrap_or(0), before(" kernels (").unwrap())
}

/// A C compiler that logs its calls and says that it has this version.
fn logging_cc(dir: &TempDir, version: &str) -> PathBuf {
    let (path, log) = (dir.path().join("logging-cc"), dir.path().join("calls"));
    let script = format!(
        "#!/bin/sh\necho \"$*\" >> '{}'\ncase $* in *--version*) echo 'cc {version}'; exit;; esac\nexec cc \"$@\"\n",
        log.display()
    );
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn entries(dir: &TempDir) -> Vec<PathBuf> {
    let files = fs::read_dir(dir.path().join("cache/kernels")).unwrap().flatten();
    let mut found: Vec<_> = files.filter(|f| f.file_name().len() == 64).map(|f| f.path()).collect();
    found.sort();
    found
}

/// Sets the time of a file to so many seconds ago.
fn set_used(file: &Path, seconds: u64) {
    let file = fs::File::options().append(true).open(file).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
}

#[test]
fn without_a_compiler_cached_kernels_are_used_and_the_first_other_one_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let missing = |c: &mut Command| run(c.env("PATH", dir.path().join("empty")));
    let (code, _, said) = missing(&mut compile(&dir));
    assert_eq!(code, 1, "{said}");
    assert_eq!(said.matches("no C compiler was found: 'cc' ($CC): there is no such program").count(), 1, "{said}");
    assert!(said.contains("kernel '") && said.contains("package gcc"), "{said}");
    let (new, all) = compiled(&mut compile(&dir));
    assert!(new == all && all > 0);
    let plan = fs::read(dir.path().join("out.plan")).unwrap();
    let (code, _, said) = missing(&mut compile(&dir));
    assert_eq!(code, 0, "{said}");
    assert!(fs::read(dir.path().join("out.plan")).unwrap() == plan);
}

#[test]
fn the_compiler_in_process_needs_no_other_one_and_no_cache() {
    if ["avx2", "avx512"].iter().all(|isa| !of_codegen::Isa::by_name(isa).unwrap().runs_here()) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let missing = |c: &mut Command| run(c.env("PATH", dir.path().join("empty")));
    let (code, _, said) = missing(&mut compile_in_process(&dir));
    assert_eq!(code, 0, "{said}");
    assert!(said.contains(" compiled in process)"), "{said}");
    assert!(!dir.path().join("cache/kernels").exists() || entries(&dir).is_empty());
}

/// A kernel that the compiler in process refuses is made by the C compiler; where there is none, the error says both reasons.
#[test]
fn what_the_compiler_in_process_refuses_is_left_to_the_c_compiler_with_a_note() {
    let dir = tempfile::tempdir().unwrap();
    let cast = "func @main(%x: tensor<9xui64>) -> (tensor<9xf32>) {\n  %y = of.cast %x {to = #of.dtype<f32>}\n  of.return %y\n}\n";
    fs::write(dir.path().join("cast.of"), cast).unwrap();
    for (isa, note, reason) in [
        ("avx2", "1 kernel refused by the compiler in process, made by the C compiler; -v lists the reasons", true),
        ("x86-64", "the C compiler made all kernels: the compiler in process does not cover x86-64", false),
    ] {
        let compile = || of_opt(&dir, &["compile", "cast.of", "-o", "cast.plan", "--isa", isa, "--no-cache"]);
        let (code, _, said) = run(&mut compile());
        assert_eq!(code, 0, "{said}");
        assert!(said.contains(note), "{said}");
        let (code, _, said) = run(compile().env("PATH", dir.path().join("empty")));
        assert_eq!(code, 1, "{said}");
        assert!(said.contains("no C compiler was found"), "{said}");
        assert_eq!(said.contains("the compiler in this program refused the kernel: "), reason, "{said}");
    }
}

#[test]
fn cc_may_have_arguments_and_quoted_paths() {
    let dir = tempfile::tempdir().unwrap();
    let tools = dir.path().join("my tools");
    fs::create_dir(&tools).unwrap();
    let path = std::env::var_os("PATH").unwrap();
    let cc = std::env::split_paths(&path).map(|p| p.join("cc")).find(|p| p.exists()).expect("a C compiler");
    symlink(cc, tools.join("cc")).unwrap();
    let tool = tools.join("cc").display().to_string();
    for cc in [
        "env cc",
        "env X=1 cc -DOTHER",
        &format!("'{tool}' -DOTHER"),
        &format!("{}/cc", tools.display().to_string().replace(' ', "\\ ")),
        &tool,
    ] {
        let (new, all) = compiled(compile(&dir).env("CC", cc).arg("--no-cache"));
        assert_eq!(new, all, "{cc}");
    }
    for (cc, why) in [("'cc", "a quotation mark is not closed"), ("no-such-cc -m64", "there is no such program")] {
        let (code, _, said) = run(compile(&dir).env("CC", cc).arg("--no-cache"));
        assert_eq!(code, 1, "{said}");
        assert!(said.contains(&format!("'{cc}' ($CC): {why}")), "{said}");
    }
}

/// The compiler runs for missing kernels only; a new version of it compiles all again.
#[test]
fn the_compiler_is_asked_at_the_first_miss_and_after_it_changed() {
    let dir = tempfile::tempdir().unwrap();
    let cc = logging_cc(&dir, "1");
    let calls = || fs::read_to_string(dir.path().join("calls")).unwrap_or_default();
    // A shell reads it: a program cannot start while another thread has it open.
    let again = || compiled(compile(&dir).env("CC", format!("sh '{}'", cc.display())));
    let (new, all) = again();
    assert_eq!(new, all);
    assert_eq!(calls().matches("--version").count(), 1);
    let before = calls();
    assert_eq!(again(), (0, all));
    assert_eq!(calls(), before, "the compiler ran although every kernel was cached");
    // Another time of the file, the same version: it is asked, and nothing is compiled.
    set_used(&cc, 1000);
    assert_eq!(again(), (0, all));
    assert_eq!(calls(), format!("{before}--version\n"));
    logging_cc(&dir, "2.0");
    assert_eq!(again(), (all, all));
}

#[test]
fn entries_that_others_may_have_written_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (_, all) = compiled(&mut compile(&dir));
    assert_eq!(fs::metadata(dir.path().join("cache/kernels")).unwrap().mode() & 0o777, 0o700);
    let found = entries(&dir);
    assert_eq!(found.len(), all);
    assert!(all >= 2);
    fs::set_permissions(&found[0], fs::Permissions::from_mode(0o666)).unwrap();
    fs::remove_file(&found[1]).unwrap();
    assert!(Command::new("mkfifo").arg(&found[1]).status().unwrap().success());
    let (code, _, said) = run(&mut compile(&dir));
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("(2 compiled now, "), "{said}");
    assert_eq!(said.matches("the cache does not use").count(), 1, "{said}");
    assert_eq!(compiled(&mut compile(&dir)), (0, all), "new entries replace them");
}

#[test]
fn cache_shows_and_cleans() {
    let dir = tempfile::tempdir().unwrap();
    let shown = |args: &[&str]| {
        let (code, out, said) = run(&mut of_opt(&dir, args));
        assert_eq!(code, 0, "{said}");
        (out, said)
    };
    let summary = || -> serde_json::Value { serde_json::from_str(&shown(&["cache", "--json"]).0).unwrap() };
    let folder = dir.path().join("cache/kernels").display().to_string();
    assert_eq!(shown(&["cache", "dir"]).0.trim_end(), folder);
    assert!(shown(&["cache"]).0.contains("0 kernels, 0 B of at most 1.0 GiB"));
    assert_eq!(summary()["kernels"], 0);

    let (_, all) = compiled(&mut compile(&dir));
    let full = summary();
    let bytes: u64 = entries(&dir).iter().map(|e| fs::metadata(e).unwrap().len()).sum();
    assert_eq!((&full["kernels"], &full["bytes"], &full["folder"]), (&all.into(), &bytes.into(), &folder.into()));
    assert!(full["oldest_use"].as_u64().unwrap() <= full["newest_use"].as_u64().unwrap());
    assert!(shown(&["cache"]).0.contains("seconds ago") || shown(&["cache"]).0.contains("minute"));

    assert!(shown(&["cache", "clean", "--older-than", "30d"]).1.contains("removed 0 kernels"));
    set_used(&entries(&dir)[0], 40 * 86400);
    assert!(shown(&["cache", "clean", "--older-than", "30d", "--max-size", "1GB"]).1.contains("removed 1 kernel,"));
    shown(&["cache", "clean", "--max-size", &(bytes / 2).to_string()]);
    let left = summary()["bytes"].as_u64().unwrap();
    assert!(left > 0 && left <= bytes / 2);
    shown(&["cache", "clean"]);
    assert_eq!(summary()["kernels"], 0);
    for wrong in [["--older-than", "x"], ["--max-size", "-3"]] {
        assert_eq!(run(of_opt(&dir, &["cache", "clean"]).args(wrong)).0, 2);
    }
}
