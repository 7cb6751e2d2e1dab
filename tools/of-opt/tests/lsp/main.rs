//! The language server as an editor sees it.

mod client;
mod large;

use client::Client;
use serde_json::{Value, json};

const URI: &str = "file:///tmp/lsp-test/a%20model.of";

const TEXT: &str = "of.mesh @m {devices = \"cpu\", shape = [2]}

func @main(%x: tensor<4x8xf32>, %n: tensor<?(N)xi64>) -> (tensor<4x2xf32>) {
  // 𝄞 é: two units of UTF-16, and one.
  %w = of.constant {value = dense<[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0], [1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]]> : tensor<8x2xf32>} : () -> tensor<8x2xf32> loc(\"fc.weight\"(\"onnx:Constant\":3:0))
  %y = of.matmul %x, %w : (tensor<4x8xf32>, tensor<8x2xf32>) -> tensor<4x2xf32>
  /* */
  %z = of.relu %y : (tensor<4x2xf32>) -> tensor<4x2xf32>
  of.return %z : (tensor<4x2xf32>) -> ()
}
";

/// The text without what is no comment of the IR.
fn text() -> String {
    TEXT.replace("  /* */\n", "")
}

/// The position of the first character of the `n`-th occurrence of a word, plus `plus`, in UTF-16.
fn position(text: &str, word: &str, n: usize, plus: usize) -> Value {
    let at = text.match_indices(word).nth(n).unwrap().0;
    let before = &text[..at];
    let line = before.rsplit('\n').next().unwrap();
    json!({"line": before.matches('\n').count(), "character": line.encode_utf16().count() + plus})
}

fn at(position: &Value) -> Value {
    json!({"textDocument": {"uri": URI}, "position": position})
}

fn hover(c: &mut Client, position: &Value) -> String {
    let h = c.request("textDocument/hover", at(position));
    h["contents"]["value"].as_str().unwrap_or_default().to_owned()
}

/// The beginnings of the ranges in an answer.
fn starts(answer: &Value) -> Vec<(u64, u64)> {
    let start = |l: &Value| {
        let p = &l["range"]["start"];
        (p["line"].as_u64().unwrap(), p["character"].as_u64().unwrap())
    };
    answer.as_array().unwrap().iter().map(start).collect()
}

#[test]
fn hover_shows_types_layouts_constants_and_origins() {
    let mut c = Client::with(json!({}));
    let text = text();
    c.open(URI, &text);
    let found = c.diagnostics(URI, 1);
    assert!(found.is_empty(), "{found:?}");
    let w = hover(&mut c, &position(&text, "%w", 1, 1));
    for part in [
        "%w: tensor<8x2xf32>",
        "f32 8 × 2, 64 bytes",
        "**of.constant**",
        "1.0, 2.0, 3.0",
        "… 16 elements",
        "ONNX node 3: `Constant` fc.weight",
    ] {
        assert!(w.contains(part), "{part}\n{w}");
    }
    let op = hover(&mut c, &position(&text, "of.matmul", 0, 3));
    for part in ["**of.matmul**", "(a, b) -> ", "`%y: tensor<4x2xf32>`", "32 bytes"] {
        assert!(op.contains(part), "{part}\n{op}");
    }
    let argument = hover(&mut c, &position(&text, "%n", 0, 0));
    for part in ["`%n: tensor<?(N)xi64>`", "i64 N, 8 \\* N bytes", "argument 1 of `@main`"] {
        assert!(argument.contains(part), "{part}\n{argument}");
    }
    assert!(hover(&mut c, &position(&text, "@main", 0, 2)).contains("func @main(x: tensor<4x8xf32>"));
    assert!(hover(&mut c, &position(&text, "@m ", 0, 1)).contains("mesh `@m`: 2 cpu"));
    assert_eq!(hover(&mut c, &json!({"line": 999, "character": 999})), "");
    let sbp = "of.mesh @m {devices = \"cpu\", shape = [2]}\nfunc @main(%x: tensor<4xf32, #of.sbp<@m, [S(0)]>>) -> (tensor<4xf32, #of.sbp<@m, [S(0)]>>) {\n  of.return %x : (tensor<4xf32, #of.sbp<@m, [S(0)]>>) -> ()\n}\n";
    c.set(URI, 2, sbp);
    assert!(hover(&mut c, &position(sbp, "%x", 1, 0)).contains("layout: [S(0)] on `@m` (2 cpu)"));
    let meshes = c.request("textDocument/references", at(&position(sbp, "@m", 2, 1)));
    assert_eq!(meshes.as_array().unwrap().len(), 4);
    c.exit();
}

