//! `of_runtime.h` declares what the library exports: the same functions, structs and numbers.

use std::collections::BTreeSet;

use of_plan::ElementType;

const HEADER: &str = include_str!("../include/of_runtime.h");
const ABI: &str = include_str!("../src/abi.rs");
const FUNCTIONS: [&str; 7] = [
    include_str!("../src/error.rs"),
    include_str!("../src/plan.rs"),
    include_str!("../src/ranks.rs"),
    include_str!("../src/session.rs"),
    include_str!("../src/signed.rs"),
    include_str!("../src/value.rs"),
    include_str!("../src/variables.rs"),
];

/// A Rust type in C.
fn c_type(rust: &str) -> String {
    let pointer = |inner: &str, constant: bool| match (c_type(inner), constant) {
        (inner, true) if inner.ends_with('*') => format!("{inner}const*"),
        (inner, true) => format!("const {inner}*"),
        (inner, false) => format!("{inner}*"),
    };
    if let Some(inner) = rust.strip_prefix("*const ") {
        return pointer(inner, true);
    }
    if let Some(inner) = rust.strip_prefix("*mut ") {
        return pointer(inner, false);
    }
    let name = match rust {
        "u32" => "uint32_t",
        "i32" => "int32_t",
        "u64" => "uint64_t",
        "i64" => "int64_t",
        "usize" => "size_t",
        "c_char" => "char",
        "c_void" => "void",
        "Plan" => "of_plan",
        "Session" => "of_session",
        "SessionOptions" => "of_session_options",
        "RankOptions" => "of_rank_options",
        "Tensor" => "of_tensor",
        "Port" => "of_port",
        "Value" => "of_value",
        "Status" => "of_status",
        other => panic!("the header has no type for `{other}`"),
    };
    name.into()
}

/// `name: type, …` of Rust as declarations in C.
fn declarations(rust: &str) -> Vec<String> {
    let parts = rust.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts.map(|part| part.split_once(": ").unwrap()).map(|(name, ty)| format!("{} {name}", c_type(ty))).collect()
}

/// A normal form of C text: one space between words, none around punctuation.
fn normal(c: &str) -> String {
    let words = c.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut out = String::new();
    for character in words.chars() {
        if "*(),{};".contains(character) && out.ends_with(' ') {
            out.pop();
        }
        if character != ' ' || !out.ends_with(['*', '(', ',', ')', '{', ';', '}']) {
            out.push(character);
        }
    }
    out
}

/// The header without comments and directives.
fn header() -> String {
    let mut text = String::new();
    let mut rest = HEADER;
    while let Some((before, comment)) = rest.split_once("/*") {
        text += before;
        rest = comment.split_once("*/").unwrap().1;
    }
    text += rest;
    text.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n")
}

#[test]
fn functions_agree() {
    let mut exported = BTreeSet::new();
    for text in FUNCTIONS {
        for function in text.split("#[unsafe(no_mangle)]").skip(1) {
            let signature = function.split_once("extern \"C\" fn ").unwrap().1.split_once('{').unwrap().0;
            let signature = signature.split_whitespace().collect::<Vec<_>>().join(" ");
            let (name, rest) = signature.split_once('(').unwrap();
            let (arguments, result) = rest.rsplit_once(')').unwrap();
            let result = result.trim().strip_prefix("-> ").map_or("void".into(), c_type);
            let arguments = declarations(arguments).join(",");
            let arguments = if arguments.is_empty() { "void" } else { &arguments };
            exported.insert(normal(&format!("{result} {name}({arguments})")));
        }
    }
    let declared: BTreeSet<String> = header()
        .split([';', '{', '}'])
        .filter(|statement| statement.contains('('))
        .map(normal)
        .filter(|statement| !statement.starts_with("extern"))
        .collect();
    assert_eq!(declared, exported);
    assert!(exported.len() > 15, "{exported:?}");
}

#[test]
fn structs_agree() {
    let header = normal(&header());
    let structs: Vec<&str> = ABI.split("#[repr(C)]\n").skip(1).collect();
    for text in &structs {
        let (name, fields) = text.strip_prefix("pub struct ").unwrap().split_once(" {").unwrap();
        let fields = fields.split_once("\n}").unwrap().0;
        let fields = fields.lines().filter_map(|line| line.trim().strip_prefix("pub "));
        let fields = declarations(&fields.collect::<Vec<_>>().join(" "));
        let fields: String = fields.iter().map(|field| format!("{field};")).collect();
        let name = c_type(name);
        let expected = normal(&format!("typedef struct {name} {{{fields}}} {name};"));
        assert!(header.contains(&expected), "{expected}\n{header}");
    }
    assert_eq!(structs.len(), 4);
}

#[test]
fn numbers_agree() {
    let header = normal(&header());
    for (rust, prefix, count) in [("Status", "OF", 13), ("ValueKind", "OF_VALUE", 3)] {
        let items = ABI.split_once(&format!("pub enum {rust} {{")).unwrap().1.split_once("\n}").unwrap().0;
        let items = items.lines().filter_map(|line| line.trim().strip_suffix(',')?.split_once(" = "));
        let upper = |(i, c): (usize, char)| {
            if i > 0 && c.is_uppercase() { format!("_{c}") } else { c.to_uppercase().to_string() }
        };
        let name = |name: &str| name.chars().enumerate().map(upper).collect::<String>();
        let items: Vec<String> = items.map(|(item, number)| format!("{prefix}_{} = {number}", name(item))).collect();
        assert_eq!(items.len(), count);
        items.iter().for_each(|item| assert!(in_enum(&header, item), "{item}"));
    }
    assert_eq!(header.matches("OF_VALUE_").count(), 3);
    for dtype in ElementType::ALL {
        let expected = format!("OF_TYPE_{} = {}", dtype.name().to_uppercase(), *dtype as i32);
        assert!(in_enum(&header, &expected), "{expected}");
    }
    assert_eq!(header.matches("OF_TYPE_").count(), ElementType::ALL.len());
    let version = ABI.split_once("OF_RUNTIME_ABI_VERSION: u32 = ").unwrap().1.split_once(';').unwrap().0;
    assert!(HEADER.contains(&format!("#define OF_RUNTIME_ABI_VERSION {version}\n")));
}

fn in_enum(header: &str, item: &str) -> bool {
    [',', '}'].iter().any(|end| header.contains(&format!("{item}{end}")))
}
