//! The course of the validation of a training: which epoch is the best, and when there is no improvement any more.

use of_diag::{Code, Diagnostics};

use super::Evaluation;
use crate::error::error;

/// What of an evaluation is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Metric {
    /// The loss, which becomes small.
    #[default]
    Loss,
    /// The part of right labels, which becomes large.
    Accuracy,
}

impl Metric {
    /// As in messages.
    pub fn name(self) -> &'static str {
        match self {
            Metric::Loss => "loss",
            Metric::Accuracy => "accuracy",
        }
    }
}

/// What is done with the course of the validation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Watch {
    /// What of each evaluation counts.
    pub metric: Metric,
    /// Epochs without an improvement after which the training ends.
    pub patience: Option<usize>,
    /// How much better than the best one a value must be to count as an improvement.
    pub min_delta: f64,
    /// Whether the results are those of the best epoch, rather than of the last one.
    pub keep_best: bool,
}

/// The epoch whose value is the best, from 0, and the value.
pub type Best = (usize, f64);

/// The values of all epochs so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct History {
    values: Vec<Option<f64>>,
}

impl History {
    /// Takes note of the value of an epoch; once more is no change, as it is the same value.
    ///
    /// # Errors
    /// When the evaluation lacks the metric.
    pub fn record(&mut self, watch: &Watch, epoch: usize, evaluation: &Evaluation) -> Result<(), Diagnostics> {
        let value = match watch.metric {
            Metric::Loss => Some(evaluation.loss),
            Metric::Accuracy => evaluation.accuracy,
        };
        let none = || error(Code::INPUT, "the loss of this training has no accuracy, which --monitor names");
        let value = value.ok_or_else(|| none().hint("--monitor loss watches the validation loss"))?;
        self.set(epoch, value);
        Ok(())
    }

    /// Sets the value of an epoch.
    pub fn set(&mut self, epoch: usize, value: f64) {
        if self.values.len() <= epoch {
            self.values.resize(epoch + 1, None);
        }
        self.values[epoch] = Some(value);
    }

    /// The value of an epoch, where it is known.
    pub fn get(&self, epoch: usize) -> Option<f64> {
        self.values.get(epoch).copied().flatten()
    }

    /// How many epochs have a value.
    pub fn known(&self) -> usize {
        self.values.iter().flatten().count()
    }

    /// The best epoch. A value that is no number is none.
    pub fn best(&self, watch: &Watch) -> Option<Best> {
        let mut best: Option<Best> = None;
        for (epoch, value) in self.values.iter().enumerate() {
            let Some(value) = value.filter(|value| !value.is_nan()) else { continue };
            let is_better = best.is_none_or(|(_, best)| match watch.metric {
                Metric::Loss => value < best - watch.min_delta,
                Metric::Accuracy => value > best + watch.min_delta,
            });
            if is_better {
                best = Some((epoch, value));
            }
        }
        best
    }

    /// Whether there was no improvement for as many epochs as the patience lasts.
    pub fn is_stale(&self, watch: &Watch) -> bool {
        let since = match self.best(watch) {
            Some((epoch, _)) => self.values.len() - 1 - epoch,
            None => self.values.len(),
        };
        watch.patience.is_some_and(|patience| since >= patience)
    }

    /// As text, from which [`History::parse`] makes the same values.
    pub fn text(&self, watch: &Watch) -> String {
        let value = |value: &Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:e}"));
        format!("{} {}", watch.metric.name(), self.values.iter().map(value).collect::<Vec<_>>().join(","))
    }

    /// The history that a snapshot has.
    ///
    /// # Errors
    /// When it is of another metric.
    pub fn parse(text: &str, watch: &Watch, place: &str) -> Result<History, Diagnostics> {
        let (metric, list) = text.split_once(' ').unwrap_or((text, ""));
        if metric != watch.metric.name() {
            let what = format!(
                "'{place}' is of a training with --monitor {metric}; this one has --monitor {}",
                watch.metric.name()
            );
            return Err(error(Code::INPUT, what).hint("go on with the same flag, or leave out --resume").into());
        }
        let values = list.split(',').filter(|text| !text.is_empty());
        Ok(History { values: values.map(|text| text.parse().ok()).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(values: &[f64]) -> History {
        let mut history = History::default();
        values.iter().enumerate().for_each(|(epoch, value)| history.set(epoch, *value));
        history
    }

    #[test]
    fn a_training_is_stale_after_epochs_without_improvement() {
        let watch = Watch { patience: Some(2), ..Watch::default() };
        assert_eq!(history(&[0.5, 0.4, 0.6]).best(&watch), Some((1, 0.4)));
        assert!(!history(&[0.5, 0.4, 0.6]).is_stale(&watch) && history(&[0.5, 0.4, 0.6, 0.4]).is_stale(&watch));
        // An improvement must be large enough, and a value that is no number is none.
        let coarse = Watch { min_delta: 0.2, ..watch };
        assert_eq!(history(&[0.5, 0.4, 0.25]).best(&coarse), Some((2, 0.25)));
        assert!(history(&[f64::NAN, f64::NAN]).is_stale(&watch) && history(&[f64::NAN]).best(&watch).is_none());
        let accuracy = Watch { metric: Metric::Accuracy, ..watch };
        assert_eq!(history(&[0.5, 0.9, 0.9]).best(&accuracy), Some((1, 0.9)));
        assert!(!History::default().is_stale(&watch));
    }

    #[test]
    fn a_snapshot_has_the_values_as_they_are() {
        let watch = Watch::default();
        let mut values = history(&[0.1, 1.0 / 3.0, f64::INFINITY]);
        values.set(4, 2e-300);
        assert_eq!(History::parse(&values.text(&watch), &watch, "s").unwrap(), values);
        assert_eq!(History::parse(&History::default().text(&watch), &watch, "s").unwrap(), History::default());
        let other = Watch { metric: Metric::Accuracy, ..watch };
        let wrong = History::parse(&values.text(&watch), &other, "s").unwrap_err().to_string();
        assert!(wrong.contains("'s' is of a training with --monitor loss; this one has --monitor accuracy"), "{wrong}");
    }
}
