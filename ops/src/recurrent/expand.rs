//! Expansion of recurrent layers: one product for all steps, then a scan.

use of_diag::Diagnostic;
use of_ir::{DType, OpError, TensorType, Type, ValueId};

use super::activation::{Activation, Function};
use super::sequence::Form;
use crate::Expanded;
use crate::build::{Build, BuildResult, diagnostic};
use crate::contraction::MatMul;
use crate::control::Scan;
use crate::elementwise::{
    Clip, Elu, HardSigmoid, LeakyRelu, Lt, Relu, Select, Sigmoid, Softplus, Softsign, Tanh, ThresholdedRelu,
};
use crate::movement::{Concat, Gather, Range, ReverseSequence, Slice};
use crate::structural::{ShapeOf, Yield};

/// A layer.
pub(super) struct Layer<'p> {
    pub form: Form,
    /// How values are multiplied with weights.
    pub product: &'p Product<'p>,
    /// Gates; the rows of the weights are `gates * hidden`.
    pub gates: usize,
    /// States; the first is the result.
    pub states: usize,
}

/// The weights of one direction, as the cells need them.
pub(super) struct Cell {
    /// Number of the direction.
    pub direction: usize,
    /// Elements of a state.
    pub hidden: usize,
    /// The recurrence, `[hidden, gates * hidden]`.
    pub r: ValueId,
    /// Biases of the input and of the recurrence, `[gates * hidden]` each.
    pub bias: Option<(ValueId, ValueId)>,
}

/// Which weights a product is with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Weights {
    /// Those of the input.
    Input,
    /// Those of the state.
    Recurrence,
}

/// The product of a value and the matrix of a direction: values, which weights, the direction, the matrix.
pub(super) type Product<'p> = dyn Fn(&mut Build<'_, '_>, ValueId, (Weights, usize), ValueId) -> BuildResult + 'p;

/// The product of numbers of one type.
pub(super) fn plain(b: &mut Build<'_, '_>, x: ValueId, _: (Weights, usize), w: ValueId) -> BuildResult {
    b.op(MatMul {}, &[x, w])
}

