//! Which ops an executor takes: a text with a line for each op, for snapshots.

use std::collections::BTreeMap;
use std::fmt;

/// For each op, how many of its samples an executor takes, and why it refuses the others.
#[derive(Debug, Default)]
pub struct Claims(BTreeMap<&'static str, Claim>);

#[derive(Debug, Default)]
struct Claim {
    taken: usize,
    all: usize,
    reasons: BTreeMap<String, usize>,
}

impl Claims {
    /// Records a sample of an op.
    pub fn add(&mut self, op: &'static str, taken: bool, reason: impl FnOnce() -> String) {
        let claim = self.0.entry(op).or_default();
        claim.all += 1;
        if taken {
            claim.taken += 1;
        } else {
            *claim.reasons.entry(reason()).or_default() += 1;
        }
    }

    /// How many ops have a sample that is taken.
    pub fn taken(&self) -> usize {
        self.0.values().filter(|c| c.taken > 0).count()
    }
}

/// Rejected ops with reasons first, as a reader looks for those; then the names of claimed ops.
impl fmt::Display for Claims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} of {} ops are taken.\n\nRefused:", self.taken(), self.0.len())?;
        for (op, claim) in self.0.iter().filter(|(_, c)| c.taken < c.all) {
            writeln!(f, "  {op}: {} of {} samples", claim.all - claim.taken, claim.all)?;
            for (reason, n) in &claim.reasons {
                writeln!(f, "    {n}: {reason}")?;
            }
        }
        writeln!(f, "\nTaken, with the number of samples:")?;
        self.0.iter().filter(|(_, c)| c.taken > 0).try_for_each(|(op, c)| writeln!(f, "  {op}: {}", c.taken))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_list_ops_and_reasons() {
        let mut claims = Claims::default();
        claims.add("of.b", true, String::new);
        claims.add("of.b", false, || "too large".into());
        claims.add("of.a", false, || "no floats".into());
        let want = "1 of 2 ops are taken.\n\nRefused:\n  of.a: 1 of 1 samples\n    1: no floats\n  of.b: 1 of 2 samples\n    \
                    1: too large\n\nTaken, with the number of samples:\n  of.b: 1\n";
        assert_eq!(claims.to_string(), want);
    }
}
