//! A plan that was opened: mapped, verified and decoded.

mod shared_weights;

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use prost::Message;

use crate::checksum::{LEAF, checksum};
use crate::format::{Section, SectionKind, damaged, decode_header, malformed};
use crate::leaves::{self, Leaves};
use crate::mapped_bytes::MappedBytes;
use crate::parts::Parts;
use crate::{
    Arg, ArgSource, BackendExec, Finding, FindingKind, KernelCode, OpenError, Plan, PlanBuilder, WriteError, ranges,
    rank_part, verify,
};
use shared_weights::SharedWeights;

/// A structure larger than this is refused before it is decoded.
const MAX_STRUCTURE: u64 = 1 << 28;

/// An open plan. Its ranges and indexes were checked, so its accessors cannot fail for what the plan itself names.
pub struct PlanFile {
    plan: Plan,
    content: Content,
    path: Option<PathBuf>,
    shared: SharedWeights,
}

/// Where the sections are.
enum Content {
    /// In one piece, as a file has them.
    Map(MappedBytes, Vec<Section>),
    /// In one piece, of which the leaves that are listed are verified when they are read first.
    Part(MappedBytes, Vec<Section>, Vec<Leaves>),
    /// In memory.
    Parts(Parts),
}

impl PlanFile {
    /// Maps and verifies a file: version, layout, every checksum, and all ranges and indexes of the structure.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        let path = path.as_ref();
        let map = MappedBytes::file(path).map_err(|source| OpenError::Io { path: path.to_owned(), source })?;
        Self::from_map(map, Some(path.to_owned()))
    }

    /// Opens the part of a file that a rank of the plan's meshes needs: the structure, the kernels, and the weights that it reads. Nothing else is
    /// read, so the time and memory that this takes hardly depend on the number of ranks. Other weights and payloads are verified
    /// when they are asked for, and are absent if they are damaged; [`PlanFile::bytes`] are not verified.
    pub fn open_for_rank(path: impl AsRef<Path>, rank: usize) -> Result<Self, OpenError> {
        let path = path.as_ref();
        let map = MappedBytes::file_in_part(path).map_err(|source| OpenError::Io { path: path.to_owned(), source })?;
        let bytes = map.bytes();
        let sections = decode_header(bytes)?;
        let leaves = match leaves::table(bytes, &sections)? {
            None => Vec::new(),
            Some(table) => {
                let in_part = |kind| matches!(kind, SectionKind::Weights | SectionKind::Payload);
                let contents = sections.iter().zip(table).filter(|(section, _)| in_part(section.kind));
                contents.map(|(section, checksums)| Leaves::new(section.kind, checksums)).collect()
            }
        };
        let read_whole = |section: &&Section| {
            section.kind != SectionKind::Leaves && leaves.iter().all(|own: &Leaves| own.kind() != section.kind)
        };
        verify_checksums(bytes, sections.iter().filter(read_whole))?;
        let plan = decode_structure(bytes, &sections)?;
        let file = Self {
            plan,
            content: Content::Part(map, sections, leaves),
            path: Some(path.to_owned()),
            shared: SharedWeights::default(),
        };
        let findings = file.integrity();
        if !findings.is_empty() {
            return Err(OpenError::Invalid(findings));
        }
        let own = rank_part::weights(&file.plan, rank);
        let ranges = own.iter().filter_map(|index| file.plan.weights.get(*index as usize));
        ranges.into_iter().try_for_each(|weight| file.verify_range(SectionKind::Weights, weight.offset, weight.len))?;
        Ok(file)
    }

    /// Reads a file into memory that no other process can change, and opens it if `check` accepts its bytes. Nothing of it is decoded
    /// before. The weights take memory, unlike those of a mapped file.
    pub fn open_checked<E>(
        path: impl AsRef<Path>,
        check: impl FnOnce(&[u8]) -> Result<(), E>,
    ) -> Result<Result<Self, E>, OpenError> {
        let path = path.as_ref();
        let map = MappedBytes::read(path).map_err(|source| OpenError::Io { path: path.to_owned(), source })?;
        match check(map.bytes()) {
            Ok(()) => Self::from_map(map, Some(path.to_owned())).map(Ok),
            Err(why) => Ok(Err(why)),
        }
    }

    /// The same for bytes in memory, which are copied once to give them the alignment of a mapped file.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, OpenError> {
        let map =
            MappedBytes::copy(bytes).map_err(|source| OpenError::Io { path: PathBuf::from("<memory>"), source })?;
        Self::from_map(map, None)
    }

    /// A plan in memory, for a run without a file. It shares the weights of the builder.
    ///
    /// # Errors
    /// When the plan does not verify, or the system has no memory left.
    pub fn from_builder(builder: &PlanBuilder<'static>) -> Result<Self, WriteError> {
        let plan = builder.plan().clone();
        verify(&plan).map_err(WriteError::Invalid)?;
        let parts = Parts::of(builder);
        let content = parts.map_err(|source| WriteError::Io { path: PathBuf::from("<memory>"), source })?;
        let file = Self { plan, content: Content::Parts(content), path: None, shared: SharedWeights::default() };
        let findings = file.range_findings();
        if findings.is_empty() { Ok(file) } else { Err(WriteError::Invalid(findings)) }
    }

    fn from_map(map: MappedBytes, path: Option<PathBuf>) -> Result<Self, OpenError> {
        let bytes = map.bytes();
        let sections = decode_header(bytes)?;
        verify_checksums(bytes, sections.iter())?;
        leaves::table(bytes, &sections)?;
        let plan = decode_structure(bytes, &sections)?;
        let file = Self { plan, content: Content::Map(map, sections), path, shared: SharedWeights::default() };
        let findings = file.integrity();
        if findings.is_empty() { Ok(file) } else { Err(OpenError::Invalid(findings)) }
    }

    fn integrity(&self) -> Vec<Finding> {
        let mut findings = self.range_findings();
        findings.extend(verify::structure(&self.plan));
        findings
    }

    /// Ranges of the structure that are not in the other sections.
    fn range_findings(&self) -> Vec<Finding> {
        let [weights, code, payload] =
            [SectionKind::Weights, SectionKind::Code, SectionKind::Payload].map(|kind| self.section_len(kind));
        ranges::check(&self.plan, weights, code, payload)
    }

    /// The structure.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The file it was read from; none for a plan in memory.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The whole file; that of a plan in memory is put together.
    pub fn bytes(&self) -> Cow<'_, [u8]> {
        match &self.content {
            Content::Map(map, _) | Content::Part(map, ..) => Cow::Borrowed(map.bytes()),
            Content::Parts(parts) => Cow::Owned(parts.packed()),
        }
    }

    /// Bytes of the whole file.
    pub fn file_len(&self) -> u64 {
        match &self.content {
            Content::Map(map, _) | Content::Part(map, ..) => map.bytes().len() as u64,
            Content::Parts(parts) => parts.file_len(),
        }
    }

    /// The size of a section; 0 when the plan has none of that kind.
    pub fn section_len(&self, kind: SectionKind) -> u64 {
        match &self.content {
            Content::Map(_, sections) | Content::Part(_, sections, _) => {
                sections.iter().find(|s| s.kind == kind).map_or(0, |s| s.len)
            }
            Content::Parts(parts) => parts.len(kind),
        }
    }

    /// The checksum of a section.
    pub fn section_checksum(&self, kind: SectionKind) -> Option<[u8; 16]> {
        match &self.content {
            Content::Map(_, sections) | Content::Part(_, sections, _) => {
                sections.iter().find(|s| s.kind == kind).map(|s| s.checksum)
            }
            Content::Parts(parts) => parts.checksum(kind),
        }
    }

    /// The bytes of a section other than the weights, whose bytes need not be in one piece; empty when the plan has none of
    /// that kind. They start at a page boundary.
    fn section(&self, kind: SectionKind) -> &[u8] {
        match &self.content {
            Content::Map(map, sections) | Content::Part(map, sections, _) => {
                sections.iter().find(|s| s.kind == kind).map_or(&[], |s| section_bytes(map.bytes(), s))
            }
            Content::Parts(parts) => parts.whole(kind),
        }
    }

    /// All kernels.
    pub fn code(&self) -> &[u8] {
        self.section(SectionKind::Code)
    }

    /// The bytes of a weight; `None` when there is no such weight. They are aligned for vectors, but for initial values of a plan in memory that
    /// no task reads.
    pub fn weight(&self, index: u32) -> Option<&[u8]> {
        if let Some(shared) = self.shared.weight(index) {
            return Some(shared);
        }
        let weight = self.plan.weights.get(index as usize)?;
        match &self.content {
            Content::Map(..) | Content::Part(..) => self.range(SectionKind::Weights, weight.offset, weight.len),
            Content::Parts(parts) => parts.weight(weight.offset, weight.len),
        }
    }

    /// Reads weights that equal those of `others` from them from now on, and gives back the memory of its own. Only weights that are
    /// mapped from a file are shared; others stay as they are.
    pub fn share_weights(&mut self, others: &[Arc<PlanFile>]) {
        if !matches!(&self.content, Content::Map(map, _) if map.is_file()) {
            return;
        }
        let shared = SharedWeights::find(self, others);
        // Nothing is shared yet, so that these are the plan's own.
        shared.indices().filter_map(|index| self.weight(index)).for_each(of_files::release);
        self.shared = shared;
    }

    /// The weights that other plans own.
    pub(crate) fn shared_weights(&self) -> &SharedWeights {
        &self.shared
    }

    /// Bytes of the weights that are read from other plans.
    pub fn shared_bytes(&self) -> u64 {
        self.shared.bytes()
    }

    /// The plans whose weights this one reads, each as often as it reads one. They stay open as long as this one.
    pub fn weight_owners(&self) -> impl Iterator<Item = &Arc<PlanFile>> {
        self.shared.owners()
    }

    /// The blob of a kernel; `None` when there is no such kernel.
    pub fn kernel(&self, index: u32) -> Option<&[u8]> {
        let code = self.plan.code.get(index as usize)?;
        slice(self.section(SectionKind::Code), code.offset, code.len)
    }

    /// The payload of a backend task; `None` when it is outside its section, which opening a plan rules out.
    pub fn payload(&self, exec: &BackendExec) -> Option<&[u8]> {
        self.range(SectionKind::Payload, exec.offset, exec.len)
    }

    /// Bytes of a section, which are verified now where the file is read in part.
    fn range(&self, kind: SectionKind, offset: u64, len: u64) -> Option<&[u8]> {
        self.verify_range(kind, offset, len).ok()?;
        slice(self.section(kind), offset, len)
    }

    fn verify_range(&self, kind: SectionKind, offset: u64, len: u64) -> Result<(), OpenError> {
        let Content::Part(_, _, leaves) = &self.content else { return Ok(()) };
        let Some(own) = leaves.iter().find(|own| own.kind() == kind) else { return Ok(()) };
        own.verify(self.section(kind), offset..offset.saturating_add(len))
    }

    /// Bytes of the sections that were read and verified: all, but for a file that is opened for a rank.
    pub fn verified_len(&self) -> u64 {
        let all = SectionKind::ALL.map(|kind| self.section_len(kind)).iter().sum();
        let Content::Part(_, _, leaves) = &self.content else { return all };
        let left = |own: &Leaves| self.section_len(own.kind()).saturating_sub((own.count() * LEAF) as u64);
        all - leaves.iter().map(left).sum::<u64>()
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

    /// What concerns one rank of that proof. When every rank does this for itself, with the same plan, all of it is proven.
    pub fn verify_rank(&self, rank: usize) -> Result<(), Vec<Finding>> {
        let findings = verify::verify_rank(&self.plan, rank);
        if findings.is_empty() { Ok(()) } else { Err(findings) }
    }

    /// Proves that the plan can run: see [`verify()`]. The bytes of each kernel are compared with their hash.
    pub fn verify(&self) -> Result<(), Vec<Finding>> {
        let changed = |(index, code): (u32, &KernelCode)| {
            let is_own = self.kernel(index).is_some_and(|bytes| code.is_hash_of(bytes));
            let place = || format!("kernel {index} `{}`", code.name);
            (!is_own).then(|| Finding::new(FindingKind::Code, place(), "its bytes do not match their hash"))
        };
        let changed: Vec<Finding> = (0..).zip(&self.plan.code).filter_map(changed).collect();
        if changed.is_empty() { verify(&self.plan) } else { Err(changed) }
    }
}

impl fmt::Debug for PlanFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlanFile").field("path", &self.path).field("model", &self.plan.info.model).finish()
    }
}

fn verify_checksums<'s>(bytes: &[u8], sections: impl Iterator<Item = &'s Section>) -> Result<(), OpenError> {
    for section in sections {
        if checksum(section_bytes(bytes, section)) != section.checksum {
            return Err(damaged(format!("the checksum of the {} section does not match", section.kind.name())));
        }
    }
    Ok(())
}

fn decode_structure(bytes: &[u8], sections: &[Section]) -> Result<Plan, OpenError> {
    let structure = sections.iter().find(|section| section.kind == SectionKind::Structure);
    let structure = structure.ok_or_else(|| malformed("there is no structure section"))?;
    if structure.len > MAX_STRUCTURE {
        return Err(malformed(format!("the structure section has {} bytes", structure.len)));
    }
    Plan::decode(section_bytes(bytes, structure)).map_err(|error| malformed(error.to_string()))
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
