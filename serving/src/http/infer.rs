//! Inference requests and answers over HTTP: JSON, with tensors in it or after it.

use std::time::Duration;

use bytes::Bytes;
use of_plan::ElementType;
use of_runtime::{Element, Tensor};
use serde_json::{Map, Value, json};

use crate::core::Core;
use crate::datatype;
use crate::error::ServeError;
use crate::frames::Frames;
use crate::infer::{
    InferRequest, OutputPlace, OutputTensor, RequestedOutput, SequenceId, SequenceStep, SharedRange, tensor,
};
use crate::model::InferResponse;

/// Reads a request: the JSON header, and the binary tensors that follow it. Returns whether outputs are binary where the request does not say it
/// for each.
///
/// # Errors
/// When it is malformed.
pub fn request(
    model: String,
    version: String,
    header: &[u8],
    rest: &mut Frames,
    core: &Core,
) -> Result<(InferRequest, bool), ServeError> {
    let json: Value =
        serde_json::from_slice(header).map_err(|e| ServeError::invalid(format!("the request is not JSON: {e}")))?;
    let object = json.as_object().ok_or_else(|| ServeError::invalid("the request is not a JSON object"))?;
    let mut request = InferRequest { model, version, id: text(object, "id")?.to_owned(), ..InferRequest::default() };
    let mut binary = false;
    if let Some(parameters) = optional(object, "parameters", Value::as_object, "an object")? {
        binary = optional(parameters, "binary_data_output", Value::as_bool, "a Boolean")?.unwrap_or(false);
        request.priority = optional(parameters, "priority", Value::as_u64, "a natural number")?.unwrap_or(0);
        let timeout = optional(parameters, "timeout", Value::as_u64, "a number of microseconds")?;
        request.timeout = timeout.filter(|t| *t > 0).map(Duration::from_micros);
        request.sequence = sequence(parameters)?;
    }
    let inputs = optional(object, "inputs", Value::as_array, "an array")?;
    for input in inputs.ok_or_else(|| ServeError::invalid("the request has no 'inputs'"))? {
        request.inputs.push(read_input(input, rest, core)?);
    }
    for output in optional(object, "outputs", Value::as_array, "an array")?.into_iter().flatten() {
        request.outputs.push(requested(output)?);
    }
    if rest.len() > 0 {
        return Err(ServeError::invalid(format!("{} bytes follow the last tensor of the request", rest.len())));
    }
    Ok((request, binary))
}

fn sequence(parameters: &Map<String, Value>) -> Result<Option<SequenceStep>, ServeError> {
    let id = match parameters.get("sequence_id") {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => SequenceId::text(text)?,
        Some(number) => {
            let wrong = || ServeError::invalid("'sequence_id' is neither a natural number nor a string");
            SequenceId::number(number.as_u64().ok_or_else(wrong)?)
        }
    };
    let flag =
        |name: &str| Ok::<_, ServeError>(optional(parameters, name, Value::as_bool, "a Boolean")?.unwrap_or(false));
    let (start, end) = (flag("sequence_start")?, flag("sequence_end")?);
    Ok(id.map(|id| SequenceStep { id, start, end }))
}

/// A field of an object, if it is there.
///
/// # Errors
/// When it is something else.
pub fn optional<'v, T>(
    object: &'v Map<String, Value>,
    name: &str,
    convert: impl Fn(&'v Value) -> Option<T>,
    what: &str,
) -> Result<Option<T>, ServeError> {
    match object.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let wrong = || ServeError::invalid(format!("'{name}' is not {what}"));
            convert(value).map(Some).ok_or_else(wrong)
        }
    }
}

fn text<'v>(object: &'v Map<String, Value>, name: &str) -> Result<&'v str, ServeError> {
    Ok(optional(object, name, Value::as_str, "a string")?.unwrap_or(""))
}

fn shared(parameters: Option<&Map<String, Value>>) -> Result<Option<SharedRange>, ServeError> {
    let Some(parameters) = parameters else { return Ok(None) };
    let Some(region) = optional(parameters, "shared_memory_region", Value::as_str, "a string")? else {
        return Ok(None);
    };
    let number = |name: &str| optional(parameters, name, Value::as_u64, "a natural number");
    let len = number("shared_memory_byte_size")?;
    Ok(Some(SharedRange {
        region: region.to_owned(),
        offset: number("shared_memory_offset")?.unwrap_or(0),
        len: len.ok_or_else(|| ServeError::invalid("'shared_memory_byte_size' is missing"))?,
    }))
}

