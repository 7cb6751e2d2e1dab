//! The backend's two parts: the compiler produces machine code, and the loader maps and calls it at run time.

use std::collections::HashMap;

use of_codegen::Isa;
use of_codegen::physical::element_type;
use of_codegen::{Backend, Overhead, extract, specialize};
use of_diag::{Code as ErrorCode, Diagnostic};
use of_emit::Port;
use of_ir::{Func, Graph, OpId};
use of_plan::ElementType;
use of_runtime::{
    AlignedBytes, ExecError, Executable, LoadContext, LoadError, Loader, Tensor, Value, ValueMut, ValueRef,
};

use crate::compile::compile;
use crate::emit;
use crate::ffi::code::Code;
use crate::payload::{Kernel, Payload};

/// Name in plans and on the command line.
pub const NAME: &str = "mlir";

/// Whether this build can compile. All builds run compiled plans.
pub const COMPILES: bool = cfg!(feature = "mlir");

/// How to get a build that compiles.
pub const HINT: &str = "build of-opt with --features mlir where LLVM and MLIR 22 are installed (docs/backends.md)";

/// MLIR, for one instruction set.
#[derive(Clone, Copy, Debug)]
pub struct Mlir {
    isa: &'static Isa,
}

impl Mlir {
    /// For an instruction set of a CPU.
    pub fn new(isa: &'static Isa) -> Mlir {
        Mlir { isa }
    }

    /// Compiles a kernel for a function with fixed extents.
    ///
    /// # Errors
    /// The op that cannot be printed, or the error of MLIR or LLVM.
    pub fn kernel(&self, func: &Func) -> Result<Kernel, String> {
        let module = emit::module(func, self.isa)?;
        let compiled = compile(&module.text)?;
        let number = |n: u64| usize::try_from(n).map_err(|_| "it is too large for this machine".to_string());
        Ok(Kernel {
            isa: self.isa.name.into(),
            entry: number(compiled.blob.entry)?,
            scratch: number(compiled.scratch)?,
            inputs: module.inputs,
            outputs: module.outputs,
            code: compiled.blob.bytes,
        })
    }
}

impl Default for Mlir {
    /// For this machine.
    fn default() -> Mlir {
        Mlir::new(Isa::host())
    }
}

impl Backend for Mlir {
    fn name(&self) -> &'static str {
        NAME
    }

    /// An op is claimed if it can be printed.
    fn claims(&self, graph: &Graph, op: OpId) -> Result<(), String> {
        if graph.op(op).def.traits().effect {
            return Err("it has side effects, which a kernel may eliminate".into());
        }
        let func = extract::extract(graph, &[op]).func;
        if specialize::is_fixed(&func) {
            return emit::module(&func, self.isa).map(drop);
        }
        match specialize::unbound_symbols(&func)[..] {
            [] => emit::module(&specialize::with_sample_extents(&func), self.isa).map(drop),
            _ => Err("its result shape is data-dependent: MLIR compiles for fixed shapes".into()),
        }
    }

    fn compile(&self, func: &Func) -> Result<Vec<u8>, Diagnostic> {
        let failed = |why: String| Diagnostic::error(ErrorCode::CODEGEN, func.loc.clone(), format!("mlir: {why}"));
        if let Some(s) = specialize::unbound_symbols(func).first() {
            return Err(failed(format!("no input of the subgraph has the extent '{s}'"))
                .hint("give it a number with --shape, or more to another backend with --pin"));
        }
        if !specialize::is_fixed(func) {
            return Ok(Payload::Open(Box::new(func.clone())).write());
        }
        self.kernel(func).map(|k| Payload::Code(k).write()).map_err(failed)
    }

    /// A call of machine code on host memory.
    fn overhead(&self) -> Overhead {
        Overhead { launch: 1e-6, ..Overhead::default() }
    }
}

impl Loader for Mlir {
    fn backend(&self) -> &str {
        NAME
    }

