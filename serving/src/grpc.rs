//! The Open Inference Protocol over gRPC: the service of `proto/grpc_service.proto`.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use hyper::body::Incoming;
use of_plan::ElementType;
use of_runtime::{Element, Tensor};
use of_telemetry::KeyValue;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status, Streaming};

use crate::clients::Client;
use crate::core::Core;
use crate::datatype;
use crate::describe;
use crate::error::{ErrorKind, ServeError};
use crate::grpc_message;
use crate::infer::{InferRequest, OutputPlace, RequestedOutput, SequenceId, SequenceStep, SharedRange, tensor};
use crate::model::InferResponse;
use crate::proto::grpc_inference_service_server::GrpcInferenceService;
use crate::proto::infer_parameter::ParameterChoice;
use crate::proto::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use crate::proto::model_infer_response::InferOutputTensor;
use crate::proto::system_shared_memory_status_response::RegionStatus;
use crate::proto::{
    CudaSharedMemoryRegisterRequest, CudaSharedMemoryRegisterResponse, CudaSharedMemoryStatusRequest,
    CudaSharedMemoryStatusResponse, CudaSharedMemoryUnregisterRequest, CudaSharedMemoryUnregisterResponse,
    InferParameter, InferTensorContents, LogSettingsRequest, LogSettingsResponse, ModelConfigRequest,
    ModelConfigResponse, ModelInferRequest, ModelInferResponse, ModelMetadataRequest, ModelMetadataResponse,
    ModelReadyRequest, ModelReadyResponse, ModelStatisticsRequest, ModelStatisticsResponse, ModelStreamInferResponse,
    RepositoryIndexRequest, RepositoryIndexResponse, RepositoryModelLoadRequest, RepositoryModelLoadResponse,
    RepositoryModelUnloadRequest, RepositoryModelUnloadResponse, ServerLiveRequest, ServerLiveResponse,
    ServerMetadataRequest, ServerMetadataResponse, ServerReadyRequest, ServerReadyResponse,
    SystemSharedMemoryRegisterRequest, SystemSharedMemoryRegisterResponse, SystemSharedMemoryStatusRequest,
    SystemSharedMemoryStatusResponse, SystemSharedMemoryUnregisterRequest, SystemSharedMemoryUnregisterResponse,
    TraceSettingRequest, TraceSettingResponse, log_settings_response, trace_setting_request, trace_setting_response,
};
use crate::traces::{Change, RequestTrace};

/// The name of the service.
const SERVICE: &str = "inference.GRPCInferenceService";

/// The path of the call that runs a model.
pub const MODEL_INFER: &str = "/inference.GRPCInferenceService/ModelInfer";

/// Requests of one stream that run at the same time.
const STREAM_CONCURRENCY: usize = 32;

/// The service.
pub struct Service {
    core: Arc<Core>,
}

impl Service {
    /// A service for these models.
    pub fn new(core: Arc<Core>) -> Service {
        Service { core }
    }
}

/// Runs a request.
async fn infer(
    core: &Core,
    method: &'static str,
    parent: &MetadataMap,
    request: ModelInferRequest,
    timeout: Option<Duration>,
) -> Result<ModelInferResponse, ServeError> {
    let arrival = Instant::now();
    let header = |name| parent.get(name).map(|value| value.as_bytes());
    let Some(trace) = core.traces.begin(&request.model_name, arrival, header) else {
        return infer_traced(core, request, timeout, arrival, None).await;
    };
    let attributes = [
        KeyValue::new("rpc.system", "grpc"),
        KeyValue::new("rpc.service", SERVICE),
        KeyValue::new("rpc.method", method),
        KeyValue::new("of.model.name", request.model_name.clone()),
    ];
    trace.is(&format!("{SERVICE}/{method}"), attributes);
    let result = infer_traced(core, request, timeout, arrival, Some(&trace)).await;
    let code = result.as_ref().map_or_else(|e| e.kind.grpc_code(), |_| tonic::Code::Ok);
    trace.add(KeyValue::new("rpc.grpc.status_code", i64::from(code as i32)));
    trace.answered(&result);
    result
}

/// Runs the request of a unary call.
async fn infer_once(
    core: &Core,
    metadata: &MetadataMap,
    request: ModelInferRequest,
) -> Result<ModelInferResponse, ServeError> {
    infer(core, "ModelInfer", metadata, request, timeout(metadata)).await
}

