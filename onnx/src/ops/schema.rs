//! ONNX facts that the op declarations lack: attribute names, defaults, attributes without effect.

use std::fmt;

use of_ir::{Attr, AttrSlot};

/// A default value.
#[derive(Clone, Copy)]
enum Preset {
    Int(i64),
    Float(f32),
    Str(&'static str),
    Ints(&'static [i64]),
}

use Preset::{Float, Int, Ints, Str};

impl Preset {
    fn attr(self) -> Attr {
        match self {
            Int(i) => Attr::Int(i),
            Float(x) => Attr::Float(x.into()),
            Str(s) => Attr::Str(s.into()),
            Ints(list) => Attr::Ints(list.to_vec()),
        }
    }
}

/// Attributes whose names differ: operator (`*` for all), name in the IR, name in ONNX.
const NAMES: &[(&str, &str, &str)] = &[
    ("*", "kernel", "kernel_shape"),
    ("*", "trans_a", "transA"),
    ("*", "trans_b", "transB"),
    ("DequantizeLinear", "dtype", "output_dtype"),
    ("QuantizeLinear", "dtype", "output_dtype"),
    ("DepthToSpace", "block_size", "blocksize"),
    ("Optional", "element_type", "type"),
    ("SpaceToDepth", "block_size", "blocksize"),
];

/// Values of attributes that a model leaves out: operator (`*` for all others), name in the IR, value. Truth values
/// are false and lists are empty where nothing is said here; an optional attribute stays absent.
const DEFAULTS: &[(&str, &str, Preset)] = &[
    ("ArgMax", "axis", Int(0)),
    ("ArgMin", "axis", Int(0)),
    ("Attention", "qk_matmul_output_mode", Int(0)),
    ("Attention", "softcap", Float(0.0)),
    ("Attention", "left_window_size", Int(-1)),
    ("Attention", "right_window_size", Int(-1)),
    ("CausalConvWithState", "activation", Str("none")),
    ("Celu", "alpha", Float(1.0)),
    ("DFT", "axis", Int(-2)),
    ("DeformConv", "offset_group", Int(1)),
    ("DequantizeLinear", "axis", Int(1)),
    ("DepthToSpace", "mode", Str("DCR")),
    ("Elu", "alpha", Float(1.0)),
    ("EyeLike", "k", Int(0)),
    ("Flatten", "axis", Int(1)),
    ("Gather", "axis", Int(0)),
    ("GatherElements", "axis", Int(0)),
    ("GatherND", "batch_dims", Int(0)),
    ("Gemm", "alpha", Float(1.0)),
    ("Gemm", "beta", Float(1.0)),
    ("GlobalLpPool", "p", Int(2)),
    ("GridSample", "mode", Str("linear")),
    ("GridSample", "padding_mode", Str("zeros")),
    ("HardSigmoid", "alpha", Float(0.2)),
    ("HardSigmoid", "beta", Float(0.5)),
    ("ImageDecoder", "pixel_format", Str("RGB")),
    ("IsInf", "detect_negative", Int(1)),
    ("IsInf", "detect_positive", Int(1)),
    ("LRN", "alpha", Float(1e-4)),
    ("LRN", "beta", Float(0.75)),
    ("LRN", "bias", Float(1.0)),
    ("LeakyRelu", "alpha", Float(0.01)),
    ("LinearAttention", "scale", Float(0.0)),
    ("LinearAttention", "update_rule", Str("gated_delta")),
    ("LpNormalization", "p", Int(2)),
    ("LpPool", "p", Int(2)),
    ("MaxPool", "storage_order", Int(0)),
    ("MeanVarianceNormalization", "axes", Ints(&[0, 2, 3])),
    ("NegativeLogLikelihoodLoss", "reduction", Str("mean")),
    ("Pad", "mode", Str("constant")),
    ("QuantizeLinear", "axis", Int(1)),
    ("Resize", "coordinate_transformation_mode", Str("half_pixel")),
    ("Resize", "cubic_coeff_a", Float(-0.75)),
    ("Resize", "extrapolation_value", Float(0.0)),
    ("Resize", "keep_aspect_ratio_policy", Str("stretch")),
    ("Resize", "mode", Str("nearest")),
    ("Resize", "nearest_mode", Str("round_prefer_floor")),
    ("ReverseSequence", "batch_axis", Int(1)),
    ("ReverseSequence", "time_axis", Int(0)),
    ("RoiAlign", "coordinate_transformation_mode", Str("half_pixel")),
    ("RoiAlign", "mode", Str("avg")),
    ("RoiAlign", "output_height", Int(1)),
    ("RoiAlign", "output_width", Int(1)),
    ("RoiAlign", "sampling_ratio", Int(0)),
    ("RoiAlign", "spatial_scale", Float(1.0)),
    ("RotaryEmbedding", "num_heads", Int(0)),
    ("RotaryEmbedding", "rotary_embedding_dim", Int(0)),
    ("STFT", "onesided", Int(1)),
    ("ScatterElements", "axis", Int(0)),
    ("Selu", "alpha", Float(1.673_263_2)),
    ("Selu", "gamma", Float(1.050_701)),
    ("Shrink", "bias", Float(0.0)),
    ("Shrink", "lambd", Float(0.5)),
    ("SoftmaxCrossEntropyLoss", "reduction", Str("mean")),
    ("SpaceToDepth", "mode", Str("DCR")),
    ("Split", "axis", Int(0)),
    ("SplitToSequence", "axis", Int(0)),
    ("StringNormalizer", "case_change_action", Str("NONE")),
    ("Swish", "alpha", Float(1.0)),
    ("SwiGLU", "alpha", Float(1.0)),
    ("TensorScatter", "axis", Int(-2)),
    ("TensorScatter", "mode", Str("linear")),
    ("ThresholdedRelu", "alpha", Float(1.0)),
    ("Trilu", "upper", Int(1)),
    ("Unique", "sorted", Int(1)),
    ("ai.onnx.preview.training::Adagrad", "decay_factor", Float(0.0)),
    ("ai.onnx.preview.training::Adagrad", "epsilon", Float(1e-6)),
    ("ai.onnx.preview.training::Adagrad", "norm_coefficient", Float(0.0)),
    ("ai.onnx.preview.training::Adam", "alpha", Float(0.9)),
    ("ai.onnx.preview.training::Adam", "beta", Float(0.999)),
    ("ai.onnx.preview.training::Adam", "epsilon", Float(1e-6)),
    ("ai.onnx.preview.training::Adam", "norm_coefficient", Float(0.0)),
    ("ai.onnx.preview.training::Adam", "norm_coefficient_post", Float(0.0)),
    ("*", "auto_pad", Str("NOTSET")),
    ("*", "axis", Int(-1)),
    ("*", "block_size", Int(0)),
    ("*", "direction", Str("forward")),
    ("*", "epsilon", Float(1e-5)),
    ("*", "group", Int(1)),
    ("*", "keepdims", Int(1)),
    ("*", "largest", Int(1)),
    ("*", "layout", Int(0)),
    ("*", "periodic", Int(1)),
    ("*", "reduction", Str("none")),
    ("*", "sorted", Int(1)),
];

/// Attributes that are required even if `*` above marks them optional.
const REQUIRED: &[(&str, &str)] = &[
    ("BitShift", "direction"),
    ("Concat", "axis"),
    ("ConcatFromSequence", "axis"),
    ("DepthToSpace", "block_size"),
    ("SpaceToDepth", "block_size"),
];

/// Attributes that repeat the extents of an operand: operator, attribute, the operand and the first axis that it says.
const EXTENTS: &[(&str, &str, usize, usize)] = &[
    ("Conv", "kernel_shape", 1, 2),
    ("ConvInteger", "kernel_shape", 1, 2),
    ("ConvTranspose", "kernel_shape", 1, 2),
    ("DeformConv", "kernel_shape", 1, 2),
    ("GRU", "hidden_size", 2, 2),
    ("LSTM", "hidden_size", 2, 2),
    ("QLinearConv", "kernel_shape", 3, 2),
    ("RNN", "hidden_size", 2, 2),
];

/// Attributes that advise, without effect on results.
const IGNORED: &[(&str, &[&str])] = &[("LinearAttention", &["chunk_size"])];

/// An attribute value that has no effect.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AttributeWithoutEffect {
    /// An integer.
    Is(i64),
}

impl AttributeWithoutEffect {
    /// Whether `a` has this value.
    pub fn matches(self, a: &Attr) -> bool {
        match (self, a) {
            (AttributeWithoutEffect::Is(n), Attr::Int(i)) => *i == n,
            _ => false,
        }
    }
}

impl fmt::Display for AttributeWithoutEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AttributeWithoutEffect::Is(n) => write!(f, "{n}"),
        }
    }
}

