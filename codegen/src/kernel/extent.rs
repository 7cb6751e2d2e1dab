//! Extents and strides in kernels: numbers, or polynomials over symbols that the runtime knows when the kernel runs.

use std::iter::{Product, Sum};
use std::ops::{Add, Mul, Sub};

use of_ir::{Dim, DimFn, Graph, ValueId};

/// A number of elements, or a distance in elements.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Extent(Dim);

/// What a symbol that is not known before the run is taken for where a schedule is chosen.
const TYPICAL: i64 = 1 << 10;

/// No extent that is not known is taken for a larger one: products of several must not overflow.
const MOST: usize = 1 << 20;

impl Extent {
    /// The number, where it is known now.
    pub fn number(&self) -> Option<usize> {
        self.0.as_const().and_then(|d| usize::try_from(d).ok())
    }

    /// The number, or a typical one: for choosing schedules, never for what is right.
    pub fn guess(&self) -> usize {
        self.number().unwrap_or_else(|| {
            let typical = self.0.substitute(&|_| Some(TYPICAL.into())).as_const();
            typical.and_then(|n| usize::try_from(n).ok()).unwrap_or(TYPICAL as usize).clamp(1, MOST)
        })
    }

    /// Whether it is this very number.
    pub fn is(&self, n: i64) -> bool {
        self.0.as_const() == Some(n)
    }

    /// Whether it is a number that `by` divides.
    pub fn is_multiple_of(&self, by: usize) -> bool {
        self.number().is_some_and(|n| n.is_multiple_of(by))
    }

    /// The dimension.
    pub fn dim(&self) -> &Dim {
        &self.0
    }

    /// Quotient rounded up.
    pub fn div_ceil(&self, by: &Extent) -> Extent {
        Extent(Dim::call(DimFn::CeilDiv, &self.0, &by.0))
    }

    /// Quotient rounded down.
    pub fn div_floor(&self, by: &Extent) -> Extent {
        Extent(Dim::call(DimFn::FloorDiv, &self.0, &by.0))
    }

    /// The larger of two.
    pub fn max(&self, other: &Extent) -> Extent {
        Extent(Dim::call(DimFn::Max, &self.0, &other.0))
    }

    /// The smaller of two.
    pub fn min(&self, other: &Extent) -> Extent {
        Extent(Dim::call(DimFn::Min, &self.0, &other.0))
    }
}

/// All of them, where all are known now.
pub fn numbers(extents: &[Extent]) -> Option<Vec<usize>> {
    extents.iter().map(Extent::number).collect()
}

/// The extents of a tensor; none for what is no tensor of known rank.
pub fn of_value(g: &Graph, v: ValueId) -> Vec<Extent> {
    g.ty(v).as_tensor().and_then(|t| t.shape.as_ref()).map(|s| s.iter().map(Extent::from).collect()).unwrap_or_default()
}

/// The distance along an axis of `to` elements of a value that has `own` there, `step` apart: 0 where it is stretched,
/// which may only be known when the kernel runs.
pub fn stretched(own: &Extent, to: &Extent, step: &Extent) -> Extent {
    if own == to { step.clone() } else { step * (own - 1usize).min(&1usize.into()) }
}

impl From<Dim> for Extent {
    fn from(dim: Dim) -> Self {
        Extent(dim)
    }
}

impl From<&Dim> for Extent {
    fn from(dim: &Dim) -> Self {
        Extent(dim.clone())
    }
}

impl From<usize> for Extent {
    fn from(n: usize) -> Self {
        Extent(n.into())
    }
}

impl From<i64> for Extent {
    fn from(n: i64) -> Self {
        Extent(n.into())
    }
}

impl From<&Extent> for Extent {
    fn from(e: &Extent) -> Self {
        e.clone()
    }
}

macro_rules! arithmetic {
    ($($op:ident $f:ident),*) => {$(
        impl<T: Into<Extent>> $op<T> for &Extent {
            type Output = Extent;
            fn $f(self, other: T) -> Extent {
                Extent((&self.0).$f(&other.into().0))
            }
        }
        impl<T: Into<Extent>> $op<T> for Extent {
            type Output = Extent;
            fn $f(self, other: T) -> Extent {
                (&self).$f(other)
            }
        }
    )*};
}

arithmetic!(Add add, Sub sub, Mul mul);

impl<'a> Product<&'a Extent> for Extent {
    fn product<I: Iterator<Item = &'a Extent>>(iter: I) -> Extent {
        iter.fold(Extent::from(1usize), |a, b| a * b)
    }
}

impl<'a> Sum<&'a Extent> for Extent {
    fn sum<I: Iterator<Item = &'a Extent>>(iter: I) -> Extent {
        iter.fold(Extent::from(0usize), |a, b| a + b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guesses_follow_what_is_known_of_an_extent() {
        let n = Extent::from(Dim::symbol("n"));
        assert_eq!((n.guess(), (&n * 196usize).guess(), Extent::from(7usize).guess()), (1024, 200_704, 7));
        assert_eq!((n.min(&100usize.into()).guess(), (&n * &n * &n).guess()), (100, MOST));
        assert_eq!((n.div_floor(&4096usize.into()).guess(), (&n - 5000i64).guess()), (1, 1024));
    }
}
