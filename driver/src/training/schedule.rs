//! Schedules of the learning rate.

/// How the learning rate changes during training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// What it does after the warm-up.
    pub kind: ScheduleKind,
    /// The rate at the end of the warm-up.
    pub rate: f64,
    /// Steps during which the rate rises linearly from 0.
    pub warmup: usize,
}

/// The course of the learning rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScheduleKind {
    /// It stays.
    Constant,
    /// It falls to 0 as this power of the part of the training that is left; linearly, where that is 1.
    Polynomial {
        /// The power, above 0.
        power: f64,
    },
    /// It falls as half a cosine. Source: Loshchilov and Hutter, "SGDR" (2017).
    Cosine {
        /// The rate at the end.
        floor: f64,
    },
    /// It is multiplied by `factor` after every `period` of the training.
    Step {
        /// Part of the training, 0 to 1.
        period: f64,
        /// What it is multiplied by.
        factor: f64,
    },
    /// It rises from a 25th for 30 % of the training and falls to a 250,000th, both as half a cosine. Source: Smith and Topin,
    /// "Super-Convergence" (2018), with PyTorch's defaults.
    OneCycle,
}

impl Schedule {
    /// The rate of step `step` (from 0) of `total`.
    pub fn rate(&self, step: usize, total: usize) -> f64 {
        if step < self.warmup {
            return self.rate * (step + 1) as f64 / self.warmup as f64;
        }
        let length = total.saturating_sub(self.warmup).max(1);
        let part = ((step - self.warmup) as f64 / length as f64).min(1.0);
        let half_cosine =
            |from: f64, to: f64, part: f64| to + (from - to) * (1.0 + (std::f64::consts::PI * part).cos()) / 2.0;
        match self.kind {
            ScheduleKind::Constant => self.rate,
            ScheduleKind::Polynomial { power } => self.rate * (1.0 - part).powf(power),
            ScheduleKind::Cosine { floor } => half_cosine(self.rate, floor, part),
            ScheduleKind::Step { period, factor } => {
                // A period that ends with this step has ended, whatever its quotient is rounded to.
                let periods = part / period.max(1e-9) * (1.0 + 1e-12);
                self.rate * factor.powi(periods as i32)
            }
            ScheduleKind::OneCycle => {
                const RISE: f64 = 0.3;
                let (low, end) = (self.rate / 25.0, self.rate / 250_000.0);
                if part < RISE {
                    half_cosine(low, self.rate, part / RISE)
                } else {
                    half_cosine(self.rate, end, (part - RISE) / (1.0 - RISE))
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_begin_and_end_as_they_say() {
        let rates = |kind, warmup| {
            let schedule = Schedule { kind, rate: 1.0, warmup };
            (0..=100).map(|step| schedule.rate(step, 100)).collect::<Vec<f64>>()
        };
        assert!(rates(ScheduleKind::Constant, 0).iter().all(|r| *r == 1.0));
        let warm = rates(ScheduleKind::Polynomial { power: 1.0 }, 10);
        assert_eq!((warm[0], warm[9], warm[10], warm[55], warm[100]), (0.1, 1.0, 1.0, 0.5, 0.0));
        let squared = rates(ScheduleKind::Polynomial { power: 2.0 }, 0);
        assert_eq!((squared[0], squared[50], squared[100]), (1.0, 0.25, 0.0));
        let cosine = rates(ScheduleKind::Cosine { floor: 0.0 }, 0);
        assert!((cosine[0], cosine[100]) == (1.0, 0.0) && (cosine[50] - 0.5).abs() < 1e-12);
        let floor = rates(ScheduleKind::Cosine { floor: 0.5 }, 0);
        assert!((floor[0], floor[100]) == (1.0, 0.5) && (floor[50] - 0.75).abs() < 1e-12);
        let thirds = ScheduleKind::Step { period: 1.0 / 3.0, factor: 0.5 };
        let rate = |step| Schedule { kind: thirds, rate: 1.0, warmup: 0 }.rate(step, 90);
        assert_eq!([29, 30, 59, 60, 89].map(rate), [1.0, 0.5, 0.5, 0.25, 0.25]);
        let step = rates(ScheduleKind::Step { period: 0.25, factor: 0.5 }, 0);
        assert_eq!((step[24], step[25], step[99]), (1.0, 0.5, 0.125));
        let cycle = rates(ScheduleKind::OneCycle, 0);
        assert!((cycle[0] - 0.04).abs() < 1e-12 && (cycle[30] - 1.0).abs() < 1e-12 && cycle[100] < 1e-5);
    }
}
