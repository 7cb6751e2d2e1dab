//! Layouts inside of regions: how the body of an op computes with parts of values.
//!
//! An op with a region can be split along a mesh axis where each op of the region can, so that every value has one layout for all that make
//! and read it: nothing is sent inside of a region. The layouts are the solution of a constraint satisfaction problem. Its variables are the
//! values of the region, and the constraint of an op is the table of its SBP signatures. A split of one argument, propagated through the
//! tables, decides nearly all the others. Source of the propagation: Bessière, Régin, Yap, Zhang, "An optimal coarse-grained arc
//! consistency algorithm" (2005); the tables here are so small that they are scanned anew.

use of_ir::{Graph, IdMap, OpId, PartialKind, Sbp, SbpSignature, Tensor, ValueId};
use of_ops::OpSpec;
use of_ops::control::Scan;
use of_ops::list::as_op;
use of_ops::structural::{ShapeOf, Size};
use smallvec::SmallVec;

use crate::{cost, layout};

/// Gives the SBP signatures of an op on a mesh axis of so many devices, the replicated one first.
type Signatures = dyn Fn(&Graph, OpId, usize) -> Vec<SbpSignature>;

/// The SBP signatures of an op that follow from its region, on a mesh axis of so many devices, without the replicated one. `of_ops` gives
/// those of the ops inside.
pub fn signatures(g: &Graph, op: OpId, devices: usize, of_ops: &Signatures) -> Vec<SbpSignature> {
    let Some(body) = Body::new(g, op, devices, of_ops) else { return Vec::new() };
    let mut out: Vec<SbpSignature> = Vec::new();
    for seed in 0..body.args {
        for axis in body.domains[seed].iter().filter(|l| matches!(l, Sbp::Split(_))) {
            let signature = body.solve(&[(seed, *axis)]).and_then(|layouts| body.signature(&layouts));
            out.extend(signature.filter(|s| !out.contains(s)));
        }
    }
    out
}

/// The layouts along one mesh axis of so many devices of all values inside of the region of `op`, whose operands and results have these layouts.
pub fn layouts(
    g: &Graph,
    op: OpId,
    devices: usize,
    (operands, results): (&[Sbp], &[Sbp]),
    of_ops: &Signatures,
) -> Option<Vec<(ValueId, Sbp)>> {
    let body = Body::new(g, op, devices, of_ops)?;
    let mut fixed = Vec::new();
    for (outer, port) in operands.iter().zip(&body.operands).chain(results.iter().zip(&body.results)) {
        let inner = port.inner(*outer)?;
        match port.value {
            Some(value) => fixed.push((value, inner)),
            None if inner == Sbp::Broadcast => {}
            None => return None,
        }
    }
    let own = body.solve(&fixed)?;
    Some(body.values.iter().copied().zip(own.iter().map(|(layout, _)| *layout)).collect())
}

/// A layout, and what the number of devices must divide, 0 for anything.
type Solved = Vec<(Sbp, i64)>;

/// The constraint satisfaction problem of a region.
struct Body {
    values: Vec<ValueId>,
    /// The first values are arguments.
    args: usize,
    /// The possible layouts of each value.
    domains: Vec<Vec<Sbp>>,
    tables: Vec<Table>,
    operands: Vec<Port>,
    results: Vec<Port>,
}

/// What an op allows.
struct Table {
    values: SmallVec<[usize; 4]>,
    rows: Vec<Row>,
}

struct Row {
    layouts: SmallVec<[Sbp; 4]>,
    multiple: i64,
}

/// An operand or result of the op, and the value of the region that is it or a slice of it.
struct Port {
    /// `None` where it comes from outside of the region, and is replicated.
    value: Option<usize>,
    /// The axis that the slice lacks.
    sliced: Option<u8>,
}

impl Port {
    /// The layout of the operand or result.
    fn outer(&self, inner: Sbp) -> Sbp {
        match (inner, self.sliced) {
            (Sbp::Split(d), Some(axis)) => Sbp::Split(d + u8::from(d >= axis)),
            _ => inner,
        }
    }

    /// The layout of the value in the region; `None` where the sliced axis would be split.
    fn inner(&self, outer: Sbp) -> Option<Sbp> {
        match (outer, self.sliced) {
            (Sbp::Split(d), Some(axis)) if d == axis => None,
            (Sbp::Split(d), Some(axis)) => Some(Sbp::Split(d - u8::from(d > axis))),
            _ => Some(outer),
        }
    }
}

