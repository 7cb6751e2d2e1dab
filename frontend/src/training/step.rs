//! The functions of a training: the step and the evaluation.

use of_diag::{Code, Diagnostic, Diagnostics};
use of_ir::{DType, Elements, Func, Module, OpId, Tensor, Type, ValueId};
use of_ops::elementwise::{Add, Cast, Div, Max, Mul, Sub};
use of_ops::list::as_op;
use of_ops::nn::{BatchNorm, BatchNormTraining};
use of_ops::structural::{Constant, Size};
use of_ops::training::Gradient;

use super::dropout::{randomize, replace};
use super::metrics::{Metric, metrics};
use super::parameters::{Variable, fixed_constants, parameter_inputs, statistics};
use super::update::{Trained, Updates, average_name};
use super::{Parameter, RATE, Role, TrainingSpec, plain};
use crate::Builder;

/// What changes the parameter of a name.
fn role(name: &str, statistics: &[String], spec: &TrainingSpec<'_>) -> Role {
    match (statistics.iter().any(|known| known == name), (spec.is_trained)(name)) {
        (true, _) => Role::Statistic,
        (false, true) => Role::Trained,
        (false, false) => Role::Frozen,
    }
}

/// The names of constants that stay constants, in the step and in the evaluation.
fn fixed(b: &Builder, outputs: &[ValueId], statistics: &[String], spec: &TrainingSpec<'_>) -> Vec<String> {
    fixed_constants(b.graph(), outputs, &|name| role(name, statistics, spec) == Role::Frozen)
}

/// The variable that evaluation reads for a parameter.
fn evaluated(name: &str, role: Role, spec: &TrainingSpec<'_>) -> String {
    match (role, spec.average) {
        (Role::Trained, Some(_)) => average_name(name),
        _ => name.to_owned(),
    }
}

