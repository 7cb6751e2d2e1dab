//! The derivative of a scan: a scan the other way.
//!
//! The scan is made to give the states before each step as well. The other scan meets the steps from the last to the
//! first: of the states before a step and the slices that it read, it computes the step again, and its derivatives. Its
//! own states are the derivatives by the states, and the sums of those by values from outside.

use std::collections::{HashMap, HashSet};

use of_diag::{Code, Diagnostic};
use of_ir::{Graph, OpId, RegionId, Rewriter, Type, ValueId};
use of_ops::control::Scan;
use of_ops::elementwise::{Add, Mul};
use of_ops::list::as_op;
use of_ops::reduction::ReduceSum;
use of_ops::structural::Yield;
use of_ops::training::Gradient;

use super::{Tape, filled, is_float, resolve};

/// A scan in parts.
struct Parts {
    op: OpId,
    scan: Scan,
    body: RegionId,
    /// The first states, then the scan inputs.
    states: Vec<ValueId>,
    inputs: Vec<ValueId>,
    /// The last states, then the stacks.
    last: Vec<ValueId>,
    stacks: Vec<ValueId>,
}

impl Parts {
    fn of(g: &Graph, op: OpId) -> Option<Parts> {
        let (scan, data): (Scan, _) = (as_op(g, op)?, g.op(op));
        let states = data.operands.len().checked_sub(usize::try_from(scan.num_scan_inputs).ok()?)?;
        let (states, inputs) = data.operands.split_at(states);
        let (last, stacks) = data.results.split_at(states.len());
        let body = data.regions[0];
        let [states, inputs, last, stacks] = [states, inputs, last, stacks].map(<[ValueId]>::to_vec);
        Some(Parts { op, scan, body, states, inputs, last, stacks })
    }

    /// Axis of scan input `i`, and whether it is read from its end.
    fn input(&self, i: usize) -> (i64, bool) {
        entries(&self.scan.scan_input_axes, &self.scan.scan_input_directions, i)
    }

    /// Axis of stack `i`, and whether it is filled from its end.
    fn stack(&self, i: usize) -> (i64, bool) {
        entries(&self.scan.scan_output_axes, &self.scan.scan_output_directions, i)
    }
}

fn entries(axes: &Option<Vec<i64>>, directions: &Option<Vec<i64>>, i: usize) -> (i64, bool) {
    let entry = |list: &Option<Vec<i64>>| list.as_ref().and_then(|l| l.get(i).copied()).unwrap_or(0);
    (entry(axes), entry(directions) == 1)
}

/// A scan with these axes and directions, of inputs and of stacks.
fn scan_over(inputs: &[(i64, bool)], stacks: &[(i64, bool)]) -> Scan {
    let axes = |list: &[(i64, bool)]| Some(list.iter().map(|e| e.0).collect());
    let directions = |list: &[(i64, bool)]| Some(list.iter().map(|e| i64::from(e.1)).collect());
    Scan {
        num_scan_inputs: inputs.len() as i64,
        scan_input_axes: axes(inputs),
        scan_input_directions: directions(inputs),
        scan_output_axes: axes(stacks),
        scan_output_directions: directions(stacks),
    }
}

/// The values from outside that the ops of a region read, each once.
pub(super) fn captured(g: &Graph, region: RegionId) -> Vec<ValueId> {
    let mut inside: HashSet<ValueId> = g.region_args(region).iter().copied().collect();
    let mut seen = Vec::new();
    for op in g.region_ops(region) {
        let data = g.op(op);
        let nested = data.regions.iter().flat_map(|r| captured(g, *r));
        for v in data.operands.iter().copied().chain(nested) {
            if !inside.contains(&v) && !seen.contains(&v) {
                seen.push(v);
            }
        }
        inside.extend(data.results.iter().copied());
    }
    seen
}

