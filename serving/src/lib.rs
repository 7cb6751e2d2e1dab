//! A model server for plans: the Open Inference Protocol over HTTP and gRPC, with Triton's extensions.
//!
//! [`Server`] binds ports and loads the models of a [`repository`]. A request becomes an [`infer::InferRequest`], whichever protocol
//! carries it ([`http`], [`grpc`]). The [`repository`] finds the [`model`] version, whose [`scheduler`] queues the request,
//! joins it with others and runs it on a thread of the model. [`stats`] counts, and [`metrics`], the statistics of both protocols
//! and the status page show it. [`traces`] has the spans of requests.
//!
//! The crate has no compiler: an [`Opener`] opens the files of models.

#![forbid(unsafe_code)]

mod batch;
mod classification;
mod clients;
mod config;
mod connection;
mod core;
mod datatype;
mod describe;
mod ensemble;
mod error;
mod frames;
pub mod grpc;
mod grpc_message;
pub mod http;
pub mod infer;
pub mod load;
mod memory;
pub mod metrics;
pub mod model;
mod network;
mod pbtxt;
pub mod proto;
pub mod repository;
mod run_times;
pub mod scheduler;
mod sequence_config;
mod sequences;
mod server;
mod shared_memory;
mod stall;
pub mod stats;
mod store;
mod sync;
mod tls;
mod traces;
mod warmup;

pub use clients::{Client, ClientLimits, Clients};
pub use config::{ModelConfig, VersionPolicy};
pub use core::{Core, Limits};
pub use ensemble::{Ensemble, EnsembleStep};
pub use error::{ErrorKind, FailureReason, ServeError};
pub use model::Opener;
pub use repository::{ControlMode, RepositoryOptions};
pub use server::{Addresses, Server, ServerOptions, StartError};
pub use shared_memory::Regions;
pub use tls::TlsOptions;
pub use traces::Traces;
