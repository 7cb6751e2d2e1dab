//! The protocol over gRPC: the client that is generated with the service, in this process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use crate::common::{digits_plan, opener, options, put, repository, wait_for};
use of_serving::grpc::Service;
use of_serving::proto::grpc_inference_service_client::GrpcInferenceServiceClient;
use of_serving::proto::grpc_inference_service_server::GrpcInferenceServiceServer;
use of_serving::proto::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use of_serving::proto::{self, InferTensorContents, ModelInferRequest};
use of_serving::repository::Repository;
use of_serving::{Core, Limits, Regions, Traces};
use tokio_stream::StreamExt;
use tonic::{Code, Request};

pub type Client = GrpcInferenceServiceClient<GrpcInferenceServiceServer<Service>>;

fn client(path: &std::path::Path) -> Client {
    client_with(path, Traces::new(None, 1)).0
}

/// A client, and what its service has.
pub fn client_with(path: &std::path::Path, traces: Traces) -> (Client, Arc<Core>) {
    let repository = Repository::new(options(&[path]).repository, opener());
    let names = repository.announce_all().unwrap();
    repository.load_all(&names);
    wait_for("the models", || repository.is_ready());
    let core = Arc::new(Core {
        repository,
        regions: Regions::new(true),
        limits: Limits::default(),
        tokens: Vec::new(),
        traces,
        tls: false,
        clients: Arc::default(),
        draining: AtomicBool::new(false),
        connections: AtomicU64::new(0),
    });
    (GrpcInferenceServiceClient::new(GrpcInferenceServiceServer::new(Service::new(Arc::clone(&core)))), core)
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap().block_on(future)
}

fn input(shape: &[i64]) -> InferInputTensor {
    InferInputTensor { name: "image".into(), datatype: "FP32".into(), shape: shape.to_vec(), ..Default::default() }
}

fn typed(pixels: usize) -> ModelInferRequest {
    let contents =
        InferTensorContents { fp32_contents: (0..pixels).map(|i| (i % 17) as f32).collect(), ..Default::default() };
    let input = InferInputTensor { contents: Some(contents), ..input(&[1, 1, 8, 8]) };
    ModelInferRequest { model_name: "digits".into(), id: "7".into(), inputs: vec![input], ..Default::default() }
}

fn raw(pixels: usize) -> ModelInferRequest {
    let bytes: Vec<u8> = (0..pixels).flat_map(|i| ((i % 17) as f32).to_le_bytes()).collect();
    ModelInferRequest { inputs: vec![input(&[1, 1, 8, 8])], raw_input_contents: vec![bytes.into()], ..typed(0) }
}

#[test]
fn every_method_answers() {
    let dir = repository();
    let mut c = client(dir.path());
    run(async {
        let named = || ("digits".to_owned(), String::new());
        assert!(c.server_live(proto::ServerLiveRequest {}).await.unwrap().into_inner().live);
        assert!(c.server_ready(proto::ServerReadyRequest {}).await.unwrap().into_inner().ready);
        let (name, version) = named();
        assert!(c.model_ready(proto::ModelReadyRequest { name, version }).await.unwrap().into_inner().ready);
        let none = proto::ModelReadyRequest { name: "none".into(), version: String::new() };
        assert!(!c.model_ready(none).await.unwrap().into_inner().ready);
        let metadata = c.server_metadata(proto::ServerMetadataRequest {}).await.unwrap().into_inner();
        assert!(metadata.extensions.contains(&"system_shared_memory".into()));
        let (name, version) = named();
        let metadata = c.model_metadata(proto::ModelMetadataRequest { name, version }).await.unwrap().into_inner();
        assert_eq!(
            (metadata.inputs[0].shape.as_slice(), metadata.versions.as_slice()),
            (&[-1, 1, 8, 8][..], &["1".to_string()][..])
        );
        let (name, version) = named();
        let config =
            c.model_config(proto::ModelConfigRequest { name, version }).await.unwrap().into_inner().config.unwrap();
        assert_eq!((config.max_batch_size, config.output[0].dims.as_slice()), (8, &[10][..]));
        c.model_infer(raw(64)).await.unwrap();
        let (name, version) = named();
        let stats = c.model_statistics(proto::ModelStatisticsRequest { name, version }).await.unwrap().into_inner();
        assert_eq!(stats.model_stats[0].inference_count, 1);
        let index =
            c.repository_index(proto::RepositoryIndexRequest { ready: true, ..Default::default() }).await.unwrap();
        assert_eq!(index.into_inner().models[0].state, "READY");
        let unload = proto::RepositoryModelUnloadRequest { model_name: "digits".into(), ..Default::default() };
        assert_eq!(c.repository_model_unload(unload).await.unwrap_err().code(), Code::Unimplemented);
        let register =
            proto::SystemSharedMemoryRegisterRequest { name: "r".into(), key: "/../x".into(), offset: 0, byte_size: 1 };
        assert_eq!(c.system_shared_memory_register(register).await.unwrap_err().code(), Code::InvalidArgument);
        let status = c.system_shared_memory_status(proto::SystemSharedMemoryStatusRequest::default()).await.unwrap();
        assert!(status.into_inner().regions.is_empty());
        let traces = c.trace_setting(proto::TraceSettingRequest::default()).await.unwrap().into_inner().settings;
        assert_eq!(
            (&traces["trace_level"].value, &traces["trace_rate"].value),
            (&vec!["OFF".into()], &vec!["1".into()])
        );
        let on = proto::trace_setting_request::SettingValue { value: vec!["TIMESTAMPS".into()] };
        let on = proto::TraceSettingRequest { settings: [("trace_level".to_owned(), on)].into(), ..Default::default() };
        let refused = c.trace_setting(on).await.unwrap_err();
        assert!(refused.code() == Code::Unimplemented && refused.message().contains("no collector"), "{refused:?}");
        let none = proto::TraceSettingRequest { model_name: "none".into(), ..Default::default() };
        assert_eq!(c.trace_setting(none).await.unwrap_err().code(), Code::NotFound);
        assert!(
            c.log_settings(proto::LogSettingsRequest::default())
                .await
                .unwrap()
                .into_inner()
                .settings
                .contains_key("log_info")
        );
    });
}

