//! `of-opt train` on folders of images; and flags of optimizers, losses and schedules.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn of_opt(dir: &Path, args: &[&str]) -> Output {
    let mut c = Command::new(env!("CARGO_BIN_EXE_of-opt"));
    for name in ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"]
    {
        c.env_remove(name);
    }
    c.args(args).current_dir(dir).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A picture of noise, which is red or blue.
fn write_image(path: PathBuf, is_red: bool, seed: u64) {
    const SIZE: (usize, usize) = (40, 30);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut bytes = format!("P6\n{} {}\n255\n", SIZE.0, SIZE.1).into_bytes();
    for _ in 0..SIZE.0 * SIZE.1 {
        let (strong, weak) = (random.u8(120..), random.u8(..120));
        bytes.extend(if is_red { [strong, 80, weak] } else { [weak, 80, strong] });
    }
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}

/// Ten images of each class, `cat` red and `dog` blue.
fn photos(dir: &Path) {
    for i in 0..10 {
        write_image(dir.join(format!("photos/cat/{i}.ppm")), true, i);
        write_image(dir.join(format!("photos/dog/{i}.ppm")), false, 100 + i);
    }
}

/// Trains a narrow ResNet on the photos of a folder with further arguments.
fn train(dir: &Path, settings: &str, args: &[&str]) -> Output {
    let model = format!("zoo:resnet50:small,size=32{settings}");
    let common = ["train", &model, "--data", "photos", "--batch", "4", "--learning-rate", "0.003", "--threads", "1"];
    of_opt(dir, &[&common[..], args].concat())
}

/// The last line of JSON of a training.
fn last(out: &Output) -> Value {
    assert!(out.status.success(), "{}", text(&out.stderr));
    serde_json::from_str(text(&out.stdout).lines().last().unwrap()).unwrap()
}

#[test]
fn photos_train_a_model_whose_run_prints_the_names_of_classes() {
    let dir = tempfile::tempdir().unwrap();
    photos(dir.path());
    // The only class here is the second one of the training. Folders without images, and hidden ones, are no classes.
    for i in 0..5 {
        write_image(dir.path().join(format!("validation/dog/{i}.ppm")), false, 200 + i);
    }
    write_image(dir.path().join("photos/.trash/0.ppm"), false, 7);
    std::fs::create_dir(dir.path().join("photos/birds")).unwrap();
    let out = train(
        dir.path(),
        ",classes=2",
        &["--validation", "validation", "--epochs", "8", "--json", "-o", "pets.onnx", "-o", "pets.safetensors"],
    );
    assert_eq!(last(&out)["accuracy"].as_f64(), Some(1.0), "{}", text(&out.stdout));
    let said = text(&out.stderr);
    assert!(said.contains("20 samples of 2 classes (cat, dog); "), "{said}");
    assert_eq!(said.matches("pets.labels.txt: written").count(), 1, "{said}");
    assert_eq!(std::fs::read_to_string(dir.path().join("pets.labels.txt")).unwrap(), "cat\ndog\n");
    for (is_red, name) in [(true, " 0 cat ("), (false, " 1 dog (")] {
        write_image(dir.path().join("photo.ppm"), is_red, 300);
        let args = ["run", "pets.onnx", "--inputs", "photo.ppm", "--top", "1", "--labels"];
        let run = of_opt(dir.path(), &args);
        assert!(text(&run.stdout).contains(name), "{}{}", text(&run.stdout), text(&run.stderr));
    }
}

#[test]
fn names_of_classes_that_are_not_there_are_an_error_with_a_hint() {
    let dir = tempfile::tempdir().unwrap();
    let run = of_opt(dir.path(), &["run", "zoo:ncf:small", "--shape", "user=1", "--top", "1", "--labels"]);
    let said = text(&run.stderr);
    assert!(!run.status.success() && said.contains("--labels FILE names another"), "{said}");
}

