//! From a model to its training step: parameters become variables, a loss and an optimizer are added.
//!
//! [`training`] makes two functions of a model that share their variables. `train` computes the loss and updates the parameters;
//! `eval` computes the loss and the outputs. Both keep the inputs of the model and add labels.

mod arithmetic;
mod loss;
mod optimizer;

pub use arithmetic::Arithmetic;
pub use loss::{LOSSES, Loss};
pub use optimizer::{
    Adadelta, Adagrad, Adam, Ftrl, Hyperparameters, Lamb, Lars, OPTIMIZERS, Optimizer, RmsProp, Sgd, StepNumbers, named,
};

use of_diag::{Code, Diagnostic, Diagnostics, Location};
use of_ir::{Attr, DType, Func, Module, OpId, Tensor, Type, ValueId};
use of_ops::elementwise::{Add, Max, Min};
use of_ops::list::as_op;
use of_ops::nn::{BatchNorm, BatchNormTraining};
use of_ops::structural::Constant;
use of_ops::training::{CARRIED, Gradient, INITIAL_VALUES, VARIABLES};

use crate::Builder;

/// The name of the input for the learning rate.
pub const RATE: &str = "learning_rate";
/// The name of the variable that counts steps.
pub const COUNT: &str = "step";

/// How a model is trained.
pub struct TrainingSpec<'s> {
    /// What is made small.
    pub loss: Loss,
    /// The output that the loss is of; `None` is the first.
    pub output: Option<String>,
    /// The name of the input for labels.
    pub labels: String,
    /// How parameters change.
    pub optimizer: &'s dyn Optimizer,
    /// Which parameters change, by name; the others keep their values.
    pub is_trained: &'s dyn Fn(&str) -> bool,
    /// Limits on gradients.
    pub clipping: Option<Clipping>,
}

/// Limits on gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Clipping {
    /// Every element is at most this large.
    Value(f64),
    /// The norm of all gradients together is at most this; otherwise all are scaled down.
    Norm(f64),
}

/// A model ready for training.
pub struct Training {
    /// Inputs of the model, labels, learning rate; gives the loss.
    pub train: Func,
    /// Inputs of the model and labels; gives the loss, the number of right labels where there are classes, and the outputs.
    pub eval: Func,
    /// The parameters.
    pub parameters: Vec<Parameter>,
}

/// A parameter of a model: a constant that training changes.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// The name of the constant, which is that of the variable.
    pub name: String,
    /// Number of elements.
    pub elements: usize,
    /// What changes it.
    pub role: Role,
}

/// What changes a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The optimizer.
    Trained,
    /// Nothing.
    Frozen,
    /// Nothing but batch normalisation: a running mean or variance.
    Statistic,
}

/// A variable under construction.
struct Variable {
    value: ValueId,
    next: Option<ValueId>,
    initial: Attr,
}

/// Makes the training step and the evaluation of a model.
///
/// Parameters are the float initializers of an ONNX model, or the named float constants of other models, of rank 1 or more.
/// Batch normalisations are by the statistics of the batch in `train`, whose running means are variables.
///
/// # Errors
/// When the model has no parameter to train, or the loss does not fit its output.
pub fn training(module: &Module, spec: &TrainingSpec<'_>) -> Result<Training, Diagnostics> {
    let func = module.main().ok_or_else(|| plain(Code::NAME, "the module has no function".into()))?;
    let index = match &spec.output {
        None => 0,
        Some(name) => func.outputs.iter().position(|output| output == name).ok_or_else(|| {
            let known = func.outputs.join(", ");
            plain(Code::NAME, format!("the model has no output '{name}'; there are {known}"))
        })?,
    };
    for taken in [spec.labels.as_str(), RATE, COUNT] {
        if func.inputs.iter().any(|input| input == taken) {
            let what = format!("the model has an input '{taken}', which training adds");
            return Err(plain(Code::NAME, what).hint("give labels another name").into());
        }
    }
    let (train, parameters) = train_func(module, func, index, spec)?;
    let eval = eval_func(module, func, index, spec)?;
    Ok(Training { train, eval, parameters })
}

fn plain(code: Code, what: String) -> Diagnostic {
    Diagnostic::error(code, Location::Unknown, what)
}

/// The constants that are parameters: name, op, value.
fn parameters(b: &Builder) -> Vec<(String, OpId, Tensor)> {
    let g = b.graph();
    let mut out: Vec<(String, OpId, Tensor)> = Vec::new();
    for op in g.region_ops(g.entry()) {
        let Some(Constant { value }) = as_op::<Constant>(g, op) else { continue };
        let result = g.op(op).results[0];
        let given = match &g.op(op).loc {
            Location::Onnx { op, .. } => &**op == "Initializer",
            _ => true,
        };
        let Some(name) = g.name(result).filter(|_| given) else { continue };
        let float = value.dtype().is_float() && !value.dims().is_empty() && value.bytes().is_some();
        if float && !g.uses(result).is_empty() && !out.iter().any(|(known, ..)| **known == **name) {
            out.push((name.to_string(), op, value));
        }
    }
    out
}

