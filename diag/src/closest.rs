//! What a misspelt name may have meant.

/// The known name that is closest to `name`, if it is close enough to have been meant: a third of the characters, and at
/// least two, may differ. A swap of two neighbouring characters counts once.
pub fn closest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // A name that long is no typing error.
    let known = known.filter(|k| name.len() <= 2 * k.len() + 2);
    let all = known.map(|k| (distance(name, k), k)).min();
    all.filter(|(d, _)| *d <= 2.max(name.len() / 3)).map(|(_, k)| k)
}

/// Optimal string alignment distance.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<usize>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = replaced.min(row[j - 1] + 1).min(rows[i - 1][j] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_names_have_a_closest_one() {
        let of = |name| closest(name, ["run", "bench", "compile"].into_iter());
        assert_eq!((of("rnu"), of("compil"), of("bnech")), (Some("run"), Some("compile"), Some("bench")));
        assert_eq!(of("something"), None);
        assert_eq!(closest("x", std::iter::empty()), None);
    }
}
