//! The IR parser under libFuzzer; see `of_fuzz::targets::ir_parser`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| of_fuzz::targets::ir_parser(data));
