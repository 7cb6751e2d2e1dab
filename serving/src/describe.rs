//! What both protocols say of the server and its models, as messages of the gRPC protocol.

use std::sync::atomic::Ordering::Relaxed;

use of_plan::ElementType;
use of_runtime::Element;

use crate::config::{ModelConfig, VersionPolicy};
use crate::datatype;
use crate::ensemble::{EnsembleConfig, StepConfig};
use crate::error::ServeError;
use crate::model::{ModelVersion, TensorInfo};
use crate::proto::{
    self, InferBatchStatistics, InferStatistics, MemoryUsage, ModelDynamicBatching, ModelInput, ModelInstanceGroup,
    ModelMetadataResponse, ModelOutput, ModelQueuePolicy, ModelStatistics, ModelVersionPolicy, RepositoryIndexResponse,
    ServerMetadataResponse, StatisticDuration, model_config::SchedulingChoice, model_version_policy as policy,
};
use crate::repository::{self, Repository};
use crate::sequence_config::{Control, ControlKind, State};
use crate::stats::Total;

/// The name of the server.
pub const NAME: &str = "of-opt";
/// The platform of models that are no ensembles.
const PLATFORM: &str = "of_opt";

/// The server, and the extensions of the protocol that it has.
pub fn server() -> ServerMetadataResponse {
    let extensions = [
        "classification",
        "model_repository",
        "model_configuration",
        "schedule_policy",
        "sequence",
        "system_shared_memory",
        "binary_tensor_data",
        "parameters",
        "statistics",
        "trace",
    ];
    ServerMetadataResponse {
        name: NAME.into(),
        version: env!("CARGO_PKG_VERSION").into(),
        extensions: extensions.map(String::from).to_vec(),
    }
}

/// A model: its inputs and outputs.
pub fn metadata(model: &ModelVersion, versions: &[u64]) -> ModelMetadataResponse {
    let tensor = |info: &TensorInfo| proto::model_metadata_response::TensorMetadata {
        name: info.name.clone(),
        datatype: datatype::name(info.dtype).unwrap_or_default().into(),
        shape: info.shape.clone(),
    };
    ModelMetadataResponse {
        name: model.name.clone(),
        versions: versions.iter().map(u64::to_string).collect(),
        platform: platform(model).into(),
        inputs: model.inputs.iter().map(tensor).collect(),
        outputs: model.outputs.iter().map(tensor).collect(),
    }
}

/// How a model is served.
pub fn config(model: &ModelVersion) -> proto::ModelConfig {
    let own = &model.config;
    let int = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    // With batches, the extents are those of a row.
    let dims = |info: &TensorInfo| info.shape.get(usize::from(model.batches)..).unwrap_or_default().to_vec();
    let input = |info: &TensorInfo| ModelInput {
        name: info.name.clone(),
        data_type: datatype::config_type(info.dtype) as i32,
        dims: dims(info),
    };
    let output = |info: &TensorInfo| ModelOutput {
        name: info.name.clone(),
        data_type: datatype::config_type(info.dtype) as i32,
        dims: dims(info),
    };
    let versions = match &own.versions {
        VersionPolicy::All => policy::PolicyChoice::All(policy::All {}),
        VersionPolicy::Latest(n) => policy::PolicyChoice::Latest(policy::Latest { num_versions: int(*n) as u32 }),
        VersionPolicy::Specific(list) => {
            policy::PolicyChoice::Specific(policy::Specific { versions: list.iter().map(|v| *v as i64).collect() })
        }
    };
    let micros = |d: std::time::Duration| u64::try_from(d.as_micros()).unwrap_or(u64::MAX);
    let batching = ModelDynamicBatching {
        preferred_batch_size: own.preferred_batch_sizes.iter().map(|n| int(*n)).collect(),
        max_queue_delay_microseconds: micros(own.max_queue_delay),
        priority_levels: own.priority_levels,
        default_priority_level: own.default_priority,
        default_queue_policy: Some(ModelQueuePolicy {
            timeout_action: 0,
            default_timeout_microseconds: own.default_timeout.map_or(0, micros),
            allow_timeout_override: own.allow_timeout_override,
            max_queue_size: u32::try_from(own.max_queue_size).unwrap_or(0),
        }),
    };
    proto::ModelConfig {
        name: model.name.clone(),
        platform: platform(model).into(),
        backend: if own.ensemble.is_some() { String::new() } else { PLATFORM.into() },
        version_policy: Some(ModelVersionPolicy { policy_choice: Some(versions) }),
        max_batch_size: if model.batches { int(own.max_batch_size) } else { 0 },
        input: model.inputs.iter().map(input).collect(),
        output: model.outputs.iter().map(output).collect(),
        instance_group: vec![ModelInstanceGroup {
            name: model.name.clone(),
            kind: proto::model_instance_group::Kind::Cpu as i32,
            count: int(own.instances),
        }],
        default_model_filename: own.file.clone().unwrap_or_default(),
        scheduling_choice: match &own.ensemble {
            Some(ensemble) => Some(SchedulingChoice::EnsembleScheduling(steps(ensemble))),
            None if model.has_sequences() => Some(SchedulingChoice::SequenceBatching(sequences(own))),
            None => model.batches.then_some(SchedulingChoice::DynamicBatching(batching)),
        },
    }
}