/// Names of the parameters that are statistics of batch normalisations, which training does not differentiate.
fn statistics(b: &Builder) -> Vec<String> {
    let g = b.graph();
    let norms = g.walk().into_iter().filter(|op| as_op::<BatchNorm>(g, *op).is_some());
    let of_norm = |op: OpId| g.op(op).operands[3..5].to_vec();
    norms.flat_map(of_norm).filter_map(|v| g.name(v).map(|name| name.to_string())).collect()
}

/// Makes inputs of parameters.
fn parameter_inputs(b: &mut Builder) -> Vec<(String, Variable, Tensor)> {
    let mut out = Vec::new();
    for (name, op, value) in parameters(b) {
        let old = b.graph().op(op).results[0];
        let input = b.input(&name, Type::fixed(value.dtype(), value.dims()));
        b.replace_uses(old, input);
        out.push((name, Variable { value: input, next: None, initial: Attr::Tensor(value.clone()) }, value));
    }
    out
}

fn train_func(
    module: &Module,
    func: &Func,
    index: usize,
    spec: &TrainingSpec<'_>,
) -> Result<(Func, Vec<Parameter>), Diagnostics> {
    let (mut b, outputs) = Builder::reopen(&module.name, func.clone());
    let statistics = statistics(&b);
    let inputs = parameter_inputs(&mut b);
    let (mut variables, mut described, mut trained) = (Vec::new(), Vec::new(), Vec::new());
    for (name, variable, value) in inputs {
        let role = match (statistics.contains(&name), (spec.is_trained)(&name)) {
            (true, _) => Role::Statistic,
            (false, true) => Role::Trained,
            (false, false) => Role::Frozen,
        };
        described.push(Parameter { name: name.clone(), elements: value.len(), role });
        if role == Role::Trained {
            trained.push((name, variables.len(), value));
        }
        variables.push(variable);
    }
    if trained.is_empty() {
        let all: Vec<_> = described.iter().take(8).map(|p| p.name.as_str()).collect();
        let what = match all.is_empty() {
            true => "the model has no parameters: no float initializers".to_string(),
            false => format!("all parameters are frozen: {}", all.join(", ")),
        };
        return Err(plain(Code::UNSUPPORTED, what).into());
    }
    normalize_by_batch(&mut b, &mut variables)?;
    let output = outputs[index];
    let labels = spec.loss.label_type(b.ty(output))?;
    let labels = b.input(&spec.labels, labels);
    let rate = b.input(RATE, Type::fixed(DType::F32, &[]));
    let loss = spec.loss.build(&mut b, output, labels)?;
    let operands: Vec<ValueId> =
        std::iter::once(loss).chain(trained.iter().map(|(_, i, _)| variables[*i].value)).collect();
    let gradients = b.op_all(Gradient {}, &operands)?;
    let gradients = clipped(&mut b, gradients, spec.clipping)?;
    let count = b.input(COUNT, Type::fixed(DType::F32, &[]));
    let one = b.constant(Tensor::scalar(1f32))?;
    let next = b.op(Add {}, &[count, one])?;
    variables.push(Variable { value: count, next: Some(next), initial: Attr::Int(0) });
    for ((name, parameter, value), gradient) in trained.into_iter().zip(gradients) {
        let ty = Type::fixed(value.dtype(), value.dims());
        let states = spec.optimizer.states();
        let states: Vec<ValueId> = states.iter().map(|s| b.input(&format!("{name}.{s}"), ty.clone())).collect();
        let p = variables[parameter].value;
        let (rate, count) = match value.dtype() {
            DType::F32 => (rate, next),
            dtype => (Arithmetic::new(&mut b).cast(rate, dtype)?, Arithmetic::new(&mut b).cast(next, dtype)?),
        };
        let step = StepNumbers { rate, count };
        let (updated, new) = spec.optimizer.update(&mut Arithmetic::new(&mut b), step, p, gradient, &states)?;
        variables[parameter].next = Some(updated);
        variables.extend(states.into_iter().zip(new).map(|(value, next)| Variable {
            value,
            next: Some(next),
            initial: Attr::Int(0),
        }));
    }
    Ok((finish(b, &variables, &[("loss", loss)])?, described))
}

fn eval_func(module: &Module, func: &Func, index: usize, spec: &TrainingSpec<'_>) -> Result<Func, Diagnostics> {
    let (mut b, values) = Builder::reopen(&module.name, func.clone());
    let variables: Vec<Variable> = parameter_inputs(&mut b).into_iter().map(|(_, variable, _)| variable).collect();
    let output = values[index];
    let labels = spec.loss.label_type(b.ty(output))?;
    let labels = b.input(&spec.labels, labels);
    let loss = spec.loss.build(&mut b, output, labels)?;
    let mut outputs = vec![("loss", loss)];
    if spec.loss.has_classes() {
        outputs.push(("correct", loss::correct(&mut b, spec.loss, output, labels)?));
    }
    let names = func.outputs.iter().zip(values).filter(|(name, _)| !matches!(name.as_str(), "loss" | "correct"));
    outputs.extend(names.map(|(name, value)| (name.as_str(), value)));
    finish(b, &variables, &outputs)
}