/// Attributes that have one supported value, unless the op of the IR takes them.
const ONLY: &[(&str, &[(&str, AttributeWithoutEffect)])] = &[
    ("GroupNormalization", &[("stash_type", AttributeWithoutEffect::Is(1))]),
    ("LayerNormalization", &[("stash_type", AttributeWithoutEffect::Is(1))]),
    ("RMSNormalization", &[("stash_type", AttributeWithoutEffect::Is(1))]),
    ("Range", &[("stash_type", AttributeWithoutEffect::Is(1))]),
];

/// Attributes of the IR that say whether an output is used: operator, name, the first output meant.
const FLAGS: &[(&str, &str, usize)] = &[
    ("Attention", "return_present", 1),
    ("Attention", "return_scores", 3),
    ("Dropout", "return_mask", 1),
    ("LayerNormalization", "return_stats", 1),
    ("MaxPool", "return_indices", 1),
    ("SoftmaxCrossEntropyLoss", "return_log_prob", 1),
];

/// An op of the IR that an operator is for one value of an attribute.
pub(crate) struct Variant {
    /// The op.
    pub op: &'static str,
    /// An attribute of the op that the import sets and that must have this value for the export.
    pub with: Option<(&'static str, bool)>,
    /// The operator in ONNX.
    pub onnx: &'static str,
    /// The operator's attribute; the value of its first row is the default, unless it must be given.
    pub attr: &'static str,
    /// The value.
    value: Preset,
}

impl Variant {
    /// The value of the operator's attribute.
    pub fn value(&self) -> Attr {
        self.value.attr()
    }
}

macro_rules! variants {
    ($($op:literal $({$with:ident: $is:literal})? = $onnx:literal {$attr:ident: $value:expr};)*) => {
        &[$(Variant {
            op: $op,
            with: variants!(@with $($with $is)?),
            onnx: $onnx,
            attr: stringify!($attr),
            value: $value,
        }),*]
    };
    (@with) => { None };
    (@with $with:ident $is:literal) => { Some((stringify!($with), $is)) };
}

/// Operators that are several ops of the IR, by the value of an attribute.
const VARIANTS: &[Variant] = variants! {
    "of.shl" = "BitShift" {direction: Str("LEFT")};
    "of.shr" = "BitShift" {direction: Str("RIGHT")};
    "of.gelu" {tanh: false} = "Gelu" {approximate: Str("none")};
    "of.gelu" {tanh: true} = "Gelu" {approximate: Str("tanh")};
    "of.mod" = "Mod" {fmod: Int(0)};
    "of.fmod" = "Mod" {fmod: Int(1)};
};

/// Ops that are written as operators which read as another op, or as this one after a conversion.
const WRITTEN: &[(&str, &str)] = &[("of.max", "Max"), ("of.min", "Min"), ("of.pow", "Pow")];

/// Attributes that say what an operand says: operator, name in the IR, operand. With the operand they are not written.
const REPEATED: &[(&str, &str, usize)] = &[("Split", "num_outputs", 1)];

/// Attributes of the IR that no attribute of an operator says: operator (`*` for all), name.
const INTERNAL: &[(&str, &str)] = &[("*", "channels_last"), ("Dropout", "training")];

/// Attributes that are written even where they have their defaults: the operator is a function whose body needs them,
/// or what checks models takes another default.
const SPELT_OUT: &[(&str, &str)] = &[("MeanVarianceNormalization", "axes"), ("STFT", "onesided")];

/// The names of the attributes that hold the regions of an op.
const REGIONS: &[(&str, &[&str])] =
    &[("If", &["then_branch", "else_branch"]), ("Loop", &["body"]), ("Scan", &["body"]), ("SequenceMap", &["body"])];

/// The rows for operator `onnx`.
pub(crate) fn variants(onnx: &str) -> impl Iterator<Item = &'static Variant> {
    VARIANTS.iter().filter(move |v| v.onnx == onnx)
}

