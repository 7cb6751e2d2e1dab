//! A new pass: its file, its line in the list, and a lit test.

use std::path::Path;

use super::{camel, is_name, lists};
use crate::workspace::{read, write};

/// Writes everything.
///
/// # Errors
/// When the name is none or the pass exists.
pub fn pass(root: &Path, name: &str) -> Result<(), String> {
    if !is_name(name, '-') {
        return Err(format!("'{name}' is no name of a pass: lower-case words joined by '-'"));
    }
    let (ty, module) = (camel(name), name.replace('-', "_"));
    let source = root.join("passes/src");
    let (file, lib, list) = (source.join(format!("{module}.rs")), source.join("lib.rs"), source.join("list.rs"));
    let test = root.join("tests/lit").join(name).join("basic.of");
    if file.exists() || test.exists() {
        return Err(format!("'{name}' exists already"));
    }
    let new_lib = lists::add_module(&read(&lib)?, &module, &ty).ok_or("passes/src/lib.rs has no modules")?;
    let new_list = lists::add_pass(&read(&list)?, &module, &ty).ok_or("passes/src/list.rs has no list")?;
    let fill = |text: &str| text.replace("@name@", name).replace("@type@", &ty);
    write(&file, &fill(PASS))?;
    write(&test, &fill(TEST))?;
    write(&lib, &new_lib)?;
    write(&list, &new_list)?;
    println!(
        "wrote passes/src/{module}.rs and tests/lit/{name}/basic.of, and lines in passes/src/lib.rs and list.rs\n\nNext:"
    );
    println!("1. Write what one op becomes, in `rewrite`; options go into a `pass_options!` struct.");
    println!("2. Fill the lit test; 'cargo xtask bless tests/lit/{name}/basic.of' writes its CHECK lines.");
    println!("3. Add the pass to a pipeline in passes/src/pipelines.rs, if it should run by default.");
    println!("4. cargo run -- FILE.of --passes={name} --print-changed shows it at work.");
    Ok(())
}

const PASS: &str = r#"//! `@name@`: what it changes, and why that helps.

use of_diag::{Diagnostic, Diagnostics};
use of_ir::{Module, OpId, Rewriter};

use crate::{NoOptions, Pass, PassContext, each_op};

/// The pass.
pub struct @type@;

impl Pass for @type@ {
    const NAME: &'static str = "@name@";
    const SUMMARY: &'static str = "what it changes, in one line";
    type Options = NoOptions;

    fn run(_options: &NoOptions, module: &mut Module, cx: &mut PassContext<'_>) -> Result<(), Diagnostics> {
        let changes = each_op(module, Self::NAME, rewrite)?;
        cx.count("changes", changes);
        Ok(())
    }
}

/// Rewrites one op, and says whether it did.
fn rewrite(rw: &mut Rewriter<'_>, op: OpId) -> Result<bool, Diagnostic> {
    let _operands = &rw.graph().op(op).operands;
    Ok(false)
}
"#;

const TEST: &str = "\
// What would break if this test failed.
// RUN: of-opt %s --passes=@name@ | FileCheck %s

// CHECK-LABEL: func @main
func @main(%x: tensor<4xf32>) -> (tensor<4xf32>) {
  of.return %x
}
";
