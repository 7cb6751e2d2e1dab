//! No circle of imports between the files of a crate.
//!
//! Files that import each other in a circle can only be read, tested and moved together. The rule reads `use` declarations and paths
//! such as `crate::kernel::Nest`; a re-exported name counts as an import of the file that defines it. Test modules may import anything,
//! and the root of a crate is not checked, because it declares and re-exports modules.
//!
//! One kind of circle is allowed: a module and modules below it. The parent calls its children, and they use what it defines for all of
//! them. The children alone must be free of circles by the same rule.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::lexer;
use crate::workspace::read;

/// The source folders that are checked, one for each crate.
const SOURCES: &[&str] = &[
    "backends/cuda/src/",
    "backends/library/src/",
    "backends/mlir/src/",
    "backends/reference/src/",
    "backends/tensorrt/src/",
    "backends/xla/src/",
    "codegen/src/",
    "cuda-sys/src/",
    "diag/src/",
    "emit/src/",
    "files/src/",
    "frontend/src/",
    "passes/src/",
    "plan/src/",
    "runtime/src/",
    "sharding/src/",
    "tests/lit/src/",
    "tests/support/src/",
    "tools/cli/src/",
    "tools/lsp/src/",
    "tools/serve/src/",
    "xtask/src/",
];

/// Source folders in which circles inside one folder are allowed: an op and its gradient name each other.
const ACROSS_FOLDERS: &[&str] =
    &["driver/src/", "ir/src/", "onnx/src/", "ops/src/", "tests/fuzz/src/", "tools/of-opt/src/"];

/// A module, as the names from the root of the crate.
type Module = Vec<String>;

/// Every circle that is not a module with modules below it.
///
/// # Errors
/// When a file cannot be read.
pub fn check(root: &Path, files: &[PathBuf]) -> Result<Vec<String>, String> {
    let mut wrong = Vec::new();
    for sources in SOURCES.iter().chain(ACROSS_FOLDERS) {
        let mut code: BTreeMap<Module, String> = BTreeMap::new();
        for f in files {
            let name = f.to_string_lossy().replace('\\', "/");
            if let Some(inside) = name.strip_prefix(sources).filter(|n| n.ends_with(".rs")) {
                code.insert(module(inside), without_tests(&lexer::read(&read(&root.join(f))?)?.lines.join("\n")));
            }
        }
        let everywhere = SOURCES.contains(sources);
        let found = circles(&imports(&code)).into_iter().filter(|c| everywhere || folders(c).len() > 1);
        wrong.extend(found.map(|c| format!("{sources}: a circle of imports: {}", c.join(", "))));
    }
    Ok(wrong)
}

/// The module of a file.
fn module(file: &str) -> Module {
    let mut parts: Module = file.trim_end_matches(".rs").split('/').map(str::to_string).collect();
    if matches!(parts.last().map(String::as_str), Some("mod" | "lib")) {
        parts.pop();
    }
    parts
}

/// The code before the test module, which comes last.
fn without_tests(code: &str) -> String {
    code.split("#[cfg(test)]\nmod ").next().unwrap_or_default().to_string()
}

/// The folders of modules.
fn folders(circle: &[String]) -> BTreeSet<&str> {
    circle.iter().map(|m| m.rsplit_once("::").map_or("", |(folder, _)| folder)).collect()
}

/// For each module those that it imports. The root of the crate only declares modules, and is none.
fn imports(code: &BTreeMap<Module, String>) -> BTreeMap<String, BTreeSet<String>> {
    let exported = re_exports(code);
    let mut out = BTreeMap::new();
    for (own, text) in code.iter().filter(|(m, _)| !m.is_empty()) {
        let mut found: BTreeSet<String> = BTreeSet::new();
        let uses = declarations(text).into_iter().filter(|(public, _)| !public).map(|(_, path)| path);
        for path in uses.chain(inline_paths(&without_declarations(text))) {
            let Some((mut home, mut rest)) = resolve(own, &path, code) else { continue };
            while let Some(from) = rest.first().and_then(|name| exported.get(&(home.clone(), name.clone()))) {
                (home, rest) = from.clone();
            }
            if home != *own && !home.is_empty() {
                found.insert(home.join("::"));
            }
        }
        out.insert(own.join("::"), found);
    }
    out
}

/// Names that a module re-exports, with the module that they come from and what is left of the path there.
fn re_exports(code: &BTreeMap<Module, String>) -> BTreeMap<(Module, String), (Module, Vec<String>)> {
    let mut out = BTreeMap::new();
    for (own, text) in code {
        for (_, path) in declarations(text).into_iter().filter(|(public, _)| *public) {
            if let (Some(name), Some(target)) = (path.last().cloned(), resolve(own, &path, code))
                && target.0 != *own
            {
                out.insert((own.clone(), name), target);
            }
        }
    }
    out
}

