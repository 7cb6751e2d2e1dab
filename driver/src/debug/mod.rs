//! The first op whose values differ between native code and another runtime, and the model reduced to it.
//!
//! The criterion is local: a part of the model is compiled alone and runs on the values that the other runtime computed
//! for its inputs, so an error does not propagate and no bound must increase with depth. First each op is a part (all ops of an
//! ONNX node together); where every op is right, each fused group of the compiled model; where these are right but
//! the model's outputs are not, the shortest run of ops that is wrong. Whatever is found is therefore named with what it takes
//! to see it.

mod case;
mod cause;
mod compare;
mod fused;
mod native;
mod onnxruntime;
mod reduce;

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use of_diag::{Code, Diagnostics, Location};
use of_ir::{Func, Graph, Module, OpId};
use of_ops::Value;
use of_ops::interpret::run_graph;
use of_passes::specialize::{Bindings, specialize};

pub use case::Case;
pub use cause::Cause;
pub use compare::{Compared, Difference};
pub use reduce::{Reduced, is_text};

use case::{Values, computing, evaluate};
use compare::{judge, judge_given, judge_strictly};
use native::{Native, Ran};

use crate::backends::Backends;
use crate::error::error;
use crate::model::Model;
use crate::observer::Observer;
use crate::options::CompileOptions;
use crate::prepare::{main_func, verify};
use crate::workload::InputSource;
use crate::{input_files, precision, random_inputs, shapes};

/// What native code is compared with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Against {
    /// The interpreter, which evaluates each op by its definition.
    Reference,
    /// onnxruntime, in this Python; `None` looks for one.
    OnnxRuntime(Option<PathBuf>),
}

/// How a model is debugged.
#[derive(Clone, Debug)]
pub struct DebugOptions<'a> {
    /// What native code is compared with.
    pub against: Against,
    /// The allowed difference, relative to the largest number of a value; `None` measures what rounding errors change.
    pub tolerance: Option<f64>,
    /// The inputs.
    pub inputs: InputSource<'a>,
    /// Where the reduced model goes.
    pub output: Option<&'a Path>,
}

/// What was compared, and what differs.
#[derive(Debug)]
pub struct DebugReport {
    /// The other side, with its version.
    pub against: String,
    /// Each op alone, in execution order.
    pub checks: Vec<Check>,
    /// The outputs of the whole model, whose differences include those that propagate.
    pub outputs: Vec<Compared>,
    /// Why the whole model does not run, if so.
    pub failure: Option<String>,
    /// The first part of the model that is wrong.
    pub finding: Option<Finding>,
    /// The reduced model, where one was asked for.
    pub reduced: Option<Reduced>,
}

/// An op, compiled alone.
#[derive(Clone, Debug)]
pub struct Check {
    /// The ONNX operator, or the op.
    pub op: String,
    /// Where it comes from.
    pub location: String,
    /// Its results, compared.
    pub values: Vec<Compared>,
    /// Why it could not be compared, or does not run.
    pub problem: Option<Problem>,
}

/// Why an op has no values to compare.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Problem {
    /// Native code fails, although the other runtime does not: a difference.
    Fails(String),
    /// It was not checked.
    Skipped(String),
}

impl Check {
    /// Whether the op is wrong.
    pub fn is_wrong(&self) -> bool {
        self.values.iter().any(|c| c.difference.is_some()) || matches!(self.problem, Some(Problem::Fails(_)))
    }
}

/// What it takes to see the difference.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FindingKind {
    /// One op, alone.
    Op,
    /// One op in a region of control flow; the place of the region.
    InRegion(String),
    /// A group of ops that share a kernel or a subgraph, and that are right one by one.
    Fused {
        /// Whether the kernels of the group alone are those of the whole model.
        same_kernels: bool,
    },
    /// A run of ops, whose groups are right one by one.
    Run,
    /// The whole model: no part of it shows the difference.
    Model,
}

