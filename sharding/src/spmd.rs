//! SPMD partitioning: makes the program of each rank from a sharded function.
//!
//! Types become those of the rank's parts, constants are sliced, and every collective becomes an `of.transfer`, a
//! rendezvous of ranks. All ranks of a stage run the same ops in the same order. Where splits are even they also have
//! the same types, and differ only in their constants. Ops on the meshes of other stages are left out.
//!
//! This is the SPMD partitioner.

use std::collections::HashMap;

use of_diag::{Code, Diagnostic, Location};
use of_ir::{Attr, Blob, Dim, Func, Graph, IdMap, NdSbp, OpId, Rewriter, Tensor, TensorType, Type, ValueId};
use of_ops::OpSpec;
use of_ops::boxing::{Send, ShardingConstraint, Transfer};
use of_ops::elementwise::Mul;
use of_ops::structural::{Constant, ShapeOf, Size};
use of_ops::time::{PIPELINE, TimeShape};
use of_ops::training::{CARRIED, INITIAL_VALUES, InitialValue, VARIABLES, variables};

use crate::layout::{self, Layout};
use crate::lower::collective;
use crate::parts::{self, Parts, localize_shape_operand, slice_constant};
use crate::{Meshes, cost};

/// The function that rank `rank` runs.
///
/// # Errors
/// A value without a layout, or an op that does not produce the rank's part.
pub fn rank_function(func: &Func, meshes: &Meshes, rank: usize) -> Result<Func, Diagnostic> {
    let mut out = Func {
        graph: Graph::new(),
        inputs: Vec::new(),
        outputs: Vec::new(),
        attrs: func.attrs.clone(),
        loc: func.loc.clone(),
    };
    out.graph.continue_rewrites(&func.graph);
    let entry = out.graph.entry();
    let time = TimeShape::of(&func.graph, func.graph.entry())?;
    let coords = meshes.coords(rank);
    if let Ok(mut pipeline) = func.attrs.typed::<Vec<i64>>(PIPELINE) {
        pipeline.truncate(2);
        pipeline.push(meshes.stage(&coords) as i64);
        out.attrs.set(PIPELINE, Attr::Ints(pipeline));
    }
    let numbers = Transfer::numbers(meshes.ranks().devices());
    let mut builder = RankBuilder { whole: &func.graph, meshes, coords, time, numbers, values: HashMap::default() };
    let here = |builder: &RankBuilder<'_>, values: &[ValueId], names: &[String]| {
        values.iter().zip(names).filter(|(v, _)| builder.is_here(**v)).map(|(_, n)| n.clone()).collect()
    };
    local_variables(func, &builder, &mut out)?;
    out.inputs = here(&builder, func.graph.args(), &func.inputs);
    out.outputs = here(&builder, func.graph.outputs(), &func.outputs);
    let mut rw = Rewriter::new(&mut out.graph, "spmd");
    rw.number_symbols_above(&func.graph);
    for v in func.graph.args().iter().filter(|v| builder.is_here(**v)).collect::<Vec<_>>() {
        builder.check_part(*v, &func.loc)?;
        let arg = rw.add_arg(entry, builder.ty(*v), func.graph.name(*v).cloned());
        builder.values.insert(*v, arg);
    }
    let mut next = builder.numbers;
    for op in func.graph.region_ops(func.graph.entry()) {
        builder.op(&mut rw, op, &mut next)?;
    }
    Ok(out)
}

