//! Functions of open extents: text in the plan, a program for the extents of each run that has new ones.

use std::collections::HashMap;
use std::sync::Arc;

use of_codegen::physical::dtype_of;
use of_codegen::toolchain::cache::Cache;
use of_codegen::{Backend, specialize};
use of_ir::{Blob, Func, Graph, Rewriter};
use of_ops::structural::Constant;
use of_plan::{ArgSource, ElementType};
use of_runtime::{ExecError, Executable, LoadContext, LoadError, ValueMut, ValueRef};

use crate::Cuda;
use crate::driver::Driver;
use crate::executable::{self, KeptInput, OnDevice, Site};

/// The first words of a payload; the architecture follows, as [`Cuda::new`] takes it.
const MAGIC: &str = "of-cuda open ";

/// The payload of a function.
pub fn write(func: &Func, arch: &str) -> Vec<u8> {
    format!("{MAGIC}{arch}\n{}", specialize::write(func)).into_bytes()
}

/// A region whose extents are told by its inputs.
pub struct Open {
    func: Func,
    compiler: Cuda,
    driver: Option<Arc<dyn Driver>>,
    /// The number of the device.
    device: usize,
    /// Which inputs other programs keep on the device.
    kept: Vec<KeptInput>,
    /// Which inputs are constants of the plan: they become part of programs.
    weights: Vec<bool>,
    /// By the extents of the other inputs.
    programs: HashMap<Vec<Vec<i64>>, OnDevice>,
}

impl Open {
    /// The region of a payload; nothing where it is one of fixed extents.
    ///
    /// # Errors
    /// When it is damaged.
    pub fn read(
        payload: &[u8],
        context: LoadContext<'_>,
        driver: Option<Arc<dyn Driver>>,
    ) -> Result<Option<Open>, LoadError> {
        let Some(rest) = payload.strip_prefix(MAGIC.as_bytes()) else { return Ok(None) };
        let wrong = |why: &str| LoadError::Payload(why.into());
        let end = rest.iter().position(|b| *b == b'\n').ok_or_else(|| wrong("there is no text"))?;
        let arch = std::str::from_utf8(&rest[..end]).map_err(|_| wrong("the architecture is not UTF-8"))?;
        Ok(Some(Open {
            func: specialize::read(&rest[end + 1..]).map_err(LoadError::Payload)?,
            compiler: Cuda::new(arch, Cache::user()).map_err(|why| wrong(&why))?,
            driver,
            device: context.device,
            kept: executable::kept(&context)?,
            weights: context.exec.inputs.iter().map(|a| matches!(a.source, Some(ArgSource::Weight(_)))).collect(),
            programs: HashMap::new(),
        }))
    }

    /// The program for these inputs.
    fn program(&self, inputs: &[Input<'_>]) -> Result<OnDevice, ExecError> {
        let dims: Vec<Option<&[i64]>> = inputs.iter().map(|i| Some(i.1)).collect();
        let mut func = specialize::specialize(&self.func, &dims).map_err(ExecError::Input)?;
        func = self.with_weights(&func, inputs)?;
        let payload = self.compiler.compile(&func).map_err(|d| ExecError::Unsupported(d.to_string()))?;
        let kept = self.kept.iter().zip(&self.weights).filter(|(_, weight)| !**weight);
        let site = Site {
            driver: self.driver.as_ref(),
            device: self.device,
            rank_context: None,
            kept: kept.map(|(kept, _)| kept.clone()).collect(),
            readers: Vec::new(),
        };
        executable::load(&payload, &site).map_err(|e| match e {
            LoadError::Unsupported(why) => ExecError::Unsupported(why),
            other => ExecError::Failed(other.to_string()),
        })
    }

    /// The function with its weights as constants.
    fn with_weights(&self, func: &Func, inputs: &[Input<'_>]) -> Result<Func, ExecError> {
        let failed = |why: String| ExecError::Failed(why);
        let (outputs, attrs, loc) = (func.outputs.clone(), func.attrs.clone(), func.loc.clone());
        let mut out = Func { graph: Graph::new(), inputs: Vec::new(), outputs, attrs, loc };
        let entry = out.graph.entry();
        let mut rw = Rewriter::new(&mut out.graph, "specialize");
        rw.at_end(entry);
        let mut map = HashMap::new();
        for (at, (v, (dtype, dims, bytes))) in func.graph.args().iter().zip(inputs).enumerate() {
            let own = if self.weights.get(at).is_some_and(|w| *w) {
                let dtype = dtype_of(*dtype).ok_or_else(|| failed("a constant has no element type".into()))?;
                let dims = dims.iter().map(|d| *d as usize).collect();
                let value = of_ir::Tensor::from_bytes(dtype, dims, Blob::new(bytes.to_vec()));
                let value = value.map_err(|e| failed(e.to_string()))?;
                rw.create_one(Constant { value }, &[]).map_err(|d| failed(d.to_string()))?
            } else {
                out.inputs.push(func.inputs[at].clone());
                rw.add_arg(entry, func.graph.ty(*v).clone(), None)
            };
            map.insert(*v, own);
        }
        for op in func.graph.region_ops(func.graph.entry()) {
            rw.clone_op(&func.graph, op, &mut map);
        }
        Ok(out)
    }
}

/// Type, extents and bytes of an input.
type Input<'a> = (ElementType, &'a [i64], &'a [u8]);

fn seen<'a>(v: &'a ValueRef<'_>) -> Result<Input<'a>, ExecError> {
    let tensor = match v {
        ValueRef::Dense(t) => Some((t.dtype, t.dims, t.bytes)),
        ValueRef::Object(v) => v.as_tensor().and_then(|t| Some((t.dtype(), t.dims(), t.bytes()?))),
    };
    tensor.ok_or_else(|| ExecError::Unsupported("GPUs take tensors of numbers alone".into()))
}

impl Executable for Open {
    fn run(&mut self, inputs: &[ValueRef<'_>], outputs: &mut [ValueMut<'_>]) -> Result<(), ExecError> {
        let seen = inputs.iter().map(seen).collect::<Result<Vec<_>, _>>()?;
        let weight = |i: usize| self.weights.get(i).is_some_and(|w| *w);
        let key: Vec<Vec<i64>> = (0..seen.len()).filter(|i| !weight(*i)).map(|i| seen[i].1.to_vec()).collect();
        let values: Vec<ValueRef<'_>> = (0..seen.len()).filter(|i| !weight(*i)).map(|i| inputs[i]).collect();
        if !self.programs.contains_key(&key) {
            let program = self.program(&seen)?;
            self.programs.insert(key.clone(), program);
        }
        match self.programs.get_mut(&key) {
            Some(program) => program.run(&values, outputs),
            None => Err(ExecError::Failed("the program is not there".into())),
        }
    }
}
