//! Patterns of names, in which `*` stands for any text.

/// Whether a name is that of a pattern, in which `*` stands for any text.
pub fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let mut last = None;
    for part in parts {
        if let Some(between) = last.replace(part) {
            match rest.find(between) {
                Some(at) => rest = &rest[at + between.len()..],
                None => return false,
            }
        }
    }
    match last {
        None => rest.is_empty(),
        Some(end) => rest.ends_with(end),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_names() {
        for (pattern, name, expected) in [
            ("fc.weight", "fc.weight", true),
            ("fc.weight", "fc.weight2", false),
            ("*.bias", "fc.bias", true),
            ("*.bias", "fc.bias.x", false),
            ("layer*", "layer1.w", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("*", "", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
