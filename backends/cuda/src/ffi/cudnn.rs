//! cuDNN, loaded when it is needed.
//!
//! The library represents a convolution and its epilogue as a graph of operations, in descriptors that are created, filled
//! and finalized. Its heuristics list engine configurations for a graph, best first. The first one with our numerics that
//! fits our workspace becomes a plan, which is executed with the addresses of its tensors.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;

use of_codegen::vendor_libraries::cudnn::Convolution;
use of_codegen::vendor_libraries::epilogue::Activation;
use of_codegen::vendor_libraries::{FloatPrecision, VendorLibrary};
use of_cuda_sys::cudnn as sys;
use of_cuda_sys::{call, functions, open_first};
use of_ir::DType;
use sys::cudnnBackendAttributeName_t::*;
use sys::cudnnBackendAttributeType_t::*;
use sys::cudnnBackendDescriptorType_t::*;
use sys::cudnnBackendHeurMode_t::*;
use sys::cudnnBackendNumericalNote_t::*;
use sys::cudnnConvolutionMode_t;
use sys::cudnnDataType_t::*;
use sys::cudnnPointwiseMode_t::*;

use super::{Address, Handle, Stream};
use crate::driver::DriverError;
use crate::program::WORKSPACE;

/// Names of the library.
const NAMES: &[&str] = &["libcudnn.so.9"];
/// The oldest version of the library that is known to work.
const VERSION: usize = 9_00_00;

functions! {
    /// The functions of cuDNN that are used.
    struct Api {
        cudnnGetVersion, cudnnGetErrorString, cudnnCreate, cudnnDestroy, cudnnSetStream, cudnnBackendCreateDescriptor,
        cudnnBackendDestroyDescriptor, cudnnBackendSetAttribute, cudnnBackendGetAttribute, cudnnBackendFinalize,
        cudnnBackendExecute,
    }
}

/// An upper bound on the notes of an engine.
const NOTES: usize = 32;
/// The largest alignment of a tensor that the library considers.
const MAX_ALIGNMENT: Address = 16;

impl Api {
    fn get() -> Result<&'static Api, DriverError> {
        static API: OnceLock<Result<Api, String>> = OnceLock::new();
        let load = || {
            let api = Api::bind(open_first(VendorLibrary::Cudnn.env_var(), NAMES)?).map_err(|e| e.to_string())?;
            // SAFETY: the function takes nothing.
            match unsafe { call!(api, cudnnGetVersion()) } {
                version if version < VERSION => Err(format!("its version is {version}, which is older than {VERSION}")),
                _ => Ok(api),
            }
        };
        let missing = |why: &String| DriverError::NoLibrary { library: VendorLibrary::Cudnn, why: why.clone() };
        API.get_or_init(load).as_ref().map_err(missing)
    }

    fn check(&self, call: &'static str, status: u32) -> Result<(), DriverError> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the library returns a constant string for every status.
        let words = unsafe {
            let words = call!(self, cudnnGetErrorString(status));
            if words.is_null() { "unknown".into() } else { CStr::from_ptr(words).to_string_lossy().into_owned() }
        };
        Err(DriverError::Call { call, words: format!("{words} ({status})") })
    }
}

/// The library handle and the workspace that it may write to during a computation.
pub struct Cudnn {
    api: &'static Api,
    handle: Handle,
    workspace: Address,
}

// SAFETY: the library's handle may be used by any thread, one at a time.
unsafe impl Send for Cudnn {}

/// A planned convolution: a plan of the library, its addresses, and the descriptors of both.
pub struct ConvolutionPlan {
    plan: Descriptor,
    pack: Descriptor,
    _made_of: Vec<Descriptor>,
}

// SAFETY: as above.
unsafe impl Send for ConvolutionPlan {}

impl Cudnn {
    /// Opens the library for the calling thread's context. [`WORKSPACE`] bytes from `workspace` on are reserved for it.
    ///
    /// # Errors
    /// When the machine does not have it, it is too old, or it does not start.
    pub fn open(workspace: Address) -> Result<Cudnn, DriverError> {
        let api = Api::get()?;
        let mut handle: Handle = null_mut();
        // SAFETY: the pointer is that of a local variable.
        api.check("cudnnCreate", unsafe { call!(api, cudnnCreate((&raw mut handle).cast())) })?;
        Ok(Cudnn { api, handle, workspace })
    }

