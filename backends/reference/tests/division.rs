//! Divisions of integers by zero fail a run, with the place of the op, unless the quotient is not chosen.

use std::sync::Arc;

use of_codegen::{CompileOptions, CpuCode, Isa, Target};
use of_ir::{DType, Elements, Module, Tensor, text};
use of_ops::{Value, interpret};
use of_reference::{Reference, from_runtime, to_runtime};
use of_runtime::{Options, RunError, Session};
use of_test_support::plans as support;

const OPS: [&str; 3] = ["of.div", "of.mod", "of.fmod"];
const TYPES: [(&str, DType); 4] = [("i64", DType::I64), ("i32", DType::I32), ("i8", DType::I8), ("ui16", DType::U16)];
/// More than two vectors of any type, and a rest.
const COUNT: usize = 37;

/// A function of `%a` and `%b` with `body`, which defines `%y`, for a fixed and for an open extent.
fn modules(ty: &str, body: &str) -> Vec<Module> {
    let source = |n: &str| {
        format!(
            "func @main(%a: tensor<{n}x{ty}>, %b: tensor<{n}x{ty}>) -> (tensor<{n}x{ty}>) {{\n{body}\n  of.return %y\n}}\n"
        )
    };
    let parse = |n: &str| text::parse_module(&source(n), "division.of", &of_ops::registry(), None);
    [COUNT.to_string().as_str(), "?(n)"].map(|n| parse(n).unwrap_or_else(|d| panic!("{d}"))).into()
}

/// Runs of a module by every compiler of this machine, by name.
fn runs(module: &Module, inputs: &[Value]) -> Vec<(String, Result<Vec<Value>, RunError>)> {
    let main = support::after_passes(module.clone());
    let targets = [(Isa::host(), CpuCode::Machine), (Isa::host(), CpuCode::C)];
    let gpu = support::emulated_gpu().map(|isa| (isa, CpuCode::C));
    let run = |(isa, cpu_code): (&'static Isa, CpuCode)| {
        let target = Target { cpu_code, ..Target::new(isa, &[&Reference]) };
        let compiled = support::compile_for(&main, &CompileOptions::new(target, support::cache()));
        let compiled = compiled.unwrap_or_else(|d| panic!("{d}"));
        assert!(compiled.summary.not_native.is_empty(), "{:?}", compiled.summary.not_native);
        let plan = Arc::new(compiled.open().unwrap_or_else(|d| panic!("{d}")));
        let mut session = Session::new(plan, 0, Options::default(), &[Arc::new(Reference)]).unwrap();
        let results = session.run(inputs.iter().map(|v| to_runtime(v).unwrap()).collect());
        let results = results.map(|list| list.iter().map(|v| from_runtime(v).unwrap()).collect());
        (format!("{} {cpu_code:?}", isa.name), results)
    };
    targets.into_iter().chain(gpu).map(run).collect()
}

/// Dividends and divisors; the divisor at `zero` is 0.
fn operands(dtype: DType, zero: Option<usize>) -> Vec<Value> {
    let sign = if dtype.is_signed_int() { -1 } else { 1 };
    let dividends = (0..COUNT as i128).map(|i| sign * (3 * i + 1)).collect();
    let divisor = |i: usize| if Some(i) == zero { 0 } else { 1 + i as i128 % 5 };
    let divisors = (0..COUNT).map(divisor).collect();
    let tensor = |v| Tensor::from_elements(dtype, vec![COUNT], Elements::Int(v)).unwrap().into();
    vec![tensor(dividends), tensor(divisors)]
}

fn agrees(what: &str, module: &Module, inputs: &[Value]) {
    let want = interpret::run_graph(&module.main().unwrap().graph, inputs).unwrap_or_else(|d| panic!("{what}: {d}"));
    for (name, got) in runs(module, inputs) {
        assert_eq!(got.unwrap_or_else(|e| panic!("{what}, {name}: {e}")), want, "{what}, {name}");
    }
}

fn fails(what: &str, module: &Module, inputs: &[Value]) {
    let error = interpret::run_graph(&module.main().unwrap().graph, inputs).expect_err(what);
    assert!(error.to_string().contains("an integer is divided by zero"), "{what}: {error}");
    for (name, got) in runs(module, inputs) {
        let error = got.expect_err(&format!("{what}, {name}")).to_string();
        assert!(error.contains("an integer is divided by zero"), "{what}, {name}: {error}");
        assert!(error.contains("division.of:2"), "{what}, {name}: {error}");
    }
}

#[test]
fn integer_division_by_zero_is_an_error_with_a_place() {
    for (op, (ty, dtype)) in OPS.into_iter().flat_map(|op| TYPES.map(|t| (op, t))) {
        for module in modules(ty, &format!("  %q = {op} %a, %b\n  %y = of.add %q, %a")) {
            let what = format!("{op} of {ty}");
            agrees(&what, &module, &operands(dtype, None));
            for zero in [0, COUNT - 1] {
                fails(&what, &module, &operands(dtype, Some(zero)));
            }
        }
    }
}

#[test]
fn integer_division_by_zero_that_is_not_chosen_is_no_error() {
    let guards = [
        "  %c = of.select %none, %a, %q\n  %y = of.add %c, %b",
        "  %c = of.select %none, %b, %q\n  %d = of.select %none, %a, %q\n  %y = of.add %c, %d",
        "  %m = of.mul %q, %a\n  %y = of.select %none, %b, %m",
    ];
    for (op, (ty, dtype)) in OPS.into_iter().flat_map(|op| TYPES.map(|t| (op, t))) {
        let head = format!(
            "  %q = {op} %a, %b\n  %zero = of.constant {{value = dense<0> : tensor<{ty}>}}\n  %none = of.eq %b, %zero"
        );
        for guard in guards {
            for module in modules(ty, &format!("{head}\n{guard}")) {
                agrees(&format!("{op} of {ty}: {guard}"), &module, &operands(dtype, Some(COUNT - 1)));
            }
        }
        // Another reader has the quotient too.
        for module in modules(ty, &format!("{head}\n  %c = of.select %none, %a, %q\n  %y = of.max %c, %q")) {
            fails(&format!("{op} of {ty}, read twice"), &module, &operands(dtype, Some(3)));
        }
    }
}

#[test]
fn known_divisors() {
    for divisor in [3, 0] {
        let constant = format!("  %c = of.constant {{value = dense<{divisor}> : tensor<i32>}}");
        for module in modules("i32", &format!("{constant} %q = of.div %a, %c\n  %y = of.add %q, %b")) {
            let check: fn(&str, &Module, &[Value]) = if divisor == 0 { fails } else { agrees };
            check("a known divisor", &module, &operands(DType::I32, None));
        }
    }
}

#[test]
fn empty_divisions_are_no_error() {
    let module = &modules("i64", "  %y = of.div %a, %b")[1];
    let empty = || Value::from(Tensor::from_elements(DType::I64, vec![0], Elements::Int(vec![])).unwrap());
    agrees("no elements", module, &[empty(), empty()]);
}
