//! `cargo xtask prose FILE…`: how long the sentences of Markdown and of Rust's doc comments are.

use std::path::Path;

use crate::workspace::read;

/// Prints, for each file, how many sentences it has, their median and 90th percentile in words, and the longest one.
///
/// # Errors
/// When a file cannot be read.
pub fn prose(files: &[&str]) -> Result<(), String> {
    for file in files {
        let mut sentences = sentences(&text_of(Path::new(file), &read(Path::new(file))?));
        sentences.sort_by_key(|s| words(s));
        let Some(longest) = sentences.last() else { continue };
        let at = |share: usize| words(&sentences[(sentences.len() - 1) * share / 100]);
        println!("{file}: {} sentences, median {}, 90th percentile {}", sentences.len(), at(50), at(90));
        println!("    {} words: {longest}", words(longest));
    }
    Ok(())
}

fn words(sentence: &str) -> usize {
    sentence.split_whitespace().count()
}

/// The prose of a file: comments of Rust, or Markdown without code, tables and headings. An empty line ends a paragraph.
fn text_of(file: &Path, text: &str) -> String {
    let rust = file.extension().is_some_and(|e| e == "rs");
    let mut code = false;
    let mut out = String::new();
    for line in text.lines().map(str::trim) {
        let line = if rust {
            let comment = ["//!", "///", "//"].iter().find_map(|m| line.strip_prefix(m));
            comment.unwrap_or_default().trim()
        } else {
            line
        };
        let fence = line.starts_with("```");
        code ^= fence;
        let prose = !code && !fence && !line.starts_with(['|', '#', '<']);
        let item = line.starts_with("- ") || line.starts_with("* ");
        if item || !prose || line.is_empty() {
            out.push_str("\n\n");
        }
        if prose {
            out.push_str(line.trim_start_matches(['-', '*', '>']).trim());
            out.push(' ');
        }
    }
    out
}

/// Sentences end with a full stop, a question mark or a colon before a space, and with their paragraph.
fn sentences(text: &str) -> Vec<String> {
    let ends = |word: &str| {
        word.trim_end_matches([')', '`', '*']).ends_with(['.', '?', '!', ':', ';']) && !word.ends_with("e.g.")
    };
    let mut all = Vec::new();
    for paragraph in text.split("\n\n") {
        let mut sentence: Vec<&str> = Vec::new();
        for word in paragraph.split_whitespace() {
            sentence.push(word);
            if ends(word) {
                all.push(std::mem::take(&mut sentence).join(" "));
            }
        }
        all.extend((!sentence.is_empty()).then(|| sentence.join(" ")));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_end_at_stops_and_paragraphs() {
        let text = text_of(
            Path::new("x.md"),
            "# Head\nOne two. Three,\nfour?\n\n```sh\nno. prose\n```\n- five e.g. six\n| a | b |\n",
        );
        assert_eq!(sentences(&text), ["One two.", "Three, four?", "five e.g. six"]);
    }

    #[test]
    fn comments_of_rust_are_prose_and_code_is_not() {
        let text = text_of(Path::new("x.rs"), "//! One two.\nfn f() {}\n/// Three.\n");
        assert_eq!(sentences(&text), ["One two.", "Three."]);
    }
}
