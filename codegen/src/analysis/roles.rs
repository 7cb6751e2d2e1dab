//! The role of each op in code generation: fused, a separate kernel, or left to a backend with a reason.

use std::collections::HashMap;
use std::sync::Arc;

use of_ir::{DType, Dim, Graph, IdMap, IdSet, OpId, RegionId, Type, ValueId};
use of_ops::OpSpec;
use of_ops::boxing::Transfer;
use of_ops::contraction::MatMul;
use of_ops::control::{If, Loop, Subgraph};
use of_ops::list::as_op;
use of_ops::movement::{Concat, Expand, Gather, Pad, Reshape, Slice, Transpose};
use of_ops::nn::{AvgPool, Conv, ConvInteger, MatMulInteger, MaxPool};
use of_ops::reduction::{ReduceMax, ReduceMin, ReduceProd, ReduceSum};
use of_ops::scalar::ScalarOp;
use of_ops::structural::{Constant, NoneValue, OptimizationBarrier, Return, Yield};
use of_ops::time::{Accumulate, Pack, Unpack};
use of_plan::ControlKind;

use crate::analysis::pool::{geometry, is_vectorized};
use crate::analysis::reduction::reduced_axes;
use crate::analysis::{indexed, user_kernel};
use crate::extract::read_by;
use crate::kernel::body::{Body, Node};
use crate::kernel::extent::Extent;
use crate::kernel::prologue::Check;
use crate::kernel::{expr, extent, float};

/// The fewest columns whose reductions are computed in vectors of columns.
const MIN_COLUMNS: usize = 8;

/// The role of an op in fusion.
#[derive(Clone, PartialEq, Debug)]
pub enum Role {
    /// No code: constants, `of.none`, the terminator.
    Nothing,
    /// The same bytes under another type.
    Alias,
    /// An elementwise function.
    Map(ScalarOp),
    /// A reduction over the last `.0` axes that keeps them as 1.
    RowReduce(usize),
    /// A reduction of f32 over the first `.0` axes that keeps them as 1; the others are columns.
    ColumnReduce(usize),
    /// A kernel with an epilogue: contraction, pooling.
    Anchor,
    /// A separate kernel: data movement, other reductions.
    Single,
    /// Control flow whose regions are programs of the plan.
    Control,
    /// A rank's share of a transfer between ranks.
    Transfer,
    /// Left to the reference backend, with the reason.
    Reference(String),
}

/// The role of every op of a region, and the symbols of its extents.
pub struct Roles {
    roles: IdMap<OpId, Role>,
    /// Symbols that are bound at run time, in binding order.
    pub symbols: Vec<Arc<str>>,
    /// The value that binds each symbol, and the op that defines it unless it is an input.
    bound_by: HashMap<Arc<str>, (ValueId, Option<OpId>)>,
}

impl Roles {
    /// Finds the role of every op of `region`, whose inputs are `inputs`.
    ///
    /// A symbol is bound at run time when an extent of an input, or of the result of an op that runs before, determines it
    /// ([`Dim::determines`]): native code then computes with it. An op whose results have unbound symbols runs on a backend,
    /// which binds them.
    pub fn of(graph: &Graph, region: RegionId, inputs: &[ValueId]) -> Roles {
        let mut r = Roles { roles: HashMap::default(), symbols: Vec::new(), bound_by: HashMap::default() };
        // An extent may determine a symbol only once a later input binds another.
        let mut bound = usize::MAX;
        while bound != r.symbols.len() {
            bound = r.symbols.len();
            inputs.iter().for_each(|v| r.bind(graph, *v, None));
        }
        let order: Vec<OpId> = graph.region_ops(region).collect();
        for op in &order {
            let role = r.role(graph, *op);
            r.roles.insert(*op, role);
            for v in &graph.op(*op).results {
                r.bind(graph, *v, Some(*op));
            }
        }
        r.drop_unread(graph, graph.yields(region), &order);
        r
    }

    /// The role of an op.
    pub fn get(&self, op: OpId) -> &Role {
        static NOTHING: Role = Role::Nothing;
        self.roles.get(&op).unwrap_or(&NOTHING)
    }

    /// The index of a symbol in the array that kernels receive.
    pub fn index(&self, symbol: &str) -> usize {
        self.symbols.iter().position(|s| &**s == symbol).unwrap_or(usize::MAX)
    }

    /// Whether the rank of `ty` is known, and every symbol is bound at run time.
    pub fn is_shape_known(&self, ty: &Type) -> bool {
        let shape = ty.as_tensor().and_then(|t| t.shape.as_ref());
        shape.is_some_and(|s| s.iter().flat_map(Dim::symbols).all(|s| self.symbols.contains(&s)))
    }

