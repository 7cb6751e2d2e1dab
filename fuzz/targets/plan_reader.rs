//! Bytes as a plan: refused, or one that the verifier can judge without panicking.

#![no_main]

use libfuzzer_sys::fuzz_target;
use of_plan::PlanFile;

fuzz_target!(|data: &[u8]| {
    let Ok(plan) = PlanFile::from_bytes(data) else { return };
    let _ = plan.verify();
    for i in 0..plan.plan().programs.len() {
        let _ = plan.verify_program(i);
    }
});
