//! Variables: values that a session keeps between runs, such as parameters and the state of an optimizer.
//!
//! All variables of a program are in one chunk, which belongs to the session's variables and not to the program. A task
//! without work produces the register of a variable's value before the run. A task that computes the next value produces a
//! register in the same place, after all readers of the first.

use crate::format::VALUE_ALIGN;

/// A value that a session keeps between runs.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Variable {
    /// Name, as the model calls it.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Element type.
    #[prost(enumeration = "crate::dtype::ElementType", tag = "2")]
    pub dtype: i32,
    /// Extents.
    #[prost(int64, repeated, tag = "3")]
    pub dims: Vec<i64>,
    /// Offset in the chunk of variables.
    #[prost(uint64, tag = "4")]
    pub offset: u64,
    /// Its value in a new session. Without one, the caller must set it before the first run.
    #[prost(oneof = "Initial", tags = "5, 6")]
    pub initial: Option<Initial>,
}

/// The value of a variable in a new session.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Oneof)]
pub enum Initial {
    /// A weight, by index.
    #[prost(uint32, tag = "5")]
    Weight(u32),
    /// Zeros.
    #[prost(message, tag = "6")]
    Zeros(Zeros),
}

/// A value of zeros.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct Zeros {}

impl Variable {
    /// Its bytes; `None` where the type has no size.
    pub fn bytes(&self) -> Option<u64> {
        self.dtype().byte_len(&self.dims)
    }

    /// Bytes of the chunk up to its end; the next variable starts there or later.
    pub fn end(&self) -> Option<u64> {
        self.offset.checked_add(self.bytes()?)?.checked_next_multiple_of(VALUE_ALIGN)
    }
}

/// Whether two programs have the same variables at the same places. First values may differ: ranks that share one program have initial
/// weights of their own in others.
pub fn have_same_places(one: &[Variable], other: &[Variable]) -> bool {
    let same = |(a, b): (&Variable, &Variable)| {
        a.offset == b.offset && a.dtype == b.dtype && a.dims == b.dims && a.name == b.name
    };
    one.len() == other.len() && one.iter().zip(other).all(same)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_the_same_whatever_the_first_values() {
        let of = |name: &str, offset, initial| Variable {
            name: name.into(),
            dims: vec![2],
            offset,
            initial: Some(initial),
            ..Variable::default()
        };
        let own = [of("w", 0, Initial::Weight(3)), of("m", 64, Initial::Zeros(Zeros {}))];
        let ranks = [of("w", 0, Initial::Weight(5)), of("m", 64, Initial::Zeros(Zeros {}))];
        assert!(own != ranks && have_same_places(&own, &ranks));
        let moved = [of("w", 64, Initial::Weight(3)), of("m", 0, Initial::Zeros(Zeros {}))];
        let renamed = [of("v", 0, Initial::Weight(3)), of("m", 64, Initial::Zeros(Zeros {}))];
        for other in [&own[..1], &moved, &renamed] {
            assert!(!have_same_places(&own, other));
        }
    }
}