/// The first part of a model that is wrong.
#[derive(Clone, Debug)]
pub struct Finding {
    /// What it takes to see it.
    pub kind: FindingKind,
    /// Its ops, with their locations.
    pub ops: Vec<(String, String)>,
    /// Its results, compared.
    pub values: Vec<Compared>,
    /// The error message where it does not run.
    pub failure: Option<String>,
    /// The kernels and backends that compute it.
    pub executors: Vec<String>,
    /// The part of the compiler that makes the difference.
    pub cause: Cause,
    /// The part, with its inputs and expected outputs.
    pub case: Case,
}

impl DebugReport {
    /// Whether nothing differs.
    pub fn is_clean(&self) -> bool {
        self.finding.is_none()
    }
}

/// Compares native code with the other runtime, part by part. `file` is where the model was read from.
///
/// # Errors
/// When the inputs do not fit, or the other runtime does not run the model.
pub fn debug(
    model: Model,
    file: &Path,
    debug: &DebugOptions<'_>,
    options: &CompileOptions,
    backends: &Backends,
    observer: &dyn Observer,
) -> Result<DebugReport, Diagnostics> {
    let subject = Subject::new(model, file, debug, options, observer)?;
    // A backend gets every op that it takes, whatever a call costs.
    let mut alone = options.clone();
    alone.placement.min_ops = alone.placement.min_ops.or(Some(0));
    let session = Debugging {
        whole: Native { module: &subject.module, options, backends, parts: false },
        alone: Native { module: &subject.module, options: &alone, backends, parts: true },
        subject: &subject,
        tolerance: debug.tolerance,
        amplification: Cell::new(None),
        observer,
    };
    session.report(debug.output)
}

/// The model with its inputs, and the values that the other runtime computes.
struct Subject {
    module: Module,
    func: Func,
    inputs: Vec<Value>,
    values: Values,
    /// The other side, with its version.
    against: String,
    /// Whether the other side is the interpreter.
    reference: bool,
    /// Ops of one ONNX node, or one op: in execution order.
    pieces: Vec<Vec<OpId>>,
}

impl Subject {
    fn new(
        mut model: Model,
        file: &Path,
        debug: &DebugOptions<'_>,
        options: &CompileOptions,
        observer: &dyn Observer,
    ) -> Result<Subject, Diagnostics> {
        verify(&model.module)?;
        precision::lower(&mut model, options, observer)?;
        // onnxruntime runs the file where it is the model, otherwise an export, whose tensors have names of their own.
        let is_onnx = matches!(file.extension(), Some(e) if e.eq_ignore_ascii_case("onnx"));
        let as_is = is_onnx && options.precision == crate::Precision::Model;
        let mut exported = None;
        if !as_is && debug.against != Against::Reference {
            let folder = onnxruntime::Folder::new()?;
            let path = folder.0.join("model.onnx");
            of_onnx::export_file(&path, &model.module, &of_onnx::ExportOptions::default())?;
            let own = crate::model::import(&path, observer)?;
            model.module = Module { name: model.module.name, ..own.module };
            exported = Some((folder, path));
        }
        let mut func = main_func(&model.module)?.clone();
        let inputs = bound_inputs(&mut func, &debug.inputs, observer)?;
        let (known, against) = match &debug.against {
            Against::Reference => (HashMap::new(), "the interpreter".into()),
            Against::OnnxRuntime(python) => {
                let _activity = observer.begin("running onnxruntime");
                let path = exported.as_ref().map_or(file, |(_, path)| path);
                let observed = onnxruntime::observe(path, &func, &inputs, python.as_deref())?;
                (observed.values, format!("onnxruntime {}", observed.version))
            }
        };
        let _activity = observer.begin("evaluating the model");
        let values = evaluate(&func.graph, &inputs, &known)?;
        let pieces = pieces(&func.graph);
        let reference = debug.against == Against::Reference;
        Ok(Subject { module: model.module, func, inputs, values, against, reference, pieces })
    }
}

