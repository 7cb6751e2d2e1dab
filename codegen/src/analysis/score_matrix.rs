//! Finds score matrices (rows by keys) that need not be materialised: two contractions and elementwise ops compute them, and
//! only contractions read the result. The gradient of attention has this form. Its weights are recomputed from the scores and
//! from the row values that the forward ops stored, and each tile is multiplied as soon as it is computed.

use std::collections::{BTreeSet, HashSet};

use of_ir::{DType, Graph, IdMap, IdSet, OpId, RegionId, ValueId};
use of_ops::OpSpec;
use of_ops::contraction::MatMul;
use of_ops::list::as_op;
use of_ops::movement::Transpose;

use crate::analysis::roles::{Role, Roles};
use crate::analysis::view::OperandView;
use crate::kernel::attention::MatrixLayout;
use crate::kernel::extent;
use crate::kernel::extent::Extent;

/// Maximum number of elementwise ops of a score matrix.
const MAX_ELEMENTWISE_OPS: usize = 48;

/// Two contractions, the elementwise ops on their results, and the contractions that read those.
#[derive(Clone, PartialEq, Debug)]
pub struct ScoreMatrixMatch {
    /// The contractions that compute values of its extents, in the order of the region.
    pub products: [OpId; 2],
    /// Elementwise ops of its extents, in the order of the region.
    pub maps: Vec<OpId>,
    /// The contractions that read it.
    pub sums: Vec<ScoreConsumer>,
    /// Its ops with other readers, in the order of the region.
    pub shared: Vec<OpId>,
}

/// A contraction of the matrix, or of its transpose, with an operand of one of its contractions.
#[derive(Clone, PartialEq, Debug)]
pub struct ScoreConsumer {
    /// The contraction.
    pub op: OpId,
    /// The value of the matrix that it reads.
    pub value: ValueId,
    /// The transpose before it, if any.
    pub transpose: Option<OpId>,
    /// Index of the matrix among its operands.
    pub operand: usize,
    /// Whether it sums over rows; otherwise over keys.
    pub over_rows: bool,
    /// The contraction of the matrix that shares the other operand.
    pub factor: usize,
    /// The transpose of the result, if it is the only reader.
    pub moved_by: Option<OpId>,
}

impl ScoreConsumer {
    /// Whether the last axis of the result is the one that the sums do not reduce.
    pub fn is_transposed(&self) -> bool {
        self.operand == 1
    }

    /// The operand that is not the matrix.
    pub fn other(&self, g: &Graph) -> ValueId {
        g.op(self.op).operands[1 - self.operand]
    }
}

impl ScoreMatrixMatch {
    /// All its ops.
    pub fn ops(&self) -> Vec<OpId> {
        let sums = self.sums.iter().flat_map(|s| s.transpose.into_iter().chain([s.op]).chain(s.moved_by));
        self.products.iter().chain(&self.maps).copied().chain(sums).collect()
    }

    /// Operands that its contractions read from memory: op and operand index.
    pub fn reads(&self) -> Vec<(OpId, usize)> {
        let products = self.products.iter().flat_map(|p| [(*p, 0), (*p, 1)]);
        products.chain(self.sums.iter().map(|s| (s.op, 1 - s.operand))).collect()
    }

    /// The movements of its operands that strides can express.
    pub fn movements(&self, g: &Graph, roles: &Roles) -> Vec<OpId> {
        let views = self.reads().into_iter().map(|(op, i)| OperandView::of(g, roles, g.op(op).operands[i]));
        views.flat_map(|v| v.ops).collect()
    }
}

/// The score matrices of a region, including those with shared ops.
pub fn find(g: &Graph, region: RegionId, roles: &Roles) -> Vec<ScoreMatrixMatch> {
    let order: Vec<OpId> = g.region_ops(region).collect();
    let f = Finder { g, roles, position: order.iter().copied().zip(0..).collect() };
    let mut taken: IdSet<OpId> = IdSet::default();
    let mut out = Vec::new();
    for op in order {
        if let Some(matrix) = f.matrix_read_by(op).filter(|t| t.ops().iter().all(|op| !taken.contains(op))) {
            taken.extend(matrix.ops());
            out.push(matrix);
        }
    }
    out
}