    fn load(&self, payload: &[u8], _: LoadContext<'_>) -> Result<Box<dyn Executable>, LoadError> {
        match Payload::read(payload).map_err(LoadError::Payload)? {
            Payload::Code(kernel) => {
                Ok(Box::new(Subgraph { fixed: Some(Loaded::new(kernel)?), ..Subgraph::default() }))
            }
            Payload::Open(_) if !COMPILES => Err(LoadError::Unsupported(format!(
                "a subgraph of open extents is compiled when it runs, which this build does not do; {HINT}"
            ))),
            Payload::Open(func) => Ok(Box::new(Subgraph { open: Some(func), ..Subgraph::default() })),
        }
    }
}

/// A kernel and its memory.
struct Loaded {
    code: Code,
    kernel: Kernel,
    scratch: AlignedBytes,
}

impl Loaded {
    fn new(mut kernel: Kernel) -> Result<Loaded, LoadError> {
        if !Isa::by_name(&kernel.isa).is_some_and(Isa::runs_here) {
            return Err(LoadError::Unsupported(format!(
                "its code is for {}, which this machine does not have",
                kernel.isa
            )));
        }
        let bytes = std::mem::take(&mut kernel.code);
        let code = Code::new(&bytes, kernel.entry).map_err(|e| LoadError::Failed(e.to_string()))?;
        let code = code.ok_or_else(|| LoadError::Payload("its entry is outside of its code".into()))?;
        Ok(Loaded { code, scratch: AlignedBytes::zeroed(kernel.scratch), kernel })
    }

    fn run(&mut self, inputs: &[Seen<'_>], outputs: &mut [ValueMut<'_>]) -> Result<(), ExecError> {
        let same = |(dtype, dims): &Port, (ty, own): (ElementType, &[i64])| {
            element_type(*dtype) == ty && dims.len() == own.len() && dims.iter().zip(own).all(|(a, b)| *a as i64 == *b)
        };
        let other =
            |what: &str| Err(ExecError::Input(format!("{what} has another type or size than was compiled for")));
        let (ins, outs) = (&self.kernel.inputs, &self.kernel.outputs);
        if ins.len() != inputs.len() || !ins.iter().zip(inputs).all(|(p, (ty, dims, _))| same(p, (*ty, dims))) {
            return other("an input");
        }
        if outs.len() != outputs.len() {
            return other("an output");
        }
        // Allocates the outputs that the runtime will own.
        let mut fresh: Vec<Option<Tensor>> = Vec::new();
        for (port, output) in outs.iter().zip(outputs.iter()) {
            fresh.push(match output {
                ValueMut::Dense(t) if same(port, (t.dtype, t.dims)) => None,
                ValueMut::Dense(_) => return other("an output"),
                ValueMut::Object(_) => {
                    let dims: Vec<i64> = port.1.iter().map(|d| *d as i64).collect();
                    let t = Tensor::zeros(element_type(port.0), dims);
                    Some(t.map_err(|e| ExecError::Failed(e.to_string()))?)
                }
            });
        }
        let mut places = Vec::new();
        for (own, output) in fresh.iter_mut().zip(outputs.iter_mut()) {
            places.push(match (own, output) {
                (Some(t), _) => t.bytes_mut().ok_or_else(|| ExecError::Failed("a result without bytes".into()))?,
                (None, ValueMut::Dense(t)) => &mut *t.bytes,
                (None, ValueMut::Object(_)) => return other("an output"),
            });
        }
        let bytes: Vec<&[u8]> = inputs.iter().map(|(_, _, b)| *b).collect();
        let long = |ports: &[Port], lens: &[usize]| {
            let expected = ports.iter().map(|(dtype, dims)| dtype.byte_len(dims.iter().product()));
            expected.zip(lens).all(|(e, n)| e == Some(*n))
        };
        let (read, written): (Vec<usize>, Vec<usize>) =
            (bytes.iter().map(|b| b.len()).collect(), places.iter().map(|b| b.len()).collect());
        if !long(ins, &read) || !long(outs, &written) {
            return other("a tensor");
        }
        match self.code.call(&bytes, &mut places, &mut self.scratch, 1) {
            0 => {}
            1 => return Err(ExecError::Input("an index is out of range".into())),
            status => return Err(ExecError::Failed(format!("the kernel returned the status {status}"))),
        }
        for (own, output) in fresh.into_iter().zip(outputs) {
            if let (Some(t), ValueMut::Object(slot)) = (own, output) {
                **slot = Some(Value::Tensor(t));
            }
        }
        Ok(())
    }
}

