//! Flags of `of-opt train` that concern one optimizer, loss or schedule.

use of_diag::{Code, Diagnostic, Diagnostics, Location};
use of_driver::training::{Hyperparameters, Loss, Schedule, ScheduleKind, Watch, WatchedMetric};
use of_driver::{count, error};

use super::train::{MonitorArg, ScheduleArg, Train};
use crate::exit;

/// A flag, whether it is given, and what it concerns.
type Use<'u> = (&'u str, bool, &'u [&'u str]);

/// Rejects flags that have no effect on the optimizer, the loss or the schedule.
///
/// # Errors
/// The first such flag, with what it is of.
pub fn check(c: &Train) -> Result<(), Diagnostics> {
    const ADAMS: &[&str] = &["adam", "adamw", "lamb"];
    const EPSILONS: &[&str] = &["adam", "adamw", "rmsprop", "adagrad", "adadelta", "lamb", "lars"];
    let of_optimizers: &[Use<'_>] = &[
        ("--momentum", c.momentum.is_some(), &["sgd", "rmsprop", "lars"]),
        ("--nesterov", c.nesterov, &["sgd"]),
        ("--betas", !c.betas.is_empty(), ADAMS),
        ("--eps", c.eps.is_some(), EPSILONS),
        ("--rmsprop-alpha", c.rmsprop_alpha.is_some(), &["rmsprop"]),
        ("--adadelta-rho", c.adadelta_rho.is_some(), &["adadelta"]),
        ("--lars-trust", c.lars_trust.is_some(), &["lars"]),
        ("--ftrl-beta", c.ftrl_beta.is_some(), &["ftrl"]),
        ("--ftrl-l1", c.ftrl_l1.is_some(), &["ftrl"]),
    ];
    let of_losses: &[Use<'_>] = &[
        ("--huber-delta", c.huber_delta.is_some(), &["huber"]),
        ("--ignore-index", c.ignore_index.is_some(), &["cross-entropy"]),
        ("--top-k", c.top_k.is_some(), &["cross-entropy", "soft-cross-entropy"]),
    ];
    let of_schedules: &[Use<'_>] = &[
        ("--schedule-power", c.schedule_power.is_some(), &["polynomial"]),
        ("--lr-step-size", c.lr_step_size.is_some(), &["step"]),
        ("--lr-gamma", c.lr_gamma.is_some(), &["step"]),
        ("--lr-min", c.lr_min.is_some(), &["cosine"]),
    ];
    for (of, own, uses) in [
        ("--optimizer", c.optimizer.as_str(), of_optimizers),
        ("--loss", c.loss.as_str(), of_losses),
        ("--schedule", c.schedule.name(), of_schedules),
    ] {
        if let Some((flag, _, takes)) = uses.iter().find(|(_, given, takes)| *given && !takes.contains(&own)) {
            let what = format!("{flag} is of {of} {}, and has no effect on '{own}'", takes.join(", "));
            let hint = match own.ends_with(".of") {
                true => "write it as a constant of the rule",
                false => "leave it out",
            };
            return Err(error(Code::INPUT, what).hint(hint).into());
        }
    }
    if !matches!(c.betas.len(), 0 | 2) {
        return Err(exit::usage("--betas takes two numbers, such as 0.9,0.999").into());
    }
    if c.top_k.is_some() && c.validation.is_empty() {
        return Err(exit::usage("--top-k is shown of validation data: give --validation").into());
    }
    let watches = c.patience.is_some() || c.keep_best;
    if watches && c.validation.is_empty() {
        return Err(exit::usage("--patience and --keep-best watch the validation: give --validation").into());
    }
    if !watches && (c.monitor.is_some() || c.min_delta.is_some()) {
        return Err(
            exit::usage("--monitor and --min-delta are of --patience and --keep-best: give one of these").into()
        );
    }
    if c.ignore_index.is_some() && c.mixup.is_some() {
        let what = "--ignore-index has no effect with --mixup, whose labels are probabilities";
        return Err(error(Code::INPUT, what).hint("leave one of them out").into());
    }
    Ok(())
}

/// What is done with the course of the validation.
pub fn watch(c: &Train) -> Option<Watch> {
    let metric = match c.monitor {
        None | Some(MonitorArg::Loss) => WatchedMetric::Loss,
        Some(MonitorArg::Accuracy) => WatchedMetric::Accuracy,
    };
    let watch = Watch { metric, patience: c.patience, min_delta: c.min_delta.unwrap_or(0.0), keep_best: c.keep_best };
    (c.patience.is_some() || c.keep_best).then_some(watch)
}

/// The numbers of the optimizer.
pub fn hyperparameters(c: &Train) -> Hyperparameters {
    // Both have one decay rate, that of the mean of squares.
    let second = c.rmsprop_alpha.or(c.adadelta_rho).map(|rate| (0.0, rate));
    Hyperparameters {
        momentum: c.momentum,
        nesterov: c.nesterov,
        weight_decay: c.weight_decay,
        betas: c.betas.first().copied().zip(c.betas.get(1).copied()).or(second),
        epsilon: c.eps,
        trust: c.lars_trust,
        beta: c.ftrl_beta,
        l1: c.ftrl_l1,
    }
}

/// Sets the numbers of a loss.
pub fn set_loss(c: &Train, loss: &mut Loss) {
    match loss {
        Loss::CrossEntropy { ignore, .. } => *ignore = c.ignore_index.unwrap_or(*ignore),
        Loss::Focal { alpha, gamma } => (*alpha, *gamma) = (Some(c.focal_alpha), c.focal_gamma),
        Loss::Huber { delta } => *delta = c.huber_delta.unwrap_or(*delta),
        Loss::Ctc { blank } => *blank = c.ctc_blank,
        Loss::Contrastive { temperature } => *temperature = c.temperature,
        Loss::CosineEmbedding { margin } => *margin = c.margin,
        _ => {}
    }
}

/// A warning where the learning rate has not risen when the training, of epochs of so many steps, ends.
pub fn late_warmup(c: &Train, steps: usize) -> Option<Diagnostic> {
    let total = steps.saturating_mul(c.epochs);
    let what = || {
        format!(
            "--warmup {} ends after the training, which has {}: the rate only rises",
            c.warmup,
            count(total, "step")
        )
    };
    (c.warmup >= total.max(1)).then(|| {
        Diagnostic::warning(Code::INPUT, Location::Unknown, what()).hint("give a smaller --warmup, or more --epochs")
    })
}

/// The course of the learning rate.
pub fn schedule(c: &Train) -> Schedule {
    let kind = match c.schedule {
        ScheduleArg::Constant => ScheduleKind::Constant,
        ScheduleArg::Linear => ScheduleKind::Polynomial { power: 1.0 },
        ScheduleArg::Polynomial => ScheduleKind::Polynomial { power: c.schedule_power.unwrap_or(2.0) },
        ScheduleArg::Cosine => ScheduleKind::Cosine { floor: c.lr_min.unwrap_or(0.0) },
        ScheduleArg::Step => {
            let period = c.lr_step_size.map_or(1.0 / 3.0, |epochs| epochs as f64 / c.epochs as f64);
            ScheduleKind::Step { period, factor: c.lr_gamma.unwrap_or(0.1) }
        }
        ScheduleArg::OneCycle => ScheduleKind::OneCycle,
    };
    Schedule { kind, rate: c.learning_rate, warmup: c.warmup }
}
