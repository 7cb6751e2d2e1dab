//! Batches: which models have a batch axis, and how requests are joined.

use of_plan::{ElementType, Extent, Factor, Program};
use of_runtime::{AlignedBytes, Tensor, TensorData, Value};

/// Whether all inputs and outputs of a program have one open extent as dimension 0, on which no other dimension depends. Such
/// a program takes the rows of several requests at once. Whether its rows are independent is checked when batches run.
pub fn has_batch_axis(program: &Program) -> bool {
    let ports = || program.inputs.iter().chain(&program.outputs);
    let extents = |port: &of_plan::Port| program.registers.get(port.register as usize).map(|r| r.extents.as_slice());
    let rows = |port: &of_plan::Port| {
        let is_tensor = port.dtype() != ElementType::Unknown && whole_bytes(port.dtype());
        let open = is_tensor && port.dims.first() == Some(&-1);
        extents(port).filter(|_| open).and_then(|extents| extents.first()?.as_symbol())
    };
    let Some(symbol) = program.inputs.first().and_then(rows) else { return false };
    ports().all(|port| {
        let rest = extents(port).and_then(|extents| extents.get(1..)).unwrap_or(&[]);
        rows(port) == Some(symbol) && rest.iter().all(|extent| !depends_on(extent, symbol))
    })
}

/// Whether a row of elements begins at a byte.
fn whole_bytes(dtype: ElementType) -> bool {
    dtype == ElementType::String || dtype.bits().is_multiple_of(8)
}

fn depends_on(extent: &Extent, symbol: u32) -> bool {
    let factor = |factor: &Factor| {
        factor.symbol == Some(symbol)
            || factor.call.as_ref().is_some_and(|call| depends_on(&call.a, symbol) || depends_on(&call.b, symbol))
    };
    extent.terms.iter().any(|term| term.factors.iter().any(factor))
}

/// The rows of a request: dimension 0, if it is the same in all inputs.
pub fn rows(inputs: &[Value]) -> Option<usize> {
    let rows = |value: &Value| value.as_tensor().and_then(|tensor| tensor.dims().first().copied());
    let first = inputs.first().and_then(rows)?;
    let same = inputs.iter().all(|value| rows(value) == Some(first));
    usize::try_from(first).ok().filter(|count| same && *count > 0)
}

/// The extents of inputs after dimension 0.
pub fn row_shapes(inputs: &[Value]) -> Vec<Vec<i64>> {
    let rest = |value: &Value| value.as_tensor().and_then(|t| t.dims().get(1..)).unwrap_or_default().to_vec();
    inputs.iter().map(rest).collect()
}

/// Whether requests can be joined: all inputs have the same types and extents after dimension 0.
pub fn same_rows(a: &[Value], b: &[Value]) -> bool {
    a.len() == b.len()
        && a.iter().zip(b).all(|(a, b)| match (a.as_tensor(), b.as_tensor()) {
            (Some(a), Some(b)) => a.dtype() == b.dtype() && a.dims().get(1..) == b.dims().get(1..),
            _ => false,
        })
}

/// Joins inputs of several requests along dimension 0. `None` where they do not fit together.
pub fn join(requests: &[&[Value]]) -> Option<Vec<Value>> {
    let count = requests.first()?.len();
    (0..count).map(|input| join_one(requests, input)).collect()
}

fn join_one(requests: &[&[Value]], input: usize) -> Option<Value> {
    let tensors = requests.iter().map(|values| values.get(input)?.as_tensor()).collect::<Option<Vec<&Tensor>>>()?;
    let first = tensors.first()?;
    let mut dims = first.dims().to_vec();
    let mut rows = 0_i64;
    for tensor in &tensors {
        let fits = tensor.dtype() == first.dtype() && tensor.dims().get(1..) == first.dims().get(1..);
        rows = rows.checked_add(*tensor.dims().first()?).filter(|_| fits)?;
    }
    *dims.first_mut()? = rows;
    let joined = match first.data() {
        TensorData::Strings(_) => {
            let texts = tensors.iter().filter_map(|t| t.strings()).flatten().cloned().collect();
            Tensor::from_strings(dims, texts)
        }
        TensorData::Bytes(_) => {
            let parts: Vec<&[u8]> = tensors.iter().filter_map(|t| t.bytes()).collect();
            let mut bytes = AlignedBytes::zeroed(parts.iter().map(|p| p.len()).sum());
            let mut at = 0;
            for part in parts {
                bytes.get_mut(at..at + part.len())?.copy_from_slice(part);
                at += part.len();
            }
            Tensor::new(first.dtype(), dims, bytes)
        }
    };
    joined.ok().map(Value::Tensor)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(dims: &[i64], elements: &[f32]) -> Value {
        Tensor::from_elements(dims, elements).unwrap().into()
    }

    #[test]
    fn requests_are_joined() {
        let (a, b) = ([value(&[1, 2], &[1.0, 2.0])], [value(&[2, 2], &[3.0, 4.0, 5.0, 6.0])]);
        let joined = join(&[&a, &b]).unwrap();
        assert_eq!(joined, [value(&[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])]);
        assert_eq!(join(&[&a, &[value(&[1, 3], &[0.0; 3])]]), None);
        assert_eq!((rows(&a), rows(&b), rows(&[value(&[], &[0.0])])), (Some(1), Some(2), None));
        assert_eq!(rows(&[value(&[1], &[0.0]), value(&[2], &[0.0; 2])]), None);
        let text = |texts: &[&str]| -> Value {
            Tensor::from_strings([texts.len() as i64], texts.iter().map(|t| (*t).to_owned()).collect()).unwrap().into()
        };
        let joined = join(&[&[text(&["a"])], &[text(&["b", "c"])]]).unwrap();
        assert_eq!(joined, [text(&["a", "b", "c"])]);
    }
}
