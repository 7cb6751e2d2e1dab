//! `sequence_batching` of config.pbtxt: how requests that belong together are served.
//!
//! Source: `ModelSequenceBatching` of Triton's `model_config.proto`.

use std::path::Path;

use of_plan::ElementType;
use of_runtime::Element;

use crate::config::{ModelConfig, data_type, extent, message_of, micros, number, string, word, wrong};
use crate::pbtxt::{Field, Message};

/// How requests that belong together are served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SequenceConfig {
    /// Inputs that the server fills.
    pub controls: Vec<Control>,
    /// Inputs whose values are outputs of the request before.
    pub states: Vec<State>,
    /// Whether the strategy is `oldest`; it is `direct` otherwise.
    pub oldest: bool,
}

/// An input that says what a request is in its sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Control {
    /// Name of the input.
    pub input: String,
    /// What it says.
    pub kind: ControlKind,
}

/// What a control input says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlKind {
    /// Whether the request is the first one.
    Start(Flag),
    /// Whether the request is the last one.
    End(Flag),
    /// Whether the input holds a request, which is always so.
    Ready(Flag),
    /// The id of the sequence, as this type.
    Id(ElementType),
}

/// Values of no and yes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flag {
    /// Their type.
    pub dtype: ElementType,
    /// The bytes of no.
    pub no: Vec<u8>,
    /// The bytes of yes.
    pub yes: Vec<u8>,
}

/// An input whose value is an output of the request before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Name of the input.
    pub input: String,
    /// Name of the output.
    pub output: String,
    /// Element type, where it is stated.
    pub dtype: Option<ElementType>,
    /// Extents, without those of a batch; empty where they are not stated.
    pub dims: Vec<i64>,
    /// The file with the value for the first request; zeros without one.
    pub file: Option<String>,
    /// The bytes in this file.
    pub initial: Option<Vec<u8>>,
}

impl SequenceConfig {
    /// Reads the files of initial states, which are in the folder `initial_state` of the model.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn read_files(&mut self, folder: &Path) -> Result<(), String> {
        for state in &mut self.states {
            let Some(file) = &state.file else { continue };
            let path = folder.join("initial_state").join(file);
            let bytes = std::fs::read(&path).map_err(|e| format!("'{}' cannot be read: {e}", path.display()))?;
            state.initial = Some(bytes);
        }
        Ok(())
    }
}

/// Reads the message `sequence_batching`.
///
/// # Errors
/// When it states what is not supported.
pub fn sequence_batching(message: &Message, config: &mut ModelConfig) -> Result<SequenceConfig, String> {
    let mut sequences = SequenceConfig::default();
    for field in &message.fields {
        match field.name.as_str() {
            "max_sequence_idle_microseconds" => config.max_sequence_idle = micros(field)?,
            "direct" => strategy(message_of(field)?, config, false)?,
            "oldest" => {
                sequences.oldest = true;
                strategy(message_of(field)?, config, true)?;
            }
            "control_input" => sequences.controls.push(control_input(field)?),
            "state" => sequences.states.push(state(field)?),
            _ => return wrong(field, "is not supported"),
        }
    }
    Ok(sequences)
}

fn strategy(message: &Message, config: &mut ModelConfig, oldest: bool) -> Result<(), String> {
    for field in &message.fields {
        match field.name.as_str() {
            "max_queue_delay_microseconds" => config.max_queue_delay = micros(field)?,
            "preferred_batch_size" if oldest => config.preferred_batch_sizes.push(number(field)?),
            "max_candidate_sequences" if oldest => match number(field)? {
                0 => return wrong(field, "is not a positive number"),
                most => config.max_sequences = most,
            },
            _ => return wrong(field, "is not supported"),
        }
    }
    config.preferred_batch_sizes.sort_unstable();
    Ok(())
}

fn control_input(input: &Field) -> Result<Control, String> {
    let (mut name, mut kind, mut flag, mut dtype) = (None, None, None, None);
    for field in &message_of(input)?.fields {
        match field.name.as_str() {
            "name" => name = Some(string(field)?.to_owned()),
            "control" if kind.is_some() => return wrong(field, "is given twice for one input"),
            "control" => {
                let fields = &message_of(field)?.fields;
                let values = |name: &str| fields.iter().filter(|f| f.name == name).collect::<Vec<_>>();
                for field in fields {
                    match field.name.as_str() {
                        "kind" => kind = Some(word(field)?.to_owned()),
                        "int32_false_true" => flag = Some(of_values::<i32>(&values(&field.name), ElementType::I32)?),
                        "fp32_false_true" => flag = Some(of_values::<f32>(&values(&field.name), ElementType::F32)?),
                        "bool_false_true" => flag = Some(of_values::<bool>(&values(&field.name), ElementType::I1)?),
                        "data_type" => dtype = Some(data_type(field)?),
                        _ => return wrong(field, "is not supported"),
                    }
                }
            }
            _ => return wrong(field, "is not supported"),
        }
    }
    let Some(name) = name else { return wrong(input, "has no name") };
    let kind = match (kind.as_deref(), flag, dtype) {
        (Some("CONTROL_SEQUENCE_START"), Some(flag), _) => ControlKind::Start(flag),
        (Some("CONTROL_SEQUENCE_END"), Some(flag), _) => ControlKind::End(flag),
        (Some("CONTROL_SEQUENCE_READY"), Some(flag), _) => ControlKind::Ready(flag),
        (Some("CONTROL_SEQUENCE_CORRID"), _, Some(dtype)) => ControlKind::Id(dtype),
        (Some("CONTROL_SEQUENCE_CORRID"), _, None) => return wrong(input, "has no data_type"),
        (Some("CONTROL_SEQUENCE_START" | "CONTROL_SEQUENCE_END" | "CONTROL_SEQUENCE_READY"), None, _) => {
            return wrong(input, "has none of int32_false_true, fp32_false_true, bool_false_true");
        }
        _ => return wrong(input, "has no control with a kind that is supported"),
    };
    Ok(Control { input: name, kind })
}