#[test]
fn classes_must_be_those_of_the_training_and_have_scores() {
    let dir = tempfile::tempdir().unwrap();
    photos(dir.path());
    write_image(dir.path().join("validation/bird/0.ppm"), true, 1);
    let without = ["--plan", "p.plan", "--compile-only"];
    let said = |settings: &str, args: &[&str]| {
        let out = train(dir.path(), settings, &[args, &without].concat());
        (out.status.success(), text(&out.stderr))
    };
    let (is_fine, errors) = said(",classes=2", &["--validation", "validation"]);
    assert!(!is_fine && errors.contains("the training data has no class 'bird'"), "{errors}");
    assert!(errors.contains("its classes are cat, dog"), "{errors}");
    let (is_fine, errors) = said(",classes=1", &[]);
    assert!(
        !is_fine && errors.contains("the data has 2 classes, and the model's output 'scores' has 1 score"),
        "{errors}"
    );
    assert!(errors.contains("zoo:resnet50:classes=2"), "{errors}");
    let (is_fine, warnings) = said(",classes=5", &[]);
    assert!(
        is_fine && warnings.contains("the data has 2 classes, and the model's output 'scores' has 5 scores"),
        "{warnings}"
    );
    let (is_fine, warnings) = said(",classes=2", &[]);
    assert!(is_fine && !warnings.contains("warning"), "{warnings}");
}

#[test]
fn images_are_changed_at_random_and_validation_shows_their_centres() {
    let dir = tempfile::tempdir().unwrap();
    photos(dir.path());
    let run = |args: &[&str]| {
        let common = ["--validation", "photos", "--epochs", "8", "--json", "-o", "m.onnx"];
        last(&train(dir.path(), ",classes=2", &[&common[..], args].concat()))
    };
    let changes = ["--random-crop", "0.3", "--random-flip", "--color-jitter", "0.3"];
    let (plain, changed) = (run(&[]), run(&changes));
    assert_eq!(changed["accuracy"].as_f64(), Some(1.0), "{changed}");
    assert_ne!(plain["loss"], changed["loss"]);
    // One seed gives one result, with the same part of validation images.
    let again = run(&[&changes[..], &["--validation-crop", "0.875"]].concat());
    assert_eq!((&changed["loss"], &changed["validation_loss"]), (&again["loss"], &again["validation_loss"]));
    let whole = run(&[&changes[..], &["--validation-crop", "1"]].concat());
    assert_eq!(changed["loss"], whole["loss"]);
    assert_ne!(changed["validation_loss"], whole["validation_loss"]);
    let other = run(&[&changes[..], &["--seed", "1"]].concat());
    assert_ne!(changed["loss"], other["loss"]);
}

