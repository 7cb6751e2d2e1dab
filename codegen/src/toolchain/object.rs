//! Converts an object file to a blob: code and constants of one kernel, laid out and relocated, position-independent.

use std::collections::HashMap;

use object::read::elf::ElfFile64;
use object::{
    Object, ObjectSection, ObjectSymbol, RelocationKind, RelocationTarget, SectionIndex, SectionKind, SymbolSection,
};

/// A position-independent kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Blob {
    /// Code, then constants.
    pub bytes: Vec<u8>,
    /// Offset of the entry point.
    pub entry: u64,
}

/// Why an object file does not become a blob.
#[derive(Debug, thiserror::Error)]
pub enum FlattenError {
    /// The file does not parse.
    #[error("the object file does not parse: {0}")]
    Parse(#[from] object::Error),
    /// It references an undefined symbol.
    #[error("the kernel needs '{0}', which it does not define")]
    Undefined(String),
    /// It has no entry point.
    #[error("the kernel has no function '{0}'")]
    NoEntry(String),
    /// A relocation that cannot be resolved before mapping.
    #[error("a relocation of kind {0} is not position-independent")]
    Relocation(String),
    /// It writes to static data.
    #[error("the kernel has writable data in '{0}'")]
    Writable(String),
}

/// Flattens an ELF object with the function `entry`.
///
/// # Errors
/// When the object is not self-contained.
pub fn flatten(object: &[u8], entry: &str) -> Result<Blob, FlattenError> {
    let file = ElfFile64::<object::Endianness>::parse(object)?;
    let mut bytes = Vec::new();
    let mut base: HashMap<SectionIndex, usize> = HashMap::new();
    for section in file.sections() {
        match section.kind() {
            SectionKind::Text | SectionKind::ReadOnlyData | SectionKind::ReadOnlyString => {
                if section.size() == 0 {
                    continue;
                }
                let align = (section.align().max(1) as usize).max(64);
                bytes.resize(bytes.len().next_multiple_of(align), 0);
                base.insert(section.index(), bytes.len());
                bytes.extend_from_slice(section.data()?);
            }
            SectionKind::Data | SectionKind::UninitializedData if section.size() > 0 => {
                return Err(FlattenError::Writable(section.name()?.to_string()));
            }
            _ => {}
        }
    }
    for section in file.sections() {
        let Some(at) = base.get(&section.index()) else { continue };
        for (offset, r) in section.relocations() {
            let place = at + offset as usize;
            let target = match r.target() {
                RelocationTarget::Symbol(s) => {
                    let symbol = file.symbol_by_index(s)?;
                    let SymbolSection::Section(home) = symbol.section() else {
                        return Err(FlattenError::Undefined(symbol.name()?.to_string()));
                    };
                    let home = base
                        .get(&home)
                        .ok_or_else(|| FlattenError::Undefined(symbol.name().unwrap_or("?").to_string()))?;
                    home + symbol.address() as usize
                }
                RelocationTarget::Section(s) => {
                    *base.get(&s).ok_or_else(|| FlattenError::Undefined("a section".into()))?
                }
                _ => return Err(FlattenError::Relocation("absolute".into())),
            };
            match (r.kind(), r.size()) {
                (RelocationKind::Relative | RelocationKind::PltRelative, 32) => {
                    let value = (target as i64 + r.addend() - place as i64) as i32;
                    bytes[place..place + 4].copy_from_slice(&value.to_le_bytes());
                }
                (kind, size) => return Err(FlattenError::Relocation(format!("{kind:?}/{size}"))),
            }
        }
    }
    let symbol = file.symbols().find(|s| s.name() == Ok(entry)).ok_or_else(|| FlattenError::NoEntry(entry.into()))?;
    let home = symbol.section_index().and_then(|s| base.get(&s)).ok_or_else(|| FlattenError::NoEntry(entry.into()))?;
    Ok(Blob { entry: (home + symbol.address() as usize) as u64, bytes })
}
