//! Descriptions of the server and its models as JSON.

use serde_json::{Value, json};

use crate::proto::model_ensembling::Step;
use crate::proto::model_sequence_batching::{
    Control, ControlInput, InitialState, State, StrategyChoice, initial_state::StateData,
};
use crate::proto::{
    DataType, ModelConfig, ModelMetadataResponse, ModelSequenceBatching, ModelStatistics, RepositoryIndexResponse,
    ServerMetadataResponse, StatisticDuration, model_config::SchedulingChoice, model_metadata_response::TensorMetadata,
    model_version_policy::PolicyChoice,
};
use crate::shared_memory::Region;

/// The server.
pub fn server(s: &ServerMetadataResponse) -> Value {
    json!({"name": s.name, "version": s.version, "extensions": s.extensions})
}

/// A model.
pub fn metadata(m: &ModelMetadataResponse) -> Value {
    let tensors = |list: &[TensorMetadata]| -> Vec<Value> {
        list.iter().map(|t| json!({"name": t.name, "datatype": t.datatype, "shape": t.shape})).collect()
    };
    json!({"name": m.name, "versions": m.versions, "platform": m.platform, "inputs": tensors(&m.inputs),
        "outputs": tensors(&m.outputs)})
}

/// How a model is served.
pub fn config(c: &ModelConfig) -> Value {
    let tensor = |name: &str, data_type: i32, dims: &[i64]| {
        let data_type = DataType::try_from(data_type).unwrap_or_default().as_str_name();
        json!({"name": name, "data_type": data_type, "dims": dims})
    };
    let versions = match c.version_policy.as_ref().and_then(|p| p.policy_choice.as_ref()) {
        Some(PolicyChoice::All(_)) => json!({"all": {}}),
        Some(PolicyChoice::Specific(s)) => json!({"specific": {"versions": s.versions}}),
        Some(PolicyChoice::Latest(l)) => json!({"latest": {"num_versions": l.num_versions}}),
        None => json!({}),
    };
    let instances =
        |g: &crate::proto::ModelInstanceGroup| json!({"name": g.name, "kind": "KIND_CPU", "count": g.count});
    let mut config = json!({
        "name": c.name,
        "platform": c.platform,
        "backend": c.backend,
        "version_policy": versions,
        "max_batch_size": c.max_batch_size,
        "input": c.input.iter().map(|i| tensor(&i.name, i.data_type, &i.dims)).collect::<Vec<_>>(),
        "output": c.output.iter().map(|o| tensor(&o.name, o.data_type, &o.dims)).collect::<Vec<_>>(),
        "instance_group": c.instance_group.iter().map(instances).collect::<Vec<_>>(),
        "default_model_filename": c.default_model_filename,
    });
    if let Some(SchedulingChoice::DynamicBatching(b)) = &c.scheduling_choice {
        let queue = b.default_queue_policy.unwrap_or_default();
        config["dynamic_batching"] = json!({
            "preferred_batch_size": b.preferred_batch_size,
            "max_queue_delay_microseconds": b.max_queue_delay_microseconds,
            "priority_levels": b.priority_levels,
            "default_priority_level": b.default_priority_level,
            "default_queue_policy": {
                "timeout_action": "REJECT",
                "default_timeout_microseconds": queue.default_timeout_microseconds,
                "allow_timeout_override": queue.allow_timeout_override,
                "max_queue_size": queue.max_queue_size,
            },
        });
    }
    if let Some(SchedulingChoice::EnsembleScheduling(ensemble)) = &c.scheduling_choice {
        let step = |step: &Step| {
            json!({"model_name": step.model_name, "model_version": step.model_version, "input_map": step.input_map,
                "output_map": step.output_map})
        };
        config["ensemble_scheduling"] = json!({"step": ensemble.step.iter().map(step).collect::<Vec<_>>()});
    }
    if let Some(SchedulingChoice::SequenceBatching(s)) = &c.scheduling_choice {
        config["sequence_batching"] = sequences(s);
    }
    config
}