    /// Ops that must run before `op` because they bind symbols of its operands and results.
    pub fn binders(&self, graph: &Graph, op: OpId) -> Vec<OpId> {
        let data = graph.op(op);
        let values = data.operands.iter().chain(&data.results);
        let extents = values.clone().filter_map(|v| graph.ty(*v).as_tensor()?.shape.clone());
        // A kernel also computes with the numbers of shape operands.
        let numbers = data.operands.iter().filter_map(|v| graph.dims_value(*v));
        let symbols = extents.chain(numbers).flatten().flat_map(|d| d.symbols());
        symbols.filter_map(|s| self.bound_by.get(&s)?.1).filter(|o| *o != op).collect()
    }

    /// The value that binds a symbol before `op` runs.
    pub fn binder(&self, symbol: &str, op: OpId) -> Option<ValueId> {
        self.bound_by.get(symbol).filter(|(_, by)| *by != Some(op)).map(|(v, _)| *v)
    }

    /// Whether the kernel of `op` only writes values derived from extents.
    pub fn is_shape(&self, graph: &Graph, op: OpId) -> bool {
        let data = graph.op(op);
        let [y] = data.results[..] else { return false };
        let int = graph.ty(y).as_tensor().is_some_and(|t| matches!(t.dtype, DType::I64 | DType::I32));
        int && data.regions.is_empty()
            && !data.def.traits().constant
            && graph
                .dims_value(y)
                .is_some_and(|d| !d.is_empty() && d.iter().flat_map(Dim::symbols).all(|s| self.symbols.contains(&s)))
    }

    fn role(&self, graph: &Graph, op: OpId) -> Role {
        let data = graph.op(op);
        match data.name() {
            Constant::NAME | NoneValue::NAME | Return::NAME | Yield::NAME => return Role::Nothing,
            Transfer::NAME => return Role::Transfer,
            Subgraph::NAME => return Role::Reference("it was placed on a backend".into()),
            _ => {}
        }
        if self.is_shape(graph, op) {
            return Role::Single;
        }
        if control(graph, op).is_some() {
            return Role::Control;
        }
        // A reshape does not read its shape operand, which is known.
        let read = if data.name() == Reshape::NAME { 1 } else { data.operands.len() };
        let known = data.operands[..read].iter().chain(&data.results).try_for_each(|v| self.check_type(graph, *v));
        match known.and_then(|()| claim(graph, op)) {
            Ok(role) => role,
            Err(why) => Role::Reference(why),
        }
    }

    /// Records `v` as the binder of the symbols that its extents determine, if they determine all of its symbols: the plan has
    /// extents of a value only where each of them can be evaluated.
    fn bind(&mut self, graph: &Graph, v: ValueId, op: Option<OpId>) {
        let Some(shape) = graph.ty(v).as_tensor().and_then(|t| t.shape.as_ref()) else { return };
        let mut found: Vec<Arc<str>> = Vec::new();
        // An extent may determine a symbol only once a later one binds another.
        let mut before = usize::MAX;
        while before != found.len() {
            before = found.len();
            for dim in shape {
                found.extend(dim.determines(&|s| self.bound_by.contains_key(s) || found.iter().any(|f| &**f == s)));
            }
        }
        let bound = |s: &Arc<str>| self.bound_by.contains_key(s) || found.contains(s);
        if shape.iter().flat_map(Dim::symbols).all(|s| bound(&s)) {
            self.symbols.extend(found.iter().cloned());
            self.bound_by.extend(found.into_iter().map(|s| (s, (v, op))));
        }
    }

    /// Removes the role of ops whose results have no readers at run time: shape computations whose results are known as symbols.
    fn drop_unread(&mut self, graph: &Graph, outputs: &[ValueId], order: &[OpId]) {
        let mut read: IdSet<ValueId> = outputs.iter().copied().collect();
        for op in order.iter().rev() {
            let data = graph.op(*op);
            let binds = self.bound_by.values().any(|(_, o)| *o == Some(*op));
            let acts = data.def.traits().effect || is_rendezvous(graph, *op);
            // What is left unread is read for its extents, which the kernel of the op alone checks.
            let assumes = self.assumes_equal_extents(graph, *op);
            if data.results.iter().any(|v| read.contains(v)) || acts || binds || assumes {
                read.extend(self.reads(graph, *op));
            } else {
                self.roles.insert(*op, Role::Nothing);
            }
        }
    }

