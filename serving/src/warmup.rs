//! Requests that a model answers before it is ready: `model_warmup` of its configuration, or one row of zeros.
//!
//! The first runs of a session touch fresh memory, and the scheduler learns from them how long runs take.

use of_plan::ElementType;
use of_runtime::Value;

use crate::config::{data_type, extent, message_of, number, string, word, wrong};
use crate::infer::tensor;
use crate::load::elements;
use crate::model::TensorInfo;
use crate::pbtxt::{Field, Message};

/// A request of a warm-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warmup {
    /// Its name, for messages.
    pub name: String,
    /// Rows, where the configuration states a batch size of the model.
    batch_size: usize,
    /// How many times it runs.
    pub count: usize,
    inputs: Vec<Input>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Input {
    name: String,
    dtype: ElementType,
    dims: Vec<i64>,
    is_random: bool,
}

/// More runs than that are a mistake.
const MOST: usize = 1000;

/// Reads a field `model_warmup`.
///
/// # Errors
/// When it states what is not supported.
pub fn warmup(field: &Field) -> Result<Warmup, String> {
    let mut warmup = Warmup { name: String::new(), batch_size: 1, count: 1, inputs: Vec::new() };
    for own in &message_of(field)?.fields {
        match own.name.as_str() {
            "name" => warmup.name = string(own)?.to_owned(),
            "batch_size" => warmup.batch_size = number(own)?.max(1),
            // As Triton: 0 is once.
            "count" => {
                warmup.count = Some(number(own)?.max(1))
                    .filter(|n| *n <= MOST)
                    .map_or_else(|| wrong(own, "is too many runs"), Ok)?
            }
            "inputs" => warmup.inputs.push(input(message_of(own)?, own)?),
            _ => return wrong(own, "is not supported"),
        }
    }
    Ok(warmup)
}

/// An entry of the map of inputs.
fn input(entry: &Message, field: &Field) -> Result<Input, String> {
    let (mut name, mut value) = (None, None);
    for own in &entry.fields {
        match own.name.as_str() {
            "key" => name = Some(string(own)?.to_owned()),
            "value" => value = Some(message_of(own)?),
            _ => return wrong(own, "is not supported"),
        }
    }
    let (Some(name), Some(value)) = (name, value) else { return wrong(field, "needs a key and a value") };
    let (mut dtype, mut dims, mut is_random) = (None, Vec::new(), None);
    for own in &value.fields {
        match own.name.as_str() {
            "data_type" => dtype = Some(data_type(own)?),
            "dims" => dims.push(Some(extent(own)?).filter(|n| *n >= 0).map_or_else(|| wrong(own, "is open"), Ok)?),
            "zero_data" | "random_data" if word(own)? == "true" => is_random = Some(own.name == "random_data"),
            _ => return wrong(own, "is not supported"),
        }
    }
    let (Some(dtype), Some(is_random)) = (dtype, is_random) else {
        return wrong(field, "needs a data_type, and zero_data: true or random_data: true");
    };
    Ok(Input { name, dtype, dims, is_random })
}

impl Warmup {
    /// The inputs of a model, in its order. `has_batch` says whether extents lack the rows, as where the configuration states a batch size.
    ///
    /// # Errors
    /// When an input is missing, unknown, or too large.
    pub fn values(&self, inputs: &[TensorInfo], has_batch: bool) -> Result<Vec<Value>, String> {
        if let Some(unknown) = self.inputs.iter().find(|own| inputs.iter().all(|input| input.name != own.name)) {
            return Err(format!("the model has no input '{}'", unknown.name));
        }
        let mut rng = fastrand::Rng::with_seed(1);
        let mut value = |input: &TensorInfo| {
            let own = self.inputs.iter().find(|own| own.name == input.name);
            let own = own.ok_or_else(|| format!("input '{}' is missing", input.name))?;
            let rows = has_batch.then(|| i64::try_from(self.batch_size).unwrap_or(i64::MAX));
            let shape: Vec<i64> = rows.into_iter().chain(own.dims.iter().copied()).collect();
            let mut bytes = elements(own.dtype, &shape, &mut rng)
                .ok_or_else(|| format!("input '{}' of {shape:?} is too large", input.name))?;
            if !own.is_random {
                clear(own.dtype, &mut bytes);
            }
            let tensor = tensor(own.dtype, &shape, bytes.into()).map_err(|e| e.message)?;
            Ok(tensor.into())
        };
        inputs.iter().map(&mut value).collect()
    }
}

