//! A plan file that was changed in any way must be refused, and nothing in it may make its reader fail in another way.

mod common;

use std::sync::Arc;

use common::small_plan;
use of_plan::*;
use xxhash_rust::xxh3::xxh3_128;

/// The checksum of bytes that are one leaf.
fn checksum(bytes: &[u8]) -> [u8; 16] {
    xxh3_128(&xxh3_128(bytes).to_le_bytes()).to_le_bytes()
}

fn hash_header(bytes: &mut [u8]) {
    let sections = u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
    let checksum = checksum(&[&bytes[..32], &bytes[48..48 + 48 * sections]].concat());
    bytes[32..48].copy_from_slice(&checksum);
}

#[test]
fn round_trip() {
    let builder = small_plan();
    let file = PlanFile::from_bytes(&builder.to_bytes().unwrap()).unwrap();
    assert_eq!(file.plan(), builder.plan());
    assert_eq!(file.weight(0).unwrap(), [1; 12]);
    assert_eq!(file.weight(1).unwrap(), [2; 3]);
    assert_eq!(file.weight(0).unwrap().as_ptr() as usize % 64, 0);
    assert_eq!(file.weight(1).unwrap().as_ptr() as usize % 64, 0);
    let strings = file.plan().weights[2].decode_strings(file.weight(2).unwrap());
    assert_eq!(strings, Some(vec!["a".to_owned(), "bc".to_owned()]));
    assert_eq!(file.kernel(0).unwrap(), [0x90, 0xc3]);
    assert_eq!(file.weight(3), None);
    let Some(Exec::Backend(exec)) = &file.plan().programs[0].tasks[3].exec else { panic!() };
    assert_eq!(file.payload(exec).unwrap(), b"payload");
    assert_eq!(file.verify(), Ok(()));
}

/// A plan in memory has the same contents, checksums and bytes as the file.
#[test]
fn a_plan_in_memory_is_that_of_the_file() {
    let builder = small_plan();
    let (memory, bytes) = (PlanFile::from_builder(&builder).unwrap(), builder.to_bytes().unwrap());
    let file = PlanFile::from_bytes(&bytes).unwrap();
    assert_eq!((memory.plan(), &memory.bytes()[..]), (file.plan(), &bytes[..]));
    assert_eq!((memory.file_len(), memory.code()), (file.file_len(), file.code()));
    for kind in SectionKind::ALL {
        assert_eq!(memory.section_len(kind), file.section_len(kind), "{}", kind.name());
        assert_eq!(memory.section_checksum(kind), file.section_checksum(kind), "{}", kind.name());
    }
    for i in 0..4 {
        assert_eq!(memory.weight(i), file.weight(i), "weight {i}");
        assert!(memory.weight(i).is_none_or(|w| (w.as_ptr() as usize).is_multiple_of(VALUE_ALIGN as usize)));
    }
    assert_eq!(of_plan::json(&memory), of_plan::json(&file));
}

/// A file of a plan with further weights of 256 KiB, each of one value.
fn plan_with(folder: &std::path::Path, name: &str, values: &[u8]) -> std::path::PathBuf {
    let mut builder = small_plan();
    for value in values {
        let name = format!("large{value}");
        builder.add_weight(name, ElementType::F32, &[1 << 16], vec![*value; 1 << 18]).unwrap();
    }
    let path = folder.join(name);
    builder.write_file(&path).unwrap();
    path
}

#[test]
fn plans_share_weights_that_are_equal() {
    let folder = tempfile::tempdir().unwrap();
    let open = |name: &str, values: &[u8], others: &[Arc<PlanFile>]| {
        let mut plan = PlanFile::open(plan_with(folder.path(), name, values)).unwrap();
        plan.share_weights(others);
        Arc::new(plan)
    };
    let first = open("first.plan", &[5, 6], &[]);
    let second = open("second.plan", &[7, 5], std::slice::from_ref(&first));
    assert_eq!((first.shared_bytes(), second.shared_bytes()), (0, 1 << 18));
    let at = |plan: &PlanFile, index: u32| plan.weight(index).unwrap().as_ptr();
    // Three small ones come first.
    assert_eq!(at(&second, 4), at(&first, 3));
    assert_eq!((second.weight(3).unwrap()[0], second.weight(4).unwrap()), (7, &[5; 1 << 18][..]));
    // The file itself is whole.
    assert_eq!(second.bytes(), std::fs::read(folder.path().join("second.plan")).unwrap());
    // One that shares with one that shares reads the weight of its owner.
    let third = open("third.plan", &[5, 7], std::slice::from_ref(&second));
    assert_eq!((at(&third, 3), at(&third, 4)), (at(&first, 3), at(&second, 3)));
    assert_eq!(third.weight_owners().filter(|owner| Arc::ptr_eq(owner, &first)).count(), 1);
    drop((first, second));
    assert_eq!((third.weight(3).unwrap(), third.weight(4).unwrap()), (&[5; 1 << 18][..], &[7; 1 << 18][..]));
    // A plan in memory keeps its own.
    let mut memory = PlanFile::from_bytes(&std::fs::read(folder.path().join("third.plan")).unwrap()).unwrap();
    memory.share_weights(&[third]);
    assert_eq!(memory.shared_bytes(), 0);
}

