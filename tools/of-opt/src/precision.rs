//! `--precision`: a model in numbers of fewer bits, and what that changes on data.

use std::path::Path;
use std::sync::Arc;

use clap::ValueEnum;
use of_codegen::kernel::schedule;
use of_diag::{Code, Diagnostics};
use of_ir::{DType, Func, Module};
use of_ops::Value;
use of_passes::Manager;
use of_passes::quantize::{self, Histogram, Range};
use of_passes::specialize::Bindings;

use crate::backends::Backends;
use crate::cli::Codegen;
use crate::console::Console;
use crate::engine::Engine;
use crate::inputs::{self, InputFiles};
use crate::model::Source;
use crate::show::count;
use crate::{driver, exit, values};

/// Precisions of products and convolutions.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// As the model says.
    Model,
    /// Bytes, over ranges that --calibration data shows; sums are exact.
    Int8,
    /// Products and convolutions of operands rounded to bf16, summed in f32, by instructions for it where there are some.
    Bf16,
    /// The same in f16, whose range is small.
    F16,
}

/// Brings the model into the precision that the flags ask for, and says what that changes on the data of --calibration.
///
/// # Errors
/// When there is no data, it does not fit, or the model does not run on it.
pub fn lower(source: &mut Source, codegen: &Codegen, console: &mut Console) -> Result<(), Diagnostics> {
    let Some(precision) = codegen.precision.filter(|p| *p != Precision::Model) else { return Ok(()) };
    // What is observed is computed here and by native code, whatever the plan is for.
    let codegen = Codegen {
        threads: codegen.threads,
        no_cache: codegen.no_cache,
        calibration: codegen.calibration.clone(),
        ..Codegen::default()
    };
    let mut module = source.module.clone();
    let mut manager = Manager::default();
    manager.append("primitives")?;
    manager.run(&mut module, &mut |s| eprint!("{s}"))?;
    let func = driver::main_func(&module)?.clone();
    let sets = sets(&codegen.calibration)?;
    let mut run = Runs { source, codegen: &codegen, backends: Backends::of(&codegen)?, engine: None };
    let lowered = match precision {
        Precision::Bf16 => Lowered::halves(&func, DType::BF16, &sets, &mut run, console)?,
        Precision::F16 => Lowered::halves(&func, DType::F16, &sets, &mut run, console)?,
        Precision::Int8 | Precision::Model => Lowered::bytes(&func, &sets, &mut run, console)?,
    };
    run.engine = None;
    let mut changes = vec![Change::default(); func.outputs.len()];
    for (set, before) in sets.iter().zip(&lowered.before) {
        for ((change, a), b) in changes.iter_mut().zip(run.run(&lowered.func, set, console)?).zip(before) {
            change.add(&a, b);
        }
    }
    let of = if sets.is_empty() { String::new() } else { format!(", {} of inputs", count(sets.len(), "set")) };
    console.note(&format!("{}{of}", lowered.what));
    match sets.is_empty() {
        true => console.note("  what that changes is not known: --calibration gives data to see it on"),
        false => func.outputs.iter().zip(&changes).for_each(|(name, change)| {
            console.note(&format!("  output '{name}': {}", change.text()));
        }),
    }
    if let Some(main) = module.main_mut() {
        *main = lowered.func;
    }
    source.module = module;
    Ok(())
}

/// A function in another precision.
struct Lowered {
    func: Func,
    /// What was done, for people.
    what: String,
    /// The outputs for each set of inputs before that.
    before: Vec<Vec<Value>>,
}

impl Lowered {
    /// With products of 16-bit floats.
    fn halves(
        func: &Func,
        dtype: DType,
        sets: &[String],
        run: &mut Runs<'_>,
        console: &mut Console,
    ) -> Result<Self, Diagnostics> {
        let before = sets.iter().map(|set| run.run(func, set, console)).collect::<Result<_, _>>()?;
        let mut lowered = func.clone();
        let products = quantize::round_contractions(&mut lowered, dtype)?;
        if products == 0 {
            let what = format!("{dtype}: the model has no products or convolutions of f32 of more than a few terms");
            return Err(exit::error(Code::UNSUPPORTED, what).into());
        }
        let what = format!("{dtype}: {} and convolutions", count(products, "product"));
        Ok(Lowered { func: lowered, what, before })
    }

