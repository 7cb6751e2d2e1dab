//! The backend's two parts: engines at compile time, GPUs at run time.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use of_codegen::toolchain::{read_private, write_private};
use of_codegen::{Backend, extract};
use of_diag::{Code, Diagnostic};
use of_ir::{DType, Func, Graph, Module, OpId, Type, ValueId};
use of_onnx::ExportOptions;
use of_runtime::{ExecError, Executable, LoadContext, LoadError, Loader, Tensor, Value, ValueMut, ValueRef};
use prost::Message;

use crate::ffi::{self, CApi, Engine, Request};
use crate::payload::{Payload, Port, ports};
use crate::range::{Range, Ranges};
use crate::shapes;

/// Name in plans and on the command line.
pub const NAME: &str = "tensorrt";
/// The same, where products of f32 may use a mantissa of ten bits (TF32).
pub const NAME_TF32: &str = "tensorrt+tf32";

/// Architectures of GPUs that TensorRT-RTX 1.7 builds for (it refuses sm_90 and sm_100).
const ARCHS: &[i32] = &[80, 86, 89, 120];

/// The operator set that is written: TensorRT's parser knows those up to 24.
const OPSET: i64 = 22;

/// TensorRT, where it is installed.
#[derive(Debug, Default)]
pub struct TensorRt {
    tf32: bool,
    ranges: Ranges,
    times: Option<PathBuf>,
    /// The parser's answers for ops, by their text.
    asked: Mutex<HashMap<blake3::Hash, Result<(), String>>>,
}

impl TensorRt {
    /// With products of f32 on tensor cores, of operands with ten bits of mantissa.
    pub fn tf32() -> TensorRt {
        TensorRt { tf32: true, ..TensorRt::default() }
    }

    /// The same, with ranges for symbolic extents.
    #[must_use]
    pub fn within(self, ranges: Ranges) -> TensorRt {
        TensorRt { ranges, ..self }
    }

    /// The same, with kernel timings cached in this folder.
    #[must_use]
    pub fn keeping_times(self, folder: Option<PathBuf>) -> TensorRt {
        TensorRt { times: folder, ..self }
    }

    fn own_name(&self) -> &'static str {
        if self.tf32 { NAME_TF32 } else { NAME }
    }

    /// Whether the parser supports the single op of a function.
    fn takes(&self, func: Func, api: &CApi) -> Result<(), String> {
        let model = model(&func)?;
        let key = blake3::hash(&model);
        if let Some(known) = self.asked.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return known.clone();
        }
        let said = api.parse(&model).map_err(|why| format!("its parser: {why}"));
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).insert(key, said.clone());
        said
    }
}

/// A function as an ONNX model, without unused arguments.
fn model(func: &Func) -> Result<Vec<u8>, String> {
    let mut module = Module::default();
    module.funcs.insert("main".into(), func.clone());
    let options = ExportOptions { newest_opset: OPSET, ..ExportOptions::default() };
    let mut model = of_onnx::export_model(&module, &options).map_err(|d| match d.0.first() {
        Some(first) => first.message.clone(),
        None => "it cannot be written as ONNX".into(),
    })?;
    let unread = |(v, _): &(&ValueId, &String)| func.graph.uses(**v).is_empty();
    let unread: Vec<&String> = func.graph.args().iter().zip(&func.inputs).filter(unread).map(|(_, n)| n).collect();
    if let Some(graph) = &mut model.graph {
        graph.input.retain(|input| !unread.iter().any(|name| **name == *input.name()));
    }
    Ok(model.encode_to_vec())
}

