//! `of.tf_idf_vectorizer`.

use std::collections::HashMap;
use std::sync::Arc;

use of_ir::{DType, Dim, Elements, OpError, OpView, Tensor, TensorType, Type};

use crate::sample::Rng;
use crate::{Evaluated, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// Counts the n-grams of a pool in each row of `x`: result `ngram_indexes[i]` is for the i-th n-gram of the pool.
    ///
    /// The items of an n-gram are `1 + skip` apart, for every `skip` up to `max_skip_count`. `mode` is `TF` (the count),
    /// `IDF` (the weight of those that occur) or `TFIDF` (count times weight). Source: ONNX TfIdfVectorizer.
    pub struct TfIdfVectorizer = "of.tf_idf_vectorizer" [Primitive, onnx: "TfIdfVectorizer"] {
        operands: (x),
        results: (y),
        attrs: {
            mode: Arc<str>,
            min_gram_length: i64,
            max_gram_length: i64,
            max_skip_count: i64,
            /// Where the n-grams of each length begin in the pool.
            ngram_counts: Vec<i64>,
            ngram_indexes: Vec<i64>,
            /// Items of all n-grams, the short ones first; one of the pools is empty.
            pool_int64s: Vec<i64>,
            pool_strings: Vec<Arc<str>>,
            /// One an n-gram; ones without it.
            weights: Vec<f64>,
        }
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let op = TfIdfVectorizer {
            mode: r.pick(&["TF", "IDF", "TFIDF"]).into(),
            min_gram_length: r.int(1, 2),
            max_gram_length: 2,
            max_skip_count: r.int(0, 2),
            ngram_counts: vec![0, 3],
            ngram_indexes: vec![0, 2, 1, 4, 3],
            pool_int64s: vec![1, 2, 3, 1, 2, 3, 1],
            pool_strings: vec![],
            weights: r.pick(&[vec![], vec![1.0, 2.0, 0.5, 3.0, 1.5]]),
        };
        let dims: &[usize] = if r.int(0, 1) == 0 { &[7] } else { &[2, 5] };
        Some((vec![r.tensor(DType::I64, dims, 1.0, 4.0).into()], op))
    };
}

/// One item of an n-gram.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Item {
    Int(i128),
    Str(Arc<str>),
}

impl TfIdfVectorizer {
    /// Length of the result's rows.
    fn width(&self) -> Result<usize, OpError> {
        let last = self.ngram_indexes.iter().copied().max().unwrap_or(-1);
        if self.ngram_indexes.iter().any(|i| *i < 0) || last >= 1 << 32 {
            return Err(OpError::attr("ngram_indexes must not be negative or larger than memory"));
        }
        Ok((last + 1) as usize)
    }

    fn check(&self) -> Result<(), OpError> {
        if !["TF", "IDF", "TFIDF"].contains(&&*self.mode) {
            return Err(OpError::attr(format!("mode '{}' is not known", self.mode)).hint("TF, IDF and TFIDF are"));
        }
        if self.min_gram_length < 1 || self.max_gram_length < self.min_gram_length || self.max_skip_count < 0 {
            return Err(OpError::attr("the lengths of n-grams must be at least 1, and the skips at least 0"));
        }
        if self.pool_int64s.is_empty() == self.pool_strings.is_empty() {
            return Err(OpError::attr("one of pool_int64s and pool_strings must be given"));
        }
        if !self.weights.is_empty() && self.weights.len() != self.ngram_indexes.len() {
            return Err(OpError::attr("weights and ngram_indexes must be of one length"));
        }
        self.grams().map(|_| ())
    }

