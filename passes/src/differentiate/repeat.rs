//! The derivative of what repeats its region, a scan or a loop: a scan the other way.
//!
//! The op is made to give what each turn began with as well. The scan the other way meets the turns from the last to the
//! first: of what a turn began with and the slices that it read, it computes the turn again, and its derivatives. Its
//! own states are the derivatives by the states, and the sums of those by values from outside.

use of_diag::{Code, Diagnostic, Location};
use of_ir::{Dim, Graph, OpId, RegionId, Rewriter, Type, ValueId};
use of_ops::OpSpec;
use of_ops::control::{Loop, Scan};
use of_ops::elementwise::Add;
use of_ops::list::as_op;
use of_ops::structural::Yield;

use super::region::{again, derivatives};
use super::{Tape, filled, is_float, resolve};

/// An axis, and whether it is passed from its end.
type Along = (i64, bool);

/// A scan or a loop in parts. The arguments of its region are what it is told (a loop: number and condition of the turn),
/// its states, and slices of the inputs; it yields what is asked of it (a loop: whether to go on), the next states, and
/// slices of the stacks.
struct Parts {
    op: OpId,
    body: RegionId,
    told: usize,
    asked: usize,
    /// The first states.
    states: Vec<ValueId>,
    inputs: Vec<(ValueId, Along)>,
    /// The last states, then the stacks.
    last: Vec<ValueId>,
    stacks: Vec<(ValueId, Along)>,
}

impl Parts {
    fn of(g: &Graph, op: OpId) -> Option<Parts> {
        let data = g.op(op);
        let scan: Option<Scan> = as_op(g, op);
        let (told, asked, before) = if scan.is_some() { (0, 0, 0) } else { (2, 1, 2) };
        let inputs = scan.as_ref().map_or(Some(0), |s| usize::try_from(s.num_scan_inputs).ok())?;
        let operands = data.operands.get(before..).unwrap_or_default();
        let (states, inputs) = operands.split_at(operands.len().checked_sub(inputs)?);
        let (last, stacks) = data.results.split_at(states.len());
        let along = |axes: Option<&Vec<i64>>, directions: Option<&Vec<i64>>, i: usize| {
            let entry = |list: Option<&Vec<i64>>| list.and_then(|l| l.get(i).copied()).unwrap_or(0);
            (entry(axes), entry(directions) == 1)
        };
        let scan = scan.as_ref();
        let input = |(i, v): (usize, &ValueId)| {
            let (axes, directions) = (scan.map(|s| &s.scan_input_axes), scan.map(|s| &s.scan_input_directions));
            (*v, along(axes.and_then(Option::as_ref), directions.and_then(Option::as_ref), i))
        };
        let stack = |(i, v): (usize, &ValueId)| {
            let (axes, directions) = (scan.map(|s| &s.scan_output_axes), scan.map(|s| &s.scan_output_directions));
            (*v, along(axes.and_then(Option::as_ref), directions.and_then(Option::as_ref), i))
        };
        Some(Parts {
            op,
            body: *data.regions.first()?,
            told,
            asked,
            states: states.to_vec(),
            inputs: inputs.iter().enumerate().map(input).collect(),
            last: last.to_vec(),
            stacks: stacks.iter().enumerate().map(stack).collect(),
        })
    }

    /// Arguments that a turn begins with: what it is told and its states.
    fn begins_with(&self) -> usize {
        self.told + self.states.len()
    }

    /// The same op with another region, whose stacks are these.
    fn remade(&self, rw: &mut Rewriter<'_>, region: RegionId, stacks: &[Along]) -> Result<OpId, Diagnostic> {
        let operands = rw.graph().op(self.op).operands.to_vec();
        if rw.graph().op(self.op).name() == Loop::NAME {
            return rw.create_with_regions(Loop {}, &operands, &[region]);
        }
        let inputs: Vec<Along> = self.inputs.iter().map(|i| i.1).collect();
        rw.create_with_regions(scan_over(&inputs, stacks), &operands, &[region])
    }

    /// The first state that is no tensor of one shape in all turns, so that what turns begin with is no tensor.
    fn changing(&self, g: &Graph) -> Option<usize> {
        let shape =
            |v: ValueId| g.ty(v).as_tensor().and_then(|t| t.shape.clone()).filter(|s| !s.iter().any(Dim::is_unknown));
        let (args, next) = (&g.region_args(self.body)[self.told..], &g.yields(self.body)[self.asked..]);
        (0..self.states.len()).find(|i| shape(args[*i]).is_none() || shape(args[*i]) != shape(next[*i]))
    }
}