/// Whether TensorRT holds values of a type.
fn holds(ty: &Type, ranges: &Ranges) -> Result<(), String> {
    let t = match ty {
        Type::None => return Ok(()),
        Type::Tensor(t) => t,
        other => return Err(format!("TensorRT supports tensors, not {other}")),
    };
    match t.dtype {
        DType::F32 | DType::F16 | DType::BF16 | DType::I32 | DType::I64 | DType::Bool => {}
        other => return Err(format!("TensorRT does not support {other} here")),
    }
    for d in t.shape.as_ref().ok_or("its rank is not known when the engine is built")? {
        let range = Range::of(d, ranges).ok_or("its extents are not known when the engine is built")?;
        if range.min < 1 {
            return Err("a tensor is empty".into());
        }
    }
    Ok(())
}

impl Backend for TensorRt {
    fn name(&self) -> &'static str {
        self.own_name()
    }

    /// An op is claimed if it can be written as ONNX and TensorRT's parser supports it.
    fn claims(&self, graph: &Graph, op: OpId) -> Result<(), String> {
        let api = ffi::c_api().map_err(|e| e.to_string())?;
        let data = graph.op(op);
        if data.def.traits().effect {
            return Err("it has side effects, which TensorRT may eliminate".into());
        }
        data.operands.iter().chain(&data.results).try_for_each(|v| holds(graph.ty(*v), &self.ranges))?;
        let mut func = extract::extract_with(graph, &[op], usize::MAX).func;
        shapes::inside(&mut func)?;
        self.takes(func, api)
    }

    fn remedy(&self, graph: &Graph, op: OpId) -> Option<String> {
        let data = graph.op(op);
        let open = data.operands.iter().chain(&data.results).filter_map(|v| graph.ty(*v).as_tensor());
        let mut symbols = open.filter_map(|t| t.shape.as_ref()).flatten().flat_map(|d| d.symbols());
        let name = symbols.find(|s| !self.ranges.contains_key(&**s))?;
        Some(format!("--shape {name}=NUMBER gives its extent, {name}=MIN:OPT:MAX a range of it"))
    }

    /// The cost of a launch and of bus transfers.
    fn overhead(&self) -> of_codegen::Overhead {
        of_codegen::Overhead { launch: 5e-5, bandwidth: 1.2e10 }
    }

    /// Weights are part of an engine.
    fn largest_constant(&self, _open: bool) -> usize {
        usize::MAX
    }

    fn compile(&self, func: &Func) -> Result<Vec<u8>, Diagnostic> {
        let name = self.own_name();
        let failed = |why: String| Diagnostic::error(Code::CODEGEN, func.loc.clone(), format!("{name}: {why}"));
        let api = ffi::c_api().map_err(|e| failed(e.to_string()))?;
        let mut func = func.clone();
        shapes::inside(&mut func).map_err(failed)?;
        let (inputs, outputs) = ports(&func, &self.ranges).map_err(failed)?;
        let model = model(&func).map_err(failed)?;
        let kept = self.times.as_ref().map(|d| d.join(format!("{}.times", api.version.replace(' ', "-"))));
        // An unreadable cache is measured again.
        let times = kept.as_ref().map(|file| read_private(file).unwrap_or_default());
        let request =
            Request { model: &model, inputs: &inputs, archs: ARCHS, tf32: self.tf32, times: times.as_deref() };
        let built = api.build(&request).map_err(failed)?;
        if let Some(file) = kept.filter(|_| !built.times.is_empty() && Some(&built.times) != times.as_ref())
            && let Err(e) = write_private(&file, &built.times)
        {
            tracing::debug!(error = %e, "the measured times of kernels are not saved");
        }
        let archs = if api.version.contains("RTX") { ARCHS.to_vec() } else { Vec::new() };
        Ok(Payload { version: api.version.clone(), archs, inputs, outputs, engine: built.engine }.write())
    }
}

impl Loader for TensorRt {
    fn backend(&self) -> &str {
        self.own_name()
    }

