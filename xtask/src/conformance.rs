//! `cargo xtask conformance`: how many of ONNX's test cases give the expected outputs.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::workspace::{cargo, of_opt, read, root, run, write};

/// A case that takes longer hangs.
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// The tolerances of ONNX's own runner.
const RTOL: f64 = 1e-3;
const ATOL: f64 = 1e-7;

/// Cases whose expected outputs are not what the operator's definition asks for: the beginning of a name, and why. They
/// are executed and counted as any other.
const EXPLAINED: &[(&str, &str)] = &[
    ("test_bernoulli", "expects the random numbers that NumPy drew; any draw with those probabilities is right"),
    ("test_dft_inverse", "expects rounding noise of 1.9e-7 where the exact result, which is given, is 0"),
];

/// A folder with `model.onnx` and `test_data_set_*`.
struct Case {
    /// Its folder below the one of all cases, with `/`.
    name: String,
    rtol: f64,
    atol: f64,
}

/// What became of a case.
enum Outcome {
    Pass,
    /// The compiler said that it does not support something.
    Refused(String),
    /// Anything else: another result, an error, a crash, no end.
    Fail(String),
}

/// Runs all cases below a folder and prints how many pass; writes docs/conformance.md, or says whether it is current.
///
/// # Errors
/// When the arguments are wrong, there are no cases, or the page is not current.
pub fn conformance(args: &[&str]) -> Result<(), String> {
    let (mut folder, mut bless, mut filter) = (None, false, String::new());
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match *arg {
            "--bless" => bless = true,
            "--filter" => filter = (*args.next().ok_or("--filter needs a part of a name")?).to_owned(),
            flag if flag.starts_with('-') => return Err(format!("'cargo xtask conformance' does not know {flag}")),
            dir => folder = Some(PathBuf::from(dir)),
        }
    }
    let folder =
        folder.ok_or("DIR is missing: a folder of cases, such as onnx/backend/test/data of the onnx package")?;
    let folder = folder.canonicalize().map_err(|e| format!("{}: {e}", folder.display()))?;
    let (version, mut cases) = find(&folder)?;
    cases.retain(|c| c.name.contains(&filter));
    if cases.is_empty() {
        return Err(format!("{} holds no case: no folder with model.onnx and test_data_set_0", folder.display()));
    }
    run(cargo().args(["build", "--release", "--package", "of-opt"]))?;
    let results = run_all(&of_opt("release"), &folder, &cases)?;
    for (case, outcome) in cases.iter().zip(&results) {
        match outcome {
            Outcome::Pass => {}
            Outcome::Refused(why) => println!("refused  {}: {why}", case.name),
            Outcome::Fail(why) => println!("FAIL     {}: {why}", case.name),
        }
    }
    println!("{}", headline(&results));
    if !filter.is_empty() {
        return Ok(());
    }
    let (page, path) = (markdown(version.as_deref(), &cases, &results), root().join("docs/conformance.md"));
    if bless {
        return write(&path, &page);
    }
    if read(&path).is_ok_and(|kept| kept == page) {
        return Ok(());
    }
    Err("docs/conformance.md says something else; --bless writes it anew".into())
}

/// ONNX's version, where an index has it, and all cases, sorted.
///
/// `index.json`, where it is there, has the tolerances of cases: `{"onnx": …, "cases": [{"dir", "rtol", "atol"}]}`.
fn find(folder: &Path) -> Result<(Option<String>, Vec<Case>), String> {
    let index: serde_json::Value = match std::fs::read_to_string(folder.join("index.json")) {
        Ok(text) => serde_json::from_str(&text).map_err(|e| format!("index.json: {e}"))?,
        Err(_) => serde_json::Value::Null,
    };
    let mut tolerances: HashMap<&str, (f64, f64)> = HashMap::new();
    for c in index["cases"].as_array().into_iter().flatten() {
        if let (Some(dir), Some(rtol), Some(atol)) = (c["dir"].as_str(), c["rtol"].as_f64(), c["atol"].as_f64()) {
            tolerances.insert(dir, (rtol, atol));
        }
    }
    let mut cases = Vec::new();
    for kind in folders(folder)? {
        for dir in folders(&kind)? {
            if dir.join("model.onnx").is_file() && dir.join("test_data_set_0").is_dir() {
                let name = dir.strip_prefix(folder).unwrap_or(&dir).to_string_lossy().replace('\\', "/");
                let (rtol, atol) = tolerances.get(name.as_str()).copied().unwrap_or((RTOL, ATOL));
                cases.push(Case { name, rtol, atol });
            }
        }
    }
    cases.sort_by(|a, b| a.name.cmp(&b.name));
    Ok((index["onnx"].as_str().map(str::to_owned), cases))
}

