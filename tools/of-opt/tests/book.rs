//! The book: the commands of every chapter do what the page shows. Chapters that are pages of `docs` have command lines with
//! placeholders, which the tests of `cli.rs` parse.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use of_test_support::listings::{Listing, listings, run};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The chapters with their texts, includes unresolved.
fn chapters() -> Vec<(String, String)> {
    let entries = fs::read_dir(root().join("book/src")).unwrap().map(|e| e.unwrap().path());
    let pages = entries.filter(|p| p.extension().is_some_and(|e| e == "md"));
    let mut all: Vec<_> =
        pages.map(|p| (p.file_name().unwrap().to_str().unwrap().to_owned(), fs::read_to_string(&p).unwrap())).collect();
    all.sort();
    all
}

/// The listings that this test runs: without those that have a test of their own.
fn own(page: &str) -> Vec<Listing> {
    listings(page).into_iter().filter(|l| l.comment.is_none()).collect()
}

#[test]
fn commands_of_the_book_do_what_it_shows() {
    let programs = Path::new(env!("CARGO_BIN_EXE_of-opt")).parent().unwrap();
    let chapter = |name: String, page: String| {
        let dir = tempfile::tempdir().unwrap();
        symlink(root().join("examples"), dir.path().join("examples")).unwrap();
        run(&own(&page), dir.path(), programs).unwrap_or_else(|why| panic!("book/src/{name}, {why}")).len()
    };
    let commands: usize = std::thread::scope(|s| {
        let started: Vec<_> = chapters().into_iter().map(|(name, page)| s.spawn(|| chapter(name, page))).collect();
        started.into_iter().map(|t| t.join().unwrap()).sum()
    });
    assert!(commands >= 30, "{commands} listings were run");
}

/// Each listing is run here, by the test that its comment names, or by the tests of the Python package; or it is a file of the repository.
#[test]
fn every_listing_of_the_book_has_a_test() {
    for (name, page) in chapters() {
        for l in listings(&page) {
            let at = format!("book/src/{name}:{}", l.line);
            let tested_by = l.comment.as_deref().and_then(|c| c.strip_prefix("tested by "));
            match (l.language.as_str(), tested_by) {
                (_, Some(test)) => assert!(root().join(test).is_file(), "{at}: there is no test {test}"),
                ("sh" | "text", None) => assert_eq!(l.comment, None, "{at}: this comment says nothing to a test"),
                ("mlir" | "toml", None) => assert!(l.file().is_some(), "{at}: a file needs its name in the first line"),
                ("python", None) => {
                    // bindings/python/tests/test_package.py runs them; with a comment, where torch is installed.
                    assert!(l.comment.as_deref().is_none_or(|c| c == "needs torch"), "{at}: the comment is unknown");
                }
                ("rust" | "c" | "js", None) => {
                    let file = l.text.trim().strip_prefix("{{#include ../../").and_then(|t| t.strip_suffix("}}"));
                    let exists = file.is_some_and(|f| root().join(f).is_file());
                    assert!(exists, "{at}: programs are files of the repository, which its tests build");
                }
                (other, None) => panic!("{at}: listings in '{other}' have no test"),
            }
        }
    }
}

#[test]
fn the_summary_names_every_chapter() {
    let summary = fs::read_to_string(root().join("book/src/SUMMARY.md")).unwrap();
    for (name, page) in chapters().iter().filter(|(name, _)| name != "SUMMARY.md") {
        assert!(summary.contains(&format!("]({name})")), "SUMMARY.md lacks {name}");
        for include in page.split("{{#include ").skip(1) {
            let path = include.split(['}', ':']).next().unwrap();
            assert!(root().join("book/src").join(path).is_file(), "{name} includes {path}, which is not there");
        }
    }
}