struct Finder<'a> {
    g: &'a Graph,
    roles: &'a Roles,
    position: IdMap<OpId, usize>,
}

/// The ops that compute a value of a score matrix.
#[derive(Default)]
struct Inputs {
    products: BTreeSet<(usize, OpId)>,
    maps: BTreeSet<(usize, OpId)>,
    loads: BTreeSet<ValueId>,
}

impl Finder<'_> {
    fn dims(&self, v: ValueId) -> Vec<Extent> {
        extent::of_value(self.g, v)
    }

    /// Whether `op` is a product of f32.
    fn is_product(&self, op: OpId) -> bool {
        let data = self.g.op(op);
        let f32s = |v: &ValueId| self.g.ty(*v).as_tensor().is_some_and(|t| t.dtype == DType::F32);
        *self.roles.get(op) == Role::Anchor && data.name() == MatMul::NAME && data.results.iter().all(f32s)
    }

    /// The op that swaps the last two axes of another value to compute `v`, and that value.
    fn transposed(&self, v: ValueId) -> Option<(OpId, ValueId)> {
        let op = self.g.def_op(v)?;
        self.is_transpose(op).then(|| (op, self.g.op(op).operands[0]))
    }

    fn is_transpose(&self, op: OpId) -> bool {
        let Some(t) = as_op::<Transpose>(self.g, op) else { return false };
        let rank = self.dims(self.g.op(op).results[0]).len();
        let swapped =
            |p: Vec<usize>| rank >= 2 && (0..rank - 2).all(|i| p[i] == i) && p[rank - 2..] == [rank - 1, rank - 2];
        *self.roles.get(op) == Role::Single && t.permutation(rank).is_ok_and(swapped)
    }

    /// The score matrix that contraction `op` reads, if two contractions compute it.
    fn matrix_read_by(&self, op: OpId) -> Option<ScoreMatrixMatch> {
        if !self.is_product(op) {
            return None;
        }
        let operands = self.g.op(op).operands.iter();
        operands.map(|v| self.transposed(*v).map_or(*v, |(_, x)| x)).find_map(|x| self.matrix(x))
    }

    /// The score matrix that `x` belongs to.
    fn matrix(&self, x: ValueId) -> Option<ScoreMatrixMatch> {
        let space = self.dims(x);
        let b = self.inputs(x, &space)?;
        let [first, second] = b.products.iter().map(|p| p.1).collect::<Vec<_>>()[..] else { return None };
        let products = [first, second];
        let maps: Vec<OpId> = b.maps.iter().map(|m| m.1).collect();
        let inside: IdSet<OpId> = products.iter().chain(&maps).copied().collect();
        // Operands from outside must be computed before it, such as the result of the forward pass.
        let operands = products.iter().flat_map(|p| self.g.op(*p).operands.iter().copied());
        let before = self.needed(b.loads.iter().copied().chain(operands), self.position[&first]);
        let mut sums = Vec::new();
        for op in products.iter().chain(&maps) {
            let v = self.g.op(*op).results[0];
            for u in self.g.uses(v) {
                if self.is_transpose(u.op) {
                    let transposed = self.g.op(u.op).results[0];
                    if let [read] = self.g.uses(transposed) {
                        sums.extend(self.sum(read.op, (v, read.operand as usize), Some(u.op), products));
                    }
                } else {
                    sums.extend(self.sum(u.op, (v, u.operand as usize), None, products));
                }
            }
        }
        sums.retain(|s| !before.contains(&s.op) && !inside.contains(&s.op));
        let mut matrix = ScoreMatrixMatch { products, maps, sums, shared: Vec::new() };
        let all: IdSet<OpId> = matrix.ops().into_iter().collect();
        matrix.shared = self.shared(&inside, &all);
        // At least one of the contractions must have no other readers: otherwise both are computed anyway.
        let own = matrix.products.iter().any(|p| !matrix.shared.contains(p));
        (own && !matrix.sums.is_empty()).then_some(matrix)
    }

    /// The ops of the same extents that compute `x`.
    fn inputs(&self, x: ValueId, space: &[Extent]) -> Option<Inputs> {
        let [.., rows, keys] = space else { return None };
        if rows.is(1) || keys.is(1) {
            return None;
        }
        let (mut b, mut open, mut seen) = (Inputs::default(), vec![x], IdSet::default());
        while let Some(v) = open.pop() {
            if !seen.insert(v) || self.g.constant(v).is_some() {
                continue;
            }
            let Some(op) = self.g.def_op(v).filter(|_| self.dims(v) == space) else {
                b.loads.insert(v);
                continue;
            };
            let at = *self.position.get(&op)?;
            if self.is_product(op) {
                b.products.insert((at, op));
            } else if matches!(self.roles.get(op), Role::Map(_)) {
                b.maps.insert((at, op));
                open.extend(&self.g.op(op).operands);
            } else {
                b.loads.insert(v);
            }
            if b.products.len() > 2 || b.maps.len() > MAX_ELEMENTWISE_OPS {
                return None;
            }
        }
        Some(b)
    }

    /// The ops from position `from` on that `values` depend on.
    fn needed(&self, values: impl Iterator<Item = ValueId>, from: usize) -> IdSet<OpId> {
        let (mut out, mut open) = (HashSet::default(), values.collect::<Vec<_>>());
        while let Some(v) = open.pop() {
            let Some(op) = self.g.def_op(v) else { continue };
            if self.position.get(&op).is_some_and(|p| *p >= from) && out.insert(op) {
                open.extend(&self.g.op(op).operands);
            }
        }
        out
    }

    /// Ops `inside` a score matrix with users outside of `all` its ops, in order.
    fn shared(&self, inside: &IdSet<OpId>, all: &IdSet<OpId>) -> Vec<OpId> {
        let mut out: BTreeSet<(usize, OpId)> = BTreeSet::new();
        let used = |op: &&OpId| self.g.uses(self.g.op(**op).results[0]).iter().any(|u| !all.contains(&u.op));
        let mut open: Vec<OpId> = inside.iter().filter(used).copied().collect();
        while let Some(op) = open.pop() {
            if out.insert((self.position[&op], op)) {
                let before = self.g.op(op).operands.iter().filter_map(|v| self.g.def_op(*v));
                open.extend(before.filter(|d| inside.contains(d)));
            }
        }
        out.into_iter().map(|o| o.1).collect()
    }

    /// Contraction `op` as a sum over `value` of a score matrix, which is its operand `operand`.
    fn sum(
        &self,
        op: OpId,
        (value, operand): (ValueId, usize),
        transpose: Option<OpId>,
        products: [OpId; 2],
    ) -> Option<ScoreConsumer> {
        if !self.is_product(op) || products.contains(&op) {
            return None;
        }
        // The sum reduces the lines of the right operand.
        let over_rows = (operand == 1) != transpose.is_some();
        let y = self.g.op(op).results[0];
        let alone = |y: ValueId| match self.g.uses(y) {
            [u] => Some(u.op).filter(|op| self.g.op(*op).name() == Transpose::NAME),
            _ => None,
        };
        let moved = alone(y).filter(|op| *self.roles.get(*op) == Role::Single);
        let mut sum = ScoreConsumer { op, value, transpose, operand, over_rows, factor: 0, moved_by: moved };
        let lead = self.dims(value).len() - 2;
        let batch = &self.dims(value)[..lead];
        if self.dims(y).get(..lead) != Some(batch) || self.dims(y).len() != lead + 2 {
            return None;
        }
        let other = self.layout(sum.other(self.g), batch, operand == 1)?;
        let side = usize::from(!over_rows);
        sum.factor = products
            .iter()
            .position(|p| self.layout(self.g.op(*p).operands[side], batch, side == 1).as_ref() == Some(&other))?;
        Some(sum)
    }

    /// The layout of an operand of a contraction, through all movements.
    fn layout(&self, v: ValueId, batch: &[Extent], transposed: bool) -> Option<(ValueId, MatrixLayout)> {
        let view = OperandView::through_shared(self.g, self.roles, v);
        let float = self.g.ty(view.root).as_tensor().is_some_and(|t| t.dtype == DType::F32);
        let layout = view.layout(batch, transposed).ok()?;
        (float && self.g.constant(view.root).is_none()).then_some((view.root, layout))
    }
}
