//! The gradient of a scan or loop: a scan in reverse.
//!
//! The op is rewritten to also stack the values at the start of each iteration (a tape). The reverse scan visits the
//! iterations from last to first. From the saved values and the input slices it recomputes the iteration and its
//! gradients. Its states are the gradients of the states, and the sums of the gradients of captures.

use of_diag::{Code, Diagnostic, Location};
use of_ir::{Dim, Graph, OpId, RegionId, Rewriter, Type, ValueId};
use of_ops::OpSpec;
use of_ops::control::{Loop, Scan};
use of_ops::elementwise::Add;
use of_ops::list::as_op;
use of_ops::structural::Yield;

use super::region::{clone_body, vector_jacobian};
use super::{Tape, add_new, filled, is_float, resolve};

/// An axis, and whether it is scanned in reverse.
type Direction = (i64, bool);

/// A scan or loop in parts. The arguments of its region are control arguments (of a loop: iteration number and
/// condition), states, and slices of the inputs. It yields control values (of a loop: whether to continue), the next
/// states, and slices of the stacks.
struct Parts {
    op: OpId,
    body: RegionId,
    control_args: usize,
    control_yields: usize,
    /// Initial states.
    states: Vec<ValueId>,
    inputs: Vec<(ValueId, Direction)>,
    /// Final states, then the stacks.
    last: Vec<ValueId>,
    stacks: Vec<(ValueId, Direction)>,
}

impl Parts {
    fn of(g: &Graph, op: OpId) -> Option<Parts> {
        let data = g.op(op);
        let scan: Option<Scan> = as_op(g, op);
        let (control_args, control_yields, before) = if scan.is_some() { (0, 0, 0) } else { (2, 1, 2) };
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
            control_args,
            control_yields,
            states: states.to_vec(),
            inputs: inputs.iter().enumerate().map(input).collect(),
            last: last.to_vec(),
            stacks: stacks.iter().enumerate().map(stack).collect(),
        })
    }

    /// Arguments to save per iteration: control arguments and states.
    fn saved_args(&self) -> usize {
        self.control_args + self.states.len()
    }

    /// The same op with another region, whose stacks have these directions.
    fn with_region(&self, rw: &mut Rewriter<'_>, region: RegionId, stacks: &[Direction]) -> Result<OpId, Diagnostic> {
        let operands = rw.graph().op(self.op).operands.to_vec();
        if rw.graph().op(self.op).name() == Loop::NAME {
            return rw.create_with_regions(Loop {}, &operands, &[region]);
        }
        let inputs: Vec<Direction> = self.inputs.iter().map(|i| i.1).collect();
        rw.create_with_regions(scan_over(&inputs, stacks), &operands, &[region])
    }

    /// The first state that is not a tensor of one shape in all iterations, and so cannot be stacked.
    fn shape_changing_state(&self, g: &Graph) -> Option<usize> {
        let shape =
            |v: ValueId| g.ty(v).as_tensor().and_then(|t| t.shape.clone()).filter(|s| !s.iter().any(Dim::is_unknown));
        let (args, next) =
            (&g.region_args(self.body)[self.control_args..], &g.yields(self.body)[self.control_yields..]);
        (0..self.states.len()).find(|i| shape(args[*i]).is_none() || shape(args[*i]) != shape(next[*i]))
    }
}

/// A scan with these axes and directions of inputs and stacks.
fn scan_over(inputs: &[Direction], stacks: &[Direction]) -> Scan {
    let axes = |list: &[Direction]| Some(list.iter().map(|e| e.0).collect());
    let directions = |list: &[Direction]| Some(list.iter().map(|e| i64::from(e.1)).collect());
    Scan {
        num_scan_inputs: inputs.len() as i64,
        scan_input_axes: axes(inputs),
        scan_input_directions: directions(inputs),
        scan_output_axes: axes(stacks),
        scan_output_directions: directions(stacks),
    }
}

