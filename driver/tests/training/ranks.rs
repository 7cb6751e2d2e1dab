//! Trainings on meshes: losses and values are those of one rank, whatever the layouts, and snapshots move between meshes.

use of_driver::{CompileOptions, MeshOptions, Precision, SessionOptions, Stages};

use super::*;

/// A mesh, stages and microbatches, and layouts by hand.
pub(super) type How<'a> = (&'a str, (i64, i64), &'a [&'a str]);

pub(super) fn on_mesh(
    module: &Module,
    options: &TrainOptions,
    (mesh, (stages, microbatches), layouts): How<'_>,
    precision: Precision,
) -> Trainer {
    let mesh = MeshOptions {
        mesh: mesh.into(),
        stages: (stages * microbatches > 1).then_some(Stages { stages, microbatches }),
        layouts: layouts.iter().map(|layout| (*layout).to_string()).collect(),
        ..MeshOptions::default()
    };
    let cache = of_driver::Cache::none();
    let compile = CompileOptions { cache, precision, mesh: Some(mesh), ..CompileOptions::default() };
    let session = SessionOptions { threads: 1, ..SessionOptions::default() };
    Trainer::new(Model::from_module(module.clone()), options, &[], &compile, session, &of_driver::Silent)
        .unwrap_or_else(|d| panic!("{d}"))
}

/// A network with random weights, how it is trained, and its data.
fn case(dir: &std::path::Path, seed: u64) -> (Module, TrainOptions, Dataset) {
    let loss = Loss::named("cross-entropy").unwrap();
    let (_, _, folder) = data(dir, loss);
    let (module, options) = (wide(seed), options("adamw", &Hyperparameters::default(), loss));
    let data = dataset(&folder, &module, &options);
    (module, options, data)
}

pub(super) fn steps(t: &mut Trainer, data: &Dataset, range: std::ops::Range<usize>) -> Vec<f64> {
    let all: Vec<usize> = (0..SAMPLES).collect();
    range.map(|_| t.step(data.batch(&all).unwrap(), 0.02).unwrap()).collect()
}

pub(super) fn assert_near(got: &[f64], want: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (got, want) in got.iter().zip(want) {
        assert!((got - want).abs() <= tolerance * want.abs().max(0.05), "{what}: {got}, not {want}");
    }
}

/// Data, tensor and pipeline parallelism, all of them, and ZeRO: chosen by the search, and by hand.
pub(super) const MESHES: [How; 11] = [
    ("cpu[2]", (1, 1), &[]),
    ("cpu[4]", (1, 1), &[]),
    ("cpu[2x2]", (1, 1), &[]),
    ("cpu[2]", (1, 1), &["x=S(0)", "labels=S(0)", "*.weight=B", "*.bias=B"]),
    ("cpu[2]", (1, 1), &["x=B", "a.weight=S(1)", "b.weight=S(0)"]),
    ("cpu[2x2]", (1, 1), &["x=S(0),B", "a.weight=B,S(1)", "b.weight=B,S(0)"]),
    ("cpu[2]", (1, 1), &["x=S(0)", "*.mean=S(0)", "*.square=S(0)"]),
    ("cpu[4]", (1, 1), &["x=S(0)", "a.*=S(0)", "b.*=S(0)"]),
    ("cpu[2]", (1, 4), &[]),
    ("cpu[2]", (2, 4), &[]),
    ("cpu[4]", (2, 2), &[]),
];

#[test]
fn meshes_have_the_losses_of_one_rank() {
    let dir = tempfile::tempdir().unwrap();
    let (module, options, data) = case(dir.path(), 4);
    let mut one = trainer(module.clone(), &options, &[]);
    let names: Vec<String> = one.variables().unwrap().names().into_iter().map(str::to_owned).collect();
    let want = steps(&mut one, &data, 0..12);
    let evaluated = one.evaluate(&data).unwrap();
    for how in MESHES {
        let mut ranks = on_mesh(&module, &options, how, Precision::Model);
        assert_near(&steps(&mut ranks, &data, 0..12), &want, 1e-4, &format!("losses of {how:?}"));
        let own = ranks.evaluate(&data).unwrap();
        assert_near(&[own.loss], &[evaluated.loss], 1e-4, &format!("evaluation of {how:?}"));
        assert_eq!(own.accuracy, evaluated.accuracy, "{how:?}");
        let mut known: Vec<&str> = ranks.variables().unwrap().names();
        let mut wanted: Vec<&str> = names.iter().map(String::as_str).collect();
        known.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(known, wanted, "{how:?}");
        let value = |t: &Trainer, name: &str| t.parameter(name).unwrap().to_f64s().unwrap();
        for name in ["a.weight", "b.bias", "c.weight"] {
            assert_near(&value(&ranks, name), &value(&one, name), 1e-3, &format!("{name} of {how:?}"));
        }
    }
}

