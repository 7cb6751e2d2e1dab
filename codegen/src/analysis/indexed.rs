//! Specifications of indexed ops and of ops that scan along an axis.
//!
//! [`kernel`] is the claim: it maps an op to its kernel specification, or to the reason why there is none.

use of_ir::{DType, Graph, OpId, Type, ValueId};
use of_ops::OpSpec;
use of_ops::list::as_op;
use of_ops::movement::{
    GatherElements, GatherNd, OneHot, Pad, Range, ReverseSequence, ScatterElements, ScatterNd, Tile, Trilu,
};
use of_ops::nn::{AvgPool, DepthwiseWeightGradient, MaxPool, MaxPoolGradient, Resize, RoiAlign};
use of_ops::reduction::{ArgMax, ArgMin, CumSum, ReduceMax, ReduceMin, ReduceProd, ReduceSum, TopK};
use of_ops::shape::axis;

use crate::analysis::pool;
use crate::analysis::reduction::{reduce_kind, reduced_axes};
use crate::analysis::resize::resize;
use crate::analysis::roi_align::roi_align;
use crate::kernel::axis_scan::{AxisScan, AxisScanKind, ScanAxis};
use crate::kernel::body::ReduceKind;
use crate::kernel::extent::{self, Extent};
use crate::kernel::indexed::{Indexed, PadMode, PaddedAxis, Scatter, ScatterTarget};
use crate::kernel::nest::Nest;

/// Above this k, sorting beats insertion into an ordered list.
const MAX_TOP_K: usize = 256;

/// Whether this module has a kernel for an op.
///
/// # Errors
/// The reason why there is none.
pub fn claims(g: &Graph, op: OpId) -> Result<(), String> {
    kernel(g, op).map(|_| ())
}

/// The operands that the kernel of an op reads: its first arguments; the results follow them.
pub fn reads(g: &Graph, op: OpId) -> Vec<ValueId> {
    let data = g.op(op);
    let given = |list: &[usize]| {
        let all = list.iter().filter_map(|i| data.operands.get(*i).copied());
        all.filter(|v| *g.ty(*v) != Type::None).collect()
    };
    match data.name() {
        GatherElements::NAME | GatherNd::NAME | ReverseSequence::NAME | Trilu::NAME => given(&[0, 1]),
        ScatterElements::NAME | ScatterNd::NAME | RoiAlign::NAME => given(&[0, 1, 2]),
        OneHot::NAME | Range::NAME => given(&[0, 2]),
        MaxPoolGradient::NAME | DepthwiseWeightGradient::NAME => given(&[0, 1]),
        // A constant value is part of the kernel, and other modes read none.
        Pad::NAME if fills(g, op) => given(&[0, 2]),
        _ => given(&[0]),
    }
}

/// Whether a pad reads the elements of its border from memory.
fn fills(g: &Graph, op: OpId) -> bool {
    let value = g.op(op).operands.get(2).filter(|v| g.constant(**v).is_none());
    value.is_some() && as_op::<Pad>(g, op).is_some_and(|p| &*p.mode == "constant")
}

