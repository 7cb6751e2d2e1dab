//! Calibration ranges: the interval of values that the 256 quantization steps cover.

/// An interval that contains 0. Zero must be a step so that padding is exact.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Range {
    /// Lower end, 0 or below.
    pub low: f32,
    /// Upper end, 0 or above.
    pub high: f32,
}

impl Range {
    /// Scale and zero point.
    pub fn parameters(self) -> (f32, u8) {
        let width = self.high - self.low;
        if width <= 0.0 || !width.is_normal() {
            return (1.0, 0);
        }
        let scale = width / 255.0;
        (scale, (-self.low / scale).round().clamp(0.0, 255.0) as u8)
    }
}

/// A histogram of observed values. Its range grows by powers of two, so that nothing need be known in advance.
#[derive(Clone, PartialEq, Debug)]
pub struct Histogram {
    /// From `-limit` to `limit`.
    counts: Vec<u64>,
    limit: f32,
    low: f32,
    high: f32,
}

/// Bins on either side of 0.
const HALF: usize = 2048;

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: vec![0; 2 * HALF], limit: 0.0, low: 0.0, high: 0.0 }
    }
}

impl Histogram {
    /// Adds values. Non-finite ones are ignored.
    pub fn add(&mut self, numbers: &[f32]) {
        let (low, high) = numbers
            .iter()
            .filter(|x| x.is_finite())
            .fold((self.low, self.high), |(low, high), x| (low.min(*x), high.max(*x)));
        (self.low, self.high) = (low, high);
        self.extend(high.max(-low));
        if self.limit == 0.0 {
            self.counts[HALF] += numbers.len() as u64;
            return;
        }
        let per = HALF as f32 / self.limit;
        for x in numbers.iter().filter(|x| x.is_finite()) {
            let bin = (HALF as f32 + x * per).clamp(0.0, (2 * HALF - 1) as f32);
            self.counts[bin as usize] += 1;
        }
    }

    /// Extends the range to values of this size.
    fn extend(&mut self, size: f32) {
        if size > self.limit && self.limit == 0.0 {
            self.limit = power_of_two(size);
        }
        while size > self.limit {
            let mut wider = vec![0; 2 * HALF];
            for (i, n) in self.counts.iter().enumerate() {
                wider[HALF / 2 + i / 2] += n;
            }
            self.counts = wider;
            self.limit *= 2.0;
        }
    }

    /// The interval with the least squared error of rounding to 256 steps and clipping.
    pub fn range(&self) -> Range {
        let mut best = (f64::INFINITY, Range { low: self.low, high: self.high });
        for percent in (20..=100).rev() {
            let part = percent as f32 / 100.0;
            let range = Range { low: self.low * part, high: self.high * part };
            let error = self.error(range);
            if error < best.0 {
                best = (error, range);
            }
        }
        best.1
    }

    /// The sum of squared errors: a twelfth of the squared step inside, the squared distance outside.
    fn error(&self, range: Range) -> f64 {
        let (low, high) = (f64::from(range.low), f64::from(range.high));
        let step = (high - low) / 255.0;
        let width = f64::from(self.limit) / HALF as f64;
        let mut sum = 0.0;
        for (i, n) in self.counts.iter().enumerate().filter(|(_, n)| **n > 0) {
            let x = (i as f64 + 0.5 - HALF as f64) * width;
            let out = (low - x).max(x - high).max(0.0);
            // Zero is exact for any step, and most values after an activation are 0.
            let within = if (0.0..width).contains(&x) && low == 0.0 { 0.0 } else { step * step / 12.0 };
            sum += *n as f64 * if out > width { out * out } else { within };
        }
        sum
    }
}

/// The smallest power of two that is at least `x`, which is positive.
fn power_of_two(x: f32) -> f32 {
    let mut p = 1.0f32;
    while p < x && p < f32::MAX / 4.0 {
        p *= 2.0;
    }
    while p / 2.0 >= x && p > f32::MIN_POSITIVE * 4.0 {
        p /= 2.0;
    }
    p
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_is_represented_exactly() {
        assert_eq!(Range { low: 0.0, high: 255.0 }.parameters(), (1.0, 0));
        assert_eq!(Range { low: -127.5, high: 127.5 }.parameters(), (1.0, 128));
        assert_eq!(Range { low: -2.0, high: 0.0 }.parameters().1, 255);
        assert_eq!(Range { low: 0.0, high: 0.0 }.parameters(), (1.0, 0));
    }

    #[test]
    fn histogram_growth_keeps_all_counts() {
        let mut h = Histogram::default();
        h.add(&[0.0, 0.0]);
        h.add(&[0.5, -0.25, f32::NAN, f32::INFINITY]);
        h.add(&[100.0, -3.0]);
        assert_eq!(h.counts.iter().sum::<u64>(), 6);
        assert_eq!((h.low, h.high, h.limit), (-3.0, 100.0, 128.0));
    }

    #[test]
    fn range_clips_outliers_and_keeps_uniform_data() {
        let even: Vec<f32> = (0..10000).map(|i| i as f32 / 10000.0).collect();
        let mut h = Histogram::default();
        h.add(&even);
        assert!(h.range().high > 0.98, "{:?}", h.range());
        // One outlier far from all others, once in a million values.
        for _ in 0..100 {
            h.add(&even);
        }
        h.add(&[4.0]);
        let range = h.range();
        assert!(range.high < 2.5 && range.high >= 0.8, "{range:?}");
    }
}
