//! cuDNN, loaded when it is needed.
//!
//! A convolution and what follows it is a graph of operations to the library, in descriptors that are made, filled and then
//! finalized. Its heuristics name configurations of engines for a graph, the best first; the first one that computes as we do
//! and is content with our workspace becomes a plan, which is executed with the addresses of its tensors.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;

use of_codegen::library::cudnn::Convolution;
use of_codegen::library::epilogue::Activation;
use of_codegen::library::{Floats, Library};
use of_ir::DType;

use super::{Address, Handle, api, library};
use crate::driver::DriverError;
use crate::program::WORKSPACE;

/// Names of the library.
const NAMES: &[&str] = &["libcudnn.so.9"];
/// The first version of the library that is known to work so.
const VERSION: usize = 9_00_00;

api! {
    version = "cudnnGetVersion" () -> usize;
    words = "cudnnGetErrorString" (c_int) -> *const c_char;
    create = "cudnnCreate" (*mut Handle);
    destroy = "cudnnDestroy" (Handle);
    set_stream = "cudnnSetStream" (Handle, Handle);
    descriptor = "cudnnBackendCreateDescriptor" (c_int, *mut Handle);
    destroy_descriptor = "cudnnBackendDestroyDescriptor" (Handle);
    set = "cudnnBackendSetAttribute" (Handle, c_int, c_int, i64, *const c_void);
    get = "cudnnBackendGetAttribute" (Handle, c_int, c_int, i64, *mut i64, *mut c_void);
    finalize = "cudnnBackendFinalize" (Handle);
    execute = "cudnnBackendExecute" (Handle, Handle, Handle);
}

// Numbers of the library's header: kinds of descriptors,
const POINTWISE: c_int = 0;
const CONVOLUTION: c_int = 1;
const ENGINE: c_int = 2;
const CONFIGURATION: c_int = 3;
const HEURISTICS: c_int = 4;
const PLAN: c_int = 5;
const FORWARD_OPERATION: c_int = 10;
const POINTWISE_OPERATION: c_int = 13;
const GRAPH: c_int = 15;
const VARIANT_PACK: c_int = 16;
const TENSOR: c_int = 17;
// types of attributes,
const HANDLE: c_int = 0;
const DATA_TYPE: c_int = 1;
const BOOLEAN: c_int = 2;
const INT64: c_int = 3;
const FLOAT: c_int = 4;
const POINTER: c_int = 6;
const CONVOLUTION_MODE: c_int = 7;
const HEURISTIC_MODE: c_int = 8;
const NUMERICAL_NOTE: c_int = 11;
const POINTWISE_MODE: c_int = 14;
const DESCRIPTOR: c_int = 15;
// attributes of each kind,
const POINTWISE_WHICH: c_int = 0;
const POINTWISE_PRECISION: c_int = 1;
const CONVOLUTION_PRECISION: c_int = 100;
const CONVOLUTION_WHICH: c_int = 101;
const CONVOLUTION_DILATIONS: c_int = 102;
const CONVOLUTION_STRIDES: c_int = 103;
const CONVOLUTION_AFTER: c_int = 104;
const CONVOLUTION_BEFORE: c_int = 105;
const CONVOLUTION_AXES: c_int = 106;
const HEURISTICS_MODE: c_int = 200;
const HEURISTICS_GRAPH: c_int = 201;
const HEURISTICS_RESULTS: c_int = 202;
const CONFIGURATION_ENGINE: c_int = 300;
const PLAN_HANDLE: c_int = 400;
const PLAN_CONFIGURATION: c_int = 401;
const PLAN_WORKSPACE: c_int = 402;
const FORWARD_ALPHA: c_int = 700;
const FORWARD_BETA: c_int = 701;
const FORWARD_CONVOLUTION: c_int = 702;
const FORWARD_W: c_int = 703;
const FORWARD_X: c_int = 704;
const FORWARD_Y: c_int = 705;
const OPERATION_POINTWISE: c_int = 750;
const OPERATION_X: c_int = 751;
const OPERATION_B: c_int = 752;
const OPERATION_Y: c_int = 753;
const OPERATION_ALPHA: [c_int; 2] = [754, 755];
const GRAPH_HANDLE: c_int = 800;
const GRAPH_OPERATIONS: c_int = 801;
const TENSOR_ALIGNMENT: c_int = 900;
const TENSOR_TYPE: c_int = 901;
const TENSOR_DIMENSIONS: c_int = 902;
const TENSOR_STRIDES: c_int = 903;
const TENSOR_ID: c_int = 906;
const TENSOR_VIRTUAL: c_int = 907;
const PACK_IDS: c_int = 1000;
const PACK_POINTERS: c_int = 1001;
const PACK_WORKSPACE: c_int = 1003;
const ENGINE_NOTES: c_int = 1303;
// and values.
const CROSS_CORRELATION: c_int = 1;
const ADD: c_int = 0;
const RELU: c_int = 100;
const GELU: c_int = 104;
const SWISH: c_int = 106;
const GELU_BY_TANH: c_int = 107;
const MODE_A: c_int = 3;
const MODE_FALLBACK: c_int = 2;
const TENSOR_CORE: c_int = 0;
const STRICT_NAN: c_int = 9;
/// More notes than an engine has.
const NOTES: usize = 32;
/// What the library takes the alignment of a tensor to be, at most.
const MOST_ALIGNED: Address = 16;

