//! Ops across the interface: their declarations, and calls of their functions.

use std::ffi::{CStr, CString, c_char, c_void};

use of_codegen::physical::{dtype_of, element_type};
use of_ir::{Attr, Attrs, Dim, Graph, OpView, Rewriter, Tensor, TensorType, Type, ValueId};
use of_ops::structural::{Constant, NoneValue};
use of_ops::{Inputs, Launch, OpSpec, Value};
use of_plan::ElementType;
use of_runtime::Tensor as RuntimeTensor;

use super::{Bytes, Results, Sink, TensorView, allocate, guarded, slice, with_sink};
use crate::signature::print_signature;

/// Version of this part of the interface.
pub const VERSION: u32 = 1;

/// The rank of a tensor whose rank is not known.
pub const NO_RANK: u32 = u32::MAX;
/// An unknown extent.
pub const UNKNOWN: i64 = i64::MIN;

/// The kinds of attributes that the interface supports, by number; 0 is an absent one.
const KINDS: [&str; 7] = ["", "bool", "integer", "float", "string", "integer list", "float list"];

/// The value of an attribute.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Attribute {
    kind: u32,
    /// bool, integer.
    integer: i64,
    /// float.
    number: f64,
    /// Characters, `i64` or `f64`.
    list: *const c_void,
    count: usize,
}

/// The arguments of an op's function.
#[repr(C)]
pub struct Call {
    attrs: *const Attribute,
    attr_count: usize,
    operands: *const TensorView,
    operand_count: usize,
    /// Types of the results; null when they are requested.
    results: *const TensorView,
    result_count: usize,
}

/// An operand or a result.
#[repr(C)]
pub struct SlotEntry {
    name: *const c_char,
    /// 0 one, 1 optional, 2 any number.
    arity: u32,
}

/// An attribute.
#[repr(C)]
pub struct AttrEntry {
    name: *const c_char,
    kind: u32,
    optional: u32,
}

type ComputeFn = unsafe extern "C" fn(*const Call, Results, Sink) -> i32;
type TextFn = unsafe extern "C" fn(*const Call, Sink) -> i32;
type CudaFn = unsafe extern "C" fn(*const Call, *mut LaunchView, Sink) -> i32;

/// How often a kernel's text runs.
#[repr(C)]
#[derive(Default)]
pub struct LaunchView {
    /// 0 threads, 1 blocks.
    unit: u32,
    count: u64,
}

/// An op.
#[repr(C)]
pub struct OpEntry {
    name: *const c_char,
    doc: *const c_char,
    /// `domain::Name`, or null.
    onnx: *const c_char,
    operands: *const SlotEntry,
    operand_count: usize,
    results: *const SlotEntry,
    result_count: usize,
    attrs: *const AttrEntry,
    attr_count: usize,
    infer: ComputeFn,
    compute: ComputeFn,
    sbp: Option<TextFn>,
    cuda: Option<CudaFn>,
    /// The op that computes the gradients, or null.
    gradient: *const c_char,
}

/// Bytes of an entry without the fields that were added last: `gradient`.
const SMALLEST_ENTRY: usize = std::mem::offset_of!(OpEntry, gradient);

/// What a library exports.
#[repr(C)]
pub struct OpTable {
    version: u32,
    /// Bytes of an [`OpEntry`].
    size: u32,
    ops: *const OpEntry,
    count: usize,
}

// ---- the loading side ----

/// An op of a library, which stays loaded.
#[derive(Clone, Copy)]
pub struct LoadedOp(&'static OpEntry);

// SAFETY: the entry is constant, and the interface says that its functions may be called from any thread.
unsafe impl Send for LoadedOp {}
// SAFETY: as above.
unsafe impl Sync for LoadedOp {}

/// The description of an op of a library.
pub struct Declared {
    pub name: &'static str,
    pub doc: &'static str,
    pub onnx: Option<&'static str>,
    pub operands: Vec<DeclaredSlot>,
    pub results: Vec<DeclaredSlot>,
    pub attrs: Vec<of_ir::AttrSlot>,
    pub gradient: Option<&'static str>,
    pub calls: LoadedOp,
}

/// An operand or result of it.
pub struct DeclaredSlot {
    pub name: &'static str,
    pub arity: u32,
}

/// Operand or result of a call.
pub struct View<'a> {
    /// Element type; `Unknown` for an operand that is left out.
    pub dtype: ElementType,
    /// Extents; `None` where the rank is not known.
    pub dims: Option<&'a [i64]>,
    /// Elements, where they are known.
    pub data: Option<&'a [u8]>,
}

