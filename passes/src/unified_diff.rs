//! The difference of two texts as a unified diff, the format of `diff -u`.
//!
//! Source: Myers, An O(ND) difference algorithm and its variations, 1986.

use std::fmt::Write;

/// Lines around a change that are shown.
const CONTEXT: usize = 3;

/// Texts with more changed lines are shown as one replaced with the other.
const MAX_EDITS: usize = 2000;

/// A line of the difference: from the old text, from the new one, or from both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Edit {
    Keep,
    Delete,
    Insert,
}

/// The hunks that turn `old` into `new`; empty for equal texts.
pub fn unified_diff(old: &str, new: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let edits = edits(&old, &new);
    let changed: Vec<usize> = (0..edits.len()).filter(|i| edits[*i] != Edit::Keep).collect();
    let mut out = String::new();
    // Where the next hunk begins: an edit, and its lines in both texts.
    let (mut at, mut line) = (0, (0, 0));
    let advance = |at: &mut usize, line: &mut (usize, usize), to: usize| {
        for edit in &edits[*at..to] {
            line.0 += usize::from(*edit != Edit::Insert);
            line.1 += usize::from(*edit != Edit::Delete);
        }
        *at = to;
    };
    let mut rest = &changed[..];
    while let Some(first) = rest.first() {
        let last = rest.windows(2).position(|w| w[1] - w[0] > 2 * CONTEXT + 1).unwrap_or(rest.len() - 1);
        let (begin, end) = (first.saturating_sub(CONTEXT), (rest[last] + CONTEXT + 1).min(edits.len()));
        advance(&mut at, &mut line, begin);
        let start = line;
        let mut lines = String::new();
        for i in begin..end {
            let (sign, text) = match edits[i] {
                Edit::Keep => (' ', old[line.0]),
                Edit::Delete => ('-', old[line.0]),
                Edit::Insert => ('+', new[line.1]),
            };
            // Writing to a string cannot fail.
            let _ = writeln!(lines, "{sign}{text}");
            advance(&mut at, &mut line, i + 1);
        }
        // A hunk without lines of a text names the line before it.
        let number = |start: usize, count: usize| if count == 0 { start } else { start + 1 };
        let (old_count, new_count) = (line.0 - start.0, line.1 - start.1);
        let (old_line, new_line) = (number(start.0, old_count), number(start.1, new_count));
        let _ = write!(out, "@@ -{old_line},{old_count} +{new_line},{new_count} @@\n{lines}");
        rest = &rest[last + 1..];
    }
    out
}

/// A shortest list of edits, if it is not longer than [`MAX_EDITS`].
fn edits(old: &[&str], new: &[&str]) -> Vec<Edit> {
    let head = old.iter().zip(new).take_while(|(a, b)| a == b).count();
    let (a, b) = (&old[head..], &new[head..]);
    let tail = a.iter().rev().zip(b.iter().rev()).take_while(|(a, b)| a == b).count();
    let (a, b) = (&a[..a.len() - tail], &b[..b.len() - tail]);
    let mut out = vec![Edit::Keep; head];
    out.extend(shortest(a, b).unwrap_or_else(|| [vec![Edit::Delete; a.len()], vec![Edit::Insert; b.len()]].concat()));
    out.extend(std::iter::repeat_n(Edit::Keep, tail));
    out
}