/// Answers a call of [`MODEL_INFER`] that is not compressed.
pub async fn model_infer(core: &Core, request: http::Request<Incoming>) -> http::Response<tonic::body::Body> {
    let answer = async {
        let (headers, message) = grpc_message::read(request, &core.limits).await?;
        Ok(infer_once(core, &MetadataMap::from_headers(headers), message).await?)
    };
    grpc_message::response(answer.await)
}

async fn infer_traced(
    core: &Core,
    request: ModelInferRequest,
    timeout: Option<Duration>,
    arrival: Instant,
    trace: Option<&Arc<RequestTrace>>,
) -> Result<ModelInferResponse, ServeError> {
    let mut request = read(request, core)?;
    if let Some(trace) = trace {
        trace.part("decode", arrival);
        trace.known(&request);
        request.trace = Some(Arc::clone(trace));
    }
    request.timeout = request.timeout.or(timeout);
    let id = request.id.clone();
    let limit = timeout.unwrap_or(core.limits.time).min(core.limits.time);
    let late = || ServeError::new(ErrorKind::Deadline, "the request took longer than its deadline");
    let answer = tokio::time::timeout(limit, core.repository.infer(request, arrival)).await.map_err(|_| late())??;
    let answered = trace.map(|trace| trace.ran_as(&answer));
    let written = write(answer, id, core);
    if let (Some(trace), Some(answered)) = (trace, answered) {
        trace.part("encode", answered);
    }
    written
}

/// The deadline that a client states. Source: gRPC over HTTP2, `grpc-timeout`.
fn timeout(metadata: &MetadataMap) -> Option<Duration> {
    let text = metadata.get("grpc-timeout")?.to_str().ok()?;
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number = number.parse::<u64>().ok().filter(|_| number.len() <= 8)?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

type Parameters = BTreeMap<String, InferParameter>;

fn number(parameters: &Parameters, name: &str) -> Result<Option<u64>, ServeError> {
    let wrong = || ServeError::invalid(format!("parameter '{name}' is not a natural number"));
    match parameters.get(name).and_then(|p| p.parameter_choice.as_ref()) {
        None => Ok(None),
        Some(ParameterChoice::Int64Param(n)) => u64::try_from(*n).map(Some).map_err(|_| wrong()),
        Some(ParameterChoice::Uint64Param(n)) => Ok(Some(*n)),
        Some(_) => Err(wrong()),
    }
}

fn text<'p>(parameters: &'p Parameters, name: &str) -> Result<Option<&'p str>, ServeError> {
    match parameters.get(name).and_then(|p| p.parameter_choice.as_ref()) {
        None => Ok(None),
        Some(ParameterChoice::StringParam(text)) => Ok(Some(text)),
        Some(_) => Err(ServeError::invalid(format!("parameter '{name}' is not a string"))),
    }
}

fn flag(parameters: &Parameters, name: &str) -> Result<bool, ServeError> {
    match parameters.get(name).and_then(|p| p.parameter_choice.as_ref()) {
        None => Ok(false),
        Some(ParameterChoice::BoolParam(flag)) => Ok(*flag),
        Some(_) => Err(ServeError::invalid(format!("parameter '{name}' is not a Boolean"))),
    }
}

fn sequence(parameters: &Parameters) -> Result<Option<SequenceStep>, ServeError> {
    let id = match parameters.get("sequence_id").and_then(|p| p.parameter_choice.as_ref()) {
        None => None,
        Some(ParameterChoice::StringParam(text)) => SequenceId::text(text)?,
        Some(ParameterChoice::Int64Param(number)) => SequenceId::number(number.cast_unsigned()),
        Some(ParameterChoice::Uint64Param(number)) => SequenceId::number(*number),
        Some(_) => return Err(ServeError::invalid("parameter 'sequence_id' is neither a number nor a string")),
    };
    let (start, end) = (flag(parameters, "sequence_start")?, flag(parameters, "sequence_end")?);
    Ok(id.map(|id| SequenceStep { id, start, end }))
}

fn shared(parameters: &Parameters) -> Result<Option<SharedRange>, ServeError> {
    let Some(region) = text(parameters, "shared_memory_region")? else { return Ok(None) };
    let len = number(parameters, "shared_memory_byte_size")?;
    let missing = || ServeError::invalid("parameter 'shared_memory_byte_size' is missing");
    let offset = number(parameters, "shared_memory_offset")?.unwrap_or(0);
    Ok(Some(SharedRange { region: region.to_owned(), offset, len: len.ok_or_else(missing)? }))
}

