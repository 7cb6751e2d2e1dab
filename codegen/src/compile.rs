//! Compiles functions to a plan.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use of_diag::{Code, Diagnostic, Diagnostics, Location};
use of_ir::{Func, ValueId};
use of_plan::{Environment, InputHash, Plan, PlanBuilder, PlanFile, PlanInfo, Program, Rank};
use rayon::prelude::*;

use crate::isa::{CpuCode, Language};
use crate::kernel::extent::{self, Extent};
use crate::kernel::schedule::TunableContraction;
use crate::limits::Limits;
use crate::lower::panel_widths::PanelWidths;
use crate::lower::weight_form::WeightForm;
use crate::lower::{Lowered, NotNative, Target, lower};
use crate::mesh;
use crate::mesh::{MeshFuncs, RankPrograms};
use crate::physical::{StepKind, VariableLayout, async_order, fuse_transfers};
use crate::place::Rejected;
use crate::print::{Source, printer};
use crate::toolchain::cache::Cache;
use crate::toolchain::object::Blob;
use crate::toolchain::{CachedCompiler, CompileError, InProcess};

/// Progress of a compilation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// Number of finished kernels, and their total.
    Kernels(usize, usize),
}

/// Compilation options.
pub struct CompileOptions<'a> {
    /// Name of the model.
    pub model: String,
    /// Flags that shaped the result, for the plan.
    pub flags: Vec<String>,
    /// Names and blake3 hashes of the input files.
    pub inputs: Vec<(String, [u8; 32])>,
    /// The pipeline of passes that the functions went through, for the plan.
    pub passes: String,
    /// Number of worker threads that the plan is meant for; 0 lets the runtime choose.
    pub threads: u32,
    /// The target.
    pub target: Target<'a>,
    /// The cache of compiled kernels.
    pub cache: Cache,
    /// Limits on time and memory.
    pub limits: Limits,
    /// Callback for progress reports.
    pub progress: Option<Arc<dyn Fn(Progress) + Send + Sync>>,
}

impl<'a> CompileOptions<'a> {
    /// Options for a model without a name or files, and one worker thread.
    pub fn new(target: Target<'a>, cache: Cache) -> CompileOptions<'a> {
        let (model, flags, inputs, passes) = Default::default();
        let (threads, limits, progress) = (1, Limits::default(), None);
        CompileOptions { model, flags, inputs, passes, threads, target, cache, limits, progress }
    }

    /// The provenance that the plan records.
    pub(crate) fn info(&self) -> PlanInfo {
        let hashed = |(name, hash): &(String, [u8; 32])| InputHash { name: name.clone(), blake3: hash.to_vec() };
        PlanInfo {
            compiler_version: env!("CARGO_PKG_VERSION").into(),
            model: self.model.clone(),
            flags: self.flags.clone(),
            inputs: self.inputs.iter().map(hashed).collect(),
            passes: self.passes.clone(),
        }
    }
}

/// A kernel that the compiler in process refused; the C compiler compiled it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotEmitted {
    /// Name of the kernel.
    pub kernel: String,
    /// Why it was refused.
    pub reason: String,
}

/// Summary of a compilation.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Steps of all programs.
    pub steps: usize,
    /// Distinct kernels.
    pub kernels: usize,
    /// Kernels that the compiler in process made.
    pub in_process: usize,
    /// Kernels that another compiler made: they were not in the cache.
    pub compiled: usize,
    /// Kernels from the cache.
    pub cached: usize,
    /// Kernels that the compiler in process refused, which it would have made.
    pub not_emitted: Vec<NotEmitted>,
    /// The instruction set that the compiler in process does not cover, although it would have made the kernels.
    pub not_covered: Option<&'static str>,
    /// Ops that run on a backend instead of native code.
    pub not_native: Vec<NotNative>,
    /// Contractions and convolutions that use kernels although library calls were requested.
    pub rejected: Vec<Rejected>,
    /// The weights that are stored in another form than the model's.
    pub weight_forms: Vec<WeightForm>,
    /// The contractions of each program, in the order of the programs.
    pub tunable: Vec<Vec<TunableContraction>>,
    /// Memory of the largest program, and the proven lower bound for it.
    pub peak_bytes: u64,
    /// See `peak_bytes`.
    pub lower_bound_bytes: u64,
}

/// A plan in memory.
pub struct Compiled {
    pub(crate) builder: PlanBuilder<'static>,
    /// What was compiled.
    pub summary: Summary,
}