    /// Whether the extents of an elementwise op's results hold only where extents of its operands, named differently, are equal.
    fn assumes_equal_extents(&self, graph: &Graph, op: OpId) -> bool {
        let data = graph.op(op);
        let (Role::Map(_), Some(y)) = (self.get(op), data.results.first()) else { return false };
        let to = extent::of_value(graph, *y);
        let differs = |(own, to): (&Extent, &Extent)| Check::broadcasts(own, to).is_some();
        data.operands.iter().any(|v| extent::of_value(graph, *v).iter().rev().zip(to.iter().rev()).any(differs))
    }

    /// The operands that an op reads at run time.
    pub fn reads(&self, graph: &Graph, op: OpId) -> Vec<ValueId> {
        let data = graph.op(op);
        match self.get(op) {
            Role::Nothing => Vec::new(),
            _ if self.is_shape(graph, op) => Vec::new(),
            Role::Alias | Role::ColumnReduce(_) => vec![data.operands[0]],
            Role::Single => match data.name() {
                Concat::NAME => data.operands.to_vec(),
                Gather::NAME => data.operands[..2].to_vec(),
                _ if user_kernel::is_user_op(graph, op) => user_kernel::reads(graph, op),
                _ => indexed::reads(graph, op),
            },
            Role::Map(_) | Role::RowReduce(_) | Role::Anchor | Role::Transfer => data.operands.to_vec(),
            Role::Reference(_) | Role::Control => {
                let mut out = Vec::new();
                read_by(graph, op, &mut out);
                out
            }
        }
    }

    /// Checks that kernels can hold a value: its extents are known when they run, and C has its element type.
    pub fn check_type(&self, g: &Graph, v: ValueId) -> Result<(), String> {
        match g.ty(v) {
            Type::None => Ok(()),
            Type::Tensor(t) => {
                let Some(shape) = &t.shape else { return Err("a rank is not known before the run".into()) };
                if !self.is_shape_known(g.ty(v)) {
                    return Err("a shape is data-dependent".into());
                }
                if shape.iter().any(|d| d.as_const() == Some(0)) {
                    return Err("a tensor is empty".into());
                }
                match t.dtype.bits() {
                    Some(..8) | None => Err(format!("kernels cannot hold {}", t.dtype)),
                    Some(8) if t.dtype.is_float() => Err(format!("kernels cannot hold {}", t.dtype)),
                    _ => Ok(()),
                }
            }
            other => Err(format!("kernels cannot hold {other}")),
        }
    }
}

/// Whether ranks rendezvous at an op: a transfer, or an op with one in its regions.
pub fn is_rendezvous(g: &Graph, op: OpId) -> bool {
    let data = g.op(op);
    data.name() == Transfer::NAME
        || data.regions.iter().flat_map(|r| g.region_ops(*r)).any(|inner| is_rendezvous(g, inner))
}

/// The control-flow kind of an op whose regions become programs of the plan.
pub fn control(g: &Graph, op: OpId) -> Option<ControlKind> {
    let data = g.op(op);
    match data.name() {
        If::NAME => Some(ControlKind::If),
        Loop::NAME => {
            // Only tensors of whole-byte elements can be stacked.
            let carried = data.operands.len().saturating_sub(2);
            let bytes = |v: &ValueId| g.ty(*v).as_tensor().is_some_and(|t| t.dtype.bits().is_some_and(|b| b >= 8));
            data.results.iter().skip(carried).all(bytes).then_some(ControlKind::Loop)
        }
        _ => None,
    }
}

/// Whether an op of fixed extents has a kernel, separate or fused.
///
/// # Errors
/// The reason why there is none.
pub fn check_gpu_compatible(g: &Graph, op: OpId) -> Result<(), String> {
    let data = g.op(op);
    let none = Roles { roles: HashMap::default(), symbols: Vec::new(), bound_by: HashMap::default() };
    let role = none.role(g, op);
    let open = |v: &ValueId| g.ty(*v).as_tensor().is_some_and(|t| t.fixed_dims().is_none());
    if role != Role::Nothing && data.operands.iter().chain(&data.results).any(open) {
        return Err("an extent is not known before the run (--shape gives numbers)".into());
    }
    let dtype = |v: ValueId| g.ty(v).as_tensor().map_or(DType::F32, |t| t.dtype);
    match role {
        Role::Reference(why) => Err(why),
        Role::Control => Err("control flow runs on the host".into()),
        Role::Map(scalar) => {
            let mut body = Body::default();
            let loads = data.operands.iter().enumerate();
            let loads: Vec<usize> = loads.map(|(i, v)| body.push(Node::Load(i), dtype(*v), false)).collect();
            body.op(scalar, &loads, dtype(data.results[0]), false);
            expr::unsupported_reason(&body).map_or(Ok(()), Err)
        }
        Role::RowReduce(_) if dtype(data.operands[0]) != DType::F32 => {
            Err("only reductions of f32 rows have native code".into())
        }
        Role::Single if data.name().starts_with("of.reduce_") && dtype(data.operands[0]) != DType::F32 => {
            indexed::claims(g, op)
        }
        _ => Ok(()),
    }
}

