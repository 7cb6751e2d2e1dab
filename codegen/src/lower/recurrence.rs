//! Lowers loops whose iterations are products of state rows with matrices, and elementwise ops: each becomes one kernel.

use std::collections::{HashMap, HashSet};

use of_ir::{DType, Graph, IdMap, OpId, RegionId, ValueId};
use of_ops::OpSpec;
use of_ops::contraction::MatMul;
use of_ops::control::Loop;
use of_ops::list::as_op;
use of_ops::movement::Concat;

use crate::analysis::loop_around::LoopAround;
use crate::analysis::roles::{Role, Roles};
use crate::analysis::view::{OperandView, step};
use crate::fuse;
use crate::fuse::{Group, GroupKind};
use crate::kernel::body::{Body, Load};
use crate::kernel::contraction::{Contraction, Element, L2_RESIDENT_BYTES, RhsLayout, Tile};
use crate::kernel::expr::unsupported_reason;
use crate::kernel::extent;
use crate::kernel::extent::Extent;
use crate::kernel::nest::Nest;
use crate::kernel::recurrence::{self, Access, Memory, Product, Recurrence, Stage};
use crate::kernel::space::single_stride;
use crate::lower::anchor::{Outcome, element};
use crate::lower::body::{Special, body};
use crate::lower::weight_form::Form;
use crate::lower::{Lowering, points};
use crate::physical::Flops;

/// The most bytes of matrices that an iteration reads. A single thread reads more of them slower than several do, which share the
/// products of a loop whose iterations are kernels of their own.
const MAX_MATRIX_BYTES: usize = 1 << 24;

/// The most groups of an iteration, which bounds the length of the kernel.
const MAX_GROUPS: usize = 128;

/// The most rows of a block.
const MAX_BLOCK_ROWS: usize = 64;

impl Lowering<'_, '_> {
    /// A loop as one kernel.
    pub(super) fn recurrence(&mut self, op: OpId) -> Outcome {
        if !self.caps.recurrences {
            return Err("loops as kernels are for CPUs".into());
        }
        if self.g.op(op).name() != Loop::NAME {
            return Err("it is no loop".into());
        }
        let around = LoopAround::of(self.g, op)?;
        let region = self.g.op(op).regions[0];
        let captures = self.captures(op, region);
        let inputs: Vec<ValueId> = self.g.region_args(region).iter().chain(&captures).copied().collect();
        let roles = Roles::of(self.g, region, &inputs);
        let inside = self.g.region_ops(region).filter(|op| *roles.get(*op) != Role::Nothing);
        let made = inside.chain([op]).flat_map(|op| self.g.op(op).results.clone());
        made.chain(self.g.op(op).operands[2..].to_vec()).try_for_each(|v| self.roles.check_type(self.g, v))?;
        let acts = |op: OpId| self.g.op(op).def.traits().effect || !self.g.op(op).regions.is_empty();
        if self.g.region_ops(region).any(|op| acts(op) || *roles.get(op) == Role::Transfer) {
            return Err("an iteration does more than compute".into());
        }
        let groups = fuse::fuse(self.g, self.g.region_ops(region), &roles, Vec::new(), false);
        if groups.len() > MAX_GROUPS {
            return Err("an iteration is too long for one kernel".into());
        }
        let b = Builder::new(self.g, op, region, around, &roles, &groups, &self.special)?;
        let (spec, matrices, values) = b.finish(self)?;
        let packed = matrices.iter().map(|m| self.packed(m.value, &m.spec, m.width, None));
        let packed = packed.collect::<Result<Vec<_>, String>>()?;
        let source = Nest::Recurrence(Box::new(spec.clone())).print(self.isa)?;
        let products = |stage: &Stage| match stage {
            Stage::Product(p) => points(&[&p.spec.k_inner * 2usize, p.spec.columns.clone()]),
            Stage::Elementwise { .. } => 0,
        };
        let pointwise = |stage: &Stage| match stage {
            Stage::Product(p) => points(&[&p.spec.columns * p.body.nodes.len()]),
            Stage::Elementwise { body, columns, .. } => (columns * body.nodes.len()) as u64,
        };
        let times = points(&[spec.trips.clone(), spec.rows.clone()]);
        let flops = Flops {
            products: times * spec.stages.iter().map(products).sum::<u64>(),
            pointwise: times * spec.stages.iter().map(pointwise).sum::<u64>(),
        };
        let titled: Vec<OpId> = [op].into_iter().chain(groups.iter().flat_map(|g| g.ops.clone())).collect();
        let run = |l: &mut Self| {
            let mut panels = Vec::new();
            for (m, packed) in matrices.iter().zip(packed) {
                panels.push(l.panels(m.value, Form::Panels, packed)?);
            }
            let mut panels = panels.into_iter();
            let mut reads = Vec::new();
            for v in values {
                reads.push(match v {
                    Argument::Value(v) => l.operand(v)?,
                    Argument::Matrix => panels.next().ok_or_else(|| l.bug(op, "a matrix has no panels".into()))?,
                });
            }
            let writes = l.g.op(op).results.iter().map(|v| l.new_value(*v)).collect();
            l.kernel(&titled, source, reads, writes, flops);
            Ok(())
        };
        Ok(run(self))
    }
}