#[test]
fn the_same_data_gives_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (folder.path().join("a.plan"), folder.path().join("b.plan"));
    small_plan().write_file(&a).unwrap();
    small_plan().write_file(&b).unwrap();
    small_plan().write_file(&b).unwrap();
    assert_eq!(std::fs::read(&a).unwrap(), std::fs::read(&b).unwrap());
    assert_eq!(std::fs::read(&a).unwrap(), small_plan().to_bytes().unwrap());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "temporary files are left");
    assert_eq!(PlanFile::open(&a).unwrap().plan(), small_plan().plan());
}

#[test]
fn files_that_cannot_be_read_or_written() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    assert!(matches!(PlanFile::open(&missing), Err(OpenError::Io { .. })));
    assert!(matches!(PlanFile::open(folder.path()), Err(OpenError::Io { .. })));
    let no_folder = missing.join("x.plan");
    assert!(matches!(small_plan().write_file(no_folder), Err(WriteError::Io { .. })));
    std::fs::write(&missing, b"").unwrap();
    assert!(matches!(PlanFile::open(&missing), Err(OpenError::NotAPlan)));
}

#[test]
fn equal_weights_and_kernels_are_stored_once() {
    let mut plan = common::builder();
    let a = plan.add_weight("a", ElementType::F32, &[2], vec![3; 8]).unwrap();
    let b = plan.add_weight("b", ElementType::I64, &[1], vec![3; 8]).unwrap();
    let c = plan.alias_weight("c", ElementType::F32, &[1], a, 4).unwrap();
    assert_eq!(plan.plan().weights[a as usize].offset, plan.plan().weights[b as usize].offset);
    assert_eq!(plan.plan().weights[c as usize].offset, 4);
    assert!(plan.alias_weight("d", ElementType::F32, &[2], a, 4).is_err());
    assert!(plan.add_weight("e", ElementType::F32, &[3], vec![3; 8]).is_err());
    assert!(plan.add_weight("e", ElementType::F32, &[-3], vec![]).is_err());
    let first = plan.add_kernel("k", "x", vec![1, 2], 0).unwrap();
    assert_eq!(plan.add_kernel("l", "x", vec![1, 2], 0).unwrap(), first);
    assert!(plan.add_kernel("m", "x", vec![1, 2], 2).is_err());
}

#[test]
fn every_flipped_byte_is_noticed() {
    let good = small_plan().to_bytes().unwrap();
    let mut random = fastrand::Rng::with_seed(1);
    let mut bytes = good.clone();
    for _ in 0..10_000 {
        let (at, mask) = (random.usize(..good.len()), random.u8(1..));
        bytes[at] ^= mask;
        assert!(PlanFile::from_bytes(&bytes).is_err(), "byte {at} ^ {mask}");
        bytes[at] ^= mask;
    }
    assert!(PlanFile::from_bytes(&bytes).is_ok());
}

#[test]
fn every_truncation_and_extension_is_noticed() {
    let good = small_plan().to_bytes().unwrap();
    let mut random = fastrand::Rng::with_seed(2);
    for _ in 0..1000 {
        assert!(PlanFile::from_bytes(&good[..random.usize(..good.len())]).is_err());
    }
    let longer = [&good[..], &[0]].concat();
    assert!(PlanFile::from_bytes(&longer).is_err());
}

#[test]
fn newer_and_older_format_versions_are_refused() {
    let mut bytes = small_plan().to_bytes().unwrap();
    bytes[8] = 9;
    let error = PlanFile::from_bytes(&bytes).unwrap_err();
    assert!(matches!(error, OpenError::NewerVersion { found: 9, supported: FORMAT_VERSION }));
    assert!(
        error.to_string().contains("version 9") && error.to_string().contains(&format!("version {FORMAT_VERSION}")),
        "{error}"
    );
    bytes[8] = 0;
    assert!(matches!(PlanFile::from_bytes(&bytes), Err(OpenError::OldVersion { found: 0, .. })));
}

