//! Every operator that needs more than its op's declaration.

use super::Entry;
use super::{axes, control, elementwise, normalization, random, resize, softmax, structure, tensors};
use crate::import::as_is;

macro_rules! table {
    ($($op:literal: $($since:literal $import:path),+;)*) => {
        &[$($(Entry { domain: "", op: $op, since: $since, import: $import },)+)*]
    };
}

/// The operators of ai.onnx, alphabetical, each with the operator sets in which its reading changes.
pub(crate) const TABLE: &[Entry] = table! {
    "BatchNormalization": 7 normalization::batch_norm;
    "Bernoulli": 15 random::unsupported;
    "BitShift": 11 elementwise::bit_shift;
    "CastLike": 15 elementwise::cast_like;
    "Clip": 7 elementwise::clip_6, 11 as_is;
    "Constant": 7 structure::constant;
    "DFT": 17 tensors::dft_17, 20 as_is;
    "Dropout": 7 structure::dropout;
    "Gelu": 20 elementwise::gelu;
    "GridSample": 16 resize::grid_sample_16, 20 as_is;
    "GroupNormalization": 18 normalization::group_norm_18, 21 as_is;
    "Hardmax": 7 softmax::softmax_1, 13 as_is;
    "Identity": 7 structure::identity;
    "If": 7 control::if_;
    "LogSoftmax": 7 softmax::softmax_1, 13 as_is;
    "Loop": 7 control::loop_;
    "Mod": 10 elementwise::modulo;
    "Multinomial": 7 random::unsupported;
    "Pad": 7 tensors::pad_2, 11 as_is;
    "Pow": 7 elementwise::pow;
    "RandomNormal": 7 random::unsupported;
    "RandomNormalLike": 7 random::unsupported;
    "RandomUniform": 7 random::unsupported;
    "RandomUniformLike": 7 random::unsupported;
    "ReduceL1": 7 axes::reduce_1, 18 axes::reduce;
    "ReduceL2": 7 axes::reduce_1, 18 axes::reduce;
    "ReduceLogSum": 7 axes::reduce_1, 18 axes::reduce;
    "ReduceLogSumExp": 7 axes::reduce_1, 18 axes::reduce;
    "ReduceMax": 7 axes::reduce_1, 18 axes::reduce;
    "ReduceMean": 7 axes::reduce_1, 18 axes::reduce;
    "ReduceMin": 7 axes::reduce_1, 18 axes::reduce;
    "ReduceProd": 7 axes::reduce_1, 18 axes::reduce;
    "ReduceSum": 7 axes::reduce_1, 13 axes::reduce;
    "ReduceSumSquare": 7 axes::reduce_1, 18 axes::reduce;
    "Resize": 10 resize::resize_10, 11 resize::resize;
    "RoiAlign": 10 resize::roi_align_10, 16 as_is;
    "Scan": 8 control::scan_8, 9 control::scan;
    "Scatter": 9 tensors::scatter_9;
    "Slice": 7 tensors::slice_1, 10 as_is;
    "Softmax": 7 softmax::softmax_1, 13 as_is;
    "Split": 7 tensors::split_2, 13 tensors::split;
    "Squeeze": 7 axes::squeeze_1, 13 as_is;
    "TopK": 7 tensors::top_k_1, 10 as_is;
    "Unsqueeze": 7 axes::squeeze_1, 13 as_is;
    "Upsample": 7 resize::upsample_7, 9 resize::upsample_9;
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::ImportFn;

    #[test]
    fn rows_are_sorted_and_unique() {
        for pair in TABLE.windows(2) {
            assert!((pair[0].op, pair[0].since) < (pair[1].op, pair[1].since), "{} {}", pair[1].op, pair[1].since);
        }
    }

    #[test]
    fn every_row_is_found_and_reads_what_it_must() {
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
    fn versions_choose_the_row() {
        let find = |op, v| super::super::find("", op, v).map(|f| f as usize);
        assert_ne!(find("Squeeze", 12), find("Squeeze", 13));
        assert_eq!(find("Squeeze", 13), find("Squeeze", 21));
        assert!(find("Conv", 7).is_some() && find("NoSuchOp", 18).is_none());
        assert!(super::super::find("com.example", "Conv", 1).is_none());
    }
}