    /// With products of bytes, over the ranges that the sets show.
    fn bytes(func: &Func, sets: &[String], run: &mut Runs<'_>, console: &mut Console) -> Result<Self, Diagnostics> {
        let sites = quantize::sites(func);
        if sites.is_empty() {
            let what = "int8: the model multiplies nothing by constant weights that could be bytes";
            return Err(exit::error(Code::UNSUPPORTED, what).into());
        }
        let observed = quantize::observed(func, &sites)?;
        let mut histograms = vec![Histogram::default(); sites.values.len()];
        let mut before = Vec::with_capacity(sets.len());
        for set in sets {
            let mut results = run.run(&observed, set, console)?;
            for (h, value) in histograms.iter_mut().zip(results.drain(func.outputs.len()..)) {
                if let Value::Tensor(t) = &value
                    && let Some(numbers) = t.as_slice::<f32>()
                {
                    h.add(&numbers);
                }
            }
            before.push(results);
        }
        let ranges: Vec<Range> = histograms.iter().map(Histogram::range).collect();
        let mut lowered = func.clone();
        quantize::quantize(&mut lowered, &sites, &ranges)?;
        let mut what = format!("int8: {} and convolutions of bytes", count(sites.len(), "product"));
        if sites.inside > 0 {
            what += &format!("; {} in loops and branches stay as they are", sites.inside);
        }
        Ok(Lowered { func: lowered, what, before })
    }
}

/// Runs functions on sets of inputs; a function is compiled again where a set has other shapes.
struct Runs<'a> {
    source: &'a Source,
    codegen: &'a Codegen,
    backends: Backends,
    engine: Option<(Bindings, Engine)>,
}

impl Runs<'_> {
    fn run(&mut self, func: &Func, set: &str, console: &mut Console) -> Result<Vec<Value>, Diagnostics> {
        let files = InputFiles { inputs: vec![set.into()] };
        let given = inputs::in_order(inputs::read(&files, func)?, func)?;
        let mut bindings = Bindings::new();
        inputs::bind(&given, func, &mut bindings)?;
        let given = values::to_runtime_all(given.into_iter().map(|g| g.value).collect())?;
        let ready = self.engine.take().filter(|(b, _)| *b == bindings);
        let mut engine = match ready {
            Some((_, engine)) => engine,
            None => self.compiled(func, &bindings, &given, console)?,
        };
        let outputs = engine.run(given)?;
        self.engine = Some((bindings, engine));
        outputs.iter().map(values::from_runtime).collect()
    }

    fn compiled(
        &self,
        func: &Func,
        bindings: &Bindings,
        given: &[of_runtime::Value],
        console: &mut Console,
    ) -> Result<Engine, Diagnostics> {
        let mut module = Module { name: self.source.module.name.clone(), ..Module::default() };
        module.funcs.insert("main".into(), func.clone());
        let funcs = driver::prepare(&module, std::slice::from_ref(bindings), self.codegen, &self.backends, console)?;
        let (codegen, backends) = (self.codegen, &self.backends);
        let compiled = driver::compile(&funcs, self.source, codegen, backends, Vec::new(), &schedule::NONE, console)?;
        Engine::open(Arc::new(compiled.open()?), given, driver::threads(codegen.threads), backends)
    }
}

/// What is given for each run: a folder, or those in it, or a file.
fn sets(given: &[String]) -> Result<Vec<String>, Diagnostics> {
    let mut out = Vec::new();
    for item in given {
        let dir = Path::new(item);
        if !dir.is_dir() {
            out.push(item.clone());
            continue;
        }
        let entries = std::fs::read_dir(dir).map_err(|e| exit::io(dir, "read", &e))?;
        let (mut inside, mut files) = (Vec::new(), false);
        for entry in entries {
            let path = entry.map_err(|e| exit::io(dir, "read", &e))?.path();
            match path.is_dir() {
                true => inside.push(path.display().to_string()),
                false => files = true,
            }
        }
        inside.sort();
        if files || inside.is_empty() { out.push(item.clone()) } else { out.extend(inside) }
    }
    Ok(out)
}

