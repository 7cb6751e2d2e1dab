//! Reduction of partial values (sum, product, maximum, minimum), element by element.

use half::{bf16, f16};
use of_plan::{ElementType, LayoutKind};

/// How two lists of elements are combined.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Combine {
    /// Combines the elements of the second list into the first.
    pub into: fn(&mut [u8], &[u8]),
    /// Combines those of the last two lists, and puts them into the first.
    pub both: fn(&mut [u8], &[u8], &[u8]),
}

/// How elements of a type combine; `None` where they do not.
pub(crate) fn combine(dtype: ElementType, kind: LayoutKind) -> Option<Combine> {
    macro_rules! how {
        ($t:ty, $f:expr) => {
            Some(Combine {
                into: |a, b| each::<$t, { size_of::<$t>() }>(a, b, $f),
                both: |to, a, b| each_of::<$t, { size_of::<$t>() }>(to, a, b, $f),
            })
        };
    }
    macro_rules! by_kind {
        ($t:ty, $sum:expr, $prod:expr) => {
            match kind {
                LayoutKind::Sum => how!($t, $sum),
                LayoutKind::Prod => how!($t, $prod),
                // NaN propagates.
                #[allow(clippy::eq_op, reason = "`x != x` tests for NaN")]
                LayoutKind::Max => {
                    how!($t, |x, y| if x > y || x != x { x } else { y })
                }
                #[allow(clippy::eq_op, reason = "`x != x` tests for NaN")]
                LayoutKind::Min => {
                    how!($t, |x, y| if x < y || x != x { x } else { y })
                }
                LayoutKind::Broadcast | LayoutKind::Split | LayoutKind::At => None,
            }
        };
    }
    match dtype {
        ElementType::F64 => by_kind!(f64, |x, y| x + y, |x, y| x * y),
        ElementType::F32 => by_kind!(f32, |x, y| x + y, |x, y| x * y),
        ElementType::F16 => by_kind!(f16, |x, y| x + y, |x, y| x * y),
        ElementType::Bf16 => by_kind!(bf16, |x, y| x + y, |x, y| x * y),
        ElementType::I8 => by_kind!(i8, i8::wrapping_add, i8::wrapping_mul),
        ElementType::I16 => by_kind!(i16, i16::wrapping_add, i16::wrapping_mul),
        ElementType::I32 => by_kind!(i32, i32::wrapping_add, i32::wrapping_mul),
        ElementType::I64 => by_kind!(i64, i64::wrapping_add, i64::wrapping_mul),
        ElementType::Ui8 => by_kind!(u8, u8::wrapping_add, u8::wrapping_mul),
        ElementType::Ui16 => by_kind!(u16, u16::wrapping_add, u16::wrapping_mul),
        ElementType::Ui32 => by_kind!(u32, u32::wrapping_add, u32::wrapping_mul),
        ElementType::Ui64 => by_kind!(u64, u64::wrapping_add, u64::wrapping_mul),
        // Booleans are 0 and 1.
        ElementType::I1 => match kind {
            LayoutKind::Max => how!(u8, |x, y| x | y),
            LayoutKind::Min => how!(u8, |x, y| x & y),
            _ => None,
        },
        _ => None,
    }
}

/// The bytes of the element that changes nothing when it is combined; `None` where elements do not combine.
pub fn identity_element(dtype: ElementType, kind: LayoutKind) -> Option<Vec<u8>> {
    macro_rules! by_kind {
        ($t:ty, $zero:expr, $one:expr, $least:expr, $most:expr) => {
            match kind {
                LayoutKind::Sum => <$t>::to_ne_bytes($zero).to_vec(),
                LayoutKind::Prod => <$t>::to_ne_bytes($one).to_vec(),
                LayoutKind::Max => <$t>::to_ne_bytes($least).to_vec(),
                LayoutKind::Min => <$t>::to_ne_bytes($most).to_vec(),
                LayoutKind::Broadcast | LayoutKind::Split | LayoutKind::At => return None,
            }
        };
    }
    combine(dtype, kind)?;
    Some(match dtype {
        ElementType::F64 => by_kind!(f64, 0.0, 1.0, f64::NEG_INFINITY, f64::INFINITY),
        ElementType::F32 => by_kind!(f32, 0.0, 1.0, f32::NEG_INFINITY, f32::INFINITY),
        ElementType::F16 => by_kind!(f16, f16::ZERO, f16::ONE, f16::NEG_INFINITY, f16::INFINITY),
        ElementType::Bf16 => by_kind!(bf16, bf16::ZERO, bf16::ONE, bf16::NEG_INFINITY, bf16::INFINITY),
        ElementType::I8 => by_kind!(i8, 0, 1, i8::MIN, i8::MAX),
        ElementType::I16 => by_kind!(i16, 0, 1, i16::MIN, i16::MAX),
        ElementType::I32 => by_kind!(i32, 0, 1, i32::MIN, i32::MAX),
        ElementType::I64 => by_kind!(i64, 0, 1, i64::MIN, i64::MAX),
        ElementType::Ui16 => by_kind!(u16, 0, 1, u16::MIN, u16::MAX),
        ElementType::Ui32 => by_kind!(u32, 0, 1, u32::MIN, u32::MAX),
        ElementType::Ui64 => by_kind!(u64, 0, 1, u64::MIN, u64::MAX),
        ElementType::I1 => by_kind!(u8, 0, 1, 0, 1),
        _ => by_kind!(u8, 0, 1, u8::MIN, u8::MAX),
    })
}

