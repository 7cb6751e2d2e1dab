//! Ranges of extents, for engines with symbolic extents.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use of_ir::Dim;

/// The minimum, typical and maximum value of an extent; the engine is optimised for the typical one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// The minimum.
    pub min: i64,
    /// The typical value.
    pub opt: i64,
    /// The maximum.
    pub max: i64,
}

/// Ranges of named extents.
pub type Ranges = BTreeMap<String, Range>;

/// Corners of a box are tried one by one.
const MAX_SYMBOLS: usize = 8;

impl Range {
    /// One value.
    pub fn fixed(n: i64) -> Range {
        Range { min: n, opt: n, max: n }
    }

    /// The value, if there is only one.
    pub fn as_fixed(&self) -> Option<i64> {
        (self.min == self.max).then_some(self.min)
    }

    /// Whether a value is in it.
    pub fn holds(&self, n: i64) -> bool {
        (self.min..=self.max).contains(&n)
    }

    /// The range of a dimension whose symbols have ranges: its minimum and maximum over the corners of these.
    pub fn of(d: &Dim, ranges: &Ranges) -> Option<Range> {
        let symbols = d.symbols();
        let own: Vec<Range> = symbols.iter().map(|s| ranges.get(&**s).copied()).collect::<Option<_>>()?;
        if own.len() > MAX_SYMBOLS {
            return None;
        }
        let at = |value: &dyn Fn(usize) -> i64| {
            let place = |s: &str| symbols.iter().position(|o| **o == *s);
            d.substitute(&|s| place(s).map(|i| Dim::from(value(i)))).as_const()
        };
        let corner = |c: usize| at(&|i| if c >> i & 1 == 0 { own[i].min } else { own[i].max });
        let opt = at(&|i| own[i].opt)?;
        let all = (0..1 << own.len()).map(corner).chain([Some(opt)]).collect::<Option<Vec<i64>>>()?;
        Some(Range { min: *all.iter().min()?, opt, max: *all.iter().max()? })
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.as_fixed() {
            Some(n) => write!(f, "{n}"),
            None => write!(f, "{}:{}:{}", self.min, self.opt, self.max),
        }
    }
}

/// The inverse of printing it.
impl FromStr for Range {
    type Err = ();

    fn from_str(text: &str) -> Result<Range, ()> {
        let numbers: Vec<i64> = text.split(':').map(|n| n.parse().map_err(|_| ())).collect::<Result<_, _>>()?;
        match numbers[..] {
            [n] if n >= 0 => Ok(Range::fixed(n)),
            [min, opt, max] if 0 <= min && min <= opt && opt <= max => Ok(Range { min, opt, max }),
            _ => Err(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_get_the_ranges_of_their_symbols() {
        let ranges = Ranges::from([
            ("n".to_string(), Range { min: 1, opt: 8, max: 64 }),
            ("s".to_string(), Range { min: 2, opt: 3, max: 5 }),
        ]);
        let (n, s, one) = (Dim::symbol("n"), Dim::symbol("s"), Dim::from(1i64));
        let of = |d: &Dim| Range::of(d, &ranges).map(|r| r.to_string());
        assert_eq!(of(&Dim::from(7i64)).as_deref(), Some("7"));
        assert_eq!(of(&(&(&n + &n) + &one)).as_deref(), Some("3:17:129"));
        assert_eq!(of(&(&n * &s)).as_deref(), Some("2:24:320"));
        // It decreases in one symbol and increases in the other.
        assert_eq!(of(&(&(&n - &s) + &Dim::from(4i64))).as_deref(), Some("0:9:66"));
        assert_eq!(of(&(&n * &Dim::symbol("q"))), None);
    }

    #[test]
    fn ranges_round_trip() {
        for text in ["3", "1:8:64", "0:0:1"] {
            assert_eq!(text.parse::<Range>().map(|r| r.to_string()).as_deref(), Ok(text));
        }
        for text in ["", "-1", "1:2", "2:1:3", "1:4:3", "1:2:3:4", "a"] {
            assert_eq!(text.parse::<Range>(), Err(()), "{text}");
        }
        let r = Range { min: 1, opt: 8, max: 64 };
        assert!(r.holds(1) && r.holds(64) && !r.holds(0) && !r.holds(65));
    }
}
