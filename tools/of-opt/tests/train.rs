//! `of-opt train`, and variables of plans on the command line.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use of_ir::Tensor;
use of_ops::Value;
use of_test_support::signals::with_default_signals;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn of_opt(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_of-opt")).args(args).current_dir(dir).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Trains the digits network with further arguments.
fn train(dir: &Path, args: &[&str]) -> Output {
    let digits = root().join("examples/digits");
    let (model, data) = (digits.join("untrained.onnx"), digits.join("train.npz"));
    let mut all = vec!["train", model.to_str().unwrap(), "--data", data.to_str().unwrap(), "--threads", "1"];
    all.extend(args);
    of_opt(dir, &all)
}

#[test]
fn network_learns_digits_with_held_out_data() {
    let dir = tempfile::tempdir().unwrap();
    let out = train(
        dir.path(),
        &[
            "--validation",
            "0.2",
            "--epochs",
            "3",
            "--learning-rate",
            "0.005",
            "-o",
            "m.onnx",
            "-o",
            "m.safetensors",
            "--json",
        ],
    );
    assert!(out.status.success(), "{}", text(&out.stderr));
    let stdout = text(&out.stdout);
    let last: serde_json::Value = serde_json::from_str(stdout.lines().last().unwrap()).unwrap();
    assert!(last["accuracy"].as_f64().unwrap() > 0.95, "{stdout}");
    assert_eq!(last["step"], 3 * (1150 / 32));
    let test = root().join("examples/digits/test.npz");
    let digits = root().join("examples/digits/images.npy");
    assert!(test.is_file());
    let run = of_opt(dir.path(), &["run", "m.onnx", "--inputs", &format!("image={}", digits.display()), "--top", "1"]);
    let first: Vec<String> =
        text(&run.stdout).lines().map(|l| l.split_whitespace().nth(1).unwrap_or("").to_string()).collect();
    let right = [7, 0, 3, 9, 1, 4, 8, 2].iter().filter(|d| first.contains(&d.to_string())).count();
    assert!(right >= 7, "{first:?}");
    assert!(std::fs::metadata(dir.path().join("m.safetensors")).unwrap().len() > 15_498 * 4);
}

#[test]
fn configuration_is_the_flags_as_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let digits = root().join("examples/digits");
    let config = format!(
        r#"model = "{0}/untrained.onnx"
data = "{0}/train.npz"
validation = ["{0}/test.npz"]
epochs = 2
learning-rate = 0.005
no-decay = ["*.bias"]
ema = 0.9
output = ["a.onnx"]
json = true
"#,
        digits.display()
    );
    std::fs::write(dir.path().join("c.toml"), &config).unwrap();
    let run = |args: &[&str]| {
        let out = of_opt(dir.path(), args);
        assert!(out.status.success(), "{args:?}: {}", text(&out.stderr));
        text(&out.stdout)
    };
    // A short name of a flag is a key, too.
    std::fs::write(dir.path().join("short.toml"), config.replace("learning-rate", "lr")).unwrap();
    assert_eq!(run(&["train", "short.toml", "--print-config"]), run(&["train", "c.toml", "--print-config"]));
    // A flag overrides the file, and the printed configuration is the same training.
    let printed = run(&["train", "c.toml", "--epochs", "1", "-o", "b.onnx", "--print-config"]);
    let table: toml::Table = printed.parse().unwrap();
    assert_eq!((table["epochs"].as_integer(), table["learning-rate"].as_float()), (Some(1), Some(0.005)));
    assert_eq!(table["output"].as_array().unwrap()[0].as_str(), Some("b.onnx"));
    assert_eq!(table["loss"].as_str(), Some("cross-entropy"));
    assert!(!table.contains_key("print-config") && !dir.path().join("b.onnx").exists());
    std::fs::write(dir.path().join("d.toml"), &printed).unwrap();
    assert_eq!(printed, run(&["train", "d.toml", "--print-config"]));
    let (first, second) =
        (run(&["train", "c.toml", "--epochs", "1", "-o", "b.onnx"]), run(&["train", "d.toml", "-o", "e.onnx"]));
    let loss = |out: &str| serde_json::from_str::<serde_json::Value>(out.trim()).unwrap()["validation_loss"].clone();
    assert_eq!(loss(&first), loss(&second));
    let bytes = |name: &str| std::fs::read(dir.path().join(name)).unwrap();
    assert!(bytes("b.onnx") == bytes("e.onnx"));
    for (name, text_of, words) in [
        ("x.toml", "learning_rate = 0.1", "unknown key 'learning_rate'\n  hint: did you mean 'learning-rate'?"),
        ("x.toml", "epochs = 1", "the key 'model' is needed"),
        ("x.toml", "epochs = ", "'x.toml': line 1: "),
        ("x.toml", "model = 'm.onnx'\nepochs = 'many'", "'x.toml': key 'epochs': invalid value 'many'"),
        ("x.toml", "model = 'm.onnx'\nlearning-rate = -1", "'x.toml': key 'learning-rate': invalid value '-1'"),
        ("x.toml", "model = 'm.onnx'\nlr = -1", "'x.toml': key 'learning-rate': invalid value '-1'"),
        ("x.toml", "model = 'm.onnx'\nnesterov = 3", "key 'nesterov' takes true or false"),
        ("x.toml", "model = 'm.onnx'\nepochs = { a = 1 }", "takes text, a number or a list"),
        ("none.toml", "", "'none.toml' cannot be read"),
    ] {
        if name == "x.toml" {
            std::fs::write(dir.path().join(name), text_of).unwrap();
        }
        let out = of_opt(dir.path(), &["train", name, "--data", "x.npz", "-o", "m.onnx"]);
        let stderr = text(&out.stderr);
        assert!(!out.status.success() && stderr.contains(words), "{text_of}: {stderr}");
    }
}

