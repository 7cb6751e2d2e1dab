//! The readers of files, and of what other ranks send, as fuzz targets: each takes any bytes, and panics if a reader is wrong.
//!
//! cargo-fuzz calls them from `tests/fuzz-targets` for long runs; `tests/targets.rs` calls them with a fixed number of
//! mutated files.

use of_ir::text::{PrintOptions, parse_module, print_module};
use of_plan::PlanFile;
use xxhash_rust::xxh3::xxh3_128;

/// A target, by its name.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const ALL: [Target; 4] =
    [("ir_parser", ir_parser), ("onnx_reader", onnx_reader), ("plan_reader", plan_reader), ("rank_wire", rank_wire)];

/// Text as IR: a diagnostic, or a module whose printed text parses to the same module. The verifier may reject it, but must
/// not panic.
pub fn ir_parser(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let registry = of_ops::registry();
    let Ok(module) = parse_module(text, "fuzz.of", &registry, None) else { return };
    let _ = of_ir::verify_module(&module);
    for generic in [false, true] {
        let options = PrintOptions { generic, ..PrintOptions::default() };
        let text = print_module(&module, &options);
        match parse_module(&text, "fuzz.of", &registry, None) {
            Ok(again) => assert_eq!(print_module(&again, &options), text),
            Err(e) => panic!("the printed module does not parse: {e}\n{text}"),
        }
    }
}

/// Bytes as an ONNX model: a diagnostic, or a module that verifies and whose printed text parses to the same module.
pub fn onnx_reader(data: &[u8]) {
    let Ok(module) = of_onnx::import_bytes(data.to_vec(), &of_onnx::Options::default()) else { return };
    if let Err(e) = of_ir::verify_module(&module) {
        panic!("the imported module does not verify: {e}");
    }
    let text = print_module(&module, &PrintOptions::default());
    match parse_module(&text, "fuzz.of", &of_ops::registry(), None) {
        Ok(again) => assert_eq!(print_module(&again, &PrintOptions::default()), text),
        Err(e) => panic!("the printed module does not parse: {e}\n{text}"),
    }
}

/// Bytes as a plan: rejected, or accepted and verified without a panic.
///
/// The checksums are corrected first, as the author of a hostile plan can compute them too.
pub fn plan_reader(data: &[u8]) {
    let mut bytes = data[..data.len().min(LEAF)].to_vec();
    write_checksums(&mut bytes);
    let Ok(plan) = PlanFile::from_bytes(&bytes) else { return };
    let _ = plan.verify();
    for i in 0..plan.plan().programs.len() {
        let _ = plan.verify_program(i);
    }
    let _ = (of_plan::text(&plan), of_plan::json(&plan));
}

/// Bytes as what another rank sends, with right proofs and checksums: a handshake with what follows at the rendezvous, frames of data,
/// messages of the monitor, or a command of the first rank, as the first byte says.
pub fn rank_wire(data: &[u8]) {
    of_transport::fuzzing::rank_wire(data);
}

const HEADER: usize = 48;
const ENTRY: usize = 48;
/// Inputs are shorter than a leaf of the checksum, so that each section is one leaf.
const LEAF: usize = 1 << 20;

/// Writes the checksums of the sections that the section table names, as far as there are any, and that of the header.
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
