//! The configurations of `examples/zoo`: `of-opt train` takes each of them, and each is of a model of the zoo.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use of_frontend::training::{LOSSES, OPTIMIZERS};
use of_frontend::zoo::{MODELS, Mode, Spec};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

#[test]
fn training_takes_every_configuration_of_the_zoo() {
    let folder = root().join("examples/zoo");
    let files: BTreeSet<String> =
        std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    let expected: BTreeSet<String> = MODELS.iter().map(|model| format!("{}.toml", model.name)).collect();
    assert_eq!(files, expected, "each model of the zoo has a configuration");
    for model in MODELS {
        let file = folder.join(format!("{}.toml", model.name));
        let out = Command::new(env!("CARGO_BIN_EXE_of-opt")).arg("train").arg(&file).arg("--print-config").output();
        let out = out.unwrap();
        let (printed, errors) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert!(out.status.success(), "{}: {errors}", file.display());
        // All flags with their values, of which those of the file keep theirs.
        let flags: toml::Table = printed.parse().unwrap_or_else(|e| panic!("{}: {e}\n{printed}", file.display()));
        let written: toml::Table = std::fs::read_to_string(&file).unwrap().parse().unwrap();
        let list = |value: &toml::Value| value.as_array().cloned().unwrap_or_else(|| vec![value.clone()]);
        for (key, value) in &written {
            let known = flags.get(key).unwrap_or_else(|| panic!("{}: '{key}' is no flag", file.display()));
            assert_eq!(list(known), list(value), "{}: {key}", file.display());
        }
        let named = |key: &str| flags.get(key).and_then(toml::Value::as_str).unwrap_or_default().to_owned();
        assert!(LOSSES.contains(&&*named("loss")), "{}: {}", file.display(), named("loss"));
        assert!(OPTIMIZERS.contains(&&*named("optimizer")), "{}: {}", file.display(), named("optimizer"));
        let spec: Spec = named("model").strip_prefix("zoo:").unwrap().parse().unwrap_or_else(|d| panic!("{d}"));
        assert_eq!(spec.model.name, model.name);
        spec.build(Mode::Training, 1).unwrap_or_else(|d| panic!("{}: {d}", file.display()));
        // The flags that `of-opt zoo` says state the loss.
        let words: Vec<&str> = model.loss.split(' ').collect();
        for pair in words.chunks(2) {
            let key = pair[0].trim_start_matches("--");
            let number = flags.get(key).and_then(toml::Value::as_integer).map(|n| n.to_string());
            assert_eq!(number.unwrap_or_else(|| named(key)), pair[1], "{}: {key}", file.display());
        }
    }
}
