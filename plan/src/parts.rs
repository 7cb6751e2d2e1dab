//! The sections of a plan in memory. Weights stay where the builder has them, so that they are in memory once.

use std::io;
use std::io::Cursor;
use std::sync::Arc;

use prost::Message;

use crate::blobs::Blob;
use crate::checksum::{Checksum, checksum};
use crate::format::{SectionKind, VALUE_ALIGN, align_up};
use crate::mapped_bytes::{MappedBytes, zeroed_pages};
use crate::rank_part::{initial_weight, weights_of};
use crate::write::{end, sections_checksum, sections_len, stream};
use crate::{Plan, PlanBuilder};

/// Bytes that one worker copies at a time.
const COPIED: usize = 1 << 20;

/// The contents of a plan's sections.
pub(crate) struct Parts {
    structure: Vec<u8>,
    code: MappedBytes,
    weights: Vec<Blob<'static>>,
    payload: MappedBytes,
}

impl Parts {
    /// Those of a builder. Kernels and payloads are copied, and weights that are not aligned, but for initial values of variables.
    pub fn of(builder: &PlanBuilder<'static>) -> io::Result<Parts> {
        let packed = |blobs: &[Blob<'_>]| {
            MappedBytes::fill(end(blobs) as usize, |to| {
                for blob in blobs {
                    to[blob.offset as usize..blob.end() as usize].copy_from_slice(blob.bytes());
                }
                Ok(())
            })
        };
        Ok(Parts {
            structure: builder.plan().encode_to_vec(),
            code: packed(&builder.code)?,
            weights: aligned(&builder.weights, &are_aligned(builder.plan(), &builder.weights))?,
            payload: packed(&builder.payload)?,
        })
    }

    /// The bytes of a section that is in one piece, as all are but that of the weights.
    pub fn whole(&self, kind: SectionKind) -> &[u8] {
        match kind {
            SectionKind::Structure => &self.structure,
            SectionKind::Code => self.code.bytes(),
            SectionKind::Payload => self.payload.bytes(),
            SectionKind::Weights | SectionKind::Leaves => &[],
        }
    }

    /// The size of a section.
    pub fn len(&self, kind: SectionKind) -> u64 {
        match kind {
            SectionKind::Weights => end(&self.weights),
            kind => self.whole(kind).len() as u64,
        }
    }

    /// Bytes of a file with these sections.
    pub fn file_len(&self) -> u64 {
        sections_len(SectionKind::ALL.map(|kind| self.len(kind)))
    }

    /// The bytes of a file with these sections.
    pub fn packed(&self) -> Vec<u8> {
        let mut out = Cursor::new(Vec::with_capacity(self.file_len() as usize));
        let whole = [&self.structure[..], self.code.bytes(), self.payload.bytes()].map(|bytes| [Blob::new(0, bytes)]);
        let [structure, code, payload] = &whole;
        // Memory takes all that is written.
        let _ = stream([structure, code, &self.weights, payload], &mut out);
        out.into_inner()
    }

    /// The checksum of a section that is not empty.
    pub fn checksum(&self, kind: SectionKind) -> Option<Checksum> {
        (self.len(kind) > 0).then(|| match kind {
            SectionKind::Weights => sections_checksum(&self.weights),
            kind => checksum(self.whole(kind)),
        })
    }

    /// Bytes of the weights.
    pub fn weight(&self, offset: u64, len: u64) -> Option<&[u8]> {
        let after = self.weights.partition_point(|blob| blob.offset <= offset);
        let blob = &self.weights[after.checked_sub(1)?];
        let start = usize::try_from(offset - blob.offset).ok()?;
        blob.bytes().get(start..start.checked_add(usize::try_from(len).ok()?)?)
    }
}

/// A part of memory that several blobs share.
struct Shared(Arc<MappedBytes>, std::ops::Range<usize>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.0.bytes()[self.1.clone()]
    }
}

/// Copies bytes to the beginnings of slices, on all cores.
#[cfg(feature = "parallel")]
fn copy_all(copies: Vec<(&mut [u8], &[u8])>) {
    rayon::scope(|workers| {
        for (to, from) in copies {
            workers.spawn(move |_| copy(to, from));
        }
    });
}

/// Copies bytes to the beginnings of slices.
#[cfg(not(feature = "parallel"))]
fn copy_all(copies: Vec<(&mut [u8], &[u8])>) {
    copies.into_iter().for_each(|(to, from)| copy(to, from));
}

/// Copies bytes, which are not needed any more where they were.
fn copy(to: &mut [u8], from: &[u8]) {
    to[..from.len()].copy_from_slice(from);
    of_files::release(from);
}

/// Which blobs must be aligned: all but those of which variables alone have values. These are copied from where they are.
fn are_aligned(plan: &Plan, blobs: &[Blob<'_>]) -> Vec<bool> {
    let blob_of = |weight: u32| {
        let offset = plan.weights.get(weight as usize)?.offset;
        blobs.partition_point(|blob| blob.offset <= offset).checked_sub(1)
    };
    let mut aligned = vec![true; blobs.len()];
    let variables = plan.programs.iter().flat_map(|program| &program.variables);
    variables.filter_map(initial_weight).filter_map(blob_of).for_each(|blob| aligned[blob] = false);
    let in_tasks = plan.programs.iter().flat_map(|program| &program.tasks).flat_map(weights_of);
    // A rank may have another weight wherever its program has one.
    let of_ranks = plan.meshes.iter().flat_map(|mesh| &mesh.ranks).flat_map(|rank| &rank.weight_overrides);
    let read = in_tasks.chain(of_ranks.map(|entry| entry.replacement));
    read.filter_map(blob_of).for_each(|blob| aligned[blob] = true);
    aligned
}

/// The same blobs. Those of which `must` says so are at addresses that are multiples of the alignment of values.
fn aligned(blobs: &[Blob<'static>], must: &[bool]) -> io::Result<Vec<Blob<'static>>> {
    let is_aligned = |blob: &Blob<'_>| (blob.bytes().as_ptr() as usize).is_multiple_of(VALUE_ALIGN as usize);
    let is_copied: Vec<bool> = blobs.iter().zip(must).map(|(blob, must)| *must && !is_aligned(blob)).collect();
    let others: Vec<&Blob<'_>> =
        blobs.iter().zip(&is_copied).filter(|(_, copied)| **copied).map(|(blob, _)| blob).collect();
    let room = |blob: &Blob<'_>| align_up(blob.bytes().len() as u64, VALUE_ALIGN) as usize;
    let mut memory = zeroed_pages(others.iter().map(|blob| room(blob)).sum())?;
    let mut rest = &mut memory[..];
    let mut copies = Vec::new();
    for blob in &others {
        let (to, later) = std::mem::take(&mut rest).split_at_mut(room(blob));
        copies.extend(to.chunks_mut(COPIED).zip(blob.bytes().chunks(COPIED)));
        rest = later;
    }
    copy_all(copies);
    let (memory, mut at) = (Arc::new(MappedBytes::from(memory.make_read_only()?)), 0);
    let place = |(blob, is_copied): (&Blob<'static>, &bool)| {
        if !is_copied {
            return blob.clone();
        }
        let start = at;
        at += room(blob);
        Blob::new(blob.offset, Shared(Arc::clone(&memory), start..start + blob.bytes().len()))
    };
    Ok(blobs.iter().zip(&is_copied).map(place).collect())
}