#[test]
fn a_trained_model_learns_other_classes() {
    let dir = tempfile::tempdir().unwrap();
    photos(dir.path());
    let out = train(dir.path(), ",classes=2", &["--epochs", "2", "-o", "pets.onnx", "-o", "pets.safetensors"]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    for i in 0..4 {
        write_image(dir.path().join(format!("photos/bird/{i}.ppm")), i % 2 == 0, 400 + i);
    }
    let said = |model: &str, args: &[&str]| {
        let common = ["train", model, "--data", "photos", "--batch", "4", "--threads", "1", "--epochs", "1"];
        let out = of_opt(dir.path(), &[&common[..], args].concat());
        (out.status.success(), text(&out.stderr))
    };
    let zoo = "zoo:resnet50:small,size=32,classes=3";
    let (is_fine, errors) = said(zoo, &["--weights", "pets.safetensors", "-o", "three.onnx"]);
    for words in [", not [3, ", "fc.bias ([2], not [3])", "--weights-ignore fc.weight,fc.bias begins with"] {
        assert!(!is_fine && errors.contains(words), "{words}: {errors}");
    }
    for file in ["pets.safetensors", "pets.onnx"] {
        let args = ["--weights", file, "--weights-ignore", "fc.*", "-o", "three.onnx"];
        let (is_fine, notes) = said(zoo, &args);
        let words = " parameters loaded, 2 newly initialised (fc.weight, fc.bias)\n";
        assert!(is_fine && notes.contains(file) && notes.contains(words), "{notes}");
    }
    let (is_fine, errors) = said("pets.onnx", &["-o", "three.onnx"]);
    assert!(!is_fine && errors.contains("--reset-head 3 gives it a new last layer"), "{errors}");
    let reset = ["--reset-head", "3", "-o", "three.onnx"];
    let (is_fine, notes) = said("pets.onnx", &reset);
    let words = "the last layer is newly initialised (fc.weight, fc.bias): 3 scores in the place of 2\n";
    assert!(is_fine && notes.contains(words) && !notes.contains("warning"), "{notes}");
    write_image(dir.path().join("photo.ppm"), true, 500);
    let args = ["run", "three.onnx", "--inputs", "photo.ppm", "--top", "3", "--labels", "three.labels.txt"];
    let run = text(&of_opt(dir.path(), &args).stdout);
    assert!([" 0 bird (", " 1 cat (", " 2 dog ("].iter().all(|class| run.contains(class)), "{run}");
    let (is_fine, errors) = said(zoo, &reset);
    assert!(!is_fine && errors.contains("zoo:resnet50:classes=3 has them"), "{errors}");
}

#[test]
fn labels_are_among_the_first_classes() {
    let dir = tempfile::tempdir().unwrap();
    photos(dir.path());
    let common = ["--epochs", "1", "-o", "m.onnx", "--top-k", "2"];
    let with = |args: &[&str]| train(dir.path(), ",classes=2", &[&common[..], args].concat());
    let out = last(&with(&["--validation", "0.2", "--json"]));
    assert_eq!(out["top_k_accuracy"].as_f64(), Some(1.0), "{out}");
    let shown = text(&with(&["--validation", "0.2"]).stdout);
    assert!(shown.contains("  top-2 accuracy 1.0000  "), "{shown}");
    for (args, words) in [
        (&[][..], "--top-k is shown of validation data: give --validation"),
        (&["--validation", "0.2", "--loss", "mse"], "--top-k is of --loss cross-entropy, soft-cross-entropy"),
    ] {
        assert!(text(&with(args).stderr).contains(words), "{words}: {}", text(&with(args).stderr));
    }
}

/// The values of a file of safetensors.
fn values(path: PathBuf) -> Vec<u8> {
    let bytes = std::fs::read(path).unwrap();
    bytes[8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize..].to_vec()
}

/// Ranks that are processes decode their own images, and have the bits of ranks that share the batches of one process.
#[test]
fn ranks_decode_their_own_images() {
    const MESH: [&str; 4] = ["--mesh", "cpu[2]", "--layout", "image=S(0)"];
    const PROCESSES: [&str; 5] = ["--ranks", "2", "--peer-timeout", "60s", "-vv"];
    let dir = tempfile::tempdir().unwrap();
    photos(dir.path());
    let run = |args: &[&str]| {
        let changes = ["--random-crop", "0.5", "--random-flip", "--color-jitter", "0.3"];
        let out = train(dir.path(), ",classes=2", &[&changes[..], &MESH, &["-o", "m.safetensors"], args].concat());
        assert!(out.status.success(), "{}", text(&out.stderr));
        (values(dir.path().join("m.safetensors")), text(&out.stderr))
    };
    for (args, read) in [(&[][..], 2), (&["--mixup", "0.4"], 4), (&["--accumulate", "2"], 2)] {
        let threads = run(&[&["--epochs", "2"], args].concat()).0;
        let (processes, said) = run(&[&["--epochs", "2"], args, &PROCESSES[..]].concat());
        assert!(processes == threads, "{args:?}: processes have another result");
        for rank in ["[rank 0]", "[rank 1]"] {
            let line = said.lines().find(|l| l.starts_with(rank) && l.contains("this process reads of each batch"));
            assert!(line.is_some_and(|l| l.contains(&format!("read={read} of=4"))), "{args:?} {rank}: {said}");
        }
    }
    // A snapshot of processes goes on in one process that decodes all.
    let snapshot = ["--snapshot", "s.safetensors", "--schedule", "constant"];
    let with = |args: &[&str]| run(&[&snapshot[..], args].concat()).0;
    let through = with(&["--epochs", "3"]);
    std::fs::remove_file(dir.path().join("s.safetensors")).unwrap();
    with(&[&["--epochs", "1"][..], &PROCESSES].concat());
    assert!(with(&["--epochs", "3", "--resume"]) == through, "the resumed training has another result");
    // The last image is in a row of the second rank, which tells the first one.
    std::fs::write(dir.path().join("photos/dog/9.ppm"), "P6\n40 30\n255\nshort").unwrap();
    let args = ["--random-flip", "--no-shuffle", "--epochs", "1", "-o", "m.onnx"];
    let out = train(dir.path(), ",classes=2", &[&args[..], &MESH, &PROCESSES[..4]].concat());
    let errors = text(&out.stderr);
    let names = |rank: &str, words: &str| {
        errors.lines().any(|l| l.starts_with(rank) && l.contains(words) && l.contains("dog/9.ppm"))
    };
    assert!(!out.status.success() && names("[rank 1]", "error") && names("[rank 0]", "failed"), "{errors}");
}

/// Trains the digits network for two epochs with further arguments.
fn digits(dir: &Path, args: &[&str]) -> Output {
    let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits").canonicalize().unwrap();
    let (model, data) = (digits.join("untrained.onnx"), digits.join("train.npz"));
    let common =
        ["train", model.to_str().unwrap(), "--data", data.to_str().unwrap(), "--threads", "1", "--batch", "256"];
    of_opt(dir, &[&common[..], &["--epochs", "2", "--json", "-o", "m.onnx"], args].concat())
}

#[test]
fn numbers_of_optimizers_losses_and_schedules_have_effects() {
    let dir = tempfile::tempdir().unwrap();
    let loss = |args: &[&str]| last(&digits(dir.path(), args))["loss"].as_f64().unwrap();
    for (of, usual, other) in [
        (&["--optimizer", "adamw"][..], &["--betas", "0.9,0.999"][..], &["--betas", "0.5,0.9"][..]),
        (&["--optimizer", "adamw"], &["--eps", "1e-8"], &["--eps", "0.1"]),
        (&["--optimizer", "rmsprop"], &["--rmsprop-alpha", "0.99"], &["--rmsprop-alpha", "0.5"]),
        (&["--optimizer", "adadelta", "--learning-rate", "1"], &["--adadelta-rho", "0.9"], &["--adadelta-rho", "0.5"]),
        (&["--optimizer", "lars", "--learning-rate", "1"], &["--lars-trust", "0.001"], &["--lars-trust", "0.01"]),
        (&["--optimizer", "ftrl"], &["--ftrl-beta", "1", "--ftrl-l1", "0"], &["--ftrl-beta", "0.1"]),
        (&["--optimizer", "ftrl"], &[], &["--ftrl-l1", "0.1"]),
        (&["--loss", "cross-entropy"], &["--ignore-index", "-100"], &["--ignore-index", "3"]),
        (&["--clip-value", "0.001"], &["--clip-norm", "1e6"], &["--clip-norm", "0.001"]),
        (&["--schedule", "cosine"], &["--lr-min", "0"], &["--lr-min", "0.001"]),
        (&["--schedule", "step", "--lr-step-size", "1"], &["--lr-gamma", "0.1"], &["--lr-gamma", "0.9"]),
    ] {
        let default = loss(of);
        assert_eq!(default, loss(&[of, usual].concat()), "{of:?} {usual:?}");
        assert_ne!(default, loss(&[of, other].concat()), "{of:?} {other:?}");
    }
}

#[test]
fn flags_without_an_effect_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for (args, words) in [
        (&["--momentum", "0.9"][..], "--momentum is of --optimizer sgd, rmsprop, lars, and has no effect on 'adamw'"),
        (&["--optimizer", "sgd", "--betas", "0.9,0.99"], "--betas is of --optimizer adam, adamw, lamb"),
        (&["--optimizer", "sgd", "--eps", "0.1"], "--eps is of --optimizer adam"),
        (&["--lars-trust", "1"], "--lars-trust is of --optimizer lars"),
        (&["--huber-delta", "2"], "--huber-delta is of --loss huber, and has no effect on 'cross-entropy'"),
        (&["--loss", "mse", "--ignore-index", "0"], "--ignore-index is of --loss cross-entropy"),
        (&["--ignore-index", "0", "--mixup", "0.2"], "--ignore-index has no effect with --mixup"),
        (&["--schedule-power", "2"], "--schedule-power is of --schedule polynomial"),
        (&["--lr-gamma", "0.5"], "--lr-gamma is of --schedule step, and has no effect on 'cosine'"),
        (&["--schedule", "step", "--lr-min", "0"], "--lr-min is of --schedule cosine"),
        (&["--betas", "0.9"], "--betas takes two numbers"),
        (&["--betas", "0.9,1"], "a number of at least 0, below 1, is needed"),
        (
            &["--validation-crop", "0.9"],
            "--validation-crop shows a part of the images of --validation, and there are none",
        ),
        (&["--validation-crop", "2"], "a number above 0, at most 1, is needed"),
        (&["--clip-norm", "0"], "a positive number is needed"),
        (&["--weights-ignore", "fc.*"], "--weights <FILE>"),
    ] {
        let out = digits(dir.path(), args);
        let errors = text(&out.stderr);
        assert!(!out.status.success() && errors.contains(words), "{args:?}: {errors}");
    }
}
