//! The ONNX reader under libFuzzer; see `of_fuzz::targets::onnx_reader`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| of_fuzz::targets::onnx_reader(data));