    /// Plans a convolution; `args` are addresses as [`Convolution`] has them.
    ///
    /// # Errors
    /// When the library rejects it.
    pub fn plan(&self, c: &Convolution, args: &[Address]) -> Result<ConvolutionPlan, DriverError> {
        let mut parts = Graph { api: self.api, c, args, ids: Vec::new(), made: Vec::new() };
        let operations = parts.operations()?;
        let graph = self.descriptor(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?;
        graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, &[self.handle])?;
        graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, &operations)?;
        graph.finalize()?;
        let pack = self.descriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)?;
        pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, &parts.ids)?;
        pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, args)?;
        pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, &[self.workspace])?;
        pack.finalize()?;
        let mut made = parts.made;
        let mut why = None;
        for mode in [CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK] {
            let heuristics = self.descriptor(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)?;
            heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, &[graph.it])?;
            heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, &[mode])?;
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
                        return Ok(ConvolutionPlan { plan, pack, _made_of: made });
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

    fn descriptor(&self, kind: sys::cudnnBackendDescriptorType_t) -> Result<Descriptor, DriverError> {
        Descriptor::new(self.api, kind)
    }

    /// The configurations that the heuristics return.
    fn configurations(&self, heuristics: &Descriptor) -> Result<Vec<Descriptor>, DriverError> {
        let count = heuristics.get::<Handle>(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, &mut [])?;
        let all =
            (0..count).map(|_| self.descriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)).collect::<Result<Vec<_>, _>>()?;
        let mut handles: Vec<Handle> = all.iter().map(|d| d.it).collect();
        let count = heuristics.get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, &mut handles)?;
        Ok(all.into_iter().take(count).collect())
    }

    /// Whether the engine of a configuration has the requested numerics and is deterministic.
    fn computes_so(&self, c: &Convolution, configuration: &Descriptor) -> Result<bool, DriverError> {
        let engine = self.descriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR)?;
        configuration.get(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, &mut [engine.it])?;
        let mut notes: [c_int; NOTES] = [0; NOTES];
        let count = engine.get(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, &mut notes)?;
        let tensor_cores = c.dtype != DType::F32 || c.precision == FloatPrecision::Tf32;
        // The other notes mean reduced-precision operands or sums, transforms that round (FFT, Winograd), or sums in any
        // order.
        let plain = |note: &c_int| {
            *note == CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP as c_int
                || (*note == CUDNN_NUMERICAL_NOTE_TENSOR_CORE as c_int && tensor_cores)
        };
        Ok(notes[..count.min(NOTES)].iter().all(plain))
    }

    /// The plan of a configuration, and the workspace bytes that it needs.
    fn made_of(&self, configuration: &Descriptor) -> Result<(Descriptor, u64), DriverError> {
        let plan = self.descriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?;
        plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, &[self.handle])?;
        plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, &[configuration.it])?;
        plan.finalize()?;
        let mut bytes = [0i64];
        plan.get(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, &mut bytes)?;
        Ok((plan, bytes[0].unsigned_abs()))
    }

    /// Enqueues a convolution on a stream.
    ///
    /// # Errors
    /// When the library rejects it.
    ///
    /// # Safety
    /// The ranges that the convolution accesses from each address on, and the workspace, are device memory. Nothing else
    /// uses the result and the workspace until the stream completes.
    pub unsafe fn convolve(&self, planned: &ConvolutionPlan, stream: Stream) -> Result<(), DriverError> {
        let api = self.api;
        // SAFETY: the handle and the stream are alive.
        api.check("cudnnSetStream", unsafe { call!(api, cudnnSetStream(self.handle.cast(), stream.cast())) })?;
        // SAFETY: plan and addresses are finalized and alive; the caller guarantees the memory.
        let status = unsafe { call!(api, cudnnBackendExecute(self.handle.cast(), planned.plan.it, planned.pack.it)) };
        api.check("cudnnBackendExecute", status)
    }
}

impl Drop for Cudnn {
    fn drop(&mut self) {
        // SAFETY: the handle is alive and used for the last time. An error cannot be reported here.
        unsafe { call!(self.api, cudnnDestroy(self.handle.cast())) };
    }
}

