//! First values of parameters from files, and new last layers.

use of_driver::training::{LoadedWeights, reset_head};
use of_frontend::training::first_values;
use of_ops::reduction::Softmax;

use super::ranks::{How, MESHES, on_mesh};
use super::*;

fn entropy() -> Loss {
    Loss::named("cross-entropy").unwrap()
}

fn load(module: &Module, path: &std::path::Path, ignored: &[&str]) -> Result<(LoadedWeights, Module), String> {
    let mut model = Model::from_module(module.clone());
    let ignored: Vec<String> = ignored.iter().map(|pattern| (*pattern).to_owned()).collect();
    let loaded = model.load_weights(path, &ignored, None, &of_driver::Silent).map_err(|d| d.to_string())?;
    Ok((loaded, model.module))
}

fn value(module: &Module, name: &str) -> Vec<f64> {
    first_values(module).iter().find(|(known, _)| known == name).unwrap().1.to_f64s().unwrap()
}

const NAMES: [&str; 4] = ["a.weight", "a.bias", "b.weight", "b.bias"];

#[test]
fn values_come_from_models_results_and_snapshots() {
    let dir = tempfile::tempdir().unwrap();
    let options = options("adam", &Hyperparameters::default(), entropy());
    let (own, other) = (model(4, entropy()), model(5, entropy()));
    let path = |name: &str| dir.path().join(name);
    let progress = Progress { step: 1, seed: 0, batch: SAMPLES, samples: SAMPLES };
    of_onnx::export_file(&path("model.onnx"), &other, &of_onnx::ExportOptions::default()).unwrap();
    let mut one = trainer(other.clone(), &options, &[]);
    one.write_parameters(&path("result.safetensors"), progress).unwrap();
    one.snapshot(&SnapshotPlace::file(&path("one.safetensors")), progress).unwrap();
    // Parts of tensors are in this one.
    let how: How = ("cpu[2]", (1, 1), &["a.weight=S(1)", "b.weight=S(0)", "*.mean=S(0)"]);
    assert_ne!(how, MESHES[0]);
    let mut two = on_mesh(&other, &options, how, Precision::Model);
    two.snapshot(&SnapshotPlace::file(&path("two.safetensors")), progress).unwrap();
    for (file, unused) in [
        ("model.onnx", 0),
        ("result.safetensors", 0),
        // Two states for each parameter, and the number of the step.
        ("one.safetensors", 9),
        ("two.safetensors", 9),
    ] {
        let (loaded, module) = load(&own, &path(file), &[]).unwrap_or_else(|e| panic!("{file}: {e}"));
        assert_eq!(loaded, LoadedWeights { loaded: 4, kept: Vec::new(), unused }, "{file}");
        for name in NAMES {
            assert_eq!(value(&module, name), value(&other, name), "{file}: {name}");
            assert_ne!(value(&own, name), value(&other, name));
        }
    }
    // Other floats are converted.
    let half = half::f16::from_f32(1.5).to_le_bytes();
    let bytes: Vec<(String, Vec<usize>, Vec<u8>)> = first_values(&own)
        .into_iter()
        .map(|(name, value)| (name, value.dims().to_vec(), half.repeat(value.len())))
        .collect();
    let views = bytes.iter().map(|(name, dims, bytes)| {
        (name, safetensors::tensor::TensorView::new(safetensors::Dtype::F16, dims.clone(), bytes).unwrap())
    });
    std::fs::write(path("half.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    let (_, module) = load(&own, &path("half.safetensors"), &[]).unwrap();
    assert!(value(&module, "b.weight").iter().all(|x| *x == 1.5));
}

#[test]
fn parameters_that_do_not_fit_are_named_and_may_be_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let options = options("sgd", &Hyperparameters::default(), entropy());
    let progress = Progress { step: 0, seed: 0, batch: SAMPLES, samples: SAMPLES };
    let path = dir.path().join("w.safetensors");
    let other = perceptron(5, &[FEATURES, 16, 5], &[0, 5]);
    trainer(other.clone(), &options, &[]).write_parameters(&path, progress).unwrap();
    let own = model(4, entropy());
    let e = load(&own, &path, &[]).unwrap_err();
    for words in ["b.weight ([5, 16], not [3, 16])", "b.bias ([5], not [3])", "--weights-ignore b.weight,b.bias"] {
        assert!(e.contains(words), "{words}: {e}");
    }
    let (loaded, module) = load(&own, &path, &["b.*"]).unwrap();
    assert_eq!(loaded, LoadedWeights { loaded: 2, kept: vec!["b.weight".into(), "b.bias".into()], unused: 0 });
    assert_eq!(
        (value(&module, "a.weight"), value(&module, "b.weight")),
        (value(&other, "a.weight"), value(&own, "b.weight"))
    );
    let e = load(&own, &path, &["b.*", "head.*"]).unwrap_err();
    assert!(e.contains("no parameter is called 'head.*'; there are a.bias, a.weight"), "{e}");
    // The file lacks the last layer.
    let e = load(&wide(4), &path, &["b.*"]).unwrap_err();
    assert!(e.contains("lacks c.weight, c.bias") && !e.contains("b.bias ("), "{e}");
    let (loaded, _) = load(&wide(4), &path, &["b.*", "c.*"]).unwrap();
    assert_eq!((loaded.loaded, loaded.kept.len()), (2, 4));
    // None of the names is one of the model.
    let views = [("x", safetensors::tensor::TensorView::new(safetensors::Dtype::U8, vec![1], &[7]).unwrap())];
    std::fs::write(&path, safetensors::serialize(views, None).unwrap()).unwrap();
    let e = load(&own, &path, &[]).unwrap_err();
    assert!(e.contains("has none of the parameters of the model: it has x, and the model a.weight"), "{e}");
    std::fs::write(&path, "no header").unwrap();
    assert!(load(&own, &path, &[]).unwrap_err().contains("is no safetensors file"));
    let e = load(&own, &dir.path().join("w.pth"), &[]).unwrap_err();
    assert!(e.contains("ends in neither .safetensors nor .onnx") && e.contains("save_file"), "{e}");
}

/// Two linear layers along the last axis, and a softmax.
fn classifier(dims: &[i64]) -> Module {
    let mut b = Builder::new("classifier");
    let shape = std::iter::once(Dim::symbol("n")).chain(dims.iter().map(|d| Dim::from(*d))).collect();
    let x = b.input("x", Type::tensor(DType::F32, shape));
    let mut init = nn::Init::new(3);
    let widths = [*dims.last().unwrap() as usize, 8, CLASSES];
    let mut y = x;
    for (i, name) in ["first", "last"].into_iter().enumerate() {
        let layer = nn::Linear::new(&mut init, widths[i], widths[i + 1]).unwrap();
        y = b.within(name, |b| layer.apply(b, y)).unwrap();
    }
    let y = b.op(Softmax { axis: -1 }, &[y]).unwrap();
    b.finish(&[("y", y)]).unwrap()
}

#[test]
fn a_new_last_layer_gives_another_number_of_scores() {
    // A product with a bias of its own, and one with the bias added.
    for dims in [&[FEATURES as i64][..], &[2, FEATURES as i64]] {
        let old = classifier(dims);
        let mut new = old.clone();
        let head = reset_head(&mut new, None, 5, 1).unwrap_or_else(|d| panic!("{d}"));
        assert_eq!(
            (head.weight.as_str(), head.bias.as_deref(), head.scores),
            ("last.weight", Some("last.bias"), CLASSES)
        );
        let ty = new.main().unwrap().output_types().remove(0);
        assert_eq!(ty.as_tensor().unwrap().shape.as_ref().unwrap().last().unwrap().as_const(), Some(5));
        assert_eq!(value(&new, "first.weight"), value(&old, "first.weight"));
        let weight = value(&new, "last.weight");
        let bound = 1.0 / 8f64.sqrt();
        assert!(weight.len() == 5 * 8 && weight.iter().all(|x| x.abs() <= bound), "{weight:?}");
        assert!(weight.iter().any(|x| x.abs() > 0.8 * bound) && value(&new, "last.bias").iter().any(|x| *x != 0.0));
        let mut same = old.clone();
        reset_head(&mut same, Some("y"), 5, 1).unwrap();
        assert_eq!(value(&same, "last.weight"), weight);
    }
    // It learns.
    let mut module = classifier(&[FEATURES as i64]);
    reset_head(&mut module, None, 5, 1).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (_, _, folder) = data(dir.path(), entropy());
    let options = options("adam", &Hyperparameters::default(), entropy());
    let samples = dataset(&folder, &module, &options);
    let mut t = trainer(module, &options, &[]);
    let losses = super::ranks::steps(&mut t, &samples, 0..20);
    assert!(losses[0] > 1.0 && losses[19] < 0.5 * losses[0], "{losses:?}");
}

#[test]
fn other_last_layers_are_refused() {
    let refused =
        |module: &Module, output: Option<&str>| reset_head(&mut module.clone(), output, 5, 0).unwrap_err().to_string();
    let e = refused(&model(4, entropy()), None);
    assert!(e.contains("the last layer of output 'y' cannot be replaced: of.reshape gives it"), "{e}");
    assert!(refused(&classifier(&[2]), Some("z")).contains("the model has no output 'z'; there are y"));
    // Both outputs are of one layer's weights.
    let mut b = Builder::new("shared");
    let x = b.input("x", Type::tensor(DType::F32, vec![Dim::symbol("n"), Dim::from(2i64)]));
    let w = b.parameter("w", Tensor::from_slice(&[2, 2], &[1f32, 2.0, 3.0, 4.0]).unwrap()).unwrap();
    let y = b.op(of_ops::contraction::MatMul {}, &[x, w]).unwrap();
    let y = b.op(of_ops::contraction::MatMul {}, &[y, w]).unwrap();
    let e = refused(&b.finish(&[("y", y)]).unwrap(), None);
    assert!(e.contains("'w' is read 2 times"), "{e}");
}
