//! Extents that depend on symbols: integer polynomials whose symbols get their values during a run.

/// A sum of terms and a constant.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Extent {
    /// The part without symbols.
    #[prost(int64, tag = "1")]
    pub constant: i64,
    /// The rest.
    #[prost(message, repeated, tag = "2")]
    pub terms: Vec<Term>,
}

/// A product of factors and a number.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Term {
    /// The number.
    #[prost(int64, tag = "1")]
    pub coefficient: i64,
    /// Symbols and functions.
    #[prost(message, repeated, tag = "2")]
    pub factors: Vec<Factor>,
}

/// A symbol or a function of two extents.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Factor {
    /// Index in `Program::symbols`, where it is a symbol.
    #[prost(uint32, optional, tag = "1")]
    pub symbol: Option<u32>,
    /// The function, where it is not a symbol.
    #[prost(message, optional, boxed, tag = "2")]
    pub call: Option<Box<Call>>,
}

/// A function of two extents.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Call {
    /// Which one.
    #[prost(enumeration = "ExtentFn", tag = "1")]
    pub function: i32,
    /// First operand.
    #[prost(message, required, tag = "2")]
    pub a: Extent,
    /// Second operand.
    #[prost(message, required, tag = "3")]
    pub b: Extent,
}

/// Functions of extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum ExtentFn {
    /// Quotient rounded towards negative infinity.
    FloorDiv = 0,
    /// Quotient rounded towards positive infinity.
    CeilDiv = 1,
    /// Remainder with the sign of the divisor.
    Mod = 2,
    /// The larger of two.
    Max = 3,
    /// The smaller of two.
    Min = 4,
}

/// The values of a symbol for which an extent is a given number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Solution {
    /// A symbol, by its index, and its value.
    One(u32, i64),
    /// The extent does not depend on the symbol: its factor is 0.
    Any(u32),
    /// No natural number.
    None,
}

impl Factor {
    /// A symbol, by its index.
    pub fn of_symbol(index: u32) -> Self {
        Self { symbol: Some(index), call: None }
    }

    /// A function of two extents.
    pub fn of_call(function: ExtentFn, a: Extent, b: Extent) -> Self {
        Self { symbol: None, call: Some(Box::new(Call { function: function as i32, a, b })) }
    }

    fn text(&self, symbols: &[String]) -> String {
        if let Some(symbol) = self.symbol {
            return symbols.get(symbol as usize).cloned().unwrap_or_else(|| "?".into());
        }
        let Some(call) = &self.call else { return "?".into() };
        let (a, b) = (call.a.text(symbols), call.b.text(symbols));
        match ExtentFn::try_from(call.function) {
            Ok(ExtentFn::FloorDiv) => format!("floordiv({a}, {b})"),
            Ok(ExtentFn::CeilDiv) => format!("ceildiv({a}, {b})"),
            Ok(ExtentFn::Mod) => format!("mod({a}, {b})"),
            Ok(ExtentFn::Max) => format!("max({a}, {b})"),
            Ok(ExtentFn::Min) => format!("min({a}, {b})"),
            Err(_) => "?".into(),
        }
    }

    fn eval(&self, symbols: &[i64]) -> Option<i64> {
        if let Some(symbol) = self.symbol {
            // A symbol without a value is negative.
            return symbols.get(symbol as usize).copied().filter(|&value| value >= 0);
        }
        let call = self.call.as_ref()?;
        let (a, b) = (call.a.eval(symbols)?, call.b.eval(symbols)?);
        let floor = || Some(a.checked_div(b)? - i64::from(a.checked_rem(b)? != 0 && (a < 0) != (b < 0)));
        match ExtentFn::try_from(call.function).ok()? {
            ExtentFn::FloorDiv => floor(),
            ExtentFn::CeilDiv => Some(a.checked_div(b)? + i64::from(a.checked_rem(b)? != 0 && (a < 0) == (b < 0))),
            ExtentFn::Mod => a.checked_sub(floor()?.checked_mul(b)?),
            ExtentFn::Max => Some(a.max(b)),
            ExtentFn::Min => Some(a.min(b)),
        }
    }
}

impl Extent {
    /// The value for these values of the symbols, negative where they have none; `None` when one of them has none, a
    /// divisor is zero or a number leaves the range.
    pub fn eval(&self, symbols: &[i64]) -> Option<i64> {
        self.terms.iter().try_fold(self.constant, |sum, term| {
            let product = term.factors.iter().try_fold(term.coefficient, |p, f| p.checked_mul(f.eval(symbols)?))?;
            sum.checked_add(product)
        })
    }

    /// The index of the symbol, where this is one symbol and nothing else.
    pub fn as_symbol(&self) -> Option<u32> {
        match (self.constant, self.terms.as_slice()) {
            (0, [Term { coefficient: 1, factors }]) => match factors.as_slice() {
                [factor] => factor.symbol,
                _ => None,
            },
            _ => None,
        }
    }

