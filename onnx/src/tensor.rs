//! `TensorProto` to tensor.

use of_diag::{Code, Diagnostic, Location};
use of_ir::{Blob, DType, Elements, Tensor};

use crate::external::{External, FILE_FAULT};
use crate::proto::tensor_proto::{DataLocation, DataType};
use crate::proto::{SparseTensorProto, TensorProto};

/// The element type with ONNX number `n`, or an error.
pub(crate) fn dtype(n: i64) -> Result<DType, Diagnostic> {
    let known = i32::try_from(n).ok().and_then(|n| DataType::try_from(n).ok());
    Ok(match known {
        Some(DataType::Float) => DType::F32,
        Some(DataType::Uint8) => DType::U8,
        Some(DataType::Int8) => DType::I8,
        Some(DataType::Uint16) => DType::U16,
        Some(DataType::Int16) => DType::I16,
        Some(DataType::Int32) => DType::I32,
        Some(DataType::Int64) => DType::I64,
        Some(DataType::String) => DType::String,
        Some(DataType::Bool) => DType::Bool,
        Some(DataType::Float16) => DType::F16,
        Some(DataType::Double) => DType::F64,
        Some(DataType::Uint32) => DType::U32,
        Some(DataType::Uint64) => DType::U64,
        Some(DataType::Bfloat16) => DType::BF16,
        Some(DataType::Float8e4m3fn) => DType::F8E4M3FN,
        Some(DataType::Float8e4m3fnuz) => DType::F8E4M3FNUZ,
        Some(DataType::Float8e5m2) => DType::F8E5M2,
        Some(DataType::Float8e5m2fnuz) => DType::F8E5M2FNUZ,
        Some(DataType::Uint4) => DType::U4,
        Some(DataType::Int4) => DType::I4,
        Some(DataType::Float4e2m1) => DType::F4E2M1FN,
        Some(DataType::Float8e8m0) => DType::F8E8M0FNU,
        Some(DataType::Uint2) => DType::U2,
        Some(DataType::Int2) => DType::I2,
        Some(DataType::Undefined) => return Err(invalid("an element type is not given".into())),
        Some(other) => {
            let name = other.as_str_name().to_lowercase();
            let message = format!("element type {name} is not supported");
            return Err(Diagnostic::error(Code::UNSUPPORTED, Location::Unknown, message));
        }
        None => return Err(invalid(format!("there is no element type {n}"))),
    })
}

/// The number that ONNX gives `dtype`.
pub(crate) fn onnx_dtype(dtype: DType) -> i32 {
    let n = match dtype {
        DType::F64 => DataType::Double,
        DType::F32 => DataType::Float,
        DType::F16 => DataType::Float16,
        DType::BF16 => DataType::Bfloat16,
        DType::F8E4M3FN => DataType::Float8e4m3fn,
        DType::F8E4M3FNUZ => DataType::Float8e4m3fnuz,
        DType::F8E5M2 => DataType::Float8e5m2,
        DType::F8E5M2FNUZ => DataType::Float8e5m2fnuz,
        DType::F8E8M0FNU => DataType::Float8e8m0,
        DType::F4E2M1FN => DataType::Float4e2m1,
        DType::I2 => DataType::Int2,
        DType::I4 => DataType::Int4,
        DType::I8 => DataType::Int8,
        DType::I16 => DataType::Int16,
        DType::I32 => DataType::Int32,
        DType::I64 => DataType::Int64,
        DType::U2 => DataType::Uint2,
        DType::U4 => DataType::Uint4,
        DType::U8 => DataType::Uint8,
        DType::U16 => DataType::Uint16,
        DType::U32 => DataType::Uint32,
        DType::U64 => DataType::Uint64,
        DType::Bool => DataType::Bool,
        DType::String => DataType::String,
    };
    n as i32
}

/// A tensor in its stored form. The bytes are shared.
pub(crate) fn tensor_proto(t: &Tensor) -> TensorProto {
    let mut p = TensorProto {
        dims: t.dims().iter().map(|d| *d as i64).collect(),
        data_type: Some(onnx_dtype(t.dtype())),
        ..TensorProto::default()
    };
    match (t.bytes(), t.strings()) {
        (Some(bytes), _) => p.raw_data = Some(bytes::Bytes::from_owner(bytes.clone())),
        (None, strings) => {
            p.string_data =
                strings.unwrap_or_default().iter().map(|s| bytes::Bytes::copy_from_slice(s.as_bytes())).collect();
        }
    }
    p
}

pub(crate) fn invalid(message: String) -> Diagnostic {
    Diagnostic::error(Code::MODEL, Location::Unknown, message)
}

/// Dimensions as they are stored: none negative, and a size that memory can address.
fn dims(stored: &[i64]) -> Result<(Vec<usize>, usize), Diagnostic> {
    let fail = || invalid(format!("a tensor cannot have shape {stored:?}"));
    let dims: Vec<usize> = stored.iter().map(|d| usize::try_from(*d)).collect::<Result<_, _>>().map_err(|_| fail())?;
    let n = dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d)).filter(|n| *n <= 1 << 48).ok_or_else(fail)?;
    Ok((dims, n))
}

/// The value of a stored tensor. Raw and external bytes are shared, typed fields are converted.
pub(crate) fn tensor(proto: &TensorProto, external: &External) -> Result<Tensor, Diagnostic> {
    read(proto, external).map_err(|mut d| {
        // A fault of a file of external data is the same for every tensor in it.
        let of_file = d.message.starts_with(FILE_FAULT);
        if !proto.name().is_empty() && !of_file && !d.message.contains(proto.name()) {
            d.message = format!("tensor '{}': {}", proto.name(), d.message);
        }
        d
    })
}

