//! The arena of one function: ops, values and regions. Read here; written through [`crate::Rewriter`].

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use indexmap::IndexSet;
use of_diag::Location;
use smallvec::SmallVec;

use crate::rewrites::Trail;
use crate::uses::Uses;
use crate::{Attrs, Dim, OpDef, OpView, Tensor, Type};

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident),*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        pub struct $name(pub(crate) u32);
        impl $name {
            /// Position in the arena: stable, dense, for side tables.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}
ids! {
    /// An op of one graph.
    OpId,
    /// A value of one graph.
    ValueId,
    /// A region of one graph.
    RegionId
}

/// One operand position that reads a value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Use {
    /// The reading op.
    pub op: OpId,
    /// Which operand of it.
    pub operand: u32,
}

/// What defines a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ValueDef {
    /// Result `.1` of op `.0`.
    Result(OpId, u32),
    /// Argument `.1` of region `.0`.
    Arg(RegionId, u32),
}

/// An operation.
#[derive(Clone)]
pub struct OpData {
    /// Its declaration.
    pub def: &'static dyn OpDef,
    /// Operands; `of.none` marks an omitted optional operand.
    pub operands: SmallVec<[ValueId; 4]>,
    /// Results.
    pub results: SmallVec<[ValueId; 2]>,
    /// Attributes.
    pub attrs: Attrs,
    /// Regions.
    pub regions: SmallVec<[RegionId; 1]>,
    /// Where it comes from.
    pub loc: Location,
    /// The region that holds it.
    pub parent: RegionId,
    pub(crate) prev: Option<OpId>,
    pub(crate) next: Option<OpId>,
}

impl OpData {
    /// Full name, e.g. `of.matmul`.
    pub fn name(&self) -> &'static str {
        self.def.name()
    }
}

#[derive(Clone)]
pub(crate) struct ValueData {
    pub ty: Type,
    pub def: ValueDef,
    pub uses: Uses,
    pub name: Option<Arc<str>>,
    /// [`Graph::dims_value`], once it was asked for. The rewriter clears it where an edit may change it.
    pub shape_value: ShapeValue,
}

/// The elements of an integer tensor as dimensions, or `None` where they do not follow from shapes and constants.
pub(crate) type ShapeValue = OnceLock<Option<Box<[Dim]>>>;

#[derive(Clone, Default)]
pub(crate) struct RegionData {
    pub args: Vec<ValueId>,
    pub first: Option<OpId>,
    pub last: Option<OpId>,
    pub parent: Option<OpId>,
}

/// Tensors of more elements are data, not shapes.
const MAX_SHAPE_LENGTH: usize = 64;

/// The state of a graph. Two graphs of the same version are equal: each edit gives a version that no graph had before,
/// and a copy keeps that of its original.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Version(u64);

