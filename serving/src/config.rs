//! How a model is served: `config.pbtxt` of its folder, as far as this server supports it, over the server's defaults.

use std::time::Duration;

use of_plan::ElementType;

use crate::datatype;
use crate::ensemble::{self, EnsembleConfig};
use crate::pbtxt::{self, Field, Message, Value};
use crate::sequence_config::{SequenceConfig, sequence_batching};
use crate::warmup::{Warmup, warmup};

/// How a model is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelConfig {
    /// Which versions of the folder are loaded.
    pub versions: VersionPolicy,
    /// Most rows of a batch, and of a request where a configuration states it; 0 and 1 run each request alone.
    pub max_batch_size: usize,
    /// Whether a configuration states [`ModelConfig::max_batch_size`]: the model must then have a batch axis.
    pub batching_is_required: bool,
    /// Sizes that a batch should have, ascending.
    pub preferred_batch_sizes: Vec<usize>,
    /// How long a request may wait for others.
    pub max_queue_delay: Duration,
    /// Requests that may wait; further ones are refused.
    pub max_queue_size: usize,
    /// How long a request may wait where it does not say so itself.
    pub default_timeout: Option<Duration>,
    /// Whether a request may state another time.
    pub allow_timeout_override: bool,
    /// The priority of requests that state none.
    pub default_priority: u64,
    /// Levels of priority; 0 is any number of them.
    pub priority_levels: u64,
    /// Sessions that run requests at the same time.
    pub instances: usize,
    /// The file of a version, where it has another name than `model.plan` or `model.onnx`.
    pub file: Option<String>,
    /// How requests that belong together are served, where a configuration says it.
    pub sequences: Option<SequenceConfig>,
    /// Sequences of requests at the same time; further ones are refused.
    pub max_sequences: usize,
    /// How long a sequence may have no request. It ends then.
    pub max_sequence_idle: Duration,
    /// The outputs that a configuration lists.
    pub outputs: Vec<String>,
    /// The models of an ensemble.
    pub ensemble: Option<EnsembleConfig>,
    /// Requests that run before the model is ready.
    pub warmups: Vec<Warmup>,
}

/// Which versions of a model are loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VersionPolicy {
    /// The largest numbers.
    Latest(usize),
    /// All of them.
    All,
    /// These.
    Specific(Vec<u64>),
}

impl Default for ModelConfig {
    fn default() -> Self {
        Self {
            versions: VersionPolicy::Latest(1),
            max_batch_size: 8,
            batching_is_required: false,
            preferred_batch_sizes: Vec::new(),
            max_queue_delay: Duration::ZERO,
            max_queue_size: 256,
            default_timeout: None,
            allow_timeout_override: true,
            default_priority: 0,
            priority_levels: 0,
            instances: 1,
            file: None,
            sequences: None,
            max_sequences: 1024,
            max_sequence_idle: Duration::from_secs(60),
            outputs: Vec::new(),
            warmups: Vec::new(),
            ensemble: None,
        }
    }
}

