//! Losses and their gradients against PyTorch 2's, in double precision: the constants are what
//! `torch.nn.functional` gives for the same scores.

use of_driver::Model;
use of_driver::training::{Dataset, Evaluation, Hyperparameters, Loss, TrainOptions, columns, named};
use of_frontend::Builder;
use of_ir::{DType, Dim, Module, Tensor, Type};
use of_ops::elementwise::Add;
use of_runtime::Value;

const ROWS: usize = 4;

/// A model that adds a parameter of zeros to its input, so that the gradient of the parameter is that of the scores.
fn shift(dims: &[usize]) -> Module {
    let mut b = Builder::new("shift");
    let mut shape = vec![Dim::symbol("n")];
    shape.extend(dims.iter().map(|d| Dim::from(*d as i64)));
    let x = b.input("x", Type::tensor(DType::F32, shape));
    let zeros = Tensor::from_slice(dims, &vec![0f32; dims.iter().product()]).unwrap();
    let w = b.constant(zeros).unwrap();
    let y = b.op(Add {}, &[x, w]).unwrap();
    let mut module = b.finish(&[("y", y)]).unwrap();
    let func = module.funcs.get_mut("main").unwrap();
    of_ir::Rewriter::new(&mut func.graph, "test").set_name(w, "w");
    module
}

/// `2 sin(0.7 i + 0.3)`.
fn scores(dims: &[usize]) -> Value {
    let n = ROWS * dims.iter().product::<usize>();
    let values: Vec<f32> = (0..n).map(|i| (2.0 * (0.7 * i as f64 + 0.3).sin()) as f32).collect();
    let mut all = vec![ROWS as i64];
    all.extend(dims.iter().map(|d| *d as i64));
    of_runtime::Tensor::from_elements(all, &values).unwrap().into()
}

/// The loss, and the first elements of the gradient.
fn check(loss: Loss, dims: &[usize], labels: Value, expected: f64, gradient: &[f64]) {
    let model = shift(dims);
    let sgd = named("sgd", &Hyperparameters::default()).unwrap();
    let mut options = TrainOptions::new(loss, sgd, ROWS);
    let wanted = columns(&Model::from_module(model.clone()), &options).unwrap();
    let label_dims = labels.as_tensor().unwrap().dims().to_vec();
    let label_type = wanted[1].ty.as_tensor().unwrap().shape.clone().unwrap();
    for (dim, extent) in label_type.iter().zip(label_dims).skip(1) {
        dim.as_symbol().map(|s| options.extents.insert(s.to_string(), extent));
    }
    let mut trainer = super::trainer(model, &options, &[]);
    let got = trainer.step(vec![scores(dims), labels], 1.0).unwrap_or_else(|d| panic!("{loss:?}: {d}"));
    assert!((got - expected).abs() < 2e-6 * expected.abs().max(1.0), "{loss:?}: {got}, not {expected}");
    let w = trainer.parameter("w").unwrap().to_f64s().unwrap();
    for (w, g) in w.iter().zip(gradient) {
        assert!((w + g).abs() < 2e-6, "{loss:?}: gradient {}, not {g}", -w);
    }
}

fn floats(dims: &[i64], values: &[f32]) -> Value {
    of_runtime::Tensor::from_elements(dims.to_vec(), values).unwrap().into()
}

fn classes(dims: &[i64], values: &[i64]) -> Value {
    of_runtime::Tensor::from_elements(dims.to_vec(), values).unwrap().into()
}

#[test]
fn focal_loss_is_torchvisions() {
    let labels: Vec<f32> = (0..12).map(|i| ((i / 3 + i % 3) % 2) as f32).collect();
    let labels = || floats(&[4, 3], &labels);
    let loss = Loss::named("focal").unwrap();
    check(loss, &[3], labels(), 0.276428441, &[0.033233971, 0.062612897, 0.054502250]);
    let loss = Loss::Focal { alpha: Some(0.6), gamma: 1.5 };
    check(loss, &[3], labels(), 0.268559596, &[0.010840461, -0.005204153, -0.004992181]);
}

#[test]
fn cross_entropy_of_probabilities_is_torchs() {
    let labels = || floats(&[4, 3], &[0.7, 0.2, 0.1, 0.0, 1.0, 0.0, 0.5, 0.0, 0.5, 0.25, 0.25, 0.5]);
    for (smoothing, expected, gradient) in [
        (0.0, 1.378835743, [-0.070109663, -0.069276131, 0.139385793]),
        (0.1, 1.374265916, [-0.067192996, -0.066359464, 0.133552460]),
    ] {
        check(Loss::SoftCrossEntropy { smoothing, axis: 1 }, &[3], labels(), expected, &gradient);
    }
}