/// A value for each input; the function is specialized to their shapes.
fn bound_inputs(func: &mut Func, source: &InputSource<'_>, observer: &dyn Observer) -> Result<Vec<Value>, Diagnostics> {
    let mut bindings = Bindings::new();
    shapes::bind(source.shapes, func, &mut bindings)?;
    if source.files.is_empty() {
        if let Some(warning) = shapes::default_open(func, &mut bindings) {
            observer.diagnostic(&warning);
        }
        specialize(func, &bindings)?;
        let types: Vec<_> = func.inputs.iter().cloned().zip(func.input_types()).collect();
        return random_inputs::for_types(&types, source.memory);
    }
    let values = input_files::in_order(input_files::read(source.files, func, source.conversion)?, func)?;
    input_files::bind(&values, func, &mut bindings)?;
    specialize(func, &bindings)?;
    Ok(values.into_iter().map(|v| v.value).collect())
}

/// The ops of each ONNX node, or each op, in execution order.
fn pieces(graph: &Graph) -> Vec<Vec<OpId>> {
    let mut out: Vec<Vec<OpId>> = Vec::new();
    for op in computing(graph) {
        let loc = &graph.op(op).loc;
        let node = loc.roots().iter().any(|l| matches!(l, Location::Onnx { .. }));
        let same = |last: &Vec<OpId>| last.last().is_some_and(|o| node && graph.op(*o).loc.roots() == loc.roots());
        match out.last_mut().filter(|last| same(last)) {
            Some(last) => last.push(op),
            None => out.push(vec![op]),
        }
    }
    out
}

/// Whether no extent of a value is a symbol.
fn has_fixed_extents(graph: &Graph) -> bool {
    let results = graph.walk().into_iter().flat_map(|op| graph.op(op).results.to_vec());
    results.chain(graph.args().to_vec()).filter_map(|v| graph.ty(v).as_tensor()).all(|t| t.fixed_dims().is_some())
}

/// The name and the location of an op, as its source has them.
fn title(graph: &Graph, op: OpId) -> (String, String) {
    let data = graph.op(op);
    let roots = data.loc.roots();
    let name = match roots[..] {
        [Location::Onnx { op, .. }] => op.to_string(),
        _ => data.name().to_string(),
    };
    let places: Vec<String> = roots.iter().map(ToString::to_string).collect();
    (name, if places.is_empty() { "unknown".into() } else { places.join(", ") })
}

/// Whether an op draws random numbers, which every runtime draws in its own way.
fn draws(graph: &Graph, op: OpId) -> bool {
    let data = graph.op(op);
    data.name().starts_with("of.random") || matches!(data.name(), "of.multinomial" | "of.bernoulli")
}

/// A comparison in progress.
struct Debugging<'a> {
    subject: &'a Subject,
    /// Compiles the whole model.
    whole: Native<'a>,
    /// Compiles parts of it.
    alone: Native<'a>,
    tolerance: Option<f64>,
    /// The factor of [`compare::amplification`], once it is measured on the whole model: its parts amplify less.
    amplification: Cell<Option<f64>>,
    observer: &'a dyn Observer,
}