/// Tokens of an answer: the word, its type, and its modifiers.
fn semantic_tokens(c: &Client, text: &str, answer: &Value) -> Vec<String> {
    let legend = &c.capabilities["semanticTokensProvider"]["legend"];
    let numbers: Vec<usize> = answer["data"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect();
    let (mut line, mut character) = (0, 0);
    let tokens = numbers.chunks(5).map(|token| {
        let &[lines, characters, length, kind, bits] = token else { panic!("{token:?}") };
        (line, character) = (line + lines, if lines > 0 { characters } else { character + characters });
        let units: Vec<u16> = text.lines().nth(line).unwrap().encode_utf16().collect();
        let word = String::from_utf16(&units[character..character + length]).unwrap();
        let names = legend["tokenModifiers"].as_array().unwrap().iter().enumerate();
        let modifiers: String =
            names.filter(|(i, _)| bits >> i & 1 == 1).map(|(_, m)| format!(" {}", m.as_str().unwrap())).collect();
        format!("{word} {}{modifiers}", legend["tokenTypes"][kind].as_str().unwrap())
    });
    tokens.collect()
}

#[test]
fn semantic_tokens_tell_arguments_constants_and_definitions_apart() {
    let mut c = Client::with(json!({}));
    let text = text();
    c.open(URI, &text);
    let document = json!({"textDocument": {"uri": URI}});
    let all = c.request("textDocument/semanticTokens/full", document.clone());
    let expected = [
        "of.mesh namespace declaration",
        "@main function declaration",
        "%x parameter declaration",
        "%n parameter declaration",
        "%w variable declaration readonly",
        "of.constant method",
        "%y variable declaration",
        "of.matmul method",
        "%x parameter",
        "%w variable readonly",
        "%z variable declaration",
        "of.relu method",
        "%y variable",
        "of.return method",
        "%z variable",
    ];
    assert_eq!(semantic_tokens(&c, &text, &all), expected);
    // A part of the text, which begins inside of a line and inside of an op.
    let mut part = document.clone();
    part["range"] = json!({"start": position(&text, "of.matmul", 0, 0), "end": position(&text, "%y", 1, 2)});
    let found = c.request("textDocument/semanticTokens/range", part);
    assert_eq!(semantic_tokens(&c, &text, &found), expected[7..13]);

    // The text changes by a range, and so do the tokens. The op without a name that is known has none.
    let relu = position(&text, "of.relu", 0, 3);
    let end = position(&text, "of.relu", 0, 7);
    let change = json!({"range": {"start": relu, "end": end}, "text": "none_such"});
    let changed = json!({"uri": URI, "version": 2});
    c.notify("textDocument/didChange", json!({"textDocument": changed, "contentChanges": [change]}));
    let text = text.replace("of.relu", "of.none_such");
    let found = c.request("textDocument/semanticTokens/full", document);
    let found = semantic_tokens(&c, &text, &found);
    assert!(
        found.contains(&"of.matmul method".into()) && !found.iter().any(|t| t.starts_with("of.none_such")),
        "{found:?}"
    );
    c.exit();
}

#[test]
fn navigation_finds_definitions_uses_and_symbols() {
    let mut c = Client::with(json!({}));
    let text = text();
    c.open(URI, &text);
    let y = position(&text, "%y", 1, 1);
    assert_eq!(starts(&c.request("textDocument/definition", at(&y))), [(5, 2)]);
    let mut params = at(&y);
    params["context"] = json!({"includeDeclaration": true});
    assert_eq!(starts(&c.request("textDocument/references", params.clone())), [(5, 2), (6, 15)]);
    params["context"] = json!({"includeDeclaration": false});
    assert_eq!(starts(&c.request("textDocument/references", params)), [(6, 15)]);
    let marks = c.request("textDocument/documentHighlight", at(&y));
    assert_eq!((&marks[0]["kind"], &marks[1]["kind"]), (&json!(3), &json!(2)));
    let name = c.request("textDocument/definition", at(&position(&text, "@main", 0, 5)));
    assert_eq!(starts(&name), [(2, 5)]);
    let symbols = c.request("textDocument/documentSymbol", json!({"textDocument": {"uri": URI}}));
    assert_eq!((&symbols[0]["name"], &symbols[1]["name"]), (&json!("@m"), &json!("@main")));
    let ops: Vec<&str> =
        symbols[1]["children"].as_array().unwrap().iter().map(|s| s["name"].as_str().unwrap()).collect();
    assert_eq!(ops, ["%w", "%y", "%z", "of.return"]);
    assert_eq!(symbols[1]["children"][1]["detail"], "of.matmul");
    c.exit();
}

#[test]
fn broken_text_and_back() {
    let mut c = Client::with(json!({"general": {"positionEncodings": ["utf-16", "utf-8"]}}));
    let good = text();
    c.open(URI, &good);
    assert_eq!(c.diagnostics(URI, 1), Vec::<Value>::new());
    // Two errors of syntax, an unknown op with a hint, and a value that is not defined.
    let broken = good
        .replace("of.relu %y", "of.rellu %y")
        .replace("%x, %w :", "%x, :")
        .replace("of.return %z", "of.return %nothing");
    c.set(URI, 2, &broken);
    let found = c.diagnostics(URI, 2);
    let codes: Vec<&str> = found.iter().map(|d| d["code"].as_str().unwrap()).collect();
    assert_eq!(codes, ["E0101", "E0103", "E0102"]);
    assert!(found[1]["message"].as_str().unwrap().contains("hint: did you mean 'of.relu'?"), "{}", found[1]);
    assert_eq!(found[1]["range"], json!({"start": {"line": 6, "character": 7}, "end": {"line": 6, "character": 15}}));
    assert_eq!((&found[1]["source"], &found[1]["severity"]), (&json!("of-opt"), &json!(1)));
    // Names still resolve, and an op with errors has its declaration.
    let y = json!({"line": 6, "character": 16});
    assert_eq!(starts(&c.request("textDocument/definition", at(&y))), [(5, 2)]);
    assert!(hover(&mut c, &json!({"line": 5, "character": 9})).contains("of.matmul"));
    // Back, by a change of a range: positions are bytes.
    let line = broken.lines().nth(5).unwrap();
    let column = line.find(", :").unwrap() + 2;
    let insert = json!({"range": {"start": {"line": 5, "character": column}, "end": {"line": 5, "character": column}}, "text": "%w "});
    let op = json!({"range": {"start": {"line": 6, "character": 7}, "end": {"line": 6, "character": 15}}, "text": "of.relu"});
    let result =
        json!({"range": {"start": {"line": 7, "character": 12}, "end": {"line": 7, "character": 20}}, "text": "%z"});
    let document = json!({"uri": URI, "version": 3});
    c.notify("textDocument/didChange", json!({"textDocument": document, "contentChanges": [insert, op, result]}));
    assert_eq!(c.diagnostics(URI, 3), Vec::<Value>::new());
    // The verifier's errors come where the parser finds none.
    c.set(URI, 4, &good.replace("%z = of.relu %y", "%z = of.relu %y {speed = 1}"));
    let found = c.diagnostics(URI, 4);
    assert_eq!((found.len(), &found[0]["code"]), (1, &json!("E0201")));
    assert_eq!(found[0]["range"]["start"], json!({"line": 6, "character": 7}));
    // An op whose location is a node of ONNX.
    c.set(URI, 5, &good.replace("of.constant {", "of.constant {speed = 1, "));
    assert_eq!(c.diagnostics(URI, 5)[0]["range"]["start"], json!({"line": 4, "character": 7}));
    c.notify("textDocument/didClose", json!({"textDocument": {"uri": URI}}));
    c.wait(|m| m["method"] == "textDocument/publishDiagnostics" && m["params"]["version"].is_null());
    c.exit();
}

/// Applies the one edit of a command.
fn applied(text: &str, edit: &Value) -> String {
    let offset = |p: &Value| {
        let line = p["line"].as_u64().unwrap() as usize;
        let start: usize = text.split_inclusive('\n').take(line).map(str::len).sum();
        start + p["character"].as_u64().unwrap() as usize
    };
    let range = &edit["range"];
    let (start, end) = (offset(&range["start"]), offset(&range["end"]));
    format!("{}{}{}", &text[..start], edit["newText"].as_str().unwrap(), &text[end..])
}

#[test]
fn passes_give_a_diff_and_an_edit() {
    let text = "module @net {
  func @other(%x: tensor<4xf32>) -> (tensor<4xf32>) {
    of.return %x : (tensor<4xf32>) -> ()
  }

  func @main(%x: tensor<4xf32>) -> (tensor<4xf32>) {
    %y = of.relu %x : (tensor<4xf32>) -> tensor<4xf32>
    %unused = of.neg %x : (tensor<4xf32>) -> tensor<4xf32>
    of.return %y : (tensor<4xf32>) -> ()
  }
}
";
    let want = text.replace("    %unused = of.neg %x : (tensor<4xf32>) -> tensor<4xf32>\n", "");
    let mut c = Client::with(json!({"workspace": {"applyEdit": true, "workspaceEdit": {"documentChanges": true}}}));
    c.open(URI, text);
    let run = |more: Value| {
        let mut argument = json!({"uri": URI, "passes": "dce"});
        argument.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"command": "of-opt.runPass", "arguments": [argument]})
    };
    for scope in [json!({"function": "main"}), json!({})] {
        let ran = c.request("workspace/executeCommand", run(scope));
        assert!(ran["diff"].as_str().unwrap().contains("-    %unused = of.neg"), "{ran}");
        let change = &ran["edit"]["documentChanges"][0];
        assert_eq!((&change["textDocument"]["version"], &change["textDocument"]["uri"]), (&json!(1), &json!(URI)));
        assert_eq!(applied(text, &change["edits"][0]), want);
    }
    // Comments stay.
    let commented = text.replace("    %unused", "    // Nothing reads it.\n    %unused");
    c.set(URI, 2, &commented);
    let ran = c.request("workspace/executeCommand", run(json!({"function": "main"})));
    let kept = want.replace("    of.return %y", "    // Nothing reads it.\n    of.return %y");
    assert_eq!(applied(&commented, &ran["edit"]["documentChanges"][0]["edits"][0]), kept);
    c.set(URI, 3, text);
    // As a code action: the server asks the editor to apply the edit.
    let place = position(text, "of.neg", 0, 0);
    let params =
        json!({"textDocument": {"uri": URI}, "range": {"start": place, "end": place}, "context": {"diagnostics": []}});
    let actions = c.request("textDocument/codeAction", params);
    let action = actions.as_array().unwrap().iter().find(|a| a["title"] == "Run dce on @main").unwrap();
    let command = &action["command"];
    let id =
        c.ask("workspace/executeCommand", json!({"command": command["command"], "arguments": command["arguments"]}));
    let apply = c.wait(|m| m["method"] == "workspace/applyEdit");
    assert_eq!(applied(text, &apply["params"]["edit"]["documentChanges"][0]["edits"][0]), want);
    c.send(&json!({"jsonrpc": "2.0", "id": apply["id"], "result": {"applied": true}}));
    assert!(c.answer(id)["error"].is_null());
    // Nothing to do, and what cannot be done.
    let ran = c.request("workspace/executeCommand", run(json!({"function": "other"})));
    assert_eq!((&ran["diff"], &ran["edit"]), (&json!(""), &Value::Null));
    for (wrong, message) in [
        (json!({"function": "none"}), "no function @none"),
        (json!({"passes": "dec"}), "did you mean 'dce'?"),
        (json!({"uri": "file:///other.of"}), "not open"),
    ] {
        let id = c.ask("workspace/executeCommand", run(wrong));
        let answer = c.answer(id);
        assert!(answer["error"]["message"].as_str().unwrap().contains(message), "{answer}");
    }
    c.set(URI, 4, "func @main() {");
    let id = c.ask("workspace/executeCommand", run(json!({})));
    assert!(c.answer(id)["error"]["message"].as_str().unwrap().contains("the text has errors"));
    c.exit();
}

