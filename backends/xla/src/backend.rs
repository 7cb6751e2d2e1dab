//! The backend's two parts: text at compile time, the plugin at run time.

use std::collections::HashMap;
use std::sync::Arc;

use of_codegen::physical::element_type;
use of_codegen::{Backend, extract, specialize};
use of_diag::{Code, Diagnostic};
use of_ir::{DType, Func, Graph, OpId};
use of_plan::{ArgSource, BackendTransfer, ElementType, Group, Transfer};
use of_runtime::{
    ExecError, Executable, LoadContext, LoadError, Loader, RankContext, Tensor, Value, ValueMut, ValueRef,
};

use crate::clique::Clique;
use crate::emit::{self, Module};
use crate::ffi::{self, Buffer, Client, LoadedExecutable, PluginError};
use crate::payload::{self, Compiled, Payload};
use crate::plugin;

/// Name in plans and on the command line.
pub const NAME: &str = "xla";
/// The same, with compiled programs in plans.
pub const NAME_SERIALIZED: &str = "xla+serialized";

/// XLA through a PJRT plugin. It compiles plans without one; running them needs the plugin.
#[derive(Clone, Copy, Default, Debug)]
pub struct Xla;

/// The same, whose plans hold what the plugin makes of the text: it is not compiled again where the plan is loaded, which
/// must be the same build of the plugin on a machine with the same instruction set.
#[derive(Clone, Copy, Default, Debug)]
pub struct Serialized;

impl Backend for Serialized {
    fn name(&self) -> &'static str {
        NAME_SERIALIZED
    }

    fn claims(&self, graph: &Graph, op: OpId) -> Result<(), String> {
        if !specialize::is_fixed(&extract::extract(graph, &[op]).func) {
            return Err("its extents are symbolic, and serialized programs have fixed shapes".into());
        }
        Xla.claims(graph, op)
    }

    fn compile(&self, func: &Func) -> Result<Vec<u8>, Diagnostic> {
        let failed =
            |why: String| Diagnostic::error(Code::CODEGEN, func.loc.clone(), format!("{NAME_SERIALIZED}: {why}"));
        let module = emit::module(func).map_err(failed)?;
        let by = plugin::build().map_err(|e| failed(e.to_string()))?;
        let client = plugin::client().map_err(|e| failed(e.to_string()))?;
        let program =
            LoadedExecutable::compile(&client, &module.text, &[]).and_then(|p| p.serialize()).map_err(|e| {
                failed(e.to_string())
                    .hint("plans of --backend xla hold text, which any plugin compiles where they are loaded")
            })?;
        let Module { results, checked, .. } = module;
        Ok(Payload::Compiled(Compiled { by, results, checked, program }).write())
    }

    fn exchanges(&self, _rendezvous: &BackendTransfer, _mesh: &[usize]) -> Result<(), String> {
        Err(format!("serialized programs are for one device; {NAME} compiles for all ranks where the plan is loaded"))
    }

    fn remedy(&self, graph: &Graph, op: OpId) -> Option<String> {
        Xla.remedy(graph, op)
    }

    fn overhead(&self) -> of_codegen::Overhead {
        Xla.overhead()
    }
}

impl Loader for Serialized {
    fn backend(&self) -> &str {
        NAME_SERIALIZED
    }

    fn load(&self, payload: &[u8], context: LoadContext<'_>) -> Result<Box<dyn Executable>, LoadError> {
        Xla.load(payload, context)
    }
}

