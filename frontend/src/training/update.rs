//! From gradients to the next values of parameters: scaling of the loss, accumulation, limits, the optimizer, masks, averages.

use of_diag::{Code, Diagnostic};
use of_ir::{Attr, DType, Tensor, Type, ValueId};
use of_ops::elementwise::{And, Ge, Le, Max, Min, Select};

use super::arithmetic::{Arithmetic, ValueResult};
use super::parameters::Variable;
use super::{
    ACCUMULATED, COUNT, Clipping, LOSS_SCALE, LOSS_SCALE_AGE, LossScale, Optimizer, StepNumbers, TrainingSpec, plain,
};
use crate::Builder;

/// The variable of a parameter's running average.
pub(super) fn average_name(parameter: &str) -> String {
    format!("{parameter}.average")
}

/// A parameter that the optimizer changes.
pub(super) struct Trained {
    /// Its name.
    pub name: String,
    /// Its place among the variables.
    pub index: usize,
    /// Its first value.
    pub value: Tensor,
}

/// The updates of a step.
pub(super) struct Updates<'s> {
    spec: &'s TrainingSpec<'s>,
    /// The optimizer for parameters without weight decay.
    undecayed: Option<Box<dyn Optimizer>>,
    rate: ValueId,
    /// The number of this update, from 1.
    count: ValueId,
    /// Its place among the variables.
    count_index: usize,
    /// The number of updates before this one: an input.
    pub before: ValueId,
    /// The number of steps since the last update, where several make one.
    pub accumulated: Option<ValueId>,
    /// The scale of the loss, and its age in updates.
    scale: Option<(ValueId, ValueId)>,
    /// Whether parameters change in this step; `None` where they always do.
    condition: Option<ValueId>,
}

impl<'s> Updates<'s> {
    /// Declares the variables that all parameters share.
    pub fn new(
        b: &mut Builder,
        spec: &'s TrainingSpec<'s>,
        rate: ValueId,
        variables: &mut Vec<Variable>,
    ) -> Result<Self, Diagnostic> {
        let number = |b: &mut Builder, name: &str| b.input(name, Type::fixed(DType::F32, &[]));
        let old = number(b, COUNT);
        let count = Arithmetic::new(b).plus(old, 1.0)?;
        let count_index = variables.len();
        variables.push(Variable::zeros(old, count));
        let accumulated = (spec.accumulate > 1).then(|| number(b, ACCUMULATED));
        let scale = spec.loss_scale.map(|_| (number(b, LOSS_SCALE), number(b, LOSS_SCALE_AGE)));
        Ok(Updates {
            spec,
            undecayed: spec.optimizer.without_decay(),
            rate,
            count,
            count_index,
            before: old,
            accumulated,
            scale,
            condition: None,
        })
    }

    /// The loss that is differentiated.
    pub fn scaled_loss(&self, b: &mut Builder, loss: ValueId) -> ValueResult {
        let Some((scale, _)) = self.scale else { return Ok(loss) };
        let b = &mut Arithmetic::new(b);
        let scale = b.cast(scale, b.dtype(loss))?;
        b.mul(loss, scale)
    }

    /// The gradients that updates use, from those of the scaled loss. Decides whether parameters change.
    pub fn begin(
        &mut self,
        b: &mut Builder,
        trained: &[Trained],
        mut gradients: Vec<ValueId>,
        variables: &mut Vec<Variable>,
    ) -> Result<Vec<ValueId>, Diagnostic> {
        if let Some((scale, _)) = self.scale {
            let b = &mut Arithmetic::new(b);
            for g in &mut gradients {
                let scale = b.cast(scale, b.dtype(*g))?;
                *g = b.div(*g, scale)?;
            }
        }
        let due = self.accumulate(b, trained, &mut gradients, variables)?;
        self.condition = match (self.spec.loss_scale, self.scale) {
            (Some(rule), Some(scale)) => Some(self.rescale(b, rule, scale, due, &gradients, variables)?),
            _ => due,
        };
        // The count of updates stays where there is none.
        let count = &mut variables[self.count_index];
        count.next = Some(self.chosen(b, self.count, count.value)?);
        clipped(b, gradients, self.spec.clipping)
    }

    /// Adds gradients to those of the steps before, and returns whether they make an update.
    fn accumulate(
        &self,
        b: &mut Builder,
        trained: &[Trained],
        gradients: &mut [ValueId],
        variables: &mut Vec<Variable>,
    ) -> Result<Option<ValueId>, Diagnostic> {
        let Some(old) = self.accumulated else { return Ok(None) };
        let steps = self.spec.accumulate;
        let (due, next) = {
            let b = &mut Arithmetic::new(b);
            let next = b.plus(old, 1.0)?;
            let all = b.number(steps as f64, next)?;
            let due = b.op(Ge {}, &[next, all])?;
            let zero = b.number(0.0, next)?;
            (due, b.op(Select {}, &[due, zero, next])?)
        };
        variables.push(Variable::zeros(old, next));
        for (parameter, gradient) in trained.iter().zip(gradients) {
            let ty = b.ty(*gradient).clone();
            let before = b.input(&format!("{}.gradient", parameter.name), ty);
            let b = &mut Arithmetic::new(b);
            let part = b.scale(*gradient, 1.0 / steps as f64)?;
            *gradient = b.add(before, part)?;
            let zero = b.number(0.0, before)?;
            let next = b.op(Select {}, &[due, zero, *gradient])?;
            variables.push(Variable::zeros(before, next));
        }
        Ok(Some(due))
    }

