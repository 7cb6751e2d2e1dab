//! The messages of `proto/onnx.proto`.

#![allow(missing_docs, clippy::all, rustdoc::all)]

include!(concat!(env!("OUT_DIR"), "/onnx.rs"));
