//! Small files compile to small plans or are refused: a plan is bounded.
//!
//! The counts stand for time and memory, which tests cannot bound on a busy machine.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

/// The most bytes of a generated file.
const MAX_FILE: usize = 16 << 10;

/// The most bytes of a plan of such a file: one constant of the size that `fold-constants` computes in any case, and code.
const MAX_PLAN: u64 = 20 << 20;

fn func(args: &str, results: &str, body: &str) -> String {
    format!("func @main({args}) -> ({results}) {{\n{body}}}\n")
}

/// A constant that an op doubles, again and again.
fn doubled_constants(times: usize) -> String {
    let mut body = String::from("  %c0 = of.constant {value = dense<1.0> : tensor<4xf32>}\n");
    for i in 0..times {
        writeln!(body, "  %c{} = of.concat %c{i}, %c{i} {{axis = 0}}", i + 1).unwrap();
    }
    write!(body, "  %y = of.add %c{times}, %x\n  of.return %y\n").unwrap();
    func("%x: tensor<1xf32>", &format!("tensor<{}xf32>", 4u64 << times), &body)
}

/// A dimension that is a product of sums.
fn polynomial(factors: usize) -> String {
    let dim: Vec<String> = (0..factors).map(|i| format!("(A{i} + B{i} + 1)")).collect();
    let ty = format!("tensor<?({})xf32>", dim.join("*"));
    func(&format!("%x: {ty}"), &ty, "  %y = of.tanh %x\n  of.return %y\n")
}

/// A dimension in this many brackets.
fn brackets(depth: usize) -> String {
    let ty = format!("tensor<?({}A{})xf32>", "(".repeat(depth), ")".repeat(depth));
    func(&format!("%x: {ty}"), &ty, "  %y = of.tanh %x\n  of.return %y\n")
}

/// Branches in branches.
fn nested(depth: usize) -> String {
    let ty = "tensor<4xf32>";
    let mut body = String::new();
    (0..depth).for_each(|i| writeln!(body, "%v{i} = of.if %c : (tensor<i1>) -> {ty} {{").unwrap());
    body.push_str("%a = of.tanh %x\nof.yield %a\n");
    for i in (0..depth).rev() {
        writeln!(body, "}}, {{\nof.yield %x\n}}").unwrap();
        writeln!(body, "{} %v{i}", if i > 0 { "of.yield" } else { "of.return" }).unwrap();
    }
    func(&format!("%c: tensor<i1>, %x: {ty}"), ty, &body)
}

/// A value with many readers, of which each is read twice by the next.
fn shared(ops: usize) -> String {
    let mut body = String::new();
    (0..ops).for_each(|i| writeln!(body, "  %v{} = of.add %v{i}, %v{i}", i + 1).unwrap());
    writeln!(body, "  of.return %v{ops}").unwrap();
    func("%v0: tensor<4xf32>", "tensor<4xf32>", &body)
}

/// A tensor of this rank.
fn rank(axes: usize) -> String {
    let ty = format!("tensor<{}f32>", "1x".repeat(axes));
    func(&format!("%x: {ty}"), &ty, "  %y = of.tanh %x\n  of.return %y\n")
}

/// A constant of this many elements, of which each is the same.
fn splat(elements: u64) -> String {
    let ty = format!("tensor<{elements}xf32>");
    let body = format!("  %c = of.constant {{value = dense<1.0> : {ty}}}\n  %y = of.exp %c\n  of.return %y\n");
    func("", &ty, &body)
}

/// Operands of different open extents.
fn concatenated(operands: usize) -> String {
    let names: Vec<String> = (0..operands).map(|i| format!("%x{i}")).collect();
    let args: Vec<String> = names.iter().map(|x| format!("{x}: tensor<?(N{})x4xf32>", &x[2..])).collect();
    let sum: Vec<String> = (0..operands).map(|i| format!("N{i}")).collect();
    let body = format!("  %y = of.concat {} {{axis = 0}}\n  of.return %y\n", names.join(", "));
    func(&args.join(", "), &format!("tensor<?({})x4xf32>", sum.join(" + ")), &body)
}

