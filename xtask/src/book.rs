//! `cargo xtask book`: the book, by mdbook, and the preprocessor that makes links to the repository's files work in it.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::workspace::{files, read, root, run, target};

/// The version that the preprocessor is tested with.
const VERSION: &str = "0.5.4";

/// Where files of the repository are that are no chapters.
const REPOSITORY: &str = "https://github.com/of-opt/of-opt/blob/main";

/// The folders whose pages chapters include. Links in an included page are relative to its folder.
const INCLUDED: [&str; 2] = ["docs", ""];

/// Installs mdbook in `~/.cache/of-opt/mdbook`, from crates.io. That takes a minute or more.
///
/// # Errors
/// When the registry cannot be reached or it does not build.
pub fn install() -> Result<(), String> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // The search is a script in the pages; the other features are a web server.
    cargo.args([
        "install",
        "mdbook",
        "--version",
        VERSION,
        "--locked",
        "--no-default-features",
        "--features",
        "search",
    ]);
    run(cargo.arg("--root").arg(folder()?).current_dir(root()))
}

/// Whether there is an mdbook.
pub fn installed() -> bool {
    program().is_some()
}

/// Builds the book in `target/book`.
///
/// # Errors
/// When there is no mdbook, a chapter includes a file that is not there, or a link or its heading leads nowhere.
pub fn build() -> Result<(), String> {
    let program = program().ok_or("mdbook is not installed ('cargo xtask mdbook')")?;
    let to = target().join("book");
    run(Command::new(program).arg("build").arg(root().join("book")).arg("--dest-dir").arg(&to))?;
    let wrong = broken_links(&to)?;
    if !wrong.is_empty() {
        return Err(wrong.join("\n"));
    }
    eprintln!("{}", to.join("index.html").display());
    Ok(())
}

/// Links between pages of a built book whose page or heading is not there.
fn broken_links(book: &Path) -> Result<Vec<String>, String> {
    let pages = files(book)?.into_iter().filter(|f| f.extension().is_some_and(|e| e == "html"));
    // The page for printing has the headings of all chapters under other names.
    let pages = pages.filter(|f| !f.ends_with("print.html"));
    let texts: BTreeMap<PathBuf, String> =
        pages.map(|f| Ok((f.clone(), read(&book.join(&f))?))).collect::<Result<_, String>>()?;
    let mut wrong = Vec::new();
    for (page, text) in &texts {
        for link in text.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next()) {
            let (path, heading) = link.split_once('#').unwrap_or((link, ""));
            let file = if path.is_empty() { page.clone() } else { normal(&page.with_file_name("").join(path)) };
            let found = match texts.get(&file) {
                Some(text) => heading.is_empty() || text.contains(&format!("id=\"{heading}\"")),
                None => path.contains("://") || book.join(&file).exists(),
            };
            if !found {
                wrong.push(format!("{}: the link '{link}' leads nowhere", page.display()));
            }
        }
    }
    Ok(wrong)
}

/// The preprocessor that `book/book.toml` names: reads a book from stdin and writes it to stdout with links that lead somewhere.
///
/// # Errors
/// When the book cannot be read, or a link leads nowhere.
pub fn preprocess(args: &[&str]) -> Result<(), String> {
    if let ["supports", _] = args {
        return Ok(());
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).map_err(|e| format!("stdin: {e}"))?;
    let mut input: Value = serde_json::from_str(&text).map_err(|e| format!("the book is not JSON: {e}"))?;
    let book = input.get_mut(1).ok_or("the input is no pair of context and book")?;
    let chapters = Chapters::new(&read(&root().join("book/src/SUMMARY.md"))?, &root())?;
    let mut wrong = Vec::new();
    chapters.relink(book, &mut wrong);
    if wrong.is_empty() {
        println!("{book}");
        return Ok(());
    }
    Err(wrong.join("\n"))
}

/// A mdbook that runs: the user's own, else the installed one.
fn program() -> Option<PathBuf> {
    let runs = |p: &PathBuf| Command::new(p).arg("--version").output().is_ok_and(|o| o.status.success());
    let own = folder().ok().map(|f| f.join("bin/mdbook"));
    std::iter::once(PathBuf::from("mdbook")).chain(own).find(runs)
}

fn folder() -> Result<PathBuf, String> {
    let var = |n: &str| std::env::var_os(n).filter(|v| !v.is_empty()).map(PathBuf::from);
    let cache = var("XDG_CACHE_HOME").or_else(|| var("HOME").map(|d| d.join(".cache")));
    Ok(cache.ok_or("neither XDG_CACHE_HOME nor HOME is set")?.join("of-opt/mdbook"))
}

