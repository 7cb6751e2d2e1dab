//! `infer-sbp`, `shard` and `insert-boxing`: how tensors lie on a mesh, by propagation, by search, and as ops.

use of_diag::{Code, Diagnostic, Diagnostics, Location};
use of_ir::{Func, Module};
use of_ops::training::CARRIED;
use of_sharding::cuts::Phases;
use of_sharding::decide::{self, Decision};
use of_sharding::search::Effort;
use of_sharding::{MeshSpec, Meshes, Model, alternatives, explain, lower, microbatches, stages};

use crate::{Pass, PassContext, pass_options};

/// Name of the mesh of a module that has none.
const MESH: &str = "mesh";
/// Names of the meshes of stages begin so.
const STAGE: &str = "stage";
/// More stages or microbatches are a mistake: each is a copy of the ops.
const MOST_TURNS: usize = 4096;

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
        /// Bytes of memory a device, instead of the mesh's
        memory: f64 = 0.0,
        /// The difference of cost and bound, as a share of the cost, at which the search ends
        gap: f64 = 0.001,
        /// Cut the layers into so many stages, each on its own part of the mesh
        stages: i64 = 1,
        /// Cut a step into so many microbatches, which pass through the stages one after the other
        microbatches: i64 = 1,
    }
}

/// `infer-sbp`: how every value lies, from what some types say.
pub struct InferSbp;

impl Pass for InferSbp {
    const NAME: &'static str = "infer-sbp";
    const SUMMARY: &'static str = "how every tensor lies on the mesh, from what some types say";
    type Options = MeshOptions;

    fn run(options: &MeshOptions, module: &mut Module, _cx: &mut PassContext<'_>) -> Result<(), Diagnostics> {
        let mesh = MeshSpec::named(&given(&options.mesh)?)?;
        choose(module, &mesh, &mut |model| Ok(decide::propagate(model)))
    }
}

/// `shard`: the fastest way to run on a mesh.
pub struct Shard;

impl Pass for Shard {
    const NAME: &'static str = "shard";
    const SUMMARY: &'static str = "searches the fastest way to run on a mesh; what types say is kept";
    type Options = ShardOptions;

    fn run(options: &ShardOptions, module: &mut Module, cx: &mut PassContext<'_>) -> Result<(), Diagnostics> {
        let mut mesh = MeshSpec::named(&given(&options.mesh)?)?;
        let counts = |x: f64| x.is_finite() && x >= 0.0;
        if !counts(options.memory) || !counts(options.gap) {
            let what = "options 'memory' and 'gap' are numbers from 0 on";
            return Err(Diagnostic::error(Code::PIPELINE, Location::Unknown, what).into());
        }
        if options.memory > 0.0 {
            mesh.memory = options.memory;
        }
        let effort = Effort { gap: options.gap, ..Effort::default() };
        let mut lines = Vec::new();
        let positive = |n: i64, what: &str| {
            let n = usize::try_from(n).ok().filter(|n| (1..=MOST_TURNS).contains(n));
            n.ok_or_else(|| {
                let what = format!("option '{what}' is a number from 1 to {MOST_TURNS}");
                Diagnostic::error(Code::PIPELINE, Location::Unknown, what)
            })
        };
        let (count, turns) = (positive(options.stages, "stages")?, positive(options.microbatches, "microbatches")?);
        if count > 1 || turns > 1 {
            module.funcs.values().filter_map(forgot_backward).for_each(|d| cx.warn(d));
            let said = cut(module, &mesh, (count, turns), &effort)?;
            said.iter().for_each(|l| cx.emit(&format!("// shard: {l}\n")));
            return Ok(());
        }
        let mut bound = f64::INFINITY;
        crate::each_func(module, |f| {
            if let Some(settled) = alternatives::settle(f, &mesh, mesh.memory, &effort)? {
                bound = settled.bound;
            }
            Ok(())
        })?;
        choose(module, &mesh, &mut |model| {
            let mut d = decide::decide(model, model.mesh.memory, &effort)?;
            // No choice of the function as it was takes less.
            d.bound = d.bound.min(bound);
            lines.push(explain::summary(model, &d));
            Ok(d)
        })?;
        lines.iter().for_each(|l| cx.emit(&format!("// shard: {l}\n")));
        Ok(())
    }
}

