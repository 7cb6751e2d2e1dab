//! `cargo xtask gpu`: checks and measurements for a machine with a GPU.
//!
//! `pack` makes a folder: of-opt, plans of random graphs of all ops and of models, what they must give, and `run.py`, which
//! checks and measures them with nothing but Python and the driver. `report` writes what it found into `docs/gpu.md`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::workspace::{cargo, read, root, run, target, write};

/// Bytes of a folder, at most: what is easily copied.
const MOST: u64 = 64 << 20;

/// What runs there.
const SCRIPTS: [(&str, &str); 2] = [("run.py", include_str!("run.py")), ("peers.py", include_str!("peers.py"))];

/// The marks in `docs/gpu.md` around the results.
const MARKS: (&str, &str) = ("<!-- results of cargo xtask gpu -->\n", "<!-- end of results -->\n");

/// Runs it.
///
/// # Errors
/// When the arguments make no sense, something cannot be built or copied, or the folder is there already.
pub fn gpu(args: &[&str]) -> Result<(), String> {
    match args {
        ["pack", out, rest @ ..] => pack(Path::new(out), &Wanted::of(rest)?),
        ["report", results] => report(Path::new(results)),
        _ => Err("write 'gpu pack DIR [--arch sm_90] [--graphs N] [--models DIR]' or 'gpu report results.json'".into()),
    }
}

/// What is packed.
struct Wanted {
    arch: String,
    graphs: u32,
    models: Option<PathBuf>,
    most: u64,
}

impl Wanted {
    fn of(args: &[&str]) -> Result<Wanted, String> {
        let mut w = Wanted { arch: "sm_90".into(), graphs: 500, models: None, most: MOST };
        let mut args = args.iter();
        while let Some(flag) = args.next() {
            let value = args.next().ok_or_else(|| format!("{flag} needs a value"))?;
            let number = || value.parse::<u32>().map_err(|e| format!("{flag} {value}: {e}"));
            match *flag {
                "--arch" => w.arch = (*value).into(),
                "--graphs" => w.graphs = number()?,
                "--models" => w.models = Some(value.into()),
                "--mib" => w.most = u64::from(number()?) << 20,
                other => return Err(format!("there is no flag '{other}'")),
            }
        }
        Ok(w)
    }
}

fn failed(what: &Path) -> impl Fn(std::io::Error) -> String + '_ {
    move |e| format!("{}: {e}", what.display())
}

/// Writes a folder with everything that a machine with a GPU needs: the program, scripts, plans of random graphs and models.
fn pack(out: &Path, wanted: &Wanted) -> Result<(), String> {
    if fs::read_dir(out).is_ok_and(|mut d| d.next().is_some()) {
        return Err(format!("{} is not empty", out.display()));
    }
    run(cargo().args(["build", "--release", "--package", "of-opt", "--package", "of-fuzz"]))?;
    let built = target().join("release");
    fs::create_dir_all(out).map_err(failed(out))?;
    fs::copy(built.join("of-opt"), out.join("of-opt")).map_err(failed(out))?;
    // Debug information is most of the file. Without the tool it stays.
    let _ = Command::new("strip").arg(out.join("of-opt")).status();
    for (name, text) in SCRIPTS {
        write(&out.join(name), text)?;
    }
    write(&out.join("arch"), &format!("{}\n", wanted.arch))?;
    let mut package = Package { out, wanted, built, refused: String::new() };
    let graphs = package.add_graphs()?;
    let models = package.add_models()?;
    write(&out.join("refused.txt"), &package.refused)?;
    println!(
        "{}: {graphs} graphs and {models} models for {}, {} MiB; refused.txt lists what is missing, with reasons.\n\
         Copy it to the machine with the GPU and run 'python3 run.py' there; then 'cargo xtask gpu report results.json'.",
        out.display(),
        wanted.arch,
        size(out)? >> 20
    );
    Ok(())
}

/// A package under construction.
struct Package<'a> {
    out: &'a Path,
    wanted: &'a Wanted,
    /// The folder of the programs.
    built: PathBuf,
    /// What was left out, one line each.
    refused: String,
}