/// A scan with these axes and directions, of inputs and of stacks.
fn scan_over(inputs: &[Along], stacks: &[Along]) -> Scan {
    let axes = |list: &[Along]| Some(list.iter().map(|e| e.0).collect());
    let directions = |list: &[Along]| Some(list.iter().map(|e| i64::from(e.1)).collect());
    Scan {
        num_scan_inputs: inputs.len() as i64,
        scan_input_axes: axes(inputs),
        scan_input_directions: directions(inputs),
        scan_output_axes: axes(stacks),
        scan_output_directions: directions(stacks),
    }
}

impl Tape {
    /// Carries the derivatives by the results of the scan or loop `op` to what it reads.
    pub(super) fn repeat(&mut self, rw: &mut Rewriter<'_>, gradient: OpId, op: OpId) -> Result<(), Diagnostic> {
        let loc = rw.graph().op(op).loc.clone();
        let unsupported = |what: String| Diagnostic::error(Code::UNSUPPORTED, loc.clone(), what);
        let name = rw.graph().op(op).name();
        let parts =
            Parts::of(rw.graph(), op).ok_or_else(|| unsupported(format!("'{name}' does not fit its region")))?;
        if let Some(i) = parts.changing(rw.graph()) {
            let what = format!("'{name}' has no gradient: carried value {i} is no tensor of one shape in all turns");
            return Err(unsupported(what).hint("infer-shapes may find what the shape is"));
        }
        let given = |tape: &Tape, v: &ValueId| tape.grads.get(v).copied();
        let of_last: Vec<Option<ValueId>> = parts.last.iter().map(|v| given(self, v)).collect();
        let of_stacks: Vec<Option<ValueId>> = parts.stacks.iter().map(|(v, _)| given(self, v)).collect();
        let (saved, parts) = save(rw, parts, &loc)?;
        rw.rewrite(parts.op, &[gradient]);
        rw.before(gradient);

        let float = |rw: &Rewriter<'_>, v: &ValueId| is_float(rw.graph(), *v);
        let moving: Vec<usize> = (0..parts.states.len()).filter(|i| float(rw, &parts.states[*i])).collect();
        let reached: Vec<usize> =
            (0..parts.inputs.len()).filter(|i| self.active.contains(&parts.inputs[*i].0)).collect();
        let outside = self.reached_outside(rw.graph(), parts.op);
        let stacked: Vec<(usize, ValueId)> =
            of_stacks.iter().enumerate().filter_map(|(j, g)| Some((j, (*g)?))).collect();

        // Its states: derivatives by the states, sums of those by values from outside.
        let mut first = Vec::new();
        for i in &moving {
            first.push(match of_last[*i] {
                Some(g) => g,
                None => filled(rw, 0.0, parts.last[*i])?,
            });
        }
        for v in &outside {
            first.push(filled(rw, 0.0, *v)?);
        }
        // It reads what the turns read, what they began with and the derivatives by what they gave, the last first.
        let turned = |(axis, back): Along| (axis, !back);
        let mut slices: Vec<ValueId> = parts.inputs.iter().map(|i| i.0).collect();
        slices.extend(&saved);
        slices.extend(stacked.iter().map(|(_, g)| *g));
        let mut over: Vec<Along> = parts.inputs.iter().map(|i| turned(i.1)).collect();
        over.extend(saved.iter().map(|_| (0, true)));
        over.extend(stacked.iter().map(|(j, _)| turned(parts.stacks[*j].1)));
        let stacks: Vec<Along> = reached.iter().map(|i| turned(parts.inputs[*i].1)).collect();

        let of_body = rw.graph().region_args(parts.body).to_vec();
        let yielded = rw.graph().yields(parts.body)[parts.asked..].to_vec();
        let (begin, sliced) = of_body.split_at(parts.begins_with());
        let ty = |rw: &Rewriter<'_>, v: ValueId| rw.graph().ty(v).clone();
        let mut types: Vec<Type> = moving.iter().map(|i| ty(rw, begin[parts.told + i])).collect();
        types.extend(outside.iter().map(|v| ty(rw, *v)));
        types.extend(sliced.iter().chain(begin).map(|v| ty(rw, *v)));
        types.extend(stacked.iter().map(|(j, _)| ty(rw, yielded[parts.states.len() + j])));
        let (region, made) = rw.region_with(|rw, region| -> Result<OpId, Diagnostic> {
            let args: Vec<ValueId> = types.into_iter().map(|ty| rw.add_arg(region, ty, None)).collect();
            let (by_states, rest) = args.split_at(moving.len());
            let (sums, rest) = rest.split_at(outside.len());
            let (read, rest) = rest.split_at(parts.inputs.len());
            let (began, by_stacks) = rest.split_at(parts.begins_with());
            let results = again(rw, parts.body, &[began, read].concat()).split_off(parts.asked);
            let of_states = moving.iter().zip(by_states).map(|(i, g)| (results[*i], *g));
            let of_stacks = stacked.iter().zip(by_stacks).map(|((j, _), g)| (results[parts.states.len() + j], *g));
            let seeds: Vec<(ValueId, ValueId)> = of_states.chain(of_stacks).collect();
            let xs: Vec<ValueId> = moving
                .iter()
                .map(|i| began[parts.told + i])
                .chain(outside.iter().copied())
                .chain(reached.iter().map(|i| read[*i]))
                .collect();
            let inner = derivatives(rw, &seeds, &xs)?;
            let mut out = rw.graph().op(inner).results.to_vec();
            for (sum, own) in sums.iter().zip(&mut out[moving.len()..]) {
                *own = rw.create_one(Add {}, &[*sum, *own])?;
            }
            rw.create(Yield {}, &out)?;
            Ok(inner)
        });
        let inner = made.map_err(|d| d.or_at(&loc))?;
        let operands = [first, slices].concat();
        let back = rw.create_with_regions(scan_over(&over, &stacks), &operands, &[region])?;
        resolve(rw, inner, Some(region))?;
        rw.rewrite(parts.op, &[gradient]);
        rw.before(gradient);
        let results = rw.graph().op(back).results.to_vec();
        let of_states = moving.iter().map(|i| parts.states[*i]);
        let to = of_states.chain(outside).chain(reached.iter().map(|i| parts.inputs[*i].0));
        for (v, g) in to.zip(results) {
            if self.active.contains(&v) {
                self.add(rw, v, g)?;
            }
        }
        Ok(())
    }
}

