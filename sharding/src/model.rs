//! The model: a function as a discrete optimization problem. Ops, inputs, outputs and values with several readers are nodes;
//! resharding costs are on the edges.

use std::collections::HashMap;
use std::rc::Rc;

use of_diag::{Code, Diagnostic, Diagnostics};
use of_ir::{Func, Graph, OpId, PartialKind, ValueId};
use of_ops::OpSpec;
use of_ops::boxing::ShardingConstraint;
use of_ops::structural::{Alternatives, OptimizationBarrier};
use of_ops::training::{CARRIED, Gradient};
use smallvec::SmallVec;

use crate::boxing::Router;
use crate::candidates::{self, Candidate, Kinds};
use crate::layout::{self, Layout};
use crate::overlappable::{is_heavy, overlappable};
use crate::search::{Edge, IndexId, Matrix, MatrixId, Problem};
use crate::weights::Weights;
use crate::{MeshSpec, cost};

/// What a node of the problem decides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeKind {
    /// The layout of an argument.
    Argument(ValueId),
    /// The candidate of an op.
    Op(OpId),
    /// The layout in which several readers see a value: they share one transfer.
    Shared(ValueId),
    /// The layout of output `.0`.
    Output(usize),
}

/// The candidates of a node.
pub struct Choices {
    /// One candidate per label.
    pub candidates: Vec<Candidate>,
    /// Seconds of each candidate.
    pub seconds: Vec<f64>,
}

/// Transfers of tensors of one shape and element size.
pub struct Transfers {
    /// Paths between layouts.
    pub router: Rc<Router>,
    /// Whether each layout gives every device an element.
    pub usable: Vec<bool>,
    /// Size of the whole tensor.
    pub bytes: f64,
    table: MatrixId,
    /// The same with a row for values that are not made and a column for values that are not read.
    optional: MatrixId,
    /// An alias requires the layout of its result for its operand.
    alias: MatrixId,
}

impl Transfers {
    /// The layouts that give every device an element.
    fn usable_layouts(&self) -> impl Iterator<Item = &Layout> {
        self.router.layouts.iter().zip(&self.usable).filter(|(_, usable)| **usable).map(|(layout, _)| layout)
    }
}

/// The problem of one function on one mesh.
pub struct Model<'a> {
    /// The function.
    pub func: &'a Func,
    /// The mesh.
    pub mesh: &'a MeshSpec,
    /// Number of devices along each axis.
    pub shape: Vec<usize>,
    /// Nodes and edges.
    pub problem: Problem,
    /// What each node decides.
    pub node_kinds: Vec<NodeKind>,
    /// The candidates of each node.
    pub choices: Vec<Rc<Choices>>,
    /// The node that decides the layout of each value where it is made, and the number of the result; by position in
    /// the arena.
    pub made_by: Vec<Option<(usize, usize)>>,
    /// The node that decides the layout for the readers of a value, where there are several.
    pub shared_by: Vec<Option<usize>>,
    /// The argument that an output becomes in the next step, by position of the output in the arena.
    pub(crate) next_of: Vec<Option<ValueId>>,
    /// Ops that may be left out, by position in the arena.
    optional: Vec<bool>,
    edge_values: Vec<ValueId>,
    /// Values whose transfers can overlap with computation, by position in the arena.
    overlappable: Vec<bool>,
    kinds: Vec<Kinds>,
    routers: HashMap<(usize, Kinds), Rc<Router>>,
    transfers: HashMap<Size, Rc<Transfers>>,
    of_value: Vec<Option<Rc<Transfers>>>,
    /// Extents of the part of a value in one microbatch, by position in the arena, where smaller than the whole.
    parts: Vec<Option<Vec<usize>>>,
    classes: HashMap<String, Rc<Choices>>,
}

/// Dimensions, size in bytes, and kinds of partial values.
type Size = (Vec<usize>, u64, Kinds);

/// Constants up to this size are replicated unless annotated or constrained.
const REPLICATED_CONSTANT_BYTES: f64 = 65536.0;