pub(super) fn train_func(
    module: &Module,
    func: &Func,
    index: usize,
    spec: &TrainingSpec<'_>,
) -> Result<(Func, Vec<Parameter>, Vec<String>), Diagnostics> {
    let (mut b, mut outputs) = Builder::reopen(module, func.clone());
    let statistics = statistics(&b);
    let fixed = fixed(&b, &outputs, &statistics, spec);
    let inputs = parameter_inputs(&mut b, &outputs, &fixed, str::to_owned);
    let (mut variables, mut described, mut trained) = (Vec::new(), Vec::new(), Vec::new());
    for (name, variable, value) in inputs {
        let role = role(&name, &statistics, spec);
        let evaluated = evaluated(&name, role, spec);
        described.push(Parameter { name: name.clone(), elements: value.len(), role, evaluated });
        if role == Role::Trained {
            trained.push(Trained { name, index: variables.len(), value });
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
    normalize_by_batch(&mut b, &mut outputs, &mut variables)?;
    let labels = spec.loss.label_type(b.ty(outputs[index]))?;
    let labels = labels.map(|labels| b.input(&spec.labels, labels));
    let rate = b.input(RATE, Type::fixed(DType::F32, &[]));
    let mut updates = Updates::new(&mut b, spec, rate, &mut variables)?;
    let counts: Vec<ValueId> = std::iter::once(updates.before).chain(updates.accumulated).collect();
    randomize(&mut b, &mut outputs, &counts, spec.seed)?;
    let loss = spec.loss.build(&mut b, outputs[index], labels)?;
    let scaled = updates.scaled_loss(&mut b, loss)?;
    let operands: Vec<ValueId> =
        std::iter::once(scaled).chain(trained.iter().map(|t| variables[t.index].value)).collect();
    let gradients = b.op_all(Gradient {}, &operands)?;
    let gradients = updates.begin(&mut b, &trained, gradients, &mut variables)?;
    for (parameter, gradient) in trained.iter().zip(gradients) {
        updates.update(&mut b, parameter, gradient, &mut variables)?;
    }
    Ok((finish(b, variables, &[("loss", loss)])?, described, fixed))
}

pub(super) fn eval_func(
    module: &Module,
    func: &Func,
    index: usize,
    spec: &TrainingSpec<'_>,
) -> Result<(Func, Vec<Metric>), Diagnostics> {
    let (mut b, values) = Builder::reopen(module, func.clone());
    let statistics = statistics(&b);
    let fixed = fixed(&b, &values, &statistics, spec);
    let inputs = parameter_inputs(&mut b, &values, &fixed, |name| evaluated(name, role(name, &statistics, spec), spec));
    let variables: Vec<Variable> = inputs.into_iter().map(|(_, variable, _)| variable).collect();
    let output = values[index];
    let labels = spec.loss.label_type(b.ty(output))?;
    let labels = labels.map(|labels| b.input(&spec.labels, labels));
    let loss = spec.loss.build(&mut b, output, labels)?;
    let counted = labels.map(|labels| metrics(&mut b, spec.loss, output, labels, spec.top_k)).transpose()?;
    let counted = counted.unwrap_or_default();
    let mut outputs = vec![("loss", loss)];
    outputs.extend(counted.iter().map(|(metric, value)| (metric.output(), *value)));
    let own: Vec<&str> = outputs.iter().map(|(name, _)| *name).collect();
    let names = func.outputs.iter().zip(values).filter(|(name, _)| !own.contains(&name.as_str()));
    outputs.extend(names.map(|(name, value)| (name.as_str(), value)));
    Ok((finish(b, variables, &outputs)?, counted.into_iter().map(|(metric, _)| metric).collect()))
}

/// The function, with its variables.
fn finish(mut b: Builder, variables: Vec<Variable>, outputs: &[(&str, ValueId)]) -> Result<Func, Diagnostics> {
    for Variable { value, next, initial } in variables {
        b.declare(value, initial, next);
    }
    let mut module = b.finish(outputs)?;
    Ok(module.funcs.swap_remove("main").ok_or_else(|| plain(Code::NAME, "no function was built".into()))?)
}

/// The part of running statistics that a step keeps: PyTorch's default.
const KEPT: f64 = 0.9;

/// Makes batch normalisations use the statistics of the batch, and update the running ones.
fn normalize_by_batch(b: &mut Builder, outputs: &mut [ValueId], variables: &mut [Variable]) -> Result<(), Diagnostic> {
    let norms = b.graph().walk().into_iter().filter_map(|op| Some((op, as_op::<BatchNorm>(b.graph(), op)?)));
    for (op, norm) in norms.collect::<Vec<_>>() {
        let loc = b.graph().op(op).loc.clone();
        if norm.channels_last {
            let what = "batch normalisation of the last axis cannot be trained";
            return Err(Diagnostic::error(Code::UNSUPPORTED, loc, what));
        }
        let operands = b.graph().op(op).operands.to_vec();
        let training = BatchNormTraining { epsilon: norm.epsilon, momentum: KEPT };
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
        let variance = unbiased(b, op, [operands[0], operands[4], results[2]])?;
        if let Some(variable) = variables.iter_mut().find(|variable| variable.value == operands[4]) {
            variable.next = Some(variance);
        }
        replace(b, op, &results[..1], outputs);
    }
    Ok(())
}

/// The next running variance of PyTorch, in which the variance of a batch of `n` elements counts `n / (n - 1)` times as much as in ONNX.
/// Takes the input, the running variance and the next one of ONNX.
fn unbiased(b: &mut Builder, op: OpId, [x, old, next]: [ValueId; 3]) -> Result<ValueId, Diagnostic> {
    let dtype = b.ty(old).as_tensor().map_or(DType::F32, |t| t.dtype);
    let keep = Tensor::from_elements(dtype, Vec::new(), Elements::Float(vec![KEPT]));
    let keep = keep.map_err(|e| plain(Code::TYPE, e.to_string()))?;
    let one = b.op_before(op, Constant { value: Tensor::scalar(1i64) }, &[])?[0];
    let elements = b.op_before(op, Size {}, &[x])?[0];
    let channels = b.op_before(op, Size {}, &[old])?[0];
    let count = b.op_before(op, Div {}, &[elements, channels])?[0];
    let fewer = b.op_before(op, Sub {}, &[count, one])?[0];
    let fewer = b.op_before(op, Max {}, &[fewer, one])?[0];
    let count = b.op_before(op, Cast::to(dtype), &[count])?[0];
    let fewer = b.op_before(op, Cast::to(dtype), &[fewer])?[0];
    let factor = b.op_before(op, Div {}, &[count, fewer])?[0];
    let keep = b.op_before(op, Constant { value: keep }, &[])?[0];
    let kept = b.op_before(op, Mul {}, &[old, keep])?[0];
    let new = b.op_before(op, Sub {}, &[next, kept])?[0];
    let new = b.op_before(op, Mul {}, &[new, factor])?[0];
    Ok(b.op_before(op, Add {}, &[kept, new])?[0])
}
