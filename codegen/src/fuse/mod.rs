//! Fusion: decides which ops share a kernel.
//!
//! A group has an iteration space. It starts at an op and absorbs elementwise ops (and reductions over trailing axes) of the
//! same space, as long as no dependency path leaves the group and re-enters it. Roles and shapes decide what fuses, not patterns
//! of op names.
//!
//! This is the fusion pass (loop fusion of producers and consumers); a group is what IREE calls a dispatch region.

mod columns;
mod rematerialize;
mod updates;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use of_ir::{Graph, IdMap, IdSet, OpId, ValueDef, ValueId};
use of_ops::OpSpec;
use of_ops::contraction::MatMul;
use of_ops::list::as_op;
use of_ops::movement::Transpose;

use crate::analysis::roles;
use crate::analysis::roles::{Role, Roles};
use crate::analysis::score_matrix::ScoreMatrixMatch;
use crate::analysis::view::OperandView;
use crate::kernel::extent;
use crate::kernel::extent::Extent;
pub use updates::merge_updates;

/// How a group is lowered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupKind {
    /// Elementwise over the space.
    Elementwise,
    /// Rows with reductions over the last `.0` axes of the space.
    Rowwise(usize),
    /// Columns with reductions over the first `.0` axes of the space, which nothing in the group reads.
    Columnwise(usize),
    /// An anchor with elementwise ops as its epilogue.
    Anchor,
    /// Two contractions and the row-wise ops between them: separate groups, in [`Group::parts`].
    Attention,
    /// A recomputed score matrix and the contractions that read it: [`Group::score_matrix`].
    ScoreMatrix,
    /// One op.
    Single,
    /// One op whose regions run as programs.
    Control,
    /// One transfer between ranks.
    Transfer,
    /// One op on the reference backend.
    Reference,
}

/// Ops that share a kernel.
#[derive(Clone, PartialEq, Debug)]
pub struct Group {
    /// Ops in execution order.
    pub ops: Vec<OpId>,
    /// How it is lowered.
    pub kind: GroupKind,
    /// Iteration space: the dimensions of the anchor's result or of the elementwise ops.
    pub space: Vec<Extent>,
    /// Ops of other groups that its kernel recomputes first, in order, instead of reading their results.
    pub recomputed: Vec<OpId>,
    /// Results that all readers recompute: they are not stored.
    pub unstored: IdSet<ValueId>,
    /// Groups that it is composed of, in execution order, where they also have separate kernels.
    pub parts: Vec<Group>,
    /// The score matrix, for [`GroupKind::ScoreMatrix`].
    pub score_matrix: Option<Box<ScoreMatrixMatch>>,
    /// Groups that must run before.
    deps: BTreeSet<usize>,
}

impl Group {
    /// A group of these ops.
    pub fn of(ops: Vec<OpId>, kind: GroupKind, space: Vec<Extent>) -> Group {
        Group {
            ops,
            kind,
            space,
            recomputed: Vec::new(),
            unstored: HashSet::default(),
            parts: Vec::new(),
            score_matrix: None,
            deps: BTreeSet::new(),
        }
    }
}

/// The most elementwise ops that one kernel fuses with its anchor or reductions.
pub(crate) const MAX_FUSED_ELEMENTWISE_OPS: usize = 48;

/// The most ops of a group without an anchor. It bounds the time that a C compiler takes for one kernel, which is more than
/// linear in its length.
const MAX_GROUP_OPS: usize = 256;