/// The chapters, and which pages of the repository they include.
struct Chapters {
    root: PathBuf,
    /// Page of the repository and chapter that is this page alone.
    pages: Vec<(PathBuf, String)>,
}

impl Chapters {
    fn new(summary: &str, root: &Path) -> Result<Chapters, String> {
        let mut pages = Vec::new();
        for file in summary.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let text = read(&root.join("book/src").join(file))?;
            let only = text.trim().strip_prefix("{{#include ").and_then(|t| t.strip_suffix("}}"));
            pages.extend(only.map(|path| (normal(&Path::new("book/src").join(path)), file.to_owned())));
        }
        Ok(Chapters { root: root.to_path_buf(), pages })
    }

    /// Changes the links of all chapters below a value.
    fn relink(&self, value: &mut Value, wrong: &mut Vec<String>) {
        match value {
            Value::Array(all) => all.iter_mut().for_each(|v| self.relink(v, wrong)),
            Value::Object(fields) => {
                let name = fields.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
                if let Some(Value::String(content)) = fields.get_mut("content") {
                    let mut failed =
                        |link: &str| wrong.push(format!("chapter '{name}': the link '{link}' leads nowhere"));
                    *content = self.links(content, &mut failed);
                }
                fields.values_mut().for_each(|v| self.relink(v, wrong));
            }
            _ => {}
        }
    }

    /// A text with its links changed. Code is left alone.
    fn links(&self, text: &str, failed: &mut impl FnMut(&str)) -> String {
        let mut out = String::with_capacity(text.len());
        let mut code = false;
        for line in text.split_inclusive('\n') {
            code ^= line.starts_with("```");
            let mut rest = line;
            while let Some((before, after)) = rest.split_once("](").filter(|_| !code) {
                let (link, after) = after.split_once(')').unwrap_or((after, ""));
                out.push_str(before);
                out.push_str("](");
                match self.target(link) {
                    Some(target) => out.push_str(&target),
                    None => failed(link),
                }
                out.push(')');
                rest = after;
            }
            out.push_str(rest);
        }
        out
    }

    /// Where a link leads in the book.
    fn target(&self, link: &str) -> Option<String> {
        let (path, anchor) = link.split_once('#').map_or((link, String::new()), |(p, a)| (p, format!("#{a}")));
        if path.is_empty() || path.contains("://") || self.root.join("book/src").join(path).is_file() {
            return Some(link.to_owned());
        }
        let files = INCLUDED.iter().map(|folder| normal(&Path::new(folder).join(path)));
        let file = files.into_iter().find(|file| self.root.join(file).exists())?;
        let chapter = self.pages.iter().find(|(page, _)| *page == file);
        Some(match chapter {
            Some((_, chapter)) => format!("{chapter}{anchor}"),
            None => format!("{REPOSITORY}/{}{anchor}", file.display()),
        })
    }
}

/// A path without `..`; those that would leave the repository are dropped.
fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                out.pop();
            }
            Component::CurDir => {}
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_chapters_or_to_the_repository() {
        let chapters = Chapters::new(&read(&root().join("book/src/SUMMARY.md")).unwrap(), &root()).unwrap();
        let target = |link| chapters.target(link);
        assert_eq!(target("#x").as_deref(), Some("#x"));
        assert_eq!(target("https://x.org/").as_deref(), Some("https://x.org/"));
        // Links of a page in docs/, and of one in the root.
        assert_eq!(target("glossary.md#tensors").as_deref(), Some("glossary.md#tensors"));
        assert_eq!(target("docs/glossary.md").as_deref(), Some("glossary.md"));
        assert_eq!(target("tools/of-opt/errors.md").as_deref(), Some("errors.md"));
        assert_eq!(target("../CONTRIBUTING.md"), Some(format!("{REPOSITORY}/CONTRIBUTING.md")));
        assert_eq!(target("absent.md"), None);
    }

    #[test]
    fn code_keeps_its_text() {
        let chapters = Chapters { root: root(), pages: Vec::new() };
        let mut failed = Vec::new();
        let text = "[a](absent.md), [b](#b)\n```sh\nx](y)\n```\n";
        let linked = chapters.links(text, &mut |link: &str| failed.push(link.to_owned()));
        assert_eq!((linked.as_str(), failed), ("[a](), [b](#b)\n```sh\nx](y)\n```\n", vec!["absent.md".to_owned()]));
    }
}