impl Tape {
    /// Propagates the gradients of the scan or loop `op` to its operands and captures.
    pub(super) fn repeat(&mut self, rw: &mut Rewriter<'_>, gradient: OpId, op: OpId) -> Result<(), Diagnostic> {
        let loc = rw.graph().op(op).loc.clone();
        let unsupported = |what: String| Diagnostic::error(Code::UNSUPPORTED, loc.clone(), what);
        let name = rw.graph().op(op).name();
        let parts =
            Parts::of(rw.graph(), op).ok_or_else(|| unsupported(format!("'{name}' does not match its region")))?;
        if let Some(i) = parts.shape_changing_state(rw.graph()) {
            let what =
                format!("'{name}' has no gradient: carried value {i} is not a tensor of one shape in all iterations");
            return Err(unsupported(what).hint("'infer-shapes' may infer the shape"));
        }
        let given = |tape: &Tape, v: &ValueId| tape.grads.get(v).copied();
        let of_last: Vec<Option<ValueId>> = parts.last.iter().map(|v| given(self, v)).collect();
        let of_stacks: Vec<Option<ValueId>> = parts.stacks.iter().map(|(v, _)| given(self, v)).collect();
        let (saved, parts) = save(rw, parts, &loc)?;
        rw.rewrite(parts.op, &[gradient]);
        rw.before(gradient);

        let float = |rw: &Rewriter<'_>, v: &ValueId| is_float(rw.graph(), *v);
        let float_states: Vec<usize> = (0..parts.states.len()).filter(|i| float(rw, &parts.states[*i])).collect();
        let reached: Vec<usize> =
            (0..parts.inputs.len()).filter(|i| self.active.contains(&parts.inputs[*i].0)).collect();
        let captures = self.active_captures(rw.graph(), parts.op);
        let stacked: Vec<(usize, ValueId)> =
            of_stacks.iter().enumerate().filter_map(|(j, g)| Some((j, (*g)?))).collect();

        // Its states: gradients of the states, and sums of the gradients of captures.
        let mut first = Vec::new();
        for i in &float_states {
            first.push(match of_last[*i] {
                Some(g) => g,
                None => filled(rw, 0.0, parts.last[*i])?,
            });
        }
        for v in &captures {
            first.push(filled(rw, 0.0, *v)?);
        }
        // It reads the inputs, the saved values and the gradients of stacks, in reverse.
        let reversed = |(axis, back): Direction| (axis, !back);
        let mut slices: Vec<ValueId> = parts.inputs.iter().map(|i| i.0).collect();
        slices.extend(&saved);
        slices.extend(stacked.iter().map(|(_, g)| *g));
        let mut over: Vec<Direction> = parts.inputs.iter().map(|i| reversed(i.1)).collect();
        over.extend(saved.iter().map(|_| (0, true)));
        over.extend(stacked.iter().map(|(j, _)| reversed(parts.stacks[*j].1)));
        let stacks: Vec<Direction> = reached.iter().map(|i| reversed(parts.inputs[*i].1)).collect();

        let of_body = rw.graph().region_args(parts.body).to_vec();
        let yielded = rw.graph().yields(parts.body)[parts.control_yields..].to_vec();
        let (begin, sliced) = of_body.split_at(parts.saved_args());
        let ty = |rw: &Rewriter<'_>, v: ValueId| rw.graph().ty(v).clone();
        let mut types: Vec<Type> = float_states.iter().map(|i| ty(rw, begin[parts.control_args + i])).collect();
        types.extend(captures.iter().map(|v| ty(rw, *v)));
        types.extend(sliced.iter().chain(begin).map(|v| ty(rw, *v)));
        types.extend(stacked.iter().map(|(j, _)| ty(rw, yielded[parts.states.len() + j])));
        let (region, made) = rw.region_with(|rw, region| -> Result<OpId, Diagnostic> {
            let args: Vec<ValueId> = types.into_iter().map(|ty| rw.add_arg(region, ty, None)).collect();
            let (by_states, rest) = args.split_at(float_states.len());
            let (sums, rest) = rest.split_at(captures.len());
            let (read, rest) = rest.split_at(parts.inputs.len());
            let (began, by_stacks) = rest.split_at(parts.saved_args());
            let results = clone_body(rw, parts.body, &[began, read].concat()).split_off(parts.control_yields);
            let of_states = float_states.iter().zip(by_states).map(|(i, g)| (results[*i], *g));
            let of_stacks = stacked.iter().zip(by_stacks).map(|((j, _), g)| (results[parts.states.len() + j], *g));
            let seeds: Vec<(ValueId, ValueId)> = of_states.chain(of_stacks).collect();
            let xs: Vec<ValueId> = float_states
                .iter()
                .map(|i| began[parts.control_args + i])
                .chain(captures.iter().copied())
                .chain(reached.iter().map(|i| read[*i]))
                .collect();
            let inner = vector_jacobian(rw, &seeds, &xs)?;
            let mut out = rw.graph().op(inner).results.to_vec();
            for (sum, own) in sums.iter().zip(&mut out[float_states.len()..]) {
                *own = rw.create_one(Add {}, &[*sum, *own])?;
            }
            rw.create(Yield {}, &out)?;
            Ok(inner)
        });
        let inner = made.map_err(|d| d.or_at(&loc))?;
        let operands = [first, slices].concat();
        let back = rw.create_with_regions(scan_over(&over, &stacks), &operands, &[region])?;
        if let Err(more) = resolve(rw, inner, Some(region)) {
            add_new(&mut self.errors, more);
        }
        rw.rewrite(parts.op, &[gradient]);
        rw.before(gradient);
        let results = rw.graph().op(back).results.to_vec();
        let of_states = float_states.iter().map(|i| parts.states[*i]);
        let to = of_states.chain(captures).chain(reached.iter().map(|i| parts.inputs[*i].0));
        for (v, g) in to.zip(results) {
            if self.active.contains(&v) {
                self.add(rw, v, g)?;
            }
        }
        Ok(())
    }
}

