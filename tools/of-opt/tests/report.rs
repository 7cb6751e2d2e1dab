//! The page that `of-opt explain --html` writes: what a browser shows of it.

use std::path::Path;
use std::process::Command;

use of_test_support::component::{BROWSER, require};

const MODEL: &str = "func @main(%x: tensor<512x256xf32>, %w: tensor<256x1024xf32>, %v: tensor<1024x256xf32>) \
    -> (tensor<512x256xf32>) {
  %h = of.matmul %x, %w
  %a = of.tanh %h
  %y = of.matmul %a, %v
  of.return %y
}";

/// Browsers that can show a page without a window, if one is installed.
const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "headless_shell"];

fn page(dir: &Path) -> std::path::PathBuf {
    let (model, page) = (dir.join("a<b.of"), dir.join("report.html"));
    std::fs::write(&model, MODEL).unwrap();
    let run = Command::new(env!("CARGO_BIN_EXE_of-opt"))
        .args(["explain", "--mesh", "cpu[2x2]", "--html"])
        .args([&page, &model])
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    page
}

#[test]
fn report_page_loads_nothing_external() {
    let dir = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(page(dir.path())).unwrap();
    for part in ["Timeline of a step", "Memory of a rank", "Communication", "Graph", "<svg", "a&lt;b on cpu[2x2]"] {
        assert!(text.contains(part), "no {part}");
    }
    // Nothing is loaded, and nothing runs.
    for never in ["<script", "http:", "https:", "src=", "a<b"] {
        assert!(!text.contains(never), "it has {never}");
    }
    for tag in ["svg", "table", "h2", "body", "html"] {
        let (open, close) = (text.matches(&format!("<{tag}")).count(), text.matches(&format!("</{tag}>")).count());
        assert_eq!(open, close, "{tag}");
    }
}

#[test]
fn report_page_renders_in_a_browser() {
    let dir = tempfile::tempdir().unwrap();
    let page = page(dir.path());
    let shown = BROWSERS.iter().find_map(|browser| {
        let arguments = ["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"];
        Command::new(browser).args(arguments).arg(&page).output().ok().filter(|o| o.status.success())
    });
    let Some(shown) = require(&BROWSER, shown.ok_or(format!("none of {BROWSERS:?} runs"))) else { return };
    let dom = String::from_utf8_lossy(&shown.stdout);
    assert!(dom.contains("<rect") && dom.contains("Communication"), "{dom}");
}