/// Gives the rank's function the attributes of its variables: the numbers of its own inputs and outputs, and its parts of initial
/// values.
fn local_variables(func: &Func, builder: &RankBuilder<'_>, out: &mut Func) -> Result<(), Diagnostic> {
    let number = |values: &[ValueId]| {
        let here = values.iter().scan(0, |next, v| {
            let own = builder.is_here(*v).then_some(*next);
            *next += i64::from(own.is_some());
            Some(own)
        });
        here.collect::<Vec<Option<i64>>>()
    };
    let (inputs, outputs) = (number(func.graph.args()), number(func.graph.outputs()));
    let input = |i: i64| usize::try_from(i).ok().and_then(|i| inputs.get(i).copied().flatten());
    if let Ok(carried) = func.attrs.typed::<Vec<i64>>(CARRIED) {
        let own = carried.iter().zip(&outputs).filter(|(_, output)| output.is_some());
        out.attrs.set(CARRIED, Attr::Ints(own.map(|(from, _)| input(*from).unwrap_or(-1)).collect()));
    }
    if func.attrs.get(VARIABLES).is_none() {
        return Ok(());
    }
    let (mut numbers, mut initial) = (Vec::new(), Vec::new());
    for variable in variables(func)? {
        let Some(own) = inputs[variable.input] else { continue };
        let v = func.graph.args()[variable.input];
        numbers.push(own);
        initial.push(match variable.initial {
            None => Attr::Unit,
            Some(InitialValue::Zeros) => Attr::Int(0),
            Some(InitialValue::Tensor(whole)) => match builder.block(v) {
                Some(block) => Attr::Tensor(slice_constant(&whole, &block).ok_or_else(|| {
                    let what = format!("the initial value of '{}' cannot be split", func.inputs[variable.input]);
                    Diagnostic::error(Code::SBP, func.loc.clone(), what)
                })?),
                None => Attr::Tensor(whole),
            },
        });
    }
    out.attrs.set(VARIABLES, Attr::Ints(numbers));
    out.attrs.set(INITIAL_VALUES, Attr::Array(initial));
    Ok(())
}

/// For each rank, the first rank of its stage whose parts of all values have the same extents.
pub fn rank_classes(func: &Func, meshes: &Meshes) -> Vec<usize> {
    let g = &func.graph;
    let mut seen: HashMap<Vec<usize>, usize> = HashMap::new();
    let values = (0..g.value_slots()).filter_map(|i| g.value_at(i));
    let sbp = |v: ValueId| g.ty(v).as_tensor()?.sbp.clone();
    // Parts of open extents are equal.
    let extents = |v: ValueId| cost::extents(g.ty(v).as_tensor()?, meshes.ranks().devices());
    let whole: Vec<(NdSbp, Vec<usize>)> =
        values.filter_map(|v| Some((sbp(v)?, extents(v)?))).filter(|(s, _)| uneven(&s.axes)).collect();
    let stages: Vec<NdSbp> = (0..g.value_slots()).filter_map(|i| sbp(g.value_at(i)?)).collect();
    let mut names: Vec<&str> = stages.iter().map(|s| &*s.mesh).collect();
    names.sort_unstable();
    names.dedup();
    (0..meshes.ranks().devices())
        .map(|rank| {
            let coords = meshes.coords(rank);
            let extents = |(s, dims): &(NdSbp, Vec<usize>)| match meshes.coords_on(&s.mesh, &coords) {
                Some(own) => layout::block(&s.axes, &meshes.spec(&s.mesh).shape(), &own, dims),
                None => Vec::new(),
            };
            let here = names.iter().map(|n| usize::from(meshes.coords_on(n, &coords).is_some()));
            let parts = whole.iter().flat_map(|w| extents(w).into_iter().map(|(_, n)| n));
            let key = here.chain(parts).collect();
            *seen.entry(key).or_insert(rank)
        })
        .collect()
}

fn uneven(layout: &Layout) -> bool {
    layout.iter().any(|s| matches!(s, of_ir::Sbp::Split(_)))
}

/// Layout and dimensions of a value; `None` where it has no layout and is replicated.
fn layout_of(g: &Graph, v: ValueId) -> Option<(Layout, Vec<usize>)> {
    let t = g.ty(v).as_tensor()?;
    Some((t.sbp.as_ref()?.axes.clone(), t.fixed_dims()?))
}