/// Rewrites the op to also stack the values at the start of each iteration. Returns these stacks and the new parts.
fn save(rw: &mut Rewriter<'_>, parts: Parts, loc: &Location) -> Result<(Vec<ValueId>, Parts), Diagnostic> {
    if parts.saved_args() == 0 {
        return Ok((Vec::new(), parts));
    }
    rw.rewrite(parts.op, &[]);
    // It is the same op, so it keeps its location and remains a forward op.
    rw.set_location(loc.clone());
    let of_body = rw.graph().region_args(parts.body).to_vec();
    let (region, made) = rw.region_with(|rw, region| {
        let mut args = Vec::new();
        for arg in &of_body {
            let (ty, name) = (rw.graph().ty(*arg).clone(), rw.graph().name(*arg).cloned());
            args.push(rw.add_arg(region, ty, name));
        }
        let mut yields = clone_body(rw, parts.body, &args);
        yields.extend(&args[..parts.saved_args()]);
        rw.create(Yield {}, &yields)
    });
    made?;
    let mut stacks: Vec<Direction> = parts.stacks.iter().map(|s| s.1).collect();
    stacks.extend((0..parts.saved_args()).map(|_| (0, false)));
    let new = parts.with_region(rw, region, &stacks)?;
    let results = rw.graph().op(new).results.to_vec();
    let (own, saved) = results.split_at(parts.last.len() + parts.stacks.len());
    // Keeps the old types where they say more than inference.
    let old: Vec<ValueId> = rw.graph().op(parts.op).results.to_vec();
    for (old, new) in old.iter().zip(own) {
        let ty = rw.graph().ty(*old).clone();
        rw.set_type(*new, ty);
    }
    rw.replace(parts.op, own);
    let mut parts = Parts::of(rw.graph(), new)
        .ok_or_else(|| Diagnostic::error(Code::CODEGEN, loc.clone(), "a scan or loop has no region"))?;
    parts.stacks.truncate(parts.stacks.len() - saved.len());
    Ok((saved.to_vec(), parts))
}
