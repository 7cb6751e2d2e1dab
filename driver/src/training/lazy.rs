//! Columns whose samples are made when a batch needs them.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use of_diag::{Code, Diagnostics};
use of_ir::DType;

use crate::error::error;

/// Where the samples of a column come from.
pub(super) trait Source: Debug + Send + Sync {
    /// Number of samples.
    fn len(&self) -> usize;
    /// Extents of a sample.
    fn dims(&self) -> &[usize];
    /// Element type.
    fn dtype(&self) -> DType;
    /// Adds the bytes of the samples of these numbers, which exist, one after the other.
    ///
    /// # Errors
    /// When one cannot be read.
    fn gather(&self, samples: &[usize], out: &mut Vec<u8>) -> Result<(), Diagnostics>;
    /// The part of the source that has a sample, and is read at once.
    fn group(&self, _sample: usize) -> usize {
        0
    }
    /// How many of these parts stay in memory; `None` is all.
    fn groups_at_once(&self) -> Option<usize> {
        None
    }
}

/// Samples by the parts that are read at once, and how many parts stay in memory.
pub(super) struct Groups {
    pub samples: Vec<Vec<usize>>,
    pub at_once: usize,
}

/// Some samples of one or several sources, one after the other.
#[derive(Clone, Debug)]
pub(super) struct LazyColumn {
    sources: Vec<Arc<dyn Source>>,
    /// Source and number of each sample; absent where there is one source, all of which is taken.
    chosen: Option<Arc<[(u32, u32)]>>,
}

impl LazyColumn {
    /// All samples of a source.
    pub fn new(source: impl Source + 'static) -> LazyColumn {
        LazyColumn { sources: vec![Arc::new(source)], chosen: None }
    }

    pub fn len(&self) -> usize {
        self.chosen.as_ref().map_or_else(|| self.sources[0].len(), |chosen| chosen.len())
    }

    pub fn dims(&self) -> &[usize] {
        self.sources[0].dims()
    }

    pub fn dtype(&self) -> DType {
        self.sources[0].dtype()
    }

    fn place(&self, sample: usize) -> Option<(u32, u32)> {
        match &self.chosen {
            Some(chosen) => chosen.get(sample).copied(),
            None => (sample < self.sources[0].len()).then_some((0, sample as u32)),
        }
    }

    /// The parts that are read at once, where not all stay in memory.
    pub fn groups(&self) -> Option<Groups> {
        let at_once = self.sources.iter().filter_map(|source| source.groups_at_once()).min()?;
        let mut by_group = BTreeMap::<_, Vec<usize>>::new();
        for sample in 0..self.len() {
            let (source, number) = self.place(sample)?;
            let group = self.sources[source as usize].group(number as usize);
            by_group.entry((source, group)).or_default().push(sample);
        }
        Some(Groups { samples: by_group.into_values().collect(), at_once })
    }

    /// The samples of these numbers.
    pub fn select(&self, samples: &[usize]) -> LazyColumn {
        let chosen = samples.iter().filter_map(|sample| self.place(*sample)).collect();
        LazyColumn { sources: self.sources.clone(), chosen: Some(chosen) }
    }

    /// Adds the samples of another column of the same input.
    ///
    /// # Errors
    /// When their type or extents differ.
    pub fn extend(&mut self, name: &str, other: &LazyColumn) -> Result<(), Diagnostics> {
        if self.dtype() != other.dtype() || self.dims() != other.dims() {
            let (own, more) = ((self.dtype(), self.dims()), (other.dtype(), other.dims()));
            let what = format!(
                "the samples of '{name}' are {} {:?} in one file and {} {:?} in another",
                own.0, own.1, more.0, more.1
            );
            return Err(error(Code::INPUT, what).into());
        }
        let first = self.sources.len() as u32;
        let own = (0..self.len()).filter_map(|i| self.place(i)).collect::<Vec<_>>();
        let more = (0..other.len()).filter_map(|i| other.place(i)).map(|(source, i)| (source + first, i));
        self.chosen = Some(own.into_iter().chain(more).collect());
        self.sources.extend(other.sources.iter().cloned());
        Ok(())
    }

    /// Bytes of a sample.
    pub fn sample_bytes(&self) -> usize {
        self.dims().iter().product::<usize>() * self.dtype().bits().unwrap_or(8) / 8
    }

    /// The bytes of the samples of these numbers, one after the other.
    ///
    /// # Errors
    /// When there is no such sample, or one cannot be read.
    pub fn gather(&self, samples: &[usize]) -> Result<Vec<u8>, Diagnostics> {
        let each = self.sample_bytes();
        // Each source once, which reads its samples in parallel.
        let mut by_source = BTreeMap::<u32, (Vec<usize>, Vec<usize>)>::new();
        for (row, sample) in samples.iter().enumerate() {
            let place = self.place(*sample).ok_or_else(|| error(Code::INPUT, "the data has no such samples"))?;
            let (rows, numbers) = by_source.entry(place.0).or_default();
            rows.push(row);
            numbers.push(place.1 as usize);
        }
        let mut out = Vec::with_capacity(each * samples.len());
        if by_source.len() == 1
            && let Some((source, (_, numbers))) = by_source.first_key_value()
        {
            self.sources[*source as usize].gather(numbers, &mut out)?;
            return Ok(out);
        }
        out.resize(each * samples.len(), 0);
        for (source, (rows, numbers)) in by_source {
            let mut own = Vec::with_capacity(each * rows.len());
            self.sources[source as usize].gather(&numbers, &mut own)?;
            for (row, sample) in rows.into_iter().zip(own.chunks_exact(each.max(1))) {
                out[row * each..(row + 1) * each].copy_from_slice(sample);
            }
        }
        Ok(out)
    }
}
