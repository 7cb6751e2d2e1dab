//! Symbolic dimensions: integer polynomials over named symbols, in one canonical form.
//!
//! `Dim` is a sum of integer multiples of monomials; a monomial is a product of atoms; an atom is a symbol or a
//! function (`floordiv`, `ceildiv`, `mod`, `max`, `min`) that does not simplify further. Two dimensions that this form
//! can prove equal compare equal. Arithmetic saturates: a shape near `i64::MAX` is refused later by its byte size. The size of
//! a polynomial is bounded ([`Dim::MAX_SIZE`]).

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::text::quote;

/// One dimension of a shape.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Dim {
    /// The part without symbols.
    constant: i64,
    /// Sorted by monomial; coefficients are never zero.
    terms: Vec<(Monomial, i64)>,
}

/// A product of atoms, sorted, never empty.
type Monomial = Vec<Atom>;

/// What a polynomial is built from.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
enum Atom {
    Symbol(Arc<str>),
    Call(DimFn, Arc<Operands>),
}

/// The operands of a function. Dimensions share them: a chain of functions nests as deep as it is long, and each of its
/// dimensions is copied often.
#[derive(Debug)]
struct Operands(Dim, Dim, usize);

impl Operands {
    fn new(a: Dim, b: Dim) -> Operands {
        let size = a.size() + b.size();
        Operands(a, b, size)
    }

    /// The parts of both operands, as [`Dim::size`] counts them.
    fn size(&self) -> usize {
        self.2
    }
}

impl PartialEq for Operands {
    fn eq(&self, o: &Operands) -> bool {
        std::ptr::eq(self, o) || (self.2 == o.2 && self.0 == o.0 && self.1 == o.1)
    }
}

impl Eq for Operands {}

impl PartialOrd for Operands {
    fn partial_cmp(&self, o: &Operands) -> Option<Ordering> {
        Some(self.cmp(o))
    }
}

impl Ord for Operands {
    fn cmp(&self, o: &Operands) -> Ordering {
        if std::ptr::eq(self, o) { Ordering::Equal } else { (&self.0, &self.1).cmp(&(&o.0, &o.1)) }
    }
}

impl Hash for Operands {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.0, &self.1).hash(state);
    }
}

/// Functions of dimensions that do not reduce to sums and products.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum DimFn {
    /// Quotient rounded towards negative infinity.
    FloorDiv,
    /// Quotient rounded towards positive infinity.
    CeilDiv,
    /// Remainder with the sign of the divisor.
    Mod,
    /// The larger of two.
    Max,
    /// The smaller of two.
    Min,
}

impl DimFn {
    /// Every function.
    pub const ALL: [DimFn; 5] = [DimFn::FloorDiv, DimFn::CeilDiv, DimFn::Mod, DimFn::Max, DimFn::Min];

    /// The keyword in text.
    pub const fn name(self) -> &'static str {
        match self {
            DimFn::FloorDiv => "floordiv",
            DimFn::CeilDiv => "ceildiv",
            DimFn::Mod => "mod",
            DimFn::Max => "max",
            DimFn::Min => "min",
        }
    }

    /// The value for numbers; `None` for a division by zero.
    pub fn eval(self, a: i64, b: i64) -> Option<i64> {
        Some(match self {
            DimFn::FloorDiv => {
                let q = a.checked_div(b)?;
                if (a % b != 0) && ((a < 0) != (b < 0)) { q - 1 } else { q }
            }
            DimFn::CeilDiv => {
                let q = a.checked_div(b)?;
                if (a % b != 0) && ((a < 0) == (b < 0)) { q + 1 } else { q }
            }
            DimFn::Mod => a.checked_sub(DimFn::FloorDiv.eval(a, b)?.checked_mul(b)?)?,
            DimFn::Max => a.max(b),
            DimFn::Min => a.min(b),
        })
    }
}

/// A factor of a term, see [`Dim::terms`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Factor<'a> {
    /// A symbol.
    Symbol(&'a Arc<str>),
    /// A function of two dimensions.
    Call(DimFn, &'a Dim, &'a Dim),
}

/// The name of a dimension about which nothing is known; the builder replaces it by a fresh symbol.
const UNKNOWN: &str = "?";

impl Dim {
    /// The most parts ([`Dim::size`]) of a polynomial. Arithmetic that would exceed it gives [`Dim::unknown`], because a product
    /// of sums has exponentially more terms than its text has characters.
    pub const MAX_SIZE: usize = 1024;