/// A subgraph of a plan.
#[derive(Default)]
struct Subgraph {
    fixed: Option<Loaded>,
    /// The function, if its extents are symbolic, and the kernels compiled so far, by the extents of the inputs.
    open: Option<Box<Func>>,
    compiled: HashMap<Vec<Vec<i64>>, Loaded>,
}

impl Executable for Subgraph {
    fn run(&mut self, inputs: &[ValueRef<'_>], outputs: &mut [ValueMut<'_>]) -> Result<(), ExecError> {
        let inputs = inputs.iter().map(seen).collect::<Result<Vec<_>, _>>()?;
        if let Some(fixed) = &mut self.fixed {
            return fixed.run(&inputs, outputs);
        }
        let func = self.open.as_ref().ok_or_else(|| ExecError::Failed("the subgraph has no code".into()))?;
        let key: Vec<Vec<i64>> = inputs.iter().map(|(_, d, _)| d.to_vec()).collect();
        let loaded = match self.compiled.entry(key) {
            std::collections::hash_map::Entry::Occupied(e) => e.into_mut(),
            std::collections::hash_map::Entry::Vacant(e) => {
                let dims: Vec<Option<&[i64]>> = inputs.iter().map(|(_, d, _)| Some(*d)).collect();
                let func = specialize::specialize(func, &dims).map_err(ExecError::Input)?;
                let kernel = Mlir::default().kernel(&func).map_err(ExecError::Unsupported)?;
                e.insert(Loaded::new(kernel).map_err(|e| ExecError::Failed(e.to_string()))?)
            }
        };
        loaded.run(&inputs, outputs)
    }
}

/// Type, extents and bytes of an input.
type Seen<'a> = (ElementType, &'a [i64], &'a [u8]);

fn seen<'a>(input: &'a ValueRef<'_>) -> Result<Seen<'a>, ExecError> {
    match input {
        ValueRef::Dense(t) => Ok((t.dtype, t.dims, t.bytes)),
        ValueRef::Object(v) => {
            let tensor = v.as_tensor().and_then(|t| Some((t.dtype(), t.dims(), t.bytes()?)));
            tensor.ok_or_else(|| ExecError::Unsupported("kernels support numeric tensors only".into()))
        }
    }
}

/// The results of a kernel on tensors, for tests.
///
/// # Errors
/// When it does not run on this machine, or rejects these tensors.
pub fn evaluate(kernel: Kernel, inputs: &[&of_ir::Tensor]) -> Result<Vec<of_ir::Tensor>, String> {
    let ports = kernel.outputs.clone();
    let mut loaded = Loaded::new(kernel).map_err(|e| e.to_string())?;
    let dims: Vec<Vec<i64>> = inputs.iter().map(|t| t.dims().iter().map(|d| *d as i64).collect()).collect();
    let mut seen: Vec<Seen<'_>> = Vec::new();
    for (t, dims) in inputs.iter().zip(&dims) {
        seen.push((element_type(t.dtype()), dims, t.bytes().ok_or("strings are not supported")?));
    }
    let mut results: Vec<Option<Value>> = vec![None; ports.len()];
    let mut outputs: Vec<ValueMut<'_>> = results.iter_mut().map(ValueMut::Object).collect();
    loaded.run(&seen, &mut outputs).map_err(|e| e.to_string())?;
    let tensor = |(value, (dtype, dims)): (Option<Value>, Port)| {
        let bytes = value.as_ref().and_then(Value::as_tensor).and_then(Tensor::bytes).ok_or("a result is missing")?;
        let blob = of_ir::Blob::new(bytes.to_vec());
        of_ir::Tensor::from_bytes(dtype, dims, blob).map_err(|e| e.to_string())
    };
    results.into_iter().zip(ports).map(tensor).collect()
}