#[test]
fn options_of_training_learn_digits() {
    for args in [
        &["--precision", "bf16"][..],
        &["--precision", "bf16", "--keep-f32", "Gemm"],
        &["--precision", "f16", "--accumulate", "2", "--batch", "16"],
        &["--prune", "2:4", "--ema", "0.9"],
        &["--lora", "4:8", "--merge", "--learning-rate", "0.05"],
    ] {
        let dir = tempfile::tempdir().unwrap();
        let common = ["--validation", "0.2", "--epochs", "2", "-o", "m.onnx", "--json", "--log-dir", "logs"];
        let rate = if args.contains(&"--learning-rate") { &[][..] } else { &["--learning-rate", "0.005"] };
        let out = train(dir.path(), &[&common, rate, args].concat());
        assert!(out.status.success(), "{args:?}: {}", text(&out.stderr));
        assert_eq!(text(&out.stderr).contains(" kept in f32"), args.contains(&"--keep-f32"), "{}", text(&out.stderr));
        let stdout = text(&out.stdout);
        let last: serde_json::Value = serde_json::from_str(stdout.lines().last().unwrap()).unwrap();
        // Adapters change the last layer alone, of features that are random.
        let least = if args[0] == "--lora" { 0.7 } else { 0.95 };
        assert!(last["accuracy"].as_f64().unwrap() > least, "{args:?}: {stdout}");
        let events = std::fs::read_dir(dir.path().join("logs")).unwrap().next().unwrap().unwrap();
        assert!(events.metadata().unwrap().len() > 1000);
    }
}

#[test]
fn resumed_training_writes_the_same_model() {
    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        let out = train(dir.path(), args);
        assert!(out.status.success(), "{}", text(&out.stderr));
    };
    let common = ["--optimizer", "sgd", "--momentum", "0.9", "--learning-rate", "0.01", "--schedule", "constant"];
    let with = |more: &[&str]| run(&[&common[..], more].concat());
    with(&["--epochs", "2", "-o", "whole.onnx"]);
    with(&["--epochs", "1", "--snapshot", "s.safetensors", "-o", "half.onnx"]);
    with(&["--epochs", "2", "--snapshot", "s.safetensors", "--resume", "-o", "resumed.onnx"]);
    let bytes = |name: &str| std::fs::read(dir.path().join(name)).unwrap();
    assert!(bytes("whole.onnx") == bytes("resumed.onnx"), "the resumed training has another result");
    assert!(bytes("whole.onnx") != bytes("half.onnx"));
}