    /// A named symbol.
    pub fn symbol(name: impl Into<Arc<str>>) -> Dim {
        Dim { constant: 0, terms: vec![(vec![Atom::Symbol(name.into())], 1)] }
    }

    /// A dimension about which nothing is known.
    pub fn unknown() -> Dim {
        Dim::symbol(UNKNOWN)
    }

    /// Whether [`Dim::unknown`] occurs in it.
    pub fn is_unknown(&self) -> bool {
        // A function of an unknown operand is unknown as a whole.
        let atom = |a: &Atom| matches!(a, Atom::Symbol(s) if &**s == UNKNOWN);
        self.terms.iter().flat_map(|(m, _)| m).any(atom)
    }

    /// The value, where no symbol occurs.
    pub fn as_const(&self) -> Option<i64> {
        self.terms.is_empty().then_some(self.constant)
    }

    /// The part without symbols; [`Dim::terms`] are the rest.
    pub fn constant(&self) -> i64 {
        self.constant
    }

    /// The terms with symbols: a coefficient and the factors of each. Together with the constant they are the whole.
    pub fn terms(&self) -> impl Iterator<Item = (i64, impl Iterator<Item = Factor<'_>>)> {
        fn factor(atom: &Atom) -> Factor<'_> {
            match atom {
                Atom::Symbol(s) => Factor::Symbol(s),
                Atom::Call(f, ab) => Factor::Call(*f, &ab.0, &ab.1),
            }
        }
        self.terms.iter().map(|(mono, c)| (*c, mono.iter().map(factor)))
    }

    /// The name if the dimension is a single symbol.
    pub fn as_symbol(&self) -> Option<&Arc<str>> {
        match (&self.constant, self.terms.as_slice()) {
            (0, [(mono, 1)]) => match mono.as_slice() {
                [Atom::Symbol(s)] => Some(s),
                _ => None,
            },
            _ => None,
        }
    }

    /// Every symbol in it, sorted, each once.
    pub fn symbols(&self) -> Vec<Arc<str>> {
        fn walk(d: &Dim, out: &mut Vec<Arc<str>>) {
            for atom in d.terms.iter().flat_map(|(m, _)| m) {
                match atom {
                    Atom::Symbol(s) => out.push(s.clone()),
                    Atom::Call(_, ab) => {
                        walk(&ab.0, out);
                        walk(&ab.1, out);
                    }
                }
            }
        }
        let mut out = Vec::new();
        walk(self, &mut out);
        out.sort();
        out.dedup();
        out
    }

    /// The symbol that the value of the dimension determines: the only one that is not `known`, as a factor of one term.
    pub fn determines(&self, known: &dyn Fn(&str) -> bool) -> Option<Arc<str>> {
        let unknown = self.symbols().into_iter().filter(|s| !known(s)).collect::<Vec<_>>();
        let [symbol] = unknown.as_slice() else { return None };
        let contains = |atom: &Atom| match atom {
            Atom::Symbol(s) => s == symbol,
            Atom::Call(_, ab) => ab.0.symbols().contains(symbol) || ab.1.symbols().contains(symbol),
        };
        let mut found = self.terms.iter().flat_map(|(m, _)| m).filter(|a| contains(a));
        let alone = matches!(found.next(), Some(Atom::Symbol(_))) && found.next().is_none();
        (alone && !self.is_unknown()).then(|| symbol.clone())
    }

    /// The symbol of `a * s + b` and its value where the whole is `n`; no value where none is a natural number.
    pub fn solve(&self, n: i64) -> Option<(Arc<str>, Option<i64>)> {
        let [(mono, a)] = self.terms.as_slice() else { return None };
        let [Atom::Symbol(s)] = mono.as_slice() else { return None };
        let rest = n.checked_sub(self.constant)?;
        let value = rest.checked_div(*a).filter(|v| *v >= 0 && v.checked_mul(*a) == Some(rest));
        Some((s.clone(), value))
    }

    /// The values of symbols for which `dims` have the values `n`, as far as they determine them.
    pub fn solve_all(dims: &[(&Dim, i64)]) -> BTreeMap<Arc<str>, i64> {
        let mut found = BTreeMap::new();
        loop {
            let before = found.len();
            for (dim, n) in dims {
                let rest = dim.substitute(&|s| found.get(s).map(|n| Dim::from(*n)));
                if let Some((symbol, Some(value))) = rest.solve(*n) {
                    found.insert(symbol, value);
                }
            }
            if found.len() == before {
                return found;
            }
        }
    }

    /// Replaces each symbol by the result of `f`; `None` keeps the symbol.
    pub fn substitute(&self, f: &dyn Fn(&str) -> Option<Dim>) -> Dim {
        let mut sum = Dim::from(self.constant);
        for (mono, c) in &self.terms {
            let mut product = Dim::from(*c);
            for atom in mono {
                let factor = match atom {
                    Atom::Symbol(s) => f(s).unwrap_or_else(|| Dim::symbol(s.clone())),
                    Atom::Call(g, ab) => Dim::call(*g, &ab.0.substitute(f), &ab.1.substitute(f)),
                };
                product = &product * &factor;
            }
            sum = &sum + &product;
        }
        sum
    }

    /// `f(a, b)`, simplified where this form can.
    pub fn call(f: DimFn, a: &Dim, b: &Dim) -> Dim {
        if let (Some(x), Some(y)) = (a.as_const(), b.as_const())
            && let Some(v) = f.eval(x, y)
        {
            return v.into();
        }
        match f {
            _ if a.is_unknown() || b.is_unknown() => return Dim::unknown(),
            DimFn::Max | DimFn::Min if a == b => return a.clone(),
            DimFn::Max | DimFn::Min => {
                // A constant difference decides.
                if let Some(d) = (a - b).as_const() {
                    return if (d >= 0) == (f == DimFn::Max) { a.clone() } else { b.clone() };
                }
            }
            DimFn::FloorDiv | DimFn::CeilDiv => {
                if let Some(q) = a.exact_div(b) {
                    return q;
                }
            }
            DimFn::Mod => {
                if a.exact_div(b).is_some() {
                    return Dim::from(0i64);
                }
            }
        }
        Dim { constant: 0, terms: vec![(vec![Atom::Call(f, Arc::new(Operands::new(a.clone(), b.clone())))], 1)] }
            .bounded()
    }

    /// The dimension, unless it is larger than [`Dim::MAX_SIZE`].
    fn bounded(self) -> Dim {
        if self.size() > Dim::MAX_SIZE { Dim::unknown() } else { self }
    }

    /// The largest number that divides the dimension whatever the symbols are; 0 for the dimension 0.
    pub fn content(&self) -> u64 {
        let gcd = |mut a: u64, mut b: u64| {
            while b != 0 {
                (a, b) = (b, a % b);
            }
            a
        };
        self.terms.iter().fold(self.constant.unsigned_abs(), |content, (_, k)| gcd(content, k.unsigned_abs()))
    }

    /// `self / by` where the division leaves no remainder for any value of the symbols, provided `by` is not zero.
    pub fn exact_div(&self, by: &Dim) -> Option<Dim> {
        if let Some(c) = by.as_const() {
            // Checked: neither zero nor `i64::MIN / -1` has a quotient.
            let div = |k: i64| if k.checked_rem(c)? == 0 { k.checked_div(c) } else { None };
            let terms = self.terms.iter().map(|(m, k)| Some((m.clone(), div(*k)?))).collect::<Option<_>>()?;
            return Some(Dim { constant: div(self.constant)?, terms });
        }
        if self.is_unknown() || by.is_unknown() {
            return None;
        }
        if self == by {
            return Some(Dim::from(1i64));
        }
        if self.as_const() == Some(0) {
            return Some(Dim::from(0i64));
        }
        // Division by one monomial: every term must contain it.
        let [(mono, c)] = by.terms.as_slice() else { return None };
        if by.constant != 0 || self.constant != 0 {
            return None;
        }
        let mut sum = Dim::from(0i64);
        for (m, k) in &self.terms {
            let mut rest = m.clone();
            for atom in mono {
                let at = rest.iter().position(|a| a == atom)?;
                rest.remove(at);
            }
            if k.checked_rem(*c)? != 0 {
                return None;
            }
            let k = k.checked_div(*c)?;
            let term = if rest.is_empty() { Dim::from(k) } else { Dim { constant: 0, terms: vec![(rest, k)] } };
            sum = &sum + &term;
        }
        Some(sum)
    }

    /// Whether the two are different for every value of the symbols.
    pub fn provably_ne(&self, other: &Dim) -> bool {
        !self.is_unknown() && !other.is_unknown() && matches!((self - other).as_const(), Some(d) if d != 0)
    }

    /// Whether this form shows that it is never negative, given that no symbol is.
    pub fn is_nonnegative(&self) -> bool {
        let atom = |a: &Atom| match a {
            Atom::Symbol(_) => true,
            Atom::Call(DimFn::Max, ab) => ab.0.is_nonnegative() || ab.1.is_nonnegative(),
            Atom::Call(DimFn::Min, ab) => ab.0.is_nonnegative() && ab.1.is_nonnegative(),
            Atom::Call(DimFn::FloorDiv | DimFn::CeilDiv, ab) => ab.0.is_nonnegative() && ab.1.is_nonnegative(),
            Atom::Call(DimFn::Mod, ab) => ab.1.is_nonnegative(),
        };
        self.constant >= 0 && self.terms.iter().all(|(m, c)| *c >= 0 && m.iter().all(atom))
    }

    /// Number of atoms and terms, those inside functions included: what arithmetic on it costs.
    pub fn size(&self) -> usize {
        let atom = |a: &Atom| match a {
            Atom::Symbol(_) => 1,
            Atom::Call(_, ab) => 1 + ab.size(),
        };
        1 + self.terms.iter().map(|(m, _)| m.iter().map(atom).sum::<usize>()).sum::<usize>()
    }

    fn from_map(constant: i64, terms: BTreeMap<Monomial, i64>) -> Dim {
        Dim { constant, terms: terms.into_iter().filter(|(_, c)| *c != 0).collect() }
    }

    /// Precedence-aware printing; `inner` asks for brackets around sums and products.
    fn fmt_with(&self, f: &mut fmt::Formatter<'_>, inner: bool) -> fmt::Result {
        let parts = self.terms.len() + usize::from(self.constant != 0 || self.terms.is_empty());
        let atomic = parts == 1 && self.terms.first().is_none_or(|(m, c)| *c == 1 && m.len() == 1);
        let brackets = inner && !atomic;
        if brackets {
            f.write_str("(")?;
        }
        for (i, (mono, c)) in self.terms.iter().enumerate() {
            if i > 0 {
                f.write_str(if *c < 0 { " - " } else { " + " })?;
            } else if *c < 0 {
                f.write_str("-")?;
            }
            for (j, atom) in mono.iter().enumerate() {
                if j > 0 {
                    f.write_str("*")?;
                }
                match atom {
                    Atom::Symbol(s) if &**s == UNKNOWN => f.write_str(s)?,
                    // A name that would read as something else is quoted.
                    Atom::Symbol(s) if DimFn::ALL.iter().any(|g| g.name() == &**s) => quote::write_string(f, s)?,
                    Atom::Symbol(s) => quote::write_name(f, s)?,
                    Atom::Call(g @ (DimFn::Max | DimFn::Min), ab) => write!(f, "{}({}, {})", g.name(), ab.0, ab.1)?,
                    Atom::Call(g, ab) => {
                        f.write_str("(")?;
                        ab.0.fmt_with(f, true)?;
                        write!(f, " {} ", g.name())?;
                        ab.1.fmt_with(f, true)?;
                        f.write_str(")")?;
                    }
                }
            }
            if c.unsigned_abs() != 1 {
                write!(f, "*{}", c.unsigned_abs())?;
            }
        }
        if self.terms.is_empty() {
            write!(f, "{}", self.constant)?;
        } else if self.constant != 0 {
            write!(f, " {} {}", if self.constant < 0 { '-' } else { '+' }, self.constant.unsigned_abs())?;
        }
        if brackets {
            f.write_str(")")?;
        }
        Ok(())
    }
}

