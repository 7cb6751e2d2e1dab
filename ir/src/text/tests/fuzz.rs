//! Damaged text never panics; and where it still parses, it prints and reads back.

use fastrand::Rng;

use super::source_index::check;
use super::{module, random, read, read_indexed, show};

const INPUTS: u64 = 20_000;

/// Pieces that mean something, so that damage reaches deep into the parser.
const PIECES: [&str; 34] = [
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    "<",
    ">",
    ",",
    ":",
    "=",
    "->",
    "-",
    "*",
    "?",
    "?(",
    "%0",
    "%x",
    "#1",
    "@m",
    "^bb0(",
    "tensor<",
    "dense<",
    "loc(",
    "#of.sbp<",
    "#of.dims<[",
    "99999999999999999999",
    "0x",
    "1e999",
    "\"",
    "t.if ",
    "é",
    "-9223372036854775808",
    " floordiv ",
];

fn damage(rng: &mut Rng, text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..rng.usize(1..5) {
        if bytes.is_empty() {
            break;
        }
        let at = rng.usize(..bytes.len());
        let end = (at + rng.usize(1..12)).min(bytes.len());
        match rng.u8(..6) {
            0 => drop(bytes.drain(at..end)),
            1 => {
                let piece = bytes[at..end].to_vec();
                let to = rng.usize(..bytes.len());
                bytes.splice(to..to, piece);
            }
            2 => bytes[at] = rng.u8(32..127),
            3 => bytes.truncate(at),
            _ => drop(bytes.splice(at..at, PIECES[rng.usize(..PIECES.len())].bytes())),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn damaged_text_never_panics() {
    // Short texts, so that damage is likely to hit anything.
    let texts: Vec<String> = (0..200)
        .flat_map(|seed| [false, true].map(|generic| show(&random::module(seed), generic)))
        .filter(|t| t.len() < 6000)
        .collect();
    assert!(texts.len() > 50);
    let mut rng = Rng::with_seed(42);
    let mut parsed = 0;
    for i in 0..INPUTS {
        let text = &texts[rng.usize(..texts.len())];
        let text = damage(&mut rng, text);
        let outcome = std::panic::catch_unwind(|| {
            let indexed = read_indexed(&text);
            check(&text, &indexed);
            let Ok(m) = read(&text) else {
                assert!(!indexed.errors.0.is_empty());
                return false;
            };
            assert!(indexed.errors.0.is_empty());
            let printed = show(&m, i % 2 == 0);
            assert_eq!(show(&module(&printed), i % 2 == 0), printed);
            true
        });
        match outcome {
            Ok(p) => parsed += u64::from(p),
            Err(_) => panic!("input {i} panics:\n{text}"),
        }
    }
    assert!(parsed > INPUTS / 50, "only {parsed} of {INPUTS} parse: too much damage to test what follows");
}
