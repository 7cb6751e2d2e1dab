//! Tests of the pass manager.

use of_ir::text::parse_module;

use super::*;
use crate::NoOptions;

const TEXT: &str = "func @main(%x: tensor<4xf32>) -> (tensor<4xf32>) {
  %unused = of.exp %x
  %y = of.neg %x
  of.return %y
}
";

fn module() -> Module {
    parse_module(TEXT, "test.of", &of_ops::registry(), None).unwrap()
}

struct Panics;
impl Pass for Panics {
    const NAME: &'static str = "panics";
    const SUMMARY: &'static str = "panics";
    type Options = NoOptions;
    fn run(_: &NoOptions, module: &mut Module, _: &mut PassContext<'_>) -> Result<(), Diagnostics> {
        module.funcs.clear();
        panic!("on purpose")
    }
}

struct Breaks;
impl Pass for Breaks {
    const NAME: &'static str = "breaks";
    const SUMMARY: &'static str = "breaks the module";
    type Options = NoOptions;
    fn run(_: &NoOptions, module: &mut Module, cx: &mut PassContext<'_>) -> Result<(), Diagnostics> {
        cx.count("broken", 1);
        cx.warn(Diagnostic::warning(Code::PIPELINE, Location::Unknown, "about to break"));
        module.funcs[0].inputs.clear();
        Ok(())
    }
}

fn run(m: &Manager, module: &mut Module) -> (Result<Report, Diagnostics>, String) {
    let mut out = String::new();
    let r = m.run(module, &mut |s| out.push_str(s));
    (r, out)
}

#[test]
fn passes_run_in_order_and_are_reported() {
    let mut m = module();
    let manager = Manager::parse("simplify,print").unwrap();
    assert!(manager.text().ends_with("cse,dce,print"), "{}", manager.text());
    let (report, out) = run(&manager, &mut m);
    let report = report.unwrap();
    assert!(out.contains("of.neg") && !out.contains("of.exp"), "{out}");
    let dce = report.passes.iter().find(|p| p.ops_after < p.ops_before).unwrap();
    assert_eq!((dce.ops_before, dce.ops_after), (3, 2));
    assert!(report.table().to_string().contains("3 -> 2"));
}

#[test]
fn print_changed_prints_each_change_once() {
    let mut manager = Manager::parse("dce,dce,cse").unwrap();
    manager.settings.print_changed = true;
    let (_, out) = run(&manager, &mut module());
    assert_eq!(out.matches("IR changes by").count(), 1, "{out}");
    assert!(out.starts_with("// -----// IR changes by dce //----- //\n@@ "), "{out}");
    assert!(out.contains("\n-  ") && !out.contains("\n+"), "{out}");
    manager.settings = Settings { print_after: vec!["cse".into()], ..Settings::default() };
    let (_, out) = run(&manager, &mut module());
    assert_eq!(out.matches("IR after cse").count(), 1, "{out}");
}

#[test]
fn modules_are_printed_before_passes_and_written_to_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    let mut manager = Manager::parse("dce,cse").unwrap();
    let (print_before, print_dir) = (vec!["dce".into()], Some(dir.path().join("ir")));
    manager.settings = Settings { print_before, print_dir, ..Settings::default() };
    let (_, out) = run(&manager, &mut module());
    assert!(out.starts_with("// -----// IR before dce //----- //\n") && out.contains("of.exp"), "{out}");
    let read = |name: &str| std::fs::read_to_string(dir.path().join("ir").join(name)).unwrap();
    assert!(read("00-input.of").contains("of.exp") && !read("01-dce.of").contains("of.exp"));
    assert_eq!(read("01-dce.of"), read("02-cse.of"));
}

#[test]
fn panicking_pass_writes_a_reproducer() {
    let dir = tempfile::tempdir().unwrap();
    let mut manager = Manager::parse("dce").unwrap();
    manager.add::<Panics>(NoOptions).add::<crate::verify::Verify>(NoOptions);
    manager.settings.reproducers = Some(dir.path().into());
    let mut m = module();
    let (result, _) = run(&manager, &mut m);
    let d = &result.unwrap_err().0[0];
    assert_eq!((d.code, d.message.as_str()), (Code::PASS_BUG, "pass 'panics' panicked: on purpose"));
    assert_eq!(m.funcs.len(), 1, "the module is as before the pass");
    let file = std::fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
    assert!(d.hint.as_ref().unwrap().contains(&file.display().to_string()));
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("--passes='panics,verify'"), "{text}");
    assert!(parse_module(&text, "r.of", &of_ops::registry(), Some(dir.path())).is_ok(), "{text}");
}

#[test]
fn verify_each_reports_broken_modules() {
    let mut manager = Manager::default();
    manager.add::<Breaks>(NoOptions);
    manager.settings.verify_each = true;
    let (result, _) = run(&manager, &mut module());
    let errors = result.unwrap_err();
    assert_eq!(errors.0[0].message, "after pass 'breaks' the module does not verify");
    assert_eq!(errors.0[1].code, Code::ARITY);
    manager.settings.verify_each = false;
    let report = run(&manager, &mut module()).0.unwrap();
    assert_eq!(report.passes[0].counters["broken"], 1);
    assert_eq!(report.warnings.0.len(), 1);
}

#[test]
fn unknown_names_are_reported_with_position() {
    let e = Manager::parse("dce,canonicalise,dce{x=1},simplify{a},specialize{n=z}").err().unwrap();
    let text: Vec<String> = e.0.iter().map(ToString::to_string).collect();
    assert_eq!(
        text,
        [
            "<pipeline>:1:5: error[E0401]: no pass 'canonicalise'\n  hint: did you mean 'canonicalize'? 'of-opt passes' lists them all",
            "<pipeline>:1:18: error[E0401]: pass 'dce': there is no option 'x'\n  hint: it has no options",
            "<pipeline>:1:27: error[E0401]: 'simplify' is a pipeline, it has no options\n  hint: it expands to fold-constants,infer-shapes,differentiate,fold-constants,infer-shapes,canonicalize,fold-constants,canonicalize,cse,dce",
            "<pipeline>:1:39: error[E0401]: pass 'specialize': option 'n': 'z' is not an integer\n  hint: it has NAME",
        ]
    );
}

#[test]
fn checkpoints_see_each_pass_and_may_end_the_run() {
    let seen = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let mut manager = Manager::parse("dce,cse,dce").unwrap();
    let log = seen.clone();
    manager.checkpoint = Some(Box::new(move |p| {
        log.borrow_mut().push(format!("{:?} {:?} {}/{}", p.ended, p.next, p.done, p.all));
        let stop = p.ended == Some("cse");
        if stop { Err(Diagnostic::error(Code::LIMIT, Location::Unknown, "enough")) } else { Ok(()) }
    }));
    let (result, _) = run(&manager, &mut module());
    assert_eq!(result.unwrap_err().0[0].message, "enough");
    assert_eq!(
        *seen.borrow(),
        [r#"None Some("dce") 0/3"#, r#"Some("dce") Some("cse") 1/3"#, r#"Some("cse") Some("dce") 2/3"#]
    );
}
