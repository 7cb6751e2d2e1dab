//! Sharding over a mesh: from a module to the function of each rank, and to one plan of all ranks.

use std::collections::HashMap;

use of_codegen::place::Placement;
use of_codegen::{Compiled, MeshFuncs};
use of_diag::{Code, Diagnostics};
use of_ir::{Func, Graph, Module, NdSbp, Rewriter, Sbp, TensorType, Type, ValueId};
use of_ops::OpSpec;
use of_ops::boxing::ShardingConstraint;
use of_ops::training::{InitialValue, variables};
use of_passes::sharding::{InsertBoxing, Shard, ShardOptions};
use of_passes::specialize::{Bindings, scale_symbols};
use of_passes::{CPU_PIPELINE, Manager, PIPELINE_FILE, SHARDING_AFTER_OPTIMIZE_PIPELINE, SHARDING_PIPELINE};
use of_passes::{Optimize, OptimizeOptions};
use of_sharding::{MeshSpec, Meshes, layout, overlap, spmd};

use crate::backends::Backends;
use crate::codegen_passes;
use crate::error::{count, error};
use crate::generate::Generator;
use crate::name_patterns::matches;
use crate::observer::{Observer, checkpoint, report};
use crate::options::{CompileOptions, MeshOptions, Search};
use crate::prepare::{main_func, module_of, module_to_compile};

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

/// Writes layouts that were chosen by hand into the types of a function's inputs. Each is `NAME=LAYOUT`, such as
/// `image=S(0)` or `*.weight=B,S(1)`, with a component for each axis of the mesh; `*` in a name stands for any text.
///
/// # Errors
/// When a text is no layout of the mesh, or names no input.
pub fn fix_layouts(module: &mut Module, spec: &MeshSpec, layouts: &[String]) -> Result<(), Diagnostics> {
    if layouts.is_empty() {
        return Ok(());
    }
    let name = match module.meshes.iter().next() {
        Some((name, mesh)) if mesh.part.is_some() => {
            let what =
                format!("the model places values on parts of the mesh, such as @{name}: no layout of the whole fits");
            return Err(error(Code::SBP, what).hint("give layouts in the model, and leave out --layout").into());
        }
        Some((name, _)) => name.clone(),
        None => {
            module.meshes.insert(FIXED_MESH.into(), spec.ir());
            FIXED_MESH.to_string()
        }
    };
    let func = module.main_mut().ok_or_else(|| error(Code::NAME, "the module has no function"))?;
    let args: Vec<ValueId> = func.graph.args().to_vec();
    for text in layouts {
        let wrong = |what: String| Diagnostics::from(error(Code::INPUT, format!("layout '{text}' {what}")));
        let Some((pattern, axes)) = text.rsplit_once('=') else {
            return Err(wrong("is not NAME=LAYOUT, such as image=S(0)".into()));
        };
        let sbp = parse_layout(axes, &name).ok_or_else(|| {
            wrong("has no layout after '=': S(AXIS), B or P(sum) for each axis of the mesh, such as S(0),B".into())
        })?;
        if sbp.axes.len() != spec.shape().len() {
            let (given, axes) = (count(sbp.axes.len(), "component"), spec.shape().len());
            return Err(wrong(format!("has {given}, and the mesh needs {axes}: one for each axis")));
        }
        let mut found = false;
        for (input, v) in func.inputs.iter().zip(&args).filter(|(input, _)| matches(pattern, input)) {
            let Some(ty) = func.graph.ty(*v).as_tensor().cloned() else { continue };
            let rank = ty.shape.as_ref().map_or(0, |shape| shape.len());
            // Of inputs that a pattern names together, those without the axis stay free: biases, and numbers of steps.
            let fits = sbp.axes.iter().all(|s| !matches!(s, Sbp::Split(axis) if usize::from(*axis) >= rank));
            if !fits && !pattern.contains('*') {
                return Err(wrong(format!("splits an axis that '{input}' does not have: it is {}", Type::Tensor(ty))));
            }
            found = true;
            if fits {
                let ty = TensorType { sbp: Some(sbp.clone()), ..ty };
                Rewriter::new(&mut func.graph, "layout").set_type(*v, Type::Tensor(ty));
            }
        }
        if !found {
            let names: Vec<&str> = func.inputs.iter().take(8).map(String::as_str).collect();
            let more = if func.inputs.len() > names.len() { ", …" } else { "" };
            let hint = format!("its inputs and variables are {}{more}", names.join(", "));
            return Err(error(Code::NAME, format!("layout '{text}' names no input of the model")).hint(hint).into());
        }
    }
    Ok(())
}