/// Hostile headers have a valid checksum, as whoever writes one can compute it.
#[test]
fn hostile_tables() {
    let good = small_plan().to_bytes().unwrap();
    let offset = |section: usize| 48 + 48 * section + 8;
    let length = |section: usize| 48 + 48 * section + 16;
    let huge = [u64::MAX, u64::MAX - 4095, 1 << 62, good.len() as u64, 0, 1, 4096];
    for section in 0..4 {
        for place in [offset(section), length(section)] {
            for value in huge {
                let mut bytes = good.clone();
                if bytes[place..place + 8] == value.to_le_bytes() {
                    continue;
                }
                bytes[place..place + 8].copy_from_slice(&value.to_le_bytes());
                hash_header(&mut bytes);
                assert!(PlanFile::from_bytes(&bytes).is_err(), "section {section}, {value}");
            }
        }
    }
    for (place, value) in [(12, 0), (12, 3), (12, 17), (12, 255), (48, 2), (48, 9), (96, 1), (52, 1), (24, 1), (72, 1)]
    {
        let mut bytes = good.clone();
        bytes[place] = value;
        if value <= 16 {
            hash_header(&mut bytes);
        }
        assert!(PlanFile::from_bytes(&bytes).is_err(), "byte {place} = {value}");
    }
}

/// A hostile structure has valid checksums too.
#[test]
fn hostile_structures() {
    let good = small_plan().to_bytes().unwrap();
    let len = u64::from_le_bytes(good[64..72].try_into().unwrap()) as usize;
    let mut random = fastrand::Rng::with_seed(3);
    let mut refused = 0;
    for _ in 0..5_000 {
        let mut bytes = good.clone();
        for _ in 0..random.usize(1..4) {
            bytes[4096 + random.usize(..len)] = random.u8(..);
        }
        let structure = checksum(&bytes[4096..4096 + len]);
        bytes[80..96].copy_from_slice(&structure);
        hash_header(&mut bytes);
        // A changed name is still a plan; what matters is that nothing panics, whatever is asked of it.
        match PlanFile::from_bytes(&bytes) {
            Err(_) => refused += 1,
            Ok(file) => {
                let _ = (file.verify(), text(&file), json(&file));
                let plan = file.plan();
                assert!((0..plan.weights.len()).all(|index| file.weight(index as u32).is_some()));
                assert!((0..plan.code.len()).all(|index| file.kernel(index as u32).is_some()));
            }
        }
    }
    assert!(refused > 1000, "{refused}");
}

#[test]
fn descriptions() {
    let file = PlanFile::from_bytes(&small_plan().to_bytes().unwrap()).unwrap();
    let text = text(&file);
    for part in ["small", "1.2.3", "small.onnx", "double", "test[7 bytes](%2 as f32[2, 4], @2) -> %3", "x: f32[8]"] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    let value: serde_json::Value = serde_json::from_str(&json(&file)).unwrap();
    assert_eq!(value["programs"][0]["registers"][2]["lifetime"], serde_json::json!([2, 3]));
    assert_eq!(value["programs"][0]["tasks"][1]["name"], "double");
}

#[test]
fn programs_are_found_by_their_inputs() {
    let mut plan = small_plan();
    let mut other = plan.plan().programs[0].clone();
    other.name = "wide".into();
    other.inputs[0].dims = vec![16];
    other.registers[0].dims = vec![16];
    plan.add_program(other);
    // The second program is not sound, but the search looks at ports alone.
    let bytes = plan.to_bytes_unverified().unwrap();
    assert!(PlanFile::from_bytes(&bytes).is_err());

    let file = PlanFile::from_bytes(&small_plan().to_bytes().unwrap()).unwrap();
    assert_eq!(file.find_program(&[Some((ElementType::F32, &[8]))]), Ok(0));
    let error = |inputs: &[InputDims<'_>]| file.find_program(inputs).unwrap_err().to_string();
    let text = error(&[Some((ElementType::F32, &[9]))]);
    assert!(text.contains("`x`") && text.contains("extent 9 at dimension 0 and must have 8"), "{text}");
    assert!(text.contains("`main`(x: f32[8])"), "{text}");
    assert!(error(&[Some((ElementType::F64, &[8]))]).contains("element type f64"));
    assert!(error(&[Some((ElementType::F32, &[8, 1]))]).contains("rank 2"));
    assert!(error(&[None]).contains("must be a tensor"));
    assert!(error(&[]).contains("0 inputs"));
}