#[test]
fn a_training_stops_early_and_keeps_the_best_epoch() {
    let dir = tempfile::tempdir().unwrap();
    let common = ["--lr", "0.05", "--schedule", "constant", "--validation", "0.2", "--seed", "3", "--json"];
    let more = ["--epochs", "60", "--patience", "2", "--keep-best", "-o", "best.onnx", "-o", "best.safetensors"];
    let on_mesh = ["--mesh", "cpu[2]", "--snapshot", "s.safetensors"];
    for mesh in [&[][..], &on_mesh] {
        let out = train(dir.path(), &[&common[..], &more, mesh].concat());
        assert!(out.status.success(), "{}", text(&out.stderr));
        let lines: Vec<serde_json::Value> =
            text(&out.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let losses: Vec<f64> = lines.iter().map(|line| line["validation_loss"].as_f64().unwrap()).collect();
        let best = (0..losses.len()).min_by(|a, b| losses[*a].total_cmp(&losses[*b])).unwrap();
        assert_eq!(losses.len(), best + 3, "{losses:?}");
        assert_eq!(lines.iter().rposition(|line| line["best"] == true), Some(best));
        let said = text(&out.stderr);
        assert!(said.contains(&format!("stopped after epoch {}, 2 epochs without a better validation", best + 3)));
        assert!(said.contains(&format!("the result is that of epoch {}, the best with validation loss", best + 1)));
        // The same epochs without what comes after the best one.
        let epochs = (best + 1).to_string();
        let whole = ["--epochs", &epochs, "-o", "first.onnx"];
        let mesh: &[&str] = if mesh.is_empty() { &[] } else { &on_mesh[..2] };
        assert!(train(dir.path(), &[&common[..], &whole, mesh].concat()).status.success());
        let bytes = |name: &str| std::fs::read(dir.path().join(name)).unwrap();
        assert!(bytes("best.onnx") == bytes("first.onnx"));
    }
}

#[cfg(unix)]
#[test]
fn a_signal_writes_a_snapshot_before_the_training_ends() {
    let dir = tempfile::tempdir().unwrap();
    let digits = root().join("examples/digits");
    let snapshot = dir.path().join("s.safetensors");
    let (model, data) = (digits.join("untrained.onnx"), digits.join("train.npz"));
    let begin = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_of-opt"));
        command.arg("train").arg(&model).arg("--data").arg(&data).current_dir(dir.path());
        command.args(["--epochs", "100000", "--snapshot", "s.safetensors", "--snapshot-every", "2", "-o", "m.onnx"]);
        let mut command = with_default_signals(command.args(more));
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    for (signal, code, more) in [("INT", 130, &[][..]), ("TERM", 143, &["--resume"])] {
        let before = std::fs::metadata(&snapshot).and_then(|file| file.modified()).ok();
        let child = begin(more);
        let since = std::time::Instant::now();
        while std::fs::metadata(&snapshot).and_then(|file| file.modified()).ok() == before {
            assert!(since.elapsed() < std::time::Duration::from_secs(120), "the training writes no snapshot");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let id = child.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &id]).status().unwrap().success());
        let out = child.wait_with_output().unwrap();
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(code), "{said}");
        assert!(said.contains("interrupted after step ") && said.contains("s.safetensors is written"), "{said}");
        assert!(said.contains("the same command with --resume goes on"), "{said}");
        assert_eq!(said.contains("resumed from s.safetensors at step "), !more.is_empty(), "{said}");
        assert!(!dir.path().join("m.onnx").exists());
    }
}

