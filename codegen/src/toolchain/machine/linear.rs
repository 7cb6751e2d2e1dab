//! Linear forms of integers and addresses: a constant and a sum of registers with factors. They are computed only where an
//! instruction needs them, mostly as an address.

use smallvec::SmallVec;

use crate::toolchain::machine::ir::Reg;

/// `constant + sum of factor * register`, modulo 2^64.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Linear {
    /// The constant.
    pub constant: i64,
    /// Registers with factors that are not 0, in the order of the registers.
    pub terms: SmallVec<[(Reg, i64); 4]>,
}

impl Linear {
    /// A number.
    pub fn number(n: i64) -> Linear {
        Linear { constant: n, terms: SmallVec::new() }
    }

    /// A register.
    pub fn register(r: Reg) -> Linear {
        Linear { constant: 0, terms: SmallVec::from_slice(&[(r, 1)]) }
    }

    /// The number, if it is one.
    pub fn as_number(&self) -> Option<i64> {
        self.terms.is_empty().then_some(self.constant)
    }

    /// The register, if it is one.
    pub fn as_register(&self) -> Option<Reg> {
        match self.terms[..] {
            [(r, 1)] if self.constant == 0 => Some(r),
            _ => None,
        }
    }

    /// `self + factor * other`.
    pub fn plus(&self, other: &Linear, factor: i64) -> Linear {
        let mut out = self.clone();
        out.constant = out.constant.wrapping_add(other.constant.wrapping_mul(factor));
        for (r, n) in &other.terms {
            let n = n.wrapping_mul(factor);
            match out.terms.binary_search_by_key(r, |t| t.0) {
                Ok(i) => out.terms[i].1 = out.terms[i].1.wrapping_add(n),
                Err(i) => out.terms.insert(i, (*r, n)),
            }
        }
        out.terms.retain(|t| t.1 != 0);
        out
    }

    /// `factor * self`.
    pub fn times(&self, factor: i64) -> Linear {
        Linear::default().plus(self, factor)
    }
}
