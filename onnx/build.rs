//! Generates the protobuf types of `proto/onnx.proto`. The schema is compiled by `protox`: no `protoc` is needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto/onnx.proto");
    let schema = protox::compile(["proto/onnx.proto"], ["proto"])?;
    // `Bytes` fields are slices of what is decoded: tensor data is not copied.
    prost_build::Config::new().bytes(["."]).compile_fds(schema)?;
    Ok(())
}