    /// The next scale of the loss; returns whether parameters change: where gradients are finite.
    fn rescale(
        &self,
        b: &mut Builder,
        rule: LossScale,
        (scale, age): (ValueId, ValueId),
        due: Option<ValueId>,
        gradients: &[ValueId],
        variables: &mut Vec<Variable>,
    ) -> ValueResult {
        let b = &mut Arithmetic::new(b);
        // A sum of magnitudes is finite if all of them are, and no comparison with what is no number holds.
        let mut total = None;
        for g in gradients {
            let size = b.abs(*g)?;
            let sum = b.sum(size)?;
            let sum = b.cast(sum, DType::F32)?;
            total = Some(match total {
                None => sum,
                Some(total) => b.add(total, sum)?,
            });
        }
        let total = total.ok_or_else(|| plain(Code::UNSUPPORTED, "no parameter has a gradient".into()))?;
        let largest = b.number(f64::from(f32::MAX), total)?;
        let finite = b.op(Le {}, &[total, largest])?;
        let older = b.plus(age, 1.0)?;
        let interval = b.number(f64::from(rule.interval), older)?;
        let rises = b.op(Ge {}, &[older, interval])?;
        let (higher, lower) = (b.scale(scale, rule.growth)?, b.scale(scale, rule.backoff)?);
        let kept = b.op(Select {}, &[rises, higher, scale])?;
        let mut next = b.op(Select {}, &[finite, kept, lower])?;
        let zero = b.number(0.0, older)?;
        let kept = b.op(Select {}, &[rises, zero, older])?;
        let mut next_age = b.op(Select {}, &[finite, kept, zero])?;
        let mut condition = finite;
        if let Some(due) = due {
            next = b.op(Select {}, &[due, next, scale])?;
            next_age = b.op(Select {}, &[due, next_age, age])?;
            condition = b.op(And {}, &[due, finite])?;
        }
        let initial = Attr::Tensor(Tensor::scalar(rule.initial as f32));
        variables.push(Variable { value: scale, next: Some(next), initial });
        variables.push(Variable::zeros(age, next_age));
        Ok(condition)
    }

    /// `new` where parameters change in this step, `old` otherwise.
    fn chosen(&self, b: &mut Builder, new: ValueId, old: ValueId) -> ValueResult {
        match self.condition {
            None => Ok(new),
            Some(condition) => b.op(Select {}, &[condition, new, old]),
        }
    }

    /// The next value of a parameter, of its states, and of its average.
    pub fn update(
        &self,
        b: &mut Builder,
        parameter: &Trained,
        gradient: ValueId,
        variables: &mut Vec<Variable>,
    ) -> Result<(), Diagnostic> {
        let Trained { name, index, value } = parameter;
        let optimizer = self.optimizer(name)?;
        let ty = Type::fixed(value.dtype(), value.dims());
        let states: Vec<ValueId> =
            optimizer.states().iter().map(|s| b.input(&format!("{name}.{s}"), ty.clone())).collect();
        let p = variables[*index].value;
        let step = {
            let b = &mut Arithmetic::new(b);
            StepNumbers { rate: b.cast(self.rate, value.dtype())?, count: b.cast(self.count, value.dtype())? }
        };
        let (mut updated, new) = optimizer.update(&mut Arithmetic::new(b), step, p, gradient, &states)?;
        if let Some(mask) = self.spec.masks.get(name) {
            let mask = b.constant(mask.clone())?;
            let zero = Arithmetic::new(b).number(0.0, updated)?;
            updated = b.op(Select {}, &[mask, updated, zero])?;
        }
        if let Some(decay) = self.spec.average {
            let average = b.input(&average_name(name), ty);
            let next = Arithmetic::new(b).running(average, updated, decay)?;
            let next = self.chosen(b, next, average)?;
            variables.push(Variable { value: average, next: Some(next), initial: Attr::Tensor(value.clone()) });
        }
        variables[*index].next = Some(self.chosen(b, updated, p)?);
        for (old, new) in states.into_iter().zip(new) {
            let next = self.chosen(b, new, old)?;
            variables.push(Variable::zeros(old, next));
        }
        Ok(())
    }

    fn optimizer(&self, parameter: &str) -> Result<&dyn Optimizer, Diagnostic> {
        if (self.spec.is_decayed)(parameter) {
            return Ok(self.spec.optimizer);
        }
        self.undecayed.as_deref().ok_or_else(|| {
            let what = format!(
                "the optimizer '{}' cannot leave out the weight decay of some parameters",
                self.spec.optimizer.name()
            );
            plain(Code::UNSUPPORTED, what).hint("implement `Optimizer::without_decay`")
        })
    }
}

/// Gradients within their limits.
fn clipped(b: &mut Builder, gradients: Vec<ValueId>, limits: Clipping) -> Result<Vec<ValueId>, Diagnostic> {
    let b = &mut Arithmetic::new(b);
    let gradients = match limits.value {
        None => gradients,
        Some(limit) => gradients.into_iter().map(|g| clipped_by_value(b, g, limit)).collect::<Result<_, _>>()?,
    };
    match limits.norm {
        None => Ok(gradients),
        Some(limit) => clipped_by_norm(b, gradients, limit),
    }
}

fn clipped_by_value(b: &mut Arithmetic<'_>, gradient: ValueId, limit: f64) -> ValueResult {
    let (low, high) = (b.number(-limit, gradient)?, b.number(limit, gradient)?);
    let bounded = b.op(Min {}, &[gradient, high])?;
    b.op(Max {}, &[bounded, low])
}

fn clipped_by_norm(b: &mut Arithmetic<'_>, gradients: Vec<ValueId>, limit: f64) -> Result<Vec<ValueId>, Diagnostic> {
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