    /// The one symbol without a value, where the extent is `n` and is linear in that symbol.
    pub fn solve(&self, n: i64, symbols: &[i64]) -> Option<Solution> {
        let mut unknown: Option<(u32, i64)> = None;
        let mut rest = n.checked_sub(self.constant)?;
        for term in &self.terms {
            if let Some(value) = (Extent { constant: 0, terms: vec![term.clone()] }).eval(symbols) {
                rest = rest.checked_sub(value)?;
                continue;
            }
            // A second term or factor without a value ends the search.
            let mut coefficient = term.coefficient;
            let mut symbol = None;
            for factor in &term.factors {
                match (factor.eval(symbols), factor.symbol) {
                    (Some(value), _) => coefficient = coefficient.checked_mul(value)?,
                    (None, Some(s)) if symbol.is_none() => symbol = Some(s),
                    _ => return None,
                }
            }
            if unknown.replace((symbol?, coefficient)).is_some() {
                return None;
            }
        }
        let (symbol, coefficient) = unknown?;
        if coefficient == 0 {
            return Some(if rest == 0 { Solution::Any(symbol) } else { Solution::None });
        }
        let value = rest.checked_div(coefficient)?;
        let exact = value >= 0 && value.checked_mul(coefficient) == Some(rest);
        Some(if exact { Solution::One(symbol, value) } else { Solution::None })
    }

    /// Indices of the symbols in it, those in functions included.
    pub fn symbols(&self) -> Vec<u32> {
        let of = |factor: &Factor| match &factor.call {
            Some(call) => [call.a.symbols(), call.b.symbols()].concat(),
            None => factor.symbol.into_iter().collect(),
        };
        self.terms.iter().flat_map(|term| &term.factors).flat_map(of).collect()
    }

    /// The extent for people, as of-ir writes a dimension: `2*N + 1`.
    pub fn text(&self, symbols: &[String]) -> String {
        let name = |factor: &Factor| factor.text(symbols);
        let term = |term: &Term| {
            let factors: Vec<_> = term.factors.iter().map(name).collect();
            match (term.coefficient, factors.is_empty()) {
                (1, false) => factors.join("*"),
                (n, false) => format!("{n}*{}", factors.join("*")),
                (n, true) => n.to_string(),
            }
        };
        let mut parts: Vec<_> = self.terms.iter().map(term).collect();
        if self.constant != 0 || parts.is_empty() {
            parts.push(self.constant.to_string());
        }
        parts.join(" + ").replace("+ -", "- ")
    }

    /// Whether every symbol is below `count` and every factor is one thing.
    pub fn is_valid(&self, count: usize) -> bool {
        self.terms.iter().flat_map(|term| &term.factors).all(|factor| match (factor.symbol, &factor.call) {
            (Some(symbol), None) => (symbol as usize) < count,
            (None, Some(call)) => {
                ExtentFn::try_from(call.function).is_ok() && call.a.is_valid(count) && call.b.is_valid(count)
            }
            _ => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbol(index: u32) -> Extent {
        Extent { constant: 0, terms: vec![Term { coefficient: 1, factors: vec![Factor::of_symbol(index)] }] }
    }

    #[test]
    fn extents_evaluate() {
        let n = symbol(0);
        let factors = vec![
            Factor::of_symbol(1),
            Factor::of_call(ExtentFn::CeilDiv, n.clone(), Extent { constant: 4, terms: vec![] }),
        ];
        let e = Extent { constant: 3, terms: vec![Term { coefficient: 2, factors }] };
        assert_eq!(e.eval(&[9, 5]), Some(3 + 2 * 5 * 3));
        assert_eq!(e.text(&["N".into(), "M".into()]), "2*M*ceildiv(N, 4) + 3");
        assert_eq!(e.eval(&[9, -1]), None);
        assert_eq!(e.eval(&[i64::MAX, i64::MAX]), None);
        assert_eq!(n.as_symbol(), Some(0));
        let odd = Extent { constant: 1, terms: vec![Term { coefficient: 2, factors: vec![Factor::of_symbol(3)] }] };
        let none = [-1; 4];
        assert_eq!(odd.solve(7, &none), Some(Solution::One(3, 3)));
        assert_eq!(odd.solve(6, &none), Some(Solution::None));
        assert_eq!(e.solve(7, &none), None);
        // With a value of `N`, `e` is 2 * 3 * M + 3; with `N` = 0 it does not depend on `M`.
        assert_eq!(e.solve(33, &[9, -1]), Some(Solution::One(1, 5)));
        assert_eq!(e.solve(3, &[0, -1]), Some(Solution::Any(1)));
        assert_eq!(e.solve(4, &[0, -1]), Some(Solution::None));
        assert_eq!(e.symbols(), [1, 0]);
        assert!(e.is_valid(2) && !e.is_valid(1) && e.as_symbol().is_none());
        let zero = Factor::of_call(ExtentFn::Mod, n, Extent::default());
        assert_eq!(Extent { constant: 0, terms: vec![Term { coefficient: 1, factors: vec![zero] }] }.eval(&[1]), None);
    }
}
