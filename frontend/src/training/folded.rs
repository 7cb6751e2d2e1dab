//! Batch normalisations that an exporter folded into convolutions: what it leaves are weights and biases with names of its own.

use of_diag::{Code, Diagnostic};
use of_ir::{Graph, Module, OpId, ValueId};
use of_ops::contraction::Gemm;
use of_ops::list::as_op;
use of_ops::nn::{Conv, ConvTranspose};

/// Convolutions that a warning names.
const NAMED: usize = 4;

/// A warning if convolutions or products of a model carry batch normalisations that its exporter folded into them: they are trained
/// without the statistics of the batch, so learning rates and results differ from those of the original network.
pub fn folded_norms(module: &Module) -> Option<Diagnostic> {
    let g = &module.main()?.graph;
    let folded: Vec<(OpId, &'static Exporter)> =
        g.walk().into_iter().filter_map(|op| Some((op, exporter(g, op)?))).collect();
    let (first, exporter) = folded.first()?;
    let what = match folded.len() {
        1 => "a layer carries a batch normalisation".to_string(),
        n => format!("{n} layers carry batch normalisations"),
    };
    let what = format!("{what} that {} folded into the weights, so it is trained without one", exporter.name);
    let mut d = Diagnostic::warning(Code::UNSUPPORTED, g.op(*first).loc.clone(), what);
    let names = folded.iter().filter_map(|(op, _)| name(g, g.op(*op).operands[1]));
    let (named, more) = (names.take(NAMED).collect::<Vec<_>>(), folded.len().saturating_sub(NAMED));
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    d = d.note(format!("the weights are {}{more}", named.join(", ")));
    Some(d.hint(exporter.hint))
}

/// A tool that folds batch normalisations.
struct Exporter {
    name: &'static str,
    /// Whether these are the names of a weight and a bias that it made.
    made: fn(&str, &str) -> bool,
    hint: &'static str,
}

/// How these tools name what they fold. Sources: `torch/csrc/jit/passes/onnx/eval_peephole.cpp`, whose new parameters get the names of values;
/// onnxscript's `_fuse_batchnorm.py`; `conv_bn_fusion.cc` of onnxruntime; `back_to_back_optimizer.py` of tf2onnx.
const EXPORTERS: [Exporter; 4] = [
    Exporter {
        name: "PyTorch's exporter",
        made: |weight, bias| [weight, bias].iter().all(|name| is_value_of_conv(name)),
        hint: "export the model in evaluation mode with torch.onnx.export(…, training=torch.onnx.TrainingMode.PRESERVE, \
               do_constant_folding=False), or with dynamo=True, optimize=False",
    },
    Exporter {
        name: "PyTorch's exporter",
        made: |weight, bias| bias.strip_suffix("_bias") == Some(weight),
        hint: "export the model in evaluation mode with torch.onnx.export(…, dynamo=True, optimize=False)",
    },
    Exporter {
        name: "onnxruntime",
        made: |weight, bias| weight.contains("ConvBnFusion_") || bias.contains("ConvBnFusion_"),
        hint: "train the model before onnxruntime optimizes it",
    },
    Exporter {
        name: "tf2onnx",
        made: |weight, bias| weight.contains("_fused_bn") && bias.contains("_fused_bn"),
        hint: "convert the model with the optimizer of batch normalisations left out: tf2onnx.optimizer.optimize_graph(…, \
               catch_errors=True, optimizers={…})",
    },
];

/// Whether a name is `onnx::Conv_12`: the name of a value that the exporter numbered, and not that of a parameter.
fn is_value_of_conv(name: &str) -> bool {
    let number = ["onnx::Conv_", "onnx::ConvTranspose_"].iter().find_map(|prefix| name.strip_prefix(prefix));
    number.is_some_and(|number| number.bytes().all(|b| b.is_ascii_digit()))
}

/// The tool that folded a batch normalisation into an op.
fn exporter(g: &Graph, op: OpId) -> Option<&'static Exporter> {
    let is_layer =
        as_op::<Conv>(g, op).is_some() || as_op::<ConvTranspose>(g, op).is_some() || as_op::<Gemm>(g, op).is_some();
    let operands = &g.op(op).operands;
    let (weight, bias) = (operands.get(1).filter(|_| is_layer)?, operands.get(2)?);
    let (weight, bias) = (name(g, *weight)?, name(g, *bias)?);
    EXPORTERS.iter().find(|exporter| (exporter.made)(&weight, &bias))
}

/// The name of a constant.
fn name(g: &Graph, v: ValueId) -> Option<String> {
    g.constant(v)?;
    g.name(v).map(|name| name.to_string())
}