fn views(list: &[View<'_>]) -> Vec<TensorView> {
    let view = |v: &View<'_>| {
        let mut t = super::tensor(v.dtype, v.dims.unwrap_or_default(), v.data.unwrap_or_default());
        if v.dims.is_none() {
            t.rank = NO_RANK;
        }
        if v.data.is_none() {
            t.data = std::ptr::null();
        }
        t
    };
    list.iter().map(view).collect()
}

fn attribute(a: Option<&Attr>) -> Attribute {
    let none = Attribute { kind: 0, integer: 0, number: 0.0, list: std::ptr::null(), count: 0 };
    match a {
        Some(Attr::Bool(b)) => Attribute { kind: 1, integer: i64::from(*b), ..none },
        Some(Attr::Int(i)) => Attribute { kind: 2, integer: *i, ..none },
        Some(Attr::Float(x)) => Attribute { kind: 3, number: *x, ..none },
        Some(Attr::Str(s)) => Attribute { kind: 4, list: s.as_ptr().cast(), count: s.len(), ..none },
        Some(Attr::Ints(l)) => Attribute { kind: 5, list: l.as_ptr().cast(), count: l.len(), ..none },
        Some(Attr::Floats(l)) => Attribute { kind: 6, list: l.as_ptr().cast(), count: l.len(), ..none },
        _ => none,
    }
}

/// Element type and, where the rank is known, extents of a result.
pub type ResultType = (ElementType, Option<Vec<i64>>);

/// The arguments of a call.
pub struct CallArgs<'a> {
    /// Attributes in the order of the declaration.
    pub attrs: Vec<Option<&'a Attr>>,
    /// Operands.
    pub operands: Vec<View<'a>>,
    /// Results, where their types are known.
    pub results: Vec<View<'a>>,
}

impl LoadedOp {
    fn with_call<R>(q: &CallArgs<'_>, f: impl FnOnce(*const Call) -> R) -> R {
        let attrs: Vec<Attribute> = q.attrs.iter().map(|a| attribute(*a)).collect();
        let (operands, results) = (views(&q.operands), views(&q.results));
        f(&Call {
            attrs: attrs.as_ptr(),
            attr_count: attrs.len(),
            operands: operands.as_ptr(),
            operand_count: operands.len(),
            results: results.as_ptr(),
            result_count: results.len(),
        })
    }

    /// Element types and extents of `count` results.
    pub fn infer(self, q: &CallArgs<'_>, count: usize) -> Result<Vec<ResultType>, String> {
        let mut types: Vec<Option<ResultType>> = vec![None; count];
        let mut to = &mut types[..];
        let results = Results { context: (&raw mut to).cast(), allocate: note, count };
        // SAFETY: the call and what it shows live for the call.
        with_sink(|sink| Self::with_call(q, |call| unsafe { (self.0.infer)(call, results, sink) }))?;
        let given = |(i, t): (usize, Option<_>)| t.ok_or_else(|| format!("it does not set the type of result {i}"));
        types.into_iter().enumerate().map(given).collect()
    }

    /// The results, into `given`.
    pub fn compute(self, q: &CallArgs<'_>, given: &mut [Option<RuntimeTensor>]) -> Result<(), String> {
        let count = given.len();
        let mut given = given;
        let results = Results { context: (&raw mut given).cast(), allocate, count };
        // SAFETY: as above.
        with_sink(|sink| Self::with_call(q, |call| unsafe { (self.0.compute)(call, results, sink) })).map(drop)
    }

    /// Its SBP signatures, one for each line; none if it has no such function.
    pub fn sbp(self, q: &CallArgs<'_>) -> Result<String, String> {
        let Some(sbp) = self.0.sbp else { return Ok(String::new()) };
        // SAFETY: as above.
        text(with_sink(|sink| Self::with_call(q, |call| unsafe { sbp(call, sink) }))?)
    }

