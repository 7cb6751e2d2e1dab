//! Mixed samples: a training sees weighted sums of two samples and of their labels. Source: Zhang et al., "mixup" (2018).

use std::fmt::Debug;

use of_diag::{Code, Diagnostics};
use of_ir::{DType, Dim, Tensor, Type};

use super::augmentation::Draw;
use super::data::ColumnSpec;
use super::lazy::Source;
use crate::error::error;

/// The weight of a sample against its partner: a number of the distribution Beta(alpha, alpha), which depends on seed, epoch and sample alone.
pub(super) fn weight(draw: &Draw, alpha: f64, sample: usize) -> f64 {
    let mut random = draw.random(sample, 0x6d69_7875);
    let mut open = || random.f64().max(f64::MIN_POSITIVE);
    // A quotient of two numbers of Gamma(alpha), by their logarithms, as those of a small alpha are tiny.
    let logarithms = [(); 2].map(|()| gamma(alpha + 1.0, &mut open).ln() + open().ln() / alpha);
    1.0 / (1.0 + (logarithms[1] - logarithms[0]).exp())
}

/// A number of Gamma(shape), for shapes of at least 1. Source: Marsaglia and Tsang, "A simple method for generating gamma variables" (2000).
fn gamma(shape: f64, random: &mut impl FnMut() -> f64) -> f64 {
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let (length, angle) = ((-2.0 * random().ln()).sqrt(), std::f64::consts::TAU * random());
        let normal = length * angle.cos();
        let v = (1.0 + c * normal).powi(3);
        if v > 0.0 && random().ln() < 0.5 * normal * normal + d * (1.0 - v + v.ln()) {
            return d * v;
        }
    }
}

/// Writes the sum of a sample of f32, which has this weight, and of another one.
pub(super) fn mix(own: &[u8], other: &[u8], weight: f64, to: &mut [u8]) {
    let weight = weight as f32;
    let value = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes);
    let pairs = own.as_chunks().0.iter().zip(other.as_chunks().0);
    for (to, (x, y)) in to.as_chunks_mut().0.iter_mut().zip(pairs) {
        *to = (weight * value(x) + (1.0 - weight) * value(y)).to_le_bytes();
    }
}

/// What classes are read as, before they become the probabilities that the loss takes.
pub(super) fn classes(spec: &ColumnSpec) -> ColumnSpec {
    ColumnSpec { name: spec.name.clone(), ty: Type::tensor(DType::I64, vec![Dim::symbol("n")]) }
}

/// Classes as probabilities: 1 for the class.
#[derive(Debug)]
pub(super) struct Probabilities {
    classes: Vec<usize>,
    dims: [usize; 1],
}

impl Probabilities {
    /// Of whole numbers below `count`.
    ///
    /// # Errors
    /// When a number is no class.
    pub fn new(name: &str, classes: &Tensor, count: usize) -> Result<Probabilities, Diagnostics> {
        let list = classes.to_i64s().unwrap_or_default();
        let class = |class: &i64| {
            usize::try_from(*class).ok().filter(|class| *class < count).ok_or_else(|| {
                let what =
                    format!("the data of '{name}' has {class}, and classes are 0 to {}", count.saturating_sub(1));
                Diagnostics::from(error(Code::INPUT, what))
            })
        };
        Ok(Probabilities { classes: list.iter().map(class).collect::<Result<_, _>>()?, dims: [count] })
    }
}

impl Source for Probabilities {
    fn len(&self) -> usize {
        self.classes.len()
    }

    fn dims(&self) -> &[usize] {
        &self.dims
    }

    fn dtype(&self) -> DType {
        DType::F32
    }

