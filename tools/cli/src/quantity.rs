//! Numbers with units on the command line: `4GiB`, `300MB`, `90s`, `2m`.

use std::time::Duration;

/// Units of sizes. As for GNU's tools, a letter alone is a power of 1024.
const SIZES: &[(&str, u64)] = &[
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("kib", 1 << 10),
    ("kb", 1_000),
    ("m", 1 << 20),
    ("mib", 1 << 20),
    ("mb", 1_000_000),
    ("g", 1 << 30),
    ("gib", 1 << 30),
    ("gb", 1_000_000_000),
    ("t", 1 << 40),
    ("tib", 1 << 40),
    ("tb", 1_000_000_000_000),
    ("p", 1 << 50),
    ("pib", 1 << 50),
    ("pb", 1_000_000_000_000_000),
];

/// Units of durations in milliseconds.
const TIMES: &[(&str, u64)] =
    &[("", 1_000), ("ms", 1), ("s", 1_000), ("m", 60_000), ("min", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// A size in bytes.
///
/// # Errors
/// What a size is, where the text is none.
pub fn size(text: &str) -> Result<u64, String> {
    scaled(text, SIZES).ok_or_else(|| "a size is a number of bytes, or one with a unit: 300MB, 1GiB".into())
}

/// A duration.
///
/// # Errors
/// What a duration is, where the text is none.
pub fn duration(text: &str) -> Result<Duration, String> {
    let milliseconds = scaled(text, TIMES);
    milliseconds
        .map(Duration::from_millis)
        .ok_or_else(|| "a duration is a number of seconds, or one with a unit: 500ms, 90s, 2m, 1h, 30d".into())
}

/// A positive number times its unit.
fn scaled(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..end].parse().ok()?;
    let unit = text[end..].trim_start().to_ascii_lowercase();
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    let product = number * *factor as f64;
    (product < u64::MAX as f64).then_some(product.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_durations_have_units() {
        for (text, bytes) in [("0", 0), ("4096", 4096), ("300MB", 300_000_000), ("1.5 GiB", 3 << 29), ("2k", 2048)] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for (text, seconds) in [("90", 90.0), ("90s", 90.0), ("2m", 120.0), ("0.5h", 1800.0), ("250ms", 0.25)] {
            assert_eq!(duration(text).unwrap().as_secs_f64(), seconds, "{text}");
        }
        for wrong in ["", "-1", "GiB", "1.2.3MB", "1e3", "3 apples", "99999999999999999999TB", "nan", "inf"] {
            assert!(size(wrong).is_err() && duration(wrong).is_err(), "{wrong}");
        }
    }
}
