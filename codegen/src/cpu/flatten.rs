//! Object file to flat code: the sections a kernel reaches, laid out one after another, with the references between
//! them resolved. The result runs at any address that keeps its alignment.

use std::collections::{BTreeMap, BTreeSet};

use object::{Object, ObjectSection, ObjectSymbol, RelocationFlags, RelocationTarget, SectionIndex, SectionKind};

/// Machine code that needs nothing but memory to run in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Blob {
    /// Code and constants.
    pub code: Vec<u8>,
    /// Where the kernel's function starts.
    pub entry: usize,
    /// What the address of the first byte must be a multiple of.
    pub align: usize,
}

/// Why an object file has no flat form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FlattenError {
    /// It is no object file of a known format.
    #[error("the compiler's object file is unreadable: {0}")]
    Unreadable(String),
    /// The function is not in it.
    #[error("the object file does not define `{0}`")]
    NoEntry(String),
    /// Code needs a symbol that is not in the file.
    #[error("generated code calls `{0}`, which no kernel has")]
    Undefined(String),
    /// Code needs memory that is written to.
    #[error("generated code needs the writable section `{0}`")]
    Writable(String),
    /// A reference that cannot be resolved here.
    #[error("generated code has a relocation of an unknown kind: {0}")]
    Relocation(String),
}

/// Alignment of every blob: that of the largest vector constants; for aarch64 a page, to which its code is relative.
const fn base_align(arch: object::Architecture) -> usize {
    if matches!(arch, object::Architecture::Aarch64) { 4096 } else { 64 }
}

/// Makes a blob of an object file's function `entry`.
///
/// # Errors
/// If the file is unreadable or the function needs anything that is not in it.
pub fn flatten(object_file: &[u8], entry: &str) -> Result<Blob, FlattenError> {
    let unreadable = |e: object::Error| FlattenError::Unreadable(e.to_string());
    let file = object::File::parse(object_file).map_err(unreadable)?;
    let symbol =
        file.symbols().find(|s| s.name() == Ok(entry)).ok_or_else(|| FlattenError::NoEntry(entry.to_string()))?;
    let first = symbol.section_index().ok_or_else(|| FlattenError::NoEntry(entry.to_string()))?;

    // Sections that the function reaches.
    let mut reached = BTreeSet::from([first.0]);
    let mut todo = vec![first];
    while let Some(index) = todo.pop() {
        let section = file.section_by_index(index).map_err(unreadable)?;
        for (_, relocation) in section.relocations() {
            let (target, _) = resolve(&file, relocation.target())?;
            if reached.insert(target.0) {
                todo.push(target);
            }
        }
    }

    // In the order of the file, the function's own first.
    let mut code = Vec::new();
    let mut starts = BTreeMap::new();
    let order = std::iter::once(first.0).chain(reached.iter().copied().filter(|i| *i != first.0));
    for index in order {
        let section = file.section_by_index(SectionIndex(index)).map_err(unreadable)?;
        match section.kind() {
            SectionKind::Text | SectionKind::ReadOnlyData | SectionKind::ReadOnlyString => {}
            _ => return Err(FlattenError::Writable(section.name().unwrap_or("?").to_string())),
        }
        let align = usize::try_from(section.align()).unwrap_or(1).clamp(1, 4096);
        code.resize(code.len().next_multiple_of(align), 0);
        starts.insert(index, code.len());
        code.extend_from_slice(section.data().map_err(unreadable)?);
    }

    for (index, start) in &starts {
        let section = file.section_by_index(SectionIndex(*index)).map_err(unreadable)?;
        for (offset, relocation) in section.relocations() {
            let (target, address) = resolve(&file, relocation.target())?;
            let target = starts.get(&target.0).copied().unwrap_or(0) as i64 + address as i64 + relocation.addend();
            let place = *start + usize::try_from(offset).unwrap_or(usize::MAX / 2);
            patch(&mut code, place, target, relocation.flags())?;
        }
    }
    let entry = starts.get(&first.0).copied().unwrap_or(0) + symbol.address() as usize;
    Ok(Blob { code, entry, align: base_align(file.architecture()) })
}

/// The section and the address in it that a relocation points to.
fn resolve(file: &object::File<'_>, target: RelocationTarget) -> Result<(SectionIndex, u64), FlattenError> {
    match target {
        RelocationTarget::Symbol(index) => {
            let symbol = file.symbol_by_index(index).map_err(|e| FlattenError::Unreadable(e.to_string()))?;
            let section = symbol
                .section_index()
                .ok_or_else(|| FlattenError::Undefined(symbol.name().unwrap_or("?").to_string()))?;
            Ok((section, symbol.address()))
        }
        RelocationTarget::Section(index) => Ok((index, 0)),
        _ => Err(FlattenError::Relocation("absolute".to_string())),
    }
}

/// Writes the reference at `place` to `target`, both counted from the start of the blob.
fn patch(code: &mut [u8], place: usize, target: i64, flags: RelocationFlags) -> Result<(), FlattenError> {
    let unknown = || FlattenError::Relocation(format!("{flags:?}"));
    let RelocationFlags::Elf { r_type } = flags else { return Err(unknown()) };
    let field = code.get_mut(place..place + 4).ok_or_else(unknown)?;
    let word = u32::from_le_bytes([field[0], field[1], field[2], field[3]]);
    let relative = target - place as i64;
    let new = match r_type.0 {
        // x86-64: R_X86_64_PC32 and PLT32. The numbers of the two architectures do not overlap.
        2 | 4 => i32::try_from(relative).map_err(|_| unknown())? as u32,
        // aarch64: R_AARCH64_PREL32, then instructions with the reference in their immediate.
        261 => i32::try_from(relative).map_err(|_| unknown())? as u32,
        // ADR_PREL_PG_HI21: distance in pages.
        275 => {
            let pages = (target >> 12) - (place as i64 >> 12);
            let p = pages as u32;
            (word & 0x9f00_001f) | ((p & 3) << 29) | ((p >> 2 & 0x7_ffff) << 5)
        }
        // ADD_ABS_LO12_NC and LDST8: offset in the page; LDST16, 32, 64 and 128 count in their own size.
        277 | 278 => low12(word, target, 0),
        284 => low12(word, target, 1),
        285 => low12(word, target, 2),
        286 => low12(word, target, 3),
        299 => low12(word, target, 4),
        // JUMP26 and CALL26.
        282 | 283 => (word & 0xfc00_0000) | ((relative >> 2) as u32 & 0x03ff_ffff),
        _ => return Err(unknown()),
    };
    field.copy_from_slice(&new.to_le_bytes());
    Ok(())
}

/// An instruction with the offset of `target` in its page, in units of `1 << shift` bytes, as 12-bit immediate.
const fn low12(word: u32, target: i64, shift: u32) -> u32 {
    (word & !(0xfff << 10)) | (((target as u32 & 0xfff) >> shift) << 10)
}