fn platform(model: &ModelVersion) -> &'static str {
    if model.config.ensemble.is_some() { "ensemble" } else { PLATFORM }
}

/// The models of an ensemble.
fn steps(ensemble: &EnsembleConfig) -> proto::ModelEnsembling {
    let step = |step: &StepConfig| proto::model_ensembling::Step {
        model_name: step.model.clone(),
        model_version: step.version.and_then(|n| i64::try_from(n).ok()).unwrap_or(-1),
        input_map: step.inputs.iter().cloned().collect(),
        output_map: step.outputs.iter().cloned().collect(),
    };
    proto::ModelEnsembling { step: ensemble.steps.iter().map(step).collect() }
}

/// How requests that belong together are served.
fn sequences(config: &ModelConfig) -> proto::ModelSequenceBatching {
    use proto::model_sequence_batching as own;
    let given = config.sequences.clone().unwrap_or_default();
    let micros = |d: std::time::Duration| u64::try_from(d.as_micros()).unwrap_or(u64::MAX);
    let delay = micros(config.max_queue_delay);
    let oldest = own::StrategyOldest {
        max_candidate_sequences: i32::try_from(config.max_sequences).unwrap_or(i32::MAX),
        preferred_batch_size: config.preferred_batch_sizes.iter().map(|n| *n as i32).collect(),
        max_queue_delay_microseconds: delay,
    };
    let direct = own::StrategyDirect { max_queue_delay_microseconds: delay, minimum_slot_utilization: 0.0 };
    let state = |state: &State| own::State {
        input_name: state.input.clone(),
        output_name: state.output.clone(),
        data_type: state.dtype.map_or(0, |dtype| datatype::config_type(dtype) as i32),
        dims: state.dims.clone(),
        initial_state: vec![own::InitialState {
            data_type: state.dtype.map_or(0, |dtype| datatype::config_type(dtype) as i32),
            dims: state.dims.clone(),
            name: String::new(),
            state_data: Some(match &state.file {
                Some(file) => own::initial_state::StateData::DataFile(file.clone()),
                None => own::initial_state::StateData::ZeroData(true),
            }),
        }],
    };
    proto::ModelSequenceBatching {
        max_sequence_idle_microseconds: micros(config.max_sequence_idle),
        control_input: given.controls.iter().map(control).collect(),
        state: given.states.iter().map(state).collect(),
        strategy_choice: Some(match given.oldest {
            true => own::StrategyChoice::Oldest(oldest),
            false => own::StrategyChoice::Direct(direct),
        }),
    }
}

