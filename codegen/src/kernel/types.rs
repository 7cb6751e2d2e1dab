//! Types, variables and index arithmetic of the kernel IR.

use std::fmt;
use std::ops::{Add, Mul, Sub};

use of_ir::DType;

/// The type of a value in a kernel: an element type times a number of lanes (1 for a scalar).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Ty {
    /// Element type of every lane.
    pub elem: DType,
    /// Number of lanes, a power of two.
    pub lanes: usize,
}

impl Ty {
    /// The type of loop counters and indices.
    pub const INDEX: Ty = Ty { elem: DType::I64, lanes: 1 };

    /// `elem` times `lanes`.
    pub const fn new(elem: DType, lanes: usize) -> Self {
        Self { elem, lanes }
    }

    /// One element.
    pub const fn scalar(elem: DType) -> Self {
        Self { elem, lanes: 1 }
    }

    /// The same lanes with another element type.
    pub const fn with_elem(self, elem: DType) -> Self {
        Self { elem, lanes: self.lanes }
    }
}

impl fmt::Display for Ty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.elem, self.lanes)
    }
}

/// A variable of one kernel: a let, an accumulator, a loop counter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Var(pub(super) u32);

impl Var {
    /// Position in [`Kernel::vars`](super::Kernel::vars).
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A memory that a kernel reads and writes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Mem {
    /// The parameter at this position.
    Param(usize),
    /// The scratch array at this position; its contents do not outlive a call.
    Scratch(usize),
}

/// `offset + sum of coefficient * variable`, in elements.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Affine {
    terms: Vec<(Var, i64)>,
    offset: i64,
}

impl Affine {
    /// The variables and their coefficients, by variable, no zero among them.
    pub fn terms(&self) -> &[(Var, i64)] {
        &self.terms
    }

    /// The constant part.
    pub const fn offset(&self) -> i64 {
        self.offset
    }

    /// The value if no variable is in it.
    pub fn as_const(&self) -> Option<i64> {
        self.terms.is_empty().then_some(self.offset)
    }

    fn add_term(&mut self, var: Var, by: i64) {
        match self.terms.binary_search_by_key(&var, |t| t.0) {
            Ok(at) => {
                self.terms[at].1 = self.terms[at].1.wrapping_add(by);
                if self.terms[at].1 == 0 {
                    self.terms.remove(at);
                }
            }
            Err(at) if by != 0 => self.terms.insert(at, (var, by)),
            Err(_) => {}
        }
    }
}

impl From<i64> for Affine {
    fn from(offset: i64) -> Self {
        Self { terms: Vec::new(), offset }
    }
}

impl From<usize> for Affine {
    fn from(offset: usize) -> Self {
        Self { terms: Vec::new(), offset: offset as i64 }
    }
}

impl From<Var> for Affine {
    fn from(var: Var) -> Self {
        Self { terms: vec![(var, 1)], offset: 0 }
    }
}

impl From<&Affine> for Affine {
    fn from(a: &Affine) -> Self {
        a.clone()
    }
}

impl<T: Into<Affine>> Add<T> for Affine {
    type Output = Affine;
    fn add(mut self, rhs: T) -> Affine {
        let rhs = rhs.into();
        self.offset = self.offset.wrapping_add(rhs.offset);
        for (v, c) in rhs.terms {
            self.add_term(v, c);
        }
        self
    }
}

impl<T: Into<Affine>> Sub<T> for Affine {
    type Output = Affine;
    fn sub(self, rhs: T) -> Affine {
        self + rhs.into() * -1
    }
}

impl Mul<i64> for Affine {
    type Output = Affine;
    fn mul(mut self, by: i64) -> Affine {
        if by == 0 {
            return Affine::default();
        }
        self.offset = self.offset.wrapping_mul(by);
        for t in &mut self.terms {
            t.1 = t.1.wrapping_mul(by);
        }
        self
    }
}

impl<T: Into<Affine>> Add<T> for Var {
    type Output = Affine;
    fn add(self, rhs: T) -> Affine {
        Affine::from(self) + rhs
    }
}

impl Mul<i64> for Var {
    type Output = Affine;
    fn mul(self, by: i64) -> Affine {
        Affine::from(self) * by
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_cancel_and_stay_sorted() {
        let (a, b) = (Var(2), Var(1));
        let e = a * 3 + b * 2 + 5i64 - a * 3;
        assert_eq!(e.terms(), &[(b, 2)]);
        assert_eq!(e.offset(), 5);
        assert_eq!((e - b * 2).as_const(), Some(5));
    }
}