#[test]
fn ctc_is_torchs() {
    let labels = |values: [i64; 12]| classes(&[4, 3], &values);
    check(
        Loss::Ctc { blank: 0 },
        &[5, 4],
        labels([1, 2, -1, 2, 2, 1, 1, -1, -1, 2, 2, 2]),
        3.250069158,
        &[-0.096608266, -0.014173861, -0.006758164, 0.117540290, -0.131036246, -0.114198522, 0.056075568, 0.189159200],
    );
    check(
        Loss::Ctc { blank: 3 },
        &[5, 4],
        labels([1, 2, -1, 2, 2, 0, 0, -1, -1, 2, 2, 2]),
        3.507658388,
        &[0.161464908, 0.029470683, -0.072270018, -0.118665572, 0.067846637, 0.014210719, 0.122533058, -0.204590414],
    );
    // Three equal labels need five steps: with four, the last sample has no part, as with zero_infinity.
    check(
        Loss::Ctc { blank: 0 },
        &[4, 4],
        labels([1, 2, -1, 2, 2, 1, 1, -1, -1, 2, 2, 2]),
        1.865607254,
        &[-0.121389422, -0.105313097, 0.026322157, 0.200380362, -0.100424859, -0.063874783, 0.102439688, 0.061859953],
    );
}

#[test]
fn contrastive_loss_of_pairs_is_nt_xent() {
    let loss = Loss::Contrastive { temperature: 0.5 };
    let pairs = classes(&[4], &[7, 7, -3, -3]);
    check(loss, &[3], pairs, 2.217406558, &[-0.115316746, -0.424460731, -0.533974202]);
    // A label with three rows, and a row that is alone and does not count.
    let groups = classes(&[4], &[0, 0, 0, 1]);
    check(loss, &[3], groups, 1.780172905, &[0.030406199, -0.017434169, -0.057074975]);
}

#[test]
fn cosine_embedding_loss_is_torchs() {
    let labels = || floats(&[4], &[1.0, -1.0, 1.0, -1.0]);
    let gradient = [-0.013008107, 0.064398385, 0.111517311, -0.104280075, -0.069587460, -0.002166775];
    check(Loss::CosineEmbedding { margin: 0.0 }, &[2, 3], labels(), 0.666650705, &gradient);
    let gradient = [0.031288464, 0.097076048, 0.117207249, -0.088023341, 0.003951722, 0.094068229];
    check(Loss::CosineEmbedding { margin: -0.9 }, &[2, 3], labels(), 0.839240883, &gradient);
}

#[test]
fn outputs_that_do_not_fit_a_loss_are_refused() {
    for (loss, dims, words) in [
        ("ctc", &[3][..], "scores [samples, steps, classes]"),
        ("contrastive", &[2, 3], "embeddings [samples, size]"),
        ("cosine-embedding", &[3, 3], "pairs of embeddings [samples, 2, size]"),
    ] {
        let sgd = named("sgd", &Hyperparameters::default()).unwrap();
        let options = TrainOptions::new(Loss::named(loss).unwrap(), sgd, ROWS);
        let error = columns(&Model::from_module(shift(dims)), &options).unwrap_err().to_string();
        assert!(error.contains(words), "{loss}: {error}");
    }
}

#[test]
fn a_sigmoid_at_the_end_is_left_out_of_binary_losses() {
    let labels: Vec<f32> = (0..12).map(|i| ((i / 3 + i % 3) % 2) as f32).collect();
    for loss in ["bce", "focal"] {
        let loss = Loss::named(loss).unwrap();
        let [scored, probable, moved] = [(false, false), (true, false), (true, true)].map(|(has_sigmoid, is_moved)| {
            let (mut b, outputs) = Builder::reopen(&shift(&[3]), shift(&[3]).main().unwrap().clone());
            let y = if has_sigmoid { b.op(of_ops::elementwise::Sigmoid {}, &outputs).unwrap() } else { outputs[0] };
            let axes = b.constant(Tensor::from_i64s(&[1])).unwrap();
            let mut moved = |y| {
                let y = b.op(of_ops::movement::Unsqueeze {}, &[y, axes]).unwrap();
                b.op(of_ops::movement::Squeeze {}, &[y, axes]).unwrap()
            };
            let y = if is_moved { moved(y) } else { y };
            let model = b.finish(&[("y", y)]).unwrap();
            let options = TrainOptions::new(loss, named("sgd", &Hyperparameters::default()).unwrap(), ROWS);
            let mut trainer = super::trainer(model.clone(), &options, &[]);
            let wanted = columns(&Model::from_module(model), &options).unwrap();
            let x: Vec<f32> = (0..12).map(|i| (2.0 * (0.7 * f64::from(i) + 0.3).sin()) as f32).collect();
            let columns = vec![
                ("x".into(), Tensor::from_slice(&[ROWS, 3], &x).unwrap()),
                ("labels".into(), Tensor::from_slice(&[ROWS, 3], &labels).unwrap()),
            ];
            let found = trainer.evaluate(&Dataset::of_columns(columns, &wanted).unwrap()).unwrap();
            let step = trainer.step(vec![scores(&[3]), floats(&[4, 3], &labels)], 1.0).unwrap();
            (found, step, trainer.parameter("w").unwrap().to_f64s().unwrap())
        });
        assert!(scored.0.accuracy.is_some_and(|part| part > 0.0 && part < 1.0), "{scored:?}");
        assert_eq!(scored, probable, "{loss:?}");
        assert_eq!(scored, moved, "{loss:?}");
    }
}