impl Debugging<'_> {
    fn report(&self, output: Option<&Path>) -> Result<DebugReport, Diagnostics> {
        let whole = self.whole_case();
        // Placement that cannot be is an error of the command line, not a difference.
        let placed = self.whole.placed(&self.subject.func)?;
        let ran = {
            let _activity = self.observer.begin("compiling and running the model");
            self.whole.run_one(&whole)
        };
        let (outputs, failure) = match &ran.outputs {
            Ok(got) => (judge_strictly(&whole, got, self.tolerance), None),
            Err(why) => (Vec::new(), Some(why.clone())),
        };
        let mut outputs = outputs;
        let differ = |outputs: &[Compared]| outputs.iter().any(|c| c.difference.is_some());
        let (checks, mut finding, guilty) = self.each_op(has_fixed_extents(&placed.graph));
        let mut ops = guilty;
        if finding.is_none() {
            (finding, ops) = self.fused(&placed, &ran)?;
        }
        // The interpreter executes the whole model, again for each injected error: only where no part explains the difference.
        if finding.is_none()
            && differ(&outputs)
            && let Ok(got) = &ran.outputs
        {
            let _activity = self.observer.begin("measuring what rounding errors change in the outputs");
            let strict = outputs;
            outputs = self.judge(&whole, &ran, got);
            self.amplification.set(compare::amplification(&strict, &outputs));
        }
        if finding.is_none() && (failure.is_some() || differ(&outputs)) {
            (finding, ops) = self.run_of_ops(whole, &ran, &outputs, failure.as_ref());
        }
        let reduced = match (output, &mut finding) {
            (Some(path), Some(finding)) => Some(self.reduce(finding, ops, path)?),
            _ => None,
        };
        let against = self.subject.against.clone();
        Ok(DebugReport { against, checks, outputs, failure, finding, reduced })
    }

    /// As [`judge`], for cases of many ops, each of which agrees alone: the interpreter runs seldom.
    fn judge(&self, case: &Case, ran: &Ran, got: &[Value]) -> Vec<Compared> {
        let strict = judge_strictly(case, got, self.tolerance);
        let differences = || strict.iter().filter_map(|c| c.difference.as_ref());
        let far = |limit: f64| differences().any(|d| d.distance > limit * d.allowed);
        if differences().next().is_none() || self.amplification.get().is_some_and(far) {
            return strict;
        }
        self.rounded_by_the_other_side(case, got).unwrap_or_else(|| judge(case, ran, got, self.tolerance))
    }

    /// The outputs of a case, compared, where they agree with the interpreter's: where each op alone agrees with the other
    /// side, what is left are the rounding errors that accumulate there, whose size is its distance from the interpreter.
    fn rounded_by_the_other_side(&self, case: &Case, got: &[Value]) -> Option<Vec<Compared>> {
        if self.subject.reference || self.tolerance.is_some() {
            return None;
        }
        let exact = run_graph(&case.func.graph, &case.inputs).ok()?;
        let interpreted = Case { expected: exact.clone(), ..case.clone() };
        let agrees = judge_strictly(&interpreted, got, None).iter().all(|c| c.difference.is_none());
        agrees.then(|| judge_given(case, got, &exact))
    }

    fn whole_case(&self) -> Case {
        let Subject { func, inputs, values, .. } = self.subject;
        let expected = func.graph.outputs().iter().filter_map(|v| self.output(values, *v)).collect();
        Case { func: func.clone(), inputs: inputs.clone(), expected }
    }

    fn output(&self, values: &Values, v: of_ir::ValueId) -> Option<Value> {
        let constant = || self.subject.func.graph.constant(v).map(Value::from);
        values.get(&v).cloned().or_else(constant)
    }

    /// Runs cases with a line of progress.
    fn run(&self, step: &str, cases: &[&Case], run: impl Fn(&[&Case], &dyn Fn(usize)) -> Vec<Ran>) -> Vec<Ran> {
        let activity = self.observer.begin(step);
        let progress = activity.progress();
        run(cases, &|n| {
            if let Some(report) = &progress {
                report(step, n, cases.len());
            }
        })
    }

    /// Checks each op alone, with fixed extents where the model compiles to code with `fixed` extents: inference of a part
    /// may have to suppose that two open extents are equal. Returns the first that is wrong, with its ops in the model.
    fn each_op(&self, fixed: bool) -> (Vec<Check>, Option<Finding>, Vec<OpId>) {
        let Subject { func, values, pieces, reference, .. } = self.subject;
        let graph = &func.graph;
        let skipped = |piece: &[OpId]| {
            (!reference && piece.iter().any(|op| draws(graph, *op))).then_some("it draws random numbers")
        };
        let case = |piece: &Vec<OpId>| {
            let case = if skipped(piece).is_some() { None } else { Case::of(graph, piece, values) };
            case.map(|c| if fixed { c.specialized() } else { c })
        };
        let cases: Vec<Option<Case>> = pieces.iter().map(case).collect();
        let given: Vec<&Case> = cases.iter().flatten().collect();
        let mut ran = self.run("checking each op", &given, |cases, done| self.alone.run(cases, done)).into_iter();
        let (mut checks, mut finding, mut guilty) = (Vec::new(), None, Vec::new());
        for (piece, case) in pieces.iter().zip(&cases) {
            let (op, location) = piece.first().map(|op| title(graph, *op)).unwrap_or_default();
            let mut check = Check { op, location, values: Vec::new(), problem: None };
            match case.as_ref().zip(case.as_ref().and_then(|_| ran.next())) {
                None => {
                    let why = skipped(piece).unwrap_or("nothing reads its results");
                    check.problem = Some(Problem::Skipped(why.into()));
                }
                Some((case, ran)) => {
                    match &ran.outputs {
                        Ok(got) => check.values = judge(case, &ran, got, self.tolerance),
                        Err(why) => check.problem = Some(Problem::Fails(why.clone())),
                    }
                    if check.is_wrong() && finding.is_none() {
                        let found = self.finding(FindingKind::Op, case.clone(), &ran, check.values.clone());
                        finding = Some(self.in_region(case).unwrap_or(found));
                        guilty.clone_from(piece);
                    }
                }
            }
            checks.push(check);
        }
        (checks, finding, guilty)
    }

    fn finding(&self, kind: FindingKind, case: Case, ran: &Ran, values: Vec<Compared>) -> Finding {
        let graph = &case.func.graph;
        let mut ops: Vec<(String, String)> = case.ops().iter().map(|op| title(graph, *op)).collect();
        ops.dedup();
        Finding {
            kind,
            ops,
            values,
            failure: ran.outputs.as_ref().err().cloned(),
            executors: ran.executors.iter().cloned().collect(),
            cause: cause::cause(&case, &self.alone, self.tolerance),
            case,
        }
    }

    /// The first op that is wrong in a region of a case, if the case has regions.
    fn in_region(&self, case: &Case) -> Option<Finding> {
        let inner = cause::inside(case);
        let cases: Vec<&Case> = inner.iter().map(|i| &i.case).collect();
        let ran = self.run("checking the ops inside", &cases, |cases, done| self.alone.run(cases, done));
        let mut judged = inner.iter().zip(&ran).map(|(inner, ran)| {
            let got = ran.outputs.as_deref().unwrap_or_default();
            (inner, ran, judge(&inner.case, ran, got, self.tolerance))
        });
        let wrong =
            |ran: &Ran, values: &[Compared]| ran.outputs.is_err() || values.iter().any(|c| c.difference.is_some());
        let (inner, ran, values) = judged.find(|(_, ran, values)| wrong(ran, values))?;
        Some(self.finding(FindingKind::InRegion(inner.place.clone()), inner.case.clone(), ran, values))
    }

    /// Whether a part of the model, compiled alone, shows the difference: it fails where `fails`, else a value is wrong. A part
    /// that fails for another reason would be another fault.
    fn shows(&self, case: &Case, fails: bool) -> bool {
        let ran = self.alone.run_one(case);
        match &ran.outputs {
            Ok(got) => !fails && self.judge(case, &ran, got).iter().any(|c| c.difference.is_some()),
            Err(_) => fails,
        }
    }

    /// Checks the groups of ops that the compiled model fuses. Returns the first that is wrong, and the ops of the model that
    /// it comes from.
    fn fused(&self, func: &Func, whole: &Ran) -> Result<(Option<Finding>, Vec<OpId>), Diagnostics> {
        if self.whole.options.mesh.is_some() {
            // The groups of a mesh are those of its ranks, whose values are parts of the model's.
            return Ok((None, Vec::new()));
        }
        let graph = &func.graph;
        let values = evaluate(graph, &self.subject.inputs, &HashMap::new())?;
        let cases: Vec<Case> = fused::groups(func).iter().filter_map(|ops| Case::of(graph, ops, &values)).collect();
        let given: Vec<&Case> = cases.iter().collect();
        let ran = self.run("checking fused groups", &given, |cases, done| self.whole.run_prepared(cases, done));
        for (case, ran) in cases.iter().zip(&ran) {
            let got = ran.outputs.as_deref().unwrap_or_default();
            let values = judge(case, ran, got, self.tolerance);
            if ran.outputs.is_err() || values.iter().any(|c| c.difference.is_some()) {
                let same_kernels = ran.kernels.is_subset(&whole.kernels);
                let kind = FindingKind::Fused { same_kernels };
                let mut finding = self.finding(kind, case.clone(), ran, values);
                finding.cause = Cause::Code;
                return Ok((Some(finding), self.sources(case)));
            }
        }
        Ok((None, Vec::new()))
    }

    /// The ops of the model that the ops of a case come from.
    fn sources(&self, case: &Case) -> Vec<OpId> {
        let (graph, own) = (&self.subject.func.graph, &case.func.graph);
        let roots: HashSet<&Location> = own.walk().iter().flat_map(|op| own.op(*op).loc.roots()).collect();
        let from = |op: &OpId| graph.op(*op).loc.roots().iter().any(|l| roots.contains(l));
        computing(graph).into_iter().filter(from).collect()
    }

    /// The shortest run of ops that is wrong, else the whole model.
    fn run_of_ops(
        &self,
        whole: Case,
        ran: &Ran,
        outputs: &[Compared],
        failure: Option<&String>,
    ) -> (Option<Finding>, Vec<OpId>) {
        let Subject { func, values, pieces, .. } = self.subject;
        let _activity = self.observer.begin("searching for the shortest run of ops that differs");
        let shortest = fused::shortest_run(&func.graph, pieces, values, &|case| self.shows(case, failure.is_some()));
        let case = shortest.as_ref().and_then(|ops| Case::of(&func.graph, ops, values));
        let finding = match case {
            Some(case) => {
                let ran = self.alone.run_one(&case);
                let got = ran.outputs.as_deref().unwrap_or_default();
                let values = judge(&case, &ran, got, self.tolerance);
                self.finding(FindingKind::Run, case, &ran, values)
            }
            None => {
                let mut finding = self.finding(FindingKind::Model, whole, ran, outputs.to_vec());
                finding.failure = failure.cloned();
                finding
            }
        };
        (Some(finding), shortest.unwrap_or_default())
    }

    /// Reduces the model to as few of `ops` as show the difference, and writes it.
    fn reduce(&self, finding: &mut Finding, ops: Vec<OpId>, path: &Path) -> Result<Reduced, Diagnostics> {
        let Subject { func, values, module, .. } = self.subject;
        let graph = &func.graph;
        let fails = finding.failure.is_some();
        let shows = |case: &Case| self.shows(case, fails);
        let in_region = matches!(finding.kind, FindingKind::InRegion(_));
        if !in_region && Case::of(graph, &ops, values).is_some_and(|c| shows(&c)) {
            let _activity = self.observer.begin("reducing the model");
            let smallest = reduce::smallest(graph, ops, values, &shows);
            if let Some(case) = Case::of(graph, &smallest, values) {
                finding.case = case;
            }
        }
        let mut reduced = reduce::write(&finding.case, module, path)?;
        let again = crate::model::open(path, self.observer)?;
        if let crate::ModelOrPlan::Model(model) = again {
            let case = Case { func: main_func(&model.module)?.clone(), ..finding.case.clone() };
            reduced.shows = shows(&case);
        }
        Ok(reduced)
    }
}

/// The error for a debugging session of a plan.
pub fn plan_given(path: &Path) -> of_diag::Diagnostic {
    error(Code::INPUT, format!("'{}' is a plan, whose ops are fused", path.display()))
        .hint("debug the model that it was compiled from, with the same options")
}
