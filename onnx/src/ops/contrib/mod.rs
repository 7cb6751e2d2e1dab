//! The operators of onnxruntime, domain com.microsoft, that exported models hold. Each is read as ops of the IR, so
//! that passes and backends need not know of it.
//!
//! Source: the operators' definitions in onnxruntime, and what onnxruntime computes.

mod activation;
mod attention;
mod build;
mod convolution;
mod grouped;
mod normalization;
mod position;
mod product;
mod quantized;
mod tensors;

use super::Entry;
use crate::import::{Fault, Importer, Node, Values};

pub(super) use normalization::simplified;

/// The domain.
pub(crate) const DOMAIN: &str = "com.microsoft";

macro_rules! table {
    ($($op:literal: $import:path;)*) => {
        &[$(Entry { domain: DOMAIN, op: $op, since: 1, import: $import },)*]
    };
}

/// Every operator, alphabetical.
pub(crate) const TABLE: &[Entry] = table! {
    "Attention": attention::attention;
    "BiasAdd": activation::bias_add;
    "BiasGelu": activation::bias_gelu;
    "BiasSoftmax": activation::bias_softmax;
    "BiasSplitGelu": activation::bias_split_gelu;
    "CDist": product::cdist;
    "ConvTransposeWithDynamicPads": convolution::transposed_with_pads;
    "CropAndResize": tensors::crop_and_resize;
    "DecoderMaskedMultiHeadAttention": attention::decoder_masked;
    "DequantizeLinear": quantized::linear;
    "DynamicQuantizeLSTM": quantized::lstm;
    "DynamicQuantizeMatMul": quantized::dynamic_matmul;
    "EmbedLayerNormalization": normalization::embed;
    "ExpandDims": tensors::expand_dims;
    "FastGelu": activation::fast_gelu;
    "FusedConv": convolution::fused;
    "FusedGemm": product::fused_gemm;
    "FusedMatMul": product::fused_matmul;
    "FusedMatMulActivation": product::fused_matmul;
    "GatedRelativePositionBias": position::gated_relative;
    "GatherBlockQuantized": product::gather_blocks;
    "GatherND": tensors::same;
    "Gelu": activation::gelu;
    "GemmFastGelu": activation::gemm_fast_gelu;
    "GridSample": tensors::grid_sample;
    "GroupNorm": normalization::group;
    "GroupQueryAttention": grouped::group_query;
    "MatMulInteger16": product::matmul_integer_16;
    "MatMulIntegerToFloat": quantized::matmul_to_float;
    "MatMulNBits": product::matmul_n_bits;
    "MulInteger": quantized::mul_integer;
    "MultiHeadAttention": attention::multi_head;
    "NhwcConv": convolution::nhwc;
    "NhwcFusedConv": convolution::nhwc;
    "NhwcMaxPool": convolution::nhwc_max_pool;
    "Pad": tensors::pad;
    "QAttention": attention::quantized_attention;
    "QGemm": quantized::gemm;
    "QLinearAdd": quantized::binary;
    "QLinearAveragePool": quantized::average_pool;
    "QLinearConcat": quantized::concat;
    "QLinearConv": convolution::quantized;
    "QLinearGlobalAveragePool": quantized::global_average_pool;
    "QLinearLeakyRelu": quantized::unary;
    "QLinearMul": quantized::binary;
    "QLinearReduceMean": quantized::reduce_mean;
    "QLinearSigmoid": quantized::unary;
    "QLinearSoftmax": quantized::softmax;
    "QLinearWhere": quantized::choose;
    "QuantizeLinear": quantized::linear;
    "QuickGelu": activation::quick_gelu;
    "Range": tensors::range;
    "ReduceSumInteger": quantized::reduce_sum_integer;
    "RelativePositionBias": position::relative;
    "Rfft": tensors::rfft;
    "RotaryEmbedding": position::rotary;
    "SkipGroupNorm": normalization::skip_group;
    "SkipLayerNormalization": normalization::skip;
    "SkipSimplifiedLayerNormalization": normalization::skip_simplified;
    "TorchEmbedding": position::embedding;
    "TransposeMatMul": product::fused_matmul;
    "Trilu": tensors::same;
    "Unique": tensors::unique;
};

/// Operators that are known and not read, with the reason.
pub(crate) const REFUSED: &[(&str, &str)] = &[
    ("BeamSearch", "a search that runs a model again and again belongs to the program around it"),
    ("BitmaskDropout", "it is for training"),
    ("GreedySearch", "a search that runs a model again and again belongs to the program around it"),
    ("Inverse", "there is no inverse of a matrix in the IR"),
    ("Irfft", "there is no inverse of a transform of half a spectrum in the IR"),
    ("LongformerAttention", "attention to neighbours and chosen tokens alone"),
    ("MoE", "a choice of experts for each token"),
    ("PackedAttention", "packed sequences, which only GPUs run"),
    ("PackedMultiHeadAttention", "packed sequences, which only GPUs run"),
    ("PagedAttention", "a cache in pages belongs to the program around it"),
    ("QMoE", "a choice of experts for each token"),
    ("RemovePadding", "packed sequences, which only GPUs run"),
    ("RestorePadding", "packed sequences, which only GPUs run"),
    ("Sampling", "a search that runs a model again and again belongs to the program around it"),
    ("SparseAttention", "attention to chosen blocks alone"),
    ("SparseToDenseMatMul", "there are no sparse tensors in the IR"),
    ("Tokenizer", "text is taken apart by the program around it"),
    ("WhisperBeamSearch", "a search that runs a model again and again belongs to the program around it"),
];

/// Says why an operator of [`REFUSED`] is not read.
pub(super) fn refused<'m>(_cx: &mut Importer<'m, '_>, node: Node<'m>) -> Values {
    let reason = REFUSED.iter().find(|row| row.0 == node.op).map_or("the operator is not known", |row| row.1);
    Err(Fault::unsupported(reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_sorted_and_unique() {
        assert!(TABLE.windows(2).all(|pair| pair[0].op < pair[1].op));
        assert!(REFUSED.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert!(REFUSED.iter().all(|row| TABLE.iter().all(|e| e.op != row.0)));
    }
}
