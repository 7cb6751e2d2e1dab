//! The normal form that matrix products and convolutions share.
//!
//! For every batch index, row and column (together "M": output pixels, or just the rows of a matrix) and every `n`:
//! `C[batch, row, col, n] = epilogue(sum over k of A[batch, row, col, k] * B[batch, k, n])`, where every operand is
//! affine in its indices; `k` may have several dimensions.

use of_ir::DType;

use super::super::dag::Dag;
use super::super::error::{ScheduleError, supported};
use super::super::view::View;
use super::pad::Pad;
use crate::kernel::Param;

/// Strides of an operand of the epilogue.
#[derive(Clone, Debug)]
pub(super) struct EpilogueView {
    pub param: usize,
    pub offset: i64,
    pub batch: Vec<i64>,
    pub row: i64,
    pub col: i64,
    pub n: i64,
}

/// Where B comes from.
#[derive(Clone, Debug)]
pub(super) enum Right {
    /// Packed at compile time; `group` is the batch dimension that selects the matrix.
    Packed { param: usize, group: Option<usize> },
    /// A buffer, affine in batch, k and n.
    View { param: usize, offset: i64, batch: Vec<i64>, k: i64, n: i64 },
}

/// How A is changed on its way.
#[derive(Clone, Debug)]
pub(super) struct NormalPrologue {
    pub dag: Dag,
    /// Strides over batch, row, col, and k (which is one dimension then).
    pub inputs: Vec<EpilogueView>,
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Normal {
    pub name: String,
    pub params: Vec<Param>,
    pub batch: Vec<usize>,
    pub rows: usize,
    pub cols: usize,
    pub n: usize,
    /// Extents of the dimensions of k, the last fastest in B.
    pub k: Vec<usize>,
    pub a_param: usize,
    pub a_offset: i64,
    pub a_batch: Vec<i64>,
    pub a_row: i64,
    pub a_col: i64,
    pub a_k: Vec<i64>,
    pub right: Right,
    pub b_elem: DType,
    pub acc: DType,
    /// Input rows are copied with their surroundings before they are used.
    pub pad: Option<Pad>,
    pub prologue: Option<NormalPrologue>,
    pub dag: Dag,
    pub inputs: Vec<EpilogueView>,
    pub outputs: Vec<EpilogueView>,
    pub flops: u64,
    pub bytes: u64,
}

impl Normal {
    /// Product of the dimensions of k.
    pub fn k_total(&self) -> usize {
        self.k.iter().product()
    }

    /// Element type of A in memory.
    pub fn a_elem(&self) -> DType {
        self.params.get(self.a_param).map_or(DType::F32, |p| p.elem)
    }

    /// Drops dimensions of k of one element and joins neighbours that A runs through without a gap. B's order of k
    /// does not change by that.
    pub fn join_k(&mut self) {
        let mut k: Vec<usize> = Vec::new();
        let mut a: Vec<i64> = Vec::new();
        for (extent, stride) in self.k.iter().zip(&self.a_k) {
            if *extent == 1 {
                continue;
            }
            if let (Some(last), Some(s)) = (k.last_mut(), a.last_mut())
                && *s == *stride * *extent as i64
            {
                *last *= extent;
                *s = *stride;
                continue;
            }
            k.push(*extent);
            a.push(*stride);
        }
        if k.is_empty() {
            (k, a) = (vec![1], vec![1]);
        }
        (self.k, self.a_k) = (k, a);
    }

    /// Makes rows and columns one dimension where A and every operand of the epilogue run through both without a gap.
    pub fn join_rows(&mut self) {
        if self.pad.is_some() {
            return;
        }
        let cols = self.cols as i64;
        let all = self.inputs.iter().chain(&self.outputs);
        if self.a_row == self.a_col * cols && all.clone().all(|v| v.row == v.col * cols) {
            self.cols *= self.rows;
            self.rows = 1;
            for v in self.inputs.iter_mut().chain(&mut self.outputs) {
                v.row = 0;
            }
            self.a_row = 0;
        } else if self.cols == 1 {
            self.cols = self.rows;
            self.rows = 1;
            self.a_col = self.a_row;
            for v in self.inputs.iter_mut().chain(&mut self.outputs) {
                v.col = v.row;
            }
        }
    }

    /// Makes a batch dimension that B does not depend on part of the rows, where strides allow.
    pub fn join_batch(&mut self) {
        if self.pad.is_some() || self.prologue.is_some() {
            return;
        }
        while let Some(at) = self.batch.len().checked_sub(1) {
            let b_moves = match &self.right {
                Right::Packed { group, .. } => *group == Some(at),
                Right::View { batch, .. } => batch[at] != 0,
            };
            let d = self.batch[at];
            let rows = self.rows as i64;
            let all = self.inputs.iter().chain(&self.outputs);
            let joins = d == 1
                || (!b_moves
                    && (self.rows == 1 || (self.a_batch[at] == self.a_row * rows && all.clone().all(|v| v.batch[at] == v.row * rows))));
            if !joins {
                return;
            }
            if self.rows == 1 && d > 1 {
                self.a_row = self.a_batch[at];
                for v in self.inputs.iter_mut().chain(&mut self.outputs) {
                    v.row = v.batch[at];
                }
            }
            self.rows *= d;
            self.batch.pop();
            self.a_batch.pop();
            for v in self.inputs.iter_mut().chain(&mut self.outputs) {
                v.batch.pop();
            }
            if let Right::View { batch, .. } = &mut self.right {
                batch.pop();
            }
            if let Right::Packed { group, .. } = &mut self.right
                && *group == Some(at)
            {
                *group = None;
            }
        }
    }

    /// Checks types and the epilogue.
    pub fn check(&self) -> Result<(), ScheduleError> {
        for p in &self.params {
            supported(p.elem)?;
        }
        supported(self.acc)?;
        if matches!(self.acc, DType::F16 | DType::BF16 | DType::Bool) {
            return Err(ScheduleError::spec(format!("products are not summed in {}", self.acc)));
        }
        let mut types = vec![self.acc];
        types.extend(self.inputs.iter().map(|v| self.params[v.param].elem));
        self.dag.check(&types)?;
        let outputs = self.dag.output_types()?;
        if outputs.len() != self.outputs.len() || outputs.is_empty() {
            return Err(ScheduleError::spec("the epilogue's outputs do not match its views"));
        }
        for (o, v) in outputs.iter().zip(&self.outputs) {
            if self.params[v.param].elem != *o {
                return Err(ScheduleError::spec(format!("an output of type {o} is stored as {}", self.params[v.param].elem)));
            }
        }
        Ok(())
    }
}

/// What is done with the sums before they are stored.
///
/// Views are over batch, M and N as the contraction says. Input 0 of the graph is the sum, of the accumulator's type;
/// input `i + 1` is `inputs[i]`; the graph's outputs go to `outputs`.
#[derive(Clone, PartialEq, Debug)]
pub struct Epilogue {
    /// Further operands: bias, residual, gate, scale …
    pub inputs: Vec<View>,
    /// The function.
    pub dag: Dag,
    /// Where the results go.
    pub outputs: Vec<View>,
}

impl Epilogue {
    /// Stores the sums as they are.
    pub fn store(acc: DType, to: View) -> Self {
        Self { inputs: Vec::new(), dag: Dag::identity(acc), outputs: vec![to] }
    }
}