impl Backend for Xla {
    fn name(&self) -> &'static str {
        NAME
    }

    /// An op is claimed if it can be printed.
    fn claims(&self, graph: &Graph, op: OpId) -> Result<(), String> {
        if graph.op(op).def.traits().effect {
            return Err("it has side effects, which XLA may eliminate".into());
        }
        let func = extract::extract(graph, &[op]).func;
        if specialize::is_fixed(&func) {
            return emit::module(&func).map(drop);
        }
        match specialize::unbound_symbols(&func)[..] {
            [] => emit::module(&specialize::with_sample_extents(&func)).map(drop),
            _ => Err("its result shape is data-dependent: XLA compiles for fixed shapes".into()),
        }
    }

    fn compile(&self, func: &Func) -> Result<Vec<u8>, Diagnostic> {
        let failed = |why: String| Diagnostic::error(Code::CODEGEN, func.loc.clone(), format!("xla: {why}"));
        if let Some(s) = specialize::unbound_symbols(func).first() {
            return Err(failed(format!("no input of the subgraph has the extent '{s}'"))
                .hint("give it a number with --shape, or more to another backend with --pin"));
        }
        payload::payload(func).map(|p| p.write()).map_err(failed)
    }

    /// Collectives are between replicas of one program, each of which is a rank.
    fn exchanges(&self, rendezvous: &BackendTransfer, mesh: &[usize]) -> Result<(), String> {
        if buffer_type(rendezvous.dtype()).is_none() {
            return Err(format!("XLA takes no {}", rendezvous.dtype()));
        }
        emit::exchanges(rendezvous, mesh)
    }

    fn spmd(&self) -> bool {
        true
    }

    fn remedy(&self, graph: &Graph, op: OpId) -> Option<String> {
        let data = graph.op(op);
        let open = data.operands.iter().chain(&data.results).filter_map(|v| graph.ty(*v).as_tensor());
        let mut symbols = open.filter_map(|t| t.shape.as_ref()).flatten().flat_map(|d| d.symbols());
        let bound = |s: &std::sync::Arc<str>| graph.args().iter().any(|v| names(graph, *v, s));
        let name = symbols.find(bound)?;
        Some(format!("--shape {name}=NUMBER gives its extent"))
    }

    /// The cost of a plugin call, and of copies to and from its memory.
    fn overhead(&self) -> of_codegen::Overhead {
        of_codegen::Overhead { launch: 2e-5, bandwidth: 1e10 }
    }
}

/// Whether an extent of a value determines a symbol.
fn names(graph: &Graph, v: of_ir::ValueId, symbol: &str) -> bool {
    let shape = graph.ty(v).as_tensor().and_then(|t| t.shape.as_ref());
    shape.is_some_and(|s| s.iter().any(|d| d.determines(&|_| false).is_some_and(|own| *own == *symbol)))
}

impl Loader for Xla {
    fn backend(&self) -> &str {
        NAME
    }

    fn load(&self, payload: &[u8], context: LoadContext<'_>) -> Result<Box<dyn Executable>, LoadError> {
        let payload = Payload::read(payload).map_err(LoadError::Payload)?;
        let ranks = context.rank_context.map_or(1, |rank_context| rank_context.mesh.iter().product());
        let client = plugin::client_for(ranks).map_err(|e| LoadError::Unsupported(e.to_string()))?;
        let weights = context.exec.inputs.iter().map(|a| matches!(a.source, Some(ArgSource::Weight(_))));
        let mut subgraph = Subgraph {
            client,
            device: context.device,
            weights: weights.map(|w| (w, None)).collect(),
            programs: HashMap::new(),
            open: None,
        };
        match payload {
            Payload::Fixed(module) => {
                let program = match module.mesh[..] {
                    [] => subgraph.program(&module).map_err(|e| LoadError::Failed(e.to_string())),
                    _ => subgraph.shared(&module, &context),
                };
                subgraph.programs.insert(Vec::new(), program?);
            }
            Payload::Open(func) => subgraph.open = Some(func),
            Payload::Compiled(c) => {
                let here = plugin::build().map_err(|e| LoadError::Unsupported(e.to_string()))?;
                if c.by != here {
                    return Err(LoadError::Unsupported(format!(
                        "its program was compiled by {} and this is {here}; compile the model here, or with --backend \
                         {NAME}, whose plans are the same everywhere",
                        c.by
                    )));
                }
                let loaded = LoadedExecutable::deserialize(&subgraph.client, &c.program)
                    .map_err(|e| LoadError::Failed(e.to_string()))?;
                subgraph.programs.insert(Vec::new(), Program::of(On::One(loaded), &c.results, c.checked));
            }
        }
        Ok(Box::new(subgraph))
    }
}

