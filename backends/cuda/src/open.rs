//! Functions with symbolic extents: the plan has their text, and each run with new extents compiles a program.

use std::collections::HashMap;
use std::sync::Arc;

use of_codegen::physical::dtype_of;
use of_codegen::toolchain::cache::Cache;
use of_codegen::{Backend, specialize};
use of_ir::{Blob, Func, Graph, Rewriter};
use of_ops::structural::Constant;
use of_plan::{ArgSource, ElementType};
use of_runtime::{ExecError, Executable, LoadContext, LoadError, StepTime, ValueMut, ValueRef};

use crate::backend::Cuda;
use crate::driver::{DeviceValue, Driver};
use crate::executable::{self, DeviceExecutable, DeviceInput, LoadTarget};
use crate::payload;
use crate::program::Timing;

/// A function whose extents are bound by its inputs at each run.
pub struct DynamicShapes {
    func: Func,
    compiler: Cuda,
    driver: Option<Arc<dyn Driver>>,
    /// What is measured of each run.
    timing: Timing,
    /// The device number.
    device: usize,
    /// Which inputs other programs keep on the device.
    device_inputs: Vec<DeviceInput>,
    /// Which outputs are variables on the device.
    device_outputs: Vec<Option<Arc<dyn DeviceValue>>>,
    /// Which inputs are constants of the plan; they become part of programs.
    weights: Vec<bool>,
    /// Programs by the extents of the other inputs.
    programs: HashMap<Vec<Vec<i64>>, DeviceExecutable>,
    /// The extents of the last run.
    last: Option<Vec<Vec<i64>>>,
}

impl DynamicShapes {
    /// The function of a payload, or `None` if it has fixed extents.
    ///
    /// # Errors
    /// When it is damaged.
    pub fn read(
        payload: &[u8],
        context: LoadContext<'_>,
        driver: Option<Arc<dyn Driver>>,
        timing: Timing,
    ) -> Result<Option<DynamicShapes>, LoadError> {
        let Some((arch, func)) = payload::read(payload)? else { return Ok(None) };
        Ok(Some(DynamicShapes {
            func,
            compiler: Cuda::new(arch, Cache::user()).map_err(LoadError::Payload)?,
            driver,
            timing,
            device: context.device,
            device_inputs: executable::device_inputs(&context)?,
            device_outputs: executable::device_outputs(&context)?,
            weights: context.exec.inputs.iter().map(|a| matches!(a.source, Some(ArgSource::Weight(_)))).collect(),
            programs: HashMap::new(),
            last: None,
        }))
    }

    /// The program for these inputs.
    fn program(&self, inputs: &[Input<'_>]) -> Result<DeviceExecutable, ExecError> {
        let dims: Vec<Option<&[i64]>> = inputs.iter().map(|i| Some(i.1)).collect();
        let mut func = specialize::specialize(&self.func, &dims).map_err(ExecError::Input)?;
        func = self.with_weights(&func, inputs)?;
        let payload = self.compiler.compile(&func).map_err(|d| ExecError::Unsupported(d.to_string()))?;
        let device_inputs = self.device_inputs.iter().zip(&self.weights).filter(|(_, weight)| !**weight);
        let site = LoadTarget {
            driver: self.driver.as_ref(),
            device: self.device,
            rank_context: None,
            device_inputs: device_inputs.map(|(input, _)| input.clone()).collect(),
            device_outputs: self.device_outputs.clone(),
            readers: Vec::new(),
            timing: self.timing,
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
        rw.number_symbols_above(&func.graph);
        rw.at_end(entry);
        let mut map = HashMap::default();
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
    tensor.ok_or_else(|| ExecError::Unsupported("GPUs support numeric tensors only".into()))
}

impl Executable for DynamicShapes {
    fn run(&mut self, inputs: &[ValueRef<'_>], outputs: &mut [ValueMut<'_>]) -> Result<(), ExecError> {
        let seen = inputs.iter().map(seen).collect::<Result<Vec<_>, _>>()?;
        let weight = |i: usize| self.weights.get(i).is_some_and(|w| *w);
        let key: Vec<Vec<i64>> = (0..seen.len()).filter(|i| !weight(*i)).map(|i| seen[i].1.to_vec()).collect();
        let values: Vec<ValueRef<'_>> = (0..seen.len()).filter(|i| !weight(*i)).map(|i| inputs[i]).collect();
        if !self.programs.contains_key(&key) {
            let program = self.program(&seen)?;
            self.programs.insert(key.clone(), program);
        }
        self.last = Some(key.clone());
        match self.programs.get_mut(&key) {
            Some(program) => program.run(&values, outputs),
            None => Err(ExecError::Failed("the program is missing".into())),
        }
    }

    fn step_times(&self) -> &[StepTime] {
        let last = self.last.as_ref().and_then(|key| self.programs.get(key));
        last.map_or(&[], |program| program.step_times())
    }
}
