//! The table of importers: every operator that needs more than its op's declaration.

use super::entry::ImporterEntry;
use super::{
    axes, compose, contrib, control, elementwise, legacy, normalization, random, resize, softmax, structure, tensors,
};
use crate::import::as_is;

/// The operators of ai.onnx, alphabetical, each with the operator sets in which its reading changes.
pub(crate) const TABLE: &[ImporterEntry] = table! { "";
    "Abs": 1 legacy::in_place, 6 as_is;
    "Add": 1 legacy::broadcast, 7 as_is;
    "And": 1 legacy::broadcast, 7 as_is;
    "BatchNormalization": 1 normalization::batch_norm;
    "Bernoulli": 15 random::bernoulli;
    "BitShift": 11 elementwise::variant;
    "BlackmanWindow": 17 compose::blackman_window;
    "Cast": 1 legacy::cast_1, 6 as_is;
    "CastLike": 15 elementwise::cast_like;
    "Ceil": 1 legacy::in_place, 6 as_is;
    "CenterCropPad": 18 compose::center_crop_pad;
    "Clip": 1 elementwise::clip_6, 11 as_is;
    "Concat": 1 legacy::concat_1, 4 as_is;
    "Constant": 1 structure::constant;
    "DFT": 17 tensors::dft_17, 20 as_is;
    "Div": 1 legacy::broadcast, 7 as_is;
    "Dropout": 1 structure::dropout;
    "Elu": 1 legacy::in_place, 6 as_is;
    "Equal": 1 legacy::broadcast, 7 as_is;
    "Exp": 1 legacy::in_place, 6 as_is;
    "Floor": 1 legacy::in_place, 6 as_is;
    "GRU": 1 legacy::recurrent_1, 7 as_is;
    "Gelu": 20 elementwise::variant;
    "Gemm": 1 legacy::gemm_1, 7 as_is;
    "GlobalLpPool": 1 legacy::lp_pool_1, 2 as_is;
    "Greater": 1 legacy::broadcast, 7 as_is;
    "GridSample": 16 resize::grid_sample_16, 20 as_is;
    "GroupNormalization": 18 normalization::group_norm_18, 21 as_is;
    "HammingWindow": 17 compose::hamming_window;
    "HannWindow": 17 compose::hann_window;
    "HardSigmoid": 1 legacy::in_place, 6 as_is;
    "Hardmax": 1 softmax::softmax_1, 13 as_is;
    "Identity": 1 structure::identity;
    "If": 1 control::if_;
    "InstanceNormalization": 1 legacy::in_place, 6 as_is;
    "LSTM": 1 legacy::recurrent_1, 7 as_is;
    "LeakyRelu": 1 legacy::in_place, 6 as_is;
    "Less": 1 legacy::broadcast, 7 as_is;
    "Log": 1 legacy::in_place, 6 as_is;
    "LogSoftmax": 1 softmax::softmax_1, 13 as_is;
    "Loop": 1 control::loop_;
    "LpPool": 1 legacy::lp_pool_1, 2 as_is;
    "Max": 1 legacy::in_place, 6 as_is;
    "Mean": 1 legacy::in_place, 6 as_is;
    "Min": 1 legacy::in_place, 6 as_is;
    "Mod": 10 elementwise::variant;
    "Mul": 1 legacy::broadcast, 7 as_is;
    "Multinomial": 7 random::multinomial;
    "Neg": 1 legacy::in_place, 6 as_is;
    "Or": 1 legacy::broadcast, 7 as_is;
    "PRelu": 1 legacy::prelu_1, 7 as_is;
    "Pad": 1 legacy::pad_1, 2 tensors::pad_2, 11 as_is;
    "Pow": 1 legacy::pow_1, 7 elementwise::pow;
    "RNN": 1 legacy::recurrent_1, 7 as_is;
    "RandomNormal": 1 random::normal;
    "RandomNormalLike": 1 random::normal_like;
    "RandomUniform": 1 random::uniform;
    "RandomUniformLike": 1 random::uniform_like;
    "Reciprocal": 1 legacy::in_place, 6 as_is;
    "ReduceL1": 1 axes::reduce_1, 18 axes::reduce;
    "ReduceL2": 1 axes::reduce_1, 18 axes::reduce;
    "ReduceLogSum": 1 axes::reduce_1, 18 axes::reduce;
    "ReduceLogSumExp": 1 axes::reduce_1, 18 axes::reduce;
    "ReduceMax": 1 axes::reduce_1, 18 axes::reduce;
    "ReduceMean": 1 axes::reduce_1, 18 axes::reduce;
    "ReduceMin": 1 axes::reduce_1, 18 axes::reduce;
    "ReduceProd": 1 axes::reduce_1, 18 axes::reduce;
    "ReduceSum": 1 axes::reduce_1, 13 axes::reduce;
    "ReduceSumSquare": 1 axes::reduce_1, 18 axes::reduce;
    "Relu": 1 legacy::in_place, 6 as_is;
    "Reshape": 1 legacy::reshape_1, 5 as_is;
    "Resize": 10 resize::resize_10, 11 resize::resize;
    "RoiAlign": 10 resize::roi_align_10, 16 as_is;
    "Scan": 8 control::scan_8, 9 control::scan;
    "Scatter": 9 tensors::scatter_9;
    "Selu": 1 legacy::selu_1, 6 as_is;
    "SequenceMap": 17 control::sequence_map;
    "Sigmoid": 1 legacy::in_place, 6 as_is;
    "SimplifiedLayerNormalization": 1 contrib::simplified;
    "Slice": 1 tensors::slice_1, 10 as_is;
    "Softmax": 1 softmax::softmax_1, 13 as_is;
    "SpaceToDepth": 1 compose::space_to_depth;
    "Split": 1 legacy::split_1, 2 tensors::split_2, 13 tensors::split;
    "Sqrt": 1 legacy::in_place, 6 as_is;
    "Squeeze": 1 axes::squeeze_1, 13 as_is;
    "Sub": 1 legacy::broadcast, 7 as_is;
    "Sum": 1 legacy::in_place, 6 as_is;
    "Tanh": 1 legacy::in_place, 6 as_is;
    "Tile": 1 legacy::tile_1, 6 as_is;
    "TopK": 1 tensors::top_k_1, 10 as_is;
    "Unsqueeze": 1 axes::squeeze_1, 13 as_is;
    "Upsample": 1 legacy::upsample_1, 7 resize::upsample_7, 9 resize::upsample_9;
    "Xor": 1 legacy::broadcast, 7 as_is;
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::entry::ImportFn;

    #[test]
    fn every_table_row_is_found() {
        let find = |op, v| super::super::find("", op, v).map(|f| f as usize);
        for (i, row) in TABLE.iter().enumerate() {
            let before = TABLE[..i].last().filter(|e| e.op == row.op).map(|e| e.import as usize);
            assert_eq!(find(row.op, row.since), Some(row.import as usize), "{} {}", row.op, row.since);
            assert_ne!(before, Some(row.import as usize), "{} {} is as the row before", row.op, row.since);
            // A row that changes nothing belongs to a later version alone.
            let plain = row.import as usize == as_is as ImportFn as usize;
            assert!(!plain || before.is_some(), "{} needs no row", row.op);
        }
    }

    #[test]
    fn version_selects_the_row() {
        let find = |op, v| super::super::find("", op, v).map(|f| f as usize);
        assert_ne!(find("Squeeze", 12), find("Squeeze", 13));
        assert_eq!(find("Squeeze", 13), find("Squeeze", 21));
        assert!(find("Conv", 7).is_some() && find("NoSuchOp", 18).is_none());
        assert!(super::super::find("com.example", "Conv", 1).is_none());
    }
}
