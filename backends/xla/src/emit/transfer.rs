//! Transfers between ranks that run the program together: StableHLO's collectives, along one axis of the mesh after another.

use of_emit::list;
use of_ir::{DType, Graph, OpId};
use of_ops::OpSpec;
use of_ops::boxing;
use of_plan::{AxisLayout, BackendTransfer, ElementType, LayoutKind, Transfer, coords};

use super::build::array;
use super::reduction::start;
use super::{Emitter, Table, Typed, Val, type_text};

/// Ops of this file.
pub const TABLE: Table = &[("of.transfer", transfer)];

/// A collective step.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// A conversion along an axis of the mesh, or along several merged ones.
    Along(Vec<usize>, Conversion),
    /// A change of the order in which mesh axes, the outermost first, split one axis of the tensor.
    Renest { from: Vec<usize>, to: Vec<usize> },
}

/// The conversion of the ranks' parts along an axis of the mesh. Numbers are axes of the tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Conversion {
    /// All-reduce.
    Reduce(LayoutKind),
    /// Reduce-scatter.
    ReduceScatter(LayoutKind, usize),
    /// All-gather.
    Gather(usize),
    /// All-to-all: slices of one axis become slices of another.
    Exchange { from: usize, to: usize },
    /// A local slice.
    Slice(usize),
    /// The value becomes the first rank's part of a partial value.
    Keep(LayoutKind),
    /// Slices become parts of a partial value.
    Embed(LayoutKind, usize),
}

impl Conversion {
    /// The steps that convert a tensor from one layout to another.
    fn between(from: AxisLayout, to: AxisLayout) -> Result<Conversion, String> {
        use LayoutKind::{At, Broadcast, Split};
        let (a, b) = (from.dim as usize, to.dim as usize);
        Ok(match (from.kind(), to.kind()) {
            (At, _) | (_, At) => return Err("it crosses pipeline stages, which run different programs".into()),
            (Split, Split) => Conversion::Exchange { from: a, to: b },
            (Split, Broadcast) => Conversion::Gather(a),
            (Split, kind) => Conversion::Embed(kind, a),
            (Broadcast, Split) => Conversion::Slice(b),
            (Broadcast, kind) => Conversion::Keep(kind),
            (kind, Split) => Conversion::ReduceScatter(kind, b),
            (kind, Broadcast) => Conversion::Reduce(kind),
            (..) => return Err("it converts partial values of one kind to another".into()),
        })
    }

    /// Elements that each of `n` ranks receives, given the elements of its part before and after.
    fn moved(self, n: usize, before: usize, after: usize) -> usize {
        let of_others = before - before / n;
        match self {
            Conversion::Reduce(_) => 2 * of_others,
            Conversion::ReduceScatter(..) | Conversion::Exchange { .. } => of_others,
            Conversion::Gather(_) => after - before,
            Conversion::Slice(_) | Conversion::Keep(_) | Conversion::Embed(..) => 0,
        }
    }
}

/// The steps of a transfer on a mesh, in the order that moves the fewest elements.
///
/// # Errors
/// Why it cannot be part of a program that all ranks run.
fn steps(transfer: &Transfer, mesh: &[usize]) -> Result<Vec<Step>, String> {
    transfer.check(mesh)?;
    let dims: Vec<usize> = transfer.dims.iter().map(|d| *d as usize).collect();
    // Adjacent axes with the same conversion are merged.
    let mut axes: Vec<(Vec<usize>, AxisLayout, AxisLayout)> = Vec::new();
    for ((axis, from), to) in transfer.axes.iter().zip(&transfer.from).zip(&transfer.to) {
        match axes.last_mut() {
            Some((together, a, b)) if (*a, *b) == (*from, *to) => together.push(*axis as usize),
            _ => axes.push((vec![*axis as usize], *from, *to)),
        }
    }
    let ranks: Vec<usize> = axes.iter().map(|(own, ..)| own.iter().map(|a| mesh[*a]).product()).collect();
    let mut nests = vec![Vec::new(); dims.len()];
    let mut left = Vec::new();
    for (k, (_, from, to)) in axes.iter().enumerate() {
        if from.kind() == LayoutKind::Split {
            nests[from.dim as usize].push(k);
        }
        if from != to {
            left.push((k, *to, Conversion::between(*from, *to)?));
        }
    }
    let start = State { left, nests };
    let flat = |nest: &[usize]| nest.iter().flat_map(|k| axes[*k].0.clone()).collect();
    let step = |step: &Move| match step {
        Move::Along(k, conversion) => Step::Along(axes[*k].0.clone(), *conversion),
        Move::Renest(from, to) => Step::Renest { from: flat(from), to: flat(to) },
    };
    let uneven = "slices have different sizes, and all ranks of a program need equal ones";
    start.part(&dims, &ranks).ok_or(uneven)?;
    // The cheapest state is expanded first.
    let (mut seen, mut open) = (Vec::new(), vec![(0, start, Vec::<Move>::new())]);
    while let Some(next) = (0..open.len()).min_by_key(|i| open[*i].0) {
        let (cost, state, steps) = open.swap_remove(next);
        if state.left.is_empty() && state.nests.iter().all(|nest| nest.is_sorted()) {
            return Ok(steps.iter().map(step).collect());
        }
        if seen.contains(&state) {
            continue;
        }
        for (own, moved, after) in state.next(&dims, &ranks) {
            open.push((cost + moved, after, [&steps[..], &[own]].concat()));
        }
        seen.push(state);
    }
    Err(uneven.into())
}