impl From<i64> for Dim {
    fn from(constant: i64) -> Dim {
        Dim { constant, terms: Vec::new() }
    }
}

impl From<usize> for Dim {
    fn from(v: usize) -> Dim {
        Dim::from(i64::try_from(v).unwrap_or(i64::MAX))
    }
}

impl std::ops::Add for &Dim {
    type Output = Dim;
    fn add(self, o: &Dim) -> Dim {
        let constant = self.constant.saturating_add(o.constant);
        if self.terms.is_empty() && o.terms.is_empty() {
            return constant.into();
        }
        let mut terms: BTreeMap<Monomial, i64> = self.terms.iter().cloned().collect();
        for (m, c) in &o.terms {
            let e = terms.entry(m.clone()).or_insert(0);
            *e = e.saturating_add(*c);
        }
        Dim::from_map(constant, terms).bounded()
    }
}

impl std::ops::Sub for &Dim {
    type Output = Dim;
    fn sub(self, o: &Dim) -> Dim {
        self + &(o * &Dim::from(-1i64))
    }
}

impl std::ops::Mul for &Dim {
    type Output = Dim;
    fn mul(self, o: &Dim) -> Dim {
        let constant = self.constant.saturating_mul(o.constant);
        if self.terms.is_empty() && o.terms.is_empty() {
            return constant.into();
        }
        if self.size().saturating_mul(o.size()) > Dim::MAX_SIZE * Dim::MAX_SIZE / 16 {
            return Dim::unknown();
        }
        let mut terms: BTreeMap<Monomial, i64> = BTreeMap::new();
        let mut add = |m: Monomial, c: i64| {
            let e = terms.entry(m).or_insert(0);
            *e = e.saturating_add(c);
        };
        for (m, c) in &self.terms {
            add(m.clone(), c.saturating_mul(o.constant));
        }
        for (m, c) in &o.terms {
            add(m.clone(), c.saturating_mul(self.constant));
        }
        for (m, c) in &self.terms {
            for (n, d) in &o.terms {
                let mut product: Monomial = m.iter().chain(n).cloned().collect();
                product.sort();
                add(product, c.saturating_mul(*d));
            }
        }
        Dim::from_map(constant, terms).bounded()
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_with(f, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_determine_symbols() {
        let [n, m] = ["N", "M"].map(Dim::symbol);
        let product = &(&n * &m) + &n;
        let none = |_: &str| false;
        let only_n = |s: &str| s == "N";
        assert_eq!((&n * &Dim::from(4i64)).determines(&none).as_deref(), Some("N"));
        assert_eq!((product.determines(&none), product.determines(&only_n).as_deref()), (None, Some("M")));
        assert_eq!((&n * &n).determines(&none), None);
        assert_eq!(Dim::call(DimFn::FloorDiv, &n, &Dim::from(2i64)).determines(&none), None);
        let found = Dim::solve_all(&[(&product, 12), (&(&n + &Dim::from(1i64)), 4)]);
        assert_eq!((found.get("N"), found.get("M")), (Some(&3), Some(&3)));
        assert_eq!((&n * &Dim::from(4i64)).solve(6), Some(("N".into(), None)));
    }

    #[test]
    fn content_divides_every_value() {
        let [n, m] = ["N", "M"].map(Dim::symbol);
        let sum = &(&(&n * &m) * &Dim::from(12i64)) + &(&(&n * &Dim::from(8i64)) + &Dim::from(4i64));
        assert_eq!(sum.content(), 4);
        assert_eq!([n.content(), Dim::from(6i64).content(), Dim::from(0i64).content()], [1, 6, 0]);
    }

    #[test]
    fn canonical_form_proves_equality() {
        let n = Dim::symbol("N");
        let a = &(&n * &Dim::from(4i64)) + &Dim::from(8i64);
        let b = &(&(&n + &Dim::from(2i64)) * &Dim::from(2i64)) * &Dim::from(2i64);
        assert_eq!(a, b);
        assert_eq!(a.to_string(), "N*4 + 8");
        assert_eq!(a.exact_div(&4i64.into()).unwrap().to_string(), "N + 2");
        let nm = &n * &Dim::symbol("M");
        assert_eq!(nm.exact_div(&n).unwrap(), Dim::symbol("M"));
        assert_eq!(Dim::call(DimFn::FloorDiv, &a, &3i64.into()).to_string(), "((N*4 + 8) floordiv 3)");
        assert!(a.provably_ne(&(&a + &Dim::from(1i64))));
        assert!(!a.provably_ne(&n));
        assert_eq!((&a - &a).as_const(), Some(0));
    }

    #[test]
    fn large_polynomials_become_unknown() {
        let mut d = &Dim::symbol("N") + &Dim::from(1i64);
        for _ in 0..40 {
            d = &(&d * &d) + &Dim::symbol("M");
        }
        assert!(d.is_unknown());
        assert_eq!(d.exact_div(&d), None);
        assert!(Dim::call(DimFn::Max, &d, &d).is_unknown());
        let mut nested = Dim::symbol("N");
        for i in 2..4000 {
            nested = &Dim::call(DimFn::FloorDiv, &nested, &Dim::from(i64::from(i))) + &Dim::from(1i64);
        }
        assert!(nested.is_unknown());
    }

    #[test]
    fn substitution_evaluates() {
        let n = Dim::symbol("N");
        let d = Dim::call(DimFn::CeilDiv, &(&n + &Dim::from(1i64)), &2i64.into());
        assert_eq!(d.substitute(&|s| (s == "N").then(|| 6i64.into())).as_const(), Some(4));
        assert_eq!(DimFn::FloorDiv.eval(-7, 2), Some(-4));
        assert_eq!(DimFn::Mod.eval(-7, 2), Some(1));
        assert_eq!(DimFn::FloorDiv.eval(1, 0), None);
        assert_eq!(DimFn::FloorDiv.eval(i64::MIN, -1), None);
    }
}
