//! Classes that data gives by their names.

use of_diag::{Code, Diagnostics};
use of_ir::Tensor;

use crate::error::error;

/// The names of the classes of samples, as files have them, and of all classes that files know.
#[derive(Default)]
pub(super) struct ClassNames {
    /// Of each sample.
    samples: Vec<String>,
    /// Of classes whose numbers files have.
    known: Vec<String>,
}

impl ClassNames {
    /// Adds the classes of samples behind those of other files.
    pub fn extend(&mut self, samples: Vec<String>) {
        self.samples.extend(samples);
    }

    /// Takes note of the names of classes that a file has as numbers.
    pub fn know(&mut self, names: Vec<String>) {
        if self.known.is_empty() {
            self.known = names;
        }
    }

    /// The labels of samples whose classes have names: numbers in the order of the names, or those of `training`, if there are any. `None` where
    /// files have numbers. The second result are the names of classes.
    ///
    /// # Errors
    /// When a class is not among those of the training.
    pub fn finish(self, training: &[String]) -> Result<(Option<Tensor>, Vec<String>), Diagnostics> {
        if self.samples.is_empty() {
            let classes = if training.is_empty() { self.known } else { training.to_vec() };
            return Ok((None, classes));
        }
        let mut classes = training.to_vec();
        if classes.is_empty() {
            classes.clone_from(&self.samples);
            classes.sort_unstable();
            classes.dedup();
        }
        let numbers: std::collections::HashMap<&str, i64> =
            classes.iter().enumerate().map(|(number, name)| (name.as_str(), number as i64)).collect();
        let number = |(sample, name): (usize, &String)| {
            numbers.get(name.as_str()).copied().ok_or_else(|| {
                let what = format!(
                    "sample {sample} (the first is 0) is of the class '{name}', which the training data does not have"
                );
                Diagnostics::from(error(Code::INPUT, what).hint("both must name classes alike"))
            })
        };
        let labels = self.samples.iter().enumerate().map(number).collect::<Result<Vec<i64>, _>>()?;
        let labels = Tensor::from_slice(&[labels.len()], &labels).map_err(|e| error(Code::INPUT, e.to_string()))?;
        Ok((Some(labels), classes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(samples: &[&str]) -> ClassNames {
        let mut names = ClassNames::default();
        names.extend(samples.iter().map(|name| (*name).to_owned()).collect());
        names
    }

    #[test]
    fn classes_are_numbered_in_the_order_of_names_or_as_in_the_training() {
        let (labels, classes) = names(&["dog", "cat", "dog"]).finish(&[]).unwrap();
        assert_eq!(labels.unwrap().to_i64s().unwrap(), [1, 0, 1]);
        assert_eq!(classes, ["cat", "dog"]);
        let training = ["ant", "cat", "dog"].map(String::from);
        let (labels, classes) = names(&["dog"]).finish(&training).unwrap();
        assert_eq!((labels.unwrap().to_i64s().unwrap(), classes.len()), (vec![2], 3));
        let wrong = names(&["dog", "owl"]).finish(&training).unwrap_err().to_string();
        assert!(wrong.contains("sample 1 (the first is 0) is of the class 'owl'"), "{wrong}");
        let mut known = ClassNames::default();
        known.know(vec!["a".into()]);
        let (labels, classes) = known.finish(&[]).unwrap();
        assert!(labels.is_none() && classes == ["a"]);
    }
}