/// Partitions `ops` of a region, in their order; each of `matrices`, which share no op with others, becomes a group. Reductions of columns
/// fuse with elementwise ops if `columns` says so. Groups are in execution order.
pub fn fuse(
    graph: &Graph,
    ops: impl IntoIterator<Item = OpId>,
    roles: &Roles,
    matrices: Vec<ScoreMatrixMatch>,
    columns: bool,
) -> Vec<Group> {
    let mut order: Vec<OpId> = ops.into_iter().collect();
    let written = order.iter().enumerate().map(|(i, op)| (*op, i)).collect();
    hoist(graph, roles, &mut order);
    let mut taken: IdMap<OpId, usize> = IdMap::default();
    for (i, t) in matrices.iter().enumerate() {
        let ops: Vec<OpId> = t.ops().into_iter().chain(t.movements(graph, roles)).collect();
        taken.extend(ops.iter().map(|op| (*op, i)));
        gather(graph, roles, &ops.into_iter().collect(), &mut order);
    }
    // Score matrices that depend on each other through another one do not become groups.
    let together = |i: usize| {
        let mut at = order.iter().enumerate().filter(|(_, op)| taken.get(*op) == Some(&i)).map(|(at, _)| at);
        let first = at.next().unwrap_or(0);
        at.zip(first + 1..).all(|(at, next)| at == next)
    };
    let apart: Vec<usize> = (0..matrices.len()).filter(|i| !together(*i)).collect();
    taken.retain(|_, i| !apart.contains(i));
    let position = order.iter().enumerate().map(|(i, op)| (*op, i)).collect();
    let mut f = Fuser {
        graph,
        roles,
        columns,
        written,
        position,
        groups: Vec::new(),
        levels: Vec::new(),
        readers: Vec::new(),
        group_of: HashMap::default(),
        widened: Vec::new(),
        last_rendezvous: None,
        taken: taken.keys().copied().collect(),
    };
    let mut matrices: Vec<Option<ScoreMatrixMatch>> = matrices.into_iter().map(Some).collect();
    for op in &order {
        if f.group_of.contains_key(op) {
            continue;
        }
        match taken.get(op) {
            Some(i) => {
                if let Some(matrix) = matrices[*i].take() {
                    let ops = order.iter().copied().filter(|op| taken.get(op) == Some(i)).collect();
                    f.score_matrix(matrix, ops);
                }
            }
            None => f.add(*op),
        }
    }
    f.merge_columns();
    f.merge_elementwise();
    f.fuse_widening();
    f.fuse_attention();
    f.rematerialize();
    f.sorted()
}

/// Moves elementwise ops directly after their operands, so that anchors after them find them computed.
fn hoist(graph: &Graph, roles: &Roles, order: &mut [OpId]) {
    let mut earliest: IdMap<OpId, usize> = IdMap::default();
    for (i, op) in order.iter().enumerate() {
        let operands = graph.op(*op).operands.iter().filter_map(|v| graph.def_op(*v));
        let read = operands.chain(roles.binders(graph, *op)).filter_map(|d| earliest.get(&d).copied());
        let up =
            matches!(roles.get(*op), Role::Map(_) | Role::Alias | Role::Nothing) && graph.op(*op).regions.is_empty();
        let terminator = graph.op(*op).def.traits().terminator;
        // Ops without operands come before the first op, too.
        earliest.insert(*op, if up && !terminator { read.max().unwrap_or(0) } else { i + 1 });
    }
    of_ir::sort::by_key(order, |op| earliest[op]);
}

/// Makes the ops of `set` contiguous: their users come after, everything else before.
fn gather(graph: &Graph, roles: &Roles, set: &BTreeSet<OpId>, order: &mut [OpId]) {
    let at = |op: &OpId| set.contains(op);
    let (Some(first), Some(last)) = (order.iter().position(at), order.iter().rposition(at)) else { return };
    let (mut before, mut own, mut behind): (Vec<OpId>, Vec<OpId>, Vec<OpId>) = Default::default();
    let mut late: BTreeSet<OpId> = set.clone();
    for op in &order[first..=last] {
        let inside = captured_ops(graph, *op);
        let read = inside.iter().chain([op]).flat_map(|o| &graph.op(*o).operands).filter_map(|v| graph.def_op(*v));
        if set.contains(op) {
            own.push(*op);
        } else if read.chain(roles.binders(graph, *op)).any(|d| late.contains(&d)) {
            late.insert(*op);
            behind.push(*op);
        } else {
            before.push(*op);
        }
    }
    for (slot, op) in order[first..=last].iter_mut().zip(before.into_iter().chain(own).chain(behind)) {
        *slot = op;
    }
}