/// A compiled module.
struct Program {
    on: On,
    results: Vec<(ElementType, Vec<i64>)>,
    checked: bool,
}

/// The ranks that run a program.
enum On {
    /// The rank alone.
    One(LoadedExecutable),
    /// A group of ranks: this rank's number in it, and its rank context.
    Many(Arc<Clique>, usize, RankContext),
}

impl Program {
    fn of(on: On, results: &[(DType, Vec<usize>)], checked: bool) -> Program {
        let extents = |dims: &[usize]| dims.iter().map(|d| *d as i64).collect();
        let results = results.iter().map(|(dtype, dims)| (element_type(*dtype), extents(dims))).collect();
        Program { on, results, checked }
    }
}

/// A subgraph of a plan.
struct Subgraph {
    client: Arc<Client>,
    /// That of the rank.
    device: usize,
    /// Which inputs are constants of the plan; they are uploaded once.
    weights: Vec<(bool, Option<Arc<Buffer>>)>,
    /// Programs by the extents of the inputs; for fixed extents the key is empty.
    programs: HashMap<Vec<Vec<i64>>, Program>,
    /// The function, if its extents are symbolic.
    open: Option<Box<Func>>,
}

fn failed(e: PluginError) -> ExecError {
    ExecError::Failed(e.to_string())
}

impl Subgraph {
    fn program(&self, module: &Module) -> Result<Program, PluginError> {
        let loaded = plugin::program(&self.client, &module.text, &[])?;
        Ok(Program::of(On::One(loaded), &module.results, module.checked))
    }

    /// The program that this rank runs together with others, each of which has a device of its own.
    fn shared(&mut self, module: &Module, context: &LoadContext<'_>) -> Result<Program, LoadError> {
        let rank_context = context.rank_context.ok_or_else(|| {
            LoadError::Payload("the program runs on several ranks, and there is no rank context".into())
        })?;
        let group =
            group(&module.mesh, rank_context).ok_or_else(|| LoadError::Payload("it is for another mesh".into()))?;
        let (count, all) = (group.ranks.len(), self.client.devices());
        if count > all {
            let why = format!("the program needs {count} devices, one for each rank, and the plugin has {all}");
            return Err(LoadError::Unsupported(why));
        }
        let mut devices: Vec<usize> = group.ranks.iter().map(|rank| *rank as usize % all).collect();
        if (1..count).any(|i| devices[..i].contains(&devices[i])) {
            devices = (0..count).collect();
        }
        let id = context.exec.rendezvous.first().map(|m| m.transfer.id);
        let id = id.ok_or_else(|| LoadError::Payload("it has no transfer".into()))?;
        let key = blake3::hash(module.text.as_bytes());
        let compile =
            || plugin::program(&self.client, &module.text, &devices).map_err(|e| LoadError::Failed(e.to_string()));
        let clique = Clique::join(rank_context, &group, id, key.as_bytes(), (&self.client, &devices), compile)?;
        (self.client, self.device) = (Arc::clone(&clique.client), clique.devices[group.me]);
        Ok(Program::of(On::Many(clique, group.me, rank_context.clone()), &module.results, module.checked))
    }

    /// The key of the program for these inputs, which is there afterwards.
    fn prepare(&mut self, inputs: &[(ElementType, &[i64], &[u8])]) -> Result<Vec<Vec<i64>>, ExecError> {
        let Some(func) = &self.open else { return Ok(Vec::new()) };
        let key: Vec<Vec<i64>> = inputs.iter().map(|(_, d, _)| d.to_vec()).collect();
        if !self.programs.contains_key(&key) {
            let dims: Vec<Option<&[i64]>> = inputs.iter().map(|(_, d, _)| Some(*d)).collect();
            let func = specialize::specialize(func, &dims).map_err(ExecError::Input)?;
            let module = emit::module(&func).map_err(ExecError::Unsupported)?;
            let program = self.program(&module).map_err(failed)?;
            self.programs.insert(key.clone(), program);
        }
        Ok(key)
    }
}

