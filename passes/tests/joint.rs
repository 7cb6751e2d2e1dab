//! Rewrites and layouts are chosen jointly: this finds what neither order of the two passes finds.
//!
//! `cargo test --release -p of-passes --test joint -- --nocapture` prints the cost of each graph.

use of_ir::Module;
use of_ir::text::parse_module;
use of_ops::{Value, interpret, sample::Rng};
use of_passes::Manager;
use of_sharding::decide::{decide, prepare, write};
use of_sharding::search::Effort;
use of_sharding::{MeshSpec, Meshes, Model, alternatives, execute, lower};

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
    let chosen = alternatives::choose(func, mesh, mesh.memory, &effort).unwrap_or_else(|d| panic!("{:?}", d.0));
    let model = Model::new(func, mesh).unwrap_or_else(|d| panic!("{:?}", d.0));
    let d = decide(&model, mesh.memory, &effort).unwrap_or_else(|d| panic!("{d}"));
    (d.cost, chosen.map_or(d.bound, |s| s.bound))
}

/// The passes before, as for a model compiled for a mesh.
const BEFORE: &str = "simplify,expand-composites,fold-constants{result_bytes=1000000000},canonicalize,cse,dce";

/// Composites that `optimize` recognizes are expanded again before layouts are searched.
fn optimized(target: &str, alternatives: usize) -> String {
    let after = "expand-composites{keep=[of.alternatives]},fold-constants{result_bytes=1000000000},dce";
    format!("{BEFORE},optimize{{target={target}, alternatives={alternatives}}},{after}")
}

/// Two products with one matrix. On one device adding first is cheaper. Here the operands have different layouts and
/// are larger than the products.
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

/// Both at once: a scale folds into the constant matrix, as on one device, but the sum stays after the products.
/// Neither order of the two passes finds this.
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

/// A splat constant.
fn known(name: &str, number: f64, dims: &[usize]) -> String {
    let (rank, x) = (dims.len(), dims.iter().map(|d| format!("{d}x")).collect::<String>());
    format!(
        "  %{name}_n = of.constant {{value = dense<{number:?}> : tensor<f32>}} : () -> tensor<f32>
  %{name}_d = of.constant {{value = dense<{dims:?}> : tensor<{rank}xi64>}} : () -> tensor<{rank}xi64>
  %{name} = of.expand %{name}_n, %{name}_d : (tensor<f32>, tensor<{rank}xi64>) -> tensor<{x}f32>
"
    )
}

/// The gated perceptron of Llama, silu(x g) (x u) d. One device would merge the products into [g u], but then the parts
/// do not match the layout of d.
///
/// Source: Touvron et al., "Llama 2" (2023); 4096 features and 11008 hidden ones are those of 7B.
fn gated(tokens: usize, features: usize, hidden: usize) -> String {
    let (t, f, h) = (tokens, features, hidden);
    let weights = known("g", 0.01, &[f, h]) + &known("u", 0.02, &[f, h]) + &known("d", 0.03, &[h, f]);
    format!(
        "func @main(%x: tensor<{t}x{f}xf32>) -> (tensor<{t}x{f}xf32>) {{
{weights}  %a = of.matmul %x, %g : (tensor<{t}x{f}xf32>, tensor<{f}x{h}xf32>) -> tensor<{t}x{h}xf32>
  %b = of.matmul %x, %u : (tensor<{t}x{f}xf32>, tensor<{f}x{h}xf32>) -> tensor<{t}x{h}xf32>
  %s = of.swish %a {{alpha = 1.0}} : (tensor<{t}x{h}xf32>) -> tensor<{t}x{h}xf32>
  %c = of.mul %s, %b : (tensor<{t}x{h}xf32>, tensor<{t}x{h}xf32>) -> tensor<{t}x{h}xf32>
  %y = of.matmul %c, %d : (tensor<{t}x{h}xf32>, tensor<{h}x{f}xf32>) -> tensor<{t}x{f}xf32>
  of.return %y : (tensor<{t}x{f}xf32>) -> ()
}}"
    )
}

