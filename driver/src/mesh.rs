//! Sharding over a mesh: from a module to the function of each rank, and to one plan of all ranks.

use of_codegen::place::Placement;
use of_codegen::{Compiled, MeshFuncs};
use of_diag::{Code, Diagnostics};
use of_ir::{Func, Graph, Module};
use of_ops::OpSpec;
use of_ops::boxing::ShardingConstraint;
use of_passes::sharding::{InsertBoxing, Shard, ShardOptions};
use of_passes::specialize::Bindings;
use of_passes::{CPU_PIPELINE, Manager, PIPELINE_FILE, SHARDING_AFTER_OPTIMIZE_PIPELINE, SHARDING_PIPELINE};
use of_passes::{Optimize, OptimizeOptions};
use of_sharding::{MeshSpec, Meshes, layout, spmd};

use crate::backends::Backends;
use crate::codegen_passes;
use crate::error::error;
use crate::generate::Generator;
use crate::observer::{Observer, checkpoint, report};
use crate::options::{CompileOptions, MeshOptions, Search};
use crate::prepare::{main_func, module_of};

/// Alternatives that `optimize` keeps for each value.
const ALTERNATIVES: usize = 3;

/// Adds the passes that generate alternatives for the sharding search, with the costs of the mesh's devices.
///
/// # Errors
/// When a pipeline of this crate does not parse, which is a bug.
pub fn add_alternatives(manager: &mut Manager, what: &[Search], mesh: &str) -> Result<(), Diagnostics> {
    for one in what {
        match one {
            Search::Rewrites => {
                let options =
                    OptimizeOptions { target: mesh.into(), alternatives: ALTERNATIVES, ..OptimizeOptions::default() };
                manager.add::<Optimize>(options).append(SHARDING_AFTER_OPTIMIZE_PIPELINE)?;
            }
            Search::Recompute => manager.append("recompute")?,
        }
    }
    Ok(())
}

/// The functions that the ranks of a mesh execute (SPMD: ranks with equal functions share one).
pub struct RankFuncs {
    /// The mesh of all ranks, with an axis for the pipeline stages where there are several.
    pub mesh: MeshSpec,
    /// The whole function with the layouts of all tensors, every transfer, and the meshes.
    pub module: Module,
    /// Functions of ranks, ready for code generation.
    pub funcs: Vec<Func>,
    /// For each rank, the index of its function.
    pub ranks: Vec<usize>,
    /// The placement of each function's ops on backends; empty where no backend was requested.
    pub placements: Vec<Placement>,
}

/// Which ranks are prepared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RankSelection {
    /// All ranks, so that the plan can run.
    All,
    /// One of the ranks whose parts have equal extents, for simulation and explanation: constants are that rank's.
    OnePerClass,
}

/// Searches the layouts of all tensors on a mesh, and derives the function of each rank, with its ops placed on backends.
///
/// Layouts in the types of the module are kept. Where results of ops have layouts, the passes that may replace ops do not
/// run.
///
/// # Errors
/// When the mesh is unknown, nothing fits, a pass fails, or a backend does not execute an op that is pinned to it.
pub fn prepare(
    module: &Module,
    bindings: &Bindings,
    mesh: &MeshOptions,
    options: &CompileOptions,
    selection: RankSelection,
    backends: &Backends,
    observer: &dyn Observer,
) -> Result<RankFuncs, Diagnostics> {
    let spec = MeshSpec::named(&mesh.mesh)?;
    let sharded = shard(module, bindings, mesh, options, observer)?;
    let whole = main_func(&sharded)?;
    let meshes = Meshes::of(&sharded, &spec)?;
    let (mut funcs, ranks) = rank_functions(&sharded, whole, &meshes, options, selection, observer)?;
    let mut placed: Vec<&mut Func> = funcs.iter_mut().collect();
    let placements = backends.place(&mut placed, options)?.unwrap_or_default();
    observer.placed(&placements, Some(&ranks));
    codegen_passes::run(&mut placed, &sharded, options, observer)?;
    Ok(RankFuncs { mesh: meshes.ranks(), module: sharded, funcs, ranks, placements })
}

