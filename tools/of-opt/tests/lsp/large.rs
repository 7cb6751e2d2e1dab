//! Times on a module of 76,000 ops.

use std::fmt::Write;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::client::Client;

const OPS: usize = 76_000;

/// A request takes less than 50 ms, once its text is parsed. On a machine that does other things as well it may take longer.
const LIMIT: Duration = Duration::from_millis(250);

const URI: &str = "file:///tmp/lsp-test/large.of";

/// Layers of products, sums, norms and activations; every layer reads `%eps`.
fn module() -> String {
    const T: &str = "tensor<?(N)x768xf32>";
    let mut text = format!("func @main(%x: {T}, %w: tensor<768x768xf32>, %eps: tensor<f32>) -> ({T}) {{\n");
    let mut last = "x".to_string();
    for i in 0..(OPS - 1) / 4 {
        let _ = writeln!(text, "  %layer.{i}.mm = of.matmul %{last}, %w : ({T}, tensor<768x768xf32>) -> {T}");
        let _ = writeln!(text, "  %layer.{i}.sum = of.add %layer.{i}.mm, %{last} : ({T}, {T}) -> {T}");
        let _ = writeln!(text, "  %layer.{i}.eps = of.add %layer.{i}.sum, %eps : ({T}, tensor<f32>) -> {T}");
        let _ = writeln!(text, "  %layer.{i}.act = of.gelu %layer.{i}.eps {{tanh = true}} : ({T}) -> {T}");
        last = format!("layer.{i}.act");
    }
    let _ = write!(text, "  of.return %{last} : ({T}) -> ()\n}}\n");
    text
}

#[test]
fn requests_on_a_large_module_are_fast() {
    let text = module();
    let mut c = Client::with(json!({"workspace": {"applyEdit": true}}));
    let started = Instant::now();
    c.open(URI, &text);
    let line =
        |n: usize, column: usize| json!({"textDocument": {"uri": URI}, "position": {"line": n, "character": column}});
    c.request("textDocument/hover", line(1, 4));
    println!("{} bytes; opened and first hover {:?}", text.len(), started.elapsed());
    let found = c.diagnostics(URI, 1);
    assert!(found.is_empty(), "{}", found[0]);
    println!("opened and verified {:?}", started.elapsed());
    let middle = OPS / 2;
    let last = text.lines().count() - 2;
    let mut ranged = line(middle, 10);
    ranged["range"] = json!({"start": {"line": middle, "character": 10}, "end": {"line": middle, "character": 10}});
    let mut window = line(middle, 0);
    window["range"] = json!({"start": {"line": middle, "character": 0}, "end": {"line": middle + 100, "character": 0}});
    let requests = [
        ("hover", line(middle, 10)),
        ("hover", line(last, 6)),
        ("definition", line(last, 15)),
        ("references", line(middle, 10)),
        // %eps, which a quarter of the ops reads.
        ("references", line(0, text.find("%eps").unwrap_or_default() + 1)),
        ("documentHighlight", line(0, text.find("%eps").unwrap_or_default() + 1)),
        ("references", line(0, 7)),
        ("documentSymbol", line(0, 0)),
        ("semanticTokens/range", window),
        ("codeAction", ranged),
        ("completion", line(middle, 20)),
    ];
    for (method, params) in requests {
        let mut least = Duration::MAX;
        let mut bytes = 0;
        for _ in 0..7 {
            let started = Instant::now();
            let result = c.request(&format!("textDocument/{method}"), params.clone());
            least = least.min(c.arrived - started);
            bytes = result.to_string().len();
        }
        println!("{method}: {least:?}, {bytes} bytes");
        assert!(cfg!(debug_assertions) || least < LIMIT, "{method} takes {least:?}");
    }
    let started = Instant::now();
    let all = c.request("textDocument/semanticTokens/full", line(0, 0));
    println!("semanticTokens/full: {:?}, {} tokens", c.arrived - started, all["data"].as_array().unwrap().len() / 5);
    // A change of one line, then a request that needs the new text.
    let change = json!({"range": {"start": {"line": middle, "character": 0}, "end": {"line": middle, "character": 0}}, "text": " "});
    for version in 2..6 {
        let started = Instant::now();
        let document = json!({"uri": URI, "version": version});
        c.notify("textDocument/didChange", json!({"textDocument": document, "contentChanges": [change]}));
        c.request("textDocument/completion", line(middle, 20));
        let completed = c.arrived - started;
        c.request("textDocument/hover", line(middle, 12));
        let hovered = c.arrived - started;
        c.diagnostics(URI, version);
        println!("change: completion {completed:?}, hover {hovered:?}, diagnostics {:?}", c.arrived - started);
    }
    let run = json!({"command": "of-opt.runPass", "arguments": [{"uri": URI, "passes": "dce", "function": "main"}]});
    let started = Instant::now();
    let ran = c.request("workspace/executeCommand", run);
    println!("dce: {:?}, {} bytes", started.elapsed(), ran.to_string().len());
    c.exit();
}