/// Zeros, and texts of no bytes, which have a length each.
fn clear(dtype: ElementType, bytes: &mut Vec<u8>) {
    match dtype {
        ElementType::String => *bytes = vec![0; bytes.len() / 5 * 4],
        _ => bytes.fill(0),
    }
}

/// One row of zeros for each input. `None` where another extent than the rows is open: nothing is known of it.
pub fn row_of_zeros(inputs: &[TensorInfo]) -> Option<Vec<Value>> {
    let zeros = |input: &TensorInfo| {
        let mut shape = input.shape.clone();
        shape.iter_mut().take(1).filter(|rows| **rows < 0).for_each(|rows| *rows = 1);
        let known = shape.iter().all(|extent| *extent >= 0);
        let mut bytes = elements(input.dtype, &shape, &mut fastrand::Rng::with_seed(1)).filter(|_| known)?;
        clear(input.dtype, &mut bytes);
        Some(tensor(input.dtype, &shape, bytes.into()).ok()?.into())
    };
    inputs.iter().map(zeros).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ModelConfig;

    fn parsed(fields: &str) -> Result<Vec<Warmup>, String> {
        ModelConfig::default().with_text("m", &format!("model_warmup [ {{ {fields} }} ]")).map(|config| config.warmups)
    }

    const IMAGE: &str =
        r#"inputs { key: "image" value: { data_type: TYPE_FP32 dims: [ 1, 8, 8 ] random_data: true } }"#;

    fn info(name: &str, dtype: ElementType) -> TensorInfo {
        TensorInfo { name: name.into(), dtype, shape: vec![-1, 1, 8, 8] }
    }

    #[test]
    fn requests_have_the_inputs_of_the_model() {
        let own = parsed(&format!(r#"name: "w" batch_size: 4 count: 3 {IMAGE}"#)).unwrap().remove(0);
        assert_eq!((own.name.as_str(), own.count), ("w", 3));
        let inputs = [info("image", ElementType::F32)];
        let dims = |has_batch| own.values(&inputs, has_batch).unwrap()[0].as_tensor().unwrap().dims().to_vec();
        assert_eq!((dims(true), dims(false)), (vec![4, 1, 8, 8], vec![1, 8, 8]));
        let more = [info("image", ElementType::F32), info("mask", ElementType::I1)];
        assert_eq!(own.values(&more, true).unwrap_err(), "input 'mask' is missing");
        assert_eq!(own.values(&[], true).unwrap_err(), "the model has no input 'image'");
        let texts = r#"inputs { key: "t" value: { data_type: TYPE_STRING dims: 2 zero_data: true } }"#;
        let texts = parsed(texts).unwrap()[0].values(&[info("t", ElementType::String)], false).unwrap();
        assert_eq!(texts[0].as_tensor().unwrap().dims(), [2]);
    }

    #[test]
    fn what_is_not_supported_is_an_error() {
        let error = |fields: &str| parsed(fields).unwrap_err();
        assert!(error("count: 1001").contains("count '1001' is too many runs"));
        assert!(error("colour: 1").contains("colour '1' is not supported"));
        assert!(error(r#"inputs { key: "x" }"#).contains("inputs needs a key and a value"));
        let input = |rest: &str| error(&format!(r#"inputs {{ key: "x" value: {{ {rest} }} }}"#));
        assert!(input("data_type: TYPE_FP32 dims: 1").contains("needs a data_type, and zero_data"));
        assert!(input("dims: -1").contains("dims '-1' is open"));
        assert!(input(r#"input_data_file: "x""#).contains("input_data_file 'x' is not supported"));
    }
}
