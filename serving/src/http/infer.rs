//! Inference requests and answers over HTTP: JSON, with tensors in it or after it.

use std::time::Duration;

use bytes::Bytes;
use of_runtime::Tensor;
use serde_json::{Map, Value, json};

use crate::core::Core;
use crate::datatype;
use crate::error::ServeError;
use crate::frames::Frames;
use crate::infer::{InferRequest, OutputPlace, RequestedOutput, SequenceId, SequenceStep, SharedRange, tensor};
use crate::model::InferResponse;

use super::elements;
use super::fields::{self, Header, Input};

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
    let Header { fields: object, inputs } = fields::read(header)?;
    let object = &object;
    let mut request = InferRequest { model, version, id: text(object, "id")?.to_owned(), ..InferRequest::default() };
    let mut binary = false;
    if let Some(parameters) = optional(object, "parameters", Value::as_object, "an object")? {
        binary = optional(parameters, "binary_data_output", Value::as_bool, "a Boolean")?.unwrap_or(false);
        request.priority = optional(parameters, "priority", Value::as_u64, "a natural number")?.unwrap_or(0);
        let timeout = optional(parameters, "timeout", Value::as_u64, "a number of microseconds")?;
        request.timeout = timeout.filter(|t| *t > 0).map(Duration::from_micros);
        request.sequence = sequence(parameters)?;
    }
    for input in inputs.ok_or_else(|| ServeError::invalid("the request has no 'inputs'"))? {
        request.inputs.push(read_input(&input, rest, core)?);
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

fn read_input(input: &Input<'_>, rest: &mut Frames, core: &Core) -> Result<(String, Tensor), ServeError> {
    let object = &input.fields;
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
            let bytes = usize::try_from(len).ok().and_then(|len| rest.split_front(len, align));
            let short = || ServeError::invalid(format!("its {len} bytes are not there: the request is too short"));
            return tensor(dtype, &shape, bytes.ok_or_else(short)?);
        }
        let data = input.data.ok_or_else(|| ServeError::invalid("it has no 'data'"))?;
        elements::read(dtype, &shape, data.get())
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

fn is_binary(place: &OutputPlace, binary: bool) -> bool {
    matches!(place, OutputPlace::Binary) || (matches!(place, OutputPlace::Default) && binary)
}

/// The bytes of an answer that become JSON or are compressed.
pub fn bytes_to_convert(answer: &InferResponse, binary: bool, compressed: bool) -> usize {
    let is_json = |place: &OutputPlace| !is_binary(place, binary) && !matches!(place, OutputPlace::Shared(_));
    let outputs = answer.outputs.iter().filter(|(_, place)| compressed || is_json(place));
    outputs.map(|(output, _)| output.data.len()).sum()
}

fn add(out: &mut Vec<u8>, text: impl AsRef<str>) {
    out.extend_from_slice(text.as_ref().as_bytes());
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
    let mut header = Vec::with_capacity(256);
    add(&mut header, "{\"model_name\":");
    add(&mut header, json!(answer.model.name).to_string());
    add(&mut header, format!(",\"model_version\":\"{}\"", answer.model.version));
    if !id.is_empty() {
        add(&mut header, ",\"id\":");
        add(&mut header, json!(id).to_string());
    }
    add(&mut header, ",\"outputs\":[");
    for (number, (output, place)) in answer.outputs.into_iter().enumerate() {
        if number > 0 {
            header.push(b',');
        }
        add(&mut header, "{\"name\":");
        add(&mut header, json!(output.name).to_string());
        add(&mut header, format!(",\"datatype\":\"{}\",\"shape\":{:?},", output.datatype(), output.shape));
        match place {
            OutputPlace::Shared(range) => {
                core.regions.write(&range, &output.data)?;
                let parameters = json!({
                    "shared_memory_region": range.region,
                    "shared_memory_offset": range.offset,
                    "shared_memory_byte_size": output.data.len(),
                });
                add(&mut header, format!("\"parameters\":{parameters}}}"));
            }
            place if is_binary(&place, binary) => {
                add(&mut header, format!("\"parameters\":{{\"binary_data_size\":{}}}}}", output.data.len()));
                tensors.push(output.data);
            }
            _ => {
                add(&mut header, "\"data\":[");
                elements::write(&output, &mut header)?;
                add(&mut header, "]}");
            }
        }
    }
    add(&mut header, "]}");
    let len = (!tensors.is_empty()).then_some(header.len());
    tensors.insert(0, header.into());
    Ok((tensors, len))
}