    /// Its kernel for GPUs.
    pub fn cuda(self, q: &CallArgs<'_>) -> Result<(String, Launch), String> {
        let cuda = self.0.cuda.ok_or("its library has no CUDA source for it")?;
        let mut launch = LaunchView::default();
        // SAFETY: as above.
        let out = with_sink(|sink| Self::with_call(q, |call| unsafe { cuda(call, &mut launch, sink) }))?;
        let launch = if launch.unit == 0 { Launch::Threads(launch.count) } else { Launch::Blocks(launch.count) };
        Ok((text(out)?, launch))
    }
}

fn text(bytes: Vec<u8>) -> Result<String, String> {
    String::from_utf8(bytes).map_err(|_| "its text is not UTF-8".into())
}

unsafe extern "C" fn note(context: *mut c_void, index: usize, dtype: u32, dims: *const i64, rank: u32) -> *mut u8 {
    // SAFETY: the context is the slice of `LoadedOp::infer`; dims are `rank` numbers, as the interface says.
    let (types, dims) = unsafe {
        let types = &mut **context.cast::<&mut [Option<ResultType>]>();
        let dims = match rank {
            NO_RANK => None,
            0 => Some(&[][..]),
            n => Some(std::slice::from_raw_parts(dims, n as usize)),
        };
        (types, dims)
    };
    let dtype = i32::try_from(dtype).ok().and_then(|d| ElementType::try_from(d).ok());
    match (types.get_mut(index), dtype) {
        (Some(place), Some(dtype)) => {
            *place = Some((dtype, dims.map(<[i64]>::to_vec)));
            // A dummy address that is not null, which signals success.
            std::ptr::dangling_mut()
        }
        _ => std::ptr::null_mut(),
    }
}

/// The list of a table.
///
/// # Safety
/// `at` must be `count` values that live for the program, or null.
unsafe fn list<T>(at: *const T, count: usize) -> &'static [T] {
    // SAFETY: the caller says so.
    if at.is_null() || count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(at, count) } }
}

/// A text of a table.
///
/// # Safety
/// It must end with a zero and live for the program, or be null.
unsafe fn word(at: *const c_char, what: &str) -> Result<&'static str, String> {
    if at.is_null() {
        return Err(format!("{what} is missing"));
    }
    // SAFETY: the caller says so.
    unsafe { CStr::from_ptr(at) }.to_str().map_err(|_| format!("{what} is not UTF-8"))
}

/// The table that a library's function returns.
///
/// # Safety
/// It must be a table as the interface says, which lives for the program.
pub unsafe fn read(table: *const OpTable) -> Result<Vec<Declared>, String> {
    if table.is_null() {
        return Err("of_ops returns null".into());
    }
    // SAFETY: version and size come first in every version of the table.
    let (version, size) = unsafe { ((*table).version, (*table).size) };
    let size = size as usize;
    if version != VERSION || size < SMALLEST_ENTRY || !size.is_multiple_of(align_of::<OpEntry>()) {
        return Err(format!("its ops implement version {version} of the interface, this program version {VERSION}"));
    }
    // SAFETY: the caller says that it is what it says.
    let bytes = unsafe { list((*table).ops.cast::<u8>(), (*table).count.saturating_mul(size)) };
    let ops: Vec<Declared> = bytes.chunks_exact(size).map(|bytes| declared(entry(bytes))).collect::<Result<_, _>>()?;
    ops.iter().try_for_each(|op| check_gradient(op, &ops))?;
    Ok(ops)
}

/// An entry of a table, for the rest of the process. Fields that the library does not know are null.
fn entry(bytes: &'static [u8]) -> &'static OpEntry {
    let mut own = std::mem::MaybeUninit::<OpEntry>::zeroed();
    let len = bytes.len().min(size_of::<OpEntry>());
    // SAFETY: both are memory of at least `len` bytes, and no field but pointers and numbers that may be null is behind the bytes.
    let own = unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), own.as_mut_ptr().cast::<u8>(), len);
        own.assume_init()
    };
    Box::leak(Box::new(own))
}

