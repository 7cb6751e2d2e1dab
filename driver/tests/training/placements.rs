//! Models whose layers are on placements that the program chooses: they train as on one device.

use of_driver::{Compiler, MeshOptions, Stages};
use of_frontend::placement::{AUTO, Placement, Sbp};
use of_ops::elementwise::Add;

use super::ranks::{assert_near, steps};
use super::*;

/// Placements and layouts of layers.
type Places<'a> = [Option<(&'a Placement, &'a [Sbp])>; 3];

/// A network of three layers with a sum around the second one, each layer on a placement.
fn placed(layers: Places<'_>) -> Module {
    let mut b = Builder::new("placed");
    let x = b.input("x", Type::tensor(DType::F32, vec![Dim::symbol("n"), Dim::from(FEATURES as i64)]));
    let mut init = nn::Init::new(3);
    let mut layer = |b: &mut Builder, i: usize, from: usize, to: usize, x, around: bool| {
        let linear = nn::Linear::new(&mut init, from, to).unwrap();
        let build = |b: &mut Builder| {
            let y = b.within(["a", "b", "c"][i], |b| linear.apply(b, x))?;
            let y = b.op(Tanh {}, &[y])?;
            if around { b.op(Add {}, &[x, y]) } else { Ok(y) }
        };
        match layers[i] {
            Some((placement, layout)) => b.on(placement, layout, build),
            None => build(b),
        }
        .unwrap_or_else(|d| panic!("{d}"))
    };
    let h = layer(&mut b, 0, FEATURES, 16, x, false);
    let h = layer(&mut b, 1, 16, 16, h, true);
    let y = layer(&mut b, 2, 16, CLASSES, h, false);
    b.finish(&[("y", y)]).unwrap_or_else(|d| panic!("{d}"))
}

#[test]
fn placed_layers_have_the_losses_of_one_device() {
    let dir = tempfile::tempdir().unwrap();
    let loss = Loss::named("cross-entropy").unwrap();
    let (_, _, folder) = data(dir.path(), loss);
    let mut options = options("adamw", &Hyperparameters::default(), loss);
    options.clipping.norm = Some(1.0);
    let plain = placed([None; 3]);
    let data = dataset(&folder, &plain, &options);
    let mut one = trainer(plain, &options, &[]);
    let want = steps(&mut one, &data, 0..8);

    let four = Placement::mesh("p", "cpu", &[4]).unwrap();
    let (two, each) = (four.parts(0, 2).unwrap(), four.parts(0, 4).unwrap());
    let grid = Placement::mesh("g", "cpu", &[2, 2]).unwrap().parts(1, 2).unwrap();
    let (rows, columns): (&[Sbp], &[Sbp]) = (&[Sbp::Split(0)], &[Sbp::Split(1)]);
    let whole = Placement::mesh("w", "cpu", &[4]).unwrap();
    let cases: [(&str, &str, Places<'_>, i64); 7] = [
        ("two parts", "cpu[4]", [Some((&two[0], AUTO)), Some((&two[0], AUTO)), Some((&two[1], AUTO))], 1),
        ("by columns, then rows", "cpu[4]", [Some((&two[0], columns)), Some((&two[1], rows)), None], 1),
        ("there and back", "cpu[4]", [Some((&two[0], AUTO)), Some((&two[1], columns)), Some((&two[0], rows))], 1),
        ("three of four parts", "cpu[4]", [Some((&each[0], AUTO)), Some((&each[1], AUTO)), Some((&each[3], AUTO))], 1),
        ("columns of a grid", "cpu[2x2]", [Some((&grid[0], columns)), Some((&grid[1], rows)), None], 1),
        ("microbatches", "cpu[4]", [Some((&two[0], AUTO)), Some((&two[1], AUTO)), Some((&two[1], columns))], 4),
        ("one mesh", "cpu[4]", [Some((&whole, AUTO)), Some((&whole, rows)), Some((&whole, columns))], 1),
    ];
    for (what, mesh, layers, microbatches) in cases {
        let stages = (microbatches > 1).then_some(Stages { stages: 2, microbatches });
        let mesh = MeshOptions { mesh: mesh.into(), stages, ..MeshOptions::default() };
        let cache = of_driver::Cache::none();
        let compile = CompileOptions { cache, mesh: Some(mesh), ..CompileOptions::default() };
        let session = SessionOptions { threads: 1, ..SessionOptions::default() };
        let model = Model::from_module(placed(layers));
        let mut ranks = Trainer::new(model, &options, &[], &compile, session, &of_driver::Silent)
            .unwrap_or_else(|d| panic!("{what}: {d}"));
        let got = steps(&mut ranks, &data, 0..8);
        assert_near(&got, &want, 1e-4, what);
        for name in ["a.weight", "b.weight", "c.bias"] {
            let value = |t: &Trainer| t.parameter(name).unwrap().to_f64s().unwrap();
            assert_near(&value(&ranks), &value(&one), 1e-3, &format!("{name} of {what}"));
        }
        // On one device constraints are nothing: no op is without native code.
        let native =
            CompileOptions { require_native: true, cache: of_driver::Cache::none(), ..CompileOptions::default() };
        let compiled = Compiler::with_options(native).shape("n", 4).compile(Model::from_module(placed(layers)));
        assert!(compiled.is_ok(), "{what}: {:?}", compiled.err());
        // The trained model has no placements, and can be exported.
        let trained = ranks.trained_model().unwrap();
        assert!(trained.meshes.is_empty() && of_onnx::export_bytes(&trained, &Default::default()).is_ok(), "{what}");
        let (got, want) = (ranks.evaluate(&data).unwrap(), one.evaluate(&data).unwrap());
        assert_near(&[got.loss], &[want.loss], 1e-4, &format!("evaluation of {what}"));
    }
}