#[test]
fn precision_of_16_bits_is_that_of_one_rank() {
    let dir = tempfile::tempdir().unwrap();
    let (module, options, data) = case(dir.path(), 8);
    for precision in [Precision::Bf16, Precision::F16] {
        let want = steps(&mut trainer_in(module.clone(), &options, &[], precision).unwrap(), &data, 0..10);
        for how in [MESHES[0], MESHES[2], MESHES[3]] {
            let got = steps(&mut on_mesh(&module, &options, how, precision), &data, 0..10);
            assert_near(&got, &want, 0.01, &format!("{precision:?} of {how:?}"));
        }
    }
}

#[test]
fn snapshots_of_one_mesh_are_restored_on_another() {
    let dir = tempfile::tempdir().unwrap();
    let (module, options, data) = case(dir.path(), 5);
    let path = dir.path().join("s.safetensors");
    let place = SnapshotPlace::file(&path);
    let progress = Progress { step: 6, seed: 0, batch: SAMPLES, samples: SAMPLES };
    let mut first = on_mesh(&module, &options, MESHES[7], Precision::Model);
    steps(&mut first, &data, 0..6);
    first.snapshot(&place, progress).unwrap();
    let values = |t: &Trainer| {
        let variables = t.variables().unwrap();
        let mut all: Vec<_> =
            variables.names().into_iter().map(|n| (n.to_owned(), variables.get(n).unwrap())).collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    };
    let saved = values(&first);
    let later = steps(&mut first, &data, 6..10);
    for how in [MESHES[0], MESHES[2], MESHES[7], MESHES[9]] {
        let mut other = on_mesh(&module, &options, how, Precision::Model);
        assert_eq!(other.restore(&place).unwrap(), progress);
        assert_eq!(values(&other), saved, "{how:?}");
        let got = steps(&mut other, &data, 6..10);
        match how.2 == MESHES[7].2 {
            // An equal layout has the same bits.
            true => assert_eq!(got, later),
            false => assert_near(&got, &later, 1e-4, &format!("{how:?}")),
        }
    }
    let mut one = trainer(module, &options, &[]);
    one.restore(&place).unwrap();
    assert_eq!(values(&one), saved);
    assert_near(&steps(&mut one, &data, 6..10), &later, 1e-4, "one rank");
    // A changed byte is noticed, and nothing changes.
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let before = values(&one);
    let error = one.restore(&place).unwrap_err().to_string();
    assert!(error.contains("is damaged: its hash is not that of its tensors"), "{error}");
    assert_eq!(values(&one), before);
}

#[test]
fn snapshots_are_written_while_steps_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let (module, options, data) = case(dir.path(), 5);
    let path = dir.path().join("s.safetensors");
    let place = SnapshotPlace::file(&path);
    let mut t = trainer(module.clone(), &options, &[]);
    for step in 0..40 {
        steps(&mut t, &data, step..step + 1);
        // The last one waits for the one before.
        let progress = Progress { step: step + 1, ..Progress::default() };
        let begun = t.begin_snapshot(&place, progress, step == 39).unwrap();
        assert!(begun || (1..39).contains(&step));
    }
    t.finish_snapshots().unwrap();
    let last = t.parameter("a.weight").unwrap();
    let mut other = trainer(module, &options, &[]);
    assert_eq!(other.restore(&place).unwrap().step, 40);
    assert_eq!(other.parameter("a.weight").unwrap(), last);
    // A snapshot that cannot be written is an error of the next one, or of the end.
    let begun = t.begin_snapshot(&SnapshotPlace::file(&dir.path().join("no/such")), Progress::default(), false);
    let error = begun.and_then(|_| t.finish_snapshots()).unwrap_err().to_string();
    assert!(error.contains("cannot be written"), "{error}");
}

#[test]
fn wrong_layouts_by_hand_are_refused() {
    let loss = Loss::named("cross-entropy").unwrap();
    let (module, options) = (wide(5), options("sgd", &Hyperparameters::default(), loss));
    for (layout, words) in [
        ("x", "is not NAME=LAYOUT, such as image=S(0)"),
        ("x=Q", "has no layout after '='"),
        ("x=S(0),B", "has 2 components, and the mesh needs 1: one for each axis"),
        ("x=S(2)", "splits an axis that 'x' does not have"),
        ("y=S(0)", "names no input of the model"),
    ] {
        let mesh = MeshOptions { mesh: "cpu[2]".into(), layouts: vec![layout.into()], ..MeshOptions::default() };
        let compile = CompileOptions { mesh: Some(mesh), ..CompileOptions::default() };
        let session = SessionOptions::default();
        let model = Model::from_module(module.clone());
        let error = Trainer::new(model, &options, &[], &compile, session, &of_driver::Silent).err().unwrap();
        assert!(error.to_string().contains(words), "{layout}: {error}");
    }
}