/// The folders in a folder.
fn folders(dir: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let mut all: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).filter(|p| p.is_dir()).collect();
    all.sort();
    Ok(all)
}

/// Runs every case in its own process, as many at once as there are cores.
fn run_all(of_opt: &Path, folder: &Path, cases: &[Case]) -> Result<Vec<Outcome>, String> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let work = || -> Result<(), String> {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(case) = cases.get(i) else { return Ok(()) };
            let outcome = run_case(of_opt, &folder.join(&case.name), case)?;
            done.lock().map_err(|e| e.to_string())?.insert(i, outcome);
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|s| {
        let all: Vec<_> = (0..workers).map(|_| s.spawn(work)).collect();
        all.into_iter().try_for_each(|w| w.join().map_err(|_| "a worker panicked".to_owned())?)
    })?;
    Ok(done.into_inner().map_err(|e| e.to_string())?.into_values().collect())
}

/// All data sets of a case; returns the outcome of the first that does not pass.
fn run_case(of_opt: &Path, dir: &Path, case: &Case) -> Result<Outcome, String> {
    let sets = folders(dir)?;
    for set in sets.iter().filter(|s| s.file_name().is_some_and(|n| n.to_string_lossy().starts_with("test_data_set_")))
    {
        let mut command = Command::new(of_opt);
        command.arg("run").arg(dir.join("model.onnx")).arg("--inputs").arg(set).arg("--expect").arg(set);
        command.args(["--threads", "1", "--color", "never"]);
        command.args([format!("--rtol={}", case.rtol), format!("--atol={}", case.atol)]);
        match finish(&mut command)? {
            Outcome::Pass => {}
            other => return Ok(other),
        }
    }
    Ok(Outcome::Pass)
}

/// Runs a command to its end, or until it takes too long.
fn finish(command: &mut Command) -> Result<Outcome, String> {
    let failed = |e: std::io::Error| format!("of-opt cannot be run: {e}");
    let mut child =
        command.stdout(Stdio::null()).stderr(Stdio::piped()).stdin(Stdio::null()).spawn().map_err(failed)?;
    // Read concurrently with the wait, so that a full pipe cannot block the child.
    let stderr = child.stderr.take();
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What could not be read is missing from a message.
        let _ = stderr.map(|mut s| s.read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    });
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            break status;
        }
        if started.elapsed() > TIME_LIMIT {
            child.kill().and_then(|()| child.wait()).map_err(failed)?;
            return Ok(Outcome::Fail(format!("it takes more than {} s", TIME_LIMIT.as_secs())));
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let text = reader.join().unwrap_or_default();
    let why = text.lines().find(|l| l.contains("error")).unwrap_or_default().trim().to_owned();
    Ok(match status.code() {
        Some(0) => Outcome::Pass,
        Some(3) => Outcome::Refused(why),
        Some(_) => Outcome::Fail(why),
        None => Outcome::Fail(format!("it is ended: {status}")),
    })
}

fn headline(results: &[Outcome]) -> String {
    format!("{} of {} pass", results.iter().filter(|r| matches!(r, Outcome::Pass)).count(), results.len())
}