/// Gives the variables of a function the layouts that they have in another module, on its meshes.
fn fix_variables(module: &mut Module, first: &Module) -> Result<(), Diagnostics> {
    let known = main_func(first)?;
    let layouts = variables(known)?.into_iter().map(|variable| {
        let ty = known.graph.ty(known.graph.args()[variable.input]);
        (known.inputs[variable.input].as_str(), ty.as_tensor().and_then(|t| t.sbp.clone()))
    });
    let layouts: HashMap<&str, Option<NdSbp>> = layouts.collect();
    module.meshes.clone_from(&first.meshes);
    let func = module.main_mut().ok_or_else(|| error(Code::NAME, "the module has no function"))?;
    for variable in variables(func)? {
        let value = func.graph.args()[variable.input];
        let Some(Some(sbp)) = layouts.get(func.inputs[variable.input].as_str()) else { continue };
        let Some(ty) = func.graph.ty(value).as_tensor().cloned() else { continue };
        let ty = TensorType { sbp: Some(sbp.clone()), ..ty };
        Rewriter::new(&mut func.graph, "layout").set_type(value, Type::Tensor(ty));
    }
    Ok(())
}

/// The name of the mesh of a module whose types name none.
const FIXED_MESH: &str = "mesh";

/// The layout `S(0),B` on a mesh.
fn parse_layout(axes: &str, mesh: &str) -> Option<NdSbp> {
    let ty = of_ir::text::parse_type(&format!("tensor<f32, #of.sbp<@{mesh}, [{axes}]>>")).ok()?;
    ty.as_tensor()?.sbp.clone()
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

impl RankFuncs {
    /// The entry point of this name.
    fn to_compile(&self, name: &str) -> Result<MeshFuncs<'_>, Diagnostics> {
        Ok(MeshFuncs {
            name: name.into(),
            shape: self.mesh.shape(),
            whole: main_func(&self.module)?,
            module: &self.module,
            funcs: self.funcs.iter().collect(),
            ranks: self.ranks.clone(),
            fused_bytes: self.mesh.latency_bytes() as u64,
        })
    }
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
    let sharded = shard(None, module, bindings, mesh, options, observer)?;
    rank_funcs(sharded, mesh, options, selection, backends, observer)
}

/// As [`prepare`], for an entry point of the plan of `first`: variables have the layouts that they have there, in the same stages.
///
/// # Errors
/// As [`prepare`].
pub fn prepare_next(
    first: &RankFuncs,
    module: &Module,
    bindings: &Bindings,
    mesh: &MeshOptions,
    options: &CompileOptions,
    backends: &Backends,
    observer: &dyn Observer,
) -> Result<RankFuncs, Diagnostics> {
    let sharded = shard(Some(first), module, bindings, mesh, options, observer)?;
    rank_funcs(sharded, mesh, options, RankSelection::All, backends, observer)
}