fn claim(g: &Graph, op: OpId) -> Result<Role, String> {
    let data = g.op(op);
    if !data.regions.is_empty() {
        return Err(format!("the regions of '{}' run in the interpreter", data.name()));
    }
    if let Some(scalar) = of_ops::get(g, op).and_then(|o| o.scalar()) {
        return Ok(Role::Map(scalar));
    }
    let floats = |v: ValueId| g.ty(v).as_tensor().is_some_and(|t| float::is_float(t.dtype));
    match data.name() {
        Reshape::NAME | OptimizationBarrier::NAME => Ok(Role::Alias),
        Transpose::NAME | Expand::NAME | Concat::NAME => Ok(Role::Single),
        Slice::NAME => {
            derived(g, op, 1..2)?;
            known(g, op, 3..data.operands.len()).map(|()| Role::Single)
        }
        Pad::NAME => {
            if as_op::<Pad>(g, op).is_none_or(|p| &*p.mode != "constant") {
                return indexed::claims(g, op).map(|()| Role::Single);
            }
            derived(g, op, 1..2)?;
            known(g, op, 3..data.operands.len()).map(|()| Role::Single)
        }
        Gather::NAME | Unpack::NAME | Pack::NAME | Accumulate::NAME => Ok(Role::Single),
        ReduceSum::NAME | ReduceMax::NAME | ReduceMin::NAME | ReduceProd::NAME => reduction(g, op),
        MatMul::NAME if data.operands.iter().all(|v| floats(*v)) => Ok(Role::Anchor),
        MatMul::NAME => Err("only products of f32, and on GPUs of 16-bit floats, have native code".into()),
        MatMulInteger::NAME => {
            bytes(g, op)?;
            let rank = |v: ValueId| g.ty(v).as_tensor().and_then(|t| t.rank()).unwrap_or(0);
            if rank(data.operands[0]) < 2 || rank(data.operands[1]) < 2 {
                return Err("a product with a vector".into());
            }
            Ok(Role::Anchor)
        }
        Conv::NAME | ConvInteger::NAME => convolution(g, op),
        MaxPool::NAME | AvgPool::NAME => pool(g, op),
        _ if user_kernel::is_user_op(g, op) => user_kernel::kernel(g, op).map(|_| Role::Single),
        _ => indexed::claims(g, op).map(|()| Role::Single),
    }
}

/// Checks that the given operands are constants or derived from extents.
fn derived(g: &Graph, op: OpId, operands: std::ops::Range<usize>) -> Result<(), String> {
    for i in operands {
        if g.dims_value(g.op(op).operands[i]).is_none() {
            return Err(format!("operand {i} is not known before the run"));
        }
    }
    Ok(())
}

/// Checks that the given operands are constants.
fn known(g: &Graph, op: OpId, operands: std::ops::Range<usize>) -> Result<(), String> {
    let data = g.op(op);
    for i in operands {
        let Some(v) = data.operands.get(i).copied() else { continue };
        if *g.ty(v) != Type::None && g.constant(v).is_none() {
            return Err(format!("operand {i} is not known before the run"));
        }
    }
    Ok(())
}

/// Reductions over the last axes fuse into rows; others are separate kernels.
fn reduction(g: &Graph, op: OpId) -> Result<Role, String> {
    let data = g.op(op);
    let keeps = data.attrs.typed::<bool>("keepdims").unwrap_or(false);
    let (from, to) = (extent::of_value(g, data.operands[0]), extent::of_value(g, data.results[0]));
    if !keeps || from.len() != to.len() {
        return Err("a reduction whose axes are not kept".into());
    }
    known(g, op, 1..data.operands.len())?;
    let ints = g.ty(data.operands[0]).as_tensor().is_some_and(|t| t.dtype.is_int());
    if ints {
        return indexed::claims(g, op).map(|()| Role::Single);
    }
    let axes = reduced_axes(g, op, from.len());
    let inner = axes.len();
    let trailing = axes.iter().enumerate().all(|(i, a)| *a == from.len() - inner + i);
    if axes.is_empty() {
        return Err("a reduction over no axis".into());
    }
    if trailing {
        return Ok(Role::RowReduce(inner));
    }
    let leading = axes.iter().enumerate().all(|(i, a)| *a == i);
    let columns: Extent = from[inner..].iter().product();
    let f32s = g.ty(data.operands[0]).as_tensor().is_some_and(|t| t.dtype == DType::F32);
    Ok(if leading && f32s && columns.size_hint() >= MIN_COLUMNS { Role::ColumnReduce(inner) } else { Role::Single })
}

