//! `infer-sbp`, `shard` and `insert-boxing`: how tensors lie on a mesh, by propagation, by search, and as ops.

use of_diag::{Code, Diagnostic, Diagnostics, Location};
use of_ir::Module;
use of_sharding::decide::{self, Decision};
use of_sharding::search::Effort;
use of_sharding::{MeshSpec, Model, explain, lower, ways};

use crate::{Pass, PassContext, pass_options};

/// Name of the mesh of a module that has none.
const MESH: &str = "mesh";

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
        if options.memory > 0.0 {
            mesh.memory = options.memory;
        }
        let effort = Effort { gap: options.gap, ..Effort::default() };
        let mut lines = Vec::new();
        let mut bound = f64::INFINITY;
        crate::each_func(module, |f| {
            if let Some(settled) = ways::settle(f, &mesh, mesh.memory, &effort)? {
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
        let mut steps = 0;
        crate::each_func(module, |f| {
            steps += lower::insert_boxing(f, &mesh)?;
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