/// The page.
fn markdown(version: Option<&str>, cases: &[Case], results: &[Outcome]) -> String {
    let of = version.map_or(String::new(), |v| format!(" {v}"));
    let mut out = format!(
        "# Conformance\n\nONNX{of} comes with test cases: models of one node or a few, with inputs and the outputs that \
         are expected. Of these, **{}**. `cargo xtask conformance DIR` runs them and says whether this page is current; \
         with `--bless` it writes the page. DIR is `backend/test/data` of the Python package onnx, or has the same \
         layout. A result passes if its type and shape are those expected, and each number is within {RTOL:e} of the \
         expected one's size plus {ATOL:e}, unless the case says otherwise.\n\n| folder | cases | pass | refused | fail \
         |\n|---|---|---|---|---|\n",
        headline(results)
    );
    let mut kinds: BTreeMap<&str, [usize; 4]> = BTreeMap::new();
    for (case, outcome) in cases.iter().zip(results) {
        let counts = kinds.entry(case.name.split('/').next().unwrap_or_default()).or_default();
        counts[0] += 1;
        counts[match outcome {
            Outcome::Pass => 1,
            Outcome::Refused(_) => 2,
            Outcome::Fail(_) => 3,
        }] += 1;
    }
    for (kind, [n, pass, refused, fail]) in kinds {
        let _ = writeln!(out, "| {kind} | {n} | {pass} | {refused} | {fail} |");
    }
    let mut rows = String::new();
    for (case, outcome) in cases.iter().zip(results) {
        let (what, message) = match outcome {
            Outcome::Pass => continue,
            Outcome::Refused(why) => ("refused", why),
            Outcome::Fail(why) => ("fails", why),
        };
        let short = case.name.rsplit('/').next().unwrap_or_default();
        let explained = EXPLAINED.iter().find(|(prefix, _)| short.starts_with(prefix)).map(|(_, why)| *why);
        let _ = writeln!(rows, "| {} | {what} | {} |", case.name, explained.unwrap_or(message).replace('|', "\\|"));
    }
    if !rows.is_empty() {
        out += "\n## What does not pass\n\n| case | outcome | reason |\n|---|---|---|\n";
        out += &rows;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_found_with_their_tolerances() {
        let dir = tempfile::tempdir().unwrap();
        for case in ["node/test_a", "simple/test_b", "node/test_c"] {
            std::fs::create_dir_all(dir.path().join(case).join("test_data_set_0")).unwrap();
        }
        for case in ["node/test_a", "simple/test_b"] {
            std::fs::write(dir.path().join(case).join("model.onnx"), b"").unwrap();
        }
        let names = |c: &[Case]| c.iter().map(|c| (c.name.clone(), c.rtol)).collect::<Vec<_>>();
        let (version, cases) = find(dir.path()).unwrap();
        assert_eq!(
            (version, names(&cases)),
            (None, vec![("node/test_a".into(), RTOL), ("simple/test_b".into(), RTOL)])
        );
        let index = r#"{"onnx": "1.0", "cases": [{"dir": "simple/test_b", "rtol": 0.5, "atol": 0}]}"#;
        std::fs::write(dir.path().join("index.json"), index).unwrap();
        let (version, cases) = find(dir.path()).unwrap();
        assert_eq!((version.as_deref(), cases[1].rtol, cases[1].atol), (Some("1.0"), 0.5, 0.0));
    }

    #[test]
    fn conformance_page_has_counts_and_reasons() {
        let case = |name: &str| Case { name: name.into(), rtol: RTOL, atol: ATOL };
        let cases = [case("node/test_a"), case("node/test_bernoulli_x"), case("simple/test_c")];
        let results = [Outcome::Pass, Outcome::Fail("values".into()), Outcome::Refused("error: a | b".into())];
        let page = markdown(Some("1.0"), &cases, &results);
        assert!(page.contains("**1 of 3 pass**") && page.contains("| node | 2 | 1 | 0 | 1 |"), "{page}");
        assert!(page.contains("| node/test_bernoulli_x | fails | expects the random numbers"), "{page}");
        assert!(page.contains("| simple/test_c | refused | error: a \\| b |"), "{page}");
    }

    #[test]
    #[cfg(unix)]
    fn process_outcomes_are_reported() {
        let sh = |text: &str| finish(Command::new("sh").args(["-c", text])).unwrap();
        assert!(matches!(sh("exit 0"), Outcome::Pass));
        assert!(matches!(sh("echo x; echo 'error: no' >&2; exit 3"), Outcome::Refused(why) if why == "error: no"));
        assert!(matches!(sh("exit 1"), Outcome::Fail(_)));
        assert!(matches!(sh("kill -9 $$"), Outcome::Fail(why) if why.contains("signal")));
    }
}
