//! Places of names in a text, also in one with errors.

use super::{random, read_indexed, show};
use crate::text::{FuncSource, Indexed, Span, TokenKind, tokens};

/// Checks that all places are in the text, hold what they should, and that all ids exist.
pub(super) fn check(text: &str, indexed: &Indexed) {
    let get = |s: Span| text.get(s.start..s.end).unwrap_or_else(|| panic!("{s:?} is not in the text"));
    for m in &indexed.index.meshes {
        get(m.at);
    }
    for f in &indexed.index.funcs {
        get(f.name);
        get(f.whole);
        assert!(f.names.is_sorted_by_key(|n| n.at) && f.ops.is_sorted_by_key(|o| o.whole.start));
        let func = indexed.module.funcs.get(&f.symbol);
        assert!(!f.in_module || func.is_some());
        for n in &f.names {
            assert!(get(n.at).starts_with('%'));
            assert!(f.definition_of(n).is_some());
            if f.in_module {
                assert!(func.is_some_and(|f| n.value.index() + n.count as usize <= f.graph.value_slots()));
            }
        }
        for o in &f.ops {
            get(o.name);
            get(o.whole);
            assert!(o.whole.start <= o.name.start && o.name.end <= o.whole.end);
            if let (true, Some(op)) = (f.in_module, o.op) {
                assert!(func.is_some_and(|f| f.graph.is_live(op)));
            }
        }
    }
}

fn func<'a>(indexed: &'a Indexed, name: &str) -> &'a FuncSource {
    indexed.index.funcs.iter().find(|f| f.symbol == name).unwrap()
}

/// The places of a name with what they hold, `*` at the definition.
fn names(text: &str, f: &FuncSource, at: usize) -> Vec<String> {
    let name = f.name_at(at).unwrap();
    let show = |n: &crate::text::NameSource| {
        format!("{}{}@{}", if n.is_definition { "*" } else { "" }, &text[n.at.start..n.at.end], n.at.start)
    };
    f.names_of(name).map(show).collect()
}

#[test]
fn names_in_regions_shadow_nothing_and_end_with_them() {
    let text = "func @f(%c: none) {
  %a:2 = t.any %c : (none) -> (none, none)
  %r = t.if %a#1 : (none) -> none {
    %i = t.same %a : (none) -> none
    t.yield %i : (none) -> ()
  }, {
    %i = t.same %a#1 : (none) -> none
    t.yield %i : (none) -> ()
  }
  t.return %r : (none) -> ()
}
";
    let indexed = read_indexed(text);
    assert!(indexed.errors.0.is_empty(), "{}", indexed.errors);
    check(text, &indexed);
    let f = func(&indexed, "f");
    assert_eq!(&text[f.whole.start..f.whole.end], text.trim_end());
    let at = |what: &str| text.find(what).unwrap();
    assert_eq!(names(text, f, at("%a:2") + 1), ["*%a@22", "%a#1@75", "%a@115", "%a#1@188"]);
    assert_eq!(names(text, f, at("%i") + 2).len(), 2);
    assert!(f.name_at(at("t.any")).is_none());
    let op = f.op_at(at("t.same")).unwrap();
    assert_eq!(&text[op.name.start..op.name.end], "t.same");
    let outer = f.op_at(at("}, {")).unwrap();
    assert_eq!(&text[outer.name.start..outer.name.end], "t.if");
    assert!(text[outer.whole.start..outer.whole.end].ends_with("  }"));
    let graph = &indexed.module.funcs["f"].graph;
    let uses: Vec<usize> = f.names.iter().map(|n| n.value.index()).collect();
    assert_eq!(uses.len(), 12);
    assert_eq!(graph.op(op.op.unwrap()).name(), "t.same");
}

#[test]
fn parsing_goes_on_after_errors_of_syntax() {
    let text = "func @f(%x: none) -> (none) {
  %a = t.any %x, : (none) -> none
  %b = t.same %a : (none -> none
  %c = t.if %b : (none) -> none {
    %d = ) t.any
    t.yield %d
  }, {
    t.yield %b {a = [1, }
  }
  %e =
  %g = t.same %c : (none) -> none
  t.return %g : (none) -> ()

func @g() {
  t.return =
}
func @h( {
}
func @i() { t.return }
";
    let indexed = read_indexed(text);
    check(text, &indexed);
    let found: Vec<String> = indexed.errors.0.iter().map(|d| d.to_string().lines().next().unwrap().into()).collect();
    let want = [
        "t.of:2:18: error[E0101]: expected an operand, found ':'",
        "t.of:3:26: error[E0101]: expected ',' or ')' in the operand types, found '->'",
        "t.of:5:10: error[E0101]: expected an op, found ')'",
        "t.of:8:25: error[E0101]: expected an attribute, found '}'",
        "t.of:11:3: error[E0101]: expected an op, found '%g'",
        "t.of:14:1: error[E0101]: expected '}' after the region, found 'func'",
        "t.of:15:12: error[E0101]: expected an op, found '='",
        "t.of:17:10: error[E0101]: expected an argument, found '{'",
    ];
    assert_eq!(found, want);
    let f = func(&indexed, "f");
    let at = |what: &str| text.find(what).unwrap();
    assert_eq!(names(text, f, at("%c") + 1), ["*%c@99", "%c@221"]);
    assert_eq!(names(text, f, at("%b") + 1).len(), 3);
    assert_eq!(names(text, f, at("%g") + 1).len(), 2);
    assert!(func(&indexed, "i").in_module && func(&indexed, "g").in_module);
}

#[test]
fn every_beginning_of_a_text_can_be_indexed() {
    for seed in 0..30 {
        let text = show(&random::module(seed), seed % 2 == 0);
        if text.len() > 3000 {
            continue;
        }
        for (at, _) in text.char_indices() {
            check(&text[..at], &read_indexed(&text[..at]));
        }
    }
}

#[test]
fn errors_out_of_order_take_linear_time() {
    let mut text = String::from("func @f() {\n");
    for _ in 0..60_000 {
        text += "  %x = t.any : () -> none\n";
    }
    text += "  t.return : () -> ()\n}\n";
    let indexed = read_indexed(&text);
    assert_eq!(indexed.errors.0.len(), 59_999);
    assert_eq!(indexed.errors.0[0].notes, ["the first definition is at t.of:2:3"]);
}

#[test]
fn tokens_begin_anywhere() {
    let text = "é %a = \"é\" // é\n of.x";
    for at in 0..=text.len() + 1 {
        let found: Vec<_> = tokens(text, at).collect();
        assert!(found.iter().all(|t| t.start >= at && text.get(t.start..t.end).is_some()));
    }
    let kinds: Vec<_> = tokens(text, 3).map(|t| t.kind).collect();
    assert_eq!(kinds, [TokenKind::Value, TokenKind::Punct(b'='), TokenKind::Str, TokenKind::Ident]);
}