    fn load(&self, payload: &[u8], context: LoadContext<'_>) -> Result<Box<dyn Executable>, LoadError> {
        let p = Payload::read(payload).map_err(LoadError::Payload)?;
        let api = ffi::c_api().map_err(|e| LoadError::Unsupported(e.to_string()))?;
        if api.version != p.version {
            let what = format!("the engine is of {}, here is {}: compile the plan again", p.version, api.version);
            return Err(LoadError::Unsupported(what));
        }
        let engine = api.load(&p.engine, context.device, p.inputs, p.outputs).map_err(|why| {
            let archs: Vec<String> = p.archs.iter().map(|a| format!("sm_{a}")).collect();
            let of =
                if archs.is_empty() { String::new() } else { format!(" (the engine is for {})", archs.join(", ")) };
            LoadError::Unsupported(format!("{why}{of}"))
        })?;
        Ok(Box::new(Subgraph { engine, bound: Vec::new(), results: Vec::new() }))
    }
}

/// An engine of a plan.
struct Subgraph {
    engine: Engine,
    /// The input extents that the engine was last bound to, and the resulting output extents.
    bound: Vec<Vec<i64>>,
    results: Vec<Vec<i64>>,
}

/// Extents and bytes of an input.
fn seen<'a>(input: &'a ValueRef<'_>) -> Option<(&'a [i64], &'a [u8])> {
    match input {
        ValueRef::Dense(t) => Some((t.dims, t.bytes)),
        ValueRef::Object(v) => v.as_tensor().and_then(|t| Some((t.dims(), t.bytes()?))),
    }
}

impl Subgraph {
    /// Binds the inputs to these extents, each of which must be in the range of its port.
    fn prepare(&mut self, dims: &[&[i64]]) -> Result<(), ExecError> {
        self.engine.inputs.iter().zip(dims).try_for_each(|(p, d)| p.accepts(d)).map_err(ExecError::Input)?;
        if self.bound.is_empty() || self.bound.iter().ne(dims) {
            self.bound.clear();
            self.results = self.engine.reshape(dims).map_err(ExecError::Failed)?;
            self.bound = dims.iter().map(|d| d.to_vec()).collect();
        }
        Ok(())
    }
}

impl Executable for Subgraph {
    fn run(&mut self, inputs: &[ValueRef<'_>], outputs: &mut [ValueMut<'_>]) -> Result<(), ExecError> {
        let other = || ExecError::Failed("the engine has other inputs and outputs".into());
        let unsupported = || ExecError::Unsupported("TensorRT supports numeric tensors only".into());
        let input = |p: &Port| seen(inputs.get(p.index).ok_or_else(other)?).ok_or_else(unsupported);
        let (dims, bytes): (Vec<_>, Vec<_>) =
            self.engine.inputs.iter().map(input).collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
        self.prepare(&dims)?;
        let ports = &self.engine.outputs;
        if ports.len() != outputs.len() {
            return Err(other());
        }
        let sizes = ports.iter().zip(&self.results).map(|(p, dims)| p.bytes(dims).ok_or_else(other));
        let mut results: Vec<Vec<u8>> = sizes.map(|n| Ok(vec![0; n?])).collect::<Result<_, ExecError>>()?;
        let mut places: Vec<&mut [u8]> = results.iter_mut().map(Vec::as_mut_slice).collect();
        self.engine.run(&bytes, &mut places).map_err(ExecError::Failed)?;
        let of = self.engine.outputs.iter().zip(&self.results).zip(&results);
        for (output, ((port, dims), result)) in outputs.iter_mut().zip(of) {
            match output {
                ValueMut::Dense(t) if t.bytes.len() == result.len() => t.bytes.copy_from_slice(result),
                ValueMut::Dense(_) => return Err(ExecError::Failed("a result has another size than planned".into())),
                ValueMut::Object(slot) => {
                    let dtype = of_codegen::physical::element_type(port.dtype);
                    let tensor = Tensor::from_bytes(dtype, dims.clone(), result);
                    **slot = Some(Value::Tensor(tensor.map_err(|e| ExecError::Failed(e.to_string()))?));
                }
            }
        }
        Ok(())
    }
}
