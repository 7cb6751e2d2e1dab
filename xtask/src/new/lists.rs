//! Adding lines to lists in Rust files, where they belong in the alphabet.

/// Inserts `line` into the run of lines between `begin` and `end` (positions) for which `key` gives something, before
/// the first whose key is larger.
fn insert_in(
    lines: &mut Vec<String>,
    range: std::ops::Range<usize>,
    line: &str,
    key: &dyn Fn(&str) -> Option<String>,
) -> Option<()> {
    let new = key(line)?;
    let mut last = None;
    for i in range {
        let Some(k) = key(&lines[i]) else { continue };
        if k > new {
            lines.insert(i, line.into());
            return Some(());
        }
        last = Some(i);
    }
    lines.insert(last? + 1, line.into());
    Some(())
}

fn join(lines: Vec<String>) -> String {
    lines.join("\n") + "\n"
}

/// Adds `mod NAME;` and `pub use NAME::TYPE;` to the file of a module that has others of them.
pub fn add_module(text: &str, name: &str, ty: &str) -> Option<String> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let modules = |l: &str| {
        Some(
            l.strip_prefix("mod ")
                .or_else(|| l.strip_prefix("pub mod "))
                .or_else(|| l.strip_prefix("pub(crate) mod "))?
                .to_string(),
        )
    };
    let uses = |l: &str| Some(l.strip_prefix("pub use ")?.to_string());
    let all = 0..lines.len();
    insert_in(&mut lines, all, &format!("mod {name};"), &modules)?;
    let all = 0..lines.len();
    insert_in(&mut lines, all, &format!("pub use {name}::{ty};"), &uses)?;
    Some(join(lines))
}

/// Adds `crate::FAMILY::TYPE,` to the list of ops, in the last section of that family.
pub fn add_op(text: &str, family: &str, ty: &str) -> Option<String> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let path = format!("crate::{family}::");
    let key = |l: &str| Some(l.trim().strip_prefix(&path)?.to_string());
    // A family may have several sections, each under its comment; the last is for what the others are not for.
    let comment = |l: &String| {
        l.trim().strip_prefix("// ").is_some_and(|c| c == family || c.starts_with(&format!("{family}: composites")))
    };
    let begin = lines.iter().position(comment)? + 1;
    let end = begin + lines[begin..].iter().position(|l| key(l).is_none())?;
    insert_in(&mut lines, begin..end, &format!("    {path}{ty},"), &key)?;
    Some(join(lines))
}

/// Adds `crate::MODULE::TYPE,` to the list of passes, which is sorted by the last part of the path.
pub fn add_pass(text: &str, module: &str, ty: &str) -> Option<String> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let begin = lines.iter().position(|l| l.trim() == "list! {")? + 1;
    let end = begin + lines[begin..].iter().position(|l| l.trim() == "}")?;
    let key = |l: &str| Some(l.trim().strip_suffix(',')?.rsplit("::").next()?.to_string());
    insert_in(&mut lines, begin..end, &format!("    crate::{module}::{ty},"), &key)?;
    Some(join(lines))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_inserted_in_alphabetical_order() {
        let m = "//! Doc.\n\nmod a;\npub(crate) mod c;\n\npub use a::A;\npub use c::{C, D};\n";
        let want =
            "//! Doc.\n\nmod a;\nmod b;\npub(crate) mod c;\n\npub use a::A;\npub use b::B;\npub use c::{C, D};\n";
        assert_eq!(add_module(m, "b", "B").unwrap(), want);
        let l = "list! {\n    // el: unary\n    crate::el::Z,\n    // el: composites\n    crate::el::A,\n    // nn\n    crate::nn::B,\n}\n";
        let want = "list! {\n    // el: unary\n    crate::el::Z,\n    // el: composites\n    crate::el::A,\n    crate::el::Q,\n    // nn\n    crate::nn::B,\n}\n";
        assert_eq!(add_op(l, "el", "Q").unwrap(), want);
        assert!(add_op(l, "xx", "Q").is_none());
        let p = "list! {\n    A,\n    crate::z::C,\n}\n";
        assert_eq!(add_pass(p, "b", "B").unwrap(), "list! {\n    A,\n    crate::b::B,\n    crate::z::C,\n}\n");
    }
}