/// The ops of `body` again, where the rewriter stands, with `args` for its arguments; what they yield.
fn again(rw: &mut Rewriter<'_>, body: RegionId, args: &[ValueId]) -> Vec<ValueId> {
    let mut map: HashMap<ValueId, ValueId> =
        rw.graph().region_args(body).iter().copied().zip(args.iter().copied()).collect();
    let ops: Vec<OpId> = rw.graph().region_ops(body).collect();
    for op in ops {
        if !rw.graph().op(op).def.traits().terminator {
            rw.copy_op(op, &mut map);
        }
    }
    rw.graph().yields(body).iter().map(|v| map.get(v).copied().unwrap_or(*v)).collect()
}

/// The sum of the products of all elements; see [`Gradient`], which differentiates sums.
fn weighted(rw: &mut Rewriter<'_>, y: ValueId, g: ValueId) -> Result<ValueId, Diagnostic> {
    let product = rw.create_one(Mul {}, &[y, g])?;
    rw.create_one(ReduceSum { keepdims: false }, &[product])
}

impl Tape {
    /// Carries the derivatives by the results of the scan `op` to what it reads.
    pub(super) fn scan(&mut self, rw: &mut Rewriter<'_>, gradient: OpId, op: OpId) -> Result<(), Diagnostic> {
        let loc = rw.graph().op(op).loc.clone();
        let unsupported = |what: &str| Diagnostic::error(Code::UNSUPPORTED, loc.clone(), what);
        let parts = Parts::of(rw.graph(), op).ok_or_else(|| unsupported("a scan that does not fit its region"))?;
        let body = rw.graph().region_ops(parts.body);
        if body.map(|o| rw.graph().op(o)).any(|o| !o.regions.is_empty()) {
            return Err(unsupported(
                "a scan with regions in its own has no gradient, and a derivative passes through it",
            ));
        }
        let given = |tape: &Tape, list: &[ValueId]| -> Vec<Option<ValueId>> {
            list.iter().map(|v| tape.grads.get(v).copied()).collect()
        };
        let (of_last, of_stacks) = (given(self, &parts.last), given(self, &parts.stacks));
        let (saved, parts) = save(rw, parts)?;
        rw.rewrite(parts.op, &[gradient]);
        rw.before(gradient);

        let float = |rw: &Rewriter<'_>, v: &ValueId| is_float(rw.graph(), *v);
        let moving: Vec<usize> = (0..parts.states.len()).filter(|i| float(rw, &parts.states[*i])).collect();
        let reached: Vec<usize> = (0..parts.inputs.len()).filter(|i| self.active.contains(&parts.inputs[*i])).collect();
        let outside: Vec<ValueId> =
            captured(rw.graph(), parts.body).into_iter().filter(|v| self.active.contains(v) && float(rw, v)).collect();
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
        // It reads what the steps read, the states before them and the derivatives by what they gave, the last first.
        let mut slices = parts.inputs.clone();
        slices.extend(&saved);
        slices.extend(stacked.iter().map(|(_, g)| *g));
        let turned = |(axis, back): (i64, bool)| (axis, !back);
        let mut over: Vec<(i64, bool)> = (0..parts.inputs.len()).map(|i| turned(parts.input(i))).collect();
        over.extend(saved.iter().map(|_| (0, true)));
        over.extend(stacked.iter().map(|(j, _)| turned(parts.stack(*j))));
        let stacks: Vec<(i64, bool)> = reached.iter().map(|i| turned(parts.input(*i))).collect();

        let of_body = rw.graph().region_args(parts.body).to_vec();
        let yielded = rw.graph().yields(parts.body).to_vec();
        let ty = |rw: &Rewriter<'_>, v: ValueId| rw.graph().ty(v).clone();
        let mut types: Vec<Type> = moving.iter().map(|i| ty(rw, of_body[*i])).collect();
        types.extend(outside.iter().map(|v| ty(rw, *v)));
        types.extend(of_body[parts.states.len()..].iter().chain(&of_body[..parts.states.len()]).map(|v| ty(rw, *v)));
        types.extend(stacked.iter().map(|(j, _)| ty(rw, yielded[parts.states.len() + j])));
        let (region, made) = rw.region_with(|rw, region| -> Result<OpId, Diagnostic> {
            let args: Vec<ValueId> = types.into_iter().map(|ty| rw.add_arg(region, ty, None)).collect();
            let (by_states, rest) = args.split_at(moving.len());
            let (sums, rest) = rest.split_at(outside.len());
            let (read, rest) = rest.split_at(parts.inputs.len());
            let (before, by_stacks) = rest.split_at(parts.states.len());
            let results = again(rw, parts.body, &[before, read].concat());
            let seeds = moving.iter().zip(by_states).map(|(i, g)| (results[*i], *g));
            let seeds =
                seeds.chain(stacked.iter().zip(by_stacks).map(|((j, _), g)| (results[parts.states.len() + j], *g)));
            let mut y: Option<ValueId> = None;
            for (result, g) in seeds.collect::<Vec<_>>() {
                let part = weighted(rw, result, g)?;
                y = Some(match y {
                    Some(y) => rw.create_one(Add {}, &[y, part])?,
                    None => part,
                });
            }
            let y = y.ok_or_else(|| unsupported("a scan without floats has no gradient"))?;
            let xs = moving
                .iter()
                .map(|i| before[*i])
                .chain(outside.iter().copied())
                .chain(reached.iter().map(|i| read[*i]));
            let inner = rw.create(Gradient {}, &std::iter::once(y).chain(xs).collect::<Vec<_>>())?;
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
        resolve(rw, inner)?;
        rw.rewrite(parts.op, &[gradient]);
        rw.before(gradient);
        let results = rw.graph().op(back).results.to_vec();
        let to = moving.iter().map(|i| parts.states[*i]).chain(outside).chain(reached.iter().map(|i| parts.inputs[*i]));
        for (v, g) in to.zip(results) {
            if self.active.contains(&v) {
                self.add(rw, v, g)?;
            }
        }
        Ok(())
    }
}

/// Puts a scan in the place of another that also gives the states before each step; gives these and the new parts.
fn save(rw: &mut Rewriter<'_>, parts: Parts) -> Result<(Vec<ValueId>, Parts), Diagnostic> {
    if parts.states.is_empty() {
        return Ok((Vec::new(), parts));
    }
    rw.rewrite(parts.op, &[]);
    let of_body = rw.graph().region_args(parts.body).to_vec();
    let (region, made) = rw.region_with(|rw, region| {
        let mut args = Vec::new();
        for arg in &of_body {
            let (ty, name) = (rw.graph().ty(*arg).clone(), rw.graph().name(*arg).cloned());
            args.push(rw.add_arg(region, ty, name));
        }
        let mut yields = again(rw, parts.body, &args);
        yields.extend(&args[..parts.states.len()]);
        rw.create(Yield {}, &yields)
    });
    made?;
    let inputs: Vec<_> = (0..parts.inputs.len()).map(|i| parts.input(i)).collect();
    let mut stacks: Vec<_> = (0..parts.stacks.len()).map(|j| parts.stack(j)).collect();
    stacks.extend(parts.states.iter().map(|_| (0, false)));
    let operands = [parts.states.clone(), parts.inputs.clone()].concat();
    let new = rw.create_with_regions(scan_over(&inputs, &stacks), &operands, &[region])?;
    let results = rw.graph().op(new).results.to_vec();
    let (own, saved) = results.split_at(parts.last.len() + parts.stacks.len());
    // What the old one's types say more than inference finds stays.
    for (old, new) in parts.last.iter().chain(&parts.stacks).zip(own) {
        let ty = rw.graph().ty(*old).clone();
        rw.set_type(*new, ty);
    }
    rw.replace(parts.op, own);
    let parts = Parts::of(rw.graph(), new);
    let parts = parts.ok_or_else(|| Diagnostic::error(Code::CODEGEN, rw.graph().op(new).loc.clone(), "no scan"))?;
    Ok((saved.to_vec(), parts))
}