pub(crate) struct Fuser<'a> {
    graph: &'a Graph,
    roles: &'a Roles,
    /// Whether reductions of columns fuse with elementwise ops.
    columns: bool,
    /// The places of ops as they are written.
    written: IdMap<OpId, usize>,
    position: IdMap<OpId, usize>,
    groups: Vec<Group>,
    /// For each group a number above those of all its dependencies, which bounds the search in `depends`.
    levels: Vec<usize>,
    /// For each group the groups that depend on it.
    readers: Vec<Vec<usize>>,
    group_of: IdMap<OpId, usize>,
    /// Groups of ops that widen the result of an anchor's group, with that group.
    widened: Vec<(usize, usize, Vec<OpId>)>,
    /// The last group with a transfer: all ranks must run transfers in the same order, whatever is fused.
    last_rendezvous: Option<usize>,
    /// Ops of score matrices.
    taken: IdSet<OpId>,
}

impl Fuser<'_> {
    /// Makes a group of a score matrix, whose ops in order are `ops`.
    fn score_matrix(&mut self, matrix: ScoreMatrixMatch, ops: Vec<OpId>) {
        let Some((first, rest)) = ops.split_first() else { return };
        self.start(*first, GroupKind::ScoreMatrix);
        let g = self.group_of[first];
        rest.iter().for_each(|op| self.join(*op, g));
        let alone = |op: &OpId| {
            let kind = match self.roles.get(*op) {
                Role::Anchor => GroupKind::Anchor,
                Role::Map(_) => GroupKind::Elementwise,
                _ => GroupKind::Single,
            };
            Group::of(vec![*op], kind, self.dims(*op))
        };
        let parts = ops.iter().map(alone).collect();
        let space = self.dims(matrix.products[0]);
        let group = &mut self.groups[g];
        (group.parts, group.space, group.score_matrix) = (parts, space, Some(Box::new(matrix)));
    }

    /// Adds an op to a group, new or old, by its role.
    fn add(&mut self, op: OpId) {
        match self.roles.get(op).clone() {
            Role::Nothing | Role::Alias => {}
            Role::Reference(_) => self.start(op, GroupKind::Reference),
            Role::Control => self.start(op, GroupKind::Control),
            Role::Single => self.start(op, GroupKind::Single),
            Role::ColumnReduce(_) if !self.columns => self.start(op, GroupKind::Single),
            Role::ColumnReduce(outer) => self.add_column_reduction(op, outer),
            Role::Transfer => self.start(op, GroupKind::Transfer),
            Role::Anchor => {
                self.start(op, GroupKind::Anchor);
                let g = self.group_of[&op];
                let (own, wide) = self.epilogue(op);
                for o in own {
                    self.join(o, g);
                }
                if let Some((first, rest)) = wide.split_first() {
                    self.start(*first, GroupKind::Elementwise);
                    let w = self.group_of[first];
                    rest.iter().for_each(|o| self.join(*o, w));
                    self.widened.push((w, g, wide));
                }
            }
            Role::Map(_) => {
                let dims = self.dims(op);
                let join = self.joinable(op, |g| match g.kind {
                    GroupKind::Elementwise => g.space == dims,
                    GroupKind::Columnwise(_) => g.space == dims && !self.reads_reductions(op, g),
                    GroupKind::Rowwise(inner) => {
                        g.space == dims || (row_dims(&g.space, inner) == dims && self.reads_rows(op, inner))
                    }
                    _ => false,
                });
                match join {
                    Some(g) => self.join(op, g),
                    None => self.start(op, GroupKind::Elementwise),
                }
            }
            Role::RowReduce(inner) => {
                let space = self.value_dims(self.graph.op(op).operands[0]);
                let join = self.joinable(op, |g| {
                    g.space == space && (g.kind == GroupKind::Elementwise || g.kind == GroupKind::Rowwise(inner))
                });
                match join.or_else(|| self.sibling(op, inner)) {
                    Some(g) => {
                        self.groups[g].kind = GroupKind::Rowwise(inner);
                        self.join(op, g);
                    }
                    None => {
                        self.start(op, GroupKind::Rowwise(inner));
                        let g = self.group_of[&op];
                        self.groups[g].space = space;
                    }
                }
            }
        }
        if roles::is_rendezvous(self.graph, op)
            && let Some(g) = self.group_of.get(&op).copied()
        {
            let last_rendezvous = self.last_rendezvous.replace(g);
            self.add_deps(g, last_rendezvous);
        }
    }

    /// The newest group of a producer that `accepts`, unless joining it would close a cycle.
    fn joinable(&self, op: OpId, accepts: impl Fn(&Group) -> bool) -> Option<usize> {
        let mut producers: Vec<usize> = self.producer_groups(op).into_iter().collect();
        producers.reverse();
        producers.iter().copied().find(|g| {
            // The group must compute its operands directly: an alias in between may have another space, and needs the value in
            // memory before the kernel of the group runs.
            let computed = |v: ValueId| self.graph.def_op(v).and_then(|o| self.group_of.get(&o)) == Some(g);
            let operands = &self.graph.op(op).operands;
            let direct = operands.iter().any(|v| computed(*v))
                && operands.iter().all(|v| computed(*v) || !computed(self.alias_root(*v)));
            direct
                && self.has_room(*g, 1)
                && accepts(&self.groups[*g])
                && producers.iter().all(|q| q == g || !self.depends(*q, *g))
        })
    }

    /// Whether group `g` may get `more` ops.
    fn has_room(&self, g: usize, more: usize) -> bool {
        self.groups[g].ops.len() + more <= MAX_GROUP_OPS
    }

    /// Whether all operands have one value a row. An operand of an open extent that is 1 at run time does not count.
    fn reads_rows(&self, op: OpId, inner: usize) -> bool {
        let one = |v: &ValueId| self.value_dims(*v).iter().rev().take(inner).all(|d| d.is(1));
        self.graph.op(op).operands.iter().all(one)
    }

    /// A group that already reduces the same rows as reduction `op`: one loop computes both.
    fn sibling(&self, op: OpId, inner: usize) -> Option<usize> {
        let x = self.graph.op(op).operands[0];
        let producers = self.producer_groups(op);
        let others = self.graph.uses(x).iter().filter(|u| u.op != op && u.operand == 0);
        others.filter(|u| *self.roles.get(u.op) == Role::RowReduce(inner)).find_map(|u| {
            let g = *self.group_of.get(&u.op)?;
            (self.has_room(g, 1) && !producers.iter().any(|p| self.depends(*p, g))).then_some(g)
        })
    }

    /// Elementwise ops after `root` that can be fused into its epilogue, so that one value leaves the group. All their other
    /// operands are computed before `root`. The second list has the ops after the narrowest value: their readers may read that
    /// value, such as a quantised one, and recompute them.
    fn epilogue(&self, root: OpId) -> (Vec<OpId>, Vec<OpId>) {
        let space = self.dims(root);
        let start = self.position[&root];
        let mut inside: Vec<OpId> = vec![root];
        let bits = |v: ValueId| self.graph.ty(v).as_tensor().and_then(|t| t.dtype.bits()).unwrap_or(usize::MAX);
        let (mut best, mut narrow) = (0, (usize::MAX, 0));
        let mut frontier: BTreeSet<(usize, OpId)> = self.users(root);
        while let Some((_, op)) = frontier.pop_first() {
            if inside.len() > MAX_FUSED_ELEMENTWISE_OPS {
                break;
            }
            let fits = matches!(self.roles.get(op), Role::Map(_))
                && !self.group_of.contains_key(&op)
                && !self.taken.contains(&op)
                && self.dims(op) == space;
            // Tested first: a terminator may read any number of values.
            if !fits {
                continue;
            }
            let early = self.graph.op(op).operands.iter().all(|v| match self.graph.def_op(self.alias_root(*v)) {
                None => true,
                Some(d) => inside.contains(&d) || self.position.get(&d).is_none_or(|p| *p < start),
            });
            // Reading the group's value through an alias requires it in memory.
            let direct = self.graph.op(op).operands.iter().all(|v| {
                let through = self.graph.def_op(self.alias_root(*v)).is_some_and(|d| inside.contains(&d));
                !through || self.graph.def_op(*v).is_some_and(|d| inside.contains(&d))
            });
            if !early || !direct {
                continue;
            }
            inside.push(op);
            frontier.extend(self.users(op));
            let mut escaping = inside
                .iter()
                .flat_map(|o| self.graph.op(*o).results.iter().copied())
                .filter(|v| self.graph.uses(*v).iter().any(|u| !inside.contains(&u.op)));
            if let (Some(v), None) = (escaping.next(), escaping.next()) {
                best = inside.len() - 1;
                narrow = if bits(v) <= narrow.0 { (bits(v), best) } else { narrow };
            }
        }
        let narrow = narrow.1.min(best);
        (inside[1..=narrow].to_vec(), inside[narrow + 1..=best].to_vec())
    }

    fn users(&self, op: OpId) -> BTreeSet<(usize, OpId)> {
        let results = self.graph.op(op).results.iter();
        results.flat_map(|v| self.graph.uses(*v)).filter_map(|u| Some((*self.position.get(&u.op)?, u.op))).collect()
    }

    fn start(&mut self, op: OpId, kind: GroupKind) {
        let deps = self.producer_groups(op);
        let g = self.groups.len();
        self.group_of.insert(op, g);
        self.groups.push(Group::of(vec![op], kind, self.dims(op)));
        self.levels.push(0);
        self.readers.push(Vec::new());
        self.add_deps(g, deps);
    }

    /// Adds dependencies to group `g`.
    fn add_deps(&mut self, g: usize, deps: impl IntoIterator<Item = usize>) {
        let mut open = Vec::new();
        for d in deps {
            if self.groups[g].deps.insert(d) {
                self.readers[d].push(g);
                open.push((g, self.levels[d] + 1));
            }
        }
        while let Some((g, level)) = open.pop() {
            if self.levels[g] < level {
                self.levels[g] = level;
                open.extend(self.readers[g].iter().map(|r| (*r, level + 1)));
            }
        }
    }

    fn join(&mut self, op: OpId, g: usize) {
        let mut deps = self.producer_groups(op);
        deps.remove(&g);
        self.add_deps(g, deps);
        self.groups[g].ops.push(op);
        self.group_of.insert(op, g);
    }

    /// Groups that compute the operands, including those that regions of the op read.
    fn producer_groups(&self, op: OpId) -> BTreeSet<usize> {
        let mut out = BTreeSet::new();
        let mut visit = |o: OpId| {
            for v in &self.graph.op(o).operands {
                if let Some(d) = self.graph.def_op(self.alias_root(*v))
                    && let Some(g) = self.group_of.get(&d)
                {
                    out.insert(*g);
                }
            }
        };
        visit(op);
        captured_ops(self.graph, op).into_iter().for_each(&mut visit);
        out.extend(self.roles.binders(self.graph, op).iter().filter_map(|o| self.group_of.get(o)));
        out
    }

    /// The value whose bytes `v` aliases under another type.
    fn alias_root(&self, v: ValueId) -> ValueId {
        let mut v = v;
        while let ValueDef::Result(op, _) = self.graph.def(v)
            && *self.roles.get(op) == Role::Alias
        {
            v = self.graph.op(op).operands[0];
        }
        v
    }

    /// Whether `a` depends on `b`, directly or transitively.
    ///
    /// Breadth first: a backward group reaches a forward one of its layer by a short path, and by one through all later layers.
    /// From both ends, always where fewer edges were followed: most groups of a long chain have few groups on one side.
    fn depends(&self, a: usize, b: usize) -> bool {
        if a == b {
            return true;
        }
        let (mut below, mut above) = (HashSet::from([a]), HashSet::from([b]));
        let (mut down, mut up) = (VecDeque::from([a]), VecDeque::from([b]));
        let (mut down_edges, mut up_edges) = (0, 0);
        while let (Some(low), Some(high)) = (down.front().copied(), up.front().copied()) {
            let (deps, readers) = (&self.groups[low].deps, &self.readers[high]);
            if down_edges + deps.len() <= up_edges + readers.len() {
                down.pop_front();
                down_edges += deps.len();
                if deps.iter().any(|g| above.contains(g)) {
                    return true;
                }
                let between = |g: &&usize| self.levels[**g] > self.levels[b];
                down.extend(deps.iter().filter(between).filter(|g| below.insert(**g)));
            } else {
                up.pop_front();
                up_edges += readers.len();
                if readers.iter().any(|g| below.contains(g)) {
                    return true;
                }
                let between = |g: &&usize| self.levels[**g] < self.levels[a];
                up.extend(readers.iter().filter(between).filter(|g| above.insert(**g)));
            }
        }
        false
    }

    fn dims(&self, op: OpId) -> Vec<Extent> {
        self.graph.op(op).results.first().map(|v| self.value_dims(*v)).unwrap_or_default()
    }

    fn value_dims(&self, v: ValueId) -> Vec<Extent> {
        extent::of_value(self.graph, v)
    }

    /// Merges each elementwise group into its only reader of the same space: no other group depends on it, so no cycle can
    /// close.
    fn merge_elementwise(&mut self) {
        for p in (0..self.groups.len()).rev() {
            if self.groups[p].kind != GroupKind::Elementwise {
                continue;
            }
            let Some(c) = self.only_reader(p).filter(|c| self.has_room(*c, self.groups[p].ops.len())) else { continue };
            let from = std::mem::take(&mut self.groups[p].ops);
            from.iter().for_each(|op| {
                self.group_of.insert(*op, c);
            });
            let deps = std::mem::take(&mut self.groups[p].deps);
            let to = &mut self.groups[c];
            to.deps.remove(&p);
            to.deps.extend(deps);
            to.ops.extend(from);
        }
    }

    /// Fuses ops that widen the result of an anchor's group into that group, where they stayed alone.
    fn fuse_widening(&mut self) {
        for (w, g, ops) in std::mem::take(&mut self.widened) {
            if self.groups[w].kind != GroupKind::Elementwise || self.groups[w].ops != ops {
                continue;
            }
            ops.iter().for_each(|op| {
                self.group_of.insert(*op, g);
            });
            self.groups[w].ops.clear();
            let mut deps = std::mem::take(&mut self.groups[w].deps);
            deps.remove(&g);
            self.groups[g].deps.extend(deps);
            self.groups[g].ops.extend(ops);
            for reader in &mut self.groups {
                if reader.deps.remove(&w) {
                    reader.deps.insert(g);
                }
            }
        }
    }

    /// The only group that reads what elementwise group `p` computes, pointwise in the same space. Its values may also be
    /// results of the program.
    fn only_reader(&self, p: usize) -> Option<usize> {
        let (mut reader, mut fetched) = (None, false);
        for op in &self.groups[p].ops {
            for v in self.graph.op(*op).operands.iter().chain(&self.graph.op(*op).results) {
                // 64-bit elements have no vector form, which the reader may require.
                if self.graph.ty(*v).as_tensor().and_then(|t| t.dtype.bits()).is_none_or(|b| b > 32) {
                    return None;
                }
            }
            for u in self.graph.op(*op).results.iter().flat_map(|v| self.graph.uses(*v)) {
                // A yielded value is stored too, if the reader can store more than one value. A region inside reads it earlier.
                let reader_op = self.graph.op(u.op);
                if reader_op.def.traits().terminator && reader_op.parent == self.graph.op(*op).parent {
                    fetched = true;
                    continue;
                }
                let g = *self.group_of.get(&u.op)?;
                if g != p && (reader.is_some_and(|r| r != g) || !matches!(self.roles.get(u.op), Role::Map(_))) {
                    return None;
                }
                reader = if g == p { reader } else { Some(g) };
            }
        }
        let (from, to) = (&self.groups[p], &self.groups[reader?]);
        let fits = from.space == to.space && from.ops.len() + to.ops.len() <= MAX_FUSED_ELEMENTWISE_OPS;
        let takes = match to.kind {
            GroupKind::Elementwise | GroupKind::Rowwise(_) | GroupKind::Columnwise(_) => true,
            GroupKind::Anchor => !fetched,
            _ => false,
        };
        (fits && takes).then_some(reader?)
    }

    /// Fuses two contractions, the row-wise ops between them, and the movements of operands and result that strides can express.
    /// Other groups read only the last of these groups, so no cycle can close.
    fn fuse_attention(&mut self) {
        for second in 0..self.groups.len() {
            let Some(parts) = self.attention(second) else { continue };
            let Some(last) = parts.last().copied() else { continue };
            let space = self.groups[second].space.clone();
            let deps =
                parts.iter().flat_map(|p| &self.groups[*p].deps).filter(|d| !parts.contains(d)).copied().collect();
            let mut taken = Vec::new();
            for p in parts {
                of_ir::sort::by_key(&mut self.groups[p].ops, |op| self.position[op]);
                let none = Group::of(Vec::new(), GroupKind::Single, Vec::new());
                taken.push(std::mem::replace(&mut self.groups[p], none));
            }
            let ops: Vec<OpId> = taken.iter().flat_map(|p| p.ops.clone()).collect();
            ops.iter().for_each(|op| {
                self.group_of.insert(*op, last);
            });
            self.groups[last] = Group { parts: taken, deps, ..Group::of(ops, GroupKind::Attention, space) };
        }
    }

    /// The groups of the attention whose second contraction is group `second`: movements of operands, the first contraction, the
    /// row-wise ops, the second contraction, a movement of the result.
    fn attention(&self, second: usize) -> Option<Vec<usize>> {
        let product = |g: usize| {
            let is = |op: &OpId| self.graph.op(*op).name() == MatMul::NAME && *self.roles.get(*op) == Role::Anchor;
            self.groups[g].ops.iter().copied().find(is).filter(|_| self.groups[g].kind == GroupKind::Anchor)
        };
        let last = product(second)?;
        let [weights, values] = self.graph.op(last).operands[..] else { return None };
        let rows = *self.group_of.get(&self.graph.def_op(weights)?)?;
        if self.groups[rows].kind != GroupKind::Rowwise(1) {
            return None;
        }
        // Other readers of the rows may read only values of one number a row: the gradient does.
        let numbers = |v: &ValueId| self.value_dims(*v) == row_dims(&self.groups[rows].space, 1);
        let read = self.results(rows);
        let fits = read.iter().all(|v| *v == weights || numbers(v));
        if !fits || !read.contains(&weights) || self.graph.uses(weights).len() != 1 {
            return None;
        }
        let first = self.groups[rows].deps.iter().copied().find(|g| {
            let inside = |op: OpId| self.group_of.get(&op).is_some_and(|o| *o == rows || o == g);
            product(*g).is_some()
                && self.groups[*g].space == self.groups[rows].space
                && self.only_result(*g).is_some_and(|v| self.graph.uses(v).iter().all(|u| inside(u.op)))
        })?;
        let scores = self.graph.op(product(first)?).operands.to_vec();
        let views: Vec<OperandView> =
            scores.iter().chain([&values]).map(|v| OperandView::of(self.graph, self.roles, *v)).collect();
        // Constant weights are packed into panels before the run, and large ones are read block by block.
        if views.iter().any(|v| self.graph.constant(v.root).is_some()) {
            return None;
        }
        let mut moves: Vec<OpId> = views.into_iter().flat_map(|v| v.ops).collect();
        of_ir::sort::by_key(&mut moves, |op| self.position[op]);
        let mut parts: Vec<usize> = moves.iter().map(|op| self.group_of.get(op).copied()).collect::<Option<_>>()?;
        parts.extend([first, rows, second]);
        // The result may have permuted axes, if its rows stay contiguous.
        if let Some(y) = self.only_result(second)
            && let [u] = self.graph.uses(y)
            && let Some(t) = as_op::<Transpose>(self.graph, u.op)
            && *self.roles.get(u.op) == Role::Single
            && let rank = self.value_dims(y).len()
            && t.permutation(rank).is_ok_and(|p| p.last() == Some(&(rank - 1)))
        {
            parts.push(*self.group_of.get(&u.op)?);
        }
        Some(parts)
    }

    /// The only value of a group that other groups read.
    fn only_result(&self, g: usize) -> Option<ValueId> {
        if let [v] = self.results(g)[..] { Some(v) } else { None }
    }

    /// The values of a group that other groups read.
    fn results(&self, g: usize) -> Vec<ValueId> {
        let ops = &self.groups[g].ops;
        let results = ops.iter().flat_map(|o| self.graph.op(*o).results.iter().copied());
        results.filter(|v| self.graph.uses(*v).iter().any(|u| !ops.contains(&u.op))).collect()
    }

    /// Groups in the order in which their ops are written, as far as dependences permit. A group counts as its last op, or as the first
    /// group that needs it.
    fn as_written(&self) -> Vec<usize> {
        let n = self.groups.len();
        let place = |g: usize| self.groups[g].ops.iter().filter_map(|op| self.written.get(op).copied()).max();
        let mut keys: Vec<usize> = (0..n).map(|g| place(g).unwrap_or(0)).collect();
        let mut readers: Vec<Vec<usize>> = vec![Vec::new(); n];
        (0..n).for_each(|g| self.groups[g].deps.iter().for_each(|d| readers[*d].push(g)));
        let mut open: Vec<usize> = readers.iter().map(Vec::len).collect();
        let mut last: Vec<usize> = (0..n).filter(|g| open[*g] == 0).collect();
        while let Some(g) = last.pop() {
            for d in &self.groups[g].deps {
                keys[*d] = keys[*d].min(keys[g]);
                open[*d] -= 1;
                if open[*d] == 0 {
                    last.push(*d);
                }
            }
        }
        let mut missing: Vec<usize> = self.groups.iter().map(|group| group.deps.len()).collect();
        let mut ready: BTreeSet<(usize, usize)> = (0..n).filter(|g| missing[*g] == 0).map(|g| (keys[g], g)).collect();
        let mut out = Vec::with_capacity(n);
        while let Some((_, g)) = ready.pop_first() {
            out.push(g);
            for r in &readers[g] {
                missing[*r] -= 1;
                if missing[*r] == 0 {
                    ready.insert((keys[*r], *r));
                }
            }
        }
        out
    }

    /// Groups in dependency order. The order of transfers between ranks and of what overlaps with them is chosen before; otherwise depth
    /// first.
    fn sorted(self) -> Vec<Group> {
        let has_transfers = self.written.keys().any(|op| roles::is_rendezvous(self.graph, *op));
        let out = if has_transfers { self.as_written() } else { self.depth_first() };
        let mut groups: Vec<Option<Group>> = self.groups.into_iter().map(Some).collect();
        let mut sorted: Vec<Group> = out.into_iter().filter_map(|g| groups[g].take()).collect();
        sorted.retain(|g| !g.ops.is_empty());
        for g in &mut sorted {
            of_ir::sort::by_key(&mut g.ops, |op| self.position[op]);
        }
        sorted
    }

    /// Groups depth first, which keeps lifetimes short, from the one whose last op comes first. The first op says less: the update of a
    /// parameter may begin with an op on its state, which nothing precedes.
    fn depth_first(&self) -> Vec<usize> {
        let n = self.groups.len();
        let mut state = vec![0u8; n];
        let mut out = Vec::with_capacity(n);
        let last = |group: &Group| group.ops.iter().map(|op| self.position[op]).max();
        let mut roots: Vec<(Option<usize>, usize)> = self.groups.iter().map(last).zip(0..).collect();
        roots.sort_unstable();
        for (_, root) in roots {
            let mut stack = vec![(root, false)];
            while let Some((g, done)) = stack.pop() {
                if done {
                    state[g] = 2;
                    out.push(g);
                } else if state[g] == 0 {
                    state[g] = 1;
                    stack.push((g, true));
                    stack.extend(self.groups[g].deps.iter().rev().filter(|d| state[**d] == 0).map(|d| (*d, false)));
                }
            }
        }
        out
    }
}

/// The space with its last `inner` axes reduced to 1.
pub fn row_dims(space: &[Extent], inner: usize) -> Vec<Extent> {
    let mut out = space.to_vec();
    out[space.len().saturating_sub(inner)..].fill(1usize.into());
    out
}

/// Every op inside the regions of `op`.
fn captured_ops(graph: &Graph, op: OpId) -> Vec<OpId> {
    let mut out = Vec::new();
    let mut stack: Vec<_> = graph.op(op).regions.to_vec();
    while let Some(r) = stack.pop() {
        for o in graph.region_ops(r) {
            out.push(o);
            stack.extend(&graph.op(o).regions);
        }
    }
    out
}