/// The graph of a convolution under construction.
struct Graph<'a> {
    api: &'static Api,
    c: &'a Convolution,
    args: &'a [Address],
    /// Numbers of the tensors that have addresses, in order.
    ids: Vec<i64>,
    /// All descriptors; operations reference the others by address.
    made: Vec<Descriptor>,
}

impl Graph<'_> {
    /// The convolution, then optionally a residual tensor, a bias and an activation.
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
        let residual = c.residual.map(|_| self.tensor(result, true)).transpose()?;
        let bias = c.bias.then(|| self.tensor([1, c.outputs, 1, 1], true)).transpose()?;
        let activation = match c.activation {
            Activation::None => None,
            Activation::Relu => Some(CUDNN_POINTWISE_RELU_FWD),
            Activation::GeluByTanh => Some(CUDNN_POINTWISE_GELU_APPROX_TANH_FWD),
            Activation::Gelu => Some(CUDNN_POINTWISE_GELU_FWD),
            Activation::Silu => Some(CUDNN_POINTWISE_SWISH_FWD),
        };
        let y = self.tensor(result, true)?;
        let mut after = [residual.is_some(), bias.is_some(), activation.is_some()].into_iter().filter(|s| *s).count();
        let mut to = |graph: &mut Self| {
            after = after.saturating_sub(1);
            if after == 0 { Ok(y) } else { graph.tensor(result, false) }
        };
        let fused = bias.is_some() || residual.is_some() || activation.is_some();
        let mut last = if fused { self.tensor(result, false)? } else { y };
        // The scale factor applies to the convolution if nothing follows, else to the addition.
        let scale = if residual.is_some() { 1.0 } else { c.scale };
        let mut operations = vec![self.forward(x, filters, last, scale)?];
        if let (Some(residual), Some(more)) = (residual, c.residual) {
            let sum = to(self)?;
            operations.push(self.pointwise(CUDNN_POINTWISE_ADD, [last, residual], sum, [c.scale, more])?);
            last = sum;
        }
        if let Some(bias) = bias {
            let sum = to(self)?;
            operations.push(self.pointwise(CUDNN_POINTWISE_ADD, [last, bias], sum, [1.0, 1.0])?);
            last = sum;
        }
        if let Some(activation) = activation {
            let end = to(self)?;
            operations.push(self.pointwise(activation, [last, null_mut()], end, [1.0, 1.0])?);
        }
        Ok(operations)
    }

    /// A tensor of images with channels last, `[samples, channels, height, width]`: an argument, or a virtual tensor that is
    /// not stored and not rounded.
    fn tensor(&mut self, dims: [u64; 4], argument: bool) -> Result<Handle, DriverError> {
        let [_, channels, height, width] = dims;
        let strides = [height * width * channels, 1, width * channels, channels];
        let element = match self.c.dtype {
            _ if !argument => CUDNN_DATA_FLOAT,
            DType::F16 => CUDNN_DATA_HALF,
            DType::BF16 => CUDNN_DATA_BFLOAT16,
            _ => CUDNN_DATA_FLOAT,
        };
        let d = Descriptor::new(self.api, CUDNN_BACKEND_TENSOR_DESCRIPTOR)?;
        let (id, address) = (self.made.len() as i64 + 1, self.args.get(self.ids.len()).copied().unwrap_or_default());
        let aligned = 1i64 << address.trailing_zeros().min(MAX_ALIGNMENT.trailing_zeros());
        d.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, &[element])?;
        d.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, &dims.map(|n| n as i64))?;
        d.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, &strides.map(|n| n as i64))?;
        d.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, &[id])?;
        d.set(
            CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT,
            CUDNN_TYPE_INT64,
            &[if argument { aligned } else { MAX_ALIGNMENT as i64 }],
        )?;
        if argument {
            self.ids.push(id);
        } else {
            d.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, &[1u8])?;
        }
        self.keep(d)
    }

    fn forward(&mut self, x: Handle, w: Handle, y: Handle, scale: f32) -> Result<Handle, DriverError> {
        let axes = self.c.axes;
        let of = |what: fn(&of_codegen::vendor_libraries::cudnn::ConvolutionAxis) -> u64| axes.map(|a| what(&a) as i64);
        let d = Descriptor::new(self.api, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR)?;
        d.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, &[CUDNN_DATA_FLOAT])?;
        d.set(
            CUDNN_ATTR_CONVOLUTION_CONV_MODE,
            CUDNN_TYPE_CONVOLUTION_MODE,
            &[cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION],
        )?;
        d.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, &[axes.len() as i64])?;
        d.set(CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, &of(|a| a.dilation))?;
        d.set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, &of(|a| a.stride))?;
        d.set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, &of(|a| a.before))?;
        d.set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, &of(|a| a.after))?;
        let convolution = self.keep(d)?;
        let d = Descriptor::new(self.api, CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR)?;
        d.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, &[convolution])?;
        d.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_TYPE_BACKEND_DESCRIPTOR, &[x])?;
        d.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, CUDNN_TYPE_BACKEND_DESCRIPTOR, &[w])?;
        d.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, CUDNN_TYPE_BACKEND_DESCRIPTOR, &[y])?;
        d.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_TYPE_FLOAT, &[scale])?;
        d.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, CUDNN_TYPE_FLOAT, &[0f32])?;
        self.keep(d)
    }

    /// An elementwise operation of one operand or two.
    fn pointwise(
        &mut self,
        mode: sys::cudnnPointwiseMode_t,
        [x, b]: [Handle; 2],
        y: Handle,
        factors: [f32; 2],
    ) -> Result<Handle, DriverError> {
        let d = Descriptor::new(self.api, CUDNN_BACKEND_POINTWISE_DESCRIPTOR)?;
        d.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, &[mode])?;
        d.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, &[CUDNN_DATA_FLOAT])?;
        let pointwise = self.keep(d)?;
        let d = Descriptor::new(self.api, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)?;
        d.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_TYPE_BACKEND_DESCRIPTOR, &[pointwise])?;
        d.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, &[x])?;
        d.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, &[y])?;
        if !b.is_null() {
            d.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, &[b])?;
            for (what, factor) in
                [CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2].into_iter().zip(factors)
            {
                d.set(what, CUDNN_TYPE_FLOAT, &[factor])?;
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
    fn new(api: &'static Api, kind: sys::cudnnBackendDescriptorType_t) -> Result<Descriptor, DriverError> {
        let mut it = null_mut();
        // SAFETY: the pointer is that of a local variable.
        api.check("cudnnBackendCreateDescriptor", unsafe { call!(api, cudnnBackendCreateDescriptor(kind, &mut it)) })?;
        Ok(Descriptor { api, it })
    }

    /// Sets an attribute; `T` is the Rust type of the library's attribute type.
    fn set<T>(
        &self,
        name: sys::cudnnBackendAttributeName_t,
        kind: sys::cudnnBackendAttributeType_t,
        values: &[T],
    ) -> Result<(), DriverError> {
        // SAFETY: the array has this many values, which are copied.
        let status = unsafe {
            call!(self.api, cudnnBackendSetAttribute(self.it, name, kind, values.len() as i64, values.as_ptr().cast()))
        };
        self.api.check("cudnnBackendSetAttribute", status)
    }

    /// The number of values of an attribute; as many as fit are written.
    fn get<T>(
        &self,
        name: sys::cudnnBackendAttributeName_t,
        kind: sys::cudnnBackendAttributeType_t,
        room: &mut [T],
    ) -> Result<usize, DriverError> {
        let mut count = 0;
        let to: *mut c_void = if room.is_empty() { null_mut() } else { room.as_mut_ptr().cast() };
        // SAFETY: the array has room for this many values.
        let status = unsafe {
            call!(self.api, cudnnBackendGetAttribute(self.it, name, kind, room.len() as i64, &mut count, to))
        };
        self.api.check("cudnnBackendGetAttribute", status)?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    fn finalize(&self) -> Result<(), DriverError> {
        // SAFETY: the descriptor is alive.
        self.api.check("cudnnBackendFinalize", unsafe { call!(self.api, cudnnBackendFinalize(self.it)) })
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: the descriptor is alive and used for the last time.
        unsafe { call!(self.api, cudnnBackendDestroyDescriptor(self.it)) };
    }
}