/// The convolution that `op` is, of floats or of bytes.
pub fn conv_of(g: &Graph, op: OpId) -> Option<Conv> {
    as_op::<Conv>(g, op).or_else(|| {
        let ConvInteger { strides, pads, dilations, group, auto_pad, channels_last } = as_op::<ConvInteger>(g, op)?;
        Some(Conv { strides, pads, dilations, group, auto_pad, channels_last })
    })
}

/// Whether `op` is a depthwise convolution, which is a window kernel and no contraction.
pub fn is_depthwise(g: &Graph, op: OpId) -> bool {
    let filters = |w: ValueId| g.ty(w).as_tensor().and_then(|t| t.shape.clone()).unwrap_or_default();
    conv_of(g, op).is_some_and(|c| {
        let w = filters(g.op(op).operands[1]);
        w.first().and_then(Dim::as_const) == Some(c.group) && w.get(1).and_then(Dim::as_const) == Some(1)
    })
}

/// Checks that an integer contraction multiplies bytes by constant signed bytes. Passes turn zero points into corrections.
fn bytes(g: &Graph, op: OpId) -> Result<(), String> {
    let data = g.op(op);
    if data.operands[2..].iter().any(|v| *g.ty(*v) != Type::None) {
        return Err("its zero points are no constants, or have an unsupported shape".into());
    }
    let dtype = |i: usize| g.ty(data.operands[i]).as_tensor().map(|t| t.dtype);
    if !matches!(dtype(0), Some(DType::U8 | DType::I8)) {
        return Err("only products of bytes have native code".into());
    }
    if dtype(1) != Some(DType::I8) || g.constant(data.operands[1]).is_none() {
        return Err("its weights are no constant signed bytes".into());
    }
    Ok(())
}

fn convolution(g: &Graph, op: OpId) -> Result<Role, String> {
    let data = g.op(op);
    let Some(conv) = conv_of(g, op) else { return Err("its attributes do not decode".into()) };
    let x = g.ty(data.operands[0]).as_tensor().ok_or("no tensor")?;
    if data.name() == ConvInteger::NAME {
        bytes(g, op)?;
    } else if !float::is_float(x.dtype) {
        return Err("only convolutions of f32 and of bytes, and on GPUs of 16-bit floats, have native code".into());
    }
    if float::is_half(x.dtype) && is_depthwise(g, op) {
        return Err("depthwise convolutions of 16-bit floats have no native code".into());
    }
    if !conv.channels_last {
        return Err("only channels-last convolutions have native code".into());
    }
    if !matches!(x.rank(), Some(3..=5)) {
        return Err("only convolutions of one to three axes have native code".into());
    }
    if g.constant(data.operands[1]).is_some() {
        return Ok(Role::Anchor);
    }
    if is_depthwise(g, op) && x.dtype != DType::F32 {
        return Err(
            "only depthwise convolutions of f32 have native code where their weights are not known before the run"
                .into(),
        );
    }
    if g.ty(data.operands[1]).as_tensor().is_none_or(|t| t.fixed_dims().is_none()) {
        return Err("the extents of its weights are not known before the run".into());
    }
    Ok(Role::Anchor)
}

fn pool(g: &Graph, op: OpId) -> Result<Role, String> {
    let data = g.op(op);
    let last =
        as_op::<MaxPool>(g, op).map(|p| p.channels_last).or_else(|| as_op::<AvgPool>(g, op).map(|p| p.channels_last));
    let x = g.ty(data.operands[0]).as_tensor().ok_or("no tensor")?;
    if data.results.len() != 1 {
        return indexed::claims(g, op).map(|()| Role::Single);
    }
    if last != Some(true) {
        return Err("only channels-last pools have native code".into());
    }
    let bytes = data.name() == MaxPool::NAME && matches!(x.dtype, DType::U8 | DType::I8);
    if !(x.dtype == DType::F32 || bytes) {
        return Err("only pools of f32, and maxima of bytes, have native code".into());
    }
    let shape = x.shape.as_ref().ok_or("the rank of its input is not known")?;
    if !is_vectorized(&geometry(g, op, shape)?) {
        return indexed::claims(g, op).map(|()| Role::Single);
    }
    Ok(Role::Anchor)
}