/// An argument that the kernel reads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Argument {
    /// A value from outside of the loop.
    Value(ValueId),
    /// The next of the matrices.
    Matrix,
}

/// A constant right operand, which is packed.
struct Matrix {
    value: ValueId,
    spec: Contraction,
    /// Columns of a panel.
    width: usize,
}

/// A value that a stage makes.
struct Made {
    buffer: usize,
    /// The stage that stores it.
    stage: usize,
}

/// Builds the specification from the groups of an iteration.
struct Builder<'a> {
    g: &'a Graph,
    op: OpId,
    region: RegionId,
    around: LoopAround,
    roles: &'a Roles,
    special: &'a Special,
    groups: &'a [Group],
    /// The group that computes a value.
    group_of: IdMap<ValueId, usize>,
    rows: Extent,
    /// The values of an iteration that later stages may read.
    made: IdMap<ValueId, Made>,
    arguments: Vec<Argument>,
    scratch: Vec<(DType, usize)>,
    stages: Vec<Stage>,
    matrices: Vec<Matrix>,
}

impl<'a> Builder<'a> {
    fn new(
        g: &'a Graph,
        op: OpId,
        region: RegionId,
        around: LoopAround,
        roles: &'a Roles,
        groups: &'a [Group],
        special: &'a Special,
    ) -> Result<Builder<'a>, String> {
        let carried = g.region_args(region).get(2..).unwrap_or_default();
        // The rows of the state are those of every stage.
        let lead = |v: &ValueId| rows(&extent::of_value(g, *v));
        let rows = carried.iter().map(lead).reduce(|a, b| if a.is(1) { b } else { a });
        let rows = rows.ok_or("it carries no state")?;
        let results = |(i, group): (usize, &Group)| {
            let all = group.ops.iter().flat_map(|op| g.op(*op).results.clone());
            all.map(move |v| (v, i)).collect::<Vec<_>>()
        };
        let group_of = groups.iter().enumerate().flat_map(results).collect();
        Ok(Builder {
            groups,
            group_of,
            g,
            op,
            region,
            around,
            roles,
            special,
            rows,
            made: HashMap::default(),
            arguments: Vec::new(),
            scratch: Vec::new(),
            stages: Vec::new(),
            matrices: Vec::new(),
        })
    }

    fn dims(&self, v: ValueId) -> Vec<Extent> {
        extent::of_value(self.g, v)
    }

    fn dtype(&self, v: ValueId) -> DType {
        self.g.ty(v).as_tensor().map_or(DType::F32, |t| t.dtype)
    }

    /// Elements of a row of a value, whose rows are those of the state.
    fn columns(&self, dims: &[Extent]) -> Result<usize, String> {
        if rows(dims) != self.rows {
            return Err("the rows of a value are not those of the state".into());
        }
        dims.last()
            .map_or(Some(1), Extent::number)
            .ok_or_else(|| "the length of a row is not known before it runs".into())
    }

    /// Contiguous rows of so many elements.
    fn dense(&self, memory: Memory, columns: usize) -> Access {
        let row = if self.rows.is(1) { 0 } else { columns };
        Access { memory, offset: 0usize.into(), per_iteration: 0usize.into(), row: row.into(), column: 1usize.into() }
    }

    /// The index of an argument from outside of the loop.
    fn argument(&mut self, v: ValueId) -> usize {
        let known = self.arguments.iter().position(|a| *a == Argument::Value(v));
        known.unwrap_or_else(|| {
            self.arguments.push(Argument::Value(v));
            self.arguments.len() - 1
        })
    }

    fn is_outside(&self, v: ValueId) -> bool {
        match self.g.def_op(v) {
            Some(op) => self.g.op(op).parent != self.region || self.g.constant(v).is_some(),
            None => !self.g.region_args(self.region).contains(&v),
        }
    }

    /// The place of `v` in `space`, the extents of a stage.
    fn access(&mut self, v: ValueId, space: &[Extent]) -> Result<Access, String> {
        let view = OperandView::in_loop(self.g, self.roles, v, &self.around);
        let own: Vec<Extent> = view.axes.iter().map(|a| a.iter().map(|(n, _)| n).product()).collect();
        let lead = space.len().checked_sub(own.len()).ok_or("an operand has more axes than its reader")?;
        let mut axes: Vec<Vec<(Extent, Extent)>> =
            space[..lead].iter().map(|n| vec![(n.clone(), 0usize.into())]).collect();
        for ((n, axis), to) in own.iter().zip(&view.axes).zip(&space[lead..]) {
            axes.push(match n {
                n if n == to => axis.clone(),
                n if n.is(1) => vec![(to.clone(), 0usize.into())],
                _ => return Err("whether an operand is broadcast is not known before it runs".into()),
            });
        }
        let column = axes.pop().unwrap_or_default();
        let column = step(&column).ok_or("the elements of a row have no constant stride")?;
        let (lengths, strides): (Vec<Extent>, Vec<Extent>) = axes.into_iter().flatten().unzip();
        let row = single_stride(&lengths, &strides).ok_or("the rows of an operand have no constant stride")?;
        let args = self.g.region_args(self.region);
        let memory = match args.iter().position(|a| *a == view.root) {
            Some(0 | 1) => return Err("it computes with the number of the iteration".into()),
            Some(i) => Memory::Write(i - 2),
            None if self.is_outside(view.root) => Memory::Read(self.argument(view.root)),
            None => Memory::Scratch(self.buffer(view.root)?),
        };
        // A block has its own rows only.
        if !matches!(memory, Memory::Read(_)) && !self.rows.is(1) {
            let pitch = self.columns(&self.dims(view.root))?;
            if !row.is(pitch as i64) || view.offset.number().is_none_or(|n| n >= pitch) {
                return Err("a row reads other rows".into());
            }
        }
        Ok(Access { memory, offset: view.offset, per_iteration: view.per_iteration, row, column })
    }

    /// The buffer of a value of an iteration, whose stages are added unless they are there. So what nothing reads is not computed.
    fn buffer(&mut self, v: ValueId) -> Result<usize, String> {
        if !self.made.contains_key(&v) {
            let group = *self.group_of.get(&v).ok_or("a value of an iteration has no place in memory")?;
            self.group(&self.groups[group])?;
        }
        Ok(self.made.get(&v).ok_or("a value of an iteration has no place in memory")?.buffer)
    }

    /// The place of a new value of an iteration.
    fn make(&mut self, v: ValueId) -> Result<Access, String> {
        let columns = self.columns(&self.dims(v))?;
        self.scratch.push((self.dtype(v), columns));
        let buffer = self.scratch.len() - 1;
        self.made.insert(v, Made { buffer, stage: self.stages.len() });
        Ok(self.dense(Memory::Scratch(buffer), columns))
    }

    /// The stages of a group.
    fn group(&mut self, group: &Group) -> Result<(), String> {
        let first = group.ops[0];
        match group.kind {
            GroupKind::Elementwise => {
                let b = self.body(group)?;
                let columns = self.columns(&group.space)?;
                let loads = self.loads(&b, &group.space)?;
                let stores = b.stores.iter().map(|(v, _)| self.make(*v)).collect::<Result<_, _>>()?;
                self.stages.push(Stage::Elementwise { body: b, columns, loads, stores });
                Ok(())
            }
            GroupKind::Anchor => self.product(group),
            GroupKind::Single if self.g.op(first).name() == Concat::NAME => self.concat(first),
            _ => Err(format!("an iteration with '{}' is no kernel", self.g.op(first).name())),
        }
    }

    fn body(&self, group: &Group) -> Result<Body, String> {
        let b = body(self.g, group, self.roles, 0, self.special);
        unsupported_reason(&b).map_or(Ok(b), Err)
    }

    fn loads(&mut self, b: &Body, space: &[Extent]) -> Result<Vec<Access>, String> {
        b.loads.iter().map(|l| self.access(l.value, space)).collect()
    }

    /// Operands one after the other along the rows.
    fn concat(&mut self, op: OpId) -> Result<(), String> {
        let (v, operands) = (self.g.op(op).results[0], self.g.op(op).operands.to_vec());
        let dims = self.dims(v);
        let axis = as_op::<Concat>(self.g, op).and_then(|c| of_ops::shape::axis(c.axis, dims.len()).ok());
        if axis != Some(dims.len() - 1) {
            return Err("an iteration joins rows".into());
        }
        let mut parts = Vec::new();
        for x in operands {
            let own = self.dims(x);
            parts.push((x, self.columns(&own)?, self.access(x, &own)?));
        }
        let to = self.make(v)?;
        let mut at = 0;
        for (x, columns, from) in parts {
            let load = Load { value: x, dtype: self.dtype(x), strides: Vec::new() };
            self.stages.push(Stage::copy(load, columns, from, vec![Access { offset: at.into(), ..to.clone() }]));
            at += columns;
        }
        if let Some(made) = self.made.get_mut(&v) {
            made.stage = self.stages.len() - 1;
        }
        Ok(())
    }

    /// A product with its epilogue.
    fn product(&mut self, group: &Group) -> Result<(), String> {
        let is_anchor = |op: &&OpId| *self.roles.get(**op) == Role::Anchor;
        let op = *group.ops.iter().find(is_anchor).ok_or("the group has no anchor")?;
        if self.g.op(op).name() != MatMul::NAME {
            return Err(format!("an iteration with '{}' is no kernel", self.g.op(op).name()));
        }
        let (x, w) = (self.g.op(op).operands[0], self.g.op(op).operands[1]);
        let (left_dims, right_dims) = (self.dims(x), self.dims(w));
        let ([.., k], [lead @ .., depth, n]) = (&left_dims[..], &right_dims[..]) else {
            return Err("a product with a vector".into());
        };
        let (columns, known) = (self.columns(&group.space)?, self.columns(&left_dims)?);
        if left_dims.len() < 2 || !lead.iter().all(|d| d.is(1)) || k != depth || !n.is(columns as i64) {
            return Err("a product is not one of rows with a matrix".into());
        }
        let b = self.body(group)?;
        let left = self.access(x, &left_dims)?;
        if !left.column.is(1) {
            return Err("the rows of a left operand are not contiguous".into());
        }
        let dtype = self.dtype(x);
        let (rhs, right) = if self.g.constant(w).is_some() {
            self.arguments.push(Argument::Matrix);
            (RhsLayout::Packed, self.dense(Memory::Read(self.arguments.len() - 1), 0))
        } else {
            let view = OperandView::in_loop(self.g, self.roles, w, &self.around);
            let [.., line, element] = &view.axes[..] else { return Err("a product with a vector".into()) };
            let (line, element) = (step(line), step(element));
            let line = line.zip(element).filter(|(_, e)| e.is(1)).ok_or("the rows of a matrix are not contiguous")?.0;
            if !self.is_outside(view.root) {
                return Err("an iteration computes a matrix".into());
            }
            let memory = Memory::Read(self.argument(view.root));
            let right = Access { offset: view.offset, per_iteration: view.per_iteration, ..self.dense(memory, 0) };
            (RhsLayout::RowMajor(line), right)
        };
        let spec = Contraction {
            element: element(dtype),
            batch: Vec::new(),
            a_batch_strides: Vec::new(),
            b_batch_strides: Vec::new(),
            outer: (1usize.into(), 0usize.into()),
            inner: (self.rows.clone(), left.row.clone()),
            taps: Vec::new(),
            k_inner: known.into(),
            columns: columns.into(),
            rhs,
        };
        if !matches!(spec.element, Element::F32F32 | Element::F16Pair(_)) {
            return Err("a product of integers".into());
        }
        // Before the loads, which may add other products: matrices have the order of their arguments.
        if self.g.constant(w).is_some() {
            self.matrices.push(Matrix { value: w, spec: spec.clone(), width: 0 });
        }
        let loads = self.loads(&b, &group.space)?;
        let [(v, _)] = b.stores[..] else { return Err("a product has several results".into()) };
        let store = self.make(v)?;
        // The tile is chosen for all products together.
        let tile = Tile { rows: 1, vectors: 1 };
        self.stages.push(Stage::Product(Box::new(Product { spec, tile, left, right, body: b, loads, store })));
        Ok(())
    }

    /// The kernel with what it yields, its matrices in the order of their arguments, and its arguments.
    fn finish(mut self, l: &Lowering<'_, '_>) -> Result<(Recurrence, Vec<Matrix>, Vec<Argument>), String> {
        for v in self.g.yields(self.region).iter().skip(1).copied() {
            let dims = self.dims(v);
            self.access(v, &dims)?;
        }
        let start = self.yielded()?;
        let block = self.choose_tiles(l)?;
        let spec = Recurrence {
            trips: self.around.trips.clone(),
            rows: self.rows.clone(),
            block,
            reads: self.arguments.len(),
            scratch: self.scratch,
            start,
            stages: self.stages,
        };
        Ok((spec, self.matrices, self.arguments))
    }

    /// Adds the stores of what an iteration yields; returns the copies of the first state.
    fn yielded(&mut self) -> Result<Vec<Stage>, String> {
        let data = self.g.op(self.op);
        let (first, results) = (data.operands[2..].to_vec(), data.results.to_vec());
        let yields = self.g.yields(self.region)[1..].to_vec();
        let args = self.g.region_args(self.region)[2..].to_vec();
        let (mut start, mut before, mut after) = (Vec::new(), Vec::new(), Vec::new());
        let load = |v: ValueId, dtype: DType| Load { value: v, dtype, strides: Vec::new() };
        // Values from outside the stages, and those of products, get a stage that stores them.
        let mut stored_by: IdMap<ValueId, usize> = IdMap::default();
        for v in yields.iter().copied().collect::<HashSet<_>>() {
            if let Some(made) = self.made.get(&v)
                && matches!(self.stages[made.stage], Stage::Elementwise { .. })
                && self.g.def_op(v).is_some_and(|op| self.g.op(op).name() != Concat::NAME)
            {
                stored_by.insert(v, made.stage);
            }
        }
        for (i, v) in yields.iter().copied().enumerate() {
            let (dims, dtype) = (self.dims(v), self.dtype(v));
            let columns = self.columns(&dims)?;
            let mut to = self.dense(Memory::Write(i), columns);
            if i >= args.len() {
                if self.dims(results[i])[1..] != dims[..] || self.dtype(results[i]) != dtype {
                    return Err("a scan output has another shape".into());
                }
                to.per_iteration = &self.rows * columns;
                let own = stored_by.get(&v).copied();
                match own {
                    Some(stage) => self.store(stage, v, to),
                    None => {
                        let from = self.access(v, &dims)?;
                        let list = if matches!(from.memory, Memory::Write(_)) { &mut before } else { &mut after };
                        list.push(Stage::copy(load(v, dtype), columns, from, vec![to]));
                    }
                }
                continue;
            }
            for other in [args[i], first[i], results[i]] {
                if self.dims(other) != dims || self.dtype(other) != dtype {
                    return Err("a state changes its shape".into());
                }
            }
            let from = self.access(first[i], &dims)?;
            start.push(Stage::copy(load(first[i], dtype), columns, from, vec![to.clone()]));
            if v == args[i] {
                continue;
            }
            if let Some(stage) = stored_by.get(&v).copied()
                && self.may_store(stage, &to)
            {
                self.store(stage, v, to);
                continue;
            }
            let from = self.access(v, &dims)?;
            if !matches!(from.memory, Memory::Write(_)) {
                after.push(Stage::copy(load(v, dtype), columns, from, vec![to]));
                continue;
            }
            // Another state, which this iteration may change.
            self.scratch.push((dtype, columns));
            let kept = self.dense(Memory::Scratch(self.scratch.len() - 1), columns);
            before.push(Stage::copy(load(v, dtype), columns, from, vec![kept.clone()]));
            after.push(Stage::copy(load(v, dtype), columns, kept, vec![to]));
        }
        self.drop_unread(&before, &after);
        self.stages.splice(0..0, before);
        self.stages.extend(after);
        Ok(start)
    }

    /// Whether a stage may write the next state to the place `to` of the current one: nothing reads that afterwards, and the stage
    /// itself reads only what it replaces.
    fn may_store(&self, stage: usize, to: &Access) -> bool {
        let reads = |s: &Stage| s.reads().into_iter().filter(|a| a.memory == to.memory).cloned().collect::<Vec<_>>();
        let later = self.stages[stage + 1..].iter().all(|s| reads(s).is_empty());
        later && reads(&self.stages[stage]).iter().all(|a| a == to)
    }

    /// Stores `v` in one more place.
    fn store(&mut self, stage: usize, v: ValueId, to: Access) {
        if let Stage::Elementwise { body, stores, .. } = &mut self.stages[stage]
            && let Some((_, node)) = body.stores.iter().find(|(own, _)| *own == v).copied()
        {
            body.stores.push((v, node));
            stores.push(to);
        }
    }

    /// Removes the stores to scratch memory that no stage reads.
    fn drop_unread(&mut self, before: &[Stage], after: &[Stage]) {
        let all = self.stages.iter().chain(before).chain(after);
        let read: HashSet<usize> = all
            .flat_map(Stage::reads)
            .filter_map(|a| if let Memory::Scratch(i) = a.memory { Some(i) } else { None })
            .collect();
        for stage in &mut self.stages {
            let Stage::Elementwise { body, stores, .. } = stage else { continue };
            let keeps: Vec<bool> =
                stores.iter().map(|a| !matches!(a.memory, Memory::Scratch(i) if !read.contains(&i))).collect();
            let mut kept = keeps.iter();
            body.stores.retain(|_| *kept.next().unwrap_or(&true));
            let mut kept = keeps.iter();
            stores.retain(|_| *kept.next().unwrap_or(&true));
        }
    }

    /// Chooses the register tile of the products, and the rows of a block.
    fn choose_tiles(&mut self, l: &Lowering<'_, '_>) -> Result<usize, String> {
        let mut bytes = 0;
        let mut largest: Option<(usize, Contraction)> = None;
        for stage in &self.stages {
            let Stage::Product(product) = stage else { continue };
            let spec = &product.spec;
            if let Element::F16Pair(dtype) = spec.element
                && !l.isa.contracts_natively(dtype)
            {
                return Err(format!("{} does not multiply {dtype}", l.isa.name));
            }
            let own = spec.element.size() * spec.k_inner.size_hint() * spec.columns.size_hint();
            bytes += own;
            if largest.as_ref().is_none_or(|(most, _)| own > *most) {
                largest = Some((own, spec.clone()));
            }
        }
        if bytes > MAX_MATRIX_BYTES {
            return Err("its matrices are too large for one thread".into());
        }
        let chosen = largest.map(|(_, spec)| recurrence::tile(&spec, l.isa));
        let chosen = chosen.unwrap_or(Tile { rows: 1, vectors: 1 });
        for stage in &mut self.stages {
            if let Stage::Product(product) = stage {
                product.tile = chosen;
            }
        }
        self.matrices.iter_mut().for_each(|m| m.width = chosen.vectors * l.isa.lanes);
        // Matrices from beyond the L2 cache are read for more rows.
        let most = if bytes > L2_RESIDENT_BYTES { MAX_BLOCK_ROWS } else { MAX_BLOCK_ROWS / 4 };
        let rows = self.rows.size_hint();
        let wanted = rows.div_ceil(2).clamp(1, most).max(chosen.rows);
        Ok(wanted.next_multiple_of(chosen.rows))
    }
}

/// The rows of a value: all axes but the last.
fn rows(dims: &[Extent]) -> Extent {
    dims.split_last().map_or_else(|| 1usize.into(), |(_, lead)| lead.iter().product())
}
