//! The checks of a case.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use of_codegen::toolchain::cache::Cache;
use of_codegen::{CompileOptions, CpuCode, Isa, Target, compile, rewrite};
use of_diag::Diagnostic;
use of_driver::rounding::noisy;
use of_ir::text::{PrintOptions, parse_module, print_module};
use of_ir::{Dim, Func, verify_module};
use of_ops::Value;
use of_ops::interpret::type_of;
use of_passes::Manager;
use of_passes::expand_composites::expand_composites;
use of_plan::PlanFile;
use of_reference::{Reference, from_runtime, to_runtime};
use of_runtime::{Options, Session};

use crate::compare::{Expected, compare};
use crate::evaluate::{Unbound, contracted, contradicts_declared, exact, flushed, summed, vanished};
use crate::open::{Opening, doubled, opened, resized};
use crate::{Case, module};

/// The pipeline that prepares a function for code generation.
const PIPELINE: &str = "cpu";
/// The same with rewrites by equality saturation before it.
const REWRITES: &str = "optimize,cpu";
/// Noisy runs before a difference counts: few first, then many. Only a run that hits the exact number changes the result of
/// an equality test. With cancelling sums of bf16, which an implementation may round term by term, one run in thirty does.
/// 32 runs miss that in one case of three, 512 never.
const NOISE: [u64; 3] = [4, 32, 512];
/// Time for the runs of one difference, after which it counts: far below that after which a worker counts as hanging.
const NOISE_TIME: Duration = Duration::from_secs(40);

/// A failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The check that failed.
    pub stage: &'static str,
    /// The error message.
    pub what: String,
}

fn fail<T>(stage: &'static str, what: impl ToString) -> Result<T, Failure> {
    Err(Failure { stage, what: what.to_string() })
}

thread_local! {
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Collects panic messages for the report instead of printing them.
pub fn keep_panics() {
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map_or_else(String::new, |l| format!("{}:{}: ", l.file(), l.line()));
        let payload = info.payload();
        let text = payload.downcast_ref::<&str>().map(|s| (*s).to_string());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default();
        PANIC.with(|p| *p.borrow_mut() = format!("{place}{text}"));
    }));
}

/// Runs `f`; a panic is a failure of `stage`.
///
/// # Errors
/// As `f`, and when it panics.
pub fn guarded<T>(stage: &'static str, f: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(f))
        .unwrap_or_else(|_| fail(stage, format!("panic: {}", PANIC.with(|p| p.borrow().clone()))))
}

/// A case that passed the checks of all passes.
pub struct Checked {
    /// The function as the passes left it.
    pub optimised: Func,
    /// The same with symbolic dimensions.
    pub opened: Option<Func>,
    /// Cases of the function before the passes whose inputs have other elements.
    changed: Vec<(Case, Checked)>,
    /// Cases of the function with symbolic dimensions, before the passes, whose inputs have other elements or extents.
    resized: Vec<(Case, Checked)>,
    /// Outputs of the case, and of the interpreter on the optimised function.
    want: Vec<Value>,
    got: Vec<Value>,
}

/// Everything up to code generation.
///
/// # Errors
/// The first check that fails.
pub fn passes(case: &Case) -> Result<Checked, Failure> {
    guarded("verify", || verify_module(&case.module()).or_else(|e| fail("verify", e)))?;
    let want = guarded("interpret", || outputs(&case.func, &case.inputs, "interpret"))?;
    guarded("text", || text(case))?;
    let optimised = guarded("passes", || optimise(&case.func, PIPELINE))?;
    let got = guarded("optimised", || outputs(&optimised, &case.inputs, "optimised"))?;
    let source = opened(case).filter(|f| Unbound::of(&f.graph, &case.inputs).is_ok_and(|u| u.is_empty()));
    let opened = guarded("open", || source.as_ref().map(|f| optimise(f, PIPELINE)).transpose())?;
    let other = doubled(&case.inputs);
    let changed = guarded("changed", || case_on(&case.func, &optimised, other.clone(), "changed"))?;
    let mut resized = Vec::new();
    if let (Some(source), Some(optimised)) = (&source, &opened) {
        let extents = CHANGES.iter().filter_map(|change| self::resized(case, source, change));
        for inputs in std::iter::once(other).chain(extents) {
            resized.extend(guarded("open", || case_on(source, optimised, inputs, "open resized"))?);
        }
    }
    let checked = Checked { optimised, opened, changed: changed.into_iter().collect(), resized, want, got };
    guarded("optimised", || agree("optimised", case, &checked, &checked.got))?;
    let rewritten = guarded("rewrites", || optimise(&case.func, REWRITES))?;
    let got = guarded("rewritten", || outputs(&rewritten, &case.inputs, "rewritten"))?;
    guarded("rewritten", || agree("rewritten", case, &checked, &got))?;
    if let Some(func) = &checked.opened {
        guarded("open", || agree("open", case, &checked, &outputs(func, &case.inputs, "open")?))?;
    }
    for (case, checked) in &checked.changed {
        guarded("changed", || agree("changed", case, checked, &checked.got))?;
    }
    for (case, checked) in &checked.resized {
        guarded("open resized", || agree("open resized", case, checked, &checked.got))?;
    }
    Ok(checked)
}