/// The functions of the ranks of a module whose layouts are chosen, with its ops placed on backends.
fn rank_funcs(
    mut sharded: Module,
    mesh: &MeshOptions,
    options: &CompileOptions,
    selection: RankSelection,
    backends: &Backends,
    observer: &dyn Observer,
) -> Result<RankFuncs, Diagnostics> {
    let spec = MeshSpec::named(&mesh.mesh)?;
    // Backends merge collectives that follow one another, and place them themselves.
    let native =
        options.target.cuda.is_none() && options.placement.backends.is_empty() && options.placement.pins.is_empty();
    let meshes = Meshes::of(&sharded, &spec)?;
    if let Some(func) = sharded.main_mut().filter(|_| native) {
        overlap::overlap_transfers(func, &meshes)?;
    }
    let whole = main_func(&sharded)?;
    let (mut funcs, ranks) = rank_functions(&sharded, whole, &meshes, options, selection, observer)?;
    let mut placed: Vec<&mut Func> = funcs.iter_mut().collect();
    let placements = backends.place(&mut placed, options)?.unwrap_or_default();
    observer.placed(&placements, Some(&ranks));
    codegen_passes::run(&mut placed, &sharded, options, observer)?;
    Ok(RankFuncs { mesh: meshes.ranks(), module: sharded, funcs, ranks, placements })
}

/// The module with the layouts of all tensors, and every transfer.
fn shard(
    first: Option<&RankFuncs>,
    module: &Module,
    bindings: &Bindings,
    mesh: &MeshOptions,
    options: &CompileOptions,
    observer: &dyn Observer,
) -> Result<Module, Diagnostics> {
    let func = main_func(module)?;
    let mut sharded = module_to_compile(func.clone(), module, options);
    match first {
        None => fix_layouts(&mut sharded, &MeshSpec::named(&mesh.mesh)?, &mesh.layouts)?,
        Some(first) => fix_variables(&mut sharded, &first.module)?,
    }
    if let Some(func) = sharded.main_mut() {
        constrain_constants(func)?;
    }
    let devices = MeshSpec::named(&mesh.mesh)?.devices();
    if mesh.stages.is_none() && devices > 1 {
        let symbols = split_symbols(main_func(&sharded)?, bindings);
        if let Some(func) = sharded.main_mut().filter(|_| !symbols.is_empty()) {
            scale_symbols(func, &symbols, devices as i64)?;
            let multiples: Vec<String> = symbols.iter().map(|s| format!("{devices}*{s}")).collect();
            observer.note(&format!("open extents that may be split are multiples: {}", multiples.join(", ")));
        }
    }
    let activity = observer.begin("sharding");
    let mut manager = Manager::default();
    manager.add::<of_passes::Specialize>(bindings.clone());
    if !results_have_layouts(&main_func(&sharded)?.graph) {
        manager.append(SHARDING_PIPELINE)?;
        add_alternatives(&mut manager, &mesh.search, &mesh.mesh)?;
    } else if !mesh.search.is_empty() {
        let what = "the types of results fix the layouts already: --joint-search has nothing to choose";
        return Err(error(Code::SBP, what).hint("leave out --joint-search, or the layouts").into());
    } else {
        manager.append("differentiate")?;
    }
    let (stages, microbatches) = mesh.stages.map_or((1, 1), |s| (s.stages, s.microbatches));
    let name = &mesh.mesh;
    // Where recomputation may lower the memory, the budget is a condition of the search; 0 is the memory of the mesh's devices.
    let recomputes = mesh.search.contains(&Search::Recompute);
    let memory = options.memory.filter(|_| recomputes).map_or(0.0, |bytes| bytes as f64);
    let shard = ShardOptions { mesh: name.clone(), memory, stages, microbatches, ..ShardOptions::default() };
    manager.add::<Shard>(shard);
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

/// The symbols that may be split into equal parts: those of the first axis of an input, and of axes that an input's layout splits.
fn split_symbols(func: &Func, bindings: &Bindings) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    for t in func.graph.args().iter().filter_map(|v| func.graph.ty(*v).as_tensor()) {
        let splits = |axis: usize| {
            let is_it = |s: &Sbp| matches!(s, Sbp::Split(d) if usize::from(*d) == axis);
            t.sbp.as_ref().map_or(axis == 0, |sbp| sbp.axes.iter().any(is_it))
        };
        let dims = t.shape.iter().flatten().enumerate().filter(|(axis, _)| splits(*axis));
        out.extend(dims.filter(|(_, d)| !d.is_unknown()).filter_map(|(_, d)| Some(d.as_symbol()?.to_string())));
    }
    out.retain(|symbol| !bindings.contains_key(symbol));
    out.sort();
    out.dedup();
    out
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
    let shares = selection == RankSelection::OnePerClass || !splits_constants(whole)?;
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
    compile_entry_points(&[("main", funcs)], generator)
}

