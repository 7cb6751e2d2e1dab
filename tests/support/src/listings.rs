//! Listings of Markdown pages, run as tests.
//!
//! ````text
//! ```mlir
//! // net.of
//! func @main(…                     a file, named by the comment in its first line
//! ```
//! ```sh
//! of-opt net.of --passes=cse       commands, run by `sh -e`; the last one fails if an error follows
//! ```
//! ```text
//! net.of:3:8: error[E0203]: …      lines of the output, in this order; `…` stands for any text
//! ```
//! ````
//!
//! A comment `<!-- … -->` directly before a listing says what else holds for it.

use std::fs;
use std::path::Path;
use std::process::Command;

/// A fenced block of a page.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Listing {
    /// The word after the fence.
    pub language: String,
    /// What is between the fences.
    pub text: String,
    /// The line of the first fence, from 1 on.
    pub line: usize,
    /// The comment in the line before.
    pub comment: Option<String>,
}

/// The listings of a page, in their order. One that is not closed ends with the page.
pub fn listings(page: &str) -> Vec<Listing> {
    let mut all = Vec::new();
    let mut open: Option<Listing> = None;
    let mut before = "";
    for (line, text) in (1..).zip(page.lines()) {
        match (&mut open, text.strip_prefix("```")) {
            (None, Some(language)) => {
                let comment = before.strip_prefix("<!-- ").and_then(|c| c.strip_suffix(" -->"));
                let language = language.split([' ', ',']).next().unwrap_or_default().into();
                open = Some(Listing { language, text: String::new(), line, comment: comment.map(Into::into) });
            }
            (Some(_), Some(_)) => all.extend(open.take()),
            (Some(listing), None) => {
                listing.text.push_str(text);
                listing.text.push('\n');
            }
            (None, None) => {}
        }
        before = text;
    }
    all.extend(open);
    all
}

impl Listing {
    /// The name of the file that the listing holds: a comment in its first line, with nothing but a name.
    pub fn file(&self) -> Option<&str> {
        let first = self.text.lines().next()?;
        let name = first.strip_prefix("// ").or_else(|| first.strip_prefix("# "))?;
        let is_name = |c: char| c.is_alphanumeric() || "._-".contains(c);
        (self.language != "sh" && name.contains('.') && name.chars().all(is_name)).then_some(name)
    }
}

/// Writes the files of listings into `folder` and runs their commands there, with the programs of `programs` first in the path. Listings
/// of other languages than `sh` and `text` that name no file are left alone. Gives the exit codes of the commands.
///
/// # Errors
/// Which listing does not do what the page says, and what it prints.
pub fn run(listings: &[Listing], folder: &Path, programs: &Path) -> Result<Vec<i32>, String> {
    let mut codes = Vec::new();
    for (i, listing) in listings.iter().enumerate() {
        let failed = |why: String| format!("line {}: {why}\n{}", listing.line, listing.text);
        if let Some(name) = listing.file() {
            fs::write(folder.join(name), &listing.text).map_err(|e| failed(e.to_string()))?;
        } else if listing.language == "sh" {
            let shown = listings.get(i + 1).filter(|next| next.language == "text").map_or("", |next| &next.text);
            let (code, output) = shell(&listing.text, folder, programs).map_err(failed)?;
            let fails = shown.contains("error[");
            if fails == (code == 0) {
                return Err(failed(format!("the exit code is {code}, the output\n{output}\nof")));
            }
            if let Some(missing) = first_missing(shown, &output) {
                return Err(failed(format!("the output lacks '{missing}', it is\n{output}\nof")));
            }
            codes.push(code);
        }
    }
    Ok(codes)
}

/// The exit code and the output of commands.
fn shell(text: &str, folder: &Path, programs: &Path) -> Result<(i32, String), String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = std::iter::once(programs.to_path_buf()).chain(std::env::split_paths(&path));
    let path = std::env::join_paths(all).map_err(|e| e.to_string())?;
    let mut sh = Command::new("sh");
    // Both streams in the order in which they are written.
    sh.args(["-e", "-c", &format!("exec 2>&1\n{text}")]).current_dir(folder).env("PATH", path).env("NO_COLOR", "1");
    let out = sh.env("OF_CACHE_DIR", folder.join("cache")).output().map_err(|e| format!("sh: {e}"))?;
    Ok((out.status.code().unwrap_or(-1), String::from_utf8_lossy(&out.stdout).into_owned()))
}

/// The first line of `shown` that `output` does not have after those before it.
fn first_missing<'a>(shown: &'a str, output: &str) -> Option<&'a str> {
    let mut lines = output.lines();
    let has = |line: &str, parts: &str| {
        let mut at = 0;
        // The parts between ellipses, one after the other.
        parts.split('…').all(|part| line[at..].find(part.trim()).map(|found| at += found + part.trim().len()).is_some())
    };
    shown.lines().filter(|l| !l.trim().is_empty()).find(|wanted| !lines.any(|line| has(line, wanted)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "Text.\n\n<!-- not run: a reason -->\n```sh\nfalse\n```\n```mlir\n// a.of\nfunc\n```\n";

    #[test]
    fn listings_have_language_line_comment_and_file() {
        let [first, second] = &listings(PAGE)[..] else { panic!("{:?}", listings(PAGE)) };
        assert_eq!(
            (first.language.as_str(), first.line, first.comment.as_deref()),
            ("sh", 4, Some("not run: a reason"))
        );
        assert_eq!(
            (second.text.as_str(), second.file(), second.comment.as_deref()),
            ("// a.of\nfunc\n", Some("a.of"), None)
        );
        assert_eq!(first.file(), None);
    }

    #[test]
    fn lines_of_output_are_found_in_order() {
        assert_eq!(first_missing("a … c\nd", "0\na b c\nx\n  d e\n"), None);
        assert_eq!(first_missing("d\na", "a\nd\n"), Some("a"));
        assert_eq!(first_missing("c … a", "a b c\n"), Some("c … a"));
    }

    #[test]
    fn commands_run_with_the_files_of_the_page() {
        let folder = std::env::temp_dir().join(format!("of-listings-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let run = |page: &str| run(&listings(page), &folder, &folder);
        assert_eq!(run("```c\n// a.c\nint a;\n```\n```sh\ncat a.c\n```\n```text\nint a;\n```\n"), Ok(vec![0]));
        assert_eq!(run("```sh\necho 'error[E1]'; exit 3\n```\n```text\nerror[E1]\n```\n"), Ok(vec![3]));
        assert!(run("```sh\nfalse\ntrue\n```\n").unwrap_err().starts_with("line 1: the exit code is 1"));
        assert!(run("```sh\necho b\n```\n```text\na\n```\n").unwrap_err().contains("the output lacks 'a'"));
        fs::remove_dir_all(&folder).unwrap();
    }
}
