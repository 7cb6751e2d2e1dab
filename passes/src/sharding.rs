//! `infer-sbp`, `shard` and `insert-boxing`: layouts on a mesh by propagation, by search, and as collectives.

use of_diag::{Code, Diagnostic, Diagnostics, Location};
use of_ir::{Func, Module};
use of_ops::training::CARRIED;
use of_sharding::cut_points::Phases;
use of_sharding::decide::{self, Decision};
use of_sharding::search::Effort;
use of_sharding::stages::Parts;
use of_sharding::{MeshSpec, Meshes, Model, alternatives, explain, lower, microbatches, overlapped_step, stages};

use crate::{Pass, PassContext, pass_options};

/// Name of the mesh in a module without one.
const MESH: &str = "mesh";
/// Prefix of the names of stage meshes.
const STAGE: &str = "stage";
/// Larger numbers of stages or microbatches are a mistake: each is a copy of the ops.
const MAX_STAGES_OR_MICROBATCHES: usize = 4096;

pass_options! {
    /// Options of `infer-sbp` and `insert-boxing`.
    pub struct MeshOptions {
        /// The mesh: NAME[AxB] or a file
        mesh: String = String::new(),
    }
}

pass_options! {
    /// Options of `shard`.
    pub struct ShardOptions {
        /// The mesh: NAME[AxB] or a file
        mesh: String = String::new(),
        /// Bytes of memory per device; 0 for that of the mesh
        memory: f64 = 0.0,
        /// The search ends when cost and bound differ by this share of the cost
        gap: f64 = 0.001,
        /// Number of pipeline stages, each on its own part of the mesh
        stages: i64 = 1,
        /// Number of microbatches per step, which pass through the stages
        microbatches: i64 = 1,
    }
}

/// `infer-sbp`: propagates layouts from annotations.
pub struct InferSbp;

impl Pass for InferSbp {
    const NAME: &'static str = "infer-sbp";
    const SUMMARY: &'static str = "propagates SBP layouts from annotations";
    type Options = MeshOptions;

    fn run(options: &MeshOptions, module: &mut Module, _cx: &mut PassContext<'_>) -> Result<(), Diagnostics> {
        let mesh = MeshSpec::named(&given(&options.mesh)?)?;
        choose(module, &mesh, &mut |model| Ok(decide::propagate(model)))
    }
}

/// `shard`: searches the fastest layouts, stages and alternatives.
pub struct Shard;

impl Pass for Shard {
    const NAME: &'static str = "shard";
    const SUMMARY: &'static str = "searches the fastest SBP layouts and stages; keeps annotations";
    type Options = ShardOptions;

    fn run(options: &ShardOptions, module: &mut Module, cx: &mut PassContext<'_>) -> Result<(), Diagnostics> {
        let mut mesh = MeshSpec::named(&given(&options.mesh)?)?;
        let counts = |x: f64| x.is_finite() && x >= 0.0;
        if !counts(options.memory) || !counts(options.gap) {
            let what = "options 'memory' and 'gap' must be non-negative numbers";
            return Err(Diagnostic::error(Code::PIPELINE, Location::Unknown, what).into());
        }
        if options.memory > 0.0 {
            mesh.memory = options.memory;
        }
        let effort = Effort { gap: options.gap, ..Effort::default() };
        let mut lines = Vec::new();
        let positive = |n: i64, what: &str| {
            let n = usize::try_from(n).ok().filter(|n| (1..=MAX_STAGES_OR_MICROBATCHES).contains(n));
            n.ok_or_else(|| {
                let what = format!("option '{what}' must be from 1 to {MAX_STAGES_OR_MICROBATCHES}");
                Diagnostic::error(Code::PIPELINE, Location::Unknown, what)
            })
        };
        let (count, microbatch_count) =
            (positive(options.stages, "stages")?, positive(options.microbatches, "microbatches")?);
        let parts = placed_parts(module)?;
        if parts.is_some() || count > 1 || microbatch_count > 1 {
            module.funcs.values().filter_map(warn_no_backward_ops).for_each(|d| cx.warn(d));
            let lines = cut(module, &mesh, parts, (count, microbatch_count), &effort)?;
            lines.iter().for_each(|l| cx.emit(&format!("// shard: {l}\n")));
            return Ok(());
        }
        let mut bound = f64::INFINITY;
        crate::each_func(module, |f| {
            if let Some(chosen) = alternatives::choose(f, &mesh, mesh.memory, &effort)? {
                bound = chosen.bound;
            }
            Ok(())
        })?;
        choose(module, &mesh, &mut |model| {
            let mut d = overlapped_step::decide_overlapped(model, model.mesh.memory, &effort)?;
            d.limit_bound(bound);
            lines.push(explain::summary(model, &d));
            Ok(d)
        })?;
        lines.iter().for_each(|l| cx.emit(&format!("// shard: {l}\n")));
        Ok(())
    }
}

