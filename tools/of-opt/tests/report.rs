//! The pages that `--html` writes: well formed, without external parts, bounded, and what a browser shows of them.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use of_test_support::browser;
use of_test_support::component::{BROWSER, require};
use serde_json::Value;

const MODEL: &str = "func @main(%x: tensor<512x256xf32>, %w: tensor<256x1024xf32>, %v: tensor<1024x256xf32>) \
    -> (tensor<512x256xf32>) {
  %h = of.matmul %x, %w
  %a = of.tanh %h
  %y = of.matmul %a, %v
  of.return %y
}";

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

/// The data of a page.
fn data(text: &str) -> Value {
    let (_, rest) = text.split_once("id=\"data\">").unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

/// Asserts that a page is well formed, loads nothing, and has these sections.
fn check(text: &str, sections: &[&str]) {
    for never in ["http:", "https:", "src=", "url(", "@import", "import(", "fetch(", "innerHTML", "eval("] {
        assert!(!text.contains(never), "it has {never}");
    }
    for tag in ["html", "head", "title", "style", "body", "header", "nav", "main", "script", "div"] {
        let open = text.matches(&format!("<{tag}>")).count() + text.matches(&format!("<{tag} ")).count();
        assert_eq!(open, text.matches(&format!("</{tag}>")).count(), "{tag}");
    }
    let data = data(text);
    let titles: Vec<&str> = data["sections"].as_array().unwrap().iter().map(|s| s["title"].as_str().unwrap()).collect();
    assert_eq!(titles, sections);
    for s in data["sections"].as_array().unwrap().iter().filter(|s| s["type"] == "table") {
        let columns = s["columns"].as_array().unwrap().len();
        assert!(s["rows"].as_array().unwrap().iter().all(|r| r.as_array().unwrap().len() == columns), "{s}");
    }
}

fn written(dir: &Path, command: &[&str], model: &Path) -> String {
    let page = dir.join("page.html");
    let run = Command::new(env!("CARGO_BIN_EXE_of-opt")).args(command).arg("--html").args([&page, model]).output();
    let run = run.unwrap();
    assert!(run.status.success(), "{command:?}: {}", String::from_utf8_lossy(&run.stderr));
    std::fs::read_to_string(page).unwrap()
}

#[test]
fn pages_are_well_formed_and_load_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(page(dir.path())).unwrap();
    let memory = "Memory of a rank";
    check(&text, &["Timeline of a step", memory, "Layouts", "Graph", "Ops"]);
    assert!(text.contains("<title>a&lt;b on cpu[2x2]</title>") && !text.contains("a<b"), "{text}");
    let names: Vec<Value> = data(&text)["facts"].as_array().unwrap().iter().map(|f| f["name"].clone()).collect();
    assert!(names.contains(&"step, simulated".into()) && names.contains(&"step, cost model".into()), "{names:?}");
    let model = dir.path().join("a<b.of");
    check(&written(dir.path(), &["inspect"], &model), &["Inputs and outputs", "Graph", "Ops"]);
    let measured = written(dir.path(), &["profile", "--max-seconds", "0.1"], &model);
    check(&measured, &["Timeline of the last run", "Tasks"]);
    let simulated = written(dir.path(), &["simulate", "--mesh", "cpu[2]"], &model);
    check(&simulated, &["Timeline of a step", memory, "Tasks"]);
    for text in [measured, simulated] {
        assert!(!text.contains("a<b"));
    }
    let plan = dir.path().join("m.plan");
    let compiled = Command::new(env!("CARGO_BIN_EXE_of-opt")).arg("compile").arg(&model).arg("-o").arg(&plan).output();
    assert!(compiled.unwrap().status.success());
    check(&written(dir.path(), &["inspect"], &plan), &["Inputs and outputs", "Tasks"]);
}

#[test]
fn page_of_a_large_module_is_bounded() {
    const OPS: usize = 76_000;
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("large.of");
    let long = "a_value_with_a_long_name".repeat(8);
    let mut text = String::from("func @main(%v0: tensor<4xf32>) -> (tensor<4xf32>) {\n");
    for i in 0..OPS {
        writeln!(text, "  %{long}{} = of.tanh %{}", i + 1, if i == 0 { "v0".into() } else { format!("{long}{i}") })
            .unwrap();
    }
    writeln!(text, "  of.return %{long}{OPS}\n}}").unwrap();
    std::fs::write(&model, text).unwrap();
    let page = written(dir.path(), &["inspect"], &model);
    assert!(page.len() < 30 << 20, "{} bytes", page.len());
    check(&page, &["Inputs and outputs", "Graph", "Ops"]);
    // Elements are made for what is in view only, so the text has few.
    assert!(page.matches("<tr").count() + page.matches("<div").count() < 10);
    for s in data(&page)["sections"].as_array().unwrap().iter().filter(|s| s["title"] == "Ops") {
        let shown = s["rows"].as_array().unwrap().len() as u64;
        assert_eq!(shown + s["left_out"].as_u64().unwrap(), OPS as u64 + 1);
    }
}

#[test]
fn report_page_renders_in_a_browser() {
    let dir = tempfile::tempdir().unwrap();
    let page = page(dir.path());
    let Some(browser) = require(&BROWSER, browser::installed()) else { return };
    let url = format!("file://{}", page.display());
    browser::shown(browser, &url, &["<canvas", "<h2>Memory of a rank</h2>"]).unwrap();
}