impl Api {
    fn get() -> Result<&'static Api, DriverError> {
        static API: OnceLock<Result<Api, String>> = OnceLock::new();
        let load = || {
            let api = Api::bind(library(Library::Cudnn.variable(), NAMES)?).map_err(|e| e.to_string())?;
            // SAFETY: the function takes nothing.
            match unsafe { (api.version)() } {
                version if version < VERSION => Err(format!("its version is {version}, which is older than {VERSION}")),
                _ => Ok(api),
            }
        };
        let missing = |why: &String| DriverError::NoLibrary { library: Library::Cudnn, why: why.clone() };
        API.get_or_init(load).as_ref().map_err(missing)
    }

    fn check(&self, call: &'static str, status: c_int) -> Result<(), DriverError> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the library has a constant string for every number.
        let words = unsafe {
            let words = (self.words)(status);
            if words.is_null() { "unknown".into() } else { CStr::from_ptr(words).to_string_lossy().into_owned() }
        };
        Err(DriverError::Call { call, words: format!("{words} ({status})") })
    }
}

/// The library with what it may write to while it computes.
pub struct Convolver {
    api: &'static Api,
    handle: Handle,
    workspace: Address,
}

// SAFETY: the library's handle may be used by any thread, one at a time.
unsafe impl Send for Convolver {}

/// A convolution on its way: a plan of the library, its addresses, and what both were made of.
pub struct Planned {
    plan: Descriptor,
    pack: Descriptor,
    _made_of: Vec<Descriptor>,
}

// SAFETY: as above.
unsafe impl Send for Planned {}

impl Convolver {
    /// The library, for the calling thread's context; [`WORKSPACE`] bytes from `workspace` on are its own.
    ///
    /// # Errors
    /// When the machine does not have it, it is too old, or it does not start.
    pub fn open(workspace: Address) -> Result<Convolver, DriverError> {
        let api = Api::get()?;
        let mut handle = null_mut();
        // SAFETY: the pointer is that of a local variable.
        api.check("cudnnCreate", unsafe { (api.create)(&mut handle) })?;
        Ok(Convolver { api, handle, workspace })
    }

    /// Plans a convolution; `args` are addresses as [`Convolution`] has them.
    ///
    /// # Errors
    /// When the library does not take it.
    pub fn plan(&self, c: &Convolution, args: &[Address]) -> Result<Planned, DriverError> {
        let mut parts = Graph { api: self.api, c, args, ids: Vec::new(), made: Vec::new() };
        let operations = parts.operations()?;
        let graph = self.descriptor(GRAPH)?;
        graph.set(GRAPH_HANDLE, HANDLE, &[self.handle])?;
        graph.set(GRAPH_OPERATIONS, DESCRIPTOR, &operations)?;
        graph.finalize()?;
        let pack = self.descriptor(VARIANT_PACK)?;
        pack.set(PACK_IDS, INT64, &parts.ids)?;
        pack.set(PACK_POINTERS, POINTER, args)?;
        pack.set(PACK_WORKSPACE, POINTER, &[self.workspace])?;
        pack.finalize()?;
        let mut made = parts.made;
        let mut why = None;
        for mode in [MODE_A, MODE_FALLBACK] {
            let heuristics = self.descriptor(HEURISTICS)?;
            heuristics.set(HEURISTICS_GRAPH, DESCRIPTOR, &[graph.it])?;
            heuristics.set(HEURISTICS_MODE, HEURISTIC_MODE, &[mode])?;
            let found = heuristics.finalize().and_then(|()| self.configurations(&heuristics));
            let configurations = match found {
                Ok(list) => list,
                Err(e) => {
                    why = Some(e);
                    continue;
                }
            };
            for configuration in configurations {
                if !self.computes_so(c, &configuration)? {
                    continue;
                }
                match self.made_of(&configuration) {
                    Ok((plan, bytes)) if bytes <= WORKSPACE => {
                        made.extend([configuration, heuristics, graph]);
                        return Ok(Planned { plan, pack, _made_of: made });
                    }
                    Ok(_) => {}
                    Err(e) => why = Some(e),
                }
            }
        }
        let words = format!(
            "the library has no engine for this convolution of {} channels to {} in {} groups{}",
            c.inputs,
            c.outputs,
            c.groups,
            why.map_or_else(String::new, |e| format!(" ({e})"))
        );
        Err(DriverError::Call { call: "planning a convolution by cuDNN", words })
    }