/// The loop nest of an op.
///
/// # Errors
/// The reason why there is none.
pub fn kernel(g: &Graph, op: OpId) -> Result<Nest, String> {
    let o = Operands { g, op };
    match g.op(op).name() {
        GatherElements::NAME => gather_elements(&o),
        GatherNd::NAME => gather_nd(&o),
        Tile::NAME => Ok(Nest::Indexed(Indexed::Tile { from: o.dims(0), to: o.result(), bytes: o.bytes(0) })),
        Pad::NAME => pad(&o),
        Trilu::NAME => triangle(&o),
        ReverseSequence::NAME => reverse_sequence(&o),
        OneHot::NAME => one_hot(&o),
        Range::NAME => Ok(Nest::Indexed(Indexed::Range { dims: o.result(), dtype: o.number(0)? })),
        ScatterElements::NAME => scatter_elements(&o),
        ScatterNd::NAME => scatter_nd(&o),
        ArgMax::NAME => {
            let a: ArgMax = o.attrs()?;
            arg_extremum(&o, a.axis, true, a.select_last_index)
        }
        ArgMin::NAME => {
            let a: ArgMin = o.attrs()?;
            arg_extremum(&o, a.axis, false, a.select_last_index)
        }
        CumSum::NAME => cumulative_sum(&o),
        ReduceSum::NAME | ReduceProd::NAME | ReduceMax::NAME | ReduceMin::NAME => reduce(&o),
        TopK::NAME => top_k(&o),
        DepthwiseWeightGradient::NAME => pool::depthwise_weight_gradient(g, op).map(Nest::DepthwiseWeightGradient),
        MaxPoolGradient::NAME => pool::max_pool_gradient(g, op),
        MaxPool::NAME if g.op(op).results.len() > 1 => pool::arg_max(g, op),
        MaxPool::NAME | AvgPool::NAME => pool::elementwise(g, op),
        Resize::NAME => resize(g, op),
        RoiAlign::NAME => roi_align(g, op),
        name => Err(format!("'{name}' has no native code")),
    }
}

/// The type of positions, which kernels read as i64: larger ones would become negative, which count from the end.
///
/// # Errors
/// For numbers beyond i64.
pub fn index_type(dtype: DType) -> Result<DType, String> {
    if dtype == DType::U64 { Err("positions of type ui64 have no native code".into()) } else { Ok(dtype) }
}

/// An op, its operands' types and extents.
struct Operands<'a> {
    g: &'a Graph,
    op: OpId,
}

impl Operands<'_> {
    fn attrs<T: OpSpec>(&self) -> Result<T, String> {
        as_op(self.g, self.op).ok_or_else(|| "its attributes do not decode".into())
    }

    fn value(&self, i: usize) -> ValueId {
        self.g.op(self.op).operands[i]
    }

    fn dims(&self, i: usize) -> Vec<Extent> {
        extent::of_value(self.g, self.value(i))
    }

    fn result(&self) -> Vec<Extent> {
        extent::of_value(self.g, self.g.op(self.op).results[0])
    }

    fn dtype(&self, i: usize) -> DType {
        self.g.ty(self.value(i)).as_tensor().map_or(DType::F32, |t| t.dtype)
    }

    /// Bytes of an element of operand `i`.
    fn bytes(&self, i: usize) -> usize {
        self.dtype(i).bits().map_or(4, |b| b / 8)
    }

    /// The type of operand `i`, whose elements the kernel computes with.
    fn number(&self, i: usize) -> Result<DType, String> {
        match self.dtype(i) {
            d @ (DType::F16 | DType::BF16) => Err(format!("numbers of type {d} have no native code yet")),
            d => Ok(d),
        }
    }

    /// The type of operand `i`, whose elements are positions.
    fn index(&self, i: usize) -> Result<DType, String> {
        index_type(self.dtype(i))
    }

    /// The values of operand `i`, if constant or derived from extents.
    fn known(&self, i: usize) -> Result<Vec<Extent>, String> {
        let dims =
            self.g.dims_value(self.value(i)).ok_or_else(|| format!("operand {i} is not known before the run"))?;
        Ok(dims.into_iter().map(Extent::from).collect())
    }
}

fn axis_of(a: i64, rank: usize) -> Result<usize, String> {
    axis(a, rank).map_err(|e| e.message)
}

fn gather_elements(o: &Operands<'_>) -> Result<Nest, String> {
    let (from, to) = (o.dims(0), o.result());
    let axis = axis_of(o.attrs::<GatherElements>()?.axis, from.len())?;
    Ok(Nest::Indexed(Indexed::GatherElements { from, to, axis, index: o.index(1)?, bytes: o.bytes(0) }))
}

/// Number of axes that an index tuple addresses.
fn index_depth(indices: &[Extent]) -> Result<usize, String> {
    indices
        .last()
        .and_then(Extent::number)
        .ok_or_else(|| "the number of axes that an index addresses is not known".into())
}