impl<'a> Model<'a> {
    /// The problem of `func`. Layout annotations are kept, all other layouts are free.
    ///
    /// # Errors
    /// Impossible annotations, with the op, its operands and its legal signatures.
    pub fn new(func: &'a Func, mesh: &'a MeshSpec) -> Result<Model<'a>, Diagnostics> {
        Self::build(func, mesh, &|_, _| true, &|_| None, None)
    }

    /// [`Model::new`] where a step is split into microbatches. Each device must have an element of the part of one
    /// microbatch, which `part` gives.
    ///
    /// # Errors
    /// As [`Model::new`].
    pub fn for_microbatches(
        func: &'a Func,
        mesh: &'a MeshSpec,
        part: &dyn Fn(ValueId) -> Option<Vec<usize>>,
    ) -> Result<Model<'a>, Diagnostics> {
        Self::build(func, mesh, &|_, _| true, part, None)
    }

    /// [`Model::new`] with only the transfers that `allowed` permits.
    ///
    /// # Errors
    /// As [`Model::new`].
    pub fn with_allowed_transfers(
        func: &'a Func,
        mesh: &'a MeshSpec,
        allowed: &dyn Fn(&Layout, &Layout) -> bool,
    ) -> Result<Model<'a>, Diagnostics> {
        Self::build(func, mesh, allowed, &|_| None, None)
    }

    /// [`Model::with_allowed_transfers`] of the first `ops` ops alone, without the outputs.
    ///
    /// # Errors
    /// As [`Model::new`].
    pub(crate) fn of_first_ops(
        func: &'a Func,
        mesh: &'a MeshSpec,
        allowed: &dyn Fn(&Layout, &Layout) -> bool,
        ops: usize,
    ) -> Result<Model<'a>, Diagnostics> {
        Self::build(func, mesh, allowed, &|_| None, Some(ops))
    }

    fn build(
        func: &'a Func,
        mesh: &'a MeshSpec,
        allowed: &dyn Fn(&Layout, &Layout) -> bool,
        part: &dyn Fn(ValueId) -> Option<Vec<usize>>,
        ops: Option<usize>,
    ) -> Result<Model<'a>, Diagnostics> {
        let g = &func.graph;
        let slots = g.value_slots();
        let mut m = Model {
            func,
            mesh,
            shape: mesh.shape(),
            problem: Problem::default(),
            node_kinds: Vec::new(),
            choices: Vec::new(),
            made_by: vec![None; slots],
            shared_by: vec![None; slots],
            next_of: next_of(func),
            optional: optional(g),
            edge_values: Vec::new(),
            overlappable: overlappable(func),
            kinds: candidates::partial_kinds(g),
            routers: HashMap::new(),
            transfers: HashMap::new(),
            of_value: vec![None; slots],
            parts: (0..slots).map(|i| g.value_at(i).and_then(part)).collect(),
            classes: HashMap::new(),
        };
        let mut errors = m.open_inputs();
        m.find_transfers(allowed);
        for v in g.args() {
            if let Some(d) = m.impossible_input(*v) {
                errors.0.push(d);
            }
            m.add_source(NodeKind::Argument(*v), *v);
        }
        for op in g.region_ops(g.entry()).take(ops.unwrap_or(usize::MAX)) {
            if g.op(op).def.traits().terminator {
                continue;
            }
            if let Err(d) = m.add_op(op) {
                errors.0.push(d);
            }
        }
        errors.into_result(())?;
        if ops.is_none() {
            m.add_outputs();
        }
        Ok(m)
    }

    fn graph(&self) -> &'a Graph {
        &self.func.graph
    }

    /// Errors for inputs whose extents have no names, so that nothing is known of their sizes.
    fn open_inputs(&self) -> Diagnostics {
        let g = self.graph();
        let known = |v: &ValueId| cost::size(g, *v, self.mesh.devices()).is_some();
        let open = g.args().iter().zip(&self.func.inputs).filter(|(v, _)| !known(v));
        let error = |(v, name): (&ValueId, &String)| {
            let what = format!("input '{name}' is {}, not a tensor whose extents are known or have names", g.ty(*v));
            Diagnostic::error(Code::SHAPE, self.func.loc.clone(), what)
                .hint("give its extents: --shape, or the pass 'specialize'")
        };
        Diagnostics(open.map(error).collect())
    }

    /// The transfers of a value; `None` where it is not a tensor whose extents have names, and therefore replicated.
    pub fn transfers(&self, v: ValueId) -> Option<&Rc<Transfers>> {
        self.of_value[v.index()].as_ref()
    }

    /// The transfers of the value of an edge.
    pub fn of_edge(&self, edge: usize) -> Option<&Rc<Transfers>> {
        self.transfers(*self.edge_values.get(edge)?)
    }

    /// Whether the transfers of an edge's value can overlap with computation.
    pub(crate) fn overlaps(&self, edge: usize) -> bool {
        self.edge_values.get(edge).is_some_and(|v| self.overlappable[v.index()])
    }

    /// Whether a node is an op that computes much, such as a product.
    pub(crate) fn is_heavy(&self, node: usize) -> bool {
        matches!(self.node_kinds[node], NodeKind::Op(op) if is_heavy(self.graph(), op))
    }

    /// The problem with weights, all greater than 0.
    pub(crate) fn weighted(&self, weights: Weights) -> Problem {
        let mut problem = self.problem.clone();
        let Problem { interner, nodes, edges } = &mut problem;
        for (i, node) in nodes.iter_mut().enumerate() {
            let weight = if self.is_heavy(i) { weights.heavy } else { weights.light };
            let costs = interner.costs(*node).iter().map(|cost| cost * weight).collect();
            *node = interner.add_costs(costs);
        }
        let mut scaled: HashMap<MatrixId, MatrixId> = HashMap::new();
        for (_, edge) in edges.iter_mut().enumerate().filter(|(edge, _)| self.overlaps(*edge)) {
            edge.matrix = *scaled.entry(edge.matrix).or_insert_with(|| {
                let Matrix { rows, cols, data } = interner.matrix(edge.matrix).clone();
                interner.add_matrix(Matrix {
                    rows,
                    cols,
                    data: data.iter().map(|cost| cost * weights.overlapped).collect(),
                })
            });
        }
        problem
    }

    /// The fully replicated layout.
    pub fn broadcast(&self) -> Layout {
        self.shape.iter().map(|_| of_ir::Sbp::Broadcast).collect()
    }

    /// The annotated layout of a value. A placement without entries names a mesh, and leaves the layout free.
    fn annotation(&self, v: ValueId) -> Option<&'a Layout> {
        Some(&self.graph().ty(v).as_tensor()?.sbp.as_ref()?.axes).filter(|axes| !axes.is_empty())
    }

    fn find_transfers(&mut self, allowed: &dyn Fn(&Layout, &Layout) -> bool) {
        let g = self.graph();
        let mut wanted = self.kinds.clone();
        for op in g.walk() {
            for s in candidates::signatures(g, op, 1) {
                let partial = |s: &of_ir::Sbp| if let of_ir::Sbp::Partial(k) = s { Some(*k) } else { None };
                let list: Vec<(PartialKind, ValueId)> =
                    s.operands.iter().zip(&g.op(op).operands).filter_map(|(s, v)| Some((partial(s)?, *v))).collect();
                if candidates::arises_inside(g, op) || list.iter().any(|(k, v)| self.kinds[v.index()].contains(k)) {
                    for (k, v) in list {
                        if !wanted[v.index()].contains(&k) {
                            wanted[v.index()].push(k);
                        }
                    }
                }
            }
        }
        for v in live_values(g) {
            let i = v.index();
            let mut kinds = std::mem::take(&mut wanted[i]);
            let Some((bytes, whole)) = cost::size(g, v, self.mesh.devices()) else { continue };
            let dims = self.parts[i].clone().unwrap_or(whole);
            kinds.sort_unstable();
            let key = (dims, bytes.to_bits(), kinds);
            if !self.transfers.contains_key(&key) {
                let router_key = (key.0.len(), key.2.clone());
                let router = self
                    .routers
                    .entry(router_key)
                    .or_insert_with(|| Rc::new(Router::new(self.mesh, key.0.len(), &key.2)))
                    .clone();
                let usable = router.usable(&key.0);
                let n = router.layouts.len();
                let mut data = router.seconds(bytes, &usable);
                for (x, at) in data.iter_mut().zip(0..) {
                    if !allowed(&router.layouts[at / n], &router.layouts[at % n]) {
                        *x = f64::INFINITY;
                    }
                }
                let moved = |from: usize, to: usize| data[from * n + to];
                let same = |from: usize, to: usize| if from == to { 0.0 } else { f64::INFINITY };
                let (optional, alias) = (with_left_out(n, &moved), with_left_out(n, &same));
                let interner = &mut self.problem.interner;
                let (optional, alias) = (interner.add_matrix(optional), interner.add_matrix(alias));
                let table = interner.add_matrix(Matrix { rows: n, cols: n, data });
                let transfers = Transfers { router, usable, bytes, table, optional, alias };
                self.transfers.insert(key.clone(), Rc::new(transfers));
            }
            self.of_value[i] = self.transfers.get(&key).cloned();
        }
    }

    fn add_node(&mut self, kind_of_node: NodeKind, choices: Rc<Choices>) -> usize {
        self.node_kinds.push(kind_of_node);
        let node = self.problem.add_node(choices.seconds.clone());
        self.choices.push(choices);
        node
    }

    /// Whether an op only feeds one of several operands of an `of.alternatives`.
    pub fn may_be_left_out(&self, op: OpId) -> bool {
        self.optional[op.index()]
    }

    /// Whether the op that makes a value may be left out.
    fn is_optional(&self, v: ValueId) -> bool {
        self.graph().def_op(v).is_some_and(|op| self.optional[op.index()])
    }

    /// A node that has one value and no cost: an argument, a constant, an output. It is never partial.
    fn add_source(&mut self, kind_of_node: NodeKind, v: ValueId) {
        let Some(choices) = self.source_choices(v) else { return };
        let node = self.add_node(kind_of_node, choices);
        self.made_by[v.index()] = Some((node, 0));
        self.add_shared_node(v);
    }

    /// The layouts of a value that are not partial, or the annotated one. A constant of zeros may be a sum.
    fn source_choices(&self, v: ValueId) -> Option<Rc<Choices>> {
        let t = self.transfers(v)?;
        let asked = self.annotation(v);
        // Zeros are terms of zeros.
        let is_zero = self.graph().constant(v).is_some_and(|value| value.is_zero());
        let list = t.router.layouts.iter().zip(&t.usable).filter(|(l, usable)| match asked {
            Some(a) => *l == a,
            None => **usable && layout::partial_kind(l).is_none_or(|kind| kind == PartialKind::Sum && is_zero),
        });
        let nothing = self.is_optional(v).then(Layout::new);
        let candidates: Vec<Candidate> = list
            .map(|(l, _)| l.clone())
            .chain(nothing)
            .map(|l| Candidate { operands: SmallVec::new(), results: [l].into_iter().collect() })
            .collect();
        Some(Rc::new(Choices { seconds: vec![0.0; candidates.len()], candidates }))
    }

    fn add_op(&mut self, op: OpId) -> Result<(), Diagnostic> {
        let g = self.graph();
        let data = g.op(op);
        if data.def.traits().constant {
            // A constraint asks for a layout, which the constant may have from the start.
            let constrained = |v: ValueId| g.uses(v).iter().any(|u| g.op(u.op).name() == ShardingConstraint::NAME);
            if let [v] = data.results.as_slice()
                && (self.annotation(*v).is_some()
                    || constrained(*v)
                    || cost::size(g, *v, self.mesh.devices()).is_some_and(|(b, _)| b > REPLICATED_CONSTANT_BYTES))
            {
                self.add_source(NodeKind::Op(op), *v);
            }
            return Ok(());
        }
        if data.name() == Gradient::NAME {
            let what = "'of.gradient' has no layouts: transfers would come between it and what it differentiates";
            return Err(Diagnostic::error(Code::SBP, data.loc.clone(), what).hint("run 'differentiate' first"));
        }
        let choices = self.op_choices(op)?;
        let node = self.add_node(NodeKind::Op(op), choices.clone());
        for (i, v) in data.operands.iter().enumerate() {
            let col: Vec<&Layout> = choices.candidates.iter().map(|c| &c.operands[i]).collect();
            if !is_alias(data.name()) {
                self.add_reader(*v, node, &col);
            // An alias reads the value in the layout in which it is made.
            } else if let (Some((source, result)), Some(t)) = (self.made_by[v.index()], self.transfers(*v).cloned()) {
                // It takes the value as it is made, however others see it.
                self.connect(*v, (source, result), node, &col, &t, t.alias);
            }
        }
        // Values that the regions of an op capture are replicated in them.
        let broadcast = self.broadcast();
        for v in g.captured(op) {
            self.add_reader(v, node, &vec![&broadcast; choices.candidates.len()]);
        }
        for (i, v) in data.results.iter().enumerate() {
            if self.transfers(*v).is_some() {
                self.made_by[v.index()] = Some((node, i));
                self.add_shared_node(*v);
            }
        }
        Ok(())
    }

    fn op_choices(&mut self, op: OpId) -> Result<Rc<Choices>, Diagnostic> {
        let g = self.graph();
        let data = g.op(op);
        let optional = self.optional[op.index()];
        let parts: Vec<Option<&[usize]>> =
            data.operands.iter().chain(&data.results).map(|v| self.parts[v.index()].as_deref()).collect();
        let class = format!("{optional} {parts:?} {}", candidates::equivalence_key(g, op, &self.kinds));
        if let Some(c) = self.classes.get(&class) {
            return Ok(c.clone());
        }
        let all = if data.name() == "of.sharding_constraint" {
            self.place_candidates(op)
        } else if is_alias(data.name()) {
            self.alias_candidates(op)
        } else {
            candidates::candidates(g, op, &self.shape, &self.kinds)
        };
        let asked: Vec<Option<&Layout>> = data.results.iter().map(|v| self.annotation(*v)).collect();
        let fits = |c: &Candidate| {
            let mut layouts = c.operands.iter().chain(&c.results).zip(&parts);
            c.results.iter().zip(&asked).all(|(l, a)| a.is_none_or(|a| a == l))
                && layouts.all(|(l, part)| part.is_none_or(|d| layout::fits(l, &self.shape, d)))
        };
        let mut kept: Vec<Candidate> = all.into_iter().filter(fits).collect();
        if kept.is_empty() {
            return Err(self.impossible(op));
        }
        if optional {
            let nothing = |n: usize| std::iter::repeat_n(Layout::new(), n);
            let (operands, results) = (nothing(data.operands.len()), nothing(data.results.len()));
            kept.push(Candidate { operands: operands.collect(), results: results.collect() });
        }
        let work = cost::work(g, op, self.mesh);
        let sizes: Vec<f64> =
            data.operands.iter().chain(&data.results).map(|v| self.transfers(*v).map_or(0.0, |t| t.bytes)).collect();
        let free = data.name() == "of.sharding_constraint" || is_alias(data.name());
        let seconds = kept
            .iter()
            .map(|c| {
                let layouts = c.operands.iter().chain(&c.results);
                let values: Vec<(f64, &Layout)> = sizes.iter().copied().zip(layouts).collect();
                if free || c.is_left_out() { 0.0 } else { cost::seconds(work, &values, self.mesh, &self.shape) }
            })
            .collect();
        let choices = Rc::new(Choices { candidates: kept, seconds });
        self.classes.insert(class, choices.clone());
        Ok(choices)
    }

    /// An annotated `of.sharding_constraint`: operand and result have its layout, or any one where it names a mesh alone.
    fn place_candidates(&self, op: OpId) -> Vec<Candidate> {
        let result = self.graph().op(op).results.first();
        let one = |l: &Layout| Candidate {
            operands: [l.clone()].into_iter().collect(),
            results: [l.clone()].into_iter().collect(),
        };
        match (result.and_then(|v| self.annotation(*v)), result.and_then(|v| self.transfers(*v))) {
            (Some(asked), _) => vec![one(asked)],
            (None, Some(t)) => t.usable_layouts().map(one).collect(),
            (None, None) => Vec::new(),
        }
    }

    /// An `of.alternatives` selects one operand, in any layout; so does an `of.optimization_barrier`.
    fn alias_candidates(&self, op: OpId) -> Vec<Candidate> {
        let data = self.graph().op(op);
        let Some(t) = data.results.first().and_then(|v| self.transfers(*v)) else { return Vec::new() };
        let usable: Vec<&Layout> = t.usable_layouts().collect();
        let n = data.operands.len();
        let one = |k: usize, l: &Layout| Candidate {
            operands: (0..n).map(|i| if i == k { l.clone() } else { Layout::new() }).collect(),
            results: [l.clone()].into_iter().collect(),
        };
        (0..n).flat_map(|k| usable.iter().map(move |l| one(k, l))).collect()
    }

    /// The error for an input whose annotated split leaves a device no element.
    fn impossible_input(&self, v: ValueId) -> Option<Diagnostic> {
        let (t, asked) = (self.transfers(v)?, self.annotation(v)?);
        let at = t.router.layouts.iter().position(|l| l == asked)?;
        if t.usable[at] {
            return None;
        }
        let g = self.graph();
        let name = g.name(v).map_or("an input", |n| n);
        let what = format!("'{name}' cannot have the annotated layout: {}", g.ty(v));
        let d = Diagnostic::error(Code::SBP, self.func.loc.clone(), what).note(format!(
            "the mesh is {:?}: an axis cannot be split among more devices than it has elements",
            self.shape
        ));
        let open = g.ty(v).as_tensor().is_some_and(|t| t.fixed_dims().is_none());
        let d = match open {
            true => d.note("an open extent must be known to be a multiple of its slices, such as 4*N"),
            false => d,
        };
        Some(d.hint("annotate another layout, or let 'shard' choose"))
    }

    /// The error for annotations that match no signature.
    fn impossible(&self, op: OpId) -> Diagnostic {
        let g = self.graph();
        let data = g.op(op);
        let show = |v: &ValueId| g.ty(*v).to_string();
        let operands: Vec<String> = data.operands.iter().map(show).collect();
        let results: Vec<String> = data.results.iter().map(show).collect();
        let what = format!("'{}' cannot produce ({})", data.name(), results.join(", "));
        let mut d = Diagnostic::error(Code::SBP, data.loc.clone(), what)
            .note(format!("its operands are ({})", operands.join(", ")));
        for (axis, devices) in self.shape.iter().enumerate() {
            let list: Vec<String> = candidates::signatures(g, op, *devices).iter().map(ToString::to_string).collect();
            d = d.note(format!("along mesh axis {axis} of {devices} devices it allows {}", list.join("; ")));
        }
        d.hint("annotate another layout, or add 'of.sharding_constraint' after the op")
    }

    /// An edge from the node that decides the layout of `v` for its readers to `node`, whose labels read it in these
    /// layouts.
    fn add_reader(&mut self, v: ValueId, node: usize, asked: &[&Layout]) {
        let source = match (self.shared_by[v.index()], self.made_by[v.index()]) {
            (Some(shared), _) => Some((shared, 0)),
            (None, made) => made,
        };
        // A small constant is replicated, and slices of it are free.
        let Some((source, result)) = source else { return };
        self.add_edge(v, source, result, node, asked);
    }

    fn add_edge(&mut self, v: ValueId, source: usize, result: usize, node: usize, asked: &[&Layout]) {
        let Some(t) = self.transfers(v).cloned() else { return };
        let made = self.choices[source].candidates.iter().map(|c| &c.results[result]);
        let all = made.chain(asked.iter().copied()).all(|l| !l.is_empty());
        self.connect(v, (source, result), node, asked, &t, if all { t.table } else { t.optional });
    }

    fn connect(
        &mut self,
        v: ValueId,
        (source, result): (usize, usize),
        node: usize,
        asked: &[&Layout],
        t: &Transfers,
        matrix: MatrixId,
    ) {
        if source == node {
            return;
        }
        let col = self.indices(t, asked.iter().copied());
        let made = self.choices[source].clone();
        let row = self.indices(t, made.candidates.iter().map(|c| &c.results[result]));
        self.problem.edges.push(Edge { a: source, b: node, row, col, matrix });
        self.edge_values.push(v);
    }

    /// Positions of layouts in the cost matrices; a missing value has the position after all layouts. An annotated
    /// layout that no transfer of this value has counts as the first.
    fn indices<'l>(&mut self, t: &Transfers, list: impl Iterator<Item = &'l Layout>) -> IndexId {
        let nothing = t.router.layouts.len();
        let list =
            list.map(|l| t.router.position(l).unwrap_or(if l.is_empty() { nothing } else { 0 }) as u32).collect();
        self.problem.interner.add_indices(list)
    }

    /// Adds a node between a value and its readers, where there are several.
    fn add_shared_node(&mut self, v: ValueId) {
        let g = self.graph();
        let Some(t) = self.transfers(v).cloned() else { return };
        let Some((source, result)) = self.made_by[v.index()] else { return };
        let mut readers: Vec<OpId> = g.uses(v).iter().map(|u| u.op).collect();
        readers.retain(|op| !is_alias(g.op(*op).name()));
        readers.dedup();
        if readers.len() < 2 {
            return;
        }
        let layouts = t.router.layouts.iter().zip(&t.usable).filter(|(_, u)| **u);
        let nothing = self.is_optional(v).then(Layout::new);
        let candidates: Vec<Candidate> = layouts
            .map(|(l, _)| l.clone())
            .chain(nothing)
            .map(|l| Candidate { operands: SmallVec::new(), results: [l].into_iter().collect() })
            .collect();
        let choices = Rc::new(Choices { seconds: vec![0.0; candidates.len()], candidates });
        let node = self.add_node(NodeKind::Shared(v), choices.clone());
        let asked: Vec<&Layout> = choices.candidates.iter().map(|c| &c.results[0]).collect();
        self.add_edge(v, source, result, node, &asked);
        self.shared_by[v.index()] = Some(node);
    }

    fn add_outputs(&mut self) {
        let g = self.graph();
        let carried: Vec<i64> = self.func.attrs.typed(CARRIED).unwrap_or_default();
        for (i, v) in g.outputs().iter().enumerate() {
            let input = carried.get(i).and_then(|k| usize::try_from(*k).ok()).and_then(|k| g.args().get(k));
            if let Some((arg, _)) = input.and_then(|a| self.made_by[a.index()]) {
                let choices = self.choices[arg].clone();
                let asked: Vec<&Layout> = choices.candidates.iter().map(|c| &c.results[0]).collect();
                self.add_reader(*v, arg, &asked);
            } else if self.annotation(*v).is_none()
                && let Some(choices) = self.source_choices(*v)
            {
                let node = self.add_node(NodeKind::Output(i), choices.clone());
                let asked: Vec<&Layout> = choices.candidates.iter().map(|c| &c.results[0]).collect();
                self.add_reader(*v, node, &asked);
            }
        }
    }
}