impl Body {
    /// The problem of an op whose region can be split: an `of.scan`.
    fn new(g: &Graph, op: OpId, devices: usize, of_ops: &Signatures) -> Option<Body> {
        let scan: Scan = as_op(g, op)?;
        let data = g.op(op);
        let [region] = data.regions[..] else { return None };
        let (inputs, outputs) = scan.slices(data.operands.len(), data.results.len()).ok()?;
        let states = data.operands.len() - inputs.len();
        let args = g.region_args(region);
        let mut values: Vec<ValueId> = args.to_vec();
        values.extend(g.region_ops(region).flat_map(|op| g.op(op).results.iter().copied()));
        let index: IdMap<ValueId, usize> = values.iter().copied().zip(0..).collect();
        let domains = values.iter().map(|v| domain(g, *v, devices)).collect();
        let ports = |values: &[ValueId], outer: &[ValueId], sides: &[(i64, bool)]| {
            let sliced = |i: usize| match i.checked_sub(states).map(|i| sides.get(i)) {
                None => Some(None),
                Some(side) => {
                    let rank = g.ty(*outer.get(i)?).as_tensor()?.rank()?;
                    Some(Some(u8::try_from(of_ops::shape::axis(side?.0, rank).ok()?).ok()?))
                }
            };
            let port = |(i, v): (usize, &ValueId)| Some(Port { value: index.get(v).copied(), sliced: sliced(i)? });
            values.iter().enumerate().map(port).collect::<Option<Vec<Port>>>()
        };
        let yields = g.yields(region);
        let mut body = Body {
            args: args.len(),
            domains,
            tables: Vec::new(),
            operands: ports(args, &data.operands, &inputs)?,
            results: ports(yields, &data.results, &outputs)?,
            values,
        };
        for op in g.region_ops(region).filter(|op| !is_source(g, *op)) {
            body.tables.push(table(g, op, &index, of_ops(g, op, devices)));
        }
        // A state keeps its layout from step to step.
        for (state, port) in body.results.iter().take(states).enumerate() {
            let rows = body.domains[state].iter().filter(|l| port.value.is_some() || **l == Sbp::Broadcast);
            let row = |l: &Sbp| Row { layouts: port.value.iter().map(|_| *l).chain([*l]).collect(), multiple: 0 };
            let rows = rows.map(row).collect();
            body.tables.push(Table { values: port.value.into_iter().chain([state]).collect(), rows });
        }
        Some(body)
    }

    /// A solution in which these values have these layouts, replicated where there is a choice.
    fn solve(&self, fixed: &[(usize, Sbp)]) -> Option<Solved> {
        let mut domains = self.domains.clone();
        for (value, layout) in fixed {
            domains[*value].retain(|l| l == layout);
        }
        let domains = self.complete(domains, 0)?;
        let mut out: Solved = domains.iter().map(|d| (d[0], 0)).collect();
        for Table { values, rows } in &self.tables {
            let is_taken = |r: &&Row| values.iter().zip(&r.layouts).all(|(v, l)| domains[*v][0] == *l);
            // Of equal rows the one that asks for least.
            let row = rows.iter().filter(is_taken).min_by_key(|r| (r.multiple != 0, -r.multiple))?;
            if let Some(first) = values.first() {
                out[*first].1 = gcd(out[*first].1, row.multiple);
            }
        }
        Some(out)
    }

    /// Chooses layouts from value `from` on; each domain of the result has one.
    fn complete(&self, mut domains: Vec<Vec<Sbp>>, from: usize) -> Option<Vec<Vec<Sbp>>> {
        if !self.propagate(&mut domains) {
            return None;
        }
        let Some(open) = (from..domains.len()).find(|v| domains[*v].len() > 1) else { return Some(domains) };
        domains[open].iter().find_map(|layout| {
            let mut tried = domains.clone();
            tried[open] = vec![*layout];
            self.complete(tried, open + 1)
        })
    }

    /// Removes layouts that no row of some table allows, until none is left to remove. Whether all values keep one.
    fn propagate(&self, domains: &mut [Vec<Sbp>]) -> bool {
        loop {
            let before: usize = domains.iter().map(Vec::len).sum();
            for Table { values, rows } in self.tables.iter().chain(self.tables.iter().rev()) {
                let allowed = |r: &&Row| values.iter().zip(&r.layouts).all(|(v, l)| domains[*v].contains(l));
                let rows: SmallVec<[&Row; 16]> = rows.iter().filter(allowed).collect();
                for (at, value) in values.iter().enumerate() {
                    domains[*value].retain(|l| rows.iter().any(|r| r.layouts[at] == *l));
                }
            }
            let after: usize = domains.iter().map(Vec::len).sum();
            if domains.iter().any(Vec::is_empty) {
                return false;
            }
            if before == after {
                return true;
            }
        }
    }