impl Package<'_> {
    /// Adds random graphs, and returns how many.
    fn add_graphs(&mut self) -> Result<usize, String> {
        let made = self.out.join("made");
        let mut fuzz = Command::new(self.built.join("of-fuzz"));
        fuzz.args(["--graphs", &self.wanted.graphs.to_string(), "--onnx"]).arg(&made);
        let status = fuzz.status().map_err(|e| format!("of-fuzz cannot be run: {e}"))?;
        if !status.success() {
            return Err("of-fuzz failed".into());
        }
        let mut packed = 0;
        for case in folders(&made)? {
            let data = case.join("test_data_set_0");
            match self.plan(&case.join("model.onnx"), &data, "")? {
                Ok(plan) => {
                    keep(&self.out.join("graphs").join(name(&case)), &plan, &data)?;
                    packed += 1;
                }
                Err(why) => self.refused += &format!("graph {}: {why}\n", name(&case)),
            }
        }
        fs::remove_dir_all(&made).map_err(failed(&made))?;
        Ok(packed)
    }

    /// Adds models while there is room, and returns how many.
    fn add_models(&mut self) -> Result<usize, String> {
        let mut models = Vec::new();
        let cases = self.wanted.models.iter().map(|d| folders(d)).collect::<Result<Vec<_>, _>>()?;
        for case in cases.into_iter().flatten() {
            let (model, data) = (case.join("model.onnx"), case.join("b1"));
            if let (Ok(m), true) = (fs::metadata(&model), data.is_dir()) {
                models.push(PackedModel { bytes: m.len(), case, model, data });
            }
        }
        // The smallest first, so that most models fit.
        models.sort();
        let mut left = self.wanted.most.saturating_sub(size(self.out)?);
        let mut packed = 0;
        for model in &models {
            packed += usize::from(self.add_model(model, &mut left)?);
        }
        Ok(packed)
    }

    /// Adds a model if it fits into the bytes `left`.
    fn add_model(&mut self, m: &PackedModel, left: &mut u64) -> Result<bool, String> {
        let case = name(&m.case);
        if m.bytes > *left {
            self.refused += &format!("model {case}: it has {} MiB, {} are left\n", m.bytes >> 20, *left >> 20);
            return Ok(false);
        }
        let plan = match self.plan(&m.model, &m.data, "")? {
            Ok(plan) => plan,
            Err(why) => {
                self.refused += &format!("model {case}: {why}\n");
                return Ok(false);
            }
        };
        let to = self.out.join("models").join(&case);
        keep(&to, &plan, &m.data)?;
        if size(self.out)? > self.wanted.most {
            fs::remove_dir_all(&to).map_err(failed(&to))?;
            let mib = plan.len() >> 20;
            self.refused += &format!("model {case}: its plan has {mib} MiB, {} are left\n", *left >> 20);
            return Ok(false);
        }
        *left = self.wanted.most - size(self.out)?;
        self.add_library_plans(m, &to, left)?;
        // For onnxruntime, where there is room for it.
        if m.bytes < *left / 2 {
            fs::copy(&m.model, to.join("model.onnx")).map_err(failed(&to))?;
            *left -= m.bytes;
        }
        Ok(true)
    }

    /// Adds the plans of a model that call NVIDIA's libraries, if they fit into the bytes `left`.
    fn add_library_plans(&mut self, m: &PackedModel, to: &Path, left: &mut u64) -> Result<(), String> {
        let case = name(&m.case);
        for (file, flags, with) in
            [("cublaslt.plan", "+cublaslt", "cuBLASLt"), ("cudnn.plan", "+cublaslt+cudnn", "cuBLASLt and cuDNN")]
        {
            match self.plan(&m.model, &m.data, flags)? {
                Ok(plan) if (plan.len() as u64) < *left => {
                    fs::write(to.join(file), &plan).map_err(failed(to))?;
                    *left -= plan.len() as u64;
                }
                Ok(plan) => {
                    let (mib, left) = (plan.len() >> 20, *left >> 20);
                    self.refused += &format!("model {case} with {with}: its plan has {mib} MiB, {left} are left\n");
                }
                Err(why) => self.refused += &format!("model {case} with {with}: {why}\n"),
            }
        }
        Ok(())
    }

    /// The plan of a model for the package's architecture and these flags of it.
    fn plan(&self, model: &Path, data: &Path, flags: &str) -> Result<Result<Vec<u8>, String>, String> {
        plan(&self.built, model, data, self.out, &format!("{}{flags}", self.wanted.arch))
    }
}

/// A model that may be packed.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct PackedModel {
    bytes: u64,
    case: PathBuf,
    model: PathBuf,
    data: PathBuf,
}