/// How a symbol changes: its place in the order of names, and its value.
type Change = &'static dyn Fn(usize, i64) -> i64;

/// Larger extents, and one of zero.
const CHANGES: [Change; 3] = [&|_, n| n + 1, &|i, n| n + i as i64 % 2, &|i, n| if i == 0 { 0 } else { n }];

/// The case of `source` and its optimised form on other inputs, where the function accepts them.
fn case_on(
    source: &Func,
    optimised: &Func,
    inputs: Vec<Value>,
    stage: &'static str,
) -> Result<Option<(Case, Checked)>, Failure> {
    let own = Case { func: source.clone(), inputs, opening: Opening::Closed };
    // The function may hold numbers of the extents that it was made for, or reject elements, such as indices.
    let Ok(want) = outputs(source, &own.inputs, stage) else { return Ok(None) };
    let mut checked = Checked {
        optimised: optimised.clone(),
        opened: Some(optimised.clone()),
        changed: Vec::new(),
        resized: Vec::new(),
        want,
        got: Vec::new(),
    };
    let contradicted = contradicts_declared(&source.graph, &own.inputs) || contradicted(&own, &checked);
    if contradicted || !Unbound::of(&source.graph, &own.inputs).is_ok_and(|u| u.is_empty()) {
        return Ok(None);
    }
    checked.got = outputs(optimised, &own.inputs, stage)?;
    Ok(Some((own, checked)))
}

/// Runs of native code with the expected results, each program on several inputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ran {
    /// With fixed dimensions.
    pub closed: usize,
    /// With symbolic dimensions.
    pub open: usize,
    /// With symbolic dimensions, not counted in `open`: they reported correctly that the extents of the case are not
    /// supported.
    pub refused: usize,
}

/// What makes native code of functions.
pub struct Compiler {
    /// Where the machine code of kernels comes from.
    pub cpu_code: CpuCode,
    cache: Cache,
}

impl Compiler {
    /// Bytes that the cache of kernels may hold.
    const CACHE: u64 = 2 << 30;

    /// A compiler with a cache that all runs of the fuzzer share.
    pub fn new(cpu_code: CpuCode) -> Compiler {
        Compiler { cpu_code, cache: Cache::at(&std::env::temp_dir().join("of-fuzz-kernels"), Self::CACHE) }
    }

