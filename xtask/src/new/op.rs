//! A new op: its file, its lines in the family's module and in the list.

use std::path::Path;

use super::{camel, is_name, lists};
use crate::workspace::{read, write};

/// Writes everything.
///
/// # Errors
/// When the arguments make no sense or the op exists.
pub fn op(root: &Path, name: &str, kind: &str, family: &str) -> Result<(), String> {
    let name = name.strip_prefix("of.").unwrap_or(name);
    if !is_name(name, '_') {
        return Err(format!("'{name}' is no name of an op: lower-case words joined by '_'"));
    }
    let ty = camel(name);
    let body = match kind {
        "primitive" => PRIMITIVE,
        "composite" => COMPOSITE,
        other => return Err(format!("--kind is primitive or composite, not '{other}'")),
    };
    let folder = root.join("ops/src").join(family);
    let (module, list) = (folder.join("mod.rs"), root.join("ops/src/list.rs"));
    let file = folder.join(format!("{name}.rs"));
    if !module.is_file() {
        return Err(format!("there is no family '{family}' in ops/src"));
    }
    let list_text = read(&list)?;
    if file.exists() || list_text.contains(&format!("::{ty},")) {
        return Err(format!("'of.{name}' exists already"));
    }
    let new_list =
        lists::add_op(&list_text, family, &ty).ok_or(format!("ops/src/list.rs has no section '{family}'"))?;
    let new_module =
        lists::add_module(&read(&module)?, name, &ty).ok_or(format!("ops/src/{family}/mod.rs has no modules"))?;
    write(&file, &fill(body, name, &ty, kind))?;
    write(&module, &new_module)?;
    write(&list, &new_list)?;
    println!("wrote ops/src/{family}/{name}.rs, and lines in ops/src/{family}/mod.rs and ops/src/list.rs\n\nNext:");
    println!("1. Write the documentation, operands, attributes and samples at the top of the file.");
    println!(
        "2. Write `infer`, then `{}`.",
        if kind == "primitive" { "eval` (and `scalar` if it is elementwise)" } else { "expand" }
    );
    println!("3. Write `sbp` and `gradient` where it has them.");
    println!("4. cargo test -p of-ops: the tests over the whole list check the rest.");
    println!("An ONNX operator that maps to it one to one needs no more than its name after `onnx:`.");
    Ok(())
}

fn fill(body: &str, name: &str, ty: &str, kind: &str) -> String {
    let kind = if kind == "primitive" { "Primitive" } else { "Composite" };
    body.replace("NAME", name).replace("TYPE", ty).replace("KIND", kind)
}

const PRIMITIVE: &str = r#"//! `of.NAME`.

use of_ir::{OpError, OpView, Type};

use crate::sample::Rng;
use crate::{Evaluated, Inferred, Inputs, Op, op, op_basics};

op! {
    /// What it computes, in one line.
    ///
    /// The formula, what happens at its edges, and where the definition comes from.
    pub struct TYPE = "of.NAME" [KIND] {
        operands: (x),
        results: (y),
        attrs: {},
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let dims = r.dims(2, 1, 4);
        Some((vec![r.f32s(&dims)], TYPE {}))
    };
}

impl Op for TYPE {
    op_basics!(TYPE);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        Ok(vec![Type::Tensor(cx.tensor(0)?.clone())])
    }

    fn eval(&self, _inputs: &mut Inputs<'_>) -> Evaluated {
        Err(OpError::eval("of.NAME is declared and not yet written"))
    }
}
"#;

const COMPOSITE: &str = r#"//! `of.NAME`.

use of_diag::{Code, Diagnostic, Location};
use of_ir::{OpView, Rewriter, Type, ValueId};

use crate::sample::Rng;
use crate::{Expanded, Inferred, Op, op, op_basics};

op! {
    /// What it computes, in one line.
    ///
    /// The formula, what happens at its edges, and where the definition comes from.
    pub struct TYPE = "of.NAME" [KIND] {
        operands: (x),
        results: (y),
        attrs: {},
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let dims = r.dims(2, 1, 4);
        Some((vec![r.f32s(&dims)], TYPE {}))
    };
}

impl Op for TYPE {
    op_basics!(TYPE);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        Ok(vec![Type::Tensor(cx.tensor(0)?.clone())])
    }

    fn expand(&self, _rw: &mut Rewriter<'_>, _operands: &[ValueId]) -> Expanded {
        Err(Diagnostic::error(Code::CODEGEN, Location::Unknown, "of.NAME is declared and not yet written"))
    }
}
"#;