/// The module with the layouts of all tensors, and every transfer.
fn shard(
    module: &Module,
    bindings: &Bindings,
    mesh: &MeshOptions,
    options: &CompileOptions,
    observer: &dyn Observer,
) -> Result<Module, Diagnostics> {
    let func = main_func(module)?;
    let mut sharded = module_of(func.clone(), module);
    let activity = observer.begin("sharding");
    let mut manager = Manager::default();
    manager.add::<of_passes::Specialize>(bindings.clone());
    if !results_have_layouts(&func.graph) {
        manager.append(SHARDING_PIPELINE)?;
        add_alternatives(&mut manager, &mesh.search, &mesh.mesh)?;
    } else if !mesh.search.is_empty() {
        let what = "the types of results fix the layouts already: --joint-search has nothing to choose";
        return Err(error(Code::SBP, what).hint("leave out --joint-search, or the layouts").into());
    }
    let (stages, microbatches) = mesh.stages.map_or((1, 1), |s| (s.stages, s.microbatches));
    let name = &mesh.mesh;
    manager.add::<Shard>(ShardOptions { mesh: name.clone(), stages, microbatches, ..ShardOptions::default() });
    manager.add::<InsertBoxing>(of_passes::sharding::MeshOptions { mesh: name.clone() });
    manager.checkpoint = checkpoint(&activity, &options.limits);
    let mut printed = Vec::new();
    let run = manager.run(&mut sharded, &mut |s| printed.push(s.to_string()))?;
    drop(activity);
    report(observer, &run.warnings);
    for line in printed {
        observer.note(line.trim_start_matches("// ").trim_end());
    }
    Ok(sharded)
}

/// The functions of the ranks, and for each rank the index of its function.
fn rank_functions(
    sharded: &Module,
    whole: &Func,
    meshes: &Meshes,
    options: &CompileOptions,
    selection: RankSelection,
    observer: &dyn Observer,
) -> Result<(Vec<Func>, Vec<usize>), Diagnostics> {
    let classes = spmd::rank_classes(whole, meshes);
    let shares = selection == RankSelection::OnePerClass || !splits_constants(&whole.graph);
    let text = options.pipeline.as_deref().unwrap_or(CPU_PIPELINE);
    observer.source(PIPELINE_FILE, text);
    let (mut funcs, mut ranks) = (Vec::new(), Vec::with_capacity(classes.len()));
    let activity = observer.begin("running passes");
    for (rank, class) in classes.iter().enumerate() {
        if shares && *class != rank {
            ranks.push(ranks[*class]);
            continue;
        }
        let mut part = module_of(spmd::rank_function(whole, meshes, rank)?, sharded);
        let mut manager = Manager::default();
        manager.append(text)?;
        manager.settings.reproducers.clone_from(&options.reproducers);
        manager.checkpoint = checkpoint(&activity, &options.limits);
        let run = manager.run(&mut part, &mut |s| observer.ir(s))?;
        if rank == 0 {
            report(observer, &run.warnings);
        }
        ranks.push(funcs.len());
        funcs.extend(part.funcs.swap_remove("main"));
    }
    Ok((funcs, ranks))
}

/// Compiles the functions of the ranks into one plan.
///
/// # Errors
/// When an op is not supported or a kernel cannot be compiled.
pub fn compile(funcs: &RankFuncs, generator: &Generator<'_>) -> Result<Compiled, Diagnostics> {
    let mesh = MeshFuncs {
        name: "main".into(),
        shape: funcs.mesh.shape(),
        whole: main_func(&funcs.module)?,
        module: &funcs.module,
        funcs: funcs.funcs.iter().collect(),
        ranks: funcs.ranks.clone(),
    };
    generator.with_options(|options| of_codegen::compile_mesh(&mesh, options))
}

/// Whether the types of results of ops have layouts. Results of `of.sharding_constraint` do not count: their layouts stay in any case.
fn results_have_layouts(g: &Graph) -> bool {
    let has_layout = |v: &of_ir::ValueId| g.ty(*v).as_tensor().is_some_and(|t| t.sbp.is_some());
    let ops = g.region_ops(g.entry()).filter(|op| g.op(*op).name() != ShardingConstraint::NAME);
    ops.into_iter().any(|op| g.op(op).results.iter().any(has_layout))
}

/// Whether ranks have different constants: a constant is split whose elements are not all equal.
fn splits_constants(g: &Graph) -> bool {
    let split = |v: &of_ir::ValueId| {
        let sbp = g.ty(*v).as_tensor().and_then(|t| t.sbp.as_ref());
        sbp.is_some_and(|s| layout::share(&s.axes, &vec![2; s.axes.len()]) < 1.0)
    };
    let uniform = |v: &of_ir::ValueId| {
        let value = g.constant(*v);
        let size = value.as_ref().and_then(|t| t.dtype().bits()).map_or(0, |bits| bits / 8);
        let bytes = value.as_ref().and_then(of_ir::Tensor::bytes);
        size > 0 && bytes.is_some_and(|b| b.chunks(size).all(|c| Some(c) == b.get(..size)))
    };
    let differ = |v: &of_ir::ValueId| split(v) && !uniform(v);
    g.region_ops(g.entry()).any(|op| g.op(op).def.traits().constant && g.op(op).results.iter().any(differ))
}
