//! A server under its clients. One program, because linking the compiler takes longer than the tests.

mod batching;
mod client_limits;
mod clients;
mod common;
mod deploy;
mod ensembles;
mod fuzz;
mod grpc;
mod http;
mod lifecycle;
mod sequences;
mod tls;
mod traces;