/// A step, by the numbers of axes or merged axes.
#[derive(Clone)]
enum Move {
    Along(usize, Conversion),
    Renest(Vec<usize>, Vec<usize>),
}

/// The layout of a tensor between steps. Axes of the mesh are numbers, each for one axis or several merged ones.
#[derive(Clone, PartialEq, Eq)]
struct State {
    /// The axes that are not converted yet: axis, layout after the conversion, conversion.
    left: Vec<(usize, AxisLayout, Conversion)>,
    /// For each axis of the tensor the axes of the mesh that split it, each what the one before left.
    nests: Vec<Vec<usize>>,
}

impl State {
    /// Elements of a rank's part, where all have equally many.
    fn part(&self, dims: &[usize], ranks: &[usize]) -> Option<usize> {
        let own = |(d, nest): (&usize, &Vec<usize>)| {
            let slices = nest.iter().map(|k| ranks[*k]).product::<usize>();
            d.is_multiple_of(slices).then(|| d / slices)
        };
        dims.iter().zip(&self.nests).map(own).product()
    }

    /// Each step that is possible, with the elements that it moves and the layout after it.
    fn next(&self, dims: &[usize], ranks: &[usize]) -> Vec<(Move, usize, State)> {
        let Some(before) = self.part(dims, ranks) else { return Vec::new() };
        let mut out = Vec::new();
        for (i, (axis, to, conversion)) in self.left.iter().enumerate() {
            let mut after = self.clone();
            after.left.remove(i);
            // Only the innermost split of an axis has contiguous slices.
            if let Some(nest) = after.nests.iter_mut().find(|nest| nest.contains(axis))
                && nest.pop() != Some(*axis)
            {
                continue;
            }
            if to.kind() == LayoutKind::Split {
                after.nests[to.dim as usize].push(*axis);
            }
            if let Some(part) = after.part(dims, ranks) {
                out.push((Move::Along(*axis, *conversion), conversion.moved(ranks[*axis], before, part), after));
            }
        }
        for (d, from) in self.nests.iter().enumerate() {
            for i in 0..from.len() {
                let mut after = self.clone();
                let innermost = after.nests[d].remove(i);
                after.nests[d].push(innermost);
                if after.nests[d] != *from {
                    out.push((Move::Renest(from.clone(), after.nests[d].clone()), before, after));
                }
            }
        }
        out
    }
}

/// Checks that a program can execute a transfer on a mesh.
///
/// # Errors
/// The reason why it cannot.
pub fn exchanges(rendezvous: &BackendTransfer, mesh: &[usize]) -> Result<(), String> {
    steps(&rendezvous.transfer, mesh)?;
    match rendezvous.dtype() {
        ElementType::I1 if rendezvous.transfer.partial_kind().is_some() => Err("bools cannot be reduced".into()),
        _ => Ok(()),
    }
}

/// The mesh of the ranks that run a function together, for [`super::Module::mesh`].
///
/// # Errors
/// When ranks do not exchange values of a type.
pub fn mesh(g: &Graph) -> Result<Vec<usize>, String> {
    let mut out = Vec::new();
    for op in g.region_ops(g.entry()).filter(|op| g.op(*op).name() == boxing::Transfer::NAME) {
        let (_, mesh) = of_codegen::rendezvous(g, op).map_err(|d| d.message)?;
        out.resize(out.len().max(mesh.len()), 1);
        out.iter_mut().zip(mesh).for_each(|(all, n)| *all = n.max(*all));
    }
    Ok(out)
}

