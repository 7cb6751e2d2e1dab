//! From a module to what each rank of a mesh runs, and to a plan of all of them.

use of_codegen::kernel::schedule;
use of_codegen::place::Placement;
use of_codegen::{Compiled, MeshFuncs};
use of_diag::{Code, Diagnostics};
use of_ir::{Func, Graph, Module};
use of_ops::OpSpec;
use of_ops::boxing::Place;
use of_passes::sharding::{InsertBoxing, MeshOptions, Shard, ShardOptions};
use of_passes::specialize::Bindings;
use of_passes::{Manager, PIPELINE_FILE};
use of_passes::{Optimize, OptimizeOptions};
use of_sharding::{MeshSpec, Meshes, layout, spmd};

use crate::backends::{self, Backends};
use crate::cli::{Codegen, Search};
use crate::console::Console;
use crate::model::Source;
use crate::{driver, exit};

/// The passes that bring a model into the form that is sharded: updates of parameters stay whole.
pub const PIPELINE: &str = "differentiate,fold-constants,infer-shapes,canonicalize,\
    expand-composites{keep=[of.alternatives, of.adam, of.adagrad, of.momentum]},fold-constants,canonicalize,cse,dce";
/// What `optimize` recognises is no composite any more when layouts are searched.
const REWRITTEN: &str =
    "expand-composites{keep=[of.alternatives, of.adam, of.adagrad, of.momentum]},fold-constants,dce";
/// Ways that are left for each value.
const ALTERNATIVES: usize = 3;

/// Adds the passes that offer what is chosen together with layouts, by the costs of the devices of the mesh.
///
/// # Errors
/// None in practice: the passes exist.
pub fn offer(manager: &mut Manager, what: &[Search], mesh: &str) -> Result<(), Diagnostics> {
    for one in what {
        match one {
            Search::Rewrites => {
                let options =
                    OptimizeOptions { target: mesh.into(), alternatives: ALTERNATIVES, ..OptimizeOptions::default() };
                manager.add::<Optimize>(options).append(REWRITTEN)?;
            }
            Search::Recompute => manager.append("recompute")?,
        }
    }
    Ok(())
}

/// What the ranks of a mesh run.
pub struct Ranked {
    /// The mesh of all ranks, with an axis for the stages where there are some.
    pub mesh: MeshSpec,
    /// The function as all see it, with how everything lies, every transfer, and the meshes.
    pub module: Module,
    /// Functions of ranks, ready for code generation.
    pub funcs: Vec<Func>,
    /// For each rank, its function.
    pub ranks: Vec<usize>,
    /// What was placed on backends in each function, where that was asked for.
    pub placements: Vec<Placement>,
}

/// Which ranks are prepared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    /// All, to run them.
    All,
    /// One of those whose parts have the same extents, to say what they do: constants are that rank's.
    OneOfEach,
}