    fn descriptor(&self, kind: c_int) -> Result<Descriptor, DriverError> {
        Descriptor::new(self.api, kind)
    }

    /// What heuristics found.
    fn configurations(&self, heuristics: &Descriptor) -> Result<Vec<Descriptor>, DriverError> {
        let count = heuristics.get::<Handle>(HEURISTICS_RESULTS, DESCRIPTOR, &mut [])?;
        let all = (0..count).map(|_| self.descriptor(CONFIGURATION)).collect::<Result<Vec<_>, _>>()?;
        let mut handles: Vec<Handle> = all.iter().map(|d| d.it).collect();
        let count = heuristics.get(HEURISTICS_RESULTS, DESCRIPTOR, &mut handles)?;
        Ok(all.into_iter().take(count).collect())
    }

    /// Whether the engine of a configuration multiplies and adds up as was asked for, and in the same way in every run.
    fn computes_so(&self, c: &Convolution, configuration: &Descriptor) -> Result<bool, DriverError> {
        let engine = self.descriptor(ENGINE)?;
        configuration.get(CONFIGURATION_ENGINE, DESCRIPTOR, &mut [engine.it])?;
        let mut notes: [c_int; NOTES] = [0; NOTES];
        let count = engine.get(ENGINE_NOTES, NUMERICAL_NOTE, &mut notes)?;
        let tensor_cores = c.dtype != DType::F32 || c.floats == Floats::Tf32;
        // The other notes are operands or sums of fewer bits, transforms that round (FFT, Winograd), and sums in any order.
        let plain = |note: &c_int| *note == STRICT_NAN || (*note == TENSOR_CORE && tensor_cores);
        Ok(notes[..count.min(NOTES)].iter().all(plain))
    }

    /// The plan of a configuration, and bytes of the workspace that it needs.
    fn made_of(&self, configuration: &Descriptor) -> Result<(Descriptor, u64), DriverError> {
        let plan = self.descriptor(PLAN)?;
        plan.set(PLAN_HANDLE, HANDLE, &[self.handle])?;
        plan.set(PLAN_CONFIGURATION, DESCRIPTOR, &[configuration.it])?;
        plan.finalize()?;
        let mut bytes = [0i64];
        plan.get(PLAN_WORKSPACE, INT64, &mut bytes)?;
        Ok((plan, bytes[0].unsigned_abs()))
    }

    /// Puts a convolution on a stream.
    ///
    /// # Errors
    /// When the library does not take it.
    ///
    /// # Safety
    /// What the convolution spans from each address on, and the workspace, is the device's memory, and that of the result and the
    /// workspace is nobody else's until the stream is through.
    pub unsafe fn convolve(&self, planned: &Planned, stream: Handle) -> Result<(), DriverError> {
        let api = self.api;
        // SAFETY: the handle and the stream are alive.
        api.check("cudnnSetStream", unsafe { (api.set_stream)(self.handle, stream) })?;
        // SAFETY: plan and addresses are finalized and alive; the caller says so of the memory.
        let status = unsafe { (api.execute)(self.handle, planned.plan.it, planned.pack.it) };
        api.check("cudnnBackendExecute", status)
    }
}

impl Drop for Convolver {
    fn drop(&mut self) {
        // SAFETY: the handle is alive and used for the last time; there is nobody left to tell of an error.
        unsafe { (self.api.destroy)(self.handle) };
    }
}

/// The graph of a convolution while it is made.
struct Graph<'a> {
    api: &'static Api,
    c: &'a Convolution,
    args: &'a [Address],
    /// Numbers of the tensors that lie at addresses, in their order.
    ids: Vec<i64>,
    /// All descriptors; operations know the others by their addresses.
    made: Vec<Descriptor>,
}

