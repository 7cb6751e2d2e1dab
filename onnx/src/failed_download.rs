//! Files that a download leaves instead of the content: pointers of Git LFS and web pages.

/// What a download left instead of the file, and what helps.
pub(crate) fn failed_download(bytes: &[u8]) -> Option<(&'static str, &'static str)> {
    let head = bytes.get(..bytes.len().min(512))?.trim_ascii_start();
    let begins = |with: &str| head.get(..with.len()).is_some_and(|h| h.eq_ignore_ascii_case(with.as_bytes()));
    if begins("version https://git-lfs.github.com/spec/") {
        return Some(("a pointer of Git LFS", "'git lfs pull' fetches the content that it points to"));
    }
    let web_page = ["<!doctype html", "<html", "<?xml"].iter().any(|tag| begins(tag));
    web_page.then_some(("a web page", "download the file itself, not the page that shows it"))
}