/// Searches how everything lies on a mesh, and what each rank does then, with its ops placed on backends.
///
/// What the types of the module say is kept. Where they speak of results of ops, the graph is taken as it stands, as
/// passes may put other ops in their place.
///
/// # Errors
/// When the mesh is none, nothing fits, a pass fails, or a backend does not run what is given to it by hand.
pub fn prepare(
    module: &Module,
    bindings: &Bindings,
    codegen: &Codegen,
    mesh: &str,
    which: Which,
    backends: &Backends,
    console: &mut Console,
) -> Result<Ranked, Diagnostics> {
    let spec = MeshSpec::named(mesh)?;
    let func = driver::main_func(module)?;
    let mut own = Module { name: module.name.clone(), meshes: module.meshes.clone(), ..Module::default() };
    own.funcs.insert("main".into(), func.clone());
    let progress = console.progress("sharding");
    let mut manager = Manager::default();
    manager.add::<of_passes::Specialize>(bindings.clone());
    if !says_of_results(&func.graph) {
        manager.append(PIPELINE)?;
        offer(&mut manager, &codegen.search, mesh)?;
    } else if !codegen.search.is_empty() {
        let what = "types of results say already how they lie: there is nothing for --search to choose with them";
        return Err(exit::error(Code::SBP, what).hint("leave --search out, or the layouts").into());
    }
    let (stages, microbatches) = codegen.stages.map_or((1, 1), |s| (s.stages, s.microbatches));
    manager.add::<Shard>(ShardOptions { mesh: mesh.into(), stages, microbatches, ..ShardOptions::default() });
    manager.add::<InsertBoxing>(MeshOptions { mesh: mesh.into() });
    let mut said = Vec::new();
    let report = manager.run(&mut own, &mut |s| said.push(s.to_string()))?;
    drop(progress);
    console.report(&report.warnings);
    for line in said {
        console.note(line.trim_start_matches("// ").trim_end());
    }
    let whole = driver::main_func(&own)?;
    let meshes = Meshes::of(&own, &spec)?;
    let classes = spmd::rank_classes(whole, &meshes);
    let alike = which == Which::OneOfEach || !splits_constants(&whole.graph);
    let text = codegen.passes.as_deref().unwrap_or(driver::CPU_PIPELINE);
    console.renderer.sources.add(PIPELINE_FILE, text);
    let (mut funcs, mut ranks) = (Vec::new(), Vec::with_capacity(classes.len()));
    let progress = console.progress("running passes");
    for (rank, class) in classes.iter().enumerate() {
        if alike && *class != rank {
            ranks.push(ranks[*class]);
            continue;
        }
        let mut part = Module { name: module.name.clone(), meshes: own.meshes.clone(), ..Module::default() };
        part.funcs.insert("main".into(), spmd::rank_function(whole, &meshes, rank)?);
        let mut manager = Manager::default();
        manager.append(text)?;
        manager.settings.reproducers = Some(std::env::temp_dir());
        let report = manager.run(&mut part, &mut |s| eprint!("{s}"))?;
        if rank == 0 {
            console.report(&report.warnings);
        }
        ranks.push(funcs.len());
        funcs.extend(part.funcs.swap_remove("main"));
    }
    drop(progress);
    let mut placed: Vec<&mut Func> = funcs.iter_mut().collect();
    let placements = backends.place(&mut placed, codegen)?.unwrap_or_default();
    let ranked = Ranked { mesh: meshes.ranks(), module: own, funcs, ranks, placements };
    ranked.placed(console.verbose > 0).iter().for_each(|line| console.note(line));
    Ok(ranked)
}

impl Ranked {
    /// What was placed on backends, once for ranks of which the same is said; with `all`, why not more.
    pub fn placed(&self, all: bool) -> Vec<String> {
        let mut alike: Vec<(Vec<String>, Vec<usize>)> = Vec::new();
        let placed = self.ranks.iter().enumerate().filter_map(|(rank, func)| Some((rank, self.placements.get(*func)?)));
        for (rank, placement) in placed {
            let lines = backends::lines(placement, all);
            match alike.iter_mut().find(|(said, _)| *said == lines) {
                Some((_, ranks)) => ranks.push(rank),
                None => alike.push((lines, vec![rank])),
            }
        }
        let said = |(lines, ranks): (Vec<String>, Vec<usize>)| {
            let names: Vec<String> = ranks.iter().map(usize::to_string).collect();
            let word = if ranks.len() == 1 { "rank" } else { "ranks" };
            std::iter::once(format!("{word} {}:", names.join(", "))).chain(lines)
        };
        alike.into_iter().flat_map(said).collect()
    }
}

/// Compiles what the ranks run into one plan.
///
/// # Errors
/// When an op is not supported or a kernel cannot be compiled.
pub fn compile(
    ranked: &Ranked,
    source: &Source,
    codegen: &Codegen,
    backends: &Backends,
    flags: Vec<String>,
    console: &Console,
) -> Result<Compiled, Diagnostics> {
    let mesh = MeshFuncs {
        name: "main".into(),
        shape: ranked.mesh.shape(),
        whole: driver::main_func(&ranked.module)?,
        module: &ranked.module,
        funcs: ranked.funcs.iter().collect(),
        ranks: ranked.ranks.clone(),
    };
    driver::with_options(source, codegen, backends, flags, &schedule::NONE, console, |options| {
        of_codegen::compile_mesh(&mesh, options)
    })
}

/// Whether the types of results of ops say how they lie; what `of.place` makes stays as it is in any case.
fn says_of_results(g: &Graph) -> bool {
    let says = |v: &of_ir::ValueId| g.ty(*v).as_tensor().is_some_and(|t| t.sbp.is_some());
    let ops = g.region_ops(g.entry()).filter(|op| g.op(*op).name() != Place::NAME);
    ops.into_iter().any(|op| g.op(op).results.iter().any(says))
}

/// Whether ranks have other constants than one another: where one is split whose elements are not all the same.
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
