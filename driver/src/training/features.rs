//! Columns of records whose features are named lists of numbers, as those of TFRecord and OFRecord files.

use std::collections::HashMap;
use std::path::Path;

use of_diag::{Code, Diagnostics};
use of_ir::{DType, Elements, Tensor};
use prost::Message;

use crate::error::error;

/// Strings, as both formats store them.
#[derive(Clone, PartialEq, Message)]
pub struct BytesList {
    #[prost(bytes = "vec", repeated, tag = "1")]
    pub value: Vec<Vec<u8>>,
}

/// Numbers of f32, as both formats store them.
#[derive(Clone, PartialEq, Message)]
pub struct FloatList {
    #[prost(float, repeated, tag = "1")]
    pub value: Vec<f32>,
}

/// Numbers of i64, as both formats store them.
#[derive(Clone, PartialEq, Message)]
pub struct Int64List {
    #[prost(int64, repeated, tag = "1")]
    pub value: Vec<i64>,
}

/// The numbers of a feature.
pub struct Values {
    dtype: DType,
    elements: Elements,
    count: usize,
}

impl Values {
    pub fn floats<T: Into<f64>>(dtype: DType, list: Vec<T>) -> Values {
        let count = list.len();
        Values { dtype, elements: Elements::Float(list.into_iter().map(Into::into).collect()), count }
    }

    pub fn ints<T: Into<i128>>(dtype: DType, list: Vec<T>) -> Values {
        let count = list.len();
        Values { dtype, elements: Elements::Int(list.into_iter().map(Into::into).collect()), count }
    }

    /// Strings as one string of values of u8.
    pub fn bytes(list: &[Vec<u8>]) -> Values {
        Values::ints(DType::U8, list.concat())
    }
}

pub fn wrong(path: &Path, what: &str) -> Diagnostics {
    error(Code::INPUT, format!("'{}': {what}", path.display())).into()
}

/// The features of these names: `[samples, numbers of a sample]` each. Bytes are one string of values of u8. `decode` says what is wrong with a
/// record.
///
/// # Errors
/// When a record is damaged, or a sample lacks a feature or has it in another length or type than the first.
pub fn columns<F: Clone + Into<Option<Values>>>(
    path: &Path,
    names: &[&str],
    records: &[&[u8]],
    decode: impl Fn(&[u8]) -> Result<HashMap<String, F>, String>,
) -> Result<Vec<(String, Tensor)>, Diagnostics> {
    let wrong = |what: String| wrong(path, &what);
    let mut columns: Vec<Option<Values>> = names.iter().map(|_| None).collect();
    for (number, record) in records.iter().enumerate() {
        let features = decode(record).map_err(|what| wrong(format!("record {number} {what}")))?;
        for (name, column) in names.iter().zip(&mut columns) {
            let Some(own) = features.get(*name).and_then(|feature| feature.clone().into()) else {
                let mut known: Vec<&str> = features.keys().map(String::as_str).collect();
                known.sort_unstable();
                return Err(wrong(format!("record {number} has no feature '{name}', only {}", known.join(", "))));
            };
            let Some(all) = column else {
                *column = Some(own);
                continue;
            };
            if all.dtype != own.dtype || all.count != own.count {
                let has = format!("feature '{name}' of record {number} has {} values of {}", own.count, own.dtype);
                return Err(wrong(format!("{has}, and that of record 0 {} of {}", all.count, all.dtype)));
            }
            match (&mut all.elements, own.elements) {
                (Elements::Float(all), Elements::Float(more)) => all.extend(more),
                (Elements::Int(all), Elements::Int(more)) => all.extend(more),
                _ => {}
            }
        }
    }
    let column = |(name, column): (&&str, Option<Values>)| {
        let Values { dtype, elements, count } = column.unwrap_or_else(|| Values::floats::<f32>(DType::F32, Vec::new()));
        let tensor = Tensor::from_elements(dtype, vec![records.len(), count], elements);
        tensor.map(|tensor| ((*name).to_owned(), tensor)).map_err(|e| wrong(format!("feature '{name}': {e}")))
    };
    names.iter().zip(columns).map(column).collect()
}