#[test]
fn completion_knows_ops_attributes_and_values() {
    let text = "func @main(%first: tensor<4x8xf32>) -> (tensor<4x8xf32>) {
  %y = of.softmax %first {axis = 1} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %z = of.so
  of.return %y : (tensor<4x8xf32>) -> ()
}
";
    let mut c = Client::with(json!({}));
    c.open(URI, text);
    c.diagnostics(URI, 1);
    let labels = |c: &mut Client, position: Value| -> Vec<String> {
        let all = c.request("textDocument/completion", at(&position));
        all.as_array().unwrap().iter().map(|i| i["label"].as_str().unwrap().to_owned()).collect()
    };
    let ops = labels(&mut c, position(text, "of.so", 1, 5));
    assert!(ops.contains(&"of.softmax".into()) && ops.len() > 200);
    assert_eq!(labels(&mut c, position(text, "axis", 0, 7)), Vec::<String>::new());
    let before = text.replace("{axis = 1}", "{");
    c.set(URI, 2, &before);
    assert_eq!(labels(&mut c, position(&before, "{", 1, 1)), ["axis"]);
    let values = text.replace("of.return %y", "of.return %");
    c.set(URI, 3, &values);
    c.diagnostics(URI, 3);
    assert_eq!(labels(&mut c, position(&values, "of.return %", 0, 11)), ["%z", "%y", "%first"]);
    c.exit();
}

