//! Text as IR: a diagnostic, or a module whose text comes back. The verifier may refuse it, but not panic.

#![no_main]

use libfuzzer_sys::fuzz_target;
use of_ir::text::{PrintOptions, parse_module, print_module};

fuzz_target!(|data: &str| {
    let registry = of_ops::registry();
    let Ok(module) = parse_module(data, "fuzz.of", &registry, None) else { return };
    let _ = of_ir::verify_module(&module);
    for generic in [false, true] {
        let options = PrintOptions { generic, ..PrintOptions::default() };
        let text = print_module(&module, &options);
        match parse_module(&text, "fuzz.of", &registry, None) {
            Ok(again) => assert_eq!(print_module(&again, &options), text),
            Err(e) => panic!("what was printed does not parse: {e}\n{text}"),
        }
    }
});
