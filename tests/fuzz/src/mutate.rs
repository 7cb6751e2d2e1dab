//! Random changes of files, for short runs of the fuzz targets without libFuzzer.

use of_ops::sample::Rng;

/// Bytes that readers treat specially: limits of lengths, and characters of the IR's text.
const SPECIAL: [u8; 16] = *b"\x00\x01\x7f\x80\xff\n \"%<>{}()-";

/// A file of the corpus with one to four changes.
pub fn mutated(corpus: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    let mut bytes = rng.pick(corpus);
    for _ in 0..rng.int(1, 4) {
        change(&mut bytes, corpus, rng);
    }
    bytes
}

fn change(bytes: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
    if bytes.is_empty() {
        return bytes.push(rng.pick(&SPECIAL));
    }
    let at = rng.int(0, bytes.len() as i64 - 1) as usize;
    let end = (at + rng.int(1, 24) as usize).min(bytes.len());
    match rng.int(0, 6) {
        0 => bytes[at] ^= 1 << rng.int(0, 7),
        1 => bytes[at] = rng.pick(&SPECIAL),
        2 => bytes.insert(at, rng.pick(&SPECIAL)),
        3 => drop(bytes.drain(at..end)),
        4 => {
            let copy = bytes[at..end].to_vec();
            let to = rng.int(0, bytes.len() as i64) as usize;
            drop(bytes.splice(to..to, copy));
        }
        5 => bytes.truncate(at),
        // The end of another file.
        _ => {
            let other = rng.pick(corpus);
            let from = rng.int(0, other.len() as i64) as usize;
            bytes.truncate(at);
            bytes.extend_from_slice(&other[from..]);
        }
    }
}
