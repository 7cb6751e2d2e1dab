//! Rewrites and layouts chosen together: what neither order of the two finds.
//!
//! `cargo test --release -p of-passes --test joint -- --nocapture` prints what each graph costs.

use of_ir::Module;
use of_ir::text::parse_module;
use of_ops::{Value, interpret, sample::Rng};
use of_passes::Manager;
use of_sharding::decide::{decide, prepare, write};
use of_sharding::search::Effort;
use of_sharding::ways::settle;
use of_sharding::{MeshSpec, Meshes, Model, execute, lower};

fn parsed(text: &str) -> Module {
    parse_module(text, "joint.of", &of_ops::registry(), None).unwrap_or_else(|d| panic!("{:?}", d.0))
}

fn run(module: &mut Module, passes: &str) {
    Manager::parse(passes).unwrap().run(module, &mut |_| {}).unwrap_or_else(|d| panic!("{:?}", d.0));
}

/// Seconds on the mesh after these passes, and the bound.
fn cost(text: &str, passes: &str, mesh: &MeshSpec) -> (f64, f64) {
    let mut module = parsed(text);
    run(&mut module, passes);
    let (func, effort) = (module.funcs.get_mut("main").unwrap(), Effort::default());
    let settled = settle(func, mesh, mesh.memory, &effort).unwrap_or_else(|d| panic!("{:?}", d.0));
    let model = Model::new(func, mesh).unwrap_or_else(|d| panic!("{:?}", d.0));
    let d = decide(&model, mesh.memory, &effort).unwrap_or_else(|d| panic!("{d}"));
    (d.cost, settled.map_or(d.bound, |s| s.bound))
}

const CHOOSE_LATER: &str = "optimize{ways=3},fold-constants,dce";

