//! How far the outputs of a model in another precision are from its outputs before.

use of_ops::Value;

use crate::error::count;

/// The change of one output over all calibration sets.
#[derive(Clone, Default, Debug)]
pub struct OutputChange {
    /// Sums of squares: of differences, of what was.
    squares: (f64, f64),
    /// The largest: difference, number that was.
    largest: (f64, f64),
    /// Rows whose largest number is at the same place, and all rows.
    rows: (usize, usize),
    /// Whether something else than numbers differs, or shapes do.
    other: bool,
}

impl OutputChange {
    /// Adds the values of one calibration set: `now` in the new precision, `before` in the model's.
    pub fn add(&mut self, now: &Value, before: &Value) {
        let (Value::Tensor(a), Value::Tensor(b)) = (now, before) else {
            self.other |= now != before;
            return;
        };
        let numbers = a.to_f64s().zip(b.to_f64s()).filter(|_| a.dims() == b.dims());
        let Some((a, b)) = numbers else {
            self.other |= now != before;
            return;
        };
        for (x, y) in a.iter().zip(&b).filter(|(x, y)| !(x.is_nan() && y.is_nan())) {
            let d = if x == y { 0.0 } else { (x - y).abs() };
            self.squares = (self.squares.0 + d * d, self.squares.1 + y * y);
            self.largest = (self.largest.0.max(d), self.largest.1.max(y.abs()));
        }
        let Value::Tensor(t) = before else { return };
        let row = t.dims().last().copied().unwrap_or(1);
        if row > 1 && t.dtype().is_float() {
            for (x, y) in a.chunks_exact(row).zip(b.chunks_exact(row)) {
                self.rows.0 += usize::from(argmax(x) == argmax(y));
                self.rows.1 += 1;
            }
        }
    }

    /// One line: the root mean square and the largest change, and how many rows have the same largest element.
    pub fn text(&self) -> String {
        if self.other {
            return "another shape, or other values that are no numbers".into();
        }
        let share = |part: f64, of: f64| if part == 0.0 { 0.0 } else { 100.0 * part / of };
        let mean = share(self.squares.0.sqrt(), self.squares.1.sqrt());
        let most = share(self.largest.0, self.largest.1);
        let mut out = format!("changed by {mean:.2} % (root mean square), {most:.2} % of the largest number at most");
        if self.rows.1 > 0 {
            out += &format!("; the largest of a row is the same in {} of {}", self.rows.0, count(self.rows.1, "row"));
        }
        out
    }
}

fn argmax(row: &[f64]) -> usize {
    row.iter().enumerate().fold(0, |best, (i, x)| if *x > row[best] { i } else { best })
}

#[cfg(test)]
mod tests {
    use of_ir::Tensor;

    use super::*;

    fn values(v: &[f32]) -> Value {
        Tensor::from_slice(&[v.len() / 2, 2], v).unwrap().into()
    }

    #[test]
    fn output_changes_are_relative() {
        let mut c = OutputChange::default();
        c.add(&values(&[3.0, 4.0, 1.0, 0.0]), &values(&[3.0, 4.0, 0.0, 0.5]));
        assert_eq!(
            c.text(),
            "changed by 22.25 % (root mean square), 25.00 % of the largest number at most; the largest of a row is the \
             same in 1 of 2 rows"
        );
        c.add(&values(&[1.0, 2.0]), &values(&[1.0, 2.0, 3.0, 4.0]));
        assert!(c.text().contains("another shape"));
    }
}