impl Executable for Subgraph {
    fn run(&mut self, inputs: &[ValueRef<'_>], outputs: &mut [ValueMut<'_>]) -> Result<(), ExecError> {
        let inputs = inputs.iter().map(seen).collect::<Result<Vec<_>, _>>()?;
        let key = self.prepare(&inputs)?;
        let mut args: Vec<Arc<Buffer>> = Vec::with_capacity(inputs.len());
        for (i, (dtype, dims, bytes)) in inputs.iter().enumerate() {
            if let Some((_, Some(there))) = self.weights.get(i) {
                args.push(there.clone());
                continue;
            }
            let ty = buffer_type(*dtype).ok_or_else(|| ExecError::Unsupported(format!("XLA takes no {dtype}")))?;
            let buffer = Arc::new(Buffer::from_host(&self.client, self.device, bytes, ty, dims).map_err(failed)?);
            if let Some((true, place)) = self.weights.get_mut(i) {
                *place = Some(buffer.clone());
            }
            args.push(buffer);
        }
        let program = self.programs.get(&key).ok_or(ExecError::Failed("the program is missing".into()))?;
        let kept =
            self.weights.iter().enumerate().filter(|(_, w)| w.1.is_some()).map(|(i, _)| i as i64).collect::<Vec<_>>();
        let results = match &program.on {
            On::One(loaded) => {
                let args: Vec<&Buffer> = args.iter().map(AsRef::as_ref).collect();
                loaded.execute(self.device, &args, &kept).map_err(failed)?
            }
            On::Many(clique, me, rank_context) => clique.execute(rank_context, *me, args, kept)?,
        };
        let expected = program.results.len() + usize::from(program.checked);
        if program.results.len() != outputs.len() || results.len() != expected {
            return Err(ExecError::Failed(format!("{} results for {} outputs", results.len(), outputs.len())));
        }
        if program.checked {
            let mut held = [0u8];
            results[outputs.len()].read(&mut held).map_err(failed)?;
            if held[0] == 0 {
                return Err(ExecError::Input("an index is out of range".into()));
            }
        }
        for (i, (result, output)) in results.iter().zip(outputs).enumerate() {
            match output {
                ValueMut::Dense(t) => result.read(t.bytes).map_err(failed)?,
                ValueMut::Object(slot) => {
                    let (dtype, dims) = program.results[i].clone();
                    let mut t = Tensor::zeros(dtype, dims).map_err(|e| ExecError::Failed(e.to_string()))?;
                    if let Some(bytes) = t.bytes_mut() {
                        result.read(bytes).map_err(failed)?;
                    }
                    **slot = Some(Value::Tensor(t));
                }
            }
        }
        Ok(())
    }
}

/// The ranks that run a program together with this one. The program is for a mesh of ranks along some axes of the plan's
/// mesh.
fn group(mesh: &[usize], rank_context: &RankContext) -> Option<Group> {
    let whole = rank_context.mesh.iter().zip(mesh).all(|(all, n)| *n == 1 || n == all);
    let axes = mesh.iter().enumerate().filter(|(_, n)| **n > 1).map(|(a, _)| a as u32).collect();
    (whole && mesh.len() <= rank_context.mesh.len())
        .then(|| Transfer { axes, ..Transfer::default() }.group(&rank_context.mesh, rank_context.rank))
}

/// Type, extents and bytes of an input.
fn seen<'a>(input: &'a ValueRef<'_>) -> Result<(ElementType, &'a [i64], &'a [u8]), ExecError> {
    match input {
        ValueRef::Dense(t) => Ok((t.dtype, t.dims, t.bytes)),
        ValueRef::Object(v) => {
            let tensor = v.as_tensor().and_then(|t| Some((t.dtype(), t.dims(), t.bytes()?)));
            tensor.ok_or_else(|| ExecError::Unsupported("XLA supports numeric tensors only".into()))
        }
    }
}