impl ModelConfig {
    /// The configuration of the model `name` from the text of its `config.pbtxt`; what it does not state is as here.
    ///
    /// # Errors
    /// When the text is malformed, or states what is not supported.
    pub fn with_text(&self, name: &str, text: &str) -> Result<ModelConfig, String> {
        let message = pbtxt::parse(text)?;
        let mut config = self.clone();
        let mut scheduled = false;
        if is_ensemble(&message) {
            config.ensemble = Some(EnsembleConfig::default());
        }
        for field in &message.fields {
            match field.name.as_str() {
                "name" if string(field)? == name => {}
                "name" => return wrong(field, &format!("is not the name of the folder, '{name}'")),
                "platform" if string(field)? == "ensemble" => {}
                "platform" | "backend" if ["of_opt", "onnxruntime", "onnxruntime_onnx"].contains(&string(field)?) => {}
                "platform" | "backend" => return wrong(field, "is neither of_opt nor onnxruntime"),
                "max_batch_size" => {
                    config.max_batch_size = number(field)?;
                    config.batching_is_required = config.max_batch_size > 0;
                }
                "input" | "output" if config.ensemble.is_some() => {
                    let declared = ensemble::declared(field)?;
                    let ensemble = config.ensemble.get_or_insert_default();
                    let tensors = if field.name == "input" { &mut ensemble.inputs } else { &mut ensemble.outputs };
                    tensors.push(declared);
                }
                "ensemble_scheduling" => {
                    config.ensemble.get_or_insert_default().steps = ensemble::steps(message_of(field)?)?;
                }
                "sequence_batching" | "instance_group" | "default_model_filename" if config.ensemble.is_some() => {
                    return wrong(field, "is not supported in an ensemble");
                }
                // The plan knows them, and is right.
                "input" => {}
                "output" => {
                    let name = message_of(field)?.fields.iter().find(|field| field.name == "name");
                    config.outputs.extend(name.map(string).transpose()?.map(str::to_owned));
                }
                "version_policy" => config.versions = version_policy(message_of(field)?)?,
                "dynamic_batching" | "sequence_batching" if std::mem::replace(&mut scheduled, true) => {
                    return wrong(field, "excludes the other way of batching, which is given as well");
                }
                "sequence_batching" => {
                    config.sequences = Some(sequence_batching(message_of(field)?, &mut config)?);
                }
                "dynamic_batching" => dynamic_batching(message_of(field)?, &mut config)?,
                "instance_group" => config.instances = instances(message_of(field)?)?,
                "model_warmup" => config.warmups.push(warmup(field)?),
                "default_model_filename" => config.file = Some(file_name(field)?),
                _ => return wrong(field, "is not supported"),
            }
        }
        if let Some(ensemble) = &config.ensemble {
            let states = |name: &str| message.fields.iter().any(|field| field.name == name);
            for (missing, name) in [
                (ensemble.steps.is_empty(), "ensemble_scheduling with a step"),
                (ensemble.inputs.is_empty(), "input"),
                (ensemble.outputs.is_empty(), "output"),
                (!states("platform"), "platform: \"ensemble\""),
            ] {
                if missing {
                    return Err(format!("an ensemble needs {name}"));
                }
            }
        }
        Ok(config)
    }
}

fn is_ensemble(message: &Message) -> bool {
    let is_text = |field: &Field| matches!(&field.value, Value::Text(text) if text == "ensemble");
    message.fields.iter().any(|f| f.name == "ensemble_scheduling" || (f.name == "platform" && is_text(f)))
}

/// The name of a file in a folder, without a path.
pub fn file_name(field: &Field) -> Result<String, String> {
    let name = string(field)?;
    match name.contains('/') || name.is_empty() || name.starts_with('.') {
        true => wrong(field, "is not the name of a file in the folder"),
        false => Ok(name.to_owned()),
    }
}

fn version_policy(message: &Message) -> Result<VersionPolicy, String> {
    let [field] = &message.fields[..] else {
        return Err("version_policy has exactly one of latest, all, specific".into());
    };
    match field.name.as_str() {
        "all" => Ok(VersionPolicy::All),
        "latest" => match &message_of(field)?.fields[..] {
            [] => Ok(VersionPolicy::Latest(1)),
            [count] if count.name == "num_versions" => Ok(VersionPolicy::Latest(number(count)?)),
            [other, ..] => wrong(other, "is not supported"),
        },
        "specific" => {
            let versions = message_of(field)?.fields.iter();
            Ok(VersionPolicy::Specific(versions.map(|f| Ok(number(f)? as u64)).collect::<Result<_, String>>()?))
        }
        _ => wrong(field, "is not supported"),
    }
}

fn dynamic_batching(message: &Message, config: &mut ModelConfig) -> Result<(), String> {
    for field in &message.fields {
        match field.name.as_str() {
            "preferred_batch_size" => config.preferred_batch_sizes.push(number(field)?),
            "max_queue_delay_microseconds" => config.max_queue_delay = micros(field)?,
            "priority_levels" => config.priority_levels = number(field)? as u64,
            "default_priority_level" => config.default_priority = number(field)? as u64,
            "default_queue_policy" => queue_policy(message_of(field)?, config)?,
            _ => return wrong(field, "is not supported"),
        }
    }
    config.preferred_batch_sizes.sort_unstable();
    Ok(())
}

fn queue_policy(message: &Message, config: &mut ModelConfig) -> Result<(), String> {
    for field in &message.fields {
        match field.name.as_str() {
            "timeout_action" if word(field)? == "REJECT" => {}
            "timeout_action" => return wrong(field, "can only be REJECT"),
            "default_timeout_microseconds" => {
                config.default_timeout = Some(micros(field)?).filter(|t| !t.is_zero());
            }
            "allow_timeout_override" => config.allow_timeout_override = word(field)? == "true",
            // As Triton: 0 is no limit.
            "max_queue_size" => config.max_queue_size = Some(number(field)?).filter(|n| *n > 0).unwrap_or(usize::MAX),
            _ => return wrong(field, "is not supported"),
        }
    }
    Ok(())
}