struct RankBuilder<'a> {
    whole: &'a Graph,
    meshes: &'a Meshes,
    /// Coordinates of the rank on the mesh of all ranks.
    coords: Vec<usize>,
    /// When the ops run, where there are microbatches.
    time: Option<TimeShape>,
    /// Numbers of each transfer.
    numbers: i64,
    values: IdMap<ValueId, ValueId>,
}

impl Parts for RankBuilder<'_> {
    fn ty(&self, v: ValueId) -> Type {
        RankBuilder::ty(self, v)
    }

    fn dims(&self, v: ValueId) -> Option<Vec<Dim>> {
        self.part(v)
    }
}

impl RankBuilder<'_> {
    fn sbp(&self, v: ValueId) -> Option<&NdSbp> {
        self.whole.ty(v).as_tensor()?.sbp.as_ref()
    }

    /// Whether the rank has a part of a value. A value without a layout is on every rank.
    fn is_here(&self, v: ValueId) -> bool {
        self.sbp(v).is_none_or(|s| self.meshes.coords_on(&s.mesh, &self.coords).is_some())
    }

    /// The block of a value of known extents that the rank holds.
    fn block(&self, v: ValueId) -> Option<Vec<(usize, usize)>> {
        let (layout, dims) = layout_of(self.whole, v)?;
        let mesh = &self.sbp(v)?.mesh;
        let own = self.meshes.coords_on(mesh, &self.coords)?;
        Some(layout::block(&layout, &self.meshes.spec(mesh).shape(), &own, &dims))
    }

    /// The extents of the rank's part of a value; `None` where it has no layout, no part, or no known extents.
    fn part(&self, v: ValueId) -> Option<Vec<Dim>> {
        let (t, sbp) = (self.whole.ty(v).as_tensor()?, self.sbp(v)?);
        let own = self.meshes.coords_on(&sbp.mesh, &self.coords)?;
        layout::part(&sbp.axes, &self.meshes.spec(&sbp.mesh).shape(), &own, t.shape.as_ref()?)
    }

    fn is_whole(&self, v: ValueId) -> bool {
        self.sbp(v).is_none_or(|s| s.axes.iter().all(|s| *s == of_ir::Sbp::Broadcast))
    }

    /// Checks that open extents are multiples of their slices.
    fn check_part(&self, v: ValueId, loc: &Location) -> Result<(), Diagnostic> {
        let Type::Tensor(t @ TensorType { shape: Some(_), sbp: Some(_), .. }) = self.whole.ty(v) else { return Ok(()) };
        if !self.is_here(v) || self.part(v).is_some() {
            return Ok(());
        }
        let what =
            format!("{} has an open extent that is not known to be a multiple of its slices", Type::Tensor(t.clone()));
        let hint = "write it as a multiple, such as 4*N, or give it a number (--shape)";
        Err(Diagnostic::error(Code::SBP, loc.clone(), what).hint(hint))
    }

    /// The type of the rank's part.
    fn ty(&self, v: ValueId) -> Type {
        match (self.whole.ty(v), self.part(v)) {
            (Type::Tensor(t), Some(part)) => Type::Tensor(TensorType { dtype: t.dtype, shape: Some(part), sbp: None }),
            (Type::Tensor(t), None) => Type::Tensor(TensorType { sbp: None, ..t.clone() }),
            (other, _) => other.clone(),
        }
    }

    fn op(&mut self, rw: &mut Rewriter<'_>, op: OpId, next: &mut i64) -> Result<(), Diagnostic> {
        let g = self.whole;
        let data = g.op(op);
        rw.set_location(data.loc.clone());
        let error = |what: &str| Diagnostic::error(Code::SBP, data.loc.clone(), format!("'{}': {what}", data.name()));
        data.results.iter().try_for_each(|v| self.check_part(*v, &data.loc))?;
        if data.name() == Send::NAME {
            *next += self.numbers;
            return self.send(rw, op, *next - self.numbers);
        }
        if data.def.traits().terminator {
            let here = data.operands.iter().filter(|v| self.is_here(**v));
            let operands: Option<Vec<ValueId>> = here.map(|v| self.values.get(v).copied()).collect();
            let operands = operands.ok_or_else(|| error("a value is read before it is computed"))?;
            rw.create((data.def, data.attrs.clone()), &operands)?;
            return Ok(());
        }
        if !data.results.iter().all(|v| self.is_here(*v)) {
            *next += if collective(data.name()).is_some() { self.numbers } else { 0 };
            return Ok(());
        }
        if let ([v], true) = (data.results.as_slice(), data.def.traits().constant) {
            let made = match (self.block(*v), g.constant(*v)) {
                (Some(block), Some(value)) if block.iter().zip(value.dims()).any(|((_, n), d)| n != d) => {
                    let value = slice_constant(&value, &block)
                        .ok_or_else(|| error("elements smaller than a byte cannot be split"))?;
                    rw.create_one(Constant { value }, &[])?
                }
                _ => {
                    let copy = rw.clone_op(g, op, &mut self.values);
                    rw.graph().op(copy).results[0]
                }
            };
            return self.bind_results(rw, op, &[made]);
        }
        let mut operands: Vec<ValueId> = Vec::with_capacity(data.operands.len());
        for v in &data.operands {
            operands.push(*self.values.get(v).ok_or_else(|| error("a value is read before it is computed"))?);
        }
        if collective(data.name()).is_some() {
            let transfer = self.transfer(op, *next).ok_or_else(|| error("an operand or result has no layout"))?;
            *next += self.numbers;
            if transfer.ranks.iter().all(|ranks| *ranks == 1) {
                // One rank has all parts.
                return self.bind_results(rw, op, &operands);
            }
            let y = rw.create_one(transfer, &operands)?;
            return self.bind_results(rw, op, &[y]);
        }
        if data.name() == ShardingConstraint::NAME {
            return Err(error("layout changes must be lowered to collectives first").hint("run 'insert-boxing' before"));
        }
        if !data.regions.is_empty() {
            if g.captured(op).into_iter().any(|v| !self.is_whole(v)) {
                return Err(error("values that its regions read must be replicated on every rank"));
            }
            let mut values = std::mem::take(&mut self.values);
            let copied = parts::copy_parts(rw, g, op, self, &mut values);
            self.values = values;
            return copied.map(drop);
        }
        localize_shape_operand(rw, g, op, &mut operands, |v| self.part(v))?;
        let made = rw.create((data.def, data.attrs.clone()), &operands)?;
        let mut results = rw.graph().op(made).results.to_vec();
        if let ([result], true) = (results.as_mut_slice(), matches!(data.name(), ShapeOf::NAME | Size::NAME)) {
            *result = self.whole_extents(rw, op, *result)?;
        }
        self.bind_results(rw, op, &results)
    }

    /// The extents that an `of.shape` or `of.size` of the whole gives, from those of the rank's part.
    fn whole_extents(&self, rw: &mut Rewriter<'_>, op: OpId, local: ValueId) -> Result<ValueId, Diagnostic> {
        let g = self.whole;
        let x = g.op(op).operands[0];
        if self.is_whole(x) {
            return Ok(local);
        }
        let dims = g.dims_value(g.op(op).results[0]).unwrap_or_default();
        if let Some(known) = dims.iter().map(Dim::as_const).collect::<Option<Vec<i64>>>() {
            return rw.create_one(Constant { value: constant_like(rw, local, &known) }, &[]);
        }
        let own = rw.graph().dims_value(local).unwrap_or_default();
        // An extent of the whole is the same multiple of the part's for all values of the symbols.
        let times: Option<Vec<i64>> =
            dims.iter().zip(&own).map(|(whole, own)| whole.exact_div(own)?.as_const()).collect();
        let times = times.filter(|times| times.len() == dims.len()).ok_or_else(|| {
            let what = format!("'{}': the extents of the whole do not follow from the rank's part", g.op(op).name());
            Diagnostic::error(Code::SBP, g.op(op).loc.clone(), what).hint("give numbers to its open extents (--shape)")
        })?;
        let times = rw.create_one(Constant { value: constant_like(rw, local, &times) }, &[])?;
        rw.create_one(Mul {}, &[local, times])
    }

    /// Binds the results of `op` to these values, which must be the rank's parts of them.
    fn bind_results(&mut self, rw: &mut Rewriter<'_>, op: OpId, values: &[ValueId]) -> Result<(), Diagnostic> {
        let data = self.whole.op(op);
        for (v, own) in data.results.iter().zip(values) {
            let (is, must) = (rw.graph().ty(*own).clone(), self.ty(*v));
            let fixed = |t: &Type| t.as_tensor().and_then(TensorType::fixed_dims);
            if let (Some(a), Some(b)) = (fixed(&is), fixed(&must))
                && a != b
            {
                let what =
                    format!("'{}' makes {is} from the rank's parts, but its part of the result is {must}", data.name());
                return Err(Diagnostic::error(Code::SBP, data.loc.clone(), what));
            }
            if is != must {
                rw.set_type(*own, must);
            }
            if let Some(name) = self.whole.name(*v) {
                rw.set_name(*own, name.clone());
            }
            self.values.insert(*v, *own);
        }
        Ok(())
    }

    /// The rank's share of a collective.
    fn transfer(&self, op: OpId, id: i64) -> Option<Transfer> {
        let data = self.whole.op(op);
        let (x, y) = (data.operands[0], data.results[0]);
        let (from, to) = (self.sbp(x)?, self.sbp(y)?);
        let axes: Vec<i64> = data.attrs.typed("axes").ok()?;
        let mesh = self.meshes.spec(&to.mesh).shape();
        let own = self.meshes.coords_on(&to.mesh, &self.coords)?;
        // The ranks of the rendezvous together hold the block that the other mesh axes leave.
        let others: Vec<usize> = (0..mesh.len()).filter(|a| !axes.contains(&(*a as i64))).collect();
        let layout: Layout = others.iter().map(|a| from.axes[*a]).collect();
        let shape: Vec<usize> = others.iter().map(|a| mesh[*a]).collect();
        let coords: Vec<usize> = others.iter().map(|a| own[*a]).collect();
        let dims = layout::part(&layout, &shape, &coords, self.whole.ty(x).as_tensor()?.shape.as_ref()?)?;
        let along = |a: &i64| Some(*mesh.get(usize::try_from(*a).ok()?)? as i64);
        let axis = |a: &i64| Some(self.meshes.axis(&to.mesh, usize::try_from(*a).ok()?) as i64);
        Some(Transfer {
            id,
            ranks: axes.iter().map(along).collect::<Option<_>>()?,
            axes: axes.iter().map(axis).collect::<Option<_>>()?,
            dims: known_extents(&dims),
            from: self.on_all_ranks(from),
            to: self.on_all_ranks(to),
            local_shape: known_extents(&self.part(y)?),
            stage_ranks: Vec::new(),
            microbatches: self.microbatches(op),
        })
    }

    /// The number of microbatches and the part of the step in which an op runs, where there are microbatches.
    fn microbatches(&self, op: OpId) -> Vec<i64> {
        self.time.as_ref().map(|time| to_i64s(vec![time.count, time.op(op)])).unwrap_or_default()
    }

    /// The layout with an entry for every axis of the mesh of all ranks.
    fn on_all_ranks(&self, sbp: &NdSbp) -> NdSbp {
        let mut axes = sbp.axes.clone();
        if let Some(p) = self.meshes.part(&sbp.mesh) {
            axes.insert(p.axis, of_ir::Sbp::Broadcast);
        }
        NdSbp { mesh: sbp.mesh.clone(), axes }
    }

    /// The rank's share of a send between stages; nothing where it belongs to neither.
    fn send(&mut self, rw: &mut Rewriter<'_>, op: OpId, id: i64) -> Result<(), Diagnostic> {
        let data = self.whole.op(op);
        let (x, y) = (data.operands[0], data.results[0]);
        let error = |what: &str| Diagnostic::error(Code::SBP, data.loc.clone(), format!("'{}': {what}", data.name()));
        let sides = self.sbp(x).zip(self.sbp(y)).zip(layout_of(self.whole, x));
        let ((from, to), (_, dims)) = sides.ok_or_else(|| {
            error("an operand or result has no layout, or open extents")
                .hint("stages exchange known extents: give numbers to open dimensions (--shape)")
        })?;
        let parts = self.meshes.part(&from.mesh).zip(self.meshes.part(&to.mesh));
        let (a, b) = parts.ok_or_else(|| error("its meshes are not stages"))?;
        if !self.is_here(x) && !self.is_here(y) {
            return Ok(());
        }
        let (from, to) = (self.on_all_ranks(from), self.on_all_ranks(to));
        // Where both layouts are equal, only ranks with equal coordinates take part.
        let shape = self.meshes.ranks().shape();
        let alike = from.axes == to.axes;
        let axes: Vec<usize> = (0..shape.len()).filter(|i| *i == a.axis || !alike).collect();
        let others: Vec<usize> = (0..shape.len()).filter(|i| !axes.contains(i)).collect();
        let pick = |list: &[usize]| others.iter().map(|i| list[*i]).collect::<Vec<_>>();
        let layout: Layout = others.iter().map(|i| from.axes[*i]).collect();
        let dims = layout::block(&layout, &pick(&shape), &pick(&self.coords), &dims);
        let Type::Tensor(t) = self.whole.ty(y) else { return Err(error("it accepts only tensors")) };
        // A rank without a part gets one element that nothing reads.
        let part = if self.is_here(y) { known_extents(&self.part(y).unwrap_or_default()) } else { vec![1] };
        let source = match self.values.get(&x) {
            Some(v) => *v,
            None => {
                let bytes = t.dtype.bits().unwrap_or(0).div_ceil(8);
                let value = Tensor::from_bytes(t.dtype, vec![1], Blob::new(vec![0; bytes]));
                rw.create_one(Constant { value: value.map_err(|e| error(&e.to_string()))? }, &[])?
            }
        };
        let transfer = Transfer {
            id,
            ranks: axes.iter().map(|i| shape[*i] as i64).collect(),
            axes: to_i64s(axes),
            dims: to_i64s(dims.into_iter().map(|(_, n)| n).collect()),
            from,
            to,
            local_shape: part,
            stage_ranks: to_i64s(vec![a.axis, a.index, b.index]),
            microbatches: self.microbatches(op),
        };
        let result = rw.create_one(transfer, &[source])?;
        if self.is_here(y) { self.bind_results(rw, op, &[result]) } else { Ok(()) }
    }
}

/// Extents as `of.transfer` has them: -1 where they are open.
fn known_extents(dims: &[Dim]) -> Vec<i64> {
    dims.iter().map(|d| d.as_const().unwrap_or(Transfer::OPEN)).collect()
}

/// Numbers with the shape of `like`: a list or one number.
fn constant_like(rw: &Rewriter<'_>, like: ValueId, numbers: &[i64]) -> Tensor {
    match (rw.graph().ty(like).as_tensor().and_then(TensorType::rank), numbers) {
        (Some(0), [number]) => Tensor::scalar(*number),
        _ => Tensor::from_i64s(numbers),
    }
}

fn to_i64s(list: Vec<usize>) -> Vec<i64> {
    list.into_iter().map(|n| n as i64).collect()
}
