//! Every op of the list on its samples: through XLA where it is claimed, beside the interpreter.

mod common;

use std::collections::BTreeMap;

use of_codegen::Backend;
use of_ops::{interpret, list};
use of_xla::Xla;

use common::support::{difference, one_op, with_extremes};
use common::{run, verified};

/// How far a result may be from the interpreter's, which rounds once, as a share of the largest element.
fn tolerance(name: &str) -> f64 {
    match name {
        // Series of a few terms, and long sums of their results.
        n if n.contains("lp_") || n.contains("attention") || n.contains("lstm") || n.contains("gru") => 2e-5,
        _ => 1e-5,
    }
}

/// What is refused on all samples, and a word of the reason. Where extents follow from data, samples are of unknown ones.
const NEVER: &[(&str, &str)] = &[
    ("of.image_decoder", "extents"),
    ("of.non_max_suppression", "extents"),
    ("of.none", "none"),
    ("of.nonzero", "extents"),
    ("of.regex_full_match", "text"),
    ("of.sequence_empty", "seq"),
    ("of.string_concat", "text"),
    ("of.string_normalizer", "extents"),
    ("of.string_split", "extents"),
    ("of.unique", "extents"),
];

#[test]
fn every_op_computes_what_the_interpreter_does() {
    let Some(client) = common::client() else { return };
    let mut claimed = BTreeMap::new();
    let mut refused = BTreeMap::new();
    let mut modules = Vec::new();
    let mut apart = Vec::new();
    for decl in list::ALL {
        for seed in 0..8 {
            let Some(sample) = decl.sample(seed) else { continue };
            if decl.traits().effect || decl.traits().terminator {
                continue;
            }
            {
                // Compilation takes long: shapes and axes are constants as a rule.
                let (func, inputs) = one_op(&*sample.op, &sample.operands, seed % 4 == 3);
                let op = func.graph.walk()[func.graph.walk().len() - 2];
                if func.graph.op(op).name() != decl.name() {
                    continue;
                }
                if let Err(why) = Xla.claims(&func.graph, op) {
                    *refused
                        .entry(decl.name())
                        .or_insert_with(std::collections::BTreeMap::new)
                        .entry(why)
                        .or_insert(0) += 1;
                    continue;
                }
                let module = of_xla::emit::module(&func).unwrap_or_else(|e| panic!("{}: {e}", decl.name()));
                let what = format!("{}, seed {seed}, {:?}", decl.name(), sample.op.attrs());
                let got = match run(&client, &module, &inputs) {
                    Ok(v) => v,
                    Err(e) => panic!("{what}: {e}\n{}", module.text),
                };
                modules.push((what.clone(), module.text.clone()));
                *claimed.entry(decl.name()).or_insert(0) += 1;
                let want = interpret::run_graph(&func.graph, &inputs).unwrap_or_else(|d| panic!("{d}"));
                // Rounding to a quantised number may fall to either side when the exact value lies in the middle.
                let quantised = what.contains("quantize") || what.contains("qlinear");
                let far = difference(&got, &want, tolerance(decl.name()), i64::from(quantised));
                assert!(far.is_none(), "{what}: {far:?}");
                // With an element that is no number, infinite or the other zero. These multiply others by zero, or do not where
                // the interpreter does.
                let zeros = matches!(decl.name(), "of.conv_transpose" | "of.resize" | "of.dft" | "of.stft");
                if seed >= 4 || zeros {
                    continue;
                }
                let Some(inputs) = with_extremes(&inputs, seed) else { continue };
                let Ok(want) = interpret::run_graph(&func.graph, &inputs) else { continue };
                let got = run(&client, &module, &inputs).unwrap_or_else(|e| panic!("{what}: {e}"));
                if let Some(far) = difference(&got, &want, tolerance(decl.name()), 1) {
                    apart.push(format!("{what}: {far}"));
                }
            }
        }
    }
    println!("{} ops on XLA, {} modules; refused:", claimed.len(), modules.len());
    for (name, why) in &refused {
        println!("  {name}, {} times claimed:", claimed.get(name).unwrap_or(&0));
        why.iter().for_each(|(why, times)| println!("    {times} times: {why}"));
    }
    let never: Vec<_> = refused.iter().filter(|(n, _)| !claimed.contains_key(*n)).collect();
    assert_eq!(never.iter().map(|(n, _)| **n).collect::<Vec<_>>(), NEVER.iter().map(|(n, _)| *n).collect::<Vec<_>>());
    for ((name, why), (_, word)) in never.iter().zip(NEVER) {
        assert!(why.keys().all(|w| w.contains(word)), "{name}: {why:?}");
    }
    assert!(apart.is_empty(), "{}", apart.join("\n"));
    verified(&modules);
}