/// Reads a request.
fn read(message: ModelInferRequest, core: &Core) -> Result<InferRequest, ServeError> {
    let mut request = InferRequest {
        model: message.model_name,
        version: message.model_version,
        id: message.id,
        priority: number(&message.parameters, "priority")?.unwrap_or(0),
        timeout: number(&message.parameters, "timeout")?.filter(|t| *t > 0).map(Duration::from_micros),
        sequence: sequence(&message.parameters)?,
        ..InferRequest::default()
    };
    let is_raw = !message.raw_input_contents.is_empty();
    let mut raw = message.raw_input_contents.into_iter();
    for input in message.inputs {
        let name = input.name.clone();
        let in_input =
            |e: ServeError| ServeError::new(e.kind, format!("input '{}': {}", name.escape_debug(), e.message));
        let tensor = read_input(input, is_raw, &mut raw, core).map_err(in_input)?;
        request.inputs.push((name, tensor));
    }
    if raw.next().is_some() {
        return Err(ServeError::invalid("there are more raw_input_contents than inputs"));
    }
    request.outputs = message.outputs.into_iter().map(requested).collect::<Result<_, _>>()?;
    Ok(request)
}

fn read_input(
    input: InferInputTensor,
    is_raw: bool,
    raw: &mut impl Iterator<Item = bytes::Bytes>,
    core: &Core,
) -> Result<Tensor, ServeError> {
    let dtype = datatype::parse(&input.datatype)?;
    if let Some(range) = shared(&input.parameters)? {
        return tensor(dtype, &input.shape, core.regions.read(&range)?);
    }
    match input.contents {
        Some(_) if is_raw => Err(ServeError::invalid("it has contents, and the request has raw_input_contents")),
        Some(contents) => typed(dtype, &input.shape, contents),
        None => {
            let missing = || ServeError::invalid("it has neither contents nor an element of raw_input_contents");
            tensor(dtype, &input.shape, raw.next().ok_or_else(missing)?)
        }
    }
}

/// A tensor of typed contents.
fn typed(dtype: ElementType, shape: &[i64], contents: InferTensorContents) -> Result<Tensor, ServeError> {
    fn narrow<W: Copy, T: Element + TryFrom<W>>(shape: &[i64], wide: &[W]) -> Result<Tensor, ServeError> {
        let narrowed = wide.iter().map(|x| T::try_from(*x).ok()).collect::<Option<Vec<T>>>();
        let outside = || ServeError::invalid("an element of its contents is outside of the range of its datatype");
        Ok(Tensor::from_elements(shape, &narrowed.ok_or_else(outside)?)?)
    }
    let c = contents;
    match dtype {
        ElementType::I1 => Ok(Tensor::from_elements(shape, &c.bool_contents)?),
        ElementType::I8 => narrow::<i32, i8>(shape, &c.int_contents),
        ElementType::I16 => narrow::<i32, i16>(shape, &c.int_contents),
        ElementType::I32 => Ok(Tensor::from_elements(shape, &c.int_contents)?),
        ElementType::I64 => Ok(Tensor::from_elements(shape, &c.int64_contents)?),
        ElementType::Ui8 => narrow::<u32, u8>(shape, &c.uint_contents),
        ElementType::Ui16 => narrow::<u32, u16>(shape, &c.uint_contents),
        ElementType::Ui32 => Ok(Tensor::from_elements(shape, &c.uint_contents)?),
        ElementType::Ui64 => Ok(Tensor::from_elements(shape, &c.uint64_contents)?),
        ElementType::F32 => Ok(Tensor::from_elements(shape, &c.fp32_contents)?),
        ElementType::F64 => Ok(Tensor::from_elements(shape, &c.fp64_contents)?),
        ElementType::String => {
            let texts = c.bytes_contents.iter().map(|b| datatype::text_of(b.to_vec())).collect::<Result<_, _>>()?;
            Ok(Tensor::from_strings(shape, texts)?)
        }
        _ => Err(ServeError::unsupported("contents have no elements of this datatype; use raw_input_contents")),
    }
}

