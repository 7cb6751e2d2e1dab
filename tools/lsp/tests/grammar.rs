//! The grammars of editors, compared with the lexer and the declarations of ops.

use std::fs;
use std::path::{Path, PathBuf};

use of_ir::DType;
use of_ir::text::{TokenKind, tokens};
use regex::Regex;
use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A rule of a TextMate grammar. Those of this grammar have no assertions but `\b`, so `regex` can match them.
struct Rule {
    name: Option<String>,
    begin: Regex,
    end: Option<Regex>,
    /// The scopes of groups: those of `captures` or `beginCaptures`.
    groups: Vec<(usize, String)>,
    inner: Vec<String>,
}

struct Grammar {
    json: Value,
    rules: std::collections::HashMap<String, Vec<Rule>>,
}

impl Grammar {
    fn load() -> Grammar {
        let text = fs::read_to_string(root().join("editors/vscode/syntaxes/of.tmLanguage.json")).unwrap();
        let json: Value = serde_json::from_str(&text).unwrap();
        let mut g = Grammar { json, rules: Default::default() };
        let lists: Vec<String> = g.json["repository"].as_object().unwrap().keys().cloned().collect();
        for name in lists {
            let own = &g.json["repository"][&name];
            let inner = own["patterns"].as_array().cloned().unwrap_or_default();
            let rules =
                if own["begin"].is_string() || own["match"].is_string() { vec![own.clone()] } else { inner.clone() };
            let rules = rules.iter().filter(|r| !r["include"].is_string()).map(rule).collect();
            g.rules.insert(name.clone(), rules);
            // Rules that stand inside of a region.
            if own["begin"].is_string() {
                let inside = inner.iter().filter(|r| !r["include"].is_string()).map(rule).collect();
                g.rules.insert(format!("{name}/inside"), inside);
            }
        }
        g
    }

    /// The rules that apply inside of a list, in their order.
    fn candidates<'a>(&'a self, list: &str, seen: &mut Vec<String>, out: &mut Vec<&'a Rule>) {
        if seen.iter().any(|s| s == list) {
            return;
        }
        seen.push(list.to_owned());
        let (name, inside) = list.strip_suffix("/inside").map_or((list, false), |n| (n, true));
        let own = &self.json["repository"][name];
        assert!(own.is_object(), "the grammar has no '{name}'");
        if own["patterns"].is_null() || (own["begin"].is_string() && !inside) {
            return out.extend(&self.rules[name]);
        }
        let mut plain = self.rules[list].iter();
        for p in own["patterns"].as_array().unwrap() {
            match p["include"].as_str() {
                Some(i) => self.candidates(i.trim_start_matches('#'), seen, out),
                None => out.extend(plain.next()),
            }
        }
    }

    /// The scope of every byte of a line; `open` are the regions that are open.
    fn scopes(&self, line: &str, open: &mut Vec<String>) -> Vec<String> {
        let mut scopes = vec![String::new(); line.len()];
        let mut at = 0;
        while at < line.len() {
            let list = open.last().cloned().unwrap_or("all".into());
            let mut rules = Vec::new();
            self.candidates(&list, &mut Vec::new(), &mut rules);
            let end = open.last().map(|o| {
                let own = &self.json["repository"][o.trim_end_matches("/inside")];
                Regex::new(own["end"].as_str().unwrap()).unwrap()
            });
            let close = end.as_ref().and_then(|e| e.find_at(line, at));
            let first = rules
                .iter()
                .filter_map(|r| Some((r.begin.captures_at(line, at)?, *r)))
                .min_by_key(|(m, _)| m.get(0).unwrap().start());
            match (first, close) {
                (Some((m, _)), Some(c)) if c.start() <= m.get(0).unwrap().start() => {
                    open.pop();
                    at = c.end();
                }
                (Some((m, r)), _) => {
                    let all = m.get(0).unwrap();
                    assert!(!all.is_empty(), "a rule matches nothing in {line:?}");
                    let name = r.name.clone().unwrap_or_default();
                    scopes[all.range()].fill(name);
                    for (i, scope) in &r.groups {
                        if let Some(g) = m.get(*i) {
                            scopes[g.range()].fill(scope.clone());
                        }
                    }
                    if r.end.is_some() {
                        open.push(r.inner[0].clone());
                    }
                    at = all.end();
                }
                (None, Some(c)) => {
                    open.pop();
                    at = c.end();
                }
                (None, None) => break,
            }
        }
        scopes
    }
}

