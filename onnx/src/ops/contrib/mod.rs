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

use super::entry::ImporterEntry;
use crate::import::{ImportError, ImportResult, Importer, Node};

pub(super) use normalization::simplified;

/// The domain.
pub(crate) const DOMAIN: &str = "com.microsoft";

/// Every operator, alphabetical.
pub(crate) const TABLE: &[ImporterEntry] = table! { DOMAIN;
    "Attention": 1 attention::attention;
    "BiasAdd": 1 activation::bias_add;
    "BiasGelu": 1 activation::bias_gelu;
    "BiasSoftmax": 1 activation::bias_softmax;
    "BiasSplitGelu": 1 activation::bias_split_gelu;
    "CDist": 1 product::cdist;
    "ConvTransposeWithDynamicPads": 1 convolution::transposed_with_pads;
    "CropAndResize": 1 tensors::crop_and_resize;
    "DecoderMaskedMultiHeadAttention": 1 attention::decoder_masked;
    "DequantizeLinear": 1 quantized::linear;
    "DynamicQuantizeLSTM": 1 quantized::lstm;
    "DynamicQuantizeMatMul": 1 quantized::dynamic_matmul;
    "EmbedLayerNormalization": 1 normalization::embed;
    "ExpandDims": 1 tensors::expand_dims;
    "FastGelu": 1 activation::fast_gelu;
    "FusedConv": 1 convolution::fused;
    "FusedGemm": 1 product::fused_gemm;
    "FusedMatMul": 1 product::fused_matmul;
    "FusedMatMulActivation": 1 product::fused_matmul;
    "GatedRelativePositionBias": 1 position::gated_relative;
    "GatherBlockQuantized": 1 product::gather_blocks;
    "GatherND": 1 tensors::same;
    "Gelu": 1 activation::gelu;
    "GemmFastGelu": 1 activation::gemm_fast_gelu;
    "GridSample": 1 tensors::grid_sample;
    "GroupNorm": 1 normalization::group;
    "GroupQueryAttention": 1 grouped::group_query;
    "MatMulInteger16": 1 product::matmul_integer_16;
    "MatMulIntegerToFloat": 1 quantized::matmul_to_float;
    "MatMulNBits": 1 product::matmul_n_bits;
    "MulInteger": 1 quantized::mul_integer;
    "MultiHeadAttention": 1 attention::multi_head;
    "NhwcConv": 1 convolution::nhwc;
    "NhwcFusedConv": 1 convolution::nhwc;
    "NhwcMaxPool": 1 convolution::nhwc_max_pool;
    "Pad": 1 tensors::pad;
    "QAttention": 1 attention::quantized_attention;
    "QGemm": 1 quantized::gemm;
    "QLinearAdd": 1 quantized::binary;
    "QLinearAveragePool": 1 quantized::average_pool;
    "QLinearConcat": 1 quantized::concat;
    "QLinearConv": 1 convolution::quantized;
    "QLinearGlobalAveragePool": 1 quantized::global_average_pool;
    "QLinearLeakyRelu": 1 quantized::unary;
    "QLinearMul": 1 quantized::binary;
    "QLinearReduceMean": 1 quantized::reduce_mean;
    "QLinearSigmoid": 1 quantized::unary;
    "QLinearSoftmax": 1 quantized::softmax;
    "QLinearWhere": 1 quantized::choose;
    "QuantizeLinear": 1 quantized::linear;
    "QuickGelu": 1 activation::quick_gelu;
    "Range": 1 tensors::range;
    "ReduceSumInteger": 1 quantized::reduce_sum_integer;
    "RelativePositionBias": 1 position::relative;
    "Rfft": 1 tensors::rfft;
    "RotaryEmbedding": 1 position::rotary;
    "SkipGroupNorm": 1 normalization::skip_group;
    "SkipLayerNormalization": 1 normalization::skip;
    "SkipSimplifiedLayerNormalization": 1 normalization::skip_simplified;
    "TorchEmbedding": 1 position::embedding;
    "TransposeMatMul": 1 product::fused_matmul;
    "Trilu": 1 tensors::same;
    "Unique": 1 tensors::unique;
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
    ("WhisperBeamSearch", "a search that runs a model again and again belongs to the program around it"),
];

/// Says why an operator of [`REFUSED`] is not read.
pub(super) fn refused<'m>(_cx: &mut Importer<'m, '_>, node: Node<'m>) -> ImportResult {
    let reason = REFUSED.iter().find(|row| row.0 == node.op).map_or("the operator is not known", |row| row.1);
    Err(ImportError::unsupported(reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_operators_are_sorted_and_have_no_table_row() {
        assert!(REFUSED.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert!(REFUSED.iter().all(|row| TABLE.iter().all(|e| e.op != row.0)));
    }
}