/// Puts an op in the place of another that also gives what each turn began with; gives these and the new parts.
fn save(rw: &mut Rewriter<'_>, parts: Parts, loc: &Location) -> Result<(Vec<ValueId>, Parts), Diagnostic> {
    if parts.begins_with() == 0 {
        return Ok((Vec::new(), parts));
    }
    rw.rewrite(parts.op, &[]);
    // It is the same op, and as little there for the gradients.
    rw.set_location(loc.clone());
    let of_body = rw.graph().region_args(parts.body).to_vec();
    let (region, made) = rw.region_with(|rw, region| {
        let mut args = Vec::new();
        for arg in &of_body {
            let (ty, name) = (rw.graph().ty(*arg).clone(), rw.graph().name(*arg).cloned());
            args.push(rw.add_arg(region, ty, name));
        }
        let mut yields = again(rw, parts.body, &args);
        yields.extend(&args[..parts.begins_with()]);
        rw.create(Yield {}, &yields)
    });
    made?;
    let mut stacks: Vec<Along> = parts.stacks.iter().map(|s| s.1).collect();
    stacks.extend((0..parts.begins_with()).map(|_| (0, false)));
    let new = parts.remade(rw, region, &stacks)?;
    let results = rw.graph().op(new).results.to_vec();
    let (own, saved) = results.split_at(parts.last.len() + parts.stacks.len());
    // What the old one's types say more than inference finds stays.
    let old: Vec<ValueId> = rw.graph().op(parts.op).results.to_vec();
    for (old, new) in old.iter().zip(own) {
        let ty = rw.graph().ty(*old).clone();
        rw.set_type(*new, ty);
    }
    rw.replace(parts.op, own);
    let mut parts = Parts::of(rw.graph(), new)
        .ok_or_else(|| Diagnostic::error(Code::CODEGEN, loc.clone(), "an op that repeats its region has none"))?;
    parts.stacks.truncate(parts.stacks.len() - saved.len());
    Ok((saved.to_vec(), parts))
}