impl Layer<'_> {
    /// Expands the layer. `prepare` gives what of the biases is added to the products of the inputs for all steps;
    /// `cell` gives the next states from the gates' share of the input, `[batch, gates * hidden]`, and the states.
    pub fn expand(
        &self,
        b: &mut Build<'_, '_>,
        operands: &[ValueId],
        prepare: impl Fn(&mut Build<'_, '_>, &Cell) -> Result<Option<ValueId>, Diagnostic>,
        cell: impl Fn(&mut Build<'_, '_>, &Cell, ValueId, &[ValueId]) -> Result<Vec<ValueId>, Diagnostic>,
    ) -> Expanded {
        let hidden = b.shape(operands[2]).and_then(|s| s.last()?.as_const()).and_then(|n| usize::try_from(n).ok());
        let hidden = hidden
            .ok_or_else(|| diagnostic(OpError::shape("the size of the state must be known to expand this op")))?;
        // From here on steps come first, then the batch.
        let x = if self.form.batch_first { b.transpose(operands[0], &[1, 0, 2])? } else { operands[0] };
        let lens = b.given(operands, 4);
        let mut all: Vec<Vec<ValueId>> = vec![Vec::new(); self.states + 1];
        for direction in 0..self.form.directions {
            let own = Cell {
                direction,
                hidden,
                r: matrix(b, operands[2], direction)?,
                bias: match b.given(operands, 3) {
                    Some(bias) => {
                        let bias = pick(b, bias, 0, direction)?;
                        let rows = self.gates * hidden;
                        Some((part(b, bias, 0, 0, rows)?, part(b, bias, 0, rows, 2 * rows)?))
                    }
                    None => None,
                },
            };
            let w = matrix(b, operands[1], direction)?;
            let mut gates = (self.product)(b, x, (Weights::Input, direction), w)?;
            if let Some(bias) = prepare(b, &own)? {
                gates = b.add(gates, bias)?;
            }
            let first = (0..self.states).map(|i| self.first(b, operands, i, &own)).collect::<Result<Vec<_>, _>>()?;
            let backward = self.form.reverse || direction == 1;
            let results = self.steps(b, &own, gates, first, lens, backward, &cell)?;
            all.iter_mut().zip(results).for_each(|(list, v)| list.push(v));
        }
        // [steps, directions, batch, hidden], and [directions, batch, hidden] for each state.
        let mut out = Vec::new();
        for (i, list) in all.into_iter().enumerate() {
            let axis = usize::from(i == 0);
            let parts = list.into_iter().map(|v| b.unsqueeze(v, &[axis])).collect::<Result<Vec<_>, _>>()?;
            let joined = if let [one] = parts[..] { one } else { b.op(Concat { axis: axis as i64 }, &parts)? };
            out.push(match (self.form.batch_first, i) {
                (false, _) => joined,
                (true, 0) => b.transpose(joined, &[2, 0, 1, 3])?,
                (true, _) => b.transpose(joined, &[1, 0, 2])?,
            });
        }
        Ok(out)
    }

    /// The first value of state `i`, `[batch, hidden]`.
    fn first(&self, b: &mut Build<'_, '_>, operands: &[ValueId], i: usize, own: &Cell) -> BuildResult {
        if let Some(given) = b.given(operands, 5 + i) {
            return pick(b, given, usize::from(self.form.batch_first), own.direction);
        }
        let batch = i64::from(!self.form.batch_first);
        let batch = b.op(ShapeOf { start: Some(batch), end: Some(batch + 1) }, &[operands[0]])?;
        let size = b.ints(&[own.hidden as i64])?;
        let dims = b.op(Concat { axis: 0 }, &[batch, size])?;
        let zero = b.number(0.0, operands[0])?;
        b.expand(zero, dims)
    }

    /// The outputs of all steps, `[steps, batch, hidden]`, and the last states. Sequences that are shorter than the
    /// longest keep their states behind their ends and give zeros there.
    #[allow(clippy::too_many_arguments, reason = "they are the operands of the op")]
    fn steps(
        &self,
        b: &mut Build<'_, '_>,
        own: &Cell,
        gates: ValueId,
        first: Vec<ValueId>,
        lens: Option<ValueId>,
        backward: bool,
        cell: &impl Fn(&mut Build<'_, '_>, &Cell, ValueId, &[ValueId]) -> Result<Vec<ValueId>, Diagnostic>,
    ) -> Result<Vec<ValueId>, Diagnostic> {
        let count = b.shape(gates).and_then(|s| s.first()?.as_const());
        let Some(lens) = lens else {
            if count == Some(1) {
                let now = b.squeeze(gates, &[0])?;
                let states = cell(b, own, now, &first)?;
                let y = b.unsqueeze(states[0], &[0])?;
                return Ok([y].into_iter().chain(states).collect());
            }
            return self.scan(b, &first, &[gates], backward, &|b, states, now| {
                let next = cell(b, own, now[0], states)?;
                Ok((next[0], next))
            });
        };
        let turn = ReverseSequence { time_axis: 0, batch_axis: 1 };
        let lens64 = b.cast(lens, DType::I64)?;
        let gates = if backward { b.op(turn.clone(), &[gates, lens64])? } else { gates };
        let (zero, one) = (b.ints(&[0])?, b.ints(&[1])?);
        let (zero, one) = (b.reshape(zero, &[])?, b.reshape(one, &[])?);
        let steps = b.op(ShapeOf { start: Some(0), end: Some(1) }, &[gates])?;
        let steps = b.reshape(steps, &[])?;
        let times = b.op(Range {}, &[zero, steps, one])?;
        let column = b.unsqueeze(lens64, &[1])?;
        let mut out = self.scan(b, &first, &[gates, times], false, &|b, states, now| {
            let next = cell(b, own, now[0], states)?;
            let runs = b.op(Lt {}, &[now[1], column])?;
            let none = b.number(0.0, next[0])?;
            let y = b.op(Select {}, &[runs, next[0], none])?;
            let kept = next.iter().zip(states).map(|(new, old)| b.op(Select {}, &[runs, *new, *old]));
            Ok((y, kept.collect::<Result<Vec<_>, _>>()?))
        })?;
        if backward {
            out[0] = b.op(turn, &[out[0], lens64])?;
        }
        Ok(out)
    }

    /// The outputs, stacked, and the last states of `step`, which gives an output and the next states.
    fn scan(
        &self,
        b: &mut Build<'_, '_>,
        first: &[ValueId],
        slices: &[ValueId],
        backward: bool,
        step: &Step<'_>,
    ) -> Result<Vec<ValueId>, Diagnostic> {
        let states: Vec<Type> = first.iter().map(|v| b.rw.graph().ty(*v).clone()).collect();
        let slice = |v: &ValueId| {
            let mut t = b.rw.graph().ty(*v).as_tensor().cloned().unwrap_or(TensorType::unranked(DType::F32));
            if let Some(s) = t.shape.as_mut().filter(|s| !s.is_empty()) {
                s.remove(0);
            }
            Type::Tensor(t)
        };
        let types: Vec<Type> = states.into_iter().chain(slices.iter().map(slice)).collect();
        let (region, filled) = b.rw.region_with(|rw, region| {
            let args: Vec<ValueId> = types.into_iter().map(|ty| rw.add_arg(region, ty, None)).collect();
            let (states, now) = args.split_at(first.len());
            let (y, next) = step(&mut Build::new(rw), states, now)?;
            let yields: Vec<ValueId> = next.into_iter().chain([y]).collect();
            rw.create(Yield {}, &yields)
        });
        filled?;
        let scan = Scan {
            num_scan_inputs: slices.len() as i64,
            scan_input_axes: None,
            scan_input_directions: Some(vec![i64::from(backward); slices.len()]),
            scan_output_axes: None,
            scan_output_directions: Some(vec![i64::from(backward)]),
        };
        let operands: Vec<ValueId> = first.iter().chain(slices).copied().collect();
        let op = b.rw.create_with_regions(scan, &operands, &[region])?;
        let mut results = b.rw.graph().op(op).results.to_vec();
        results.rotate_right(1);
        Ok(results)
    }
}