/// Whether the gradient of an op is one of the library, of operands that fit.
fn check_gradient(op: &Declared, all: &[Declared]) -> Result<(), String> {
    let Some(name) = op.gradient else { return Ok(()) };
    let wrong = |what: String| Err(format!("'{}': its gradient '{name}' {what}", op.name));
    let Some(gradient) = all.iter().find(|other| other.name == name) else {
        return wrong("is no op of the library".into());
    };
    if op.operands.iter().chain(&gradient.operands).any(|slot| slot.arity == 2) {
        return wrong("is of an op with any number of operands".into());
    }
    let count = op.operands.len() + 2 * op.results.len();
    if gradient.operands.len() != count {
        let given = gradient.operands.len();
        return wrong(format!("has {given} operands, not {count}: operands, results, and gradients of the results"));
    }
    match gradient.results.iter().find(|r| op.operands.iter().all(|o| o.name != r.name)) {
        Some(other) => wrong(format!("has a result '{}', which is no operand", other.name)),
        None => Ok(()),
    }
}

fn declared(entry: &'static OpEntry) -> Result<Declared, String> {
    // SAFETY: lists and texts are what the interface says.
    unsafe {
        let name = word(entry.name, "the name of an op")?;
        let slots = |list: &'static [SlotEntry]| {
            let slot =
                |s: &SlotEntry| Ok(DeclaredSlot { name: word(s.name, "the name of an operand")?, arity: s.arity });
            list.iter().map(slot).collect::<Result<Vec<_>, String>>()
        };
        let attrs = list(entry.attrs, entry.attr_count).iter().map(|a| {
            let attr = word(a.name, "the name of an attribute")?;
            let kind = KINDS.get(a.kind as usize).filter(|k| !k.is_empty());
            let kind =
                kind.ok_or_else(|| format!("'{name}': attribute '{attr}' has a kind that libraries do not support"))?;
            Ok(of_ir::AttrSlot { name: attr, kind, optional: a.optional != 0 })
        });
        Ok(Declared {
            name,
            doc: word(entry.doc, "the documentation of an op").unwrap_or_default(),
            onnx: if entry.onnx.is_null() { None } else { Some(word(entry.onnx, "the ONNX name of an op")?) },
            operands: slots(list(entry.operands, entry.operand_count))?,
            results: slots(list(entry.results, entry.result_count))?,
            attrs: attrs.collect::<Result<Vec<_>, String>>()?,
            gradient: match entry.gradient.is_null() {
                true => None,
                false => Some(word(entry.gradient, "the gradient of an op")?),
            },
            calls: LoadedOp(entry),
        })
    }
}

// ---- the loaded side ----

/// Exports ops from a `cdylib`: types that [`of_ops::op!`] declares. `=>` names the op that computes the gradients of another one.
///
/// ```ignore
/// of_library::export_ops!(Swish => SwishGradient, SwishGradient, Scale);
/// ```
#[macro_export]
macro_rules! export_ops {
    ($($op:ty $(=> $gradient:ty)?),+ $(,)?) => {
        /// The ops of this library.
        #[unsafe(no_mangle)]
        pub extern "C" fn of_ops() -> *const $crate::OpTable {
            $crate::op_table(vec![$($crate::op_entry::<$op>()$(.with_gradient::<$gradient>())?),+])
        }
    };
}

/// The table of ops: what [`crate::export_ops!`] gives.
pub fn op_table(ops: Vec<OpEntry>) -> *const OpTable {
    let ops = Box::leak(ops.into_boxed_slice());
    // Made once for each library, which stays loaded.
    Box::leak(Box::new(OpTable {
        version: VERSION,
        size: size_of::<OpEntry>() as u32,
        ops: ops.as_ptr(),
        count: ops.len(),
    }))
}

/// A text of a table.
fn text_of(s: &str) -> *const c_char {
    Box::leak(CString::new(s).unwrap_or_default().into_boxed_c_str()).as_ptr()
}

impl OpEntry {
    /// The entry with the op that computes the gradients.
    pub fn with_gradient<G: OpSpec>(self) -> OpEntry {
        OpEntry { gradient: text_of(G::NAME), ..self }
    }
}

