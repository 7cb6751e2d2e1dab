//! `RUN:` lines: pipelines of programs, without a shell.
//!
//! Understood are `|`, `2>&1`, `> file`, quotes, `env NAME=VALUE`, `not` or `exits N` before a program, and the built-in programs
//! `FileCheck FILE`, `cat FILE…` and `diff A B`. A program must end with 0, after `not` with anything else, after
//! `exits N` with N, but never by a crash.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::filecheck;

/// Longer than any lit test may take.
const LIMIT: Duration = Duration::from_secs(120);

/// The exit code of a Rust program that panicked.
const PANICKED: i32 = 101;

/// What `RUN:` lines of one test may refer to.
#[derive(Clone, Debug)]
pub struct Context {
    /// `of-opt`.
    pub of_opt: PathBuf,
    /// `%s`.
    pub file: PathBuf,
    /// `%t`.
    pub temp: PathBuf,
}

/// One program of a pipeline.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Stage {
    negated: bool,
    /// The exit code that it must end with, where one is asked for.
    exits: Option<i32>,
    args: Vec<String>,
    /// Environment variables.
    variables: Vec<(String, String)>,
    stderr_too: bool,
    to_file: Option<String>,
}

/// Runs one `RUN:` line.
///
/// # Errors
/// Which program failed, and what it printed.
pub fn run(line: &str, cx: &Context) -> Result<(), String> {
    let stages = parse(&substitute(line, cx))?;
    let mut input = Vec::new();
    for stage in &stages {
        let out = run_stage(stage, &input, cx).map_err(|why| format!("{why}\nin RUN: {line}"))?;
        match &stage.to_file {
            Some(f) => {
                fs::write(f, &out).map_err(|e| format!("{f}: {e}"))?;
                input.clear();
            }
            None => input = out,
        }
    }
    Ok(())
}

fn substitute(line: &str, cx: &Context) -> String {
    let mut out = String::new();
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        let value = match (c, chars.peek()) {
            ('%', Some('s')) => cx.file.display().to_string(),
            ('%', Some('S')) => cx.file.parent().unwrap_or(Path::new(".")).display().to_string(),
            ('%', Some('t')) => cx.temp.display().to_string(),
            ('%', Some('%')) => "%".into(),
            _ => {
                out.push(c);
                continue;
            }
        };
        chars.next();
        out.push_str(&value);
    }
    out
}

/// Cuts a line into words; quotes keep spaces and operators.
fn words(line: &str) -> Result<Vec<(String, bool)>, String> {
    let mut all = Vec::new();
    let mut word: Option<(String, bool)> = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            '\'' | '"' => {
                let w = word.get_or_insert_default();
                w.1 = true;
                loop {
                    match chars.next() {
                        Some(d) if d == c => break,
                        Some(d) => w.0.push(d),
                        None => return Err(format!("a {c} is not closed")),
                    }
                }
            }
            ' ' | '\t' => all.extend(word.take()),
            '|' => {
                all.extend(word.take());
                all.push(("|".into(), false));
            }
            c => word.get_or_insert_default().0.push(c),
        }
    }
    all.extend(word);
    Ok(all)
}

fn parse(line: &str) -> Result<Vec<Stage>, String> {
    let mut stages = vec![Stage::default()];
    let mut list = words(line)?.into_iter();
    while let Some((word, quoted)) = list.next() {
        let Some(stage) = stages.last_mut() else { break };
        match word.as_str() {
            "|" if !quoted => stages.push(Stage::default()),
            "2>&1" if !quoted => stage.stderr_too = true,
            ">" if !quoted => stage.to_file = Some(list.next().ok_or("a file must follow '>'")?.0),
            "not" if stage.args.is_empty() => stage.negated = !stage.negated,
            "exits" if stage.args.is_empty() => {
                let code = list.next().and_then(|(w, _)| w.parse().ok());
                stage.exits = Some(code.ok_or("a number must follow 'exits'")?);
            }
            "env" if stage.args.is_empty() => {
                let (word, _) = list.next().unwrap_or_default();
                let (name, value) = word.split_once('=').ok_or("NAME=VALUE must follow 'env'")?;
                stage.variables.push((name.into(), value.into()));
            }
            w if !quoted && w.contains(['>', '<', ';', '&', '`', '$']) => {
                return Err(format!("'{w}' needs a shell, and there is none; quote it if it is meant literally"));
            }
            _ => stage.args.push(word),
        }
    }
    if stages.iter().any(|s| s.args.is_empty()) { Err("a program is missing".into()) } else { Ok(stages) }
}