    fn gather(&self, samples: &[usize], out: &mut Vec<u8>) -> Result<(), Diagnostics> {
        for sample in samples {
            let class = self.classes[*sample];
            out.extend((0..self.dims[0]).flat_map(|i| f32::from(u8::from(i == class)).to_le_bytes()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::augmentation::Augmentation;
    use super::super::data::{DataOptions, Dataset};
    use super::*;

    fn draw(seed: u64, epoch: usize, alpha: f64) -> Draw {
        Draw { augmentation: Augmentation::default(), mixup: Some(alpha), seed, epoch }
    }

    #[test]
    fn weights_have_the_mean_and_variance_of_the_distribution() {
        for alpha in [0.01, 0.2, 1.0, 4.0] {
            let all: Vec<f64> = (0..20_000).map(|sample| weight(&draw(1, 2, alpha), alpha, sample)).collect();
            assert!(all.iter().all(|w| (0.0..=1.0).contains(w)), "{alpha}");
            let mean = all.iter().sum::<f64>() / all.len() as f64;
            let variance = all.iter().map(|w| (w - 0.5).powi(2)).sum::<f64>() / all.len() as f64;
            let expected = 1.0 / (4.0 * (2.0 * alpha + 1.0));
            assert!(
                (mean - 0.5).abs() < 0.02 && (variance / expected - 1.0).abs() < 0.05,
                "{alpha}: {mean} {variance}"
            );
        }
        let one = |seed, epoch, sample| weight(&draw(seed, epoch, 0.4), 0.4, sample);
        assert_eq!(one(1, 2, 3), one(1, 2, 3));
        assert!(one(1, 2, 3) != one(2, 2, 3) && one(1, 2, 3) != one(1, 3, 3) && one(1, 2, 3) != one(1, 2, 4));
    }

    #[test]
    fn samples_and_labels_are_mixed_by_the_same_weights() {
        let n = || Dim::symbol("n");
        let wanted = [
            ColumnSpec { name: "x".into(), ty: Type::tensor(DType::F32, vec![n(), Dim::from(1i64)]) },
            ColumnSpec { name: "labels".into(), ty: Type::tensor(DType::F32, vec![n(), Dim::from(3i64)]) },
        ];
        let columns = |classes: &[i64]| {
            let x = Tensor::from_slice(&[3, 1], &[10f32, 20.0, 40.0]).unwrap();
            vec![("x".to_owned(), x), ("labels".to_owned(), Tensor::from_slice(&[3], classes).unwrap())]
        };
        let options = DataOptions { has_probabilities: true, ..DataOptions::default() };
        let data = Dataset::of_columns_with(columns(&[0, 1, 2]), &wanted, &options).unwrap();
        let numbers = |draw: Option<&Draw>| {
            let batch = data.batch_with(&[0, 1, 2], draw).unwrap();
            [0, 1].map(|i| batch[i].as_tensor().unwrap().to_elements::<f32>().unwrap())
        };
        assert_eq!(numbers(None), [vec![10.0, 20.0, 40.0], vec![1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]]);
        let draw = draw(7, 1, 0.4);
        let weights = [0, 1, 2].map(|sample| weight(&draw, 0.4, sample) as f32);
        let [x, labels] = numbers(Some(&draw));
        let close = |a: f32, b: f32| (a - b).abs() < 1e-4;
        assert!(close(x[0], 10.0 * weights[0] + 40.0 * (1.0 - weights[0])), "{x:?} {weights:?}");
        // The one in the middle is its own partner.
        assert!(close(x[1], 20.0) && close(x[2], 40.0 * weights[2] + 10.0 * (1.0 - weights[2])));
        assert!(close(labels[0], weights[0]) && close(labels[2], 1.0 - weights[0]) && close(labels[4], 1.0));
        let wrong = Dataset::of_columns_with(columns(&[0, 1, 3]), &wanted, &options).unwrap_err().to_string();
        assert!(wrong.contains("'labels' has 3, and classes are 0 to 2"), "{wrong}");
        // Another loss gets no probabilities.
        assert!(Dataset::of_columns(columns(&[0, 1, 2]), &wanted).is_err());
    }
}
