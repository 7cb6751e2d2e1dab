//! Extents as C-family expressions: an [`Extent`] prints as a C expression whose symbols are variables of the kernel's prologue.

use std::fmt;

use of_ir::Factor;

use crate::kernel::extent::Extent;

/// The C variable of a symbol: letters and digits unchanged, anything else by its code.
pub fn variable(symbol: &str) -> String {
    let mut out = String::from("s_");
    for c in symbol.chars() {
        if c.is_ascii_alphanumeric() { out.push(c) } else { out.push_str(&format!("_{:x}_", u32::from(c))) }
    }
    out
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(n) = self.dim().as_const() {
            return write!(f, "{n}");
        }
        write!(f, "({}", self.dim().constant())?;
        for (coefficient, factors) in self.dim().terms() {
            write!(f, " + {coefficient}LL")?;
            for factor in factors {
                match factor {
                    Factor::Symbol(s) => write!(f, " * {}", variable(s))?,
                    Factor::Call(g, a, b) => {
                        write!(f, " * dim_{}({}, {})", g.name(), Extent::from(a), Extent::from(b))?;
                    }
                }
            }
        }
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use of_ir::Dim;

    use super::*;

    #[test]
    fn extents_print_as_c() {
        let n = Extent::from(Dim::symbol("batch size"));
        assert_eq!(Extent::from(3usize).to_string(), "3");
        assert_eq!((&n * 4usize + 2usize).to_string(), "(2 + 4LL * s_batch_20_size)");
        assert_eq!(n.div_ceil(&16usize.into()).to_string(), "(0 + 1LL * dim_ceildiv((0 + 1LL * s_batch_20_size), 16))");
    }
}