/// Runs one program and gives its output.
fn run_stage(stage: &Stage, input: &[u8], cx: &Context) -> Result<Vec<u8>, String> {
    let (name, args) = (stage.args[0].as_str(), &stage.args[1..]);
    let built_in = match name {
        "FileCheck" => Some(file_check(args, input)),
        "cat" => Some(cat(args)),
        "diff" => Some(diff(args)),
        _ => None,
    };
    match built_in {
        Some(_) if stage.exits.is_some() => Err(format!("'{name}' has no exit code; write 'not' where it must fail")),
        Some(Ok(_)) if stage.negated => Err(format!("'{name}' succeeded, which it must not")),
        Some(Err(why)) if stage.negated => Ok(if stage.stderr_too { why.into_bytes() } else { Vec::new() }),
        Some(r) => r,
        None => external(stage, name, args, input, cx),
    }
}

fn external(stage: &Stage, name: &str, args: &[String], input: &[u8], cx: &Context) -> Result<Vec<u8>, String> {
    let program = if name == "of-opt" { cx.of_opt.clone() } else { PathBuf::from(name) };
    let io = |e: std::io::Error| format!("'{}' cannot be run: {e}", program.display());
    let mut command = Command::new(&program);
    command.args(args).envs(stage.variables.iter().map(|(n, v)| (n, v))).stdin(Stdio::piped());
    // Merged output goes through one pipe, so that its order is kept.
    let (reader, errors) = if stage.stderr_too {
        let (reader, writer) = std::io::pipe().map_err(io)?;
        command.stdout(writer.try_clone().map_err(io)?).stderr(writer);
        (Some(reader), None)
    } else {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        (None, Some(()))
    };
    let mut child = command.spawn().map_err(io)?;
    // The command holds the writing ends of the merged pipe; the reader waits until all are closed.
    drop(command);
    std::thread::scope(|s| {
        let stdin = child.stdin.take();
        s.spawn(move || {
            // A program that reads no input closes the pipe early; that is its right.
            let _ = stdin.map(|mut p| p.write_all(input));
        });
        let stdout = child.stdout.take();
        let out = s.spawn(move || match (reader, stdout) {
            (Some(r), _) => read_all(r),
            (None, Some(o)) => read_all(o),
            (None, None) => Vec::new(),
        });
        let stderr = errors.and(child.stderr.take());
        let err = s.spawn(move || stderr.map(read_all).unwrap_or_default());
        let started = Instant::now();
        let status = loop {
            match child.try_wait().map_err(io)? {
                Some(status) => break Some(status),
                None if started.elapsed() > LIMIT => {
                    let _ = child.kill();
                    let _ = child.wait();
                    break None;
                }
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        let (out, err) = (out.join().unwrap_or_default(), err.join().unwrap_or_default());
        let what = match status.map(|s| s.code()) {
            None => format!("ran longer than {} s", LIMIT.as_secs()),
            Some(None) => "was killed by a signal".into(),
            Some(Some(PANICKED)) => "panicked".into(),
            Some(Some(code)) if stage.exits == Some(code) => return Ok(out),
            Some(Some(0)) if stage.negated => "succeeded, which it must not".into(),
            Some(Some(0)) if stage.exits.is_none() => return Ok(out),
            Some(Some(_)) if stage.negated => return Ok(out),
            Some(Some(code)) => match stage.exits {
                Some(wanted) => format!("ended with exit code {code}, it must be {wanted}"),
                None => format!("failed with exit code {code}"),
            },
        };
        let show = |b: &[u8]| String::from_utf8_lossy(b).trim_end().to_owned();
        Err(format!("'{name}' {what}\n--- stdout\n{}\n--- stderr\n{}", show(&out), show(&err)))
    })
}

fn read_all(mut r: impl Read) -> Vec<u8> {
    let mut out = Vec::new();
    // What was read before an error is still worth showing.
    let _ = r.read_to_end(&mut out);
    out
}

fn read_file(path: &str) -> Result<String, String> {
    fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))
}

