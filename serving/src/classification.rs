//! The classification extension: the indices of the largest elements, instead of the tensor.

use of_plan::ElementType;
use of_runtime::Element;

use crate::datatype;
use crate::error::ServeError;
use crate::infer::OutputTensor;

/// The `count` largest elements of each row of the last dimension, as texts `VALUE:INDEX`, the largest first.
///
/// # Errors
/// When the tensor is not of numbers.
pub fn classify(output: &OutputTensor, count: usize) -> Result<OutputTensor, ServeError> {
    let values = numbers(output).ok_or_else(|| {
        let what = format!("output '{}' is {}, which has no largest elements", output.name, output.datatype());
        ServeError::unsupported(what)
    })?;
    let row = output.shape.last().and_then(|n| usize::try_from(*n).ok()).unwrap_or(1).max(1);
    let count = count.min(row);
    let mut texts = Vec::new();
    for elements in values.chunks(row) {
        let mut order: Vec<usize> = (0..elements.len()).collect();
        order.sort_by(|a, b| elements[*b].total_cmp(&elements[*a]));
        texts.extend(order.iter().take(count).map(|index| format!("{:.6}:{index}", elements[*index])));
    }
    let mut shape = output.shape.clone();
    match shape.last_mut() {
        Some(last) => *last = count as i64,
        None => shape.push(1),
    }
    let data = datatype::encode_texts(&texts).into();
    Ok(OutputTensor { name: output.name.clone(), dtype: ElementType::String, shape, data })
}

fn numbers(output: &OutputTensor) -> Option<Vec<f64>> {
    fn of<T: Element + Into<f64>>(bytes: &[u8]) -> Option<Vec<f64>> {
        Some(bytes.chunks_exact(size_of::<T>()).map(|part| T::load(part).into()).collect())
    }
    match output.dtype {
        ElementType::F32 => of::<f32>(&output.data),
        ElementType::F64 => of::<f64>(&output.data),
        ElementType::I8 => of::<i8>(&output.data),
        ElementType::I16 => of::<i16>(&output.data),
        ElementType::I32 => of::<i32>(&output.data),
        ElementType::Ui8 => of::<u8>(&output.data),
        ElementType::Ui16 => of::<u16>(&output.data),
        ElementType::Ui32 => of::<u32>(&output.data),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use of_runtime::Tensor;

    #[test]
    fn largest_elements_of_each_row() {
        let tensor = Tensor::from_elements([2, 3], &[0.1_f32, 0.7, 0.2, 3.0, f32::NEG_INFINITY, 1.0]).unwrap();
        let output = OutputTensor::of_value("p", tensor.into()).unwrap();
        let classes = classify(&output, 2).unwrap();
        let texts = datatype::decode_texts(&classes.data).unwrap();
        assert_eq!(texts, ["0.700000:1", "0.200000:2", "3.000000:0", "1.000000:2"]);
        assert_eq!((classes.shape, classify(&output, 100).unwrap().shape), (vec![2, 2], vec![2, 3]));
        let text = Tensor::from_strings([1], vec!["a".into()]).unwrap();
        assert!(classify(&OutputTensor::of_value("p", text.into()).unwrap(), 1).is_err());
    }
}
