//! Right operands of bytes for an instruction whose sums of two products saturate (`vpmaddubsw`).
//!
//! The instruction multiplies unsigned by signed bytes and adds two adjacent products in 16 bits. Two weights of one sign whose
//! magnitudes add up to more than 128 may saturate it. Panels therefore hold weights that are small enough, and what is missing in a
//! few of them is added after the sum: a list of groups of terms follows the panels, and is multiplied in the same way. The sums are
//! exact. Trained weights of a layer or channel are near zero, so few groups are in the list; at most all are.

use std::borrow::Cow;

use crate::isa::Isa;
use crate::kernel::contraction::{CORRECTIONS_HEADER_BYTES, Contraction, RhsLayout, panel_header_bytes};
use crate::kernel::panels::pack_bytes;

/// Bytes of a correction of a panel of `width` columns: the offset of its four terms in the left operand, as `i32`, and their weights.
pub fn correction_bytes(width: usize) -> usize {
    4 + 4 * width
}

/// Whether a contraction with this constant right operand is multiplied so on `isa`.
pub fn suits(c: &Contraction, isa: &Isa) -> bool {
    let whole_groups = c.k_inner.number().is_some_and(|k| k >= c.element.k_group());
    let steps = c.taps.iter().all(|(_, step)| step.number().is_some());
    isa.has_saturating_byte_products() && c.element.is_exact() && c.rhs == RhsLayout::Packed && whole_groups && steps
}

/// Packs matrices of bytes (row-major `[K, columns]` each) into panels, with the corrections of all after the last panel. `None` where
/// an extent is unknown or the operand has more than 2 GiB.
pub fn pack<'a>(parts: impl Iterator<Item = Cow<'a, [i8]>>, c: &Contraction, width: usize) -> Option<Vec<u8>> {
    let offsets = group_offsets(c)?;
    let groups = panel_header_bytes(c, width);
    let position = groups - CORRECTIONS_HEADER_BYTES;
    let size = groups + 4 * width * offsets.len();
    let parts = parts.map(|part| pack_bytes(&part, c, width)).collect::<Option<Vec<_>>>()?;
    let mut out = parts.concat();
    let (end, mut corrections) = (out.len(), Vec::new());
    for (p, panel) in out.chunks_exact_mut(size).enumerate() {
        let begin = end - p * size + corrections.len();
        let before = corrections.len();
        for (offset, group) in offsets.iter().zip(panel[groups..].chunks_exact_mut(4 * width)) {
            let rest: Vec<[i8; 2]> = group.chunks_exact_mut(2).map(split).collect();
            if rest.iter().any(|pair| *pair != [0, 0]) {
                corrections.extend(offset.to_le_bytes());
                corrections.extend(rest.as_flattened().iter().map(|w| *w as u8));
            }
        }
        let count = (corrections.len() - before) / correction_bytes(width);
        panel[position..][..4].copy_from_slice(&i32::try_from(begin).ok()?.to_le_bytes());
        panel[position + 4..][..4].copy_from_slice(&i32::try_from(count).ok()?.to_le_bytes());
    }
    i32::try_from(end + corrections.len()).ok()?;
    out.extend(corrections);
    Some(out)
}

/// The offset of each group of terms in a row of the left operand, in the order of a panel.
fn group_offsets(c: &Contraction) -> Option<Vec<i32>> {
    let (k_inner, group) = (c.k_inner.number()?, c.element.k_group());
    let mut taps = vec![0usize];
    for (count, step) in &c.taps {
        let step = step.number()?;
        taps = taps.iter().flat_map(|tap| (0..*count).map(move |i| tap + i * step)).collect();
    }
    // The last group of a run overlaps the one before.
    let firsts = (0..k_inner).step_by(group).map(|first| first.min(k_inner.saturating_sub(group)));
    let all = taps.iter().flat_map(|tap| firsts.clone().map(move |first| tap + first));
    all.map(|offset| i32::try_from(offset).ok()).collect()
}

/// Makes a pair of weights small enough; returns what is missing.
fn split(pair: &mut [u8]) -> [i8; 2] {
    /// Largest magnitude of a sum of two weights of one sign: `255 * 128 < 2^15`.
    const MOST: i32 = 128;
    let [first, second] = [pair[0], pair[1]].map(|w| i32::from(w as i8));
    if (first < 0) != (second < 0) || (first + second).abs() <= MOST {
        return [0, 0];
    }
    let half = |w: i32| (w / 2, w - w / 2);
    let ((keep, rest), (keep_second, rest_second)) = (half(first), half(second));
    pair.copy_from_slice(&[keep as i8 as u8, keep_second as i8 as u8]);
    [rest as i8, rest_second as i8]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_and_what_is_missing_do_not_saturate_and_add_up() {
        let saturates = |a: i32, b: i32| {
            (0..4).any(|x| {
                let sum = a * [0, 255][x % 2] + b * [0, 255][x / 2];
                i16::try_from(sum).is_err()
            })
        };
        for (a, b) in (-128..=127i32).flat_map(|a| (-128..=127i32).map(move |b| (a, b))) {
            let mut pair = [a as i8 as u8, b as i8 as u8];
            let rest = split(&mut pair).map(i32::from);
            let kept = pair.map(|w| i32::from(w as i8));
            assert_eq!([kept[0] + rest[0], kept[1] + rest[1]], [a, b]);
            assert!(!saturates(kept[0], kept[1]) && !saturates(rest[0], rest[1]), "{a} {b}: {kept:?} {rest:?}");
            assert!(rest == [0, 0] || saturates(a, b), "{a} {b} needs no correction");
        }
    }
}