/// The row for an op; `get` returns its attributes.
pub(crate) fn variant(op: &str, get: impl Fn(&str) -> Option<Attr>) -> Option<&'static Variant> {
    let fits = |v: &&Variant| v.with.is_none_or(|(name, is)| get(name) == Some(Attr::Bool(is)));
    VARIANTS.iter().filter(|v| v.op == op).find(fits)
}

/// The operator that an op is written as where its declaration names none.
pub(crate) fn written(op: &str) -> Option<&'static str> {
    WRITTEN.iter().find(|(o, _)| *o == op).map(|w| w.1)
}

/// The operand that says what the attribute `slot` says.
pub(crate) fn repeats_operand(op: &str, slot: &str) -> Option<usize> {
    REPEATED.iter().find(|(o, s, _)| *o == op && *s == slot).map(|r| r.2)
}

/// The names of the attributes that hold regions.
pub(crate) fn regions(op: &str) -> &'static [&'static str] {
    REGIONS.iter().find(|(o, _)| *o == op).map_or(&[], |r| r.1)
}

/// Whether no attribute of the operator says what the attribute `slot` of the IR says.
pub(crate) fn is_internal(op: &str, slot: &str) -> bool {
    !is_foreign(op) && INTERNAL.iter().any(|(o, s)| (*o == "*" || *o == op) && *s == slot)
}