/// The function, with its variables.
fn finish(b: Builder, variables: &[Variable], outputs: &[(&str, ValueId)]) -> Result<Func, Diagnostics> {
    let position = |v: ValueId| b.graph().args().iter().position(|arg| *arg == v).map_or(-1, |i| i as i64);
    let listed: Vec<i64> = variables.iter().map(|variable| position(variable.value)).collect();
    let initial: Vec<Attr> = variables.iter().map(|variable| variable.initial.clone()).collect();
    let mut carried: Vec<i64> = vec![-1; outputs.len()];
    let mut all: Vec<(String, ValueId)> = outputs.iter().map(|(name, v)| ((*name).to_string(), *v)).collect();
    for (variable, input) in variables.iter().zip(&listed) {
        let Some(next) = variable.next else { continue };
        let name = b.graph().name(variable.value).map_or_else(String::new, |name| name.to_string());
        all.push((format!("{name}.next"), next));
        carried.push(*input);
    }
    let all: Vec<(&str, ValueId)> = all.iter().map(|(name, v)| (name.as_str(), *v)).collect();
    let mut module = b.finish(&all)?;
    let mut func = module.funcs.swap_remove("main").ok_or_else(|| plain(Code::NAME, "no function was built".into()))?;
    func.attrs.set(CARRIED, Attr::Ints(carried));
    func.attrs.set(VARIABLES, Attr::Ints(listed));
    func.attrs.set(INITIAL_VALUES, Attr::Array(initial));
    Ok(func)
}

/// Makes batch normalisations use the statistics of the batch, and update the running ones.
fn normalize_by_batch(b: &mut Builder, variables: &mut [Variable]) -> Result<(), Diagnostic> {
    let norms = b.graph().walk().into_iter().filter_map(|op| Some((op, as_op::<BatchNorm>(b.graph(), op)?)));
    for (op, norm) in norms.collect::<Vec<_>>() {
        let loc = b.graph().op(op).loc.clone();
        if norm.channels_last {
            let what = "batch normalisation of the last axis cannot be trained";
            return Err(Diagnostic::error(Code::UNSUPPORTED, loc, what));
        }
        let operands = b.graph().op(op).operands.to_vec();
        // PyTorch's default keeps nine tenths of the running statistics.
        let training = BatchNormTraining { epsilon: norm.epsilon, momentum: 0.9 };
        let results = b.op_before(op, training, &operands)?;
        for (operand, next) in operands[3..5].iter().zip(&results[1..]) {
            let variable = variables.iter_mut().find(|variable| variable.value == *operand);
            // The old op and the new one read it, and no other.
            let alone = b.graph().uses(*operand).len() == 2;
            let variable = variable.filter(|variable| variable.next.is_none() && alone).ok_or_else(|| {
                let what = "the statistics of this batch normalisation are computed, or shared with another one";
                Diagnostic::error(Code::UNSUPPORTED, loc.clone(), what).hint("export the model in training mode")
            })?;
            variable.next = Some(*next);
        }
        b.replace(op, &results[..1]);
    }
    Ok(())
}

/// Gradients within their limits.
fn clipped(b: &mut Builder, gradients: Vec<ValueId>, clipping: Option<Clipping>) -> Result<Vec<ValueId>, Diagnostic> {
    let b = &mut Arithmetic::new(b);
    match clipping {
        None => Ok(gradients),
        Some(Clipping::Value(limit)) => {
            let clip = |g: ValueId| {
                let (low, high) = (b.number(-limit, g)?, b.number(limit, g)?);
                let bounded = b.op(Min {}, &[g, high])?;
                b.op(Max {}, &[bounded, low])
            };
            gradients.into_iter().map(clip).collect()
        }
        Some(Clipping::Norm(limit)) => {
            let mut total = None;
            for g in &gradients {
                let square = b.square(*g)?;
                let sum = b.sum(square)?;
                let sum = b.cast(sum, DType::F32)?;
                total = Some(match total {
                    None => sum,
                    Some(total) => b.add(total, sum)?,
                });
            }
            let Some(total) = total else { return Ok(gradients) };
            let norm = b.sqrt(total)?;
            // As PyTorch's clip_grad_norm_.
            let shifted = b.plus(norm, 1e-6)?;
            let limit = b.number(limit, shifted)?;
            let ratio = b.div(limit, shifted)?;
            let one = b.number(1.0, ratio)?;
            let factor = b.op(Min {}, &[ratio, one])?;
            let scale = |g: ValueId| {
                let dtype = b.dtype(g);
                let factor = b.cast(factor, dtype)?;
                b.mul(g, factor)
            };
            gradients.into_iter().map(scale).collect()
        }
    }
}