fn control(control: &Control) -> proto::model_sequence_batching::ControlInput {
    use proto::model_sequence_batching::{Control as Message, control::Kind};
    let mut message = Message::default();
    let (kind, flag) = match &control.kind {
        ControlKind::Start(flag) => (Kind::ControlSequenceStart, Some(flag)),
        ControlKind::End(flag) => (Kind::ControlSequenceEnd, Some(flag)),
        ControlKind::Ready(flag) => (Kind::ControlSequenceReady, Some(flag)),
        ControlKind::Id(dtype) => {
            message.data_type = datatype::config_type(*dtype) as i32;
            (Kind::ControlSequenceCorrid, None)
        }
    };
    message.set_kind(kind);
    if let Some(flag) = flag {
        let both = [&flag.no[..], &flag.yes[..]];
        match flag.dtype {
            ElementType::F32 => message.fp32_false_true = both.map(f32::load).to_vec(),
            ElementType::I32 => message.int32_false_true = both.map(i32::load).to_vec(),
            _ => message.bool_false_true = both.map(bool::load).to_vec(),
        }
    }
    proto::model_sequence_batching::ControlInput { name: control.input.clone(), control: vec![message] }
}

/// The counters of a version of a model.
pub fn statistics(model: &ModelVersion) -> ModelStatistics {
    let stats = &model.stats;
    let total = |t: &Total| Some(StatisticDuration { count: t.count(), ns: t.nanos() });
    let none = || Some(StatisticDuration::default());
    let batch = |(size, batch): (usize, crate::stats::BatchStats)| {
        let duration = |ns: u64| Some(StatisticDuration { count: batch.count, ns });
        InferBatchStatistics {
            batch_size: size as u64,
            compute_input: duration(batch.nanos[0]),
            compute_infer: duration(batch.nanos[1]),
            compute_output: duration(batch.nanos[2]),
        }
    };
    ModelStatistics {
        name: model.name.clone(),
        version: model.version.to_string(),
        last_inference: stats.last.load(Relaxed),
        inference_count: stats.rows.load(Relaxed),
        execution_count: stats.runs.load(Relaxed),
        inference_stats: Some(InferStatistics {
            success: total(&stats.success),
            fail: total(&stats.failure),
            queue: total(&stats.queue),
            compute_input: total(&stats.input),
            compute_infer: total(&stats.run),
            compute_output: total(&stats.output),
            cache_hit: none(),
            cache_miss: none(),
        }),
        batch_stats: stats.batches().into_iter().map(batch).collect(),
        memory_usage: vec![MemoryUsage { r#type: "CPU".into(), id: 0, byte_size: model.memory }],
        response_stats: Default::default(),
    }
}

/// The counters of the models that a client asks for: all of them, one model, or one version.
///
/// # Errors
/// When there is no such model.
pub fn statistics_of(repository: &Repository, name: &str, version: &str) -> Result<Vec<ModelStatistics>, ServeError> {
    if !name.is_empty() {
        return Ok(vec![statistics(&*repository.get(name, version)?)]);
    }
    Ok(repository.ready().iter().map(|model| statistics(model)).collect())
}

/// The models of the repository.
///
/// # Errors
/// When a folder cannot be read.
pub fn index(repository: &Repository, only_ready: bool) -> Result<RepositoryIndexResponse, ServeError> {
    let entry = |e: crate::repository::IndexEntry| proto::repository_index_response::ModelIndex {
        name: e.name,
        version: e.version.map(|v| v.to_string()).unwrap_or_default(),
        state: e.state.as_ref().map_or("", repository::State::name).into(),
        reason: match e.state {
            Some(repository::State::Unavailable(why)) => why,
            _ => String::new(),
        },
    };
    let all = repository.index()?.into_iter();
    let wanted = all.filter(|e| !only_ready || matches!(e.state, Some(repository::State::Ready(_))));
    Ok(RepositoryIndexResponse { models: wanted.map(entry).collect() })
}
