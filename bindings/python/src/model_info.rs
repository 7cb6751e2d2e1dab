//! What an ONNX model says of itself: metadata, and the declared types of its inputs and outputs, as onnxruntime writes them.

use std::path::PathBuf;

use of_diag::{Code, Diagnostics};
use of_driver::error;
use of_onnx::proto::tensor_proto::DataType;
use of_onnx::proto::tensor_shape_proto::dimension::Value as Dim;
use of_onnx::proto::type_proto::Value as TypeValue;
use of_onnx::proto::{GraphProto, ModelProto, TensorShapeProto, TypeProto, ValueInfoProto};
use prost::Message;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::raised;

/// The metadata of a model: a file, or bytes.
#[pyfunction]
#[pyo3(signature = (path, bytes))]
pub fn model_info<'py>(py: Python<'py>, path: Option<PathBuf>, bytes: Option<Vec<u8>>) -> PyResult<Bound<'py, PyDict>> {
    let read = || -> Result<ModelProto, Diagnostics> {
        match path {
            Some(path) => Ok(of_onnx::read_model(&path)?),
            None => ModelProto::decode(&bytes.unwrap_or_default()[..])
                .map_err(|e| error(Code::MODEL, format!("the bytes are not an ONNX model: {e}")).into()),
        }
    };
    let model = py.detach(read).map_err(|e| raised(py, &e))?;
    let graph = model.graph.unwrap_or_default();
    let info = PyDict::new(py);
    let is_default = |value: &&ValueInfoProto| {
        let is = |name: &Option<String>| *name == value.name;
        graph.initializer.iter().any(|i| is(&i.name))
    };
    let overridable: Vec<String> = graph.input.iter().filter(is_default).map(|v| v.name().to_owned()).collect();
    let inputs = values(graph.input.iter().filter(|v| !is_default(v)));
    info.set_item("inputs", inputs)?;
    info.set_item("outputs", values(graph.output.iter()))?;
    info.set_item("overridable", overridable)?;
    info.set_item("producer_name", model.producer_name.unwrap_or_default())?;
    info.set_item("domain", model.domain.unwrap_or_default())?;
    // What onnxruntime says of a model without a version.
    info.set_item("version", model.model_version.unwrap_or(i64::MAX))?;
    info.set_item("description", model.doc_string.unwrap_or_default())?;
    let GraphProto { name, doc_string, .. } = graph;
    info.set_item("graph_name", name.unwrap_or_default())?;
    info.set_item("graph_description", doc_string.unwrap_or_default())?;
    let metadata = PyDict::new(py);
    for entry in model.metadata_props {
        metadata.set_item(entry.key.unwrap_or_default(), entry.value.unwrap_or_default())?;
    }
    info.set_item("metadata", metadata)?;
    Ok(info)
}

/// An extent: a number, a name, or nothing.
#[derive(IntoPyObject)]
enum Extent {
    Fixed(i64),
    Named(String),
    Open(Option<i64>),
}

/// Name, type and shape of values; the shape is `None` if none is declared.
type ValueText = (String, String, Option<Vec<Extent>>);

fn values<'a>(list: impl Iterator<Item = &'a ValueInfoProto>) -> Vec<ValueText> {
    let one = |value: &ValueInfoProto| {
        let ty = value.r#type.clone().unwrap_or_default();
        let shape = match &ty.value {
            Some(TypeValue::TensorType(tensor)) => tensor.shape.as_ref().map(extents),
            _ => None,
        };
        (value.name().to_owned(), type_text(&ty), shape)
    };
    list.map(one).collect()
}

fn extents(shape: &TensorShapeProto) -> Vec<Extent> {
    let one = |dim: &of_onnx::proto::tensor_shape_proto::Dimension| match &dim.value {
        // Some exporters write -1 for an open extent.
        Some(Dim::DimValue(number)) if *number >= 0 => Extent::Fixed(*number),
        Some(Dim::DimParam(name)) if !name.is_empty() => Extent::Named(name.clone()),
        _ => Extent::Open(None),
    };
    shape.dim.iter().map(one).collect()
}

/// A type as onnxruntime writes it: `tensor(float)`, `seq(map(int64,tensor(float)))`.
fn type_text(ty: &TypeProto) -> String {
    let inner = |ty: &Option<Box<TypeProto>>| ty.as_ref().map(|ty| type_text(ty)).unwrap_or_default();
    match &ty.value {
        Some(TypeValue::TensorType(tensor)) => format!("tensor({})", element(tensor.elem_type)),
        Some(TypeValue::SparseTensorType(tensor)) => format!("sparse_tensor({})", element(tensor.elem_type)),
        Some(TypeValue::SequenceType(sequence)) => format!("seq({})", inner(&sequence.elem_type)),
        Some(TypeValue::OptionalType(optional)) => format!("optional({})", inner(&optional.elem_type)),
        Some(TypeValue::MapType(map)) => format!("map({},{})", element(map.key_type), inner(&map.value_type)),
        Some(TypeValue::OpaqueType(_)) => "opaque".into(),
        None => String::new(),
    }
}

fn element(number: Option<i32>) -> &'static str {
    match DataType::try_from(number.unwrap_or(0)).unwrap_or(DataType::Undefined) {
        DataType::Float => "float",
        DataType::Uint8 => "uint8",
        DataType::Int8 => "int8",
        DataType::Uint16 => "uint16",
        DataType::Int16 => "int16",
        DataType::Int32 => "int32",
        DataType::Int64 => "int64",
        DataType::String => "string",
        DataType::Bool => "bool",
        DataType::Float16 => "float16",
        DataType::Double => "double",
        DataType::Uint32 => "uint32",
        DataType::Uint64 => "uint64",
        DataType::Complex64 => "complex64",
        DataType::Complex128 => "complex128",
        DataType::Bfloat16 => "bfloat16",
        DataType::Float8e4m3fn => "float8e4m3fn",
        DataType::Float8e4m3fnuz => "float8e4m3fnuz",
        DataType::Float8e5m2 => "float8e5m2",
        DataType::Float8e5m2fnuz => "float8e5m2fnuz",
        DataType::Uint4 => "uint4",
        DataType::Int4 => "int4",
        DataType::Float4e2m1 => "float4e2m1",
        DataType::Float8e8m0 => "float8e8m0",
        DataType::Uint2 => "uint2",
        DataType::Int2 => "int2",
        _ => "undefined",
    }
}