/// The plan of a model for inputs of these shapes and a GPU of this architecture, or why there is none: all of it on the GPU
/// where that can be, else what it takes, and the rest as code that every processor of this kind runs.
fn plan(built: &Path, model: &Path, data: &Path, aside: &Path, arch: &str) -> Result<Result<Vec<u8>, String>, String> {
    let to = aside.join("next.plan");
    let gpu = format!("cuda:{arch}");
    let isa = if std::env::consts::ARCH == "x86_64" { "x86-64" } else { std::env::consts::ARCH };
    let ways: [&[&str]; 2] = [&["--target", &gpu], &["--backend", &gpu, "--min-subgraph-size", "0", "--isa", isa]];
    let mut why = String::new();
    for way in ways {
        let mut command = Command::new(built.join("of-opt"));
        command.arg("compile").arg(model).arg("-o").arg(&to).arg("--inputs").arg(data).args(way);
        let done = command.output().map_err(|e| format!("of-opt cannot be run: {e}"))?;
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        if done.status.success() && !said.contains("cuda: 0 ops") {
            let bytes = fs::read(&to).map_err(failed(&to))?;
            fs::remove_file(&to).map_err(failed(&to))?;
            return Ok(Ok(bytes));
        }
        why =
            said.lines().find(|l| l.contains("error") || l.contains("cuda: 0 ops")).unwrap_or(said.trim()).to_string();
    }
    Ok(Err(why))
}

/// A case of the pack: the plan, its inputs and what it must give.
fn keep(to: &Path, plan: &[u8], data: &Path) -> Result<(), String> {
    let set = to.join("test_data_set_0");
    fs::create_dir_all(&set).map_err(failed(&set))?;
    fs::write(to.join("model.plan"), plan).map_err(failed(to))?;
    for file in fs::read_dir(data).map_err(failed(data))?.filter_map(Result::ok) {
        let own = file.file_name();
        let known = ["input_", "output_"].iter().any(|p| own.to_string_lossy().starts_with(p));
        if known {
            fs::copy(file.path(), set.join(own)).map_err(failed(&set))?;
        }
    }
    Ok(())
}

/// The folders in a folder, sorted.
fn folders(dir: &Path) -> Result<Vec<PathBuf>, String> {
    let all = fs::read_dir(dir).map_err(failed(dir))?.filter_map(|e| Some(e.ok()?.path()));
    let mut all: Vec<PathBuf> = all.filter(|p| p.is_dir()).collect();
    all.sort();
    Ok(all)
}

fn name(folder: &Path) -> String {
    folder.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Bytes of all files below a folder.
fn size(dir: &Path) -> Result<u64, String> {
    let mut sum = 0;
    for entry in fs::read_dir(dir).map_err(failed(dir))?.filter_map(Result::ok) {
        let path = entry.path();
        sum += if path.is_dir() { size(&path)? } else { entry.metadata().map_err(failed(&path))?.len() };
    }
    Ok(sum)
}

/// Writes the tables of a run into the documentation.
fn report(results: &Path) -> Result<(), String> {
    let text = read(results)?;
    let found: Value = serde_json::from_str(&text).map_err(|e| format!("{}: {e}", results.display()))?;
    let gpu = found["machine"]["gpu"].as_str().unwrap_or("no GPU");
    if gpu == "no GPU" {
        return Err(format!("{} is of a machine without a GPU: nothing to report", results.display()));
    }
    let table = read(&results.with_extension("md"))?;
    let page = root().join("docs/gpu.md");
    let (head, rest) = read(&page)?
        .split_once(MARKS.0)
        .map(|(a, b)| (a.to_string(), b.to_string()))
        .ok_or("docs/gpu.md has no mark for results")?;
    let (_, tail) = rest.split_once(MARKS.1).ok_or("docs/gpu.md has no mark for the end of results")?;
    write(&page, &[&head, MARKS.0, &table, MARKS.1, tail].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpu_flags_are_parsed_and_documentation_has_marks() {
        let w = Wanted::of(&["--arch", "shim", "--graphs", "3", "--mib", "8"]).unwrap();
        assert_eq!((w.arch.as_str(), w.graphs, w.most, w.models), ("shim", 3, 8 << 20, None));
        assert!(Wanted::of(&["--graphs"]).is_err() && Wanted::of(&["--graphs", "x"]).is_err());
        let page = read(&root().join("docs/gpu.md")).unwrap();
        assert!(page.find(MARKS.0) < page.find(MARKS.1) && page.contains(MARKS.0));
        let dir = tempfile::tempdir().unwrap();
        let results = dir.path().join("results.json");
        fs::write(&results, r#"{"machine": {"gpu": "no GPU"}}"#).unwrap();
        assert!(report(&results).unwrap_err().contains("without a GPU"));
    }
}