    fn plan(&self, funcs: &[(String, &Func)]) -> Result<Arc<PlanFile>, Failure> {
        let target = Target { cpu_code: self.cpu_code, ..Target::new(isa(), &[&Reference]) };
        let options = CompileOptions::new(target, self.cache.clone());
        let rewritten = |(name, f): &(String, &'_ Func)| Ok((name.clone(), rewrite::for_isa(f, isa())?.into_owned()));
        let rewritten: Result<Vec<(String, Func)>, Diagnostic> = funcs.iter().map(rewritten).collect();
        let rewritten = rewritten.or_else(|e| fail("rewrite", e))?;
        let funcs: Vec<(String, &Func)> = rewritten.iter().map(|(name, f)| (name.clone(), f)).collect();
        let compiled = compile(&funcs, &options).or_else(|e| fail("compile", e))?;
        Ok(Arc::new(compiled.open().or_else(|e| fail("compile", e))?))
    }
}

/// Code generation, plan and runtime for several cases at once.
///
/// # Errors
/// The first failure with the index of its case.
pub fn native(
    cases: &[(&Case, &Checked)],
    compiler: &Compiler,
    starts: &mut dyn FnMut(usize),
) -> Result<Ran, (usize, Failure)> {
    let mut programs: Vec<(usize, &'static str)> = Vec::new();
    let mut funcs: Vec<(String, &Func)> = Vec::new();
    for (i, (_, c)) in cases.iter().enumerate() {
        for (stage, func) in [("native", Some(&c.optimised)), ("open native", c.opened.as_ref())] {
            if let Some(func) = func {
                funcs.push((format!("p{}", programs.len()), func));
                programs.push((i, stage));
            }
        }
    }
    let plan = match guarded("compile", || compiler.plan(&funcs)) {
        Ok(plan) => plan,
        Err(failure) if funcs.len() == 1 => return Err((0, failure)),
        Err(failure) => {
            // Find the case that failed.
            for ((i, _), func) in programs.iter().zip(&funcs) {
                starts(*i);
                guarded("compile", || compiler.plan(std::slice::from_ref(func))).map_err(|f| (*i, f))?;
            }
            return Err((0, failure));
        }
    };
    let mut ran = Ran::default();
    for (program, (i, stage)) in programs.iter().enumerate() {
        starts(*i);
        let (case, checked) = &cases[*i];
        let mut session = session(&plan, program, &case.inputs).map_err(|f| (*i, f))?;
        let got = match guarded("run", || run(&mut session, &case.inputs)) {
            // Where extents with different names are unified in one op, inference takes the first, and the run rejects
            // contradicting extents with a hint. The rejection must be justified.
            Err(f) if *stage == "open native" && refused(&f.what) && contradicted(case, checked) => {
                ran.refused += 1;
                continue;
            }
            got => got.map_err(|f| (*i, f))?,
        };
        guarded(stage, || agree(stage, case, checked, &got)).map_err(|f| (*i, f))?;
        let (others, other_stage, count) = match *stage {
            "native" => (&checked.changed, "native changed", &mut ran.closed),
            _ => (&checked.resized, "open native resized", &mut ran.open),
        };
        *count += 1;
        for (case, checked) in others {
            let agrees = || agree(other_stage, case, checked, &run(&mut session, &case.inputs)?);
            match guarded(other_stage, agrees) {
                Err(f) if refused(&f.what) && contradicted(case, checked) => ran.refused += 1,
                got => {
                    got.map_err(|f| (*i, f))?;
                    *count += 1;
                }
            }
        }
    }
    Ok(ran)
}

/// All checks of one case.
///
/// # Errors
/// The first check that fails.
pub fn all(case: &Case, compiler: &Compiler) -> Result<Ran, Failure> {
    let checked = passes(case)?;
    native(&[(case, &checked)], compiler, &mut |_| ()).map_err(|(_, f)| f)
}

/// Outputs by the interpreter, whose values must have the inferred types.
fn outputs(func: &Func, inputs: &[Value], stage: &'static str) -> Result<Vec<Value>, Failure> {
    let graph = &func.graph;
    let values = exact(graph, inputs).or_else(|e| fail(stage, e))?;
    for op in graph.region_ops(graph.entry()) {
        for v in &graph.op(op).results {
            let (own, ty) = (type_of(&values[v]), graph.ty(*v));
            // An empty sequence does not determine its item type.
            let empty = match &values[v] {
                Value::Sequence(list) => list.is_empty(),
                Value::Optional(item) => item.is_none(),
                _ => false,
            };
            if !empty && !own.compatible(ty) {
                return fail(stage, format!("a result of '{}' is {own}, inference says {ty}", graph.op(op).name()));
            }
        }
    }
    Ok(graph.outputs().iter().map(|v| values[v].clone()).collect())
}

fn text(case: &Case) -> Result<(), Failure> {
    for generic in [false, true] {
        let options = PrintOptions { generic, ..PrintOptions::default() };
        let printed = print_module(&case.module(), &options);
        let parsed = parse_module(&printed, "fuzz.of", &of_ops::registry(), None).or_else(|e| fail("text", e))?;
        if print_module(&parsed, &options) != printed {
            return fail("text", format!("generic: {generic}: printed again it reads otherwise"));
        }
        verify_module(&parsed).or_else(|e| fail("text", e))?;
    }
    Ok(())
}

fn optimise(func: &Func, pipeline: &str) -> Result<Func, Failure> {
    let mut module = module(func.clone());
    let mut manager = Manager::parse(pipeline).or_else(|e| fail("passes", e))?;
    manager.settings.verify_each = true;
    manager.run(&mut module, &mut |_| ()).or_else(|e| fail("passes", e))?;
    module.funcs.swap_remove("main").map_or_else(|| fail("passes", "the function is gone"), Ok)
}

/// `$OF_FUZZ_ISA`, which the processes that check graphs inherit, else the best of this machine.
fn isa() -> &'static Isa {
    let named = std::env::var("OF_FUZZ_ISA").ok().and_then(|name| Isa::by_name(&name));
    named.unwrap_or_else(Isa::host)
}

fn session(plan: &Arc<PlanFile>, program: usize, inputs: &[Value]) -> Result<Session, Failure> {
    let options = Options { threads: 1 + inputs.len() % 2, profile: false, ..Default::default() };
    Session::new(Arc::clone(plan), program, options, &[Arc::new(Reference)]).or_else(|e| fail("run", e))
}

/// Runs the program as often as it takes until all is laid out that ever is; the results must stay the same.
fn run(session: &mut Session, inputs: &[Value]) -> Result<Vec<Value>, Failure> {
    let inputs = inputs.iter().map(to_runtime).collect::<Result<Vec<_>, _>>().or_else(|e| fail("run", e))?;
    let got = session.run(inputs.clone()).or_else(|e| fail("run", e))?;
    for run in ["second", "third"] {
        let again = session.run(inputs.clone()).or_else(|e| fail("run", e))?;
        if let Some(i) = (0..got.len()).find(|i| !same_bits(&got[*i], &again[*i])) {
            return fail("run", format!("output {i} of the {run} run differs from that of the first"));
        }
    }
    got.iter().map(from_runtime).collect::<Result<_, _>>().or_else(|e| fail("run", e))
}

/// Whether two values have the same elements, bit for bit.
fn same_bits(a: &of_runtime::Value, b: &of_runtime::Value) -> bool {
    use of_runtime::Value as Run;
    match (a, b) {
        (Run::Tensor(a), Run::Tensor(b)) if a.bytes().is_some() => {
            (a.dtype(), a.dims(), a.bytes()) == (b.dtype(), b.dims(), b.bytes())
        }
        (Run::Sequence(a), Run::Sequence(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_bits(a, b)),
        (Run::Optional(Some(a)), Run::Optional(Some(b))) => same_bits(a, b),
        (a, b) => a == b,
    }
}

/// Whether a run reports extents that contradict those of compilation.
fn refused(what: &str) -> bool {
    what.contains("compile with fixed extents") || what.contains("and must have") || what.contains("it must be")
}

/// Whether the function with open dimensions declares extents that the values of this case do not have.
fn contradicted(case: &Case, checked: &Checked) -> bool {
    checked.opened.as_ref().is_some_and(|func| contradicts_declared(&func.graph, &case.inputs))
}

/// Compares with the oracle. Noise is measured only for differing elements.
fn agree(stage: &'static str, case: &Case, checked: &Checked, got: &[Value]) -> Result<(), Failure> {
    if got.len() != checked.want.len() {
        return fail(stage, format!("{} outputs in the place of {}", got.len(), checked.want.len()));
    }
    let graph = &case.func.graph;
    let different = |unbound: &Unbound, noise: &[Vec<(Value, Value)>]| -> Result<(), String> {
        for (i, (g, w)) in got.iter().zip(&checked.want).enumerate() {
            let shape = graph.ty(graph.outputs()[i]).as_tensor().and_then(|t| t.shape.as_ref());
            let free = |d: &Dim| unbound.is_free(d);
            let free =
                shape.into_iter().flatten().enumerate().filter_map(|(axis, d)| free(d).then_some(axis)).collect();
            let noise = noise.iter().map(|run| run[i].clone()).collect();
            let expected = Expected { value: w.clone(), free, noise };
            compare(g, &expected).map_err(|e| format!("output {i}: {e}"))?;
        }
        Ok(())
    };
    let mut result = different(&Unbound::default(), &[]);
    if result.is_ok() {
        return Ok(());
    }
    let unbound = Unbound::of(graph, &case.inputs).or_else(|e| fail(stage, e))?;
    // Cancellation also occurs inside composites.
    let mut primitives = case.func.clone();
    let primitives = expand_composites(&mut primitives, &|_| false).is_ok().then_some(primitives);
    let started = Instant::now();
    for runs in NOISE {
        let mut noise = Vec::new();
        // Each kind of noise has a share of the time.
        let in_time = |share: u32| move |_: &u64| started.elapsed() < NOISE_TIME * share / 3;
        for (func, seed) in primitives.iter().flat_map(|f| (0..runs).take_while(in_time(1)).map(move |seed| (f, seed)))
        {
            for uncertain in [contracted, vanished, summed] {
                if let Ok(out) = uncertain(&func.graph, &case.inputs, seed) {
                    noise.push(out.into_iter().zip(checked.want.iter().cloned()).collect());
                }
            }
        }
        // Flushing has no seed.
        for out in primitives.iter().filter_map(|f| flushed(&f.graph, &case.inputs).ok()) {
            noise.push(out.into_iter().zip(checked.want.iter().cloned()).collect());
        }
        for (share, func, center) in [(2, &case.func, &checked.want), (3, &checked.optimised, &checked.got)] {
            for seed in (0..runs).take_while(in_time(share)) {
                // An op that rejects noisy operands makes everything after it uncertain, so the run is not counted.
                if let Ok(out) = noisy(&func.graph, &case.inputs, seed) {
                    noise.push(out.into_iter().zip(center.iter().cloned()).collect());
                }
            }
        }
        result = different(&unbound, &noise);
        if result.is_ok() {
            break;
        }
    }
    result.or_else(|e| fail(stage, e))
}
