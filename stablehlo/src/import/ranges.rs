//! What is known of indices: their ranges, which decide comparisons and make clamps unnecessary.

use of_ir::{DType, ValueId};
use of_ops::elementwise::{Add, Cast, Ge, Gt, Le, Lt, Max, Min, Not, Sub};
use of_ops::movement::{Expand, Reshape};
use of_ops::structural::Constant;
use of_ops::{OpSpec, list::as_op};

use super::Importer;
use super::build::Built;

/// Ops in a row.
const DEEPEST: usize = 16;

impl Importer<'_, '_> {
    /// The least and the greatest value that an integer tensor can have.
    pub fn range(&self, v: ValueId) -> Option<(i64, i64)> {
        self.range_within(v, DEEPEST)
    }

    fn range_within(&self, v: ValueId, depth: usize) -> Option<(i64, i64)> {
        if let Some(range) = self.ranges.get(&v) {
            return Some(*range);
        }
        let g = self.rw.graph();
        let dtype = g.ty(v).as_tensor()?.dtype;
        if !dtype.is_int() {
            return None;
        }
        let id = g.def_op(v)?;
        let data = g.op(id);
        let depth = depth.checked_sub(1)?;
        let operand = |i: usize| self.range_within(*data.operands.get(i)?, depth);
        let (low, high) = match data.name() {
            Constant::NAME => {
                let all = self.fold(v)?.to_i64s()?;
                (*all.iter().min()?, *all.iter().max()?)
            }
            Reshape::NAME | Expand::NAME => operand(0)?,
            Cast::NAME => operand(0)?,
            Add::NAME => {
                let (a, b) = (operand(0)?, operand(1)?);
                (a.0.checked_add(b.0)?, a.1.checked_add(b.1)?)
            }
            Sub::NAME => {
                let (a, b) = (operand(0)?, operand(1)?);
                (a.0.checked_sub(b.1)?, a.1.checked_sub(b.0)?)
            }
            Max::NAME => match (operand(0), operand(1)) {
                (Some(a), Some(b)) => (a.0.max(b.0), a.1.max(b.1)),
                _ => return None,
            },
            Min::NAME => match (operand(0), operand(1)) {
                (Some(a), Some(b)) => (a.0.min(b.0), a.1.min(b.1)),
                _ => return None,
            },
            _ => return None,
        };
        // A sum that leaves its type wraps.
        let (least, greatest) = dtype.int_range()?;
        (i128::from(low) >= least && i128::from(high) <= greatest).then_some((low, high))
    }

    /// Whether a condition is known to hold everywhere, or nowhere.
    pub fn decided(&self, condition: ValueId) -> Option<bool> {
        if let Some(known) = self.fold(condition).and_then(|t| t.to_i64s()) {
            let first = *known.first()?;
            return known.iter().all(|k| *k == first).then_some(first != 0);
        }
        let g = self.rw.graph();
        let data = g.op(g.def_op(condition)?);
        let range = |i: usize| self.range(*data.operands.get(i)?);
        let below = |a: (i64, i64), b: (i64, i64)| match (a.1 < b.0, a.0 >= b.1) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        };
        match data.name() {
            Lt::NAME => below(range(0)?, range(1)?),
            Ge::NAME => below(range(0)?, range(1)?).map(|b| !b),
            Gt::NAME => below(range(1)?, range(0)?),
            Le::NAME => below(range(1)?, range(0)?).map(|b| !b),
            Not::NAME => self.decided(*data.operands.first()?).map(|b| !b),
            _ => None,
        }
    }

    /// An index as i64. A counter of a loop stays what it is, so that analyses see it.
    pub fn wide_index(&mut self, v: ValueId) -> Built {
        if let Some(wide) = self.wide.get(&v) {
            return Ok(*wide);
        }
        if self.dtype(v)? == DType::I64 {
            return Ok(v);
        }
        let wide = self.widened(v)?;
        self.wide.insert(v, wide);
        Ok(wide)
    }

    fn widened(&mut self, v: ValueId) -> Built {
        if let Some(known) = self.fold_int(v).filter(|_| self.dims(v).is_ok_and(|d| d.is_empty())) {
            return self.number(known as f64, DType::I64);
        }
        let g = self.rw.graph();
        let id = g.def_op(v);
        // A sum of known range does not wrap, so it is the sum of what is widened.
        if let Some(id) = id.filter(|_| self.range(v).is_some()) {
            let data = g.op(id);
            let (name, operands) = (data.name(), data.operands.to_vec());
            if let [a, b] = operands[..]
                && (name == Add::NAME || name == Sub::NAME)
            {
                let (a, b) = (self.wide_index(a)?, self.wide_index(b)?);
                return if name == Add::NAME { self.one(Add {}, &[a, b]) } else { self.one(Sub {}, &[a, b]) };
            }
            if as_op::<Cast>(g, id).is_some() && self.dtype(operands[0])?.is_int() {
                return self.wide_index(operands[0]);
            }
        }
        self.cast(v, DType::I64)
    }

    /// An index, as i64, that is moved into `0..=last`.
    pub fn clamped_index(&mut self, v: ValueId, last: i64) -> Built {
        let wide = self.wide_index(v)?;
        match self.range(v) {
            Some((low, high)) if low >= 0 && high <= last => Ok(wide),
            _ => self.clamp_to(wide, 0, last),
        }
    }
}