/// Attention of a prompt as in OPT, which scales the queries. One device would merge the products for queries, keys and
/// values, but a mesh keeps each head on one device. Jointly, the scale folds into a matrix.
///
/// Source: Zhang et al., "OPT" (2022); 32 heads of 128 are those of 6.7B.
fn attention(tokens: usize, heads: usize, width: usize) -> String {
    let (t, n, w, f) = (tokens, heads, width, heads * width);
    let (x, y) = (format!("tensor<{t}x{f}xf32>"), format!("tensor<{t}x{n}x{w}xf32>"));
    let (matrix, row) = (format!("tensor<{f}x{f}xf32>"), format!("tensor<{f}xf32>"));
    let (q, k, s) =
        (format!("tensor<{n}x{t}x{w}xf32>"), format!("tensor<{n}x{w}x{t}xf32>"), format!("tensor<{n}x{t}x{t}xf32>"));
    let mut out = format!("func @main(%x: {x}) -> ({x}) {{\n");
    for (i, name) in ["q", "k", "v", "o"].into_iter().enumerate() {
        out += &known(&format!("w{name}"), 0.01 + 0.01 * i as f64, &[f, f]);
        out += &known(&format!("b{name}"), 0.1 + 0.1 * i as f64, &[f]);
    }
    out += &format!(
        "  %scale = of.constant {{value = dense<{:?}> : tensor<f32>}} : () -> tensor<f32>
  %split = of.constant {{value = dense<[{t}, {n}, {w}]> : tensor<3xi64>}} : () -> tensor<3xi64>
  %join = of.constant {{value = dense<[{t}, {f}]> : tensor<2xi64>}} : () -> tensor<2xi64>
",
        (w as f64).sqrt().recip()
    );
    for name in ["q", "k", "v"] {
        let (perm, to) = if name == "k" { ("[1, 2, 0]", &k) } else { ("[1, 0, 2]", &q) };
        out += &format!(
            "  %{name}0 = of.matmul %x, %w{name} : ({x}, {matrix}) -> {x}
  %{name}1 = of.add %{name}0, %b{name} : ({x}, {row}) -> {x}
"
        );
        let read = match name {
            "q" => {
                out += &format!("  %q2 = of.mul %q1, %scale : ({x}, tensor<f32>) -> {x}\n");
                "q2".into()
            }
            _ => format!("{name}1"),
        };
        out += &format!(
            "  %{name}3 = of.reshape %{read}, %split {{allowzero = false}} : ({x}, tensor<3xi64>) -> {y}
  %{name} = of.transpose %{name}3 {{perm = {perm}}} : ({y}) -> {to}
"
        );
    }
    out += &format!(
        "  %s = of.matmul %q, %k : ({q}, {k}) -> {s}
  %p = of.softmax %s {{axis = -1}} : ({s}) -> {s}
  %a = of.matmul %p, %v : ({s}, {q}) -> {q}
  %c = of.transpose %a {{perm = [1, 0, 2]}} : ({q}) -> {y}
  %d = of.reshape %c, %join {{allowzero = false}} : ({y}, tensor<2xi64>) -> {x}
  %e = of.matmul %d, %wo : ({x}, {matrix}) -> {x}
  %y = of.add %e, %bo : ({x}, {row}) -> {x}
  of.return %y : ({x}) -> ()
}}"
    );
    out
}

/// Eight NVIDIA T4 on PCIe 3.0 x16, for which `optimize{target=t4}` has a cost model. The data sheet gives the link 16 GB/s
/// each way; messages reach about three quarters.
const T4: &str = r#"
device = "cuda"
memory = 16e9
bandwidth = 3.2e11
flops = { f32 = 8.1e12, other = 8.1e12 }
[[axis]]
devices = 8
bandwidth = 1.2e10
latency = 1e-5
"#;

#[test]
fn joint_search_beats_sequential_passes() {
    println!("{:>12} {:>14} {:>14} {:>14} {:>14}  us", "graph", "as it is", "rewritten", "together", "at least");
    let named = |mesh| MeshSpec::named(mesh).unwrap();
    let t4 = || MeshSpec::parse(T4, "t4").unwrap();
    for (name, text, mesh, target) in [
        ("factored", FACTORED, named("dgx-h100[8]"), "cpu"),
        ("associated", ASSOCIATED, named("ethernet[8]"), "cpu"),
        ("both", BOTH, named("dgx-h100[8]"), "cpu"),
        ("gated", &gated(64, 4096, 11008), t4(), "t4"),
        ("attention", &attention(128, 32, 128), t4(), "t4"),
    ] {
        let (plain, _) = cost(text, BEFORE, &mesh);
        let (rewritten, _) = cost(text, &optimized(target, 1), &mesh);
        let (together, bound) = cost(text, &optimized(target, 3), &mesh);
        let us = [plain, rewritten, together, bound].map(|s| s * 1e6);
        println!("{name:>12} {:14.1} {:14.1} {:14.1} {:14.1}", us[0], us[1], us[2], us[3]);
        assert!(together < 0.95 * rewritten, "{name}: {together} and {rewritten}");
        assert!(together <= plain * (1.0 + 1e-3), "{name}: {together} and {plain}");
        assert!(bound <= together * (1.0 + 1e-9), "{name}: {bound} of {together}");
        match name {
            "both" => assert!(together < 0.95 * plain, "{together} and {plain}"),
            "attention" => assert!(together < plain, "{together} and {plain}"),
            _ => {}
        }
    }
}

/// The jointly chosen function computes the same on simulated devices.
#[test]
fn joint_search_preserves_results() {
    let written = [FACTORED, ASSOCIATED, BOTH].map(|text| (shrunk(text, 64), "cpu"));
    let models = [gated(16, 64, 128), attention(16, 8, 8)].map(|text| (text, "t4"));
    for (small, target) in written.into_iter().chain(models) {
        let mesh = MeshSpec::named("cpu[8]").unwrap();
        let mut module = parsed(&small);
        run(&mut module, &optimized(target, 3));
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
        alternatives::choose(func, &mesh, mesh.memory, &Effort::default()).unwrap();
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