/// As [`compile`], for several entry points, each with its name, of which the first fixed the layouts of variables.
///
/// # Errors
/// As [`compile`].
pub fn compile_entry_points(
    entry_points: &[(&str, &RankFuncs)],
    generator: &Generator<'_>,
) -> Result<Compiled, Diagnostics> {
    let meshes = entry_points.iter().map(|(name, funcs)| funcs.to_compile(name)).collect::<Result<Vec<_>, _>>()?;
    generator.with_options(|options| of_codegen::compile_meshes(&meshes, options))
}

/// Makes the layout in the type of a constant that of an `of.sharding_constraint`, which passes keep.
fn constrain_constants(func: &mut Func) -> Result<(), Diagnostics> {
    let mut rw = Rewriter::new(&mut func.graph, "layout");
    let ops: Vec<of_ir::OpId> = rw.graph().region_ops(rw.graph().entry()).collect();
    for (op, next) in ops.iter().copied().zip(ops.iter().skip(1)) {
        let data = rw.graph().op(op);
        let [constant] = data.results.as_slice() else { continue };
        let (constant, is_constant) = (*constant, data.def.traits().constant);
        let Some(t) = rw.graph().ty(constant).as_tensor().filter(|_| is_constant).cloned() else { continue };
        let Some(sharding) = t.sbp.clone() else { continue };
        if rw.graph().uses(constant).is_empty() {
            rw.erase(op);
            continue;
        }
        let (uses, loc) = (rw.graph().uses(constant).to_vec(), rw.graph().op(op).loc.clone());
        rw.set_location(loc);
        rw.set_type(constant, Type::Tensor(TensorType { sbp: None, ..t }));
        rw.before(*next);
        let placed = rw.create_one(ShardingConstraint { sharding }, &[constant])?;
        for u in uses {
            rw.set_operand(u.op, u.operand as usize, placed);
        }
    }
    Ok(())
}

/// Whether the types of results of ops have layouts. Results of `of.sharding_constraint` do not count: their layouts stay in any case.
fn results_have_layouts(g: &Graph) -> bool {
    let has_layout = |v: &of_ir::ValueId| g.ty(*v).as_tensor().is_some_and(|t| t.sbp.is_some());
    let ops = g.region_ops(g.entry()).filter(|op| g.op(*op).name() != ShardingConstraint::NAME);
    ops.into_iter().any(|op| g.op(op).results.iter().any(has_layout))
}

/// Whether ranks have different constants or initial values of variables: one is split whose elements are not all equal.
fn splits_constants(func: &Func) -> Result<bool, Diagnostics> {
    let g = &func.graph;
    let split = |v: ValueId| {
        let sbp = g.ty(v).as_tensor().and_then(|t| t.sbp.as_ref());
        sbp.is_some_and(|s| layout::share(&s.axes, &vec![2; s.axes.len()]) < 1.0)
    };
    let uniform = |value: Option<&of_ir::Tensor>| {
        let size = value.and_then(|t| t.dtype().bits()).map_or(0, |bits| bits / 8);
        let bytes = value.and_then(of_ir::Tensor::bytes);
        size > 0 && bytes.is_some_and(|b| b.chunks(size).all(|c| Some(c) == b.get(..size)))
    };
    let differ = |v: &ValueId| split(*v) && !uniform(g.constant(*v).as_ref());
    let constants = g.region_ops(g.entry()).filter(|op| g.op(*op).def.traits().constant);
    if constants.into_iter().any(|op| g.op(op).results.iter().any(differ)) {
        return Ok(true);
    }
    let variables = variables(func)?;
    Ok(variables.iter().any(|variable| match &variable.initial {
        Some(InitialValue::Tensor(value)) => split(g.args()[variable.input]) && !uniform(Some(value)),
        _ => false,
    }))
}