fn requested(output: InferRequestedOutputTensor) -> Result<RequestedOutput, ServeError> {
    let classes = number(&output.parameters, "classification")?.unwrap_or(0);
    let place = shared(&output.parameters)?.map_or(OutputPlace::Default, OutputPlace::Shared);
    Ok(RequestedOutput { name: output.name, classes: usize::try_from(classes).unwrap_or(usize::MAX), place })
}

/// Writes an answer.
fn write(answer: InferResponse, id: String, core: &Core) -> Result<ModelInferResponse, ServeError> {
    let mut response = ModelInferResponse {
        model_name: answer.model.name.clone(),
        model_version: answer.model.version.to_string(),
        id,
        ..ModelInferResponse::default()
    };
    for (output, place) in answer.outputs {
        let mut tensor = InferOutputTensor {
            name: output.name.clone(),
            datatype: output.datatype().into(),
            shape: output.shape,
            ..InferOutputTensor::default()
        };
        match place {
            OutputPlace::Shared(range) => {
                core.regions.write(&range, &output.data)?;
                let parameter = |choice| InferParameter { parameter_choice: Some(choice) };
                let number = |n: u64| parameter(ParameterChoice::Int64Param(i64::try_from(n).unwrap_or(i64::MAX)));
                let len = number(output.data.len() as u64);
                tensor.parameters.insert("shared_memory_byte_size".into(), len);
                tensor.parameters.insert("shared_memory_offset".into(), number(range.offset));
                let region = parameter(ParameterChoice::StringParam(range.region));
                tensor.parameters.insert("shared_memory_region".into(), region);
            }
            _ => response.raw_output_contents.push(output.data),
        }
        response.outputs.push(tensor);
    }
    Ok(response)
}

