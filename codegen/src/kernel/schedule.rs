//! Measured register tiles of contractions; without a measurement the cost model decides.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::isa::Isa;
use crate::kernel::contraction::{Contraction, Tile};

/// The fastest measured tiles, by contraction and instruction set.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Schedules(BTreeMap<String, Tile>);

/// A contraction of a program, and its candidate tiles, the cost model's choice first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TunableContraction {
    /// Its key in [`Schedules`].
    pub key: String,
    /// The index of the step that runs it, which is also its task.
    pub step: usize,
    /// Candidate tiles.
    pub tiles: Vec<Tile>,
}

/// First line of the text format.
const FORMAT_HEADER: &str = "of-schedules-1";

/// No measurements.
pub static NONE: Schedules = Schedules(BTreeMap::new());

impl Schedules {
    /// The key of a contraction: a hash of its specification and instruction set.
    pub fn key(spec: &Contraction, isa: &Isa) -> String {
        blake3::hash(format!("{} {spec:?}", isa.name).as_bytes()).to_hex()[..32].to_owned()
    }

    /// The fastest measured tile.
    pub fn get(&self, key: &str) -> Option<Tile> {
        self.0.get(key).copied()
    }

    /// Records the fastest tile.
    pub fn insert(&mut self, key: String, tile: Tile) {
        self.0.insert(key, tile);
    }

    /// Number of measured contractions.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no measurements.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Serializes to text: a line for each contraction.
    pub fn text(&self) -> String {
        let mut out = format!("{FORMAT_HEADER}\n");
        for (key, tile) in &self.0 {
            let _ = writeln!(out, "{key} {} {}", tile.rows, tile.vectors);
        }
        out
    }

    /// Parses the text; `None` if it is malformed or of another version.
    pub fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        if lines.next()? != FORMAT_HEADER {
            return None;
        }
        let line = |l: &str| {
            let mut words = l.split(' ');
            let (key, rows, vectors) = (words.next()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            ((1..=32).contains(&rows) && (1..=4).contains(&vectors)).then(|| (key.to_owned(), Tile { rows, vectors }))
        };
        lines.map(line).collect::<Option<_>>().map(Schedules)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips() {
        let mut s = Schedules::default();
        s.insert("a".into(), Tile { rows: 6, vectors: 4 });
        s.insert("b".into(), Tile { rows: 14, vectors: 2 });
        assert_eq!(Schedules::parse(&s.text()), Some(s));
        for damaged in ["", "of-schedules-0\n", "of-schedules-1\na 1", "of-schedules-1\na 0 4", "of-schedules-1\na 6 9"]
        {
            assert_eq!(Schedules::parse(damaged), None, "{damaged}");
        }
    }
}