/// What an evaluation finds of four samples of three scores.
fn evaluated(loss: Loss, top_k: Option<usize>, scores: [f32; 12], labels: Tensor) -> Evaluation {
    let model = shift(&[3]);
    let sgd = named("sgd", &Hyperparameters::default()).unwrap();
    let options = TrainOptions { top_k, ..TrainOptions::new(loss, sgd, ROWS) };
    let wanted = columns(&Model::from_module(model.clone()), &options).unwrap();
    let scores = Tensor::from_slice(&[ROWS, 3], &scores).unwrap();
    let data = Dataset::of_columns(vec![("x".into(), scores), ("labels".into(), labels)], &wanted).unwrap();
    super::trainer(model, &options, &[]).evaluate(&data).unwrap_or_else(|d| panic!("{loss:?}: {d}"))
}

#[test]
fn metrics_count_labels_that_are_right() {
    const SCORES: [f32; 12] = [3.0, 2.0, 1.0, 1.0, 3.0, 2.0, 2.0, 1.0, 3.0, 1.0, 2.0, 3.0];
    let classes = || Tensor::from_slice(&[ROWS], &[0i64, 2, 1, 2]).unwrap();
    let entropy = |ignore: i64| Loss::CrossEntropy { smoothing: 0.0, ignore, axis: -1 };
    let of = |evaluation: Evaluation| (evaluation.accuracy, evaluation.top_k_accuracy);
    assert_eq!(of(evaluated(entropy(-100), None, SCORES, classes())), (Some(0.5), None));
    assert_eq!(of(evaluated(entropy(-100), Some(1), SCORES, classes())), (Some(0.5), Some(0.5)));
    assert_eq!(of(evaluated(entropy(-100), Some(2), SCORES, classes())), (Some(0.5), Some(0.75)));
    // Labels that do not count are neither right nor wrong.
    assert_eq!(of(evaluated(entropy(1), Some(2), SCORES, classes())), (Some(2.0 / 3.0), Some(1.0)));
    assert_eq!(of(evaluated(entropy(2), Some(2), SCORES, classes())), (Some(0.5), Some(0.5)));
    let probabilities = [0.6f32, 0.3, 0.1, 0.0, 0.1, 0.9, 0.2, 0.5, 0.3, 0.0, 0.0, 1.0];
    let probabilities = Tensor::from_slice(&[ROWS, 3], &probabilities).unwrap();
    let soft = Loss::SoftCrossEntropy { smoothing: 0.0, axis: 1 };
    assert_eq!(of(evaluated(soft, Some(2), SCORES, probabilities)), (Some(0.5), Some(0.75)));
    let signs = SCORES.map(|score| score - 2.5);
    let sides = || {
        let right = SCORES.map(|score| f32::from(u8::from(score > 2.5)));
        let wrong = [1.0 - right[0], 1.0 - right[1], 1.0 - right[2]];
        Tensor::from_slice(&[ROWS, 3], &[&wrong[..], &right[3..]].concat()).unwrap()
    };
    for loss in ["bce", "focal"] {
        assert_eq!(of(evaluated(Loss::named(loss).unwrap(), None, signs, sides())), (Some(0.75), None), "{loss}");
    }
    assert_eq!(of(evaluated(Loss::Mse, None, signs, sides())), (None, None));
}

#[test]
fn a_label_is_not_among_more_classes_than_there_are() {
    let sgd = named("sgd", &Hyperparameters::default()).unwrap();
    let loss = Loss::named("cross-entropy").unwrap();
    let options = TrainOptions { top_k: Some(4), ..TrainOptions::new(loss, sgd, ROWS) };
    let made = super::trainer_in(shift(&[3]), &options, &[], of_driver::Precision::Model);
    let e = made.err().unwrap().to_string();
    assert!(e.contains("a label cannot be among the first 4 classes of 3"), "{e}");
}
