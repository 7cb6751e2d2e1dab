//! The two halves of the backend: engines at compile time, GPUs at run time.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use of_codegen::{Backend, extract};
use of_diag::{Code, Diagnostic};
use of_ir::{DType, Func, Graph, Module, OpId, Type};
use of_onnx::ExportOptions;
use of_runtime::{ExecError, Executable, LoadContext, LoadError, Loader, Tensor, Value, ValueMut, ValueRef};
use prost::Message;

use crate::ffi::{self, Engine, Shim};
use crate::payload::{Payload, Port, ports};

/// Name in plans and on the command line.
pub const NAME: &str = "tensorrt";
/// The same, where f32 may be multiplied with ten bits of mantissa.
pub const NAME_TF32: &str = "tensorrt+tf32";

/// Architectures of GPUs that TensorRT-RTX 1.7 builds for (it refuses sm_90 and sm_100).
const ARCHS: &[i32] = &[80, 86, 89, 120];

/// The operator set that is written: TensorRT's parser knows those up to 24.
const OPSET: i64 = 22;

/// TensorRT, where it is installed.
#[derive(Debug, Default)]
pub struct TensorRt {
    tf32: bool,
    /// What the parser said of ops that were asked for, by their text.
    asked: Mutex<HashMap<blake3::Hash, Result<(), String>>>,
}

impl TensorRt {
    /// With products of f32 on tensor cores, of operands with ten bits of mantissa.
    pub fn tf32() -> TensorRt {
        TensorRt { tf32: true, ..TensorRt::default() }
    }

    fn own_name(&self) -> &'static str {
        if self.tf32 { NAME_TF32 } else { NAME }
    }

    /// Whether the parser takes the one op of a function.
    fn takes(&self, func: Func, shim: &Shim) -> Result<(), String> {
        let model = model(func)?;
        let key = blake3::hash(&model);
        if let Some(known) = self.asked.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return known.clone();
        }
        let said = shim.parse(&model).map_err(|why| format!("its parser: {why}"));
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).insert(key, said.clone());
        said
    }
}

/// A function as an ONNX model.
fn model(func: Func) -> Result<Vec<u8>, String> {
    let mut module = Module::default();
    module.funcs.insert("main".into(), func);
    let options = ExportOptions { newest_opset: OPSET, ..ExportOptions::default() };
    let model = of_onnx::export_model(&module, &options).map_err(|d| match d.0.first() {
        Some(first) => first.message.clone(),
        None => "it cannot be written as ONNX".into(),
    })?;
    Ok(model.encode_to_vec())
}

/// Whether TensorRT holds values of a type.
fn holds(ty: &Type) -> Result<(), String> {
    let t = match ty {
        Type::None => return Ok(()),
        Type::Tensor(t) => t,
        other => return Err(format!("it holds tensors, not {other}")),
    };
    match t.dtype {
        DType::F32 | DType::F16 | DType::BF16 | DType::I32 | DType::I64 | DType::Bool => {}
        other => return Err(format!("it holds no {other} here")),
    }
    let dims = t.fixed_dims().ok_or("its extents are not known when the engine is built")?;
    if dims.contains(&0) {
        return Err("a tensor is empty".into());
    }
    Ok(())
}

impl Backend for TensorRt {
    fn name(&self) -> &'static str {
        self.own_name()
    }

    /// An op is claimed when it can be written as ONNX and TensorRT's parser takes that.
    fn claims(&self, graph: &Graph, op: OpId) -> Result<(), String> {
        let shim = ffi::shim().map_err(|e| e.to_string())?;
        let data = graph.op(op);
        if data.def.traits().effect {
            return Err("it has an effect, which TensorRT may leave out".into());
        }
        data.operands.iter().chain(&data.results).try_for_each(|v| holds(graph.ty(*v)))?;
        let func = extract::extract_with(graph, &[op], usize::MAX).func;
        self.takes(func, shim)
    }

    fn remedy(&self, graph: &Graph, op: OpId) -> Option<String> {
        let data = graph.op(op);
        let open = data.operands.iter().chain(&data.results).filter_map(|v| graph.ty(*v).as_tensor());
        let name = open.filter_map(|t| t.shape.as_ref()).flatten().flat_map(|d| d.symbols()).next()?;
        Some(format!("--shape {name}=NUMBER gives its extent"))
    }

    /// A launch, and what crosses the bus.
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
        let shim = ffi::shim().map_err(|e| failed(e.to_string()))?;
        let (inputs, outputs) = ports(func).map_err(failed)?;
        let model = model(func.clone()).map_err(failed)?;
        let engine = shim.build(&model, ARCHS, self.tf32).map_err(failed)?;
        let archs = if shim.version.contains("RTX") { ARCHS.to_vec() } else { Vec::new() };
        Ok(Payload { version: shim.version.clone(), archs, inputs, outputs, engine }.write())
    }
}

