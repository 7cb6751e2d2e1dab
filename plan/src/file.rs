//! A plan that was opened: mapped, verified and decoded.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use prost::Message;

use crate::checksum::checksum;
use crate::format::{Section, SectionKind, damaged, decode_header, malformed};
use crate::mapped_bytes::MappedBytes;
use crate::{Arg, ArgSource, BackendExec, Finding, OpenError, Plan, PlanBuilder, WriteError, ranges, verify};

/// A structure larger than this is refused before it is decoded.
const MAX_STRUCTURE: u64 = 1 << 28;

/// An open plan. Its ranges and indexes were checked, so its accessors cannot fail for what the plan itself names.
pub struct PlanFile {
    plan: Plan,
    map: MappedBytes,
    sections: Vec<Section>,
    path: Option<PathBuf>,
}

impl PlanFile {
    /// Maps and verifies a file: version, layout, every checksum, and all ranges and indexes of the structure.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        let path = path.as_ref();
        let map = MappedBytes::file(path).map_err(|source| OpenError::Io { path: path.to_owned(), source })?;
        Self::from_map(map, Some(path.to_owned()))
    }

    /// The same for bytes in memory, which are copied once to give them the alignment of a mapped file.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, OpenError> {
        let map =
            MappedBytes::copy(bytes).map_err(|source| OpenError::Io { path: PathBuf::from("<memory>"), source })?;
        Self::from_map(map, None)
    }

    /// Packs a plan in memory and opens it, for a run without a file.
    pub fn from_builder(builder: &PlanBuilder<'_>) -> Result<Self, BuildOrOpenError> {
        Ok(Self::from_map(builder.to_map()?, None)?)
    }

    fn from_map(map: MappedBytes, path: Option<PathBuf>) -> Result<Self, OpenError> {
        let bytes = map.bytes();
        let sections = decode_header(bytes)?;
        for section in &sections {
            if checksum(section_bytes(bytes, section)) != section.checksum {
                return Err(damaged(format!("the checksum of the {} section does not match", section.kind.name())));
            }
        }
        let structure = sections.iter().find(|section| section.kind == SectionKind::Structure);
        let structure = structure.ok_or_else(|| malformed("there is no structure section"))?;
        if structure.len > MAX_STRUCTURE {
            return Err(malformed(format!("the structure section has {} bytes", structure.len)));
        }
        let plan = Plan::decode(section_bytes(bytes, structure)).map_err(|error| malformed(error.to_string()))?;
        let file = Self { plan, map, sections, path };
        let findings = file.integrity();
        if findings.is_empty() { Ok(file) } else { Err(OpenError::Invalid(findings)) }
    }

    fn integrity(&self) -> Vec<Finding> {
        let size = |kind| self.section(kind).len() as u64;
        let mut findings =
            ranges::check(&self.plan, size(SectionKind::Weights), size(SectionKind::Code), size(SectionKind::Payload));
        findings.extend(verify::structure(&self.plan));
        findings
    }

    /// The structure.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The file it was read from; none for a plan in memory.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The whole file.
    pub fn bytes(&self) -> &[u8] {
        self.map.bytes()
    }

    /// Bytes of the whole file.
    pub fn file_len(&self) -> u64 {
        self.map.bytes().len() as u64
    }

    /// The bytes of a section; empty when the plan has none of that kind. They start at a page boundary.
    pub fn section(&self, kind: SectionKind) -> &[u8] {
        let section = self.sections.iter().find(|section| section.kind == kind);
        section.map_or(&[], |section| section_bytes(self.map.bytes(), section))
    }

    /// The checksum of a section.
    pub fn section_checksum(&self, kind: SectionKind) -> Option<[u8; 16]> {
        self.sections.iter().find(|section| section.kind == kind).map(|section| section.checksum)
    }

    /// The bytes of a weight, inside the memory map; `None` when there is no such weight.
    pub fn weight(&self, index: u32) -> Option<&[u8]> {
        let weight = self.plan.weights.get(index as usize)?;
        slice(self.section(SectionKind::Weights), weight.offset, weight.len)
    }

    /// The blob of a kernel; `None` when there is no such kernel.
    pub fn kernel(&self, index: u32) -> Option<&[u8]> {
        let code = self.plan.code.get(index as usize)?;
        slice(self.section(SectionKind::Code), code.offset, code.len)
    }

    /// The payload of a backend task; `None` when it is outside its section, which opening a plan rules out.
    pub fn payload(&self, exec: &BackendExec) -> Option<&[u8]> {
        slice(self.section(SectionKind::Payload), exec.offset, exec.len)
    }

    /// The bytes that a weight argument names from its offset on; `None` for registers.
    pub fn weight_arg(&self, arg: &Arg) -> Option<&[u8]> {
        let Some(ArgSource::Weight(index)) = arg.source else {
            return None;
        };
        self.weight(index)?.get(usize::try_from(arg.byte_offset).ok()?..)
    }

    /// Proves that one program can run: see [`verify()`]. That its structure holds was checked when the plan was opened.
    pub fn verify_program(&self, index: usize) -> Result<(), Vec<Finding>> {
        let findings = self.plan.programs.get(index).map(verify::verify_program).unwrap_or_default();
        if findings.is_empty() { Ok(()) } else { Err(findings) }
    }

    /// Proves that the ranks of the plan's meshes cannot deadlock: see [`verify()`]. [`PlanFile::verify_program`] proves each of their
    /// programs.
    pub fn verify_meshes(&self) -> Result<(), Vec<Finding>> {
        let findings = verify::verify_meshes(&self.plan);
        if findings.is_empty() { Ok(()) } else { Err(findings) }
    }

    /// Proves that the plan can run: see [`verify()`].
    pub fn verify(&self) -> Result<(), Vec<Finding>> {
        verify(&self.plan)
    }
}

impl fmt::Debug for PlanFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlanFile").field("path", &self.path).field("model", &self.plan.info.model).finish()
    }
}

/// Why a plan could not be packed and opened in memory.
#[derive(Debug, thiserror::Error)]
pub enum BuildOrOpenError {
    /// It could not be packed.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// It could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
}

fn section_bytes<'a>(bytes: &'a [u8], section: &Section) -> &'a [u8] {
    slice(bytes, section.offset, section.len).unwrap_or(&[])
}

fn slice(bytes: &[u8], offset: u64, len: u64) -> Option<&[u8]> {
    let range = byte_range(offset, len)?;
    bytes.get(range)
}

fn byte_range(offset: u64, len: u64) -> Option<Range<usize>> {
    let start = usize::try_from(offset).ok()?;
    Some(start..start.checked_add(usize::try_from(len).ok()?)?)
}