fn gather_nd(o: &Operands<'_>) -> Result<Nest, String> {
    let (from, indices) = (o.dims(0), o.dims(1));
    let batch = usize::try_from(o.attrs::<GatherNd>()?.batch_dims).map_err(|e| e.to_string())?;
    let index_depth = index_depth(&indices)?;
    from.get(batch..batch + index_depth).ok_or("its indices address too many axes")?;
    Ok(Nest::Indexed(Indexed::GatherSlices {
        from,
        indices,
        batch,
        index_depth,
        index: o.index(1)?,
        bytes: o.bytes(0),
    }))
}

/// Padding with elements of the tensor.
fn pad(o: &Operands<'_>) -> Result<Nest, String> {
    let (from, to) = (o.dims(0), o.result());
    let mode = o.attrs::<Pad>()?.mode;
    let pads = o.known(1)?;
    let padded_axes = match o.g.op(o.op).operands.get(3).filter(|v| *o.g.ty(**v) != Type::None) {
        Some(v) => o.g.constant(*v).and_then(|t| t.to_i64s()).ok_or("operand 3 is not known before the run")?,
        None => (0..from.len() as i64).collect(),
    };
    let mode = match &*mode {
        "edge" => PadMode::Edge,
        "wrap" => PadMode::Wrap,
        "reflect" => PadMode::Reflect,
        other => return Err(format!("padding in mode '{other}' has no native code")),
    };
    let mut axes = Vec::new();
    for (i, a) in padded_axes.iter().enumerate() {
        let after = pads.get(i + padded_axes.len()).ok_or("its pads are too few")?.clone();
        axes.push(PaddedAxis { axis: axis_of(*a, from.len())?, before: pads[i].clone(), after });
    }
    Ok(Nest::Indexed(Indexed::Pad { from, to, axes, mode, bytes: o.bytes(0) }))
}

fn triangle(o: &Operands<'_>) -> Result<Nest, String> {
    let diagonal = if reads(o.g, o.op).len() == 2 { Some(o.index(1)?) } else { None };
    let upper = o.attrs::<Trilu>()?.upper;
    Ok(Nest::Indexed(Indexed::Triangle { dims: o.result(), upper, diagonal, bytes: o.bytes(0) }))
}

fn reverse_sequence(o: &Operands<'_>) -> Result<Nest, String> {
    let (dims, attrs) = (o.dims(0), o.attrs::<ReverseSequence>()?);
    let (batch, time) = (axis_of(attrs.batch_axis, dims.len())?, axis_of(attrs.time_axis, dims.len())?);
    let lengths = o.dims(1)[0].clone();
    let kernel = Indexed::ReverseSequence { dims, lengths, batch, time, index: o.index(1)?, bytes: o.bytes(0) };
    Ok(Nest::Indexed(kernel))
}

fn one_hot(o: &Operands<'_>) -> Result<Nest, String> {
    let (own, to) = (o.dims(0), o.result());
    let axis = axis_of(o.attrs::<OneHot>()?.axis, to.len())?;
    let (outer, inner) = (own[..axis].iter().product(), own[axis..].iter().product());
    let (depth, index) = (to[axis].clone(), index_type(o.number(0)?)?);
    Ok(Nest::Indexed(Indexed::OneHot { outer, depth, inner, index, bytes: o.bytes(2) }))
}

/// The reduction of updates into existing elements, if kernels support it for this type.
fn combine(o: &Operands<'_>, reduction: &str) -> Result<Option<ReduceKind>, String> {
    if reduction == "none" {
        return Ok(None);
    }
    let dtype = o.number(0)?;
    if dtype == DType::Bool {
        return Err("reductions of booleans have no native code".into());
    }
    match reduction {
        "add" => Ok(Some(ReduceKind::Sum)),
        "mul" => Ok(Some(ReduceKind::Prod)),
        "max" => Ok(Some(ReduceKind::Max)),
        "min" => Ok(Some(ReduceKind::Min)),
        other => Err(format!("the reduction '{other}' has no native code")),
    }
}