/// `insert-boxing`: transfers as the collectives that bring them about.
pub struct InsertBoxing;

impl Pass for InsertBoxing {
    const NAME: &'static str = "insert-boxing";
    const SUMMARY: &'static str = "transfers between layouts become collectives";
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
        let d = Diagnostic::error(Code::PIPELINE, Location::Unknown, "option 'mesh' is needed");
        return Err(d.hint("e.g. mesh=cpu[2], mesh=dgx-h100[4x8] or the path of a file"));
    }
    Ok(mesh.into())
}

/// Decides for every function and writes the decision into its types.
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

/// Says that a step which makes new parameters has only forward ops as far as is known.
fn forgot_backward(func: &Func) -> Option<Diagnostic> {
    let carried: Vec<i64> = func.attrs.typed(CARRIED).unwrap_or_default();
    if carried.iter().all(|i| *i < 0) || !Phases::of(func).backward.is_empty() {
        return None;
    }
    let what = "this step carries values to the next, and no op is known to be backward: stages are cut as if all were forward";
    let hint =
        "locations say what 'differentiate' made: print with --print-locations, or differentiate in the same pipeline";
    Some(Diagnostic::warning(Code::PIPELINE, func.loc.clone(), what).hint(hint))
}

/// Cuts every function into stages and microbatches; what is said of each.
fn cut(
    module: &mut Module,
    mesh: &MeshSpec,
    (count, microbatches): (usize, usize),
    effort: &Effort,
) -> Result<Vec<String>, Diagnostics> {
    if let Some(second) = module.funcs.values().nth(1) {
        let what = format!("stages are cut in a module of one function, this one has {}", module.funcs.len());
        let d = Diagnostic::error(Code::SBP, second.loc.clone(), what);
        return Err(d.hint("keep the function that is to be cut, the others in a file of their own").into());
    }
    if let Some(mesh) = module.meshes.keys().next() {
        let what = format!("stages have meshes of their own, and the module has mesh @{mesh} already");
        let d = Diagnostic::error(Code::SBP, Location::Unknown, what);
        return Err(d.hint("cut before types say how something lies, or shard without stages").into());
    }
    let mut lines = Vec::new();
    let mut found = None;
    crate::each_func(module, |f| {
        let staged = stages::choose(f, mesh, count, microbatches, effort)?;
        let own = microbatches::Microbatches::of(f, microbatches)?;
        let names: Vec<String> = match count {
            1 => vec![MESH.into()],
            n => (0..n).map(|i| format!("{STAGE}{i}")).collect(),
        };
        microbatches::write(f, &staged, &own, &names)?;
        lines.push(explain::cut(&staged.pipeline));
        found = Some((staged.pipeline, names));
        Ok(())
    })?;
    if let Some((pipeline, names)) = found {
        for (index, name) in names.iter().enumerate() {
            let part = (count > 1).then_some(of_ir::MeshPart { axis: pipeline.axis, index, of: count });
            module.meshes.insert(name.clone(), of_ir::Mesh { part, ..pipeline.mesh.ir() });
        }
    }
    Ok(lines)
}

/// The module's mesh, which is the given one.
fn symbol(module: &mut Module, mesh: &MeshSpec) -> Result<String, Diagnostic> {
    let ir = mesh.ir();
    let wrong = |what: String| Err(Diagnostic::error(Code::SBP, Location::Unknown, what));
    match module.meshes.iter().next() {
        None => {
            module.meshes.insert(MESH.into(), ir);
            Ok(MESH.into())
        }
        Some(_) if module.meshes.len() > 1 => wrong("the module has several meshes".into()),
        Some((name, own)) if own.shape == ir.shape => Ok(name.clone()),
        Some((name, own)) => wrong(format!("mesh @{name} is {:?}, the given one is {:?}", own.shape, ir.shape)),
    }
}
