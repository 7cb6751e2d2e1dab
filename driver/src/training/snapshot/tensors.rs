//! Tensors with their names, as safetensors.

use std::collections::BTreeMap;
use std::path::Path;

use of_diag::{Code, Diagnostics};
use of_plan::ElementType;
use of_runtime::Tensor;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};

use super::place::write_durably;
use crate::error::{error, io_error};

/// The type that safetensors has for an element type.
pub fn dtype(of: ElementType) -> Option<Dtype> {
    Some(match of {
        ElementType::F64 => Dtype::F64,
        ElementType::F32 => Dtype::F32,
        ElementType::F16 => Dtype::F16,
        ElementType::Bf16 => Dtype::BF16,
        ElementType::I64 => Dtype::I64,
        ElementType::I32 => Dtype::I32,
        ElementType::I16 => Dtype::I16,
        ElementType::I8 => Dtype::I8,
        ElementType::Ui8 => Dtype::U8,
        ElementType::I1 => Dtype::BOOL,
        _ => return None,
    })
}

/// The error of a variable whose type safetensors lacks.
pub fn lacks(name: &str, dtype: ElementType) -> Diagnostics {
    error(Code::UNSUPPORTED, format!("variable '{name}' is {dtype}, which safetensors lacks")).into()
}

/// Writes tensors to a file, which appears whole or not at all.
///
/// # Errors
/// When the file cannot be written, or a value has a type that safetensors lacks.
pub fn write_tensors(
    path: &Path,
    values: &[(String, Tensor)],
    metadata: BTreeMap<String, String>,
) -> Result<(), Diagnostics> {
    let mut sorted: Vec<(Dtype, &String, &Tensor)> = Vec::with_capacity(values.len());
    for (name, value) in values {
        sorted.push((dtype(value.dtype()).ok_or_else(|| lacks(name, value.dtype()))?, name, value));
    }
    // The order of the library: elements are aligned.
    sorted.sort_by(|(one, name, _), (other, other_name, _)| other.cmp(one).then(name.cmp(other_name)));
    let mut end = 0;
    let tensors = sorted.iter().map(|(dtype, name, value)| {
        let start = end;
        end += bytes(value).len();
        let shape = value.dims().iter().map(|d| *d as usize).collect();
        ((*name).clone(), TensorInfo { dtype: *dtype, shape, data_offsets: (start, end) })
    });
    let header = header(metadata, tensors.collect());
    let header = header.map_err(|e| error(Code::IO, format!("{}: {e}", path.display())))?;
    let written = write_durably(path, |out| {
        out.write_all(&header)?;
        sorted.iter().try_for_each(|(.., value)| out.write_all(bytes(value)))
    });
    written.map_err(|e| io_error(path, "written", &e).into())
}

fn bytes(value: &Tensor) -> &[u8] {
    value.bytes().unwrap_or_default()
}

/// What precedes the bytes of tensors, whose offsets ascend. The library has metadata in a hash table, whose order is another one in each process.
/// Here it is in the order of names, so that equal tensors make equal files.
///
/// # Errors
/// When safetensors lacks such tensors.
pub fn header(metadata: BTreeMap<String, String>, tensors: Vec<(String, TensorInfo)>) -> Result<Vec<u8>, String> {
    #[derive(serde::Serialize)]
    struct Header {
        #[serde(rename = "__metadata__")]
        metadata: BTreeMap<String, String>,
        #[serde(flatten)]
        tensors: Metadata,
    }
    let tensors = Metadata::new(None, tensors).map_err(|e| e.to_string())?;
    let mut text = serde_json::to_vec(&Header { metadata, tensors }).map_err(|e| e.to_string())?;
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut header = (text.len() as u64).to_le_bytes().to_vec();
    header.extend(text);
    Ok(header)
}

#[cfg(test)]
mod tests {
    use safetensors::tensor::TensorView;

    use super::*;

    #[test]
    fn files_are_those_of_the_library() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.safetensors");
        let values: Vec<(String, Tensor)> = vec![
            ("b".into(), Tensor::from_elements(vec![2, 3], &[1f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap()),
            ("flags".into(), Tensor::from_bytes(ElementType::I1, vec![3], &[1, 0, 1]).unwrap()),
            ("a".into(), Tensor::from_elements(vec![1], &[7f32]).unwrap()),
            ("step".into(), Tensor::from_elements(Vec::new(), &[9i64]).unwrap()),
            ("empty".into(), Tensor::from_elements::<f32>(vec![0], &[]).unwrap()),
        ];
        let metadata = BTreeMap::from([("step".to_string(), "9".to_string())]);
        write_tensors(&path, &values, metadata.clone()).unwrap();
        let view = |value: &Tensor| {
            let dims = value.dims().iter().map(|d| *d as usize).collect();
            TensorView::new(dtype(value.dtype()).unwrap(), dims, bytes(value).to_vec().leak()).unwrap()
        };
        let views: Vec<(String, TensorView<'_>)> =
            values.iter().map(|(name, value)| (name.clone(), view(value))).collect();
        let metadata = Some(metadata.into_iter().collect());
        assert_eq!(std::fs::read(&path).unwrap(), safetensors::serialize(views, metadata).unwrap());
    }

    #[test]
    fn metadata_is_in_the_order_of_names() {
        let names = ["step", "seed", "batch", "samples", "format", "ema", "optimizer", "accumulate", "validation"];
        let metadata = names.map(|name| (name.to_string(), format!("of {name}")));
        let written = header(metadata.into_iter().collect(), Vec::new()).unwrap();
        let text = std::str::from_utf8(&written[8..]).unwrap();
        let places: Vec<usize> = {
            let mut sorted = names;
            sorted.sort_unstable();
            sorted.iter().map(|name| text.find(&format!("\"{name}\":")).unwrap()).collect()
        };
        assert!(text.starts_with("{\"__metadata__\":{\"accumulate\":") && places.is_sorted(), "{text}");
    }
}
