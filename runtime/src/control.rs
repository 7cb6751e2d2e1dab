//! Branches and loops: tasks that run other programs of the plan.

use of_plan::{ControlKind, ElementType, Program};

use crate::device::AlignedBytes;
use crate::objects::Objects;
use crate::task_context::{Context, Operand, RegisterRef};
use crate::{ExecError, RunError, Tensor, Value};

/// A loop that runs longer has no bound.
const MAX_ITERATIONS: i64 = 1 << 40;

/// A program that a branch or loop runs, with its memory and code. [`crate::Session`] implements it.
pub(crate) trait InnerProgram: Send {
    /// The program.
    fn program(&self) -> &Program;

    /// Runs it on these inputs.
    fn run(&mut self, inputs: Vec<Value>) -> Result<Vec<Value>, RunError>;

    /// Runs it on these inputs and reuses the memory of `outputs`.
    fn run_into(&mut self, inputs: &mut [Value], outputs: &mut [Value]) -> Result<(), RunError>;

    /// Memory for its outputs.
    fn new_outputs(&self) -> Vec<Value>;
}

/// A program with the inputs that it captures.
pub(crate) struct Body {
    pub program: Box<dyn InnerProgram>,
    /// Indices among the task's inputs.
    pub captures: Vec<usize>,
}

/// A branch or a loop with its operands.
pub(crate) struct ControlCall {
    pub kind: ControlKind,
    pub inputs: Vec<Operand>,
    /// For each operand, whether it is given.
    pub given: Vec<bool>,
    pub bodies: Vec<Body>,
    pub outputs: Vec<RegisterRef>,
}

impl ControlCall {
    pub fn run(&mut self, context: &Context<'_>) -> Result<(), RunError> {
        let values = match self.kind {
            ControlKind::If => self.branch(context)?,
            ControlKind::Loop => self.repeat(context)?,
        };
        if values.len() != self.outputs.len() {
            return Err(context.internal("has another number of results"));
        }
        self.outputs.iter().zip(values).try_for_each(|(place, value)| context.put(place, value))
    }

    /// Input number `i`, a copy.
    fn input(&self, i: usize, context: &Context<'_>) -> Result<Value, RunError> {
        self.inputs.get(i).ok_or_else(|| context.internal("lacks an input")).and_then(|input| context.value(input))
    }

    fn captured(&self, body: usize, context: &Context<'_>) -> Result<Vec<Value>, RunError> {
        self.bodies[body].captures.iter().map(|&i| self.input(i, context)).collect()
    }

    fn branch(&mut self, context: &Context<'_>) -> Result<Vec<Value>, RunError> {
        let condition = self.input(0, context)?;
        let taken = truth(&condition).ok_or_else(|| context.failed(bad("the condition is not one bool")))?;
        let body = usize::from(!taken);
        let inputs = self.captured(body, context)?;
        self.bodies[body].program.run(inputs)
    }

    fn repeat(&mut self, context: &Context<'_>) -> Result<Vec<Value>, RunError> {
        let mut at = 0;
        let mut next = |there: bool| {
            at += usize::from(there);
            there.then(|| at - 1)
        };
        let (limit, condition) = (next(self.given[0]), next(self.given[1]));
        let limit = limit.map(|i| self.input(i, context)).transpose()?;
        let limit = limit
            .map(|v| integer(&v).ok_or_else(|| context.failed(bad("the number of iterations is not one integer"))));
        let limit = limit.transpose()?.unwrap_or(i64::MAX);
        let condition = condition.map(|i| self.input(i, context)).transpose()?;
        let condition =
            condition.map(|v| truth(&v).ok_or_else(|| context.failed(bad("the condition is not one bool"))));
        let mut goes_on = condition.transpose()?.unwrap_or(true);

        let carried = self.given.len() - 2;
        let mut values = (0..carried).map(|i| self.input(at + i, context)).collect::<Result<Vec<_>, _>>()?;
        let captures = self.captured(0, context)?;
        let body = &mut self.bodies[0].program;
        let shape = |i: usize| body.program().inputs[i].dims.clone();
        let scalars = (shape(0), shape(1));
        let mut inputs = vec![Value::Optional(None), Value::Optional(None)];
        inputs.append(&mut values);
        inputs.extend(captures);
        let mut outputs = body.new_outputs();
        let stacks = outputs.len() - 1 - carried;
        let mut stacked: Vec<Stack> = (0..stacks).map(|_| Stack::default()).collect();
        let mut iteration = 0;
        while goes_on && iteration < limit {
            if iteration >= MAX_ITERATIONS {
                return Err(context.failed(bad("the loop does not end")));
            }
            inputs[0] = scalar(&scalars.0, &[iteration]).map_err(|e| context.failed(e.into()))?;
            inputs[1] = scalar(&scalars.1, &[goes_on]).map_err(|e| context.failed(e.into()))?;
            body.run_into(&mut inputs, &mut outputs)?;
            goes_on = truth(&outputs[0]).ok_or_else(|| context.failed(bad("the condition is not one bool")))?;
            for (stack, value) in stacked.iter_mut().zip(&outputs[1 + carried..]) {
                stack.push(value, limit, context.objects).map_err(|e| context.failed(e))?;
            }
            // What was carried in is room for what comes out next.
            for i in 0..carried {
                inputs[2 + i] = std::mem::replace(&mut outputs[1 + i], Value::Optional(None));
            }
            iteration += 1;
        }
        let mut results: Vec<Value> = inputs.drain(2..2 + carried).collect();
        for (i, stack) in stacked.into_iter().enumerate() {
            results.push(stack.finish(context.declared(&self.outputs[carried + i])).map_err(|e| context.failed(e))?);
        }
        Ok(results)
    }
}