impl Graph<'_> {
    /// The convolution, then a tensor that is added, a line that is added, an activation.
    fn operations(&mut self) -> Result<Vec<Handle>, DriverError> {
        let c = self.c;
        let missing =
            || DriverError::Call { call: "cudnnBackendSetAttribute", words: "its result is too large".into() };
        let [h, w] = c.axes;
        let (oh, ow) = h.output().zip(w.output()).ok_or_else(missing)?;
        let image = [c.samples, c.inputs, h.input, w.input];
        let result = [c.samples, c.outputs, oh, ow];
        let x = self.tensor(image, true)?;
        let filters = self.tensor([c.outputs, c.inputs / c.groups.max(1), h.kernel, w.kernel], true)?;
        let added = c.added.map(|_| self.tensor(result, true)).transpose()?;
        let bias = c.bias.then(|| self.tensor([1, c.outputs, 1, 1], true)).transpose()?;
        let activation = match c.activation {
            Activation::None => None,
            Activation::Relu => Some(RELU),
            Activation::GeluByTanh => Some(GELU_BY_TANH),
            Activation::Gelu => Some(GELU),
            Activation::Silu => Some(SWISH),
        };
        let y = self.tensor(result, true)?;
        let mut after = [added.is_some(), bias.is_some(), activation.is_some()].into_iter().filter(|s| *s).count();
        let mut to = |graph: &mut Self| {
            after = after.saturating_sub(1);
            if after == 0 { Ok(y) } else { graph.tensor(result, false) }
        };
        let fused = bias.is_some() || added.is_some() || activation.is_some();
        let mut last = if fused { self.tensor(result, false)? } else { y };
        // Sums are multiplied by a number where nothing follows, else where they are added.
        let scale = if added.is_some() { 1.0 } else { c.scale };
        let mut operations = vec![self.forward(x, filters, last, scale)?];
        if let (Some(added), Some(more)) = (added, c.added) {
            let sum = to(self)?;
            operations.push(self.pointwise(ADD, [last, added], sum, [c.scale, more])?);
            last = sum;
        }
        if let Some(bias) = bias {
            let sum = to(self)?;
            operations.push(self.pointwise(ADD, [last, bias], sum, [1.0, 1.0])?);
            last = sum;
        }
        if let Some(activation) = activation {
            let end = to(self)?;
            operations.push(self.pointwise(activation, [last, null_mut()], end, [1.0, 1.0])?);
        }
        Ok(operations)
    }

    /// A tensor of images with channels last, `[samples, channels, height, width]`: one of the arguments, or one that is in no
    /// memory and is not rounded.
    fn tensor(&mut self, dims: [u64; 4], argument: bool) -> Result<Handle, DriverError> {
        let [_, channels, height, width] = dims;
        let strides = [height * width * channels, 1, width * channels, channels];
        let element = match self.c.dtype {
            _ if !argument => 0,
            DType::F16 => 2,
            DType::BF16 => 9,
            _ => 0,
        };
        let d = Descriptor::new(self.api, TENSOR)?;
        let (id, address) = (self.made.len() as i64 + 1, self.args.get(self.ids.len()).copied().unwrap_or_default());
        let aligned = 1i64 << address.trailing_zeros().min(MOST_ALIGNED.trailing_zeros());
        d.set(TENSOR_TYPE, DATA_TYPE, &[element as c_int])?;
        d.set(TENSOR_DIMENSIONS, INT64, &dims.map(|n| n as i64))?;
        d.set(TENSOR_STRIDES, INT64, &strides.map(|n| n as i64))?;
        d.set(TENSOR_ID, INT64, &[id])?;
        d.set(TENSOR_ALIGNMENT, INT64, &[if argument { aligned } else { MOST_ALIGNED as i64 }])?;
        if argument {
            self.ids.push(id);
        } else {
            d.set(TENSOR_VIRTUAL, BOOLEAN, &[1u8])?;
        }
        self.keep(d)
    }

    fn forward(&mut self, x: Handle, w: Handle, y: Handle, scale: f32) -> Result<Handle, DriverError> {
        let axes = self.c.axes;
        let of = |what: fn(&of_codegen::library::cudnn::Axis) -> u64| axes.map(|a| what(&a) as i64);
        let d = Descriptor::new(self.api, CONVOLUTION)?;
        d.set(CONVOLUTION_PRECISION, DATA_TYPE, &[0 as c_int])?;
        d.set(CONVOLUTION_WHICH, CONVOLUTION_MODE, &[CROSS_CORRELATION])?;
        d.set(CONVOLUTION_AXES, INT64, &[axes.len() as i64])?;
        d.set(CONVOLUTION_DILATIONS, INT64, &of(|a| a.dilation))?;
        d.set(CONVOLUTION_STRIDES, INT64, &of(|a| a.stride))?;
        d.set(CONVOLUTION_BEFORE, INT64, &of(|a| a.before))?;
        d.set(CONVOLUTION_AFTER, INT64, &of(|a| a.after))?;
        let convolution = self.keep(d)?;
        let d = Descriptor::new(self.api, FORWARD_OPERATION)?;
        d.set(FORWARD_CONVOLUTION, DESCRIPTOR, &[convolution])?;
        d.set(FORWARD_X, DESCRIPTOR, &[x])?;
        d.set(FORWARD_W, DESCRIPTOR, &[w])?;
        d.set(FORWARD_Y, DESCRIPTOR, &[y])?;
        d.set(FORWARD_ALPHA, FLOAT, &[scale])?;
        d.set(FORWARD_BETA, FLOAT, &[0f32])?;
        self.keep(d)
    }

    /// An operation on single elements, of one operand or two.
    fn pointwise(
        &mut self,
        mode: c_int,
        [x, b]: [Handle; 2],
        y: Handle,
        factors: [f32; 2],
    ) -> Result<Handle, DriverError> {
        let d = Descriptor::new(self.api, POINTWISE)?;
        d.set(POINTWISE_WHICH, POINTWISE_MODE, &[mode])?;
        d.set(POINTWISE_PRECISION, DATA_TYPE, &[0 as c_int])?;
        let pointwise = self.keep(d)?;
        let d = Descriptor::new(self.api, POINTWISE_OPERATION)?;
        d.set(OPERATION_POINTWISE, DESCRIPTOR, &[pointwise])?;
        d.set(OPERATION_X, DESCRIPTOR, &[x])?;
        d.set(OPERATION_Y, DESCRIPTOR, &[y])?;
        if !b.is_null() {
            d.set(OPERATION_B, DESCRIPTOR, &[b])?;
            for (what, factor) in OPERATION_ALPHA.into_iter().zip(factors) {
                d.set(what, FLOAT, &[factor])?;
            }
        }
        self.keep(d)
    }

    /// Finalizes a descriptor and keeps it as long as the graph.
    fn keep(&mut self, d: Descriptor) -> Result<Handle, DriverError> {
        d.finalize()?;
        let it = d.it;
        self.made.push(d);
        Ok(it)
    }
}

