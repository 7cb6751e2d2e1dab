//! The text form of SBP signatures, in which they cross the C interface.

use std::str::FromStr;

use of_ir::{PartialKind, Sbp, SbpSignature};

/// A signature as a line: `S(0), B -> P(sum)`, followed by ` / 8` if the number of devices must divide 8.
pub fn print_signature(s: &SbpSignature) -> String {
    let list = |l: &[Sbp]| l.iter().map(Sbp::to_string).collect::<Vec<_>>().join(", ");
    let of = if s.multiple == 0 { String::new() } else { format!(" / {}", s.multiple) };
    format!("{} -> {}{of}", list(&s.operands), list(&s.results))
}

/// The inverse of [`print_signature`].
pub fn parse_signature(line: &str, operands: usize, results: usize) -> Result<SbpSignature, String> {
    let wrong = || format!("'{}' is not a signature of {operands} operands and {results} results", line.trim());
    let (from, to) = line.split_once("->").ok_or_else(wrong)?;
    let (to, multiple) = match to.split_once('/') {
        Some((to, n)) => (to, i64::from_str(n.trim()).map_err(|_| wrong())?),
        None => (to, 0),
    };
    let one = |word: &str| {
        let inner = |head: &str| word.strip_prefix(head)?.strip_suffix(')');
        let partial = |name: &str| PartialKind::ALL.into_iter().find(|k| k.name() == name).map(Sbp::Partial);
        let split = inner("S(").and_then(|n| n.parse().ok()).map(Sbp::Split);
        split.or_else(|| inner("P(").and_then(partial)).or((word == "B").then_some(Sbp::Broadcast)).ok_or_else(wrong)
    };
    let list = |text: &str| {
        let words = text.split(',').map(str::trim).filter(|w| !w.is_empty());
        words.map(one).collect::<Result<Vec<_>, _>>()
    };
    let (from, to) = (list(from)?, list(to)?);
    if from.len() != operands || to.len() != results {
        return Err(wrong());
    }
    Ok(SbpSignature::new(&from, &to).for_divisors_of(multiple))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_round_trip() {
        let sum = Sbp::Partial(PartialKind::Sum);
        for s in [
            SbpSignature::new(&[Sbp::Split(0), Sbp::Broadcast], &[Sbp::Split(1)]),
            SbpSignature::new(&[sum, Sbp::Split(12)], &[sum]).for_divisors_of(8),
        ] {
            assert_eq!(parse_signature(&print_signature(&s), 2, 1), Ok(s));
        }
        for bad in ["S(0) -> S(0)", "S(0), Q -> B", "S(0), B", "S(-1), B -> B", "B, B -> B / x"] {
            assert!(parse_signature(bad, 2, 1).is_err(), "{bad}");
        }
    }
}