/// The entry of an op. An attribute of an unsupported kind has the kind 0, which the loading side rejects.
pub fn op_entry<T: OpSpec>() -> OpEntry {
    use text_of as text;
    fn leak<E>(list: Vec<E>) -> (*const E, usize) {
        let list = Box::leak(list.into_boxed_slice());
        (list.as_ptr(), list.len())
    }
    let slot = |s: &of_ir::Slot| SlotEntry { name: text(s.name), arity: s.arity as u32 };
    let attr = |a: &of_ir::AttrSlot| AttrEntry {
        name: text(a.name),
        kind: KINDS.iter().position(|k| *k == a.kind).unwrap_or(0) as u32,
        optional: u32::from(a.optional),
    };
    let (operands, operand_count) = leak(T::SIGNATURE.operands.iter().map(slot).collect());
    let (results, result_count) = leak(T::SIGNATURE.results.iter().map(slot).collect());
    let (attrs, attr_count) = leak(T::SIGNATURE.attrs.iter().map(attr).collect());
    OpEntry {
        name: text(T::NAME),
        doc: text(T::DOC.trim()),
        onnx: T::ONNX.first().map_or(std::ptr::null(), |n| text(n)),
        operands,
        operand_count,
        results,
        result_count,
        attrs,
        attr_count,
        infer: infer::<T>,
        compute: compute::<T>,
        sbp: Some(sbp::<T>),
        cuda: Some(cuda::<T>),
        gradient: std::ptr::null(),
    }
}

/// The arguments of a call as the op's own functions take them.
struct OpCall<T> {
    graph: Graph,
    operands: Vec<ValueId>,
    attrs: Attrs,
    results: Vec<Type>,
    op: T,
}

impl<T: OpSpec> OpCall<T> {
    /// # Safety
    /// The call must be as the interface says.
    unsafe fn read(call: *const Call) -> Result<OpCall<T>, String> {
        // SAFETY: the caller says so.
        let (attrs, operands, results) = unsafe {
            let c = &*call;
            let (o, r) = (list(c.operands, c.operand_count), list(c.results, c.result_count));
            let given = list(c.attrs, c.attr_count);
            let attrs: Attrs =
                T::SIGNATURE.attrs.iter().zip(given).filter_map(|(s, a)| Some((s.name.into(), value(a)?))).collect();
            let types = |l: &[TensorView]| l.iter().map(|v| ty(*v)).collect::<Result<Vec<_>, String>>();
            let known: Vec<Option<Tensor>> = o.iter().map(|v| constant(*v)).collect();
            (attrs, types(o)?.into_iter().zip(known).collect::<Vec<_>>(), types(r)?)
        };
        let op = T::from_attrs(&attrs).map_err(|e| e.message)?;
        let mut graph = Graph::new();
        let entry = graph.entry();
        let mut rw = Rewriter::new(&mut graph, "call");
        rw.at_end(entry);
        let mut values = Vec::new();
        for (ty, known) in operands {
            let made = match (ty, known) {
                (Type::None, _) => rw.create_one(NoneValue {}, &[]),
                (_, Some(value)) => rw.create_one(Constant { value }, &[]),
                (ty, None) => Ok(rw.add_arg(entry, ty, None)),
            };
            values.push(made.map_err(|d| d.message)?);
        }
        Ok(OpCall { graph, operands: values, attrs, results, op })
    }

    fn view(&self) -> OpView<'_> {
        OpView { graph: &self.graph, operands: &self.operands, attrs: &self.attrs, regions: &[] }
    }
}

/// # Safety
/// The attribute must be as the interface says.
unsafe fn value(a: &Attribute) -> Option<Attr> {
    // SAFETY: the caller says so; a null list is none.
    unsafe {
        match a.kind {
            1 => Some(Attr::Bool(a.integer != 0)),
            2 => Some(Attr::Int(a.integer)),
            3 => Some(Attr::Float(a.number)),
            4 => Some(Attr::Str(String::from_utf8_lossy(list::<u8>(a.list.cast(), a.count)).into())),
            5 => Some(Attr::Ints(list::<i64>(a.list.cast(), a.count).to_vec())),
            6 => Some(Attr::Floats(list::<f64>(a.list.cast(), a.count).to_vec())),
            _ => None,
        }
    }
}