fn of_values<T: Element + std::str::FromStr>(fields: &[&Field], dtype: ElementType) -> Result<Flag, String> {
    let bytes = |field: &Field| -> Result<Vec<u8>, String> {
        let value: T = word(field)?.parse().or_else(|_| wrong(field, "is not of the type that its name says"))?;
        let mut bytes = vec![0; size_of::<T>()];
        value.store(&mut bytes);
        Ok(bytes)
    };
    match fields {
        [no, yes] => Ok(Flag { dtype, no: bytes(no)?, yes: bytes(yes)? }),
        [first, ..] => wrong(first, "is not one of two values: no, and yes"),
        [] => Err("a control input has no values".into()),
    }
}

fn state(whole: &Field) -> Result<State, String> {
    let (mut input, mut output, mut dtype, mut extents, mut file) = (None, None, None, Vec::new(), None);
    let mut initial = Vec::new();
    for field in &message_of(whole)?.fields {
        match field.name.as_str() {
            "input_name" => input = Some(string(field)?.to_owned()),
            "output_name" => output = Some(string(field)?.to_owned()),
            "data_type" => dtype = Some(data_type(field)?),
            "dims" => extents.push(extent(field)?),
            "initial_state" => {
                for field in &message_of(field)?.fields {
                    match field.name.as_str() {
                        "name" => {}
                        "data_type" => dtype = Some(data_type(field)?),
                        "dims" => initial.push(extent(field)?),
                        "zero_data" if word(field)? == "true" => {}
                        "zero_data" => return wrong(field, "can only be true"),
                        "data_file" => file = Some(crate::config::file_name(field)?),
                        _ => return wrong(field, "is not supported"),
                    }
                }
            }
            _ => return wrong(field, "is not supported"),
        }
    }
    let (Some(input), Some(output)) = (input, output) else {
        return wrong(whole, "needs an input_name and an output_name");
    };
    let dims = if initial.is_empty() { extents } else { initial };
    Ok(State { input, output, dtype, dims, file, initial: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<ModelConfig, String> {
        ModelConfig::default().with_text("m", text)
    }

    #[test]
    fn sequence_batching_is_read() {
        let config = read(
            "sequence_batching {
               max_sequence_idle_microseconds: 5000000
               oldest { max_candidate_sequences: 4 }
               control_input [ { name: \"START\" control [ { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } ] },
                               { name: \"CORRID\" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] } ]
               state [ { input_name: \"past\" output_name: \"present\" data_type: TYPE_FP32 dims: [ -1, 4 ]
                         initial_state: { data_type: TYPE_FP32 dims: [ 2, 4 ] zero_data: true name: \"zeros\" } } ]
             }",
        )
        .unwrap();
        assert_eq!((config.max_sequences, config.max_sequence_idle.as_secs()), (4, 5));
        let sequences = config.sequences.unwrap();
        assert!(sequences.oldest);
        let yes = 1_f32.to_le_bytes().to_vec();
        let flag = Flag { dtype: ElementType::F32, no: vec![0; 4], yes };
        assert_eq!(sequences.controls[0], Control { input: "START".into(), kind: ControlKind::Start(flag) });
        assert_eq!(sequences.controls[1].kind, ControlKind::Id(ElementType::Ui64));
        assert_eq!((&sequences.states[0].input[..], &sequences.states[0].dims[..]), ("past", &[2, 4][..]));
    }

    #[test]
    fn mistakes_are_errors_with_their_line() {
        for (text, what) in [
            ("iterative_sequence: true", "line 1: iterative_sequence 'true' is not supported"),
            ("state { input_name: \"a\" }", "line 1: state needs an input_name and an output_name"),
            ("control_input { name: \"a\" }", "line 1: control_input has no control"),
            ("control_input { name: \"a\" control { kind: CONTROL_SEQUENCE_END } }", "has none of int32_false_true"),
            ("control_input { name: \"a\" control { kind: CONTROL_SEQUENCE_CORRID } }", "has no data_type"),
            ("control_input { control { int32_false_true: [ 1 ] } }", "is not one of two values"),
            ("oldest { max_candidate_sequences: 0 }", "is not a positive number"),
            ("state { initial_state { data_file: \"../x\" } }", "is not the name of a file"),
        ] {
            let error = read(&format!("sequence_batching {{ {text} }}")).unwrap_err();
            assert!(error.contains(what), "{error}");
        }
        assert!(read("dynamic_batching { } sequence_batching { }").unwrap_err().contains("excludes"));
    }
}