/// How far numbers are from what they were.
#[derive(Clone, Default)]
struct Change {
    /// Sums of squares: of differences, of what was.
    squares: (f64, f64),
    /// The largest: difference, number that was.
    largest: (f64, f64),
    /// Rows whose largest number is at the same place, and all rows.
    rows: (usize, usize),
    /// Whether something else than numbers differs, or shapes do.
    other: bool,
}

impl Change {
    fn add(&mut self, now: &Value, before: &Value) {
        let (Value::Tensor(a), Value::Tensor(b)) = (now, before) else {
            self.other |= now != before;
            return;
        };
        let numbers = a.to_f64s().zip(b.to_f64s()).filter(|_| a.dims() == b.dims());
        let Some((a, b)) = numbers else {
            self.other |= now != before;
            return;
        };
        for (x, y) in a.iter().zip(&b).filter(|(x, y)| !(x.is_nan() && y.is_nan())) {
            let d = if x == y { 0.0 } else { (x - y).abs() };
            self.squares = (self.squares.0 + d * d, self.squares.1 + y * y);
            self.largest = (self.largest.0.max(d), self.largest.1.max(y.abs()));
        }
        let Value::Tensor(t) = before else { return };
        let row = t.dims().last().copied().unwrap_or(1);
        if row > 1 && t.dtype().is_float() {
            for (x, y) in a.chunks_exact(row).zip(b.chunks_exact(row)) {
                self.rows.0 += usize::from(place_of_largest(x) == place_of_largest(y));
                self.rows.1 += 1;
            }
        }
    }

    fn text(&self) -> String {
        if self.other {
            return "another shape, or other values that are no numbers".into();
        }
        let share = |part: f64, of: f64| if part == 0.0 { 0.0 } else { 100.0 * part / of };
        let mean = share(self.squares.0.sqrt(), self.squares.1.sqrt());
        let most = share(self.largest.0, self.largest.1);
        let mut out = format!("changed by {mean:.2} % (root mean square), {most:.2} % of the largest number at most");
        if self.rows.1 > 0 {
            out += &format!("; the largest of a row is the same in {} of {}", self.rows.0, count(self.rows.1, "row"));
        }
        out
    }
}

fn place_of_largest(row: &[f64]) -> usize {
    row.iter().enumerate().fold(0, |best, (i, x)| if *x > row[best] { i } else { best })
}

#[cfg(test)]
mod tests {
    use of_ir::Tensor;

    use super::*;

    fn values(v: &[f32]) -> Value {
        Tensor::from_slice(&[v.len() / 2, 2], v).unwrap().into()
    }

    #[test]
    fn changes_are_said_as_shares() {
        let mut c = Change::default();
        c.add(&values(&[3.0, 4.0, 1.0, 0.0]), &values(&[3.0, 4.0, 0.0, 0.5]));
        assert_eq!(
            c.text(),
            "changed by 22.25 % (root mean square), 25.00 % of the largest number at most; the largest of a row is the \
             same in 1 of 2 rows"
        );
        c.add(&values(&[1.0, 2.0]), &values(&[1.0, 2.0, 3.0, 4.0]));
        assert!(c.text().contains("another shape"));
    }

    #[test]
    fn folders_of_folders_are_sets() {
        let dir = tempfile::tempdir().unwrap();
        for set in ["b", "a"] {
            std::fs::create_dir(dir.path().join(set)).unwrap();
            std::fs::write(dir.path().join(set).join("input_0.pb"), b"").unwrap();
        }
        let path = |name: &str| dir.path().join(name).display().to_string();
        assert_eq!(sets(&[dir.path().display().to_string()]).unwrap(), [path("a"), path("b")]);
        assert_eq!(sets(&[path("b")]).unwrap(), [path("b")]);
        assert_eq!(sets(&["x=f.npy".into()]).unwrap(), ["x=f.npy"]);
    }
}
