//! Several entry points of a plan for a mesh: they share the parts of variables that ranks have.

use of_driver::{Cache, CompileOptions, CompiledModel, Compiler, MeshOptions, Model, SessionOptions, Stages};
use of_runtime::Tensor;

/// Two products with weights that a run adds to, and the sum of the rows of all runs.
const MODEL: &str = "func @main(%x: tensor<?(N)x8xf32>, %w: tensor<8x12xf32>, %v: tensor<12x8xf32>, %s: tensor<8xf32>) -> (tensor<?(N)x8xf32>, tensor<8x12xf32>, tensor<8xf32>) attributes {of.variables = [1, 2, 3], of.carried = [-1, 1, 3]} {
  %h = of.matmul %x, %w
  %t = of.tanh %h
  %y = of.matmul %t, %v
  %o = of.add %y, %s
  %axis = of.constant {value = dense<0> : tensor<1xi64>} : () -> tensor<1xi64>
  %rows = of.reduce_sum %y, %axis {keepdims = false}
  %next = of.add %s, %rows
  %small = of.constant {value = dense<0.125> : tensor<f32>} : () -> tensor<f32>
  %nw = of.add %w, %small
  of.return %o, %nw, %next
}";

fn compiled(mesh: Option<(&str, i64)>) -> CompiledModel {
    let mesh = mesh.map(|(mesh, stages)| MeshOptions {
        mesh: mesh.into(),
        stages: (stages > 1).then_some(Stages { stages, microbatches: 1 }),
        ..MeshOptions::default()
    });
    let options = CompileOptions { cache: Cache::none(), mesh, ..CompileOptions::default() };
    let model = Model::from_text(MODEL, "several.of", None).unwrap_or_else(|d| panic!("{d}"));
    let compiler = Compiler::with_options(options).variants(&["N=4".into(), "N=8".into()]);
    compiler.compile(model).unwrap_or_else(|d| panic!("{d}"))
}

fn tensor(dims: &[i64], scale: f32) -> Tensor {
    let count: i64 = dims.iter().product();
    let values = (0..count).map(|i| ((i * 7 % 11) as f32 - 5.0) * scale);
    Tensor::from_elements(dims.to_vec(), &values.collect::<Vec<f32>>()).unwrap()
}

fn numbers(value: &Tensor) -> Vec<f32> {
    value.to_elements().unwrap()
}

/// Outputs of runs of both entry points one after another, and the variables at the end.
fn results(compiled: &CompiledModel) -> Vec<Vec<f32>> {
    let options = SessionOptions { threads: 1, ..SessionOptions::default() };
    let mut sessions = compiled.sessions(&options).unwrap_or_else(|d| panic!("{d}"));
    assert_eq!(sessions.len(), 2);
    // Values that one session sets, the other reads.
    for (name, dims) in [("w", &[8, 12][..]), ("v", &[12, 8]), ("s", &[8])] {
        sessions[1].variables().unwrap().set(name, &tensor(dims, 0.125)).unwrap();
    }
    let mut out = Vec::new();
    for (run, own) in [0, 1, 1, 0, 1].into_iter().enumerate() {
        let x = tensor(&[[4, 8][own], 8], 0.25 * (run + 1) as f32);
        let outputs = sessions[own].run(&[("x", x)]).unwrap_or_else(|d| panic!("{d}"));
        out.extend(outputs.iter().map(|(_, value)| numbers(value.as_tensor().unwrap())));
    }
    let variables = sessions[0].variables().unwrap();
    out.extend(["w", "v", "s"].map(|name| numbers(&variables.get(name).unwrap())));
    out
}

#[test]
fn entry_points_on_a_mesh_share_variables() {
    let want = results(&compiled(None));
    assert!(want[0].iter().any(|x| *x != 0.0), "the weights are not zero");
    for mesh in [("cpu[2]", 1), ("cpu[2x2]", 1), ("cpu[2]", 2), ("cpu[4]", 2)] {
        let compiled = compiled(Some(mesh));
        let meshes = &compiled.plan().meshes;
        assert_eq!(meshes.iter().map(|mesh| &mesh.name[..]).collect::<Vec<_>>(), ["N=4", "N=8"], "{mesh:?}");
        assert_eq!(meshes[0].variables, meshes[1].variables, "{mesh:?}");
        let got = results(&compiled);
        assert_eq!(got.len(), want.len());
        for (got, want) in got.iter().zip(&want) {
            let near = got.iter().zip(want).all(|(a, b)| (a - b).abs() <= 1e-4 * b.abs().max(1.0));
            assert!(got.len() == want.len() && near, "{mesh:?}: {got:?}, not {want:?}");
        }
    }
}
