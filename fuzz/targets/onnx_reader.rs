//! Bytes as an ONNX model: a diagnostic, or a module that verifies and whose text comes back.

#![no_main]

use libfuzzer_sys::fuzz_target;
use of_ir::text::{PrintOptions, parse_module, print_module};

fuzz_target!(|data: &[u8]| {
    let Ok(module) = of_onnx::import_bytes(data.to_vec(), &of_onnx::Options::default()) else { return };
    if let Err(e) = of_ir::verify_module(&module) {
        panic!("what was imported does not verify: {e}");
    }
    let text = print_module(&module, &PrintOptions::default());
    match parse_module(&text, "fuzz.of", &of_ops::registry(), None) {
        Ok(again) => assert_eq!(print_module(&again, &PrintOptions::default()), text),
        Err(e) => panic!("what was printed does not parse: {e}\n{text}"),
    }
});