/// The module that a path begins with, and what is left of the path; nothing for paths into other crates.
fn resolve(own: &Module, path: &[String], code: &BTreeMap<Module, String>) -> Option<(Module, Vec<String>)> {
    let mut rest = path;
    let mut home = match path.first()?.as_str() {
        "crate" => {
            rest = &rest[1..];
            Module::new()
        }
        "self" | "super" => own.clone(),
        _ => own.clone(),
    };
    while let Some(first) = rest.first().filter(|p| *p == "self" || *p == "super") {
        if first == "super" {
            home.pop();
        }
        rest = &rest[1..];
    }
    let absolute = path.len() != rest.len();
    let mut entered = false;
    while let Some(name) = rest.first() {
        let inner: Module = home.iter().chain([name]).cloned().collect();
        if !code.contains_key(&inner) {
            break;
        }
        (home, rest, entered) = (inner, &rest[1..], true);
    }
    (absolute || entered).then(|| (home, rest.to_vec()))
}

/// The paths of all `use` declarations, and whether these are public.
fn declarations(code: &str) -> Vec<(bool, Vec<String>)> {
    let mut out = Vec::new();
    for (at, _) in code.match_indices("use ") {
        let before = code[..at].lines().next_back().filter(|_| !code[..at].ends_with('\n')).unwrap_or_default();
        let public = before.trim_start().starts_with("pub");
        if !(before.trim().is_empty() || public) {
            continue;
        }
        let Some(end) = code[at..].find(';') else { continue };
        let mut paths = Vec::new();
        tree(&code[at + 4..at + end], &[], &mut paths);
        out.extend(paths.into_iter().map(|p| (public, p)));
    }
    out
}

/// The paths of a tree of a `use` declaration.
fn tree(text: &str, prefix: &[String], out: &mut Vec<Vec<String>>) {
    let text = text.trim();
    if let Some((head, list)) = text.split_once('{') {
        let names = head.split("::").map(str::trim).filter(|n| !n.is_empty()).map(str::to_string);
        let prefix: Vec<String> = prefix.iter().cloned().chain(names).collect();
        let list = &list[..list.rfind('}').unwrap_or(list.len())];
        let (mut depth, mut from) = (0, 0);
        for (at, c) in list.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    tree(&list[from..at], &prefix, out);
                    from = at + 1;
                }
                _ => {}
            }
        }
        tree(&list[from..], &prefix, out);
    } else if !text.is_empty() {
        let path = text.split(" as ").next().unwrap_or_default();
        let names = path.split("::").map(|n| n.trim().to_string()).filter(|n| n != "self" || prefix.is_empty());
        out.push(prefix.iter().cloned().chain(names).collect());
    }
}

/// The code without its `use` declarations.
fn without_declarations(code: &str) -> String {
    let mut inside = false;
    let mut keep = |line: &&str| {
        let line = line.trim_start();
        let head =
            line.split_once(' ').map_or(line, |(first, rest)| if first.starts_with("pub") { rest } else { line });
        inside |= head.starts_with("use ");
        let kept = !inside;
        inside &= !line.contains(';');
        kept
    };
    code.lines().filter(|l| keep(l)).collect::<Vec<_>>().join("\n")
}

/// Paths in code with two names or more.
fn inline_paths(code: &str) -> Vec<Vec<String>> {
    let mut out = Vec::new();
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let mut rest = code;
    while let Some(start) = rest.find(is_name) {
        let tail = &rest[start..];
        let end = tail.find(|c| !(is_name(c) || c == ':')).unwrap_or(tail.len());
        let path: Vec<String> = tail[..end].split("::").map(str::to_string).collect();
        if path.len() > 1 && path.iter().all(|n| !n.is_empty() && n.chars().all(is_name)) {
            out.push(path);
        }
        rest = &tail[end..];
    }
    out
}

/// Circles that are not allowed: those of strongly connected modules. In a component that consists of a module and modules below it,
/// only the modules below are searched.
fn circles(imports: &BTreeMap<String, BTreeSet<String>>) -> Vec<Vec<String>> {
    let mut out = Vec::new();
    for component in components(imports) {
        match parent(&component) {
            None => out.push(component.into_iter().collect()),
            Some(parent) => {
                let below = component.iter().filter(|m| *m != parent);
                out.extend(circles(
                    &below
                        .map(|m| (m.clone(), &imports[m] & &component))
                        .map(|(m, mut used)| {
                            used.remove(parent);
                            (m, used)
                        })
                        .collect(),
                ));
            }
        }
    }
    out
}