#[test]
fn protocol_errors_are_answered() {
    let mut c = Client::start();
    let id = c.ask("textDocument/hover", json!({}));
    assert_eq!(c.answer(id)["error"]["code"], -32002);
    c.request("initialize", json!({"capabilities": {}}));
    let id = c.ask("textDocument/everything", json!({}));
    assert_eq!(c.answer(id)["error"]["code"], -32601);
    let id = c.ask("textDocument/hover", json!({"textDocument": 7}));
    assert_eq!(c.answer(id)["error"]["code"], -32602);
    let id = c.ask("textDocument/hover", at(&json!({"line": 0, "character": 0})));
    assert!(c.answer(id)["error"]["message"].as_str().unwrap().contains("not open"));
    c.notify("textDocument/didChange", json!({"textDocument": null}));
    c.send_bytes(b"Content-Length: 5\r\n\r\n{\"a\":");
    let refused = c.wait(|m| m["error"]["code"] == -32700);
    assert!(refused["id"].is_null());
    // A request that waits for a text can be cancelled, or is answered before.
    c.open(URI, &text());
    let id = c.ask("textDocument/hover", at(&json!({"line": 2, "character": 12})));
    c.notify("$/cancelRequest", json!({"id": id}));
    c.answer(id);
    c.request("shutdown", Value::Null);
    let id = c.ask("textDocument/hover", at(&json!({"line": 0, "character": 0})));
    assert_eq!(c.answer(id)["error"]["code"], -32600);
    c.notify("exit", Value::Null);
    let (status, warning) = c.end();
    assert!(
        status.success() && warning.contains("textDocument/didChange: the parameters have no textDocument.uri"),
        "{warning}"
    );
    // An editor that vanishes, and something else than an editor.
    let mut c = Client::with(json!({}));
    let (status, text) = c.end();
    assert_eq!(status.code(), Some(1), "{text}");
    let mut c = Client::start();
    c.send_bytes(b"func @main() {}\n\n");
    let (status, text) = c.end();
    assert_eq!(status.code(), Some(2));
    assert!(text.contains("stdin holds no messages") && text.contains("docs/editor.md"), "{text}");
}

