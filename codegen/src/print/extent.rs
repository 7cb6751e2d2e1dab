//! Extents as C-family expressions: an [`Extent`] prints as a C expression whose symbols are variables of the kernel's prologue.

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::fmt::Write;

use of_ir::{Dim, Factor};

use crate::kernel::extent::Extent;

/// The C variable of a symbol: letters and digits unchanged, anything else by its code.
pub fn variable(symbol: &str) -> String {
    let mut out = String::from("s_");
    for c in symbol.chars() {
        if c.is_ascii_alphanumeric() { out.push(c) } else { out.push_str(&format!("_{:x}_", u32::from(c))) }
    }
    out
}

/// Why a kernel with a sum or product of extents that became unknown is not printed.
pub const TOO_LARGE: &str = "its extents are too large polynomials of the shape symbols";

thread_local! {
    /// Whether an unknown extent was printed. Text that is formatted has no other way to fail.
    static PRINTED_UNKNOWN: Cell<bool> = const { Cell::new(false) };
}

/// The result of a printer, or an error where it prints an extent that became unknown.
///
/// # Errors
/// As the printer.
pub fn all_known<T>(print: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    PRINTED_UNKNOWN.set(false);
    let printed = print()?;
    if PRINTED_UNKNOWN.get() { Err(TOO_LARGE.into()) } else { Ok(printed) }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.dim().is_unknown() {
            PRINTED_UNKNOWN.set(true);
        }
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

/// Variables for long extents of a kernel that repeats them, so that its text stays linear in the number of symbols.
#[derive(Default)]
pub struct LongExtents {
    /// C that declares the variables, each as the sum of an earlier one and a short rest where there is one.
    pub declarations: String,
    variable_of: HashMap<Extent, Extent>,
    recent: Vec<Extent>,
}

impl LongExtents {
    /// Extents of more terms get a variable.
    const MAX_TERMS: usize = 4;
    /// Earlier variables that a new one may build upon.
    const RECENT: usize = 4;

    /// The extent, or a variable in its place.
    pub fn short(&mut self, extent: &Extent) -> Extent {
        let terms = |e: &Extent| e.dim().terms().count();
        if terms(extent) <= Self::MAX_TERMS {
            return extent.clone();
        }
        if let Some(v) = self.variable_of.get(extent) {
            return v.clone();
        }
        // No symbol of a model contains this character.
        let name = format!("\0{}", self.variable_of.len());
        let rests = self.recent.iter().map(|earlier| (extent - earlier, &self.variable_of[earlier]));
        let shortest = rests.min_by_key(|(rest, _)| terms(rest)).filter(|(rest, _)| terms(rest) < terms(extent));
        let value = shortest.map_or_else(|| extent.clone(), |(rest, earlier)| &rest + earlier);
        let _ = writeln!(self.declarations, "  const i64 {} = {value};", variable(&name));
        let v = Extent::from(Dim::symbol(name));
        self.variable_of.insert(extent.clone(), v.clone());
        if self.recent.len() == Self::RECENT {
            self.recent.remove(0);
        }
        self.recent.push(extent.clone());
        v
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_sums_of_many_symbols_are_linear_in_their_number() {
        let mut long = LongExtents::default();
        let mut sum = Extent::from(0usize);
        for i in 0..100 {
            sum = sum + &Extent::from(Dim::symbol(format!("n{i}")));
            long.short(&sum);
            assert!(long.short(&sum).dim().terms().count() <= LongExtents::MAX_TERMS);
        }
        assert!(long.declarations.len() < 100 * 80, "{}", long.declarations);
        assert!(long.declarations.ends_with("  const i64 s__0_95 = (0 + 1LL * s__0_94 + 1LL * s_n99);\n"));
    }

    #[test]
    fn an_unknown_extent_is_an_error_and_a_symbol_with_its_name_in_it_is_none() {
        let print = |d: Dim| all_known(|| Ok(format!("a + {}", Extent::from(d))));
        assert_eq!(print(Dim::symbol("?n")).unwrap(), "a + (0 + 1LL * s__3f_n)");
        assert_eq!(print(Dim::unknown()).unwrap_err(), TOO_LARGE);
        assert!(print(Dim::symbol("n")).is_ok());
    }

    #[test]
    fn extents_print_as_c() {
        let n = Extent::from(Dim::symbol("batch size"));
        assert_eq!(Extent::from(3usize).to_string(), "3");
        assert_eq!((&n * 4usize + 2usize).to_string(), "(2 + 4LL * s_batch_20_size)");
        assert_eq!(n.div_ceil(&16usize.into()).to_string(), "(0 + 1LL * dim_ceildiv((0 + 1LL * s_batch_20_size), 16))");
    }
}