impl Compiled {
    /// Writes the plan.
    ///
    /// # Errors
    /// When the plan does not verify (a bug) or the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Diagnostic> {
        let failed = |e: of_plan::WriteError| {
            Diagnostic::error(Code::PLAN, Location::Unknown, format!("{}: {e}", path.display()))
        };
        self.builder.write_file(path).map_err(failed)
    }

    /// The structure of the plan.
    pub fn plan(&self) -> &Plan {
        self.builder.plan()
    }

    /// The bytes of the plan.
    ///
    /// # Errors
    /// When the plan does not verify (a bug).
    pub fn bytes(&self) -> Result<Vec<u8>, Diagnostic> {
        let failed = |e: of_plan::WriteError| Diagnostic::error(Code::PLAN, Location::Unknown, e.to_string());
        self.builder.to_bytes().map_err(failed)
    }

    /// The plan, opened as from a file.
    ///
    /// # Errors
    /// When the plan does not verify (a bug).
    pub fn open(&self) -> Result<PlanFile, Diagnostic> {
        PlanFile::from_builder(&self.builder)
            .map_err(|e| Diagnostic::error(Code::PLAN, Location::Unknown, e.to_string()))
    }
}

/// Compiles functions into one plan: one program for each, under the given names, sharing weights and kernels.
///
/// It does not rewrite graphs. The passes come first: those of the driver, or [`for_isa`](crate::rewrite::for_isa) without it.
///
/// # Errors
/// When an op has no backend, or a kernel cannot be compiled.
pub fn compile(funcs: &[(String, &Func)], options: &CompileOptions<'_>) -> Result<Compiled, Diagnostics> {
    let (mut builder, programs, summary) = programs(funcs, options, None, &[])?;
    programs.into_iter().for_each(|p| {
        builder.add_program(p);
    });
    Ok(Compiled { builder, summary })
}