/// # Safety
/// The view must be as the interface says.
unsafe fn ty(v: TensorView) -> Result<Type, String> {
    let dtype = i32::try_from(v.dtype).ok().and_then(|d| ElementType::try_from(d).ok());
    let dtype = dtype.ok_or_else(|| format!("element type {} is not known", v.dtype))?;
    let Some(dtype) = dtype_of(dtype) else { return Ok(Type::None) };
    if v.rank == NO_RANK {
        return Ok(Type::Tensor(TensorType::unranked(dtype)));
    }
    // SAFETY: the caller says so.
    let dims = unsafe { list(v.dims, v.rank as usize) };
    let dim = |d: &i64| match *d {
        UNKNOWN => Dim::unknown(),
        d if d < 0 => Dim::symbol(format!("d{}", -d)),
        d => Dim::from(d),
    };
    Ok(Type::tensor(dtype, dims.iter().map(dim).collect()))
}

/// # Safety
/// As [`ty`].
unsafe fn constant(v: TensorView) -> Option<Tensor> {
    // SAFETY: the caller says so.
    let ty = unsafe { ty(v) }.ok()?;
    let ty = ty.as_tensor()?;
    let dims = ty.fixed_dims()?;
    if v.data.is_null() && ty.dtype.byte_len(dims.iter().product()) != Some(0) {
        return None;
    }
    // SAFETY: as above.
    let data = unsafe { slice(Bytes { data: v.data, len: v.len }) };
    Tensor::from_bytes(ty.dtype, dims, of_ir::Blob::new(data.to_vec())).ok()
}

unsafe extern "C" fn infer<T: OpSpec>(call: *const Call, results: Results, sink: Sink) -> i32 {
    guarded(sink, || {
        // SAFETY: the caller's call is as the interface says.
        let call = unsafe { OpCall::<T>::read(call)? };
        let types = call.op.infer(&call.view()).map_err(|e| e.message)?;
        for (i, ty) in types.iter().enumerate() {
            let t = ty.as_tensor().ok_or_else(|| format!("result {i} is not a tensor"))?;
            // Values computed from unknown extents are unknown too.
            let number =
                |d: &Dim| match (d.as_const(), d.as_symbol().and_then(|s| s.strip_prefix('d')?.parse::<i64>().ok())) {
                    (Some(n), _) => n,
                    (None, Some(symbol)) => -symbol,
                    (None, None) => UNKNOWN,
                };
            let dims: Option<Vec<i64>> = t.shape.as_ref().map(|s| s.iter().map(number).collect());
            let rank = dims.as_ref().map_or(NO_RANK, |d| d.len() as u32);
            let dims = dims.unwrap_or_default();
            // SAFETY: the results are those of the caller.
            let taken =
                unsafe { (results.allocate)(results.context, i, element_type(t.dtype) as u32, dims.as_ptr(), rank) };
            if taken.is_null() {
                return Err(format!("there is no result {i}"));
            }
        }
        Ok(Vec::new())
    })
}

unsafe extern "C" fn compute<T: OpSpec>(call: *const Call, results: Results, sink: Sink) -> i32 {
    guarded(sink, || {
        // SAFETY: the caller's call is as the interface says.
        let call = unsafe { OpCall::<T>::read(call)? };
        let value = |v: &ValueId| match call.graph.constant(*v) {
            Some(t) => Ok(Value::Tensor(t)),
            None if *call.graph.ty(*v) == Type::None => Ok(Value::None),
            None => Err("an operand has no elements".to_string()),
        };
        let values = call.operands.iter().map(value).collect::<Result<Vec<_>, _>>()?;
        let mut region = |_: usize, _: &[Value]| Err(of_ir::OpError::eval("the op has no regions"));
        let mut inputs = Inputs { values: &values, types: &call.results, region: &mut region };
        for (i, value) in call.op.eval(&mut inputs).map_err(|e| e.message)?.iter().enumerate() {
            let Value::Tensor(t) = value else { return Err(format!("result {i} is not a tensor")) };
            let from = t.bytes().ok_or_else(|| format!("result {i} is a string tensor"))?;
            let dims: Vec<i64> = t.dims().iter().map(|d| *d as i64).collect();
            let dtype = element_type(t.dtype()) as u32;
            // SAFETY: the caller gives memory for a tensor of this type, or null.
            unsafe {
                let to = (results.allocate)(results.context, i, dtype, dims.as_ptr(), dims.len() as u32);
                if to.is_null() {
                    return Err(format!("there is no place for result {i}"));
                }
                std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len());
            }
        }
        Ok(Vec::new())
    })
}

