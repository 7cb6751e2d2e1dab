//! Provenance of optimized ops: the rules that made each op, and its source locations.

use std::fmt::Write;

use of_diag::Location;
use of_ir::Module;

use super::saturate::BY;

/// One entry for each op of `module` that `optimize` made, except constants: the op, the rules, and its source
/// locations.
pub fn rewrites(module: &Module) -> String {
    let mut out = String::new();
    for (name, func) in &module.funcs {
        for op in func.graph.walk() {
            let data = func.graph.op(op);
            let Some((rules, from)) = made(&data.loc).filter(|_| !data.def.traits().constant) else { continue };
            let types: Vec<String> = data.results.iter().map(|v| func.graph.ty(*v).to_string()).collect();
            let from: Vec<String> = from.iter().map(ToString::to_string).collect();
            let _ = writeln!(
                out,
                "@{name} {} : {}\n    by {rules}\n    from {}",
                data.name(),
                types.join(", "),
                from.join(", ")
            );
        }
    }
    out
}

/// The rules that made an op, where rules made it or an op that it derives from.
fn made(loc: &Location) -> Option<(String, Vec<&Location>)> {
    let Location::Derived { by, from } = loc else { return None };
    match by.strip_prefix(BY) {
        Some(rules) => Some((rules.replace('+', ", "), loc.roots())),
        None => from.iter().find_map(made),
    }
}