fn rule(r: &Value) -> Rule {
    let regex = |key: &str| r[key].as_str().map(|t| Regex::new(t).unwrap_or_else(|e| panic!("{e}")));
    let captures = if r["begin"].is_string() { &r["beginCaptures"] } else { &r["captures"] };
    let groups = captures.as_object().into_iter().flatten();
    let groups = groups.map(|(i, c)| (i.parse().unwrap(), c["name"].as_str().unwrap().to_owned())).collect();
    let begin = regex("begin").or(regex("match")).expect("a rule has begin or match");
    // Regions of this grammar are entries of the repository, found by their first pattern.
    let inner = match r["begin"].as_str() {
        Some(b) if b.contains("tensor") => vec!["tensor/inside".to_owned()],
        Some(b) if b.starts_with("(#of") => vec!["placement/inside".to_owned()],
        Some("\\(") => vec!["dimension/inside".to_owned()],
        _ => Vec::new(),
    };
    Rule { name: r["name"].as_str().map(str::to_owned), begin, end: regex("end"), groups, inner }
}

/// All texts of the repository that parse.
fn texts() -> Vec<String> {
    fn walk(dir: &Path, out: &mut Vec<String>) {
        for e in fs::read_dir(dir).unwrap() {
            let path = e.unwrap().path();
            if path.is_dir() {
                walk(&path, out);
            } else if path.extension().is_some_and(|e| e == "of") {
                out.push(fs::read_to_string(path).unwrap());
            }
        }
    }
    let mut all = Vec::new();
    walk(&root().join("tests/lit"), &mut all);
    walk(&root().join("examples"), &mut all);
    assert!(all.len() > 100);
    all
}

#[test]
fn tokens_have_the_scopes_of_their_kind() {
    let g = Grammar::load();
    let registry = of_ops::registry();
    let (mut checked, mut ops) = (0, 0);
    for text in texts() {
        let (mut start, mut open) = (0, Vec::new());
        for line in text.split_inclusive('\n') {
            let (from, line) = (start, line.trim_end_matches('\n'));
            start += line.len() + 1;
            // A long constant takes long in the small engine of this test.
            if line.len() > 2000 {
                continue;
            }
            let scopes = g.scopes(line, &mut open);
            for t in tokens(line, 0) {
                let (kind, word) = (t.kind, &line[t.start..t.end]);
                let scope = &scopes[t.start];
                let want = match kind {
                    TokenKind::Value => "variable.",
                    TokenKind::Symbol => "entity.name.function",
                    TokenKind::Str => "string.",
                    TokenKind::Hash => "entity.other.attribute-name",
                    TokenKind::Bang => "storage.type",
                    TokenKind::Block => "entity.name.label",
                    TokenKind::Ident if registry.get(word).is_some() => "support.function",
                    TokenKind::Ident if matches!(word, "func" | "module" | "attributes" | "loc") => "keyword.control",
                    _ => continue,
                };
                checked += 1;
                ops += usize::from(want == "support.function");
                assert!(
                    scope.starts_with(want) && scopes[t.end - 1] == *scope,
                    "'{word}' has scope '{scope}' at byte {} of\n{line}",
                    from + t.start
                );
            }
            if let Some(comment) = line.find("//").filter(|c| !tokens(line, 0).any(|t| t.start <= *c && *c < t.end)) {
                assert!(scopes[comment..].iter().all(|s| s.starts_with("comment.")), "{line}");
            }
        }
        assert!(open.is_empty(), "{open:?} stay open in\n{text}");
    }
    assert!(checked > 4000 && ops > 1000, "{checked} {ops}");
}

#[test]
fn every_op_and_element_type_is_coloured() {
    let g = Grammar::load();
    for op in of_ops::registry().iter() {
        let line = format!("  %x = {} %y", op.name());
        let scopes = g.scopes(&line, &mut Vec::new());
        let name = line.find(op.name()).unwrap()..line.len() - 3;
        assert!(scopes[name].iter().all(|s| s == "support.function.of"), "{line}");
    }
    let vim = fs::read_to_string(root().join("editors/neovim/syntax/of.vim")).unwrap();
    assert!(vim.contains("syntax keyword ofKeyword func module attributes loc"));
    for dtype in DType::ALL {
        let line = format!("tensor<4x?(N*2)x8x{}>", dtype.mlir_name());
        let mut open = Vec::new();
        let scopes = g.scopes(&line, &mut open);
        let at = line.find(dtype.mlir_name()).unwrap();
        assert!(scopes[at].starts_with("storage.type") && scopes[line.len() - 2] == scopes[at], "{line}: {scopes:?}");
        assert!(open.is_empty(), "{line}");
        assert_eq!(scopes[line.find('N').unwrap()], "variable.parameter.of");
    }
}