fn sequences(s: &ModelSequenceBatching) -> Value {
    let data_type = |number: i32| DataType::try_from(number).unwrap_or_default().as_str_name();
    let control = |c: &Control| {
        json!({"kind": c.kind().as_str_name(), "int32_false_true": c.int32_false_true, "fp32_false_true": c.fp32_false_true,
            "bool_false_true": c.bool_false_true, "data_type": data_type(c.data_type)})
    };
    let input = |input: &ControlInput| json!({"name": input.name, "control": input.control.iter().map(control).collect::<Vec<_>>()});
    let initial = |i: &InitialState| {
        let mut initial = json!({"name": i.name, "data_type": data_type(i.data_type), "dims": i.dims});
        match &i.state_data {
            Some(StateData::DataFile(file)) => initial["data_file"] = json!(file),
            _ => initial["zero_data"] = json!(true),
        }
        initial
    };
    let state = |s: &State| {
        json!({"input_name": s.input_name, "output_name": s.output_name, "data_type": data_type(s.data_type),
            "dims": s.dims, "initial_state": s.initial_state.iter().map(initial).collect::<Vec<_>>()})
    };
    let mut all = json!({
        "max_sequence_idle_microseconds": s.max_sequence_idle_microseconds,
        "control_input": s.control_input.iter().map(input).collect::<Vec<_>>(),
        "state": s.state.iter().map(state).collect::<Vec<_>>(),
    });
    match &s.strategy_choice {
        Some(StrategyChoice::Oldest(oldest)) => {
            all["oldest"] = json!({"max_candidate_sequences": oldest.max_candidate_sequences,
                "preferred_batch_size": oldest.preferred_batch_size,
                "max_queue_delay_microseconds": oldest.max_queue_delay_microseconds});
        }
        Some(StrategyChoice::Direct(direct)) => {
            all["direct"] = json!({"max_queue_delay_microseconds": direct.max_queue_delay_microseconds});
        }
        None => {}
    }
    all
}

/// Counters of models.
pub fn statistics(models: &[ModelStatistics]) -> Value {
    let duration = |d: &Option<StatisticDuration>| {
        let d = d.unwrap_or_default();
        json!({"count": d.count, "ns": d.ns})
    };
    let model = |m: &ModelStatistics| {
        let s = m.inference_stats.unwrap_or_default();
        let batch = |b: &crate::proto::InferBatchStatistics| {
            json!({"batch_size": b.batch_size, "compute_input": duration(&b.compute_input),
                "compute_infer": duration(&b.compute_infer), "compute_output": duration(&b.compute_output)})
        };
        let memory = |u: &crate::proto::MemoryUsage| json!({"type": u.r#type, "id": u.id, "byte_size": u.byte_size});
        json!({
            "name": m.name,
            "version": m.version,
            "last_inference": m.last_inference,
            "inference_count": m.inference_count,
            "execution_count": m.execution_count,
            "inference_stats": {
                "success": duration(&s.success), "fail": duration(&s.fail), "queue": duration(&s.queue),
                "compute_input": duration(&s.compute_input), "compute_infer": duration(&s.compute_infer),
                "compute_output": duration(&s.compute_output), "cache_hit": duration(&s.cache_hit),
                "cache_miss": duration(&s.cache_miss),
            },
            "batch_stats": m.batch_stats.iter().map(batch).collect::<Vec<_>>(),
            "memory_usage": m.memory_usage.iter().map(memory).collect::<Vec<_>>(),
        })
    };
    json!({"model_stats": models.iter().map(model).collect::<Vec<_>>()})
}

/// The models of the repository.
pub fn index(index: &RepositoryIndexResponse) -> Value {
    let entry = |m: &crate::proto::repository_index_response::ModelIndex| {
        let mut entry = json!({"name": m.name});
        for (field, text) in [("version", &m.version), ("state", &m.state), ("reason", &m.reason)] {
            if !text.is_empty() {
                entry[field] = json!(text);
            }
        }
        entry
    };
    Value::Array(index.models.iter().map(entry).collect())
}

/// Regions of shared memory.
pub fn regions(regions: &[(String, Region)]) -> Value {
    let region =
        |(name, r): &(String, Region)| json!({"name": name, "key": r.key, "offset": r.offset, "byte_size": r.len});
    Value::Array(regions.iter().map(region).collect())
}

/// The settings of traces: a list of levels, and a text for each other one.
pub fn trace_settings(settings: &[(&str, Vec<String>)]) -> Value {
    let value = |(name, values): &(&str, Vec<String>)| {
        let value = if *name == "trace_level" { json!(values) } else { json!(values.concat()) };
        ((*name).to_owned(), value)
    };
    Value::Object(settings.iter().map(value).collect())
}