impl Version {
    pub(crate) fn next() -> Version {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Version(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// The body of a function: one region of ops in execution order, with regions nested in ops.
///
/// A region is a single block that ends with a terminator. Values are visible in the region that defines them and in
/// the regions nested below it.
#[derive(Clone)]
pub struct Graph {
    pub(crate) ops: Vec<Option<OpData>>,
    pub(crate) values: Vec<ValueData>,
    pub(crate) regions: Vec<RegionData>,
    pub(crate) fresh: u32,
    pub(crate) version: Version,
    pub(crate) trail: Option<Box<Trail>>,
}

impl Default for Graph {
    fn default() -> Self {
        Graph {
            ops: Vec::new(),
            values: Vec::new(),
            regions: vec![RegionData::default()],
            fresh: 0,
            version: Version::next(),
            trail: None,
        }
    }
}

impl Graph {
    /// An empty graph.
    pub fn new() -> Self {
        Self::default()
    }

    /// The version, which every edit changes.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The outermost region; its arguments are the function's.
    pub fn entry(&self) -> RegionId {
        RegionId(0)
    }

    /// The arguments of the outermost region.
    pub fn args(&self) -> &[ValueId] {
        self.region_args(self.entry())
    }

    /// An op that is known to be live.
    ///
    /// # Panics
    /// When it was erased: keeping ids of erased ops is a bug of the caller.
    pub fn op(&self, op: OpId) -> &OpData {
        self.ops[op.index()].as_ref().expect("the op was erased")
    }

    /// Whether the op still exists.
    pub fn is_live(&self, op: OpId) -> bool {
        self.ops.get(op.index()).is_some_and(Option::is_some)
    }

    /// Length of the arena of ops, erased ones included: the size for side tables.
    pub fn op_slots(&self) -> usize {
        self.ops.len()
    }

    /// Length of the arena of values.
    pub fn value_slots(&self) -> usize {
        self.values.len()
    }

    /// The value at position `index` of the arena.
    pub fn value_at(&self, index: usize) -> Option<ValueId> {
        (index < self.values.len()).then_some(ValueId(index as u32))
    }

    /// The type of a value.
    pub fn ty(&self, value: ValueId) -> &Type {
        &self.values[value.index()].ty
    }

    /// What defines a value.
    pub fn def(&self, value: ValueId) -> ValueDef {
        self.values[value.index()].def
    }

    /// The op that defines a value, unless an argument.
    pub fn def_op(&self, value: ValueId) -> Option<OpId> {
        match self.def(value) {
            ValueDef::Result(op, _) => Some(op),
            ValueDef::Arg(..) => None,
        }
    }

    /// Every operand position that reads a value.
    pub fn uses(&self, value: ValueId) -> &[Use] {
        self.values[value.index()].uses.as_slice()
    }

    /// The name given to a value by its source, for people.
    pub fn name(&self, value: ValueId) -> Option<&Arc<str>> {
        self.values[value.index()].name.as_ref()
    }

    /// The arguments of a region.
    pub fn region_args(&self, region: RegionId) -> &[ValueId] {
        &self.regions[region.index()].args
    }

    /// The op that a region belongs to; `None` for the outermost.
    pub fn region_parent(&self, region: RegionId) -> Option<OpId> {
        self.regions[region.index()].parent
    }

    /// The ops of a region in order.
    pub fn region_ops(&self, region: RegionId) -> impl DoubleEndedIterator<Item = OpId> + '_ {
        let r = &self.regions[region.index()];
        RegionOps { graph: self, front: r.first, back: r.last }
    }

    /// The ops before `op` in its region, the nearest first.
    pub fn ops_before(&self, op: OpId) -> impl Iterator<Item = OpId> + '_ {
        std::iter::successors(self.op(op).prev, |o| self.op(*o).prev)
    }

    /// The last op of a region, its terminator once the region is complete.
    pub fn terminator(&self, region: RegionId) -> Option<OpId> {
        self.regions[region.index()].last.filter(|op| self.op(*op).def.traits().terminator)
    }

    /// The values that a region yields to its parent (the operands of its terminator).
    pub fn yields(&self, region: RegionId) -> &[ValueId] {
        self.terminator(region).map_or(&[], |t| &self.op(t).operands)
    }

    /// The results of the function.
    pub fn outputs(&self) -> &[ValueId] {
        self.yields(self.entry())
    }

    /// Every op in execution order, an op before the ops of its regions.
    pub fn walk(&self) -> Vec<OpId> {
        fn visit(g: &Graph, region: RegionId, out: &mut Vec<OpId>) {
            for op in g.region_ops(region) {
                out.push(op);
                for r in &g.op(op).regions {
                    visit(g, *r, out);
                }
            }
        }
        let mut out = Vec::with_capacity(self.ops.len());
        visit(self, self.entry(), &mut out);
        out
    }

    /// The values from outside that the ops in the regions of `op` read, each once, in the order of the ops.
    pub fn captured(&self, op: OpId) -> Vec<ValueId> {
        let all: IndexSet<ValueId> = self.op(op).regions.iter().flat_map(|r| self.read_from_outside(*r)).collect();
        all.into_iter().collect()
    }

    /// The values from outside of `region` that its ops read, each once, in the order of the ops.
    pub fn read_from_outside(&self, region: RegionId) -> Vec<ValueId> {
        fn visit(g: &Graph, region: RegionId, whole: RegionId, out: &mut IndexSet<ValueId>) {
            for op in g.region_ops(region) {
                let data = g.op(op);
                for v in &data.operands {
                    let from = match g.def(*v) {
                        ValueDef::Arg(region, _) => region,
                        ValueDef::Result(op, _) => g.op(op).parent,
                    };
                    if !g.encloses(whole, from) {
                        out.insert(*v);
                    }
                }
                data.regions.iter().for_each(|r| visit(g, *r, whole, out));
            }
        }
        let mut out = IndexSet::new();
        visit(self, region, region, &mut out);
        out.into_iter().collect()
    }

    /// An op as its declaration sees it.
    pub fn view(&self, op: OpId) -> OpView<'_> {
        let o = self.op(op);
        OpView { graph: self, operands: &o.operands, attrs: &o.attrs, regions: &o.regions }
    }