/// `insert-boxing`: lowers layout changes to collectives.
pub struct InsertBoxing;

impl Pass for InsertBoxing {
    const NAME: &'static str = "insert-boxing";
    const SUMMARY: &'static str = "lowers layout changes (of.sharding_constraint) to collectives";
    type Options = MeshOptions;

    fn run(options: &MeshOptions, module: &mut Module, cx: &mut PassContext<'_>) -> Result<(), Diagnostics> {
        let mesh = MeshSpec::named(&given(&options.mesh)?)?;
        let meshes = Meshes::of(module, &mesh)?;
        let mut steps = 0;
        crate::each_func(module, |f| {
            steps += lower::insert_boxing(f, &meshes)?;
            Ok(())
        })?;
        cx.count("collectives", steps);
        Ok(())
    }
}

fn given(mesh: &str) -> Result<String, Diagnostic> {
    if mesh.is_empty() {
        let d = Diagnostic::error(Code::PIPELINE, Location::Unknown, "option 'mesh' is missing");
        return Err(d.hint("e.g. mesh=cpu[2], mesh=dgx-h100[4x8] or the path of a file"));
    }
    Ok(mesh.into())
}

/// Decides the layouts of every function and writes them into its types.
fn choose(
    module: &mut Module,
    mesh: &MeshSpec,
    decide: &mut dyn FnMut(&Model<'_>) -> Result<Decision, Diagnostic>,
) -> Result<(), Diagnostics> {
    let name = symbol(module, mesh)?;
    crate::each_func(module, |f| {
        let written = {
            let model = Model::new(f, mesh)?;
            let d = decide(&model)?;
            decide::prepare(&model, &d)
        };
        decide::write(f, &written, &name)
    })
}

/// A warning for a training step without known backward ops.
fn warn_no_backward_ops(func: &Func) -> Option<Diagnostic> {
    let carried: Vec<i64> = func.attrs.typed(CARRIED).unwrap_or_default();
    if carried.iter().all(|i| *i < 0) || !Phases::of(func).backward.is_empty() {
        return None;
    }
    let what =
        "this step carries values to the next, but no op is known to be backward: all ops are treated as forward";
    let hint = "locations mark the ops of 'differentiate': keep them with --print-locations, or differentiate in the same pipeline";
    Some(Diagnostic::warning(Code::PIPELINE, func.loc.clone(), what).hint(hint))
}

/// The parts of a mesh that the module names: annotations place values on them.
fn placed_parts(module: &Module) -> Result<Option<Parts>, Diagnostic> {
    let wrong = |what: String| Err(Diagnostic::error(Code::SBP, Location::Unknown, what));
    let mut found: Option<(Parts, usize)> = None;
    let mut whole = None;
    for (name, mesh) in &module.meshes {
        let Some(part) = mesh.part else {
            whole = Some(name);
            continue;
        };
        let empty = || (Parts { axis: part.axis, names: vec![String::new(); part.of] }, part.of);
        let (parts, of) = found.get_or_insert_with(empty);
        if (parts.axis, *of) != (part.axis, part.of) {
            return wrong(format!("mesh @{name} is a part along another axis, or of another number, than the others"));
        }
        match parts.names.get_mut(part.index) {
            Some(own) if own.is_empty() => own.clone_from(name),
            Some(own) => return wrong(format!("meshes @{own} and @{name} are the same part")),
            None => return wrong(format!("mesh @{name} is part {} of {}", part.index, part.of)),
        }
    }
    let Some((mut parts, _)) = found else { return Ok(None) };
    if let Some(name) = whole {
        return wrong(format!("mesh @{name} is whole, but other meshes are parts: use one kind"));
    }
    for (index, name) in parts.names.iter_mut().enumerate().filter(|(_, name)| name.is_empty()) {
        *name = format!("{STAGE}{index}");
        while module.meshes.contains_key(name.as_str()) {
            name.push('_');
        }
    }
    Ok(Some(parts))
}

/// Cuts every function into stages and microbatches: into `parts`, where the module names them. Returns a summary of each.
fn cut(
    module: &mut Module,
    mesh: &MeshSpec,
    parts: Option<Parts>,
    (count, microbatches): (usize, usize),
    effort: &Effort,
) -> Result<Vec<String>, Diagnostics> {
    if let Some(second) = module.funcs.values().nth(1) {
        let what = format!("stages need a module of one function, but this one has {}", module.funcs.len());
        let d = Diagnostic::error(Code::SBP, second.loc.clone(), what);
        return Err(d.hint("move the other functions to another file").into());
    }
    let count = match &parts {
        None => count,
        Some(parts) if [1, parts.names.len()].contains(&count) => parts.names.len(),
        Some(parts) => {
            let what = format!("{count} stages were requested, but the module places values on {}", parts.names.len());
            let d = Diagnostic::error(Code::SBP, Location::Unknown, what);
            return Err(d.hint("leave out the number of stages").into());
        }
    };
    if let (None, Some(mesh)) = (&parts, module.meshes.keys().next()) {
        let what = format!("stages have their own meshes, but the module already has mesh @{mesh}");
        let d = Diagnostic::error(Code::SBP, Location::Unknown, what);
        return Err(d.hint("cut into stages before adding layout annotations, or shard without stages").into());
    }
    // Before anything is written: each part has the shape that the mesh gives it.
    Meshes::of(module, mesh)?;
    let names: Vec<String> = match (&parts, count) {
        (Some(parts), _) => parts.names.clone(),
        (None, 1) => vec![MESH.into()],
        (None, n) => (0..n).map(|i| format!("{STAGE}{i}")).collect(),
    };
    let mut lines = Vec::new();
    let mut found = None;
    crate::each_func(module, |f| {
        let staged = match &parts {
            Some(parts) => stages::choose_placed(f, mesh, parts, microbatches, effort)?,
            None => stages::choose(f, mesh, count, microbatches, effort)?,
        };
        let own = microbatches::Microbatches::of(f, microbatches)?;
        stages::write(f, &staged, &own, &names)?;
        lines.push(explain::pipeline_summary(&staged.pipeline));
        found = Some(staged.pipeline);
        Ok(())
    })?;
    if let Some(pipeline) = found {
        for (index, name) in names.iter().enumerate() {
            let part = (count > 1).then_some(of_ir::MeshPart { axis: pipeline.axis, index, of: count });
            module.meshes.insert(name.clone(), of_ir::Mesh { part, ..pipeline.mesh.ir() });
        }
    }
    Ok(lines)
}

/// The name of the module's mesh, which must match the given one.
fn symbol(module: &mut Module, mesh: &MeshSpec) -> Result<String, Diagnostic> {
    let ir = mesh.ir();
    let wrong = |what: String| Err(Diagnostic::error(Code::SBP, Location::Unknown, what));
    match module.meshes.iter().next() {
        None => {
            module.meshes.insert(MESH.into(), ir);
            Ok(MESH.into())
        }
        Some(_) if module.meshes.len() > 1 => wrong("the module has more than one mesh".into()),
        Some((name, own)) if own.shape == ir.shape => Ok(name.clone()),
        Some((name, own)) => wrong(format!("mesh @{name} is {:?}, the given one is {:?}", own.shape, ir.shape)),
    }
}