/// Whether the result of an op is one of its operands, so that nothing is computed or moved.
pub(crate) fn is_alias(name: &str) -> bool {
    name == Alternatives::NAME || name == OptimizationBarrier::NAME
}

/// The costs `of` with a row for a value that is not made, which nothing can read, and a column for one that is not
/// read.
fn with_left_out(n: usize, of: &dyn Fn(usize, usize) -> f64) -> Matrix {
    let at = |from: usize, to: usize| match (from < n, to < n) {
        (_, false) => 0.0,
        (false, true) => f64::INFINITY,
        (true, true) => of(from, to),
    };
    let data = (0..=n).flat_map(|from| (0..=n).map(move |to| at(from, to))).collect();
    Matrix { rows: n + 1, cols: n + 1, data }
}

/// The argument that an output becomes in the next step, by position of the output in the arena.
fn next_of(func: &Func) -> Vec<Option<ValueId>> {
    let g = &func.graph;
    let mut out = vec![None; g.value_slots()];
    let carried: Vec<i64> = func.attrs.typed(CARRIED).unwrap_or_default();
    for (v, input) in g.outputs().iter().zip(carried).filter(|(v, _)| g.def_op(**v).is_some()) {
        out[v.index()] = usize::try_from(input).ok().and_then(|input| g.args().get(input).copied());
    }
    out
}

/// Ops that may be left out, by position in the arena: they only feed one of several operands of an `of.alternatives`.
fn optional(g: &Graph) -> Vec<bool> {
    let mut out = vec![false; g.op_slots()];
    let ops: Vec<OpId> = g.region_ops(g.entry()).collect();
    for op in ops.into_iter().rev() {
        let data = g.op(op);
        let uses: Vec<OpId> = data.results.iter().flat_map(|v| g.uses(*v)).map(|u| u.op).collect();
        let free = |o: &OpId| {
            let reader = g.op(*o);
            out[o.index()] || (reader.name() == Alternatives::NAME && reader.operands.len() > 1)
        };
        let read = !uses.is_empty() || data.name() == Alternatives::NAME;
        out[op.index()] = read && !data.def.traits().effect && uses.iter().all(free);
    }
    out
}

/// Arguments and results of ops that are not erased.
pub(crate) fn live_values(g: &Graph) -> Vec<ValueId> {
    let results = g.walk().into_iter().flat_map(|op| g.op(op).results.clone());
    g.args().iter().copied().chain(results).collect()
}