#[test]
fn malformed_documents_have_diagnostics() {
    let mut c = Client::with(json!({}));
    c.open(URI, "");
    assert_eq!(c.diagnostics(URI, 1), Vec::<Value>::new());
    let nested = |n: usize| format!("func @f(%x: tensor<f32>) {{\n{}", "  of.if %x {\n".repeat(n));
    let texts = [
        "\0\u{1}\u{feff}".to_string(),
        "}".repeat(3000),
        "{".repeat(3000),
        "tensor<".repeat(3000),
        "\"".to_string(),
        "func @f(".to_string(),
        "func @f() {\n  %a = of.constant {value = dense<\"0x".to_string() + &"f".repeat(100_000),
        nested(50),
        nested(5000),
        "func @f() { of.return }\nfunc @f() { of.return }".to_string(),
        "module {\nmodule {\n}\n}".to_string(),
        "é = 漢\r\n".repeat(100),
        "func @f() {\n".to_string() + &"  %a, %b = of.add %a, %c : (\n".repeat(2000),
        "<!DOCTYPE html>\n<p>no IR</p>".to_string(),
    ];
    for (version, text) in (2..).zip(&texts) {
        c.set(URI, version, text);
        let found = c.diagnostics(URI, version);
        assert!(!found.is_empty() && found.len() <= 500, "{}", &text[..text.len().min(40)]);
        for column in [0, 1, 10] {
            let place = at(&json!({"line": version % 3, "character": column}));
            for method in ["hover", "references", "documentSymbol", "completion"] {
                c.request(&format!("textDocument/{method}"), place.clone());
            }
        }
    }
    // Lines may end with a carriage return.
    let text = text().replace('\n', "\r\n");
    c.set(URI, 99, &text);
    assert_eq!(c.diagnostics(URI, 99), Vec::<Value>::new());
    assert!(hover(&mut c, &position(&text, "%y", 1, 1)).contains("%y: tensor<4x2xf32>"));
    c.exit();
}

#[test]
fn every_beginning_of_a_text_is_served() {
    let mut c = Client::with(json!({}));
    let text = text();
    c.open(URI, "");
    let cuts: Vec<usize> = text.char_indices().map(|(i, _)| i).collect();
    for (version, cut) in (2..).zip(cuts) {
        let part = &text[..cut];
        c.set(URI, version, part);
        let end = json!({"line": part.matches('\n').count(), "character": part.rsplit('\n').next().unwrap().encode_utf16().count()});
        let mut place = at(&end);
        place["range"] = json!({"start": end, "end": end});
        for method in
            ["hover", "definition", "references", "documentHighlight", "documentSymbol", "completion", "codeAction"]
        {
            c.request(&format!("textDocument/{method}"), place.clone());
        }
        c.others.clear();
    }
    c.exit();
}
