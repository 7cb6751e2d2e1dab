//! The layout of constant right-hand matrices.

use of_ir::DType;

use super::super::error::ScheduleError;

/// A right-hand matrix packed for a kernel: `[groups][panels][k][nr]`, the columns of a panel side by side, those
/// beyond `n` zero. All dimensions of `k` are flattened, the last fastest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PackedB {
    /// Element type.
    pub dtype: DType,
    /// Number of matrices.
    pub groups: usize,
    /// Dimensions of k.
    pub k: Vec<usize>,
    /// Columns of each matrix.
    pub n: usize,
    /// Columns of a panel.
    pub nr: usize,
}

/// Where the elements of a matrix lie in its source, in elements.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PackStrides {
    /// From matrix to matrix.
    pub group: i64,
    /// From index to index of each dimension of k.
    pub k: Vec<i64>,
    /// From column to column.
    pub n: i64,
}

impl PackedB {
    /// Number of panels of each matrix.
    pub const fn panels(&self) -> usize {
        self.n.div_ceil(self.nr)
    }

    /// Elements of the packed form.
    pub fn len(&self) -> usize {
        self.groups * self.panels() * self.k.iter().product::<usize>() * self.nr
    }

    /// Whether there is nothing to pack.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the packed form.
    pub fn bytes(&self) -> usize {
        self.dtype.byte_len(self.len()).unwrap_or(0)
    }

    /// Packs a source.
    ///
    /// # Errors
    /// If the strides have another rank or reach outside the source.
    pub fn pack(&self, source: &[u8], strides: &PackStrides) -> Result<Vec<u8>, ScheduleError> {
        let size = self.dtype.byte_len(1).unwrap_or(1);
        if strides.k.len() != self.k.len() {
            return Err(ScheduleError::spec(format!("k has {} dimensions and {} strides", self.k.len(), strides.k.len())));
        }
        let mut reach = vec![(self.groups, strides.group), (self.n, strides.n)];
        reach.extend(self.k.iter().copied().zip(strides.k.iter().copied()));
        if reach.iter().any(|r| r.0 == 0) {
            return Ok(vec![0; self.bytes()]);
        }
        let end = |neg: bool| {
            let moves = reach.iter().map(|(d, s)| (*d as i128 - 1) * i128::from(*s));
            moves.filter(|m| (*m < 0) == neg).sum::<i128>()
        };
        if end(true) < 0 || (end(false) + 1) * size as i128 > source.len() as i128 {
            return Err(ScheduleError::spec("the matrix reaches outside its source"));
        }
        // Offsets of the flattened k, once.
        let mut offsets = vec![0i64];
        for (d, s) in self.k.iter().zip(&strides.k) {
            offsets = offsets.iter().flat_map(|o| (0..*d as i64).map(move |i| o + i * s)).collect();
        }
        let mut out = vec![0u8; self.bytes()];
        let row = self.nr * size;
        if row == 0 {
            return Ok(out);
        }
        let panel_bytes = offsets.len() * row;
        for (at, panel) in out.chunks_exact_mut(panel_bytes.max(1)).enumerate() {
            let (g, p) = (at / self.panels(), at % self.panels());
            let first = p * self.nr;
            let count = self.nr.min(self.n - first);
            let base = g as i64 * strides.group + first as i64 * strides.n;
            for (o, to) in offsets.iter().zip(panel.chunks_exact_mut(row)) {
                let from = (base + o) as usize * size;
                if strides.n == 1 {
                    to[..count * size].copy_from_slice(&source[from..from + count * size]);
                } else {
                    let step = strides.n * size as i64;
                    for (j, cell) in to.chunks_exact_mut(size).take(count).enumerate() {
                        let at = (from as i64 + j as i64 * step) as usize;
                        cell.copy_from_slice(&source[at..at + size]);
                    }
                }
            }
        }
        Ok(out)
    }
}