/// A value that is read with different numbers.
fn numbers(readers: usize) -> String {
    let mut body = String::new();
    for i in 0..readers {
        writeln!(body, "%c{i}=of.constant{{value=dense<{i}.5>:tensor<f32>}}\n%y{i}=of.add%x,%c{i}").unwrap();
    }
    let names: Vec<String> = (0..readers).map(|i| format!("%y{i}")).collect();
    writeln!(body, "of.return {}", names.join(", ")).unwrap();
    func("%x: tensor<4xf32>", &vec!["tensor<4xf32>"; readers].join(","), &body)
}

/// Numbers beyond a bound are operands of one kernel: the C compiler takes some 20 ms a kernel.
#[test]
fn readers_with_many_numbers_share_a_kernel() {
    let dir = tempfile::tempdir().unwrap();
    let (file, plan) = (dir.path().join("numbers.of"), dir.path().join("numbers.plan"));
    std::fs::write(&file, numbers(300)).unwrap();
    let run = Command::new(env!("CARGO_BIN_EXE_of-opt")).args(["compile", "-o"]).args([&plan, &file]).output().unwrap();
    let (said, errors) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(format!("{said}{errors}").contains("1 kernel ("), "{said}{errors}");
}

#[test]
fn small_files_give_small_plans_or_diagnostics() {
    let mut files: Vec<(String, String)> = Vec::new();
    let mut add = |name: &str, sizes: &[usize], text: &dyn Fn(usize) -> String| {
        files.extend(sizes.iter().map(|n| (format!("{name}_{n}"), text(*n))));
    };
    add("doubled", &[4, 16, 24, 40, 58], &doubled_constants);
    add("polynomial", &[2, 5, 8, 20, 200], &polynomial);
    add("brackets", &[3, 90, 500, 3000], &brackets);
    add("nested", &[3, 40, 90, 150], &nested);
    add("shared", &[10, 100, 400], &shared);
    add("concatenated", &[10, 100, 200], &concatenated);
    add("rank", &[3, 60, 1000, 4000], &rank);
    add("splat", &[1 << 10, 1 << 19, 1 << 26, 1 << 40], &|n| splat(n as u64));
    let dir = tempfile::tempdir().unwrap();
    let (mut compiled, mut refused) = (0, 0);
    for (name, text) in files {
        assert!(text.len() <= MAX_FILE, "{name}");
        match plan_bytes(dir.path(), &name, &text) {
            Some(bytes) => {
                assert!(bytes <= MAX_PLAN, "{name}: a plan of {bytes} bytes");
                compiled += 1;
            }
            None => refused += 1,
        }
    }
    assert!(compiled >= 10 && refused >= 6, "{compiled} compiled, {refused} refused");
}

/// The size of the plan that a file compiles to; `None` where a diagnostic refuses the file.
fn plan_bytes(dir: &Path, name: &str, text: &str) -> Option<u64> {
    let (file, plan) = (dir.join(format!("{name}.of")), dir.join(format!("{name}.plan")));
    std::fs::write(&file, text).unwrap();
    // The limit of memory is that of the growth of this process.
    let run = Command::new(env!("CARGO_BIN_EXE_of-opt"))
        .args(["compile", "--memory-limit", "512MiB", "-o"])
        .args([&plan, &file])
        .output()
        .unwrap();
    if run.status.success() {
        return Some(std::fs::metadata(&plan).unwrap().len());
    }
    let message = String::from_utf8_lossy(&run.stderr);
    // A plan whose values do not fit this machine is refused; a compilation that takes too much memory would be a fault.
    let compiled_within_limits = !message.contains("E0502") || message.contains("the budget is");
    assert!(message.contains("error[E") && compiled_within_limits, "{name}: {message}");
    assert!(!plan.exists(), "{name}");
    None
}