/// Elements as bytes of this machine.
trait Bits<const N: usize>: Copy + PartialOrd {
    fn load(bytes: [u8; N]) -> Self;
    fn store(self) -> [u8; N];
}

macro_rules! bits {
    ($($t:ty),*) => {$(
        impl Bits<{ size_of::<$t>() }> for $t {
            #[inline]
            fn load(bytes: [u8; size_of::<$t>()]) -> Self {
                Self::from_ne_bytes(bytes)
            }
            #[inline]
            fn store(self) -> [u8; size_of::<$t>()] {
                self.to_ne_bytes()
            }
        }
    )*};
}

bits!(f64, f32, f16, bf16, i8, i16, i32, i64, u8, u16, u32, u64);

#[inline]
fn each<T: Bits<N>, const N: usize>(a: &mut [u8], b: &[u8], f: impl Fn(T, T) -> T) {
    for (x, y) in a.as_chunks_mut::<N>().0.iter_mut().zip(b.as_chunks::<N>().0) {
        *x = f(T::load(*x), T::load(*y)).store();
    }
}

#[inline]
fn each_of<T: Bits<N>, const N: usize>(to: &mut [u8], a: &[u8], b: &[u8], f: impl Fn(T, T) -> T) {
    let pairs = a.as_chunks::<N>().0.iter().zip(b.as_chunks::<N>().0);
    for (z, (x, y)) in to.as_chunks_mut::<N>().0.iter_mut().zip(pairs) {
        *z = f(T::load(*x), T::load(*y)).store();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [LayoutKind; 4] = [LayoutKind::Sum, LayoutKind::Max, LayoutKind::Min, LayoutKind::Prod];

    #[test]
    fn combining_with_the_identity_element_changes_nothing() {
        for dtype in ElementType::ALL {
            for kind in KINDS {
                let (Some(f), Some(none)) = (combine(*dtype, kind), identity_element(*dtype, kind)) else { continue };
                assert_eq!(none.len(), dtype.bits() as usize / 8);
                let mut x = none.clone();
                // Any bit pattern that is not a NaN.
                x.iter_mut().for_each(|b| *b = 1);
                let before = x.clone();
                (f.into)(&mut x, &none);
                assert_eq!(x, before, "{dtype} {kind:?}");
            }
        }
    }

    #[test]
    fn floats_combine() {
        let bytes = |x: [f32; 3]| x.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<u8>>();
        for (kind, want) in [
            (LayoutKind::Sum, [3.0, -1.0, 8.0]),
            (LayoutKind::Max, [2.0, 1.0, 4.0]),
            (LayoutKind::Min, [1.0, -2.0, 4.0]),
            (LayoutKind::Prod, [2.0, -2.0, 16.0]),
        ] {
            let mut a = bytes([1.0, -2.0, 4.0]);
            (combine(ElementType::F32, kind).unwrap().into)(&mut a, &bytes([2.0, 1.0, 4.0]));
            assert_eq!(a, bytes(want), "{kind:?}");
        }
        let mut nan = bytes([f32::NAN, 1.0, 1.0]);
        (combine(ElementType::F32, LayoutKind::Max).unwrap().into)(&mut nan, &bytes([1.0, 2.0, f32::NAN]));
        let first = f32::from_ne_bytes([nan[0], nan[1], nan[2], nan[3]]);
        let last = f32::from_ne_bytes([nan[8], nan[9], nan[10], nan[11]]);
        assert!(first.is_nan() && last.is_nan());
        assert!(combine(ElementType::String, LayoutKind::Sum).is_none());
        assert!(combine(ElementType::I1, LayoutKind::Sum).is_none());
    }
}