/// One of the library's descriptors.
struct Descriptor {
    api: &'static Api,
    it: Handle,
}

impl Descriptor {
    fn new(api: &'static Api, kind: c_int) -> Result<Descriptor, DriverError> {
        let mut it = null_mut();
        // SAFETY: the pointer is that of a local variable.
        api.check("cudnnBackendCreateDescriptor", unsafe { (api.descriptor)(kind, &mut it) })?;
        Ok(Descriptor { api, it })
    }

    /// Sets an attribute; `T` is what the library's type of it stands for.
    fn set<T>(&self, what: c_int, kind: c_int, values: &[T]) -> Result<(), DriverError> {
        // SAFETY: there are so many values, which are copied.
        let status = unsafe { (self.api.set)(self.it, what, kind, values.len() as i64, values.as_ptr().cast()) };
        self.api.check("cudnnBackendSetAttribute", status)
    }

    /// How many values an attribute has; those that there is room for are written.
    fn get<T>(&self, what: c_int, kind: c_int, room: &mut [T]) -> Result<usize, DriverError> {
        let mut count = 0;
        let to: *mut c_void = if room.is_empty() { null_mut() } else { room.as_mut_ptr().cast() };
        // SAFETY: there is room for so many values.
        let status = unsafe { (self.api.get)(self.it, what, kind, room.len() as i64, &mut count, to) };
        self.api.check("cudnnBackendGetAttribute", status)?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    fn finalize(&self) -> Result<(), DriverError> {
        // SAFETY: the descriptor is alive.
        self.api.check("cudnnBackendFinalize", unsafe { (self.api.finalize)(self.it) })
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: the descriptor is alive and used for the last time.
        unsafe { (self.api.destroy_descriptor)(self.it) };
    }
}
