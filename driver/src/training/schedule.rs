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
    /// It is multiplied by `factor` after every `period` of the training, which the steps of the warm-up are part of.
    Step {
        /// Part of the training, 0 to 1.
        period: f64,
        /// What it is multiplied by.
        factor: f64,
    },
    /// It rises from a 25th for 30 % of the training and falls to a 250,000th at the last step, both as half a cosine. Source: Smith and
    /// Topin, "Super-Convergence" (2018), as PyTorch's `OneCycleLR` with its defaults.
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
                let part = (step as f64 / total.max(1) as f64).min(1.0);
                // A period that ends with this step has ended, whatever its quotient is rounded to.
                let periods = part / period.max(1e-9) * (1.0 + 1e-12);
                self.rate * factor.powi(periods as i32)
            }
            ScheduleKind::OneCycle => {
                const RISE: f64 = 0.3;
                let (low, end) = (self.rate / 25.0, self.rate / 250_000.0);
                // The steps at which it is highest and lowest.
                let (highest, lowest) = (RISE * length as f64 - 1.0, length as f64 - 1.0);
                let step = ((step - self.warmup) as f64).min(lowest);
                if step <= highest {
                    half_cosine(low, self.rate, step / highest)
                } else {
                    half_cosine(self.rate, end, (step - highest) / (lowest - highest))
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
        assert!((cycle[0] - 0.04).abs() < 1e-12 && (cycle[29] - 1.0).abs() < 1e-12 && (cycle[99] - 4e-6).abs() < 1e-12);
    }

    #[test]
    fn the_warm_up_delays_no_step_of_the_schedule() {
        let schedule = Schedule { kind: ScheduleKind::Step { period: 0.25, factor: 0.5 }, rate: 1.0, warmup: 4 };
        let rates = [0, 3, 4, 9, 10, 19, 20, 39].map(|step| schedule.rate(step, 40));
        assert_eq!(rates, [0.25, 1.0, 1.0, 1.0, 0.5, 0.5, 0.25, 0.125]);
    }

    /// Rates of `torch.optim.lr_scheduler.OneCycleLR` for `max_lr=1`.
    #[test]
    fn one_cycle_is_torchs() {
        let of_torch: [&[f64]; 5] = [
            &[4e-6],
            &[0.811745653949763, 4e-6],
            &[0.9944154354509117, 0.46263710266697505, 4e-6],
            &[0.04, 0.811745653949763, 0.28306099820869923, 4e-6],
            &[
                0.04,
                0.52,
                1.0,
                0.9504846320134737,
                0.8117456539497631,
                0.6112620219362893,
                0.38874197806371075,
                0.18825834605023697,
                0.049519367986526286,
                4e-6,
            ],
        ];
        let schedule = Schedule { kind: ScheduleKind::OneCycle, rate: 1.0, warmup: 0 };
        for rates in of_torch {
            for (step, expected) in rates.iter().enumerate() {
                let rate = schedule.rate(step, rates.len());
                assert!((rate - expected).abs() < 1e-12, "step {step} of {}: {rate}, not {expected}", rates.len());
            }
        }
    }
}