impl Loader for TensorRt {
    fn backend(&self) -> &str {
        self.own_name()
    }

    fn load(&self, payload: &[u8], _context: LoadContext<'_>) -> Result<Box<dyn Executable>, LoadError> {
        let p = Payload::read(payload).map_err(LoadError::Payload)?;
        let shim = ffi::shim().map_err(|e| LoadError::Unsupported(e.to_string()))?;
        if shim.version != p.version {
            let what = format!("the engine is of {}, here is {}: compile the plan again", p.version, shim.version);
            return Err(LoadError::Unsupported(what));
        }
        let bindings: Vec<(String, usize)> =
            p.inputs.iter().chain(&p.outputs).map(|b| (b.name.clone(), b.bytes())).collect();
        let engine = shim.load(&p.engine, &bindings).map_err(|why| {
            let archs: Vec<String> = p.archs.iter().map(|a| format!("sm_{a}")).collect();
            let of =
                if archs.is_empty() { String::new() } else { format!(" (the engine is for {})", archs.join(", ")) };
            LoadError::Unsupported(format!("{why}{of}"))
        })?;
        Ok(Box::new(Region { engine, inputs: p.inputs, outputs: p.outputs }))
    }
}

/// An engine of a plan.
struct Region {
    engine: Engine,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
}

impl Executable for Region {
    fn run(&mut self, inputs: &[ValueRef<'_>], outputs: &mut [ValueMut<'_>]) -> Result<(), ExecError> {
        if (inputs.len(), outputs.len()) != (self.inputs.len(), self.outputs.len()) {
            return Err(ExecError::Failed("the engine has other inputs and outputs".into()));
        }
        let bytes = |v: &ValueRef<'_>| match v {
            ValueRef::Dense(t) => Some(t.bytes.to_vec()),
            ValueRef::Object(v) => v.as_tensor().and_then(|t| Some(t.bytes()?.to_vec())),
        };
        let unsupported = || ExecError::Unsupported("TensorRT takes tensors of numbers alone".into());
        let inputs = inputs.iter().map(|v| bytes(v).ok_or_else(unsupported)).collect::<Result<Vec<_>, _>>()?;
        let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
        let mut results: Vec<Vec<u8>> = self.outputs.iter().map(|p| vec![0; p.bytes()]).collect();
        let mut places: Vec<&mut [u8]> = results.iter_mut().map(Vec::as_mut_slice).collect();
        self.engine.run(&inputs, &mut places).map_err(ExecError::Failed)?;
        for ((output, port), result) in outputs.iter_mut().zip(&self.outputs).zip(&results) {
            match output {
                ValueMut::Dense(t) if t.bytes.len() == result.len() => t.bytes.copy_from_slice(result),
                ValueMut::Dense(_) => return Err(ExecError::Failed("a result has another size than planned".into())),
                ValueMut::Object(slot) => {
                    let dims: Vec<i64> = port.dims.iter().map(|d| *d as i64).collect();
                    let tensor = Tensor::from_bytes(of_codegen::physical::element_type(port.dtype), dims, result);
                    **slot = Some(Value::Tensor(tensor.map_err(|e| ExecError::Failed(e.to_string()))?));
                }
            }
        }
        Ok(())
    }
}