/// Whether the attribute `slot` is written even where it has its default.
pub(crate) fn is_spelt_out(op: &str, slot: &str) -> bool {
    SPELT_OUT.contains(&(op, slot))
}

/// Whether a model must give the attribute.
pub(crate) fn is_required(op: &str, attr: &str) -> bool {
    REQUIRED.contains(&(op, attr))
}

/// The first of the outputs whose use the attribute `slot` declares, if it is such an attribute.
pub(crate) fn flag_of_output(op: &str, slot: &str) -> Option<usize> {
    FLAGS.iter().find(|(o, s, _)| *o == op && *s == slot).map(|f| f.2)
}

/// Whether the operator is one of a domain that ONNX does not define. Its attributes are as its op declares them.
fn is_foreign(op: &str) -> bool {
    op.split_once("::").is_some_and(|(domain, _)| !domain.starts_with("ai.onnx."))
}

/// The name in ONNX of the attribute `slot`.
pub(crate) fn onnx_name(op: &str, slot: &'static str) -> &'static str {
    if is_foreign(op) {
        return slot;
    }
    NAMES.iter().find(|(o, s, _)| (*o == op || *o == "*") && *s == slot).map_or(slot, |n| n.2)
}

/// The value of an attribute that a model leaves out; `None` where it must be given or stays absent.
pub(crate) fn default(op: &str, slot: &AttrSlot) -> Option<Attr> {
    if slot.optional || REQUIRED.contains(&(op, slot.name)) || is_foreign(op) {
        return None;
    }
    let row = |wanted: &str| DEFAULTS.iter().find(|(o, s, _)| *o == wanted && *s == slot.name).map(|d| d.2);
    Some(match (row(op).or_else(|| row("*")), slot.kind) {
        (Some(Int(i)), "bool") => Attr::Bool(i != 0),
        (Some(preset), _) => preset.attr(),
        (None, "bool") => Attr::Bool(false),
        (None, "integer list") => Attr::Ints(Vec::new()),
        (None, "float list") => Attr::Floats(Vec::new()),
        (None, "string list") => Attr::Strs(Vec::new()),
        (None, _) => return None,
    })
}

/// The attribute of `op` that repeats extents, with the operand and the first axis whose extents it repeats.
pub(crate) fn says_extents(op: &str) -> Option<(&'static str, usize, usize)> {
    EXTENTS.iter().find(|r| r.0 == op).map(|r| (r.1, r.2, r.3))
}

/// Attributes without effect.
pub(crate) fn ignored(op: &str) -> &'static [&'static str] {
    IGNORED.iter().find(|(o, _)| *o == op).map_or(&[], |i| i.1)
}

/// Attributes with one supported value.
pub(crate) fn only(op: &str) -> &'static [(&'static str, AttributeWithoutEffect)] {
    ONLY.iter().find(|(o, _)| *o == op).map_or(&[], |i| i.1)
}
