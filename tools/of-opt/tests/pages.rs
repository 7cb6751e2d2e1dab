//! Flags of `of-opt` that pages name exist.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A line with one of these is about another program, too.
const OTHER_PROGRAMS: &[&str] = &["cargo", "model_signing"];

/// Pages about programs that measure.
const OTHER_PAGES: &[&str] = &["gpu.md", "performance.md", "CONTRIBUTING.md"];

fn help(args: &[&str]) -> String {
    let out = Command::new(env!("CARGO_BIN_EXE_of-opt")).args(args).output().unwrap();
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// The words of a text that begin with two hyphens, without what follows the name.
fn flags(text: &str) -> impl Iterator<Item = String> + '_ {
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let words = text.split(|c: char| c.is_whitespace() || "`'\"([|,".contains(c));
    let names = words.filter_map(move |word| Some(word.strip_prefix("--")?.split(|c| !is_name(c)).next()?.to_owned()));
    names.filter(|name| name.starts_with(|c: char| c.is_ascii_lowercase()))
}

/// Every flag that the help of some command lists.
fn known() -> BTreeSet<String> {
    let main = help(&["--help"]);
    let commands = main.lines().skip_while(|line| !line.starts_with("Commands:")).skip(1);
    let commands =
        commands.take_while(|line| !line.is_empty()).filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names: Vec<&str> =
        commands.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").collect();
    assert!(names.len() > 15 && names.contains(&"compile"), "{names:?}");
    let pages =
        names.iter().map(|name| help(&[name, "--help"])).chain([main.clone(), help(&["cache", "clean", "--help"])]);
    pages.flat_map(|page| flags(&page).collect::<Vec<_>>()).collect()
}

fn about_others(page: &Path) -> bool {
    OTHER_PAGES.iter().any(|other| page.ends_with(other))
}

fn pages(root: &Path) -> Vec<PathBuf> {
    let folders = ["docs", "book/src", "."].map(|folder| root.join(folder));
    let files = folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()));
    let mut pages: Vec<PathBuf> =
        files.filter(|file| file.extension().is_some_and(|ext| ext == "md") && !about_others(file)).collect();
    pages.sort();
    pages
}

#[test]
fn flags_that_pages_name_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let known = known();
    let (mut found, mut wrong) = (0, Vec::new());
    for page in pages(&root) {
        let text = std::fs::read_to_string(&page).unwrap();
        let own = text.lines().enumerate().filter(|(_, line)| OTHER_PROGRAMS.iter().all(|other| !line.contains(other)));
        for (number, line) in own {
            for flag in flags(line) {
                found += 1;
                if !known.contains(&flag) {
                    wrong.push(format!("{}:{}: --{flag}", page.strip_prefix(&root).unwrap().display(), number + 1));
                }
            }
        }
    }
    assert!(found > 100, "pages name {found} flags");
    assert!(wrong.is_empty(), "no command has these flags:\n{}", wrong.join("\n"));
}