/// The output and the next states from the states and the slices of a step.
type Step<'s> = dyn Fn(&mut Build<'_, '_>, &[ValueId], &[ValueId]) -> Result<(ValueId, Vec<ValueId>), Diagnostic> + 's;

/// The slice at `index` of an axis.
pub(super) fn pick(b: &mut Build<'_, '_>, x: ValueId, axis: usize, index: usize) -> BuildResult {
    let index = b.ints(&[index as i64])?;
    let index = b.reshape(index, &[])?;
    b.op(Gather { axis: axis as i64 }, &[x, index])
}

/// Elements `from..to` of an axis.
pub(super) fn part(b: &mut Build<'_, '_>, x: ValueId, axis: usize, from: usize, to: usize) -> BuildResult {
    let (from, to, axis) = (b.ints(&[from as i64])?, b.ints(&[to as i64])?, b.ints(&[axis as i64])?);
    b.op(Slice {}, &[x, from, to, axis])
}

/// The weights of a direction, `[in, rows]`.
fn matrix(b: &mut Build<'_, '_>, w: ValueId, direction: usize) -> BuildResult {
    let own = pick(b, w, 0, direction)?;
    b.transpose(own, &[1, 0])
}

/// Gate number `i` of `[batch, gates * hidden]`.
pub(super) fn gate(b: &mut Build<'_, '_>, gates: ValueId, own: &Cell, i: usize) -> BuildResult {
    part(b, gates, 1, i * own.hidden, (i + 1) * own.hidden)
}

/// An activation, its operand bounded first.
pub(super) fn apply(b: &mut Build<'_, '_>, f: Activation, clip: Option<f64>, x: ValueId) -> BuildResult {
    let x = match clip {
        Some(c) => {
            let (low, high) = (b.number(-c.abs(), x)?, b.number(c.abs(), x)?);
            b.op(Clip {}, &[x, low, high])?
        }
        None => x,
    };
    let Activation { function, alpha, beta } = f;
    match function {
        Function::Relu => b.op(Relu {}, &[x]),
        Function::Tanh => b.op(Tanh {}, &[x]),
        Function::Sigmoid => b.op(Sigmoid {}, &[x]),
        Function::Affine => {
            let scaled = b.scale(x, alpha)?;
            b.add_number(scaled, beta)
        }
        Function::LeakyRelu => b.op(LeakyRelu { alpha }, &[x]),
        Function::ThresholdedRelu => b.op(ThresholdedRelu { alpha }, &[x]),
        Function::ScaledTanh => {
            let scaled = b.scale(x, beta)?;
            let y = b.op(Tanh {}, &[scaled])?;
            b.scale(y, alpha)
        }
        Function::HardSigmoid => b.op(HardSigmoid { alpha, beta }, &[x]),
        Function::Elu => b.op(Elu { alpha }, &[x]),
        Function::Softsign => b.op(Softsign {}, &[x]),
        Function::Softplus => b.op(Softplus {}, &[x]),
    }
}
