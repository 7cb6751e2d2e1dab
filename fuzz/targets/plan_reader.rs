//! Bytes as a plan: refused, or one that the verifier can judge without panicking.
//!
//! What the checksums should be is put in their places, as whoever writes a hostile plan can compute them.

#![no_main]

use libfuzzer_sys::fuzz_target;
use of_plan::PlanFile;
use xxhash_rust::xxh3::xxh3_128;

const HEADER: usize = 48;
const ENTRY: usize = 48;
/// Inputs are shorter than a leaf of the checksum, so that each section is one.
const LEAF: usize = 1 << 20;

fuzz_target!(|data: &[u8]| {
    let mut bytes = data[..data.len().min(LEAF)].to_vec();
    write_checksums(&mut bytes);
    let Ok(plan) = PlanFile::from_bytes(&bytes) else { return };
    let _ = plan.verify();
    for i in 0..plan.plan().programs.len() {
        let _ = plan.verify_program(i);
    }
    let _ = (of_plan::text(&plan), of_plan::json(&plan));
});

/// Writes the checksums of the sections that the table names, as far as there are any, and that of the header.
fn write_checksums(bytes: &mut [u8]) -> Option<()> {
    let number = |bytes: &[u8], at: usize| {
        let word: [u8; 8] = bytes.get(at..at + 8)?.try_into().ok()?;
        usize::try_from(u64::from_le_bytes(word)).ok()
    };
    let sections = u32::from_le_bytes(bytes.get(12..16)?.try_into().ok()?) as usize;
    for entry in (0..sections.min(16)).map(|i| HEADER + i * ENTRY) {
        let (offset, len) = (number(bytes, entry + 8)?, number(bytes, entry + 16)?);
        let sum = checksum(bytes.get(offset..offset.checked_add(len)?)?);
        bytes.get_mut(entry + 32..entry + ENTRY)?.copy_from_slice(&sum);
    }
    let table = bytes.get(HEADER..HEADER + sections.min(16) * ENTRY)?;
    let sum = checksum(&[&bytes[..32], table].concat());
    bytes.get_mut(32..HEADER)?.copy_from_slice(&sum);
    Some(())
}

fn checksum(bytes: &[u8]) -> [u8; 16] {
    let leaves: Vec<u8> = bytes.chunks(LEAF).flat_map(|leaf| xxh3_128(leaf).to_le_bytes()).collect();
    xxh3_128(&leaves).to_le_bytes()
}