#[test]
fn wrong_training_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let digits = root().join("examples/digits");
    for (args, words) in [
        (&[][..], "--output is needed, on the command line or in a configuration"),
        (&["-o", "m.pt"], "'m.pt' ends in neither .onnx nor .safetensors"),
        (&["-o", "m.onnx", "--batch", "5000"], "the data has 1437 samples, fewer than the 5000 of a step"),
        (&["-o", "m.onnx", "--labels", "classes"], "the data has no values for 'classes', only for image, labels"),
        (&["-o", "m.onnx", "--loss", "mse"], "the data of 'labels' is of shape [1437], and the input is"),
        (&["-o", "m.onnx", "--freeze", "nothing"], "no parameter is called 'nothing'; there are digits."),
        (&["-o", "m.onnx", "--loss-of", "x"], "the model has no output 'x'; there are scores"),
        (
            &["-o", "m.onnx", "--loss", "l1", "--label-smoothing", "0.1"],
            "--label-smoothing and --class-axis have no effect",
        ),
        (&["-o", "m.onnx", "--precision", "int8"], "invalid value 'int8' for '--precision <PRECISION>'"),
        (&["-o", "m.onnx", "--precision", "bf16", "--calibration", "x"], "--calibration has no effect on a training"),
        (&["-o", "m.onnx", "--learning-rate", "-1"], "'-1' for '--learning-rate <RATE>': a number of at least 0"),
        (&["-o", "m.onnx", "--weight-decay", "nan"], "'nan' for '--weight-decay <X>': a number of at least 0"),
        (&["-o", "m.onnx", "--clip-norm", "-0.5"], "'-0.5' for '--clip-norm <X>': a positive number"),
        (&["-o", "m.onnx", "--label-smoothing", "1.5"], "'1.5' for '--label-smoothing <X>': a number from 0 to 1"),
        (&["-o", "m.onnx", "--margin", "inf"], "'inf' for '--margin <X>': a number is needed"),
        (&["-o", "none/m.onnx", "--epochs", "1"], "'none/m.onnx' cannot be written: 'none' is no folder"),
        (&["-o", "m.onnx", "--snapshot", "none/s.safetensors"], "'none/s.safetensors' cannot be written: 'none' is no"),
        (&["-o", "m.onnx", "--snapshot", "s.pt"], "the snapshot 's.pt' does not end in .safetensors"),
        (&["-o", "m.onnx", "--validation", "1.5"], "give a part between 0 and 1, such as 0.1"),
        (&["-o", "m.onnx", "--epochs", "1", "--accumulate", "100"], "updated after every 100 steps (--accumulate)"),
        (&["-o", "m.onnx", "--precision", "bf16", "--keep-f32", "x"], "no product is of a node or operator 'x'"),
        (&["-o", "m.onnx", "--mesh", "cpu[2]", "--layout", "imag=S(0)"], "names no input of the model"),
        (&["-o", "m.onnx", "--prune", "4:2"], "'4:2' is no pruning"),
        (&["-o", "m.onnx", "--lora", "0"], "a rank is needed, or RANK:ALPHA"),
        (&["-o", "m.onnx", "--merge"], "--lora <RANK[:ALPHA]>"),
        (&["-o", "m.onnx", "--lora", "2", "--lora-target", "x"], "no weight of a product has a name for an adapter"),
        (&["-o", "m.onnx", "--learning-rate", "1e30", "--optimizer", "sgd"], "the loss is"),
        (&["-o", "m.onnx", "--validation", "none.npz"], "none.npz"),
        (&["-o", "m.onnx", "--image-std", "0"], "--image-std positive numbers"),
        (&["-o", "m.safetensors", "--snapshot", "./m.safetensors"], "is to be a trained model, and the snapshot"),
        (&["-o", "m.onnx", "--patience", "2"], "--patience and --keep-best watch the validation: give --validation"),
        (&["-o", "m.onnx", "--validation", "0.1", "--min-delta", "1"], "--monitor and --min-delta are of --patience"),
    ] {
        let out = train(dir.path(), args);
        let stderr = text(&out.stderr);
        assert!(!out.status.success() && stderr.contains(words), "{args:?}: {stderr}");
    }
    std::fs::write(dir.path().join("a.plan"), b"x").unwrap();
    let data = digits.join("train.npz");
    let out = of_opt(dir.path(), &["train", "a.plan", "--data", data.to_str().unwrap(), "-o", "m.onnx"]);
    assert!(text(&out.stderr).contains("is a compiled plan; a model is needed"), "{}", text(&out.stderr));
}

#[test]
fn variables_stay_in_a_session() {
    let dir = tempfile::tempdir().unwrap();
    let source = r#"func @main(%x: tensor<3xf32> {of.name = "x"}, %s: tensor<3xf32> {of.name = "state"}) -> (tensor<3xf32> {of.name = "y"}, tensor<3xf32> {of.name = "next"}) {
  %n = of.add %s, %x : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
  %y = of.neg %n : (tensor<3xf32>) -> tensor<3xf32>
  of.return %y, %n : (tensor<3xf32>, tensor<3xf32>) -> ()
}"#;
    std::fs::write(dir.path().join("m.of"), source).unwrap();
    for (name, values) in [("x", [1f32, 2.0, 3.0]), ("s", [10.0, 20.0, 30.0])] {
        let tensor = Value::Tensor(Tensor::from_slice(&[3], &values).unwrap());
        of_driver::tensor_files::write_npy(&dir.path().join(format!("{name}.npy")), name, &tensor).unwrap();
    }
    let run = |args: &str| {
        let out = of_opt(dir.path(), &args.split(' ').collect::<Vec<_>>());
        if out.status.success() { text(&out.stdout) } else { text(&out.stderr) }
    };
    run("compile m.of -o m.plan --variable next=state");
    assert!(run("run m.plan --inputs x=x.npy").contains("variable `state` has no value: set it before the run"));
    let out = run("run m.plan --inputs x=x.npy --set state=s.npy --iterations 2 --save state=t.npy");
    assert_eq!(out, "y: tensor<3xf32>\n[-12, -24, -36]\n");
    assert_eq!(run("run m.plan --inputs x=x.npy --set state=t.npy"), "y: tensor<3xf32>\n[-13, -26, -39]\n");
    run("compile m.of -o z.plan --variable next=state:zeros");
    assert_eq!(run("run z.plan --inputs x=x.npy --iterations 3"), "y: tensor<3xf32>\n[-3, -6, -9]\n");
    let inspected = run("inspect z.plan");
    assert!(inspected.contains("variable state: f32[3] at 0, initially zeros, updated (in place)"), "{inspected}");
    for (args, words) in [
        ("compile m.of -o e.plan --variable n=state", "its outputs are y, next; its inputs are x, state"),
        ("compile m.of -o e.plan --variable next=state,next=x", "that another variable has"),
        ("run z.plan --inputs x=x.npy --set s=s.npy", "its variables are state"),
        ("run m.of --inputs x=x.npy state=s.npy --set state=s.npy", "'compile --variable' makes them"),
    ] {
        let out = run(args);
        assert!(out.contains(words), "{args}: {out}");
    }
}

