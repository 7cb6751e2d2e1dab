//! Ops that are native code with numbers for extents are native code with symbols.

use std::collections::BTreeSet;

use of_codegen::CpuCode;
use of_driver::op_support::not_native;
use of_fuzz::Case;
use of_fuzz::check::{Compiler, native, passes};
use of_fuzz::open::{Opening, opened};
use of_fuzz::shrink::show;
use of_ir::{Func, Graph, Rewriter, Type, ValueId};
use of_ops::interpret::{self, type_of};
use of_ops::structural::{Constant, NoneValue, Return};
use of_ops::{Op, Value, list};

/// Samples of each op.
const SAMPLES: u64 = 12;

/// Ops whose native code needs numbers, with the reasons. Rows of channels, kernels and blocks have a fixed length, and these
/// composites have no parts where an extent that they split or repeat is open.
const NEED_NUMBERS: &[(&str, &str)] = &[
    ("of.attention", "'of.attention' has no native code"),
    ("of.causal_conv", "'of.causal_conv' has no native code"),
    ("of.constant_of_shape", "a rank is not known before the run"),
    ("of.conv", "a shape is data-dependent"),
    ("of.conv", "the extents of its weights are not known before the run"),
    ("of.conv_transpose", "'of.conv_transpose' has no native code"),
    ("of.conv_transpose", "a shape is data-dependent"),
    ("of.deform_conv", "'of.deform_conv' has no native code"),
    ("of.dequantize_linear", "'of.dequantize_linear' has no native code"),
    ("of.einsum", "'of.einsum' has no native code"),
    ("of.gru", "'of.gru' has no native code"),
    ("of.linear_attention", "'of.linear_attention' has no native code"),
    ("of.linear_attention", "a shape is data-dependent"),
    ("of.lstm", "'of.lstm' has no native code"),
    ("of.quantize_linear", "'of.quantize_linear' has no native code"),
    ("of.random_uniform", "'of.random_uniform' has no native code"),
    ("of.resize", "a shape is data-dependent"),
    ("of.rnn", "'of.rnn' has no native code"),
    ("of.rotary_embedding", "'of.rotary_embedding' has no native code"),
    ("of.split", "'of.split' has no native code"),
];

/// A function of one op. Integers after the first operand are constants, as models have them.
fn case(op: &dyn Op, operands: &[Value], opening: Opening) -> Option<Case> {
    let mut graph = Graph::new();
    let entry = graph.entry();
    let mut rw = Rewriter::new(&mut graph, "test");
    let (mut ids, mut inputs): (Vec<ValueId>, Vec<Value>) = Default::default();
    for (i, v) in operands.iter().enumerate() {
        ids.push(match v {
            Value::None => rw.create_one(NoneValue {}, &[]).ok()?,
            Value::Tensor(t) if i > 0 && !t.dtype().is_float() => {
                rw.create_one(Constant { value: t.clone() }, &[]).ok()?
            }
            _ => {
                inputs.push(v.clone());
                rw.add_arg(entry, type_of(v), None)
            }
        });
    }
    let id = rw.create((op.decl().as_def(), op.attrs()), &ids).ok()?;
    let results = rw.graph().op(id).results.to_vec();
    rw.create(Return {}, &results).ok()?;
    Some(Case { opening, ..Case::new(graph, inputs) })
}

/// The ops of a function that the interpreter runs, with the reasons.
fn interpreted(func: &Func) -> Option<BTreeSet<(String, String)>> {
    let list = not_native(func.clone());
    let list = list.unwrap_or_else(|d| panic!("{d}\n{}", show(&Case::new(func.graph.clone(), Vec::new()))))?;
    Some(list.into_iter().filter(|l| l.computes()).map(|l| (l.op, l.reason)).collect())
}

#[test]
fn native_ops_stay_native_with_open_extents() {
    let (mut compared, mut found) = (0, BTreeSet::new());
    for decl in list::ALL.iter().filter(|d| !d.traits().terminator && d.signature().regions == 0) {
        for seed in 0..SAMPLES {
            let Some(sample) = decl.sample(seed) else { continue };
            for opening in [Opening::Shared, Opening::First, Opening::Arithmetic, Opening::Product] {
                let Some(case) = case(&*sample.op, &sample.operands, opening) else { continue };
                let Some(open) = opened(&case) else { continue };
                let dense = |f: &Func| f.input_types().iter().all(|t| matches!(t, Type::Tensor(_)));
                let fixed = interpreted(&case.func).filter(|list| list.is_empty() && dense(&case.func));
                let (Some(_), Some(open)) = (fixed, interpreted(&open)) else { continue };
                compared += 1;
                found.extend(open);
            }
        }
    }
    assert!(compared > 1000, "{compared}");
    let known: BTreeSet<_> = NEED_NUMBERS.iter().map(|(op, why)| ((*op).to_string(), (*why).to_string())).collect();
    let (new, gone): (Vec<_>, Vec<_>) = (found.difference(&known).collect(), known.difference(&found).collect());
    assert!(new.is_empty(), "no longer native with open extents: {new:#?}");
    assert!(gone.is_empty(), "native with open extents by now: {gone:#?}");
}

/// Each native op, compiled once with symbols for extents, runs with those of its sample, with larger ones and with one
/// of zero.
#[test]
fn native_ops_agree_with_the_interpreter_at_other_extents() {
    const BATCH: usize = 16;
    let compiler = Compiler::new(CpuCode::Machine);
    let mut cases = Vec::new();
    for decl in list::ALL.iter().filter(|d| !d.traits().terminator && d.signature().regions == 0) {
        for (seed, opening) in [(1, Opening::Shared), (2, Opening::Arithmetic)] {
            let case = decl.sample(seed).and_then(|s| case(&*s.op, &s.operands, opening));
            let Some(case) = case.filter(|c| opened(c).is_some()) else { continue };
            let native = interpreted(&case.func).is_some_and(|list| list.is_empty());
            let exact = matches!(case.func.output_types()[..], [Type::Tensor(_)]);
            if native && exact && interpret::run_graph(&case.func.graph, &case.inputs).is_ok() {
                cases.push((decl.name(), case));
            }
        }
    }
    let mut ran = 0;
    for batch in cases.chunks(BATCH) {
        let checked: Vec<_> =
            batch.iter().map(|(name, c)| passes(c).unwrap_or_else(|f| panic!("{name}: {f:?}\n{}", show(c)))).collect();
        let pairs: Vec<_> = batch.iter().zip(&checked).map(|((_, c), checked)| (c, checked)).collect();
        let got = native(&pairs, &compiler, &mut |_| ());
        ran += got.unwrap_or_else(|(i, f)| panic!("{}: {f:?}\n{}", batch[i].0, show(&batch[i].1))).open;
    }
    assert!(ran > 300, "{ran} runs of {} cases", cases.len());
}
