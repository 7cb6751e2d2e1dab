//! The plan reader under libFuzzer; see `of_fuzz::targets::plan_reader`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| of_fuzz::targets::plan_reader(data));