/// Two products with one matrix: alone the sum comes first, but here its operands lie in two ways, and are larger than the
/// products.
const FACTORED: &str = r#"
of.mesh @m {devices = "cuda", shape = [8]}
func @main(%a: tensor<8192x16384xf32, #of.sbp<@m, [S(0)]>>, %b: tensor<8192x16384xf32, #of.sbp<@m, [S(1)]>>, %c: tensor<16384x64xf32>) -> (tensor<8192x64xf32>) {
  %p = of.matmul %a, %c : (tensor<8192x16384xf32, #of.sbp<@m, [S(0)]>>, tensor<16384x64xf32>) -> tensor<8192x64xf32>
  %q = of.matmul %b, %c : (tensor<8192x16384xf32, #of.sbp<@m, [S(1)]>>, tensor<16384x64xf32>) -> tensor<8192x64xf32>
  %y = of.add %p, %q : (tensor<8192x64xf32>, tensor<8192x64xf32>) -> tensor<8192x64xf32>
  of.return %y : (tensor<8192x64xf32>) -> ()
}
"#;

/// Three factors: (a b) c is less arithmetic, a (b c) a smaller sum over the devices.
const ASSOCIATED: &str = r#"
of.mesh @m {devices = "cpu", shape = [8]}
func @main(%a: tensor<2048x8192xf32, #of.sbp<@m, [S(1)]>>, %b: tensor<8192x4096xf32, #of.sbp<@m, [S(0)]>>, %c: tensor<4096x2048xf32>) -> (tensor<2048x2048xf32>) {
  %p = of.matmul %a, %b : (tensor<2048x8192xf32, #of.sbp<@m, [S(1)]>>, tensor<8192x4096xf32, #of.sbp<@m, [S(0)]>>) -> tensor<2048x4096xf32>
  %y = of.matmul %p, %c : (tensor<2048x4096xf32>, tensor<4096x2048xf32>) -> tensor<2048x2048xf32>
  of.return %y : (tensor<2048x2048xf32>) -> ()
}
"#;

/// Both at once: a scale goes into the known matrix, as it does alone, and the sum stays behind the products, as it does
/// not. Neither order of the two passes finds it.
const BOTH: &str = r#"
of.mesh @m {devices = "cuda", shape = [8]}
func @main(%a: tensor<8192x16384xf32, #of.sbp<@m, [S(0)]>>, %b: tensor<8192x16384xf32, #of.sbp<@m, [S(1)]>>) -> (tensor<8192x64xf32>) {
  %s = of.constant {value = dense<3.0> : tensor<f32>} : () -> tensor<f32>
  %c = of.constant {value = dense<0.5> : tensor<16384x64xf32>} : () -> tensor<16384x64xf32>
  %d = of.mul %a, %s : (tensor<8192x16384xf32, #of.sbp<@m, [S(0)]>>, tensor<f32>) -> tensor<8192x16384xf32>
  %p = of.matmul %d, %c : (tensor<8192x16384xf32>, tensor<16384x64xf32>) -> tensor<8192x64xf32>
  %e = of.mul %b, %s : (tensor<8192x16384xf32, #of.sbp<@m, [S(1)]>>, tensor<f32>) -> tensor<8192x16384xf32>
  %q = of.matmul %e, %c : (tensor<8192x16384xf32>, tensor<16384x64xf32>) -> tensor<8192x64xf32>
  %y = of.add %p, %q : (tensor<8192x64xf32>, tensor<8192x64xf32>) -> tensor<8192x64xf32>
  of.return %y : (tensor<8192x64xf32>) -> ()
}
"#;

#[test]
fn together_is_better_than_one_after_the_other() {
    println!("{:>12} {:>14} {:>14} {:>14} {:>14}  us", "graph", "as it is", "rewritten", "together", "at least");
    for (name, text, mesh) in [
        ("factored", FACTORED, "dgx-h100[8]"),
        ("associated", ASSOCIATED, "ethernet[8]"),
        ("both", BOTH, "dgx-h100[8]"),
    ] {
        let mesh = MeshSpec::named(mesh).unwrap();
        let (plain, _) = cost(text, "simplify", &mesh);
        let (rewritten, _) = cost(text, "simplify,optimize,fold-constants,dce", &mesh);
        let (together, bound) = cost(text, &format!("simplify,{CHOOSE_LATER}"), &mesh);
        let us = [plain, rewritten, together, bound].map(|s| s * 1e6);
        println!("{name:>12} {:14.1} {:14.1} {:14.1} {:14.1}", us[0], us[1], us[2], us[3]);
        assert!(together < 0.95 * rewritten, "{name}: {together} and {rewritten}");
        assert!(together <= plain * (1.0 + 1e-3), "{name}: {together} and {plain}");
        assert!(bound <= together * (1.0 + 1e-9), "{name}: {bound} of {together}");
        if name == "both" {
            assert!(together < 0.95 * plain, "{together} and {plain}");
        }
    }
}

/// What is chosen together computes on simulated devices what the function does.
#[test]
fn what_is_chosen_together_is_equal() {
    for (text, factor) in [(FACTORED, 64), (ASSOCIATED, 64), (BOTH, 64)] {
        let small = shrunk(text, factor);
        let mesh = MeshSpec::named("cpu[8]").unwrap();
        let mut module = parsed(&small);
        run(&mut module, &format!("simplify,{CHOOSE_LATER}"));
        let func = module.funcs.get_mut("main").unwrap();
        let whole = parsed(&small);
        let mut rng = Rng::new(1);
        let inputs: Vec<Value> = func
            .graph
            .args()
            .iter()
            .map(|v| rng.f32s(&func.graph.ty(*v).as_tensor().unwrap().fixed_dims().unwrap()))
            .collect();
        let want = interpret::run_graph(&whole.funcs["main"].graph, &inputs).unwrap();
        settle(func, &mesh, mesh.memory, &Effort::default()).unwrap();
        let written = {
            let model = Model::new(func, &mesh).unwrap();
            prepare(&model, &decide(&model, mesh.memory, &Effort::default()).unwrap())
        };
        write(func, &written, "m").unwrap();
        lower::insert_boxing(func, &Meshes::from(&mesh)).unwrap();
        let got = execute::execute(&func.graph, &mesh.shape(), &inputs).unwrap_or_else(|e| panic!("{e}\n{func:?}"));
        let numbers = |v: &Value| match v {
            Value::Tensor(t) => t.to_f64s().unwrap(),
            _ => panic!(),
        };
        for (x, y) in numbers(&got.outputs[0]).iter().zip(numbers(&want[0])) {
            assert!((x - y).abs() <= 1e-3 * (1.0 + y.abs()), "{x} and {y}\n{func:?}");
        }
    }
}

/// The same function with all extents above 64 divided.
fn shrunk(text: &str, factor: usize) -> String {
    let mut out = String::new();
    let mut digits = String::new();
    for c in text.chars().chain(['\n']) {
        if c.is_ascii_digit() {
            digits.push(c);
            continue;
        }
        match digits.parse::<usize>() {
            Ok(n) if n >= 1024 => out.push_str(&(n / factor).to_string()),
            _ => out.push_str(&digits),
        }
        digits.clear();
        out.push(c);
    }
    out
}