#[test]
fn typed_and_raw_contents_and_streams_give_the_same_result() {
    let dir = repository();
    let mut c = client(dir.path());
    run(async {
        let a = c.model_infer(typed(64)).await.unwrap().into_inner();
        let b = c.model_infer(raw(64)).await.unwrap().into_inner();
        assert_eq!(
            (a.id.as_str(), a.outputs[0].shape.as_slice(), a.raw_output_contents[0].len()),
            ("7", &[1, 10][..], 40)
        );
        assert_eq!(a, b);
        let requests =
            (0..20).map(|n| ModelInferRequest { id: n.to_string(), ..if n == 5 { raw(63) } else { raw(64) } });
        let answers =
            c.model_stream_infer(Request::new(tokio_stream::iter(requests.collect::<Vec<_>>()))).await.unwrap();
        let answers: Vec<_> = answers.into_inner().collect().await;
        assert_eq!(answers.len(), 20);
        for (number, answer) in answers.into_iter().enumerate() {
            let answer = answer.unwrap();
            let response = answer.infer_response.unwrap();
            assert_eq!(
                (response.id, answer.error_message.is_empty()),
                (number.to_string(), number != 5),
                "in their order"
            );
            assert!(number == 5 || response.raw_output_contents == a.raw_output_contents);
        }
    });
}

#[test]
fn mistakes_of_clients_have_codes() {
    let dir = repository();
    put(dir.path(), "damaged/1/model.plan", &digits_plan()[..999]);
    let mut c = client(dir.path());
    run(async {
        let output = InferRequestedOutputTensor { name: "none".into(), ..Default::default() };
        for (request, code, what) in [
            (ModelInferRequest { model_name: "none".into(), ..raw(64) }, Code::NotFound, "no model 'none'"),
            (ModelInferRequest { model_version: "9".into(), ..raw(64) }, Code::NotFound, "no version '9'"),
            (ModelInferRequest { model_name: "damaged".into(), ..raw(64) }, Code::Unavailable, "not available"),
            (raw(63), Code::InvalidArgument, "holds 256 bytes, not 252"),
            (typed(65), Code::InvalidArgument, "holds 256 bytes, not 260"),
            (ModelInferRequest { inputs: vec![], ..typed(64) }, Code::InvalidArgument, "is missing"),
            (
                ModelInferRequest { inputs: vec![], ..raw(64) },
                Code::InvalidArgument,
                "more raw_input_contents than inputs",
            ),
            (
                ModelInferRequest { raw_input_contents: raw(64).raw_input_contents, ..typed(64) },
                Code::InvalidArgument,
                "has contents",
            ),
            (ModelInferRequest { outputs: vec![output], ..raw(64) }, Code::InvalidArgument, "no output 'none'"),
        ] {
            let status = c.model_infer(request).await.unwrap_err();
            assert!(status.code() == code && status.message().contains(what), "{status:?}");
        }
    });
}
