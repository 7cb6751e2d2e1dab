//! What other ranks send, under libFuzzer; see `of_fuzz::targets::rank_wire`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| of_fuzz::targets::rank_wire(data));