    /// The layouts of operands and results that a solution gives.
    fn signature(&self, solved: &Solved) -> Option<SbpSignature> {
        let outer = |ports: &[Port]| -> Vec<Sbp> {
            ports.iter().map(|p| p.outer(p.value.map_or(Sbp::Broadcast, |v| solved[v].0))).collect()
        };
        let multiple = solved.iter().fold(0, |all, (_, multiple)| gcd(all, *multiple));
        // Devices that divide 1 alone are one device.
        (multiple != 1)
            .then(|| SbpSignature::new(&outer(&self.operands), &outer(&self.results)).for_divisors_of(multiple))
    }
}

/// Whether no op decides the layout of what an op makes or reads: constants, and the end of the region.
fn is_source(g: &Graph, op: OpId) -> bool {
    let traits = g.op(op).def.traits();
    traits.constant || traits.terminator
}

/// The layouts that a value of a region may have.
fn domain(g: &Graph, v: ValueId, devices: usize) -> Vec<Sbp> {
    let mut out = vec![Sbp::Broadcast];
    let Some(t) = g.ty(v).as_tensor() else { return out };
    let dims = cost::extents(t, devices);
    let constant = g.constant(v);
    // Equal elements have equal slices, so that each device has the same constant. Elements smaller than a byte cannot be split.
    let has_equal_slices = |value: &Tensor| !value.dtype().is_packed() && value.is_splat();
    if let (Some(dims), true) = (dims, constant.as_ref().is_none_or(has_equal_slices)) {
        let splits = (0..dims.len()).filter_map(|d| u8::try_from(d).ok()).map(Sbp::Split);
        out.extend(splits.filter(|s| layout::fits(&[*s].into_iter().collect(), &[devices], &dims)));
    }
    let kinds = PartialKind::ALL.into_iter().filter(|kind| match &constant {
        Some(value) => *kind == PartialKind::Sum && value.is_zero(),
        None => true,
    });
    out.extend(kinds.map(Sbp::Partial));
    out
}

/// The signatures of an op, for those of its operands and results that are values of the region. The others are replicated.
fn table(g: &Graph, op: OpId, index: &IdMap<ValueId, usize>, mut list: Vec<SbpSignature>) -> Table {
    let data = g.op(op);
    let ports: Vec<Option<usize>> = data.operands.iter().chain(&data.results).map(|v| index.get(v).copied()).collect();
    let mut values: SmallVec<[usize; 4]> = SmallVec::new();
    for value in ports.iter().flatten() {
        if !values.contains(value) {
            values.push(*value);
        }
    }
    // They give the extents of the whole, which a part does not have. What the op captures is replicated.
    if matches!(data.name(), ShapeOf::NAME | Size::NAME) || g.captured(op).iter().any(|v| index.contains_key(v)) {
        list.truncate(1);
    }
    let row = |s: &SbpSignature| {
        let entries = || ports.iter().zip(s.operands.iter().chain(&s.results));
        let of = |value: usize| {
            let mut asked = entries().filter(|(port, _)| **port == Some(value)).map(|(_, layout)| *layout);
            let first = asked.next()?;
            asked.all(|layout| layout == first).then_some(first)
        };
        if entries().any(|(port, layout)| port.is_none() && *layout != Sbp::Broadcast) {
            return None;
        }
        Some(Row { layouts: values.iter().map(|v| of(*v)).collect::<Option<_>>()?, multiple: s.multiple })
    };
    let mut rows: Vec<Row> = list.iter().filter_map(row).collect();
    // Values that the op captures must be replicated, too.
    let captured: Vec<usize> = g.captured(op).iter().filter_map(|v| index.get(v).copied()).collect();
    for value in captured.into_iter().filter(|v| !values.contains(v)).collect::<Vec<_>>() {
        values.push(value);
        rows.iter_mut().for_each(|r| r.layouts.push(Sbp::Broadcast));
    }
    Table { values, rows }
}

/// The greatest common divisor; 0, which everything divides, is neutral.
fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