fn transfer(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let (rendezvous, mesh) = of_codegen::rendezvous(e.g, op).map_err(|d| d.message)?;
    let mut x = e.operand(op, 0)?;
    for step in steps(&rendezvous.transfer, &mesh)? {
        x = match step {
            Step::Along(axes, conversion) => e.along(&x, &axes, conversion),
            Step::Renest { from, to } => e.renest(&x, &from, &to),
        };
    }
    let (_, dims) = e.result(op, 0)?;
    if x.dims == dims { Ok(vec![x]) } else { Err(format!("its part has extents {:?}, not {dims:?}", x.dims)) }
}

/// The reduction of partial values.
fn combination(kind: LayoutKind) -> &'static str {
    match kind {
        LayoutKind::Max => "maximum",
        LayoutKind::Min => "minimum",
        LayoutKind::Prod => "multiply",
        _ => "add",
    }
}

impl Emitter<'_> {
    /// Converts the rank's part along axes of the mesh.
    fn along(&mut self, x: &Val, axes: &[usize], conversion: Conversion) -> Val {
        let n = axes.iter().map(|a| self.mesh[*a]).product();
        let extents = |d: usize, of: fn(usize, usize) -> usize| {
            let mut dims = x.dims.clone();
            dims[d] = of(dims[d], n);
            dims
        };
        let groups = self.groups(axes);
        match conversion {
            Conversion::Reduce(kind) => self.reduce_propagating_nan(kind, x, |e, x| {
                let combiner = e.combiner(Some(combination(kind)), x.dtype);
                e.collective("all_reduce", x, &combiner, &groups, &x.dims)
            }),
            Conversion::ReduceScatter(kind, d) => self.reduce_propagating_nan(kind, x, |e, x| {
                let combiner = e.combiner(Some(combination(kind)), x.dtype);
                let attrs = format!("scatter_dimension = {d} : i64, {groups}");
                e.collective("reduce_scatter", x, &combiner, &attrs, &extents(d, |m, n| m / n))
            }),
            Conversion::Gather(d) => {
                let attrs = format!("all_gather_dim = {d} : i64, {groups}");
                self.collective("all_gather", x, "", &attrs, &extents(d, |m, n| m * n))
            }
            Conversion::Exchange { from, to } => {
                let mut dims = extents(to, |m, n| m / n);
                dims[from] *= n;
                let attrs = format!(
                    "split_dimension = {to} : i64, concat_dimension = {from} : i64, split_count = {n} : i64, {groups}"
                );
                self.collective("all_to_all", x, "", &attrs, &dims)
            }
            Conversion::Slice(d) => {
                let dims = extents(d, |m, n| m / n);
                let starts = self.starts(axes, d, &dims);
                let operands: Vec<&Val> = [x].into_iter().chain(&starts).collect();
                let attrs = format!("slice_sizes = {}", array(&dims));
                self.emit("stablehlo.dynamic_slice", &operands, &attrs, x.dtype, &dims)
            }
            Conversion::Keep(kind) => {
                let identity_element = self.full_like(x, start(combination(kind), x.dtype));
                let (at, zero) = (self.coordinate(axes), self.splat(DType::I64, &[], 0.0));
                let first = self.compare("EQ", &at, &zero);
                self.select(&first, x, &identity_element)
            }
            Conversion::Embed(kind, d) => {
                let dims = extents(d, |m, n| m * n);
                let identity_element = self.splat(x.dtype, &dims, start(combination(kind), x.dtype));
                let starts = self.starts(axes, d, &x.dims);
                let operands: Vec<&Val> = [&identity_element, x].into_iter().chain(&starts).collect();
                self.emit("stablehlo.dynamic_update_slice", &operands, "", x.dtype, &dims)
            }
        }
    }

    /// Reorders the mesh axes that split one tensor axis: each rank has one slice before and after.
    fn renest(&mut self, x: &Val, from: &[usize], to: &[usize]) -> Val {
        let mesh = self.mesh.clone();
        let slice = |coords: &[usize], nest: &[usize]| nest.iter().fold(0, |i, a| i * mesh[*a] + coords[*a]);
        let rank = |coords: &[usize]| coords.iter().zip(&mesh).fold(0, |r, (c, n)| r * n + c);
        let target = |source: usize| {
            let mut at = coords(&mesh, source);
            let mut i = slice(&at, from);
            for a in to.iter().rev() {
                (at[*a], i) = (i % mesh[*a], i / mesh[*a]);
            }
            list(&[source, rank(&at)])
        };
        let pairs: Vec<String> = (0..mesh.iter().product()).map(target).collect();
        let attrs = format!("source_target_pairs = dense<{}> : tensor<{}x2xi64>", list(&pairs), pairs.len());
        self.collective("collective_permute", x, "", &attrs, &x.dims)
    }

    /// A collective that reduces and propagates NaN. Those for maxima and minima may lose NaN, so they compare integers in the order
    /// of the floats, where NaN is last for a maximum and first for a minimum.
    fn reduce_propagating_nan(
        &mut self,
        kind: LayoutKind,
        x: &Val,
        collective: impl Fn(&mut Self, &Val) -> Val,
    ) -> Val {
        let int = match x.dtype.bits() {
            Some(16) => DType::I16,
            Some(32) => DType::I32,
            _ => DType::I64,
        };
        let is_extremum = matches!(kind, LayoutKind::Max | LayoutKind::Min);
        if !is_extremum || !x.dtype.is_float() {
            return collective(self, x);
        }
        let dtype = x.dtype;
        let bits = |e: &mut Self, x: &Val, to: DType| e.emit("stablehlo.bitcast_convert", &[x], "", to, &x.dims);
        // All bits of negative numbers but the sign are flipped; the mapping is its own inverse.
        let ordered = |e: &mut Self, x: &Val| {
            let (zero, rest) =
                (e.full_like(x, 0.0), e.full_like(x, int.int_range().map_or(0.0, |(_, high)| high as f64)));
            let (negative, turned) = (e.compare("LT", x, &zero), e.binary("xor", x, &rest));
            e.select(&negative, &turned, x)
        };
        let nan = self.compare("NE", x, x);
        let x = bits(self, x, int);
        let x = ordered(self, &x);
        let (low, high) = int.int_range().map_or((0.0, 0.0), |(low, high)| (low as f64, high as f64));
        let end = self.full_like(&x, if kind == LayoutKind::Max { high } else { low });
        let x = self.select(&nan, &end, &x);
        let y = collective(self, &x);
        let y = ordered(self, &y);
        bits(self, &y, dtype)
    }

    /// Prints a collective; `combiner` is the region of its reduction, empty if it does not reduce.
    fn collective(&mut self, name: &str, x: &Val, combiner: &str, attrs: &str, dims: &[usize]) -> Val {
        let out = Val { name: self.fresh(), dtype: x.dtype, dims: dims.to_vec() };
        let text = format!(
            "{} = \"stablehlo.{name}\"({}) {combiner} {{{attrs}}} : ({}) -> {}",
            out.name,
            x.name,
            x.ty(),
            type_text(x.dtype, dims)
        );
        self.line(&text);
        out
    }

    /// Replica groups that differ only along these mesh axes, as an attribute. The last axis varies fastest.
    fn groups(&self, axes: &[usize]) -> String {
        let mesh = &self.mesh;
        let shape: Vec<usize> = axes.iter().map(|a| mesh[*a]).collect();
        let all = || 0..mesh.iter().product();
        let member = |first: usize, i: usize| {
            let mut at = coords(mesh, first);
            axes.iter().zip(coords(&shape, i)).for_each(|(a, c)| at[*a] = c);
            at.iter().zip(mesh).fold(0, |r, (c, n)| r * n + c)
        };
        let count: usize = shape.iter().product();
        let firsts: Vec<usize> = all().filter(|r| member(*r, 0) == *r).collect();
        let rows: Vec<String> =
            firsts.iter().map(|first| list(&(0..count).map(|i| member(*first, i)).collect::<Vec<usize>>())).collect();
        format!("replica_groups = dense<{}> : tensor<{}x{count}xi64>", list(&rows), rows.len())
    }

    /// The index of the replica along axes of the mesh, i64 of rank 0.
    fn coordinate(&mut self, axes: &[usize]) -> Val {
        let id = self.emit("stablehlo.replica_id", &[], "", DType::U32, &[]);
        let id = self.convert(&id, DType::I64);
        let mut out = self.splat(DType::I64, &[], 0.0);
        for axis in axes {
            let stride = self.mesh[axis + 1..].iter().product::<usize>();
            let (n, stride) =
                (self.splat(DType::I64, &[], self.mesh[*axis] as f64), self.splat(DType::I64, &[], stride as f64));
            let (row, outer) = (self.binary("divide", &id, &stride), self.binary("multiply", &out, &n));
            let own = self.binary("remainder", &row, &n);
            out = self.binary("add", &outer, &own);
        }
        out
    }

    /// The start indices of the replica's slice, which splits axis `d` and has the extents `dims`.
    fn starts(&mut self, axes: &[usize], d: usize, dims: &[usize]) -> Vec<Val> {
        let (at, zero) = (self.coordinate(axes), self.splat(DType::I64, &[], 0.0));
        let len = self.splat(DType::I64, &[], dims[d] as f64);
        let start = self.binary("multiply", &at, &len);
        (0..dims.len()).map(|i| if i == d { start.clone() } else { zero.clone() }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use LayoutKind::{Broadcast, Sum};
    use Step::{Along, Renest};

    fn of(from: &[AxisLayout], to: &[AxisLayout]) -> Result<Vec<Step>, String> {
        let axes = (0..from.len() as u32).collect();
        steps(
            &Transfer { id: 1, axes, dims: vec![12, 8], from: from.to_vec(), to: to.to_vec(), ..Transfer::default() },
            &[2, 4],
        )
    }

    #[test]
    fn the_cheapest_order_comes_first() {
        let (b, p) = (AxisLayout::of(Broadcast), AxisLayout::of(Sum));
        let (s0, s1) = (AxisLayout::split(0), AxisLayout::split(1));
        assert_eq!(of(&[p], &[b]).unwrap(), [Along(vec![0], Conversion::Reduce(Sum))]);
        assert_eq!(of(&[s0], &[s1]).unwrap(), [Along(vec![0], Conversion::Exchange { from: 0, to: 1 })]);
        assert_eq!(
            of(&[p, p], &[b, s1]).unwrap(),
            [Along(vec![1], Conversion::ReduceScatter(Sum, 1)), Along(vec![0], Conversion::Reduce(Sum))]
        );
        assert_eq!(
            of(&[s0, b], &[b, s1]).unwrap(),
            [Along(vec![1], Conversion::Slice(1)), Along(vec![0], Conversion::Gather(0))]
        );
        let both = of(&[b, s1], &[p, p]).unwrap();
        assert!(
            both.len() == 2
                && both.contains(&Along(vec![0], Conversion::Keep(Sum)))
                && both.contains(&Along(vec![1], Conversion::Embed(Sum, 1)))
        );
    }

    #[test]
    fn axes_that_split_one_axis_are_split_and_joined_from_the_last_on() {
        let (b, s0, s1) = (AxisLayout::of(Broadcast), AxisLayout::split(0), AxisLayout::split(1));
        assert_eq!(of(&[s1, s1], &[b, b]).unwrap(), [Along(vec![0, 1], Conversion::Gather(1))]);
        assert_eq!(of(&[b, b], &[s1, s1]).unwrap(), [Along(vec![0, 1], Conversion::Slice(1))]);
        assert_eq!(of(&[s0, s1], &[b, b]).unwrap().len(), 2);
        let turned = Renest { from: vec![0, 1], to: vec![1, 0] };
        assert_eq!(of(&[s1, s1], &[b, s1]).unwrap(), [turned.clone(), Along(vec![0], Conversion::Gather(1))]);
        assert_eq!(
            of(&[s1, b], &[b, s1]).unwrap(),
            [Along(vec![1], Conversion::Slice(1)), turned, Along(vec![0], Conversion::Gather(1))]
        );
        let back = Renest { from: vec![1, 0], to: vec![0, 1] };
        assert_eq!(of(&[b, s1], &[s1, s1]).unwrap(), [Along(vec![0], Conversion::Slice(1)), back]);
    }

    #[test]
    fn transfers_outside_a_single_program_are_rejected() {
        let (b, s0) = (AxisLayout::of(Broadcast), AxisLayout::split(0));
        let why = of(&[b, AxisLayout::at(1)], &[b, b]).unwrap_err();
        assert!(why.contains("stages"), "{why}");
        // 12 rows on two and then four ranks.
        for (from, to) in [([s0, s0], [b, b]), ([b, b], [s0, s0])] {
            let why = of(&from, &to).unwrap_err();
            assert!(why.contains("slices have different sizes"), "{why}");
        }
    }
}