unsafe extern "C" fn sbp<T: OpSpec>(call: *const Call, sink: Sink) -> i32 {
    guarded(sink, || {
        // SAFETY: the caller's call is as the interface says.
        let call = unsafe { OpCall::<T>::read(call)? };
        let lines = call.op.sbp(&call.view()).into_iter().map(|s| print_signature(&s));
        Ok(lines.collect::<Vec<_>>().join("\n").into_bytes())
    })
}

unsafe extern "C" fn cuda<T: OpSpec>(call: *const Call, launch: *mut LaunchView, sink: Sink) -> i32 {
    guarded(sink, || {
        // SAFETY: the caller's call is as the interface says.
        let call = unsafe { OpCall::<T>::read(call)? };
        let kernel = call.op.cuda(&call.view(), &call.results)?;
        let (unit, count) = match kernel.launch {
            Launch::Threads(n) => (0, n),
            Launch::Blocks(n) => (1, n),
        };
        // SAFETY: the caller gives a place for one.
        unsafe { *launch = LaunchView { unit, count } };
        Ok(kernel.text.into_bytes())
    })
}

#[cfg(test)]
mod tests {
    use of_ops::elementwise::{Relu, Select, Tanh};
    use of_ops::movement::Concat;

    use super::*;

    #[test]
    fn struct_layouts_match_the_header() {
        // docs/of_library.h has the same numbers.
        let sizes = (size_of::<Attribute>(), size_of::<Call>(), size_of::<OpEntry>(), size_of::<OpTable>());
        assert_eq!(sizes, (40, 48, 112, 24));
    }

    #[test]
    fn tables_of_older_libraries_are_read() {
        let new = op_table(vec![op_entry::<Relu>().with_gradient::<Tanh>(), op_entry::<Tanh>()]);
        // SAFETY: the table was just made.
        let (ops, count) = unsafe { ((*new).ops, (*new).count) };
        // SAFETY: entries have no more bytes than these.
        let bytes = unsafe { list(ops.cast::<u8>(), count * size_of::<OpEntry>()) };
        // Entries without the last field; words of 8 bytes keep the alignment.
        let old: Vec<u64> = bytes
            .chunks_exact(size_of::<OpEntry>())
            .flat_map(|entry| entry[..SMALLEST_ENTRY].chunks_exact(8))
            .map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()))
            .collect();
        let ops = Box::leak(old.into_boxed_slice()).as_ptr().cast();
        let table = |size: usize| OpTable { version: VERSION, size: size as u32, ops, count };
        // SAFETY: the entries are as the table says.
        let read_old = unsafe { read(&table(SMALLEST_ENTRY)) }.unwrap();
        let names: Vec<_> = read_old.iter().map(|op| (op.name, op.gradient)).collect();
        assert_eq!(names, [("of.relu", None), ("of.tanh", None)]);
        // SAFETY: entries of this size are refused before they are read.
        let error = unsafe { read(&table(SMALLEST_ENTRY - 8)) }.err().unwrap();
        assert!(error.contains("implement version 1"), "{error}");
    }

    #[test]
    fn gradients_that_do_not_fit_are_refused() {
        let refused = |entries: Vec<OpEntry>| {
            // SAFETY: the table was just made.
            unsafe { read(op_table(entries)) }.err().unwrap()
        };
        let alone = refused(vec![op_entry::<Relu>().with_gradient::<Tanh>()]);
        assert!(alone.contains("'of.relu': its gradient 'of.tanh' is no op of the library"), "{alone}");
        let few = refused(vec![op_entry::<Relu>().with_gradient::<Tanh>(), op_entry::<Tanh>()]);
        assert!(few.contains("has 1 operands, not 3"), "{few}");
        let any = refused(vec![op_entry::<Relu>().with_gradient::<Concat>(), op_entry::<Concat>()]);
        assert!(any.contains("any number of operands"), "{any}");
        let other = refused(vec![op_entry::<Relu>().with_gradient::<Select>(), op_entry::<Select>()]);
        assert!(other.contains("has a result 'c', which is no operand"), "{other}");
    }
}