fn file_check(args: &[String], input: &[u8]) -> Result<Vec<u8>, String> {
    let mut options = filecheck::Options::default();
    let mut file = None;
    for a in args {
        let value = |names: [&str; 2]| names.iter().find_map(|n| a.trim_start_matches('-').strip_prefix(n));
        if let Some(list) = value(["check-prefixes=", "check-prefix="]).filter(|_| a.starts_with('-')) {
            options.prefixes = list.split(',').map(str::to_owned).collect();
        } else if a.trim_start_matches('-') == "allow-empty" && a.starts_with('-') {
            options.allow_empty = true;
        } else if a.starts_with('-') || file.is_some() {
            return Err(format!("FileCheck does not know '{a}'"));
        } else {
            file = Some(a);
        }
    }
    let file = file.ok_or("FileCheck needs a file")?;
    filecheck::check(file, &read_file(file)?, &String::from_utf8_lossy(input), &options)?;
    Ok(Vec::new())
}

fn cat(args: &[String]) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    for a in args {
        out.extend(fs::read(a).map_err(|e| format!("{a}: {e}"))?);
    }
    Ok(out)
}

fn diff(args: &[String]) -> Result<Vec<u8>, String> {
    let [a, b] = args else {
        return Err("diff takes two files".into());
    };
    let (x, y) = (read_file(a)?, read_file(b)?);
    if x == y {
        return Ok(Vec::new());
    }
    let line = x.lines().zip(y.lines()).position(|(l, r)| l != r).unwrap_or(x.lines().count().min(y.lines().count()));
    let at = |t: &str| t.lines().nth(line).unwrap_or("(ends)").to_owned();
    Err(format!("the files differ from line {} on\n< {}\n> {}", line + 1, at(&x), at(&y)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context() -> Context {
        Context { of_opt: "/bin/echo".into(), file: "/a/f.of".into(), temp: "/tmp/t".into() }
    }

    #[test]
    fn lines_are_cut_into_stages() {
        let line = substitute("not of-opt %s --a='b | c' 2>&1|FileCheck %s --check-prefix=\"E\"", &context());
        let stages = parse(&line).unwrap();
        let strings = |v: &[&str]| v.iter().map(|s| s.to_string()).collect::<Vec<_>>();
        assert_eq!(
            stages,
            [
                Stage {
                    negated: true,
                    args: strings(&["of-opt", "/a/f.of", "--a=b | c"]),
                    stderr_too: true,
                    ..Stage::default()
                },
                Stage { args: strings(&["FileCheck", "/a/f.of", "--check-prefix=E"]), ..Stage::default() },
            ]
        );
        assert_eq!(substitute("%S %t.x 5%%", &context()), "/a /tmp/t.x 5%");
        assert_eq!(parse("exits 3 a").unwrap()[0].exits, Some(3));
        for bad in ["exits a b", "exits 3", "a | | b", "a > ", "a 'b", "a && b", "a;b", "a <b", ""] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn programs_run_and_fail() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("t.of");
        fs::write(&file, "// CHECK: hello\n// ERR: oops\n").unwrap();
        let cx = Context { of_opt: "/bin/echo".into(), file, temp: dir.path().join("t") };
        run("of-opt hello | FileCheck %s", &cx).unwrap();
        run("of-opt hello > %t", &cx).unwrap();
        run("cat %t | FileCheck %s", &cx).unwrap();
        run("diff %t %t", &cx).unwrap();
        run("not diff %t %s", &cx).unwrap();
        run("not sh -c 'echo oops >&2; exit 3' 2>&1 | FileCheck %s --check-prefix=ERR", &cx).unwrap();
        run("of-opt bye | not FileCheck %s", &cx).unwrap();
        run("exits 3 sh -c 'exit 3'", &cx).unwrap();
        for (line, why) in [
            ("of-opt bye | FileCheck %s", "t.of:1: this is not found"),
            ("sh -c 'exit 3' | cat %s", "failed with exit code 3"),
            ("not of-opt x", "succeeded, which it must not"),
            ("exits 3 of-opt x", "ended with exit code 0, it must be 3"),
            ("exits 3 sh -c 'exit 2'", "ended with exit code 2, it must be 3"),
            ("exits 101 sh -c 'exit 101'", "panicked"),
            ("exits 1 diff %s %t", "has no exit code"),
            ("not sh -c 'exit 101'", "panicked"),
            ("not sh -c 'kill -9 $$'", "killed by a signal"),
            ("no-such-program", "cannot be run"),
            ("of-opt x | FileCheck %s --nonsense", "does not know"),
        ] {
            let e = run(line, &cx).unwrap_err();
            assert!(e.contains(why) && e.contains("in RUN: "), "{line}: {e}");
        }
    }
}