/// Compiles entry points of one model on a mesh into one plan. The programs of a rank share its parts of the variables. Ranks whose programs
/// differ only in their weights share one.
///
/// # Errors
/// As [`compile`], and when an input or output is no tensor of known extents, or entry points have other layouts of a variable.
pub fn compile_meshes(meshes: &[MeshFuncs<'_>], options: &CompileOptions<'_>) -> Result<Compiled, Diagnostics> {
    let RankPrograms { funcs, groups, of_ranks } = RankPrograms::of(meshes);
    let fused: Vec<_> = of_ranks.iter().map(Vec::as_slice).zip(meshes.iter().map(|mesh| mesh.fused_bytes)).collect();
    let (mut builder, mut programs, summary) = programs(&funcs, options, Some(&groups), &fused)?;
    programs.iter_mut().for_each(|p| p.inner = true);
    let mut known: Vec<Rank> = Vec::with_capacity(funcs.len());
    if programs.len() > funcs.len() {
        // Programs refer to each other by index, so all are kept.
        known.extend((0..funcs.len()).map(|i| Rank { program: i as u32, weight_overrides: Vec::new() }));
        programs.into_iter().for_each(|p| {
            builder.add_program(p);
        });
    } else {
        for program in programs {
            let templates = builder.plan().programs.iter().zip(0..);
            let shared = templates.into_iter().find_map(|(t, i)| Some((i, mesh::unify(t, &program, &builder)?)));
            known.push(match shared {
                Some((program, weight_overrides)) => Rank { program, weight_overrides },
                None => Rank { program: builder.add_program(program), weight_overrides: Vec::new() },
            });
        }
    }
    let entry_point = |(mesh, of_ranks): (&MeshFuncs<'_>, &Vec<usize>)| {
        mesh::program(mesh, of_ranks.iter().map(|own| known[*own].clone()).collect())
    };
    let mut entry_points = meshes.iter().zip(&of_ranks).map(entry_point).collect::<Result<Vec<_>, _>>()?;
    mesh::share_variables(&mut entry_points)
        .map_err(|why| Diagnostic::error(Code::SBP, meshes[0].whole.loc.clone(), why))?;
    entry_points.into_iter().for_each(|mesh| builder.add_mesh(mesh));
    Ok(Compiled { builder, summary })
}

/// Compiles functions to programs, followed by the programs of their regions; adds their kernels and weights to the plan. All programs
/// share their variables, and what is derived from constants; or those of one of the `groups` share variables. `fused` are the functions of
/// the ranks of each entry point, and the bytes of transfers that may share a rendezvous there.
fn programs(
    funcs: &[(String, &Func)],
    options: &CompileOptions<'_>,
    groups: Option<&[usize]>,
    fused: &[(&[usize], u64)],
) -> Result<(PlanBuilder<'static>, Vec<Program>, Summary), Diagnostics> {
    let isa = options.target.isa;
    let environment = printer(isa.language).environment(isa, options.threads);
    let environment = Environment { keep_subnormals: options.target.keep_subnormals, ..environment };
    let mut builder = PlanBuilder::new(options.info(), environment);
    let wants_process = options.target.cpu_code == CpuCode::Machine && isa.language == Language::C;
    let in_process = if wants_process { InProcess::new(isa) } else { None };
    let lowered = flatten(lower_all(funcs, options, groups.is_none(), in_process.as_ref(), &mut builder)?);
    let sources: Vec<&Source> = lowered.iter().flat_map(|(_, l)| &l.kernels).collect();
    let not_covered = (wants_process && in_process.is_none() && !sources.is_empty()).then_some(isa.name);
    let mut summary = Summary { not_covered, ..Summary::default() };
    let blobs = kernels(&sources, &|i| origin(&lowered, i), in_process.as_ref(), options, &mut summary)?;
    let mut lowered = lowered;
    // Programs of regions have no variables.
    let group = |program: usize| groups.and_then(|groups| groups.get(program)).copied().unwrap_or(0);
    let mut layouts = vec![VariableLayout::default()];
    for (_, l) in &mut lowered {
        async_order::order(&mut l.physical);
        let moved = l.physical.place_variables();
        l.tunable.iter_mut().for_each(|t| t.step = moved.get(t.step).copied().unwrap_or(t.step));
    }
    for (of_ranks, most) in fused {
        let own = lowered.iter_mut().enumerate().filter(|(i, _)| of_ranks.contains(i));
        let mut own: Vec<&mut Lowered> = own.map(|(_, (_, l))| l).collect();
        let moved = fuse_transfers(&mut own.iter_mut().map(|l| &mut l.physical).collect::<Vec<_>>(), *most);
        for (l, moved) in own.into_iter().zip(moved) {
            l.tunable.iter_mut().for_each(|t| t.step = moved.get(t.step).copied().unwrap_or(t.step));
        }
    }
    for (i, (_, l)) in lowered.iter_mut().enumerate() {
        l.physical.overlap_transfers();
        layouts.resize_with(layouts.len().max(group(i) + 1), VariableLayout::default);
        layouts[group(i)].add(&l.physical).map_err(|why| Diagnostic::error(Code::TYPE, Location::Unknown, why))?;
    }
    let mut next = blobs.into_iter();
    let mut programs = Vec::with_capacity(lowered.len());
    for (i, (name, l)) in lowered.into_iter().enumerate() {
        let codes: Vec<u32> = l
            .names
            .iter()
            .zip(next.by_ref())
            .map(|(title, blob)| {
                let added = builder.add_kernel(title.as_str(), isa.name, blob.bytes, blob.entry);
                added.map_err(|e| Diagnostic::error(Code::PLAN, Location::Unknown, e.to_string()))
            })
            .collect::<Result<_, _>>()?;
        let inner = i >= funcs.len();
        let variables = if inner { &VariableLayout::default() } else { &layouts[group(i)] };
        let mut program = program(&name, inner, l, &codes, variables, &mut summary);
        if let Some((_, func)) = funcs.get(i) {
            program.rewrites = func.graph.rewrites().iter().map(rewrite).collect();
        }
        programs.push(program);
    }
    summary.kernels = builder.plan().code.len();
    if summary.kernels == 0 {
        // A program that runs only on backends has no CPU requirements.
        builder.clear_cpu_requirements();
    }
    if summary.compiled > 0 {
        options.cache.trim_if_due();
    }
    Ok((builder, programs, summary))
}

/// Lowers functions, those of larger values first: if they are `of_one_model`, they choose the panels of constants that all of them read.
fn lower_all(
    funcs: &[(String, &Func)],
    options: &CompileOptions<'_>,
    of_one_model: bool,
    in_process: Option<&InProcess>,
    builder: &mut PlanBuilder<'static>,
) -> Result<Vec<(String, Lowered)>, Diagnostic> {
    let mut widths = PanelWidths::default();
    let mut order: Vec<usize> = (0..funcs.len()).collect();
    of_ir::sort::by_key(&mut order, |i| std::cmp::Reverse(elements(funcs[*i].1)));
    let mut lowered: Vec<Option<(String, Lowered)>> = funcs.iter().map(|_| None).collect();
    for i in order {
        let (name, func) = &funcs[i];
        let span = tracing::debug_span!("lower", name);
        let _in = span.enter();
        let widths = Some(&mut widths).filter(|_| of_one_model && funcs.len() > 1);
        lowered[i] = Some((name.clone(), lower(func, &options.target, in_process, widths, builder)?));
        options.limits.check(&|| format!("the lowering of '{name}'"))?;
    }
    Ok(lowered.into_iter().flatten().collect())
}

/// The elements of all values that ops of a function compute, as far as their extents are numbers.
fn elements(func: &Func) -> usize {
    let graph = &func.graph;
    let computed = graph.region_ops(graph.entry()).filter(|op| !graph.op(*op).def.traits().constant);
    let values = computed.flat_map(|op| graph.op(op).results.iter());
    let elements = |v: &ValueId| extent::of_value(graph, *v).iter().product::<Extent>().number().unwrap_or(0);
    values.map(elements).fold(0, usize::saturating_add)
}

/// A recorded rewrite, as the plan has it.
fn rewrite(of: &of_ir::Rewrite) -> of_plan::Rewrite {
    of_plan::Rewrite {
        pass: of.pass.to_string(),
        rule: of.rule.as_deref().unwrap_or_default().to_owned(),
        before: of.before.to_owned(),
        location: of.location.to_string(),
        after: of.after.iter().map(ToString::to_string).collect(),
    }
}

/// Lists the programs of the functions, then those of the regions that they run: a program precedes those that it runs.
fn flatten(functions: Vec<(String, Lowered)>) -> Vec<(String, Lowered)> {
    let mut all = functions;
    let mut at = 0;
    while at < all.len() {
        let (name, inner) = (all[at].0.clone(), std::mem::take(&mut all[at].1.inner));
        let first = all.len();
        for step in &mut all[at].1.physical.steps {
            if let StepKind::Control { region_calls, .. } = &mut step.kind {
                region_calls.iter_mut().for_each(|b| b.program += first);
            }
        }
        all.extend(inner.into_iter().enumerate().map(|(i, l)| (format!("{name}/{i}"), l)));
        at += 1;
    }
    all
}

fn program(
    name: &str,
    inner: bool,
    mut l: Lowered,
    codes: &[u32],
    variables: &VariableLayout,
    summary: &mut Summary,
) -> Program {
    for step in &mut l.physical.steps {
        if let StepKind::Kernel { code, .. } = &mut step.kind {
            *code = codes[*code as usize];
        }
    }
    let program = l.physical.assemble_with(name, inner, variables);
    summary.steps += program.tasks.len();
    summary.not_native.extend(l.not_native);
    summary.rejected.extend(l.rejected);
    summary.tunable.push(l.tunable);
    summary.weight_forms.extend(l.weight_forms);
    if program.peak_bytes >= summary.peak_bytes {
        (summary.peak_bytes, summary.lower_bound_bytes) = (program.peak_bytes, program.lower_bound_bytes);
    }
    program
}

/// The name of a kernel and where its ops come from: `kernel 'matmul+add' (node "/fc/Gemm")`.
fn origin(lowered: &[(String, Lowered)], kernel: usize) -> String {
    let mut index = kernel;
    for (_, l) in lowered {
        if index >= l.kernels.len() {
            index -= l.kernels.len();
            continue;
        }
        let runs = |kind: &StepKind| matches!(kind, StepKind::Kernel { code, .. } if *code as usize == index);
        let step = l.physical.steps.iter().find(|s| runs(&s.kind));
        let from = step.map(|s| s.locations.join(", ")).filter(|f| !f.is_empty()).unwrap_or("an unknown place".into());
        return format!("kernel '{}' from {from}", l.names[index]);
    }
    format!("kernel {kernel}")
}

/// Compiled blobs of all sources in order; the summary gets where they come from. `origin` names a source for messages.
fn kernels(
    sources: &[&Source],
    origin: &(dyn Fn(usize) -> String + Sync),
    in_process: Option<&InProcess>,
    options: &CompileOptions<'_>,
    summary: &mut Summary,
) -> Result<Vec<Blob>, Diagnostic> {
    // Programs of several ranks have the same kernels.
    let mut index_of: HashMap<&str, usize> = HashMap::new();
    let mut distinct: Vec<usize> = Vec::new();
    let wanted: Vec<usize> = sources
        .iter()
        .enumerate()
        .map(|(i, s)| {
            *index_of.entry(&s.body).or_insert_with(|| {
                distinct.push(i);
                distinct.len() - 1
            })
        })
        .collect();
    let compiler = CachedCompiler::new(options.target.isa, &options.cache);
    let known = |i: &usize| match in_process.map(|compiler| compiler.compile(&sources[*i].body)) {
        Some(Ok(bytes)) => (Some(Blob { bytes, entry: 0 }), None),
        Some(Err(reason)) => (compiler.cached(sources[*i]), Some(NotEmitted { kernel: origin(*i), reason })),
        None => (compiler.cached(sources[*i]), None),
    };
    let (mut blobs, refused): (Vec<Option<Blob>>, Vec<Option<NotEmitted>>) =
        distinct.par_iter().with_max_len(1).map(known).unzip();
    let misses: Vec<usize> = (0..blobs.len()).filter(|i| blobs[*i].is_none()).collect();
    let results = compile_misses(&misses, &|i| sources[distinct[i]], &|i| origin(distinct[i]), &compiler, options)
        .map_err(|(i, d)| match &refused[i] {
            Some(r) => d.note(format!("the compiler in this program refused the kernel: {}", r.reason)),
            None => d,
        })?;
    summary.in_process = if in_process.is_some() { refused.iter().filter(|r| r.is_none()).count() } else { 0 };
    summary.compiled = results.len();
    summary.cached = blobs.len() - summary.in_process - summary.compiled;
    summary.not_emitted = refused.into_iter().flatten().collect();
    for (i, blob) in results {
        blobs[i] = Some(blob);
    }
    let missing = || Diagnostic::error(Code::CODEGEN, Location::Unknown, "a kernel was not compiled");
    let blobs: Vec<Blob> = blobs.into_iter().map(|b| b.ok_or_else(missing)).collect::<Result<_, _>>()?;
    Ok(wanted.into_iter().map(|i| blobs[i].clone()).collect())
}

/// Compiles sources that the cache does not have, by their numbers; on failure the number of a kernel that failed.
fn compile_misses<'s>(
    misses: &[usize],
    source: &(dyn Fn(usize) -> &'s Source + Sync),
    origin: &(dyn Fn(usize) -> String + Sync),
    compiler: &CachedCompiler<'_>,
    options: &CompileOptions<'_>,
) -> Result<Vec<(usize, Blob)>, (usize, Diagnostic)> {
    let Some(first) = misses.first() else { return Ok(Vec::new()) };
    compiler.check().map_err(|e| (*first, failure(&e, &origin(*first))))?;
    // Compile the longest first, so that none of them is left at the end.
    let mut misses = misses.to_vec();
    of_ir::sort::by_key(&mut misses, |i| std::cmp::Reverse(source(*i).body.len()));
    let report = |done| {
        if let Some(report) = &options.progress {
            report(Progress::Kernels(done, misses.len()));
        }
    };
    report(0);
    let (done, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let mut results: Vec<(usize, Result<Blob, Diagnostic>)> = misses
        .par_iter()
        .with_max_len(1)
        // After the first failure the others are not worth their time.
        .take_any_while(|_| !failed.load(Ordering::Relaxed))
        .map(|i| {
            let kernel = || origin(*i);
            let compiled = compiler.compile(source(*i), options.limits.deadline());
            // The limits know why a compiler was stopped.
            let checked = options.limits.check(&kernel);
            let result = checked.and_then(|()| compiled.map_err(|e| failure(&e, &kernel())));
            failed.fetch_or(result.is_err(), Ordering::Relaxed);
            report(done.fetch_add(1, Ordering::Relaxed) + 1);
            (*i, result)
        })
        .collect();
    of_ir::sort::by_key(&mut results, |(i, _)| *i);
    results.into_iter().map(|(i, result)| result.map(|blob| (i, blob)).map_err(|d| (i, d))).collect()
}

/// The diagnostic for a kernel that was not compiled.
fn failure(error: &CompileError, kernel: &str) -> Diagnostic {
    let d = Diagnostic::error(Code::CODEGEN, Location::Unknown, format!("{kernel}: {error}"));
    match error {
        CompileError::Missing { language, variable, .. } => {
            if *language == Language::WebAssembly {
                return d.note("the kernel cache does not have this kernel").hint(format!(
                    "install clang and LLVM's linker (Debian, Ubuntu: packages clang and lld), or name a clang in ${variable}"
                ));
            }
            let (name, package) = if *language == Language::C { ("C", "gcc") } else { ("C++", "g++") };
            d.note("the kernel cache does not have this kernel").hint(format!(
                "install a {name} compiler (Debian, Ubuntu, Alpine: package {package}; Fedora: {}), name one in ${variable}, or \
                 run a plan that was compiled elsewhere",
                if package == "gcc" { "gcc" } else { "gcc-c++" }
            ))
        }
        CompileError::TimedOut(_) => {
            d.hint("--time-limit replaces the limit for a kernel by one for the whole compilation")
        }
        _ => d,
    }
}
