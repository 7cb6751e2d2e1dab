//! `cargo xtask new`: files from templates, and their lines in the lists.

mod library;
mod lists;
mod op;
mod pass;

use crate::workspace::root;

/// Makes an op, a pass, or a crate of a backend or of ops.
///
/// # Errors
/// When the arguments make no sense or something of that name exists.
pub fn new(args: &[&str]) -> Result<(), String> {
    match args {
        ["op", name, rest @ ..] => op::op(&root(), name, flag(rest, "--kind")?, flag(rest, "--family")?),
        ["pass", name] => pass::pass(&root(), name),
        ["backend", name, rest @ ..] => library::library(&root(), &library::BACKEND, name, flag(rest, "--out")?),
        ["ops", name, rest @ ..] => library::library(&root(), &library::OPS, name, flag(rest, "--out")?),
        _ => Err("write 'new op NAME --kind primitive|composite --family FAMILY', 'new pass NAME', 'new backend NAME --out DIR' or 'new ops NAME --out DIR'".into()),
    }
}

/// The value of a flag, as `--flag value` or `--flag=value`.
fn flag<'a>(args: &[&'a str], name: &str) -> Result<&'a str, String> {
    let mut args = args.iter();
    while let Some(a) = args.next() {
        if let Some(v) = a.strip_prefix(name).and_then(|r| r.strip_prefix('=')) {
            return Ok(v);
        }
        if *a == name {
            return args.next().copied().ok_or_else(|| format!("{name} needs a value"));
        }
    }
    Err(format!("{name} is missing"))
}

/// `layer_norm` or `fold-constants` as the name of a type.
fn camel(name: &str) -> String {
    let capital = |w: &str| {
        let mut c = w.chars();
        c.next().map(|f| f.to_ascii_uppercase().to_string() + c.as_str()).unwrap_or_default()
    };
    name.split(['_', '-']).map(capital).collect()
}

/// Whether `name` is made of lower-case words joined by `joint`.
fn is_name(name: &str, joint: char) -> bool {
    let word = |w: &str| !w.is_empty() && w.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    name.starts_with(|c: char| c.is_ascii_lowercase()) && name.split(joint).all(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_flags_are_parsed() {
        assert_eq!((camel("layer_norm").as_str(), camel("fold-constants").as_str()), ("LayerNorm", "FoldConstants"));
        assert!(is_name("relu6", '_') && !is_name("Relu", '_') && !is_name("a__b", '_') && !is_name("a-b", '_'));
        assert_eq!(flag(&["--kind", "primitive", "--family=nn"], "--family"), Ok("nn"));
        assert!(flag(&["--kind"], "--kind").is_err());
    }
}