fn read_input(input: &Value, rest: &mut Frames, core: &Core) -> Result<(String, Tensor), ServeError> {
    let object = input.as_object().ok_or_else(|| ServeError::invalid("an input is not an object"))?;
    let name = text(object, "name")?.to_owned();
    let in_input = |e: ServeError| ServeError::new(e.kind, format!("input '{}': {}", name.escape_debug(), e.message));
    let dtype = datatype::parse(text(object, "datatype")?).map_err(in_input)?;
    let shape = optional(object, "shape", Value::as_array, "an array").map_err(in_input)?;
    let shape = shape.map(|dims| dims.iter().map(Value::as_i64).collect::<Option<Vec<i64>>>());
    let shape = shape.flatten().ok_or_else(|| in_input(ServeError::invalid("'shape' is not an array of numbers")))?;
    let parameters = optional(object, "parameters", Value::as_object, "an object").map_err(in_input)?;
    let binary = match parameters {
        Some(p) => optional(p, "binary_data_size", Value::as_u64, "a natural number").map_err(in_input)?,
        None => None,
    };
    let mut read = || -> Result<Tensor, ServeError> {
        if let Some(range) = shared(parameters)? {
            return tensor(dtype, &shape, core.regions.read(&range)?);
        }
        if let Some(len) = binary {
            let align = usize::try_from(dtype.align()).unwrap_or(1);
            let bytes = usize::try_from(len).ok().and_then(|len| rest.take(len, align));
            let short = || ServeError::invalid(format!("its {len} bytes are not there: the request is too short"));
            return tensor(dtype, &shape, bytes.ok_or_else(short)?);
        }
        let data = object.get("data").ok_or_else(|| ServeError::invalid("it has no 'data'"))?;
        from_json(dtype, &shape, data)
    };
    let tensor = read().map_err(in_input)?;
    Ok((name, tensor))
}

fn requested(output: &Value) -> Result<RequestedOutput, ServeError> {
    let object = output.as_object().ok_or_else(|| ServeError::invalid("an output is not an object"))?;
    let name = text(object, "name")?.to_owned();
    let parameters = optional(object, "parameters", Value::as_object, "an object")?;
    let mut wanted = RequestedOutput { name, ..RequestedOutput::default() };
    let Some(parameters) = parameters else { return Ok(wanted) };
    let classes = optional(parameters, "classification", Value::as_u64, "a natural number")?.unwrap_or(0);
    wanted.classes = usize::try_from(classes).unwrap_or(usize::MAX);
    wanted.place = match (shared(Some(parameters))?, optional(parameters, "binary_data", Value::as_bool, "a Boolean")?)
    {
        (Some(range), _) => OutputPlace::Shared(range),
        (None, Some(true)) => OutputPlace::Binary,
        (None, Some(false)) => OutputPlace::Json,
        (None, None) => OutputPlace::Default,
    };
    Ok(wanted)
}

/// A tensor from an array of JSON, flat or nested as the extents say.
fn from_json(dtype: ElementType, shape: &[i64], data: &Value) -> Result<Tensor, ServeError> {
    let mut flat = Vec::new();
    flatten(data, &mut flat);
    fn of<T: Element>(
        shape: &[i64],
        flat: &[&Value],
        what: &str,
        convert: impl Fn(&Value) -> Option<T>,
    ) -> Result<Tensor, ServeError> {
        let wrong = || ServeError::invalid(format!("an element of 'data' is not {what}"));
        let elements = flat.iter().map(|v| convert(v).ok_or_else(wrong)).collect::<Result<Vec<T>, ServeError>>()?;
        Ok(Tensor::from_elements(shape, &elements)?)
    }
    fn signed<T: TryFrom<i64>>(v: &Value) -> Option<T> {
        v.as_i64()?.try_into().ok()
    }
    fn unsigned<T: TryFrom<u64>>(v: &Value) -> Option<T> {
        v.as_u64()?.try_into().ok()
    }
    let flat = &flat[..];
    match dtype {
        ElementType::I1 => {
            of(shape, flat, "a Boolean", |v| v.as_bool().or_else(|| Some(v.as_u64().filter(|n| *n < 2)? > 0)))
        }
        ElementType::Ui8 => of(shape, flat, "a UINT8", unsigned::<u8>),
        ElementType::Ui16 => of(shape, flat, "a UINT16", unsigned::<u16>),
        ElementType::Ui32 => of(shape, flat, "a UINT32", unsigned::<u32>),
        ElementType::Ui64 => of(shape, flat, "a UINT64", unsigned::<u64>),
        ElementType::I8 => of(shape, flat, "an INT8", signed::<i8>),
        ElementType::I16 => of(shape, flat, "an INT16", signed::<i16>),
        ElementType::I32 => of(shape, flat, "an INT32", signed::<i32>),
        ElementType::I64 => of(shape, flat, "an INT64", signed::<i64>),
        ElementType::F32 => of(shape, flat, "a number", |v| v.as_f64().map(|x| x as f32)),
        ElementType::F64 => of(shape, flat, "a number", Value::as_f64),
        ElementType::String => {
            let wrong = || ServeError::invalid("an element of 'data' is not a string");
            let texts =
                flat.iter().map(|v| v.as_str().map(str::to_owned).ok_or_else(wrong)).collect::<Result<_, _>>()?;
            Ok(Tensor::from_strings(shape, texts)?)
        }
        _ => Err(ServeError::unsupported("JSON has no elements of this datatype; send the tensor as binary data")),
    }
}