/// The module of a component that all its others are below of.
fn parent(component: &BTreeSet<String>) -> Option<&String> {
    component.iter().find(|p| component.iter().all(|m| m == *p || m.starts_with(&format!("{p}::"))))
}

/// Strongly connected modules, two or more in each component.
fn components(imports: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<BTreeSet<String>> {
    let reach = |from: &String| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(m) = open.pop() {
            open.extend(imports.get(m).into_iter().flatten().filter(|n| seen.insert((*n).clone())));
        }
        seen
    };
    let all: BTreeMap<&String, BTreeSet<String>> = imports.keys().map(|m| (m, reach(m))).collect();
    let mut out = BTreeSet::new();
    for (m, reached) in &all {
        let together: BTreeSet<String> =
            reached.iter().filter(|n| all.get(n).is_some_and(|back| back.contains(*m))).cloned().collect();
        if together.len() > 1 {
            out.insert(together);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(files: &[(&str, &str)]) -> BTreeMap<Module, String> {
        files.iter().map(|(f, text)| (module(f), without_tests(text))).collect()
    }

    fn found(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        circles(&imports(&code(files)))
    }

    #[test]
    fn circles_are_found_inside_a_folder_and_across_folders() {
        let files = [
            ("a/mod.rs", "pub mod x;\npub use x::X;"),
            ("a/x.rs", "use crate::b::y::{\n  self, Y};"),
            ("b/mod.rs", "pub mod y;"),
            ("b/y.rs", "fn f(_: crate::a::X) {}"),
        ];
        assert_eq!(found(&files), [["a::x", "b::y"]]);
        assert_eq!(found(&[files[0], files[1], files[2], ("b/y.rs", "use of_ir::a::X;")]), Vec::<Vec<String>>::new());
        let inside = [("a/mod.rs", "mod x;\nmod y;"), ("a/x.rs", "use super::y::Y;"), ("a/y.rs", "use super::x::X;")];
        assert_eq!(found(&inside), [["a::x", "a::y"]]);
    }

    #[test]
    fn a_module_and_its_children_may_import_each_other() {
        let parent = ("a/mod.rs", "mod x;\nmod y;\nuse x::X;\nuse y::Y;");
        let children = [("a/x.rs", "use super::T;"), ("a/y.rs", "use super::{T, x::X};")];
        assert_eq!(found(&[parent, children[0], children[1]]), Vec::<Vec<String>>::new());
        let circle = ("a/x.rs", "use super::{T, y::Y};");
        assert_eq!(found(&[parent, circle, children[1]]), [["a::x", "a::y"]]);
        let outside = [("a/x.rs", "use crate::b::B;"), ("b.rs", "use crate::a::T;")];
        assert_eq!(found(&[parent, outside[0], children[1], outside[1]]), [["a", "a::x", "a::y", "b"]]);
    }

    #[test]
    fn tests_may_import_anything() {
        let tests = "#[cfg(test)]\nmod tests {\n  use crate::b::Y;\n}";
        let files = [("a/x.rs", tests), ("a/mod.rs", "mod x;"), ("b.rs", "use crate::a::x::X;")];
        assert_eq!(found(&files), Vec::<Vec<String>>::new());
    }

    #[test]
    fn re_exports_are_not_imports() {
        let files = [
            ("a/mod.rs", "mod b;\npub(crate) use b::f;\npub struct T;"),
            ("a/b.rs", "use crate::c::g;"),
            ("c.rs", "use crate::a::T;\nfn g() {}"),
        ];
        assert_eq!(found(&files), Vec::<Vec<String>>::new());
    }

    #[test]
    fn nested_trees_and_children_are_imports() {
        let mut paths = Vec::new();
        tree("crate::a::{self, b::{C, D as E}, f}", &[], &mut paths);
        let text: Vec<String> = paths.iter().map(|p| p.join("::")).collect();
        assert_eq!(text, ["crate::a", "crate::a::b::C", "crate::a::b::D", "crate::a::f"]);
        let files = code(&[("a/mod.rs", "mod b;\nuse b::C;"), ("a/b.rs", "use super::T;")]);
        let imports = imports(&files);
        assert_eq!(imports["a"], BTreeSet::from(["a::b".to_string()]));
        assert_eq!(imports["a::b"], BTreeSet::from(["a".to_string()]));
    }
}