/// The number of an element type in PJRT.
fn buffer_type(dtype: ElementType) -> Option<ffi::PJRT_Buffer_Type> {
    Some(match dtype {
        ElementType::I1 => ffi::PJRT_Buffer_Type_PJRT_Buffer_Type_PRED,
        ElementType::I8 => ffi::PJRT_Buffer_Type_PJRT_Buffer_Type_S8,
        ElementType::I16 => ffi::PJRT_Buffer_Type_PJRT_Buffer_Type_S16,
        ElementType::I32 => ffi::PJRT_Buffer_Type_PJRT_Buffer_Type_S32,
        ElementType::I64 => ffi::PJRT_Buffer_Type_PJRT_Buffer_Type_S64,
        ElementType::Ui8 => ffi::PJRT_Buffer_Type_PJRT_Buffer_Type_U8,
        ElementType::Ui16 => ffi::PJRT_Buffer_Type_PJRT_Buffer_Type_U16,
        ElementType::Ui32 => ffi::PJRT_Buffer_Type_PJRT_Buffer_Type_U32,
        ElementType::Ui64 => ffi::PJRT_Buffer_Type_PJRT_Buffer_Type_U64,
        ElementType::F16 => ffi::PJRT_Buffer_Type_PJRT_Buffer_Type_F16,
        ElementType::F32 => ffi::PJRT_Buffer_Type_PJRT_Buffer_Type_F32,
        ElementType::F64 => ffi::PJRT_Buffer_Type_PJRT_Buffer_Type_F64,
        ElementType::Bf16 => ffi::PJRT_Buffer_Type_PJRT_Buffer_Type_BF16,
        _ => return None,
    })
}

/// A compiled module that runs on tensors, for tests.
pub struct Evaluator<'m> {
    client: Arc<Client>,
    module: &'m Module,
    program: LoadedExecutable,
}

impl<'m> Evaluator<'m> {
    /// Compiles a module.
    ///
    /// # Errors
    /// The plugin's error.
    pub fn new(client: &Arc<Client>, module: &'m Module) -> Result<Evaluator<'m>, String> {
        let program = LoadedExecutable::compile(client, &module.text, &[]).map_err(|e| e.to_string())?;
        Ok(Evaluator { client: client.clone(), module, program })
    }

    /// The results on the device of this number.
    ///
    /// # Errors
    /// The plugin's error, or that an index is out of range.
    pub fn run(&self, device: usize, inputs: &[&of_ir::Tensor]) -> Result<Vec<of_ir::Tensor>, String> {
        let text = |e: PluginError| e.to_string();
        let Evaluator { client, module, program } = self;
        let mut buffers = Vec::new();
        for t in inputs {
            let ty = buffer_type(element_type(t.dtype())).ok_or_else(|| format!("XLA takes no {}", t.dtype()))?;
            let dims: Vec<i64> = t.dims().iter().map(|d| *d as i64).collect();
            buffers.push(
                Buffer::from_host(client, device, t.bytes().ok_or("XLA has no strings")?, ty, &dims).map_err(text)?,
            );
        }
        let results = program.execute(device, &buffers.iter().collect::<Vec<_>>(), &[]).map_err(text)?;
        let mut held = [1u8];
        if module.checked {
            results.last().ok_or("no results")?.read(&mut held).map_err(text)?;
        }
        if held[0] == 0 {
            return Err("an index is out of range".into());
        }
        let mut out = Vec::new();
        for ((dtype, dims), result) in module.results.iter().zip(&results) {
            let mut bytes = vec![0; dtype.byte_len(dims.iter().product()).ok_or("XLA has no strings")?];
            result.read(&mut bytes).map_err(text)?;
            let tensor = of_ir::Tensor::from_bytes(*dtype, dims.clone(), of_ir::Blob::new(bytes));
            out.push(tensor.map_err(|e| e.to_string())?);
        }
        Ok(out)
    }
}