    /// The number of each n-gram of the pool.
    fn grams(&self) -> Result<HashMap<Vec<Item>, usize>, OpError> {
        let pool: Vec<Item> = if self.pool_strings.is_empty() {
            self.pool_int64s.iter().map(|i| Item::Int((*i).into())).collect()
        } else {
            self.pool_strings.iter().map(|s| Item::Str(s.clone())).collect()
        };
        let bounds: Option<Vec<usize>> = self.ngram_counts.iter().map(|c| usize::try_from(*c).ok()).collect();
        let bounds = bounds.ok_or_else(|| OpError::attr("ngram_counts must not be negative"))?;
        let mut out = HashMap::new();
        let mut number = 0;
        for (k, begin) in bounds.iter().enumerate() {
            let end = bounds.get(k + 1).copied().unwrap_or(pool.len());
            let part = pool.get(*begin..end).filter(|p| p.len() % (k + 1) == 0);
            let part = part.ok_or_else(|| OpError::attr("ngram_counts do not divide the pool into n-grams"))?;
            for gram in part.chunks(k + 1) {
                out.insert(gram.to_vec(), number);
                number += 1;
            }
        }
        if number != self.ngram_indexes.len() {
            let (n, m) = (number, self.ngram_indexes.len());
            return Err(OpError::attr(format!("the pool has {n} n-grams, ngram_indexes has {m}")));
        }
        Ok(out)
    }

    /// How often each n-gram occurs in `row`.
    fn counts(&self, row: &[Item], grams: &HashMap<Vec<Item>, usize>) -> Vec<f64> {
        let mut counts = vec![0.0; self.ngram_indexes.len()];
        let mut count = |gram: Vec<Item>| {
            if let Some(i) = grams.get(&gram) {
                counts[*i] += 1.0;
            }
        };
        // No n-gram is longer than the row, and none has more skips.
        let most = row.len().min(usize::try_from(self.max_gram_length).unwrap_or(usize::MAX));
        for length in usize::try_from(self.min_gram_length).unwrap_or(1)..=most {
            // A single item has no gaps, and is counted once.
            let skips = if length == 1 { 0 } else { self.max_skip_count.min(row.len() as i64) as usize };
            for distance in 1..=skips + 1 {
                let Some(starts) = row.len().checked_sub((length - 1) * distance) else { break };
                for start in 0..starts {
                    count(row[start..].iter().step_by(distance).take(length).cloned().collect());
                }
            }
        }
        counts
    }
}

impl Op for TfIdfVectorizer {
    op_basics!(TfIdfVectorizer);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        self.check()?;
        let x = cx.tensor(0)?;
        let fits = if self.pool_strings.is_empty() { x.dtype.is_int() } else { x.dtype == DType::String };
        if !fits {
            return Err(OpError::ty(format!("operand 0 is {}, the pool holds others", x.dtype)));
        }
        let width = Dim::from(self.width()?);
        let shape = match &x.shape {
            None => None,
            Some(s) if s.len() == 1 => Some(vec![width]),
            Some(s) if s.len() == 2 => Some(vec![s[0].clone(), width]),
            Some(s) => return Err(OpError::shape(format!("{} is neither [C] nor [N, C]", shape::show(s)))),
        };
        Ok(vec![Type::Tensor(TensorType { dtype: DType::F32, shape, sbp: None })])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let x = inputs.tensor(0)?;
        let items: Vec<Item> = match x.elements() {
            Elements::Int(v) => v.into_iter().map(Item::Int).collect(),
            Elements::Str(v) => v.into_iter().map(|s| Item::Str(s.into())).collect(),
            Elements::Float(_) => return Err(OpError::eval("operand 0 holds floats")),
        };
        let (rows, columns) = match x.dims() {
            [c] => (1, *c),
            [n, c] => (*n, *c),
            other => return Err(OpError::eval(format!("{other:?} is neither [C] nor [N, C]"))),
        };
        let (grams, width) = (self.grams()?, self.width()?);
        let mut y = vec![0.0; shape::count(&[rows, width])?];
        for row in 0..rows {
            let counts = self.counts(&items[row * columns..][..columns], &grams);
            for (i, (count, at)) in counts.iter().zip(&self.ngram_indexes).enumerate() {
                let weight = self.weights.get(i).copied().unwrap_or(1.0);
                // Several n-grams may have one place.
                y[row * width + *at as usize] += match &*self.mode {
                    "TF" => *count,
                    "IDF" if *count > 0.0 => weight,
                    "IDF" => 0.0,
                    _ => count * weight,
                };
            }
        }
        let dims = if x.dims().len() == 1 { vec![width] } else { vec![rows, width] };
        Ok(vec![Tensor::from_elements(DType::F32, dims, Elements::Float(y))?.into()])
    }
}