#[test]
fn data_that_cannot_be_read_is_named_with_a_hint() {
    let dir = tempfile::tempdir().unwrap();
    let digits = root().join("examples/digits");
    let whole = std::fs::read(digits.join("train.npz")).unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(dir.path().join(name), bytes).unwrap();
    write("train.npz", &whole);
    write("cut.npz", &whole[..whole.len() / 2]);
    write("renamed.csv", &whole);
    write("renamed.tar", &whole);
    write("empty.npz", b"");
    write("empty.tfrecord", b"");
    write("semicolons.csv", b"a;b;labels\n1;2;0\n");
    write("label.csv", b"a,b,label\n1,2,0\n");
    std::fs::create_dir(dir.path().join("folder")).unwrap();
    for (data, words, hint) in [
        ("trian.npz", "there is no file or folder 'trian.npz', which is to be data", "did you mean 'train.npz'?"),
        ("folder/trian.npz", "there is no file or folder 'folder/trian.npz'", "the path begins in '"),
        ("none/train.npz", "there is no file or folder 'none/train.npz'", "'none' is no folder either"),
        ("train.npz/x", "there is no file or folder 'train.npz/x'", "'train.npz' is no folder either"),
        ("images=train.npz", "there is no file or folder 'images=train.npz'", "image, labels, and not 'images'"),
        ("image=none.npy", "there is no file or folder 'none.npy'", "the path begins in '"),
        ("folder", "'folder' has no folders of images", "a folder for each class is needed"),
        ("empty.npz", "'empty.npz' is empty, and is to be data", "was not written, copied or downloaded completely"),
        ("empty.tfrecord", "'empty.tfrecord': there are no records", ""),
        ("cut.npz", "'cut.npz' cannot be read as NumPy's: it is no archive, or its end is missing", "compare its size"),
        ("renamed.csv", "'renamed.csv' is no table: it has bytes that are no UTF-8", "the ending .csv says"),
        ("renamed.tar", "'renamed.tar' cannot be read as an archive of tar: ", "it is damaged, not written completely"),
        ("semicolons.csv", "no column is called 'labels'; there are a;b;labels", "are separated by commas"),
        ("label.csv", "no column is called 'labels'; there are a, b, label", "--labels names the column of labels"),
    ] {
        let mut c = Command::new(env!("CARGO_BIN_EXE_of-opt"));
        c.arg("train").arg(digits.join("untrained.onnx")).args(["--data", data, "-o", "m.onnx", "--epochs", "1"]);
        let said = text(&c.current_dir(dir.path()).output().unwrap().stderr);
        assert!(said.contains(words) && said.contains(hint), "{data}: {said}");
    }
}

#[test]
fn mistakes_in_a_configuration_are_named_with_a_hint() {
    let dir = tempfile::tempdir().unwrap();
    for (line, words, hint) in [
        ("epocs = 1", "unknown key 'epocs'", "did you mean 'epochs'?"),
        ("optimizer = \"adamm\"", "key 'optimizer': invalid value 'adamm'", "hint: "),
        ("data = train.npz", "line 2: ", "texts are in quotes"),
        ("model = \"b.onnx\"", "line 2: duplicate key: model = \"b.onnx\"", "each key once"),
    ] {
        std::fs::write(dir.path().join("c.toml"), format!("model = \"a.onnx\"\n{line}\n")).unwrap();
        let mut c = Command::new(env!("CARGO_BIN_EXE_of-opt"));
        let said = text(&c.args(["train", "c.toml"]).current_dir(dir.path()).output().unwrap().stderr);
        assert!(said.contains(words) && said.contains(hint), "{line}: {said}");
    }
}
