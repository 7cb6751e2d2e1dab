//! Extents and strides in kernels: numbers, or polynomials over symbols that the runtime binds before the kernel runs.

use std::iter::{Product, Sum};
use std::ops::{Add, Mul, Sub};

use of_ir::{Dim, DimFn, Graph, ValueId};

/// An extent, or a stride in elements.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Extent(Dim);

/// The assumed value of an unbound symbol when a schedule is chosen.
const TYPICAL_EXTENT: i64 = 1 << 10;

/// The largest assumed value of an unknown extent: products of several must not overflow.
const MAX_SIZE_HINT: usize = 1 << 20;

impl Extent {
    /// The number, if statically known.
    pub fn number(&self) -> Option<usize> {
        self.0.as_const().and_then(|d| usize::try_from(d).ok())
    }

    /// The number, or a typical one: only for choosing schedules, never for correctness.
    pub fn size_hint(&self) -> usize {
        self.at(TYPICAL_EXTENT)
    }

    /// The number, or the one for symbols that are 1: only for choosing schedules, never for correctness.
    pub fn smallest(&self) -> usize {
        self.at(1)
    }

    /// The number, or the one for symbols that are `symbol`, from 1 to [`MAX_SIZE_HINT`].
    fn at(&self, symbol: i64) -> usize {
        self.number().unwrap_or_else(|| {
            let there = self.0.substitute(&|_| Some(symbol.into())).as_const();
            there.and_then(|n| usize::try_from(n).ok()).unwrap_or(symbol as usize).clamp(1, MAX_SIZE_HINT)
        })
    }

    /// Whether it is statically `n`.
    pub fn is(&self, n: i64) -> bool {
        self.0.as_const() == Some(n)
    }

    /// Whether it is statically a multiple of `by`.
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

/// All extents as numbers, if all are statically known.
pub fn numbers(extents: &[Extent]) -> Option<Vec<usize>> {
    extents.iter().map(Extent::number).collect()
}

/// The extents of a tensor; empty for other values and unknown ranks.
pub fn of_value(g: &Graph, v: ValueId) -> Vec<Extent> {
    g.ty(v).as_tensor().and_then(|t| t.shape.as_ref()).map(|s| s.iter().map(Extent::from).collect()).unwrap_or_default()
}

/// The stride `step` of an axis of extent `own` that broadcasts to extent `to`: 0 if it is broadcast, which may only be known at
/// run time.
pub fn broadcast_stride(own: &Extent, to: &Extent, step: &Extent) -> Extent {
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
    fn size_hints_respect_known_factors_and_bounds() {
        let n = Extent::from(Dim::symbol("n"));
        assert_eq!((n.size_hint(), (&n * 196usize).size_hint(), Extent::from(7usize).size_hint()), (1024, 200_704, 7));
        assert_eq!((n.min(&100usize.into()).size_hint(), (&n * &n * &n).size_hint()), (100, MAX_SIZE_HINT));
        assert_eq!((n.div_floor(&4096usize.into()).size_hint(), (&n - 5000i64).size_hint()), (1, 1024));
        assert_eq!((n.smallest(), (&n * 196usize).smallest(), Extent::from(7usize).smallest()), (1, 196, 7));
    }
}
