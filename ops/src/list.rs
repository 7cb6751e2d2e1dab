//! The one list of ops. A new op is a file, and a line here.

use std::collections::HashMap;
use std::sync::OnceLock;

use of_ir::{Graph, OpId, Registry};

use crate::{Op, OpDecl, OpSpec, op_registry};

macro_rules! list {
    ($($op:path,)*) => {
        /// Every op, alphabetical by name within each family.
        pub static ALL: &[&dyn OpDecl] = &[$(<$op as OpSpec>::DECL,)*];
    };
}

list! {
    // boxing
    crate::boxing::AllGather,
    crate::boxing::AllReduce,
    crate::boxing::AllToAll,
    crate::boxing::ToPartial,
    crate::boxing::Reshard,
    crate::boxing::ShardingConstraint,
    crate::boxing::ReduceScatter,
    crate::boxing::Send,
    crate::boxing::LocalSlice,
    crate::boxing::Transfer,
    // control
    crate::control::ConcatFromSequence,
    crate::control::If,
    crate::control::Loop,
    crate::control::OptionalGetElement,
    crate::control::OptionalHasElement,
    crate::control::OptionalOf,
    crate::control::Scan,
    crate::control::SequenceAt,
    crate::control::SequenceConstruct,
    crate::control::SequenceEmpty,
    crate::control::SequenceErase,
    crate::control::SequenceInsert,
    crate::control::SequenceLength,
    crate::control::SequenceMap,
    crate::control::SplitToSequence,
    crate::control::Subgraph,
    // contraction
    crate::contraction::Det,
    crate::contraction::Einsum,
    crate::contraction::Gemm,
    crate::contraction::MatMul,
    // elementwise: unary
    crate::elementwise::Abs,
    crate::elementwise::Acos,
    crate::elementwise::Acosh,
    crate::elementwise::Asin,
    crate::elementwise::Asinh,
    crate::elementwise::Atan,
    crate::elementwise::Atanh,
    crate::elementwise::BitwiseNot,
    crate::elementwise::Ceil,
    crate::elementwise::Cos,
    crate::elementwise::Cosh,
    crate::elementwise::Erf,
    crate::elementwise::Exp,
    crate::elementwise::Floor,
    crate::elementwise::IsNan,
    crate::elementwise::Log,
    crate::elementwise::Neg,
    crate::elementwise::Not,
    crate::elementwise::Reciprocal,
    crate::elementwise::Round,
    crate::elementwise::Rsqrt,
    crate::elementwise::Sigmoid,
    crate::elementwise::Sign,
    crate::elementwise::Sin,
    crate::elementwise::Sinh,
    crate::elementwise::Sqrt,
    crate::elementwise::Tan,
    crate::elementwise::Tanh,
    // elementwise: composites and conversions
    crate::elementwise::BitCast,
    crate::elementwise::Cast,
    crate::elementwise::Celu,
    crate::elementwise::Clip,
    crate::elementwise::Elu,
    crate::elementwise::Gelu,
    crate::elementwise::HardSigmoid,
    crate::elementwise::HardSwish,
    crate::elementwise::IsInf,
    crate::elementwise::LeakyRelu,
    crate::elementwise::VariadicMax,
    crate::elementwise::VariadicMean,
    crate::elementwise::VariadicMin,
    crate::elementwise::Mish,
    crate::elementwise::PRelu,
    crate::elementwise::Relu,
    crate::elementwise::Select,
    crate::elementwise::Selu,
    crate::elementwise::Shrink,
    crate::elementwise::Softplus,
    crate::elementwise::Softsign,
    crate::elementwise::VariadicSum,
    crate::elementwise::SwiGlu,
    crate::elementwise::Swish,
    crate::elementwise::ThresholdedRelu,
    // elementwise: binary
    crate::elementwise::Add,
    crate::elementwise::And,
    crate::elementwise::BitwiseAnd,
    crate::elementwise::BitwiseOr,
    crate::elementwise::BitwiseXor,
    crate::elementwise::Div,
    crate::elementwise::Eq,
    crate::elementwise::Fmod,
    crate::elementwise::Ge,
    crate::elementwise::Gt,
    crate::elementwise::Le,
    crate::elementwise::Lt,
    crate::elementwise::Max,
    crate::elementwise::Min,
    crate::elementwise::Mod,
    crate::elementwise::Mul,
    crate::elementwise::Ne,
    crate::elementwise::Or,
    crate::elementwise::Pow,
    crate::elementwise::Shl,
    crate::elementwise::Shr,
    crate::elementwise::Sub,
    crate::elementwise::Xor,
    // image
    crate::image::ImageDecoder,
    // ml
    crate::ml::LabelMap,
    crate::ml::PairwiseCoupling,
    crate::ml::Probit,
    crate::ml::SoftmaxIgnoreZero,
    crate::ml::TreeEnsemble,
    // movement
    crate::movement::Compress,
    crate::movement::Concat,
    crate::movement::ConstantOfShape,
    crate::movement::DepthToSpace,
    crate::movement::Expand,
    crate::movement::EyeLike,
    crate::movement::Flatten,
    crate::movement::Gather,
    crate::movement::GatherElements,
    crate::movement::GatherNd,
    crate::movement::NonZero,
    crate::movement::OneHot,
    crate::movement::Pad,
    crate::movement::Range,
    crate::movement::Reshape,
    crate::movement::ReverseSequence,
    crate::movement::ScatterElements,
    crate::movement::ScatterNd,
    crate::movement::Slice,
    crate::movement::SpaceToDepth,
    crate::movement::Split,
    crate::movement::Squeeze,
    crate::movement::TensorScatter,
    crate::movement::Tile,
    crate::movement::Transpose,
    crate::movement::Trilu,
    crate::movement::Unique,
    crate::movement::Unsqueeze,
    // nn
    crate::nn::AffineGrid,
    crate::nn::Attention,
    crate::nn::AvgPool,
    crate::nn::BatchNorm,
    crate::nn::BatchNormTraining,
    crate::nn::CausalConv,
    crate::nn::Col2Im,
    crate::nn::Conv,
    crate::nn::ConvInteger,
    crate::nn::ConvTranspose,
    crate::nn::DeformConv,
    crate::nn::DequantizeLinear,
    crate::nn::Dropout,
    crate::nn::DynamicQuantizeLinear,
    crate::nn::GlobalAveragePool,
    crate::nn::GlobalLpPool,
    crate::nn::GlobalMaxPool,
    crate::nn::GridSample,
    crate::nn::GroupNorm,
    crate::nn::InstanceNorm,
    crate::nn::LayerNorm,
    crate::nn::LinearAttention,
    crate::nn::LpNormalization,
    crate::nn::LpPool,
    crate::nn::Lrn,
    crate::nn::MatMulInteger,
    crate::nn::MaxPool,
    crate::nn::MaxPoolGradient,
    crate::nn::DepthwiseWeightGradient,
    crate::nn::MaxUnpool,
    crate::nn::MeanVarianceNorm,
    crate::nn::MelWeightMatrix,
    crate::nn::NllLoss,
    crate::nn::NonMaxSuppression,
    crate::nn::QLinearConv,
    crate::nn::QLinearMatMul,
    crate::nn::QuantizeLinear,
    crate::nn::Resize,
    crate::nn::RmsNorm,
    crate::nn::RoiAlign,
    crate::nn::RotaryEmbedding,
    crate::nn::SoftmaxCrossEntropyLoss,
    // random
    crate::random::Multinomial,
    crate::random::RandomNormal,
    crate::random::RandomUniform,
    // recurrent
    crate::recurrent::DynamicQuantizeLstm,
    crate::recurrent::Gru,
    crate::recurrent::Lstm,
    crate::recurrent::Rnn,
    // reduction
    crate::reduction::ArgMax,
    crate::reduction::ArgMin,
    crate::reduction::CumProd,
    crate::reduction::CumSum,
    crate::reduction::Hardmax,
    crate::reduction::LogSoftmax,
    crate::reduction::ReduceL1,
    crate::reduction::ReduceL2,
    crate::reduction::ReduceLogSum,
    crate::reduction::ReduceLogSumExp,
    crate::reduction::ReduceMax,
    crate::reduction::ReduceMean,
    crate::reduction::ReduceMin,
    crate::reduction::ReduceProd,
    crate::reduction::ReduceSum,
    crate::reduction::ReduceSumSquare,
    crate::reduction::Softmax,
    crate::reduction::TopK,
    // signal
    crate::signal::Dft,
    crate::signal::Stft,
    // string
    crate::string::RegexFullMatch,
    crate::string::StringConcat,
    crate::string::StringNormalizer,
    crate::string::StringSplit,
    crate::string::TfIdfVectorizer,
    crate::string::Tokenizer,
    // structural
    crate::structural::Constant,
    crate::structural::Alternatives,
    crate::structural::Trap,
    crate::structural::OptimizationBarrier,
    crate::structural::NoneValue,
    crate::structural::Return,
    crate::structural::ShapeOf,
    crate::structural::Size,
    crate::structural::Yield,
    // time
    crate::time::Accumulate,
    crate::time::Pack,
    crate::time::Unpack,
    // training
    crate::training::Adagrad,
    crate::training::Adam,
    crate::training::Gradient,
    crate::training::Momentum,
}

/// The declaration of the op called `name`.
pub fn decl(name: &str) -> Option<&'static dyn OpDecl> {
    static BY_NAME: OnceLock<HashMap<&'static str, &'static dyn OpDecl>> = OnceLock::new();
    let own = BY_NAME.get_or_init(|| ALL.iter().map(|d| (d.name(), *d)).collect());
    own.get(name).copied().or_else(|| op_registry::get(name))
}

/// All ops, those that were added too, for the parser.
pub fn registry() -> Registry {
    Registry::new(ALL.iter().copied().chain(op_registry::all()).map(|d| d.as_def()))
}

/// The op as its struct with attributes; `None` for an op that is neither in the list nor was added to it.
pub fn get(graph: &Graph, op: OpId) -> Option<Box<dyn Op>> {
    let data = graph.op(op);
    decl(data.name())?.decode(&data.attrs).ok()
}

/// The attributes of `op` if it is a `T`.
pub fn as_op<T: OpSpec>(graph: &Graph, op: OpId) -> Option<T> {
    let data = graph.op(op);
    if data.name() == T::NAME { T::from_attrs(&data.attrs).ok() } else { None }
}