/// The elements of nested arrays, in order. JSON's reader limits the depth.
fn flatten<'v>(value: &'v Value, out: &mut Vec<&'v Value>) {
    match value {
        Value::Array(values) => values.iter().for_each(|v| flatten(v, out)),
        element => out.push(element),
    }
}

fn is_binary(place: &OutputPlace, binary: bool) -> bool {
    matches!(place, OutputPlace::Binary) || (matches!(place, OutputPlace::Default) && binary)
}

/// The bytes of an answer that become JSON or are compressed.
pub fn bytes_to_convert(answer: &InferResponse, binary: bool, compressed: bool) -> usize {
    let is_json = |place: &OutputPlace| !is_binary(place, binary) && !matches!(place, OutputPlace::Shared(_));
    let outputs = answer.outputs.iter().filter(|(_, place)| compressed || is_json(place));
    outputs.map(|(output, _)| output.data.len()).sum()
}

/// The parts of an answer, and the length of its JSON header where binary tensors follow it.
///
/// # Errors
/// When a tensor cannot be written to JSON, or to its shared memory.
pub fn response(
    answer: InferResponse,
    id: &str,
    binary: bool,
    core: &Core,
) -> Result<(Vec<Bytes>, Option<usize>), ServeError> {
    let mut tensors = Vec::new();
    let mut header = String::with_capacity(256);
    header += "{\"model_name\":";
    header += &json!(answer.model.name).to_string();
    header += &format!(",\"model_version\":\"{}\"", answer.model.version);
    if !id.is_empty() {
        header += ",\"id\":";
        header += &json!(id).to_string();
    }
    header += ",\"outputs\":[";
    for (number, (output, place)) in answer.outputs.into_iter().enumerate() {
        if number > 0 {
            header.push(',');
        }
        header += "{\"name\":";
        header += &json!(output.name).to_string();
        header += &format!(",\"datatype\":\"{}\",\"shape\":{:?},", output.datatype(), output.shape);
        match place {
            OutputPlace::Shared(range) => {
                core.regions.write(&range, &output.data)?;
                let parameters = json!({
                    "shared_memory_region": range.region,
                    "shared_memory_offset": range.offset,
                    "shared_memory_byte_size": output.data.len(),
                });
                header += &format!("\"parameters\":{parameters}}}");
            }
            place if is_binary(&place, binary) => {
                header += &format!("\"parameters\":{{\"binary_data_size\":{}}}}}", output.data.len());
                tensors.push(output.data);
            }
            _ => {
                header += "\"data\":[";
                to_json(&output, &mut header)?;
                header += "]}";
            }
        }
    }
    header += "]}";
    let len = (!tensors.is_empty()).then_some(header.len());
    tensors.insert(0, header.into());
    Ok((tensors, len))
}

/// Writes the elements of a tensor as JSON.
fn to_json(output: &OutputTensor, out: &mut String) -> Result<(), ServeError> {
    fn all<T: Element>(bytes: &[u8], out: &mut String, write: impl Fn(T, &mut String)) {
        for (number, part) in bytes.chunks_exact(size_of::<T>()).enumerate() {
            if number > 0 {
                out.push(',');
            }
            write(T::load(part), out);
        }
    }
    use std::fmt::Write;
    // Writing to a string cannot fail.
    macro_rules! display {
        ($($variant:ident: $type:ty = $format:literal),*) => {
            match output.dtype {
                $(ElementType::$variant => {
                    all::<$type>(&output.data, out, |x, out| {
                        let _ = write!(out, $format, x);
                    });
                })*
                ElementType::String => {
                    let texts = datatype::decode_texts(&output.data)?;
                    let texts: Vec<String> = texts.iter().map(|t| json!(t).to_string()).collect();
                    *out += &texts.join(",");
                }
                _ => return Err(ServeError::unsupported(format!(
                    "JSON has no {} of output '{}'; ask for binary data", output.datatype(), output.name
                ))),
            }
        };
    }
    if !is_finite(output) {
        let what = format!("output '{}' has NaN or an infinity, which JSON lacks; ask for binary data", output.name);
        return Err(ServeError::unsupported(what));
    }
    // Debug's form of floats has exponents, and as many digits as tell the number apart from all others.
    display!(I1: bool = "{}", Ui8: u8 = "{}", Ui16: u16 = "{}", Ui32: u32 = "{}", Ui64: u64 = "{}", I8: i8 = "{}",
        I16: i16 = "{}", I32: i32 = "{}", I64: i64 = "{}", F32: f32 = "{:?}", F64: f64 = "{:?}");
    Ok(())
}

fn is_finite(output: &OutputTensor) -> bool {
    match output.dtype {
        ElementType::F32 => output.data.chunks_exact(4).all(|part| f32::load(part).is_finite()),
        ElementType::F64 => output.data.chunks_exact(8).all(|part| f64::load(part).is_finite()),
        _ => true,
    }
}