/// Myers' greedy algorithm; `None` where there are too many edits.
fn shortest(a: &[&str], b: &[&str]) -> Option<Vec<Edit>> {
    let (n, m) = (a.len() as isize, b.len() as isize);
    let most = (a.len() + b.len()).min(MAX_EDITS) as isize;
    // The furthest x on diagonal k = x - y, for each number of edits.
    let mut furthest: Vec<Vec<isize>> = Vec::new();
    for d in 0..=most {
        let mut row = vec![0; 2 * d as usize + 1];
        for k in (-d..=d).step_by(2) {
            let before = |k: isize| furthest.last().and_then(|r: &Vec<isize>| r.get((k + d - 1) as usize)).copied();
            let mut x = match (before(k - 1), before(k + 1)) {
                _ if d == 0 => 0,
                (Some(left), Some(up)) if k != -d && (k == d || left >= up) => left + 1,
                (Some(left), None) => left + 1,
                (_, Some(up)) => up,
                (None, None) => return None,
            };
            while x < n && x - k < m && a[x as usize] == b[(x - k) as usize] {
                x += 1;
            }
            row[(k + d) as usize] = x;
            if x >= n && x - k >= m {
                furthest.push(row);
                return Some(backtrack(&furthest, n, m));
            }
        }
        furthest.push(row);
    }
    None
}

/// The edits that led to the end of both texts.
fn backtrack(furthest: &[Vec<isize>], n: isize, m: isize) -> Vec<Edit> {
    let mut out = Vec::new();
    let (mut x, mut y) = (n, m);
    for d in (1..furthest.len() as isize).rev() {
        let k = x - y;
        let before = |k: isize| {
            let index = k + d - 1;
            usize::try_from(index).ok().and_then(|i| furthest[d as usize - 1].get(i)).copied()
        };
        let inserted = match (before(k - 1), before(k + 1)) {
            (Some(left), Some(up)) => k == -d || (k != d && left < up),
            (left, _) => left.is_none(),
        };
        let from = if inserted { k + 1 } else { k - 1 };
        let (start, edit) = (before(from).unwrap_or(0), if inserted { Edit::Insert } else { Edit::Delete });
        let after = if inserted { start } else { start + 1 };
        out.extend(std::iter::repeat_n(Edit::Keep, (x - after).max(0) as usize));
        out.push(edit);
        (x, y) = (start, start - from);
    }
    out.extend(std::iter::repeat_n(Edit::Keep, x.max(0) as usize));
    let _ = y;
    out.reverse();
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `old` changed as the hunks say.
    fn patched(old: &str, diff: &str) -> String {
        let old: Vec<&str> = old.lines().collect();
        let (mut out, mut at) = (Vec::new(), 0);
        for line in diff.lines() {
            if let Some(head) = line.strip_prefix("@@ -") {
                let (start, count) = head.split(' ').next().unwrap().split_once(',').unwrap();
                let start = start.parse::<usize>().unwrap() - usize::from(count != "0");
                out.extend_from_slice(&old[at..start]);
                at = start;
            } else if let Some(text) = line.strip_prefix('+') {
                out.push(text);
            } else {
                assert_eq!(old[at], &line[1..]);
                at += 1;
                out.extend(line.strip_prefix(' '));
            }
        }
        out.extend_from_slice(&old[at..]);
        out.join("\n")
    }

    #[test]
    fn hunks_have_context_and_numbers() {
        let old: String = (0..20).map(|i| format!("{i}\n")).collect();
        let new = old.replace("10\n", "ten\nmore\n");
        assert_eq!(unified_diff(&old, &new), "@@ -8,7 +8,8 @@\n 7\n 8\n 9\n-10\n+ten\n+more\n 11\n 12\n 13\n");
        assert_eq!(unified_diff(&old, &old), "");
        assert_eq!(unified_diff("", "a\n"), "@@ -0,0 +1,1 @@\n+a\n");
    }

    #[test]
    fn applying_a_diff_gives_the_new_text() {
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..500 {
            let mut text =
                || (0..rng.usize(0..30)).map(|_| ["a", "b", "c", "d"][rng.usize(0..4)]).collect::<Vec<_>>().join("\n");
            let (old, new) = (text(), text());
            let diff = unified_diff(&old, &new);
            assert_eq!(patched(&old, &diff), new, "{old:?} {new:?}\n{diff}");
        }
        let many = |word: &str| (0..3000).map(|i| format!("{word}{i}\n")).collect::<String>();
        assert_eq!(patched(&many("x"), &unified_diff(&many("x"), &many("y"))), many("y").trim_end());
    }
}
