//! Parameters of the zoo's models.

use std::collections::BTreeMap;
use std::path::Path;

use of_frontend::zoo::{MODELS, Mode, Model, Spec};

use super::{dims, parameters};

/// Whether a name is that of a pattern, in which `*` stands for any text.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|left| {
            left.char_indices().map(|(at, _)| at).chain([left.len()]).any(|at| matches(rest, &left[at..]))
        }),
    }
}

type Extents = BTreeMap<String, Vec<usize>>;

/// The model of a file of `zoo/`, and the extents of its parameters.
fn expected(model: &Model) -> (Spec, Extents) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/torch/zoo/{}.txt", model.name));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}; write.py writes it", path.display()));
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    let settings = lines.next().and_then(|line| line.strip_prefix("settings")).unwrap().trim();
    let spec = format!("{}:{settings}", model.name);
    let spec = spec.trim_end_matches(':').parse().unwrap_or_else(|d| panic!("{d}"));
    let rows = lines.map(|line| line.split_once(' ').unwrap_or_else(|| panic!("'{line}' has no extents")));
    (spec, rows.map(|(name, extents)| (name.to_owned(), dims(extents))).collect())
}

#[test]
fn parameters_of_the_zoo_are_those_of_pytorch() {
    for model in MODELS {
        let (spec, mut torch) = expected(model);
        let module = spec.build(Mode::Training, 1).unwrap_or_else(|d| panic!("{spec}: {d}"));
        let own: Extents = parameters(&module).into_iter().map(|(name, value)| (name, value.dims().to_vec())).collect();
        // A state dict has tied parameters twice, and constants.
        torch.retain(|name, _| !model.unused.iter().any(|pattern| matches(pattern, name)));
        let missing: Vec<_> = torch.iter().filter(|(name, extents)| own.get(*name) != Some(extents)).collect();
        let other: Vec<_> = own.iter().filter(|(name, extents)| torch.get(*name) != Some(extents)).collect();
        assert!(missing.is_empty() && other.is_empty(), "{spec}: PyTorch has {missing:?}, the model {other:?}");
        let count: usize = own.values().map(|extents| extents.iter().product::<usize>()).sum();
        // What the publications and the packages say. Statistics of batch normalisations count, too: twice the channels.
        let published = match model.name {
            "resnet50" => 25_557_032 + 2 * 26_560,
            "gpt2" => 124_439_808,
            "bert" => 110_106_428,
            "ncf" => 31_832_577,
            // torchvision counts no numbers of fixed normalisations: four for each of their channels.
            "mask_rcnn" => 44_401_393 + 4 * 26_560,
            _ => continue,
        };
        assert_eq!(count, published, "{spec}");
    }
}