/// A request of a stream, which ends with it.
struct Running(JoinHandle<ModelStreamInferResponse>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Takes requests of a stream as they come, and answers them in their order.
async fn stream(
    core: Arc<Core>,
    mut requests: Streaming<ModelInferRequest>,
    parent: Arc<MetadataMap>,
    client: Client,
    answers: Answers,
) {
    let (started, mut running) = mpsc::channel::<Running>(STREAM_CONCURRENCY);
    let forward = async {
        while let Some(mut next) = running.recv().await {
            let failed = |e: tokio::task::JoinError| ModelStreamInferResponse {
                error_message: e.to_string(),
                infer_response: Some(ModelInferResponse::default()),
            };
            let answer = (&mut next.0).await.unwrap_or_else(failed);
            if answers.send(Ok(answer)).await.is_err() {
                return;
            }
        }
    };
    let receive = async {
        let started = started;
        while let Some(next) = requests.next().await {
            let request = match next {
                Ok(request) => request,
                Err(status) => {
                    let _ = answers.send(Err(status)).await;
                    return;
                }
            };
            let core = Arc::clone(&core);
            let id = request.id.clone();
            let in_order = request.parameters.contains_key("sequence_id");
            let (admitted, parent) = (core.clients.admit(client), Arc::clone(&parent));
            let run = async move {
                let answer = match admitted {
                    Ok(_running) => infer(&core, "ModelStreamInfer", &parent, request, None).await,
                    Err(e) => Err(e),
                };
                match answer {
                    Ok(response) => {
                        ModelStreamInferResponse { error_message: String::new(), infer_response: Some(response) }
                    }
                    Err(e) => ModelStreamInferResponse {
                        error_message: e.message,
                        infer_response: Some(ModelInferResponse { id, ..ModelInferResponse::default() }),
                    },
                }
            };
            let mut run = Box::pin(run);
            // Requests of a sequence wait for it in the order of the stream: each begins before the next one is received.
            let done = match in_order {
                true => poll_fn(|context| Poll::Ready(run.as_mut().poll(context))).await,
                false => Poll::Pending,
            };
            let running = match done {
                Poll::Ready(answer) => tokio::spawn(std::future::ready(answer)),
                Poll::Pending => tokio::spawn(run),
            };
            if started.send(Running(running)).await.is_err() {
                return;
            }
        }
    };
    // The client has left when answers cannot be sent; it has no more requests when `receive` ends, and `forward` goes on.
    let both = async { tokio::join!(receive, forward) };
    tokio::select! {
        () = answers.closed() => {}
        _ = both => {}
    }
}

type Answers = mpsc::Sender<Result<ModelStreamInferResponse, Status>>;
type Answer<T> = Result<Response<T>, Status>;

fn unchangeable() -> ServeError {
    ServeError::unsupported("the settings of logs cannot be changed while the server runs")
}

#[tonic::async_trait]
impl GrpcInferenceService for Service {
    async fn server_live(&self, _: Request<ServerLiveRequest>) -> Answer<ServerLiveResponse> {
        Ok(Response::new(ServerLiveResponse { live: true }))
    }

    async fn server_ready(&self, _: Request<ServerReadyRequest>) -> Answer<ServerReadyResponse> {
        Ok(Response::new(ServerReadyResponse { ready: self.core.is_ready() }))
    }

    async fn model_ready(&self, request: Request<ModelReadyRequest>) -> Answer<ModelReadyResponse> {
        let ModelReadyRequest { name, version } = request.into_inner();
        Ok(Response::new(ModelReadyResponse { ready: self.core.repository.get(&name, &version).is_ok() }))
    }

    async fn server_metadata(&self, _: Request<ServerMetadataRequest>) -> Answer<ServerMetadataResponse> {
        Ok(Response::new(describe::server()))
    }

    async fn model_metadata(&self, request: Request<ModelMetadataRequest>) -> Answer<ModelMetadataResponse> {
        let ModelMetadataRequest { name, version } = request.into_inner();
        let model = self.core.repository.get(&name, &version)?;
        Ok(Response::new(describe::metadata(&model, &self.core.repository.versions(&name))))
    }

    async fn model_infer(&self, request: Request<ModelInferRequest>) -> Answer<ModelInferResponse> {
        let (metadata, _, message) = request.into_parts();
        Ok(Response::new(infer_once(&self.core, &metadata, message).await?))
    }

    type ModelStreamInferStream = Pin<Box<dyn Stream<Item = Result<ModelStreamInferResponse, Status>> + Send>>;

    async fn model_stream_infer(
        &self,
        request: Request<Streaming<ModelInferRequest>>,
    ) -> Answer<Self::ModelStreamInferStream> {
        let (answers, received) = mpsc::channel(1);
        let client = request.extensions().get::<Client>().copied().unwrap_or(Client::at(None));
        let (metadata, _, requests) = request.into_parts();
        tokio::spawn(stream(Arc::clone(&self.core), requests, Arc::new(metadata), client, answers));
        Ok(Response::new(Box::pin(ReceiverStream::new(received))))
    }

    async fn model_config(&self, request: Request<ModelConfigRequest>) -> Answer<ModelConfigResponse> {
        let ModelConfigRequest { name, version } = request.into_inner();
        let model = self.core.repository.get(&name, &version)?;
        Ok(Response::new(ModelConfigResponse { config: Some(describe::config(&model)) }))
    }

    async fn model_statistics(&self, request: Request<ModelStatisticsRequest>) -> Answer<ModelStatisticsResponse> {
        let ModelStatisticsRequest { name, version } = request.into_inner();
        let model_stats = describe::statistics_of(&self.core.repository, &name, &version)?;
        Ok(Response::new(ModelStatisticsResponse { model_stats }))
    }

    async fn repository_index(&self, request: Request<RepositoryIndexRequest>) -> Answer<RepositoryIndexResponse> {
        Ok(Response::new(describe::index(&self.core.repository, request.get_ref().ready)?))
    }

    async fn repository_model_load(
        &self,
        request: Request<RepositoryModelLoadRequest>,
    ) -> Answer<RepositoryModelLoadResponse> {
        let RepositoryModelLoadRequest { model_name, parameters, .. } = request.into_inner();
        if !parameters.is_empty() {
            let what = "models are loaded as their files say: parameters are not supported";
            return Err(ServeError::unsupported(what).into());
        }
        self.change(move |core| core.repository.load(&model_name)).await?;
        Ok(Response::new(RepositoryModelLoadResponse {}))
    }

    async fn repository_model_unload(
        &self,
        request: Request<RepositoryModelUnloadRequest>,
    ) -> Answer<RepositoryModelUnloadResponse> {
        let name = request.into_inner().model_name;
        self.change(move |core| core.repository.unload(&name)).await?;
        Ok(Response::new(RepositoryModelUnloadResponse {}))
    }

    async fn system_shared_memory_status(
        &self,
        request: Request<SystemSharedMemoryStatusRequest>,
    ) -> Answer<SystemSharedMemoryStatusResponse> {
        let regions = self.core.regions.status(&request.get_ref().name)?.into_iter();
        let status = regions
            .map(|(name, r)| (name.clone(), RegionStatus { name, key: r.key, offset: r.offset, byte_size: r.len }));
        Ok(Response::new(SystemSharedMemoryStatusResponse { regions: status.collect() }))
    }

    async fn system_shared_memory_register(
        &self,
        request: Request<SystemSharedMemoryRegisterRequest>,
    ) -> Answer<SystemSharedMemoryRegisterResponse> {
        let r = request.into_inner();
        self.core.regions.register(&r.name, &r.key, r.offset, r.byte_size)?;
        Ok(Response::new(SystemSharedMemoryRegisterResponse {}))
    }

    async fn system_shared_memory_unregister(
        &self,
        request: Request<SystemSharedMemoryUnregisterRequest>,
    ) -> Answer<SystemSharedMemoryUnregisterResponse> {
        self.core.regions.unregister(&request.get_ref().name);
        Ok(Response::new(SystemSharedMemoryUnregisterResponse {}))
    }

    async fn cuda_shared_memory_status(
        &self,
        _: Request<CudaSharedMemoryStatusRequest>,
    ) -> Answer<CudaSharedMemoryStatusResponse> {
        Ok(Response::new(CudaSharedMemoryStatusResponse::default()))
    }

    async fn cuda_shared_memory_register(
        &self,
        _: Request<CudaSharedMemoryRegisterRequest>,
    ) -> Answer<CudaSharedMemoryRegisterResponse> {
        Err(ServeError::unsupported("CUDA shared memory is not supported").into())
    }

    async fn cuda_shared_memory_unregister(
        &self,
        _: Request<CudaSharedMemoryUnregisterRequest>,
    ) -> Answer<CudaSharedMemoryUnregisterResponse> {
        Ok(Response::new(CudaSharedMemoryUnregisterResponse {}))
    }

    async fn trace_setting(&self, request: Request<TraceSettingRequest>) -> Answer<TraceSettingResponse> {
        let TraceSettingRequest { settings, model_name } = request.into_inner();
        let model = Some(model_name.as_str()).filter(|name| !name.is_empty());
        if let Some(model) = model {
            self.core.repository.get(model, "")?;
        }
        // No value takes a setting back.
        let change = |(name, setting): (String, trace_setting_request::SettingValue)| {
            (name, Some(setting.value).filter(|values| !values.is_empty()))
        };
        let changes: Vec<Change> = settings.into_iter().map(change).collect();
        if !changes.is_empty() {
            self.core.traces.change(model, &changes)?;
        }
        let settings = self.core.traces.settings(model).into_iter();
        let value = |(name, value): (&str, _)| (name.to_owned(), trace_setting_response::SettingValue { value });
        Ok(Response::new(TraceSettingResponse { settings: settings.map(value).collect() }))
    }

    async fn log_settings(&self, request: Request<LogSettingsRequest>) -> Answer<LogSettingsResponse> {
        if !request.get_ref().settings.is_empty() {
            return Err(unchangeable().into());
        }
        use log_settings_response::setting_value::ParameterChoice as Choice;
        use tracing::level_filters::LevelFilter;
        let value = |choice| log_settings_response::SettingValue { parameter_choice: Some(choice) };
        let info = value(Choice::BoolParam(LevelFilter::current() >= LevelFilter::INFO));
        Ok(Response::new(LogSettingsResponse { settings: [("log_info".to_owned(), info)].into() }))
    }
}

impl Service {
    /// Changes the models on a thread that may block.
    async fn change(
        &self,
        change: impl FnOnce(&Core) -> Result<(), ServeError> + Send + 'static,
    ) -> Result<(), Status> {
        let core = Arc::clone(&self.core);
        let done = tokio::task::spawn_blocking(move || change(&core)).await;
        Ok(done.unwrap_or_else(|e| Err(ServeError::new(ErrorKind::Internal, e.to_string())))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_are_read() {
        let of = |text: &str| {
            let mut metadata = MetadataMap::new();
            metadata.insert("grpc-timeout", text.parse().unwrap());
            timeout(&metadata)
        };
        assert_eq!(
            (of("10m"), of("99999999H")),
            (Some(Duration::from_millis(10)), Some(Duration::from_secs(359_999_996_400)))
        );
        assert_eq!((of("m"), of("1x"), of("-1S"), of("999999999S")), (None, None, None, None));
    }
}