/// Contiguous slices of one shape.
#[derive(Default)]
struct Stack {
    like: Option<(ElementType, Vec<i64>)>,
    /// Room for slices, and how many bytes of it they take.
    room: AlignedBytes,
    len: usize,
    count: i64,
}

/// Stacks that may become as large as this have room for all slices from the first on.
const WHOLE_STACK: usize = 256 << 20;

impl Stack {
    /// Adds a slice of a loop of at most `limit` iterations.
    fn push(&mut self, value: &Value, limit: i64, memory: &Objects) -> Result<(), ExecError> {
        let tensor = value.as_tensor().and_then(|t| Some((t, t.bytes()?)));
        let (tensor, bytes) = tensor.ok_or_else(|| bad("a scan output has no bytes"))?;
        let own = (tensor.dtype(), tensor.dims().to_vec());
        if self.like.get_or_insert_with(|| own.clone()) != &own {
            return Err(bad("scan outputs of different shapes"));
        }
        let end = self.len + bytes.len();
        if end > self.room.len() {
            let all =
                usize::try_from(limit).ok().and_then(|n| n.checked_mul(bytes.len())).filter(|n| *n <= WHOLE_STACK);
            let mut room = memory.allocate(all.unwrap_or(0).max(end).max(2 * self.len))?;
            room[..self.len].copy_from_slice(&self.room[..self.len]);
            self.room = room;
        }
        self.room[self.len..end].copy_from_slice(bytes);
        self.len = end;
        self.count += 1;
        Ok(())
    }

    /// The stack; without a slice it is empty, its other extents as declared.
    fn finish(self, declared: (ElementType, Vec<i64>)) -> Result<Value, ExecError> {
        let (dtype, mut dims) = match self.like {
            Some((dtype, mut dims)) => {
                dims.insert(0, self.count);
                (dtype, dims)
            }
            None => (declared.0, declared.1.into_iter().map(|d| d.max(0)).collect()),
        };
        match dims.first_mut() {
            Some(first) => *first = self.count,
            None => dims.push(self.count),
        }
        Ok(Tensor::new(dtype, dims, self.room.with_len(self.len))?.into())
    }
}

fn bad(what: &str) -> ExecError {
    ExecError::Input(what.into())
}

/// A tensor of one element, of rank 0 or of the rank that the program wants.
fn scalar<T: crate::Element>(dims: &[i64], element: &[T]) -> Result<Value, crate::ValueError> {
    let dims: Vec<i64> = dims.iter().map(|_| 1).collect();
    Ok(Tensor::from_elements(dims, element)?.into())
}

fn truth(value: &Value) -> Option<bool> {
    match value.as_tensor()?.to_elements::<bool>()?[..] {
        [one] => Some(one),
        _ => None,
    }
}

fn integer(value: &Value) -> Option<i64> {
    let tensor = value.as_tensor()?;
    let wide = || Some(tensor.to_elements::<i32>()?.into_iter().map(i64::from).collect());
    match tensor.to_elements::<i64>().or_else(wide)?[..] {
        [one] => Some(one),
        _ => None,
    }
}