fn scatter_elements(o: &Operands<'_>) -> Result<Nest, String> {
    let (to, indices, updates) = (o.dims(0), o.dims(1), o.dims(2));
    let attrs = o.attrs::<ScatterElements>()?;
    let target = ScatterTarget::Elements(axis_of(attrs.axis, to.len())?);
    let combine = combine(o, &attrs.reduction)?;
    Ok(Nest::Scatter(Scatter { to, indices, updates, target, index: o.index(1)?, dtype: o.dtype(0), combine }))
}

fn scatter_nd(o: &Operands<'_>) -> Result<Nest, String> {
    let (to, indices, updates) = (o.dims(0), o.dims(1), o.dims(2));
    let combine = combine(o, &o.attrs::<ScatterNd>()?.reduction)?;
    let index_depth = index_depth(&indices)?;
    to.get(..index_depth).ok_or("its indices address too many axes")?;
    let target = ScatterTarget::Slices(index_depth);
    Ok(Nest::Scatter(Scatter { to, indices, updates, target, index: o.index(1)?, dtype: o.dtype(0), combine }))
}

fn arg_extremum(o: &Operands<'_>, along: i64, largest: bool, last: bool) -> Result<Nest, String> {
    let dims = o.dims(0);
    let axis = ScanAxis::of(&dims, axis_of(along, dims.len())?);
    Ok(Nest::AxisScan(AxisScan { axis, dtype: o.number(0)?, kind: AxisScanKind::ArgExtremum { largest, last } }))
}

fn cumulative_sum(o: &Operands<'_>) -> Result<Nest, String> {
    let (dims, attrs) = (o.dims(0), o.attrs::<CumSum>()?);
    let along = o.known(1)?.first().and_then(|a| a.dim().as_const()).ok_or("its axis is not known before the run")?;
    let axis = ScanAxis::of(&dims, axis_of(along, dims.len())?);
    let kind = AxisScanKind::CumulativeSum { exclusive: attrs.exclusive, reverse: attrs.reverse };
    Ok(Nest::AxisScan(AxisScan { axis, dtype: o.number(0)?, kind }))
}

/// Reductions of integers along adjacent axes; those of floats fuse.
fn reduce(o: &Operands<'_>) -> Result<Nest, String> {
    let (dims, dtype) = (o.dims(0), o.dtype(0));
    if !dtype.is_int() || dtype.int_range().is_none() {
        return Err(format!("reductions of {dtype} have no native code"));
    }
    let axes = reduced_axes(o.g, o.op, dims.len());
    let (Some(first), Some(last)) = (axes.first().copied(), axes.last().copied()) else {
        return Err("a reduction over no axis".into());
    };
    if last - first + 1 != axes.len() {
        return Err("reductions of integers over axes that are not neighbours have no native code".into());
    }
    let product = |d: &[Extent]| d.iter().product();
    let axis =
        ScanAxis { outer: product(&dims[..first]), n: product(&dims[first..=last]), inner: product(&dims[last + 1..]) };
    Ok(Nest::AxisScan(AxisScan {
        axis,
        dtype: o.number(0)?,
        kind: AxisScanKind::Reduce(reduce_kind(o.g.op(o.op).name())),
    }))
}

fn top_k(o: &Operands<'_>) -> Result<Nest, String> {
    let (dims, attrs) = (o.dims(0), o.attrs::<TopK>()?);
    let along = axis_of(attrs.axis, dims.len())?;
    let k = o.result()[along].clone();
    if k.number().is_none_or(|k| k > MAX_TOP_K) {
        return Err(format!("the first k of more than {MAX_TOP_K} have no native code"));
    }
    let kind = AxisScanKind::TopK { k, largest: attrs.largest };
    Ok(Nest::AxisScan(AxisScan { axis: ScanAxis::of(&dims, along), dtype: o.number(0)?, kind }))
}