    /// The value where a constant defines it.
    pub fn constant(&self, value: ValueId) -> Option<Tensor> {
        let op = self.op(self.def_op(value)?);
        op.def.constant(&op.attrs)
    }

    /// The value of an integer tensor of rank 0 or 1 as dimensions, where it follows from shapes and constants.
    ///
    /// Each value is computed once: the graph remembers it, because a chain of shape arithmetic may be long.
    pub fn dims_value(&self, value: ValueId) -> Option<Vec<Dim>> {
        if !self.may_be_shape(value) {
            return None;
        }
        // Operands before the ops that read them: recursion would be as deep as the chain.
        let mut open = vec![value];
        while let Some(v) = open.last().copied() {
            if self.values[v.index()].shape_value.get().is_some() {
                open.pop();
                continue;
            }
            let before = open.len();
            if let Some(op) = self.def_op(v) {
                let unknown =
                    |v: &&ValueId| self.values[v.index()].shape_value.get().is_none() && self.may_be_shape(**v);
                open.extend(self.op(op).operands.iter().filter(unknown));
            }
            if open.len() == before {
                self.values[v.index()].shape_value.get_or_init(|| self.compute_dims(v).map(Vec::into_boxed_slice));
                open.pop();
            }
        }
        self.values[value.index()].shape_value.get()?.as_ref().map(|d| d.to_vec())
    }

    /// Whether a value may hold dimensions: an integer tensor of rank 0 or 1, and not too long. Longer tensors are data.
    fn may_be_shape(&self, value: ValueId) -> bool {
        let Some(t) = self.ty(value).as_tensor() else { return false };
        let short = |d: &Dim| d.as_const().is_none_or(|n| n <= MAX_SHAPE_LENGTH as i64);
        !t.dtype.is_float() && t.shape.as_ref().is_none_or(|s| s.len() <= 1 && s.iter().all(short))
    }

    /// [`Graph::dims_value`], given those of the operands.
    fn compute_dims(&self, value: ValueId) -> Option<Vec<Dim>> {
        if let Some(c) = self.constant(value) {
            return Some(c.to_i64s()?.into_iter().map(Dim::from).collect());
        }
        let ValueDef::Result(op, 0) = self.def(value) else { return None };
        let dims = self.op(op).def.dims(&self.view(op))?;
        // A number that its element type cannot hold wraps when it is computed.
        let range = self.ty(value).as_tensor()?.dtype.int_range();
        let wraps = |d: &Dim| match (d.as_const(), range) {
            (Some(c), Some((low, high))) => !(low..=high).contains(&i128::from(c)),
            (None, Some((_, high))) => high < i128::from(i32::MAX),
            (_, None) => false,
        };
        if dims.iter().any(|d| wraps(d) || d.is_unknown()) { None } else { Some(dims) }
    }

    /// Whether `ancestor` is `region` or encloses it.
    pub fn encloses(&self, ancestor: RegionId, region: RegionId) -> bool {
        let mut at = Some(region);
        while let Some(r) = at {
            if r == ancestor {
                return true;
            }
            at = self.region_parent(r).map(|op| self.op(op).parent);
        }
        false
    }
}

struct RegionOps<'a> {
    graph: &'a Graph,
    front: Option<OpId>,
    back: Option<OpId>,
}

impl RegionOps<'_> {
    fn step(&mut self, from_front: bool) -> Option<OpId> {
        let at = if from_front { self.front? } else { self.back? };
        if self.front == self.back {
            (self.front, self.back) = (None, None);
        } else if from_front {
            self.front = self.graph.op(at).next;
        } else {
            self.back = self.graph.op(at).prev;
        }
        Some(at)
    }
}

impl Iterator for RegionOps<'_> {
    type Item = OpId;
    fn next(&mut self) -> Option<OpId> {
        self.step(true)
    }
}

impl DoubleEndedIterator for RegionOps<'_> {
    fn next_back(&mut self) -> Option<OpId> {
        self.step(false)
    }
}