fn read(proto: &TensorProto, external: &External) -> Result<Tensor, Diagnostic> {
    if proto.segment.is_some() {
        return Err(Diagnostic::error(Code::UNSUPPORTED, Location::Unknown, "a tensor in segments is not supported"));
    }
    let dtype = dtype(proto.data_type().into())?;
    let (dims, n) = dims(&proto.dims)?;
    let outside = proto.data_location() == DataLocation::External;
    if dtype == DType::String {
        if outside || proto.raw_data.is_some() {
            return Err(invalid("strings must be stored in string_data".into()));
        }
        let text =
            |b: &bytes::Bytes| String::from_utf8(b.to_vec()).map_err(|_| invalid("a string is not UTF-8".into()));
        let strings = proto.string_data.iter().map(text).collect::<Result<_, _>>()?;
        return Tensor::from_strings(dims, strings).map_err(|e| invalid(e.to_string()));
    }
    let blob = match &proto.raw_data {
        _ if outside => external.bytes(proto)?,
        Some(raw) => Blob::from_owner(raw.clone()),
        None => Blob::new(typed(proto, dtype, n)?),
    };
    // Any byte but 0 and 1 would break what everything else relies on.
    let blob = if dtype == DType::Bool && blob.iter().any(|b| *b > 1) {
        Blob::new(blob.iter().map(|b| u8::from(*b != 0)).collect())
    } else {
        blob
    };
    let code = if outside { Code::EXTERNAL_DATA } else { Code::MODEL };
    Tensor::from_bytes(dtype, dims, blob).map_err(|e| Diagnostic::error(code, Location::Unknown, e.to_string()))
}

/// The bytes of a tensor whose elements are in the field of their type.
fn typed(proto: &TensorProto, dtype: DType, n: usize) -> Result<Vec<u8>, Diagnostic> {
    // Elements that share a byte share an entry.
    let entries = if dtype.is_packed() { dtype.byte_len(n).unwrap_or(n) } else { n };
    let check = |got: usize, field: &str| {
        let fits = got == entries;
        fits.then_some(()).ok_or_else(|| invalid(format!("it needs {entries} entries in {field}, there are {got}")))
    };
    Ok(match dtype {
        DType::F32 => {
            check(proto.float_data.len(), "float_data")?;
            proto.float_data.iter().flat_map(|x| x.to_le_bytes()).collect()
        }
        DType::F64 => {
            check(proto.double_data.len(), "double_data")?;
            proto.double_data.iter().flat_map(|x| x.to_le_bytes()).collect()
        }
        DType::I64 => {
            check(proto.int64_data.len(), "int64_data")?;
            proto.int64_data.iter().flat_map(|x| x.to_le_bytes()).collect()
        }
        DType::U64 | DType::U32 => {
            check(proto.uint64_data.len(), "uint64_data")?;
            let width = if dtype == DType::U64 { 8 } else { 4 };
            proto.uint64_data.iter().flat_map(|x| x.to_le_bytes().into_iter().take(width)).collect()
        }
        // All other types are the low bits of 32-bit entries: integers, bool, and bit patterns of small floats.
        _ => {
            check(proto.int32_data.len(), "int32_data")?;
            let width = dtype.bits().unwrap_or(8).div_ceil(8);
            proto.int32_data.iter().flat_map(|x| x.to_le_bytes().into_iter().take(width)).collect()
        }
    })
}

/// The largest sparse tensor that is made dense.
const MAX_DENSE: usize = 1 << 28;

/// A sparse tensor as a dense one.
pub(crate) fn dense(proto: &SparseTensorProto, external: &External) -> Result<Tensor, Diagnostic> {
    let part = |t: &Option<TensorProto>, what: &str| {
        let t = t.as_ref().ok_or_else(|| invalid(format!("a sparse tensor has no {what}")))?;
        tensor(t, external)
    };
    let (dims, n) = dims(&proto.dims)?;
    if n > MAX_DENSE {
        let message = format!("a sparse tensor of {n} elements is too large to be made dense");
        return Err(Diagnostic::error(Code::UNSUPPORTED, Location::Unknown, message));
    }
    let values = part(&proto.values, "values")?;
    let indices = part(&proto.indices, "indices")?;
    let bad = || invalid("the indices of a sparse tensor do not fit its shape".into());
    let flat = indices.to_i64s().ok_or_else(bad)?;
    let offsets: Vec<usize> = match indices.dims() {
        [count] if *count == values.len() => {
            flat.iter().map(|i| usize::try_from(*i)).collect::<Result<_, _>>().map_err(|_| bad())?
        }
        [count, rank] if *count == values.len() && *rank == dims.len() && *rank > 0 => flat
            .chunks_exact(*rank)
            .map(|index| {
                index.iter().zip(&dims).try_fold(0usize, |at, (i, d)| {
                    let i = usize::try_from(*i).ok().filter(|i| i < d)?;
                    Some(at * d + i)
                })
            })
            .collect::<Option<_>>()
            .ok_or_else(bad)?,
        _ => return Err(bad()),
    };
    fn scatter<T: Clone>(n: usize, zero: T, offsets: &[usize], values: Vec<T>) -> Option<Vec<T>> {
        let mut out = vec![zero; n];
        for (at, v) in offsets.iter().zip(values) {
            *out.get_mut(*at)? = v;
        }
        Some(out)
    }
    let elements = match values.elements() {
        Elements::Float(v) => scatter(n, 0.0, &offsets, v).map(Elements::Float),
        Elements::Int(v) => scatter(n, 0, &offsets, v).map(Elements::Int),
        Elements::Str(v) => scatter(n, String::new(), &offsets, v).map(Elements::Str),
    };
    Tensor::from_elements(values.dtype(), dims, elements.ok_or_else(bad)?).map_err(|e| invalid(e.to_string()))
}
