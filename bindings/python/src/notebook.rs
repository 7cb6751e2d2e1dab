//! Pages in notebooks.

use of_page::Page;

/// A larger page is not stored in a notebook, which keeps every output; its summary is.
const MAX_BYTES: usize = 1 << 20;

/// The interactive page in a frame of its own, or its summary where it is large.
pub fn embedded(page: &Page) -> String {
    let html = page.to_html();
    if html.len() > MAX_BYTES {
        return page.to_summary();
    }
    let text = html.replace('&', "&amp;").replace('"', "&quot;");
    // The frame may run the page's script, and has no access to the notebook.
    format!(
        "<iframe sandbox=\"allow-scripts\" style=\"width:100%;height:560px;border:1px solid #8884\" srcdoc=\"{text}\"></iframe>"
    )
}