fn instances(message: &Message) -> Result<usize, String> {
    const MOST: usize = 64;
    let mut count = 1;
    for field in &message.fields {
        match field.name.as_str() {
            "count" => count = number(field)?,
            "name" => {}
            "kind" if ["KIND_AUTO", "KIND_CPU", "KIND_MODEL"].contains(&word(field)?) => {}
            "kind" => return wrong(field, "is not KIND_CPU"),
            _ => return wrong(field, "is not supported"),
        }
    }
    if (1..=MOST).contains(&count) {
        Ok(count)
    } else {
        Err(format!("instance_group: count is a number from 1 to {MOST}"))
    }
}

/// The error of a field.
pub fn wrong<T>(field: &Field, what: &str) -> Result<T, String> {
    let value = match &field.value {
        Value::Word(text) | Value::Text(text) => format!(" '{}'", text.escape_debug()),
        Value::Message(_) => String::new(),
    };
    Err(format!("line {}: {}{value} {what}", field.line, field.name))
}

/// A field's message.
pub fn message_of(field: &Field) -> Result<&Message, String> {
    match &field.value {
        Value::Message(message) => Ok(message),
        _ => wrong(field, "is not a message in braces"),
    }
}

/// A field's text.
pub fn string(field: &Field) -> Result<&str, String> {
    match &field.value {
        Value::Text(text) => Ok(text),
        _ => wrong(field, "is not text in quotes"),
    }
}

/// A field's word.
pub fn word(field: &Field) -> Result<&str, String> {
    match &field.value {
        Value::Word(word) => Ok(word),
        _ => wrong(field, "is not a single word"),
    }
}

/// A field's natural number.
pub fn number(field: &Field) -> Result<usize, String> {
    word(field)?.parse().or_else(|_| wrong(field, "is not a natural number"))
}

/// A field's data type.
pub fn data_type(field: &Field) -> Result<ElementType, String> {
    match datatype::of_config(word(field)?) {
        Some(dtype) => Ok(dtype),
        None => wrong(field, "is not a data type of the protocol"),
    }
}

/// A field's extent, -1 where it is open.
pub fn extent(field: &Field) -> Result<i64, String> {
    word(field)?.parse().ok().filter(|n| *n >= -1).map_or_else(|| wrong(field, "is not an extent"), Ok)
}

/// A field's number of microseconds.
pub fn micros(field: &Field) -> Result<Duration, String> {
    Ok(Duration::from_micros(number(field)? as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_are_read() {
        let text = "name: \"m\" platform: \"onnxruntime_onnx\" max_batch_size: 16
            input [ { name: \"x\" data_type: TYPE_FP32 dims: [ 3 ] } ]
            version_policy: { specific { versions: [1, 3] } }
            instance_group [ { count: 2 kind: KIND_CPU } ]
            dynamic_batching {
              preferred_batch_size: [ 8, 4 ] max_queue_delay_microseconds: 100
              default_queue_policy { max_queue_size: 0 default_timeout_microseconds: 5000 timeout_action: REJECT }
            }";
        let config = ModelConfig::default().with_text("m", text).unwrap();
        assert_eq!((config.max_batch_size, config.batching_is_required, config.instances), (16, true, 2));
        assert_eq!(config.preferred_batch_sizes, [4, 8]);
        assert_eq!((config.max_queue_size, config.versions), (usize::MAX, VersionPolicy::Specific(vec![1, 3])));
        assert_eq!(config.default_timeout, Some(Duration::from_millis(5)));
    }

    #[test]
    fn what_is_not_supported_is_an_error() {
        let error = |text: &str| ModelConfig::default().with_text("m", text).unwrap_err();
        assert_eq!(error("optimization { }"), "line 1: optimization is not supported");
        assert_eq!(error("platform: \"ensemble\""), "an ensemble needs ensemble_scheduling with a step");
        assert!(error("ensemble_scheduling { step { } }").contains("line 1: step has no model_name"));
        assert!(
            error("ensemble_scheduling { step { model_name: \"a\" input_map { key: \"x\" } } }").contains("a value")
        );
        assert!(error("ensemble_scheduling { step { model_name: \"a\" model_version: 0.5 } }").contains("no number"));
        assert_eq!(error("\nname: \"n\""), "line 2: name 'n' is not the name of the folder, 'm'");
        assert_eq!(error("max_batch_size: -1"), "line 1: max_batch_size '-1' is not a natural number");
        assert!(error("default_model_filename: \"../x\"").contains("is not the name of a file"));
        assert!(error("instance_group { kind: KIND_GPU }").contains("is not KIND_CPU"));
        assert!(error("instance_group { count: 1000000 }").contains("from 1 to 64"));
    }
}
