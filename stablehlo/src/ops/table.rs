//! The one table of operations: a new one is an importer, and a row here.

use of_ir::{DType, Tensor};
use of_ops::elementwise::*;
use of_ops::structural::{Constant, OptimizationBarrier};

use super::{ImportFn, control, conv, dot, elementwise, gather, math, reduce, scatter, shape, slice, sort, window};
use crate::import::ImportError;
use crate::parse::ast::Attr;

/// An operand as the result.
const SAME: ImportFn = |_, c| Ok(c.operands.clone());

macro_rules! unary {
    ($op:expr) => {
        |cx, c| elementwise::unary(cx, c, $op)
    };
}

/// Name, importer, what of it is supported.
pub(super) const TABLE: &[(&str, ImportFn, &str)] = &[
    // structure
    ("stablehlo.constant", constant, "`dense`: splats, lists, hexadecimal strings"),
    ("stablehlo.optimization_barrier", barrier, ""),
    ("func.call", control::call, "inlined"),
    ("stablehlo.composite", control::composite, "its decomposition, inlined"),
    ("stablehlo.if", control::if_, ""),
    ("stablehlo.case", control::case, ""),
    ("stablehlo.while", control::while_, "loops that count become loops of a known number of iterations"),
    // elementwise
    ("stablehlo.abs", unary!(Abs {}), ""),
    ("stablehlo.cbrt", math::cbrt, ""),
    ("stablehlo.ceil", unary!(Ceil {}), ""),
    ("stablehlo.convert", elementwise::convert, ""),
    ("stablehlo.bitcast_convert", elementwise::bitcast, "between types of one width"),
    ("stablehlo.cosine", unary!(Cos {}), ""),
    ("stablehlo.count_leading_zeros", math::count_leading_zeros, ""),
    ("stablehlo.exponential", unary!(Exp {}), ""),
    ("stablehlo.exponential_minus_one", math::expm1, ""),
    ("stablehlo.floor", unary!(Floor {}), ""),
    ("stablehlo.is_finite", math::is_finite, ""),
    ("stablehlo.log", unary!(Log {}), ""),
    ("stablehlo.log_plus_one", math::log1p, ""),
    ("stablehlo.logistic", unary!(Sigmoid {}), ""),
    ("stablehlo.negate", unary!(Neg {}), ""),
    ("stablehlo.not", elementwise::not, ""),
    ("stablehlo.popcnt", math::popcnt, ""),
    ("stablehlo.reduce_precision", elementwise::reduce_precision, "to the formats of f32, f16 and bf16"),
    ("stablehlo.round_nearest_afz", math::round_afz, ""),
    ("stablehlo.round_nearest_even", unary!(Round {}), ""),
    ("stablehlo.rsqrt", unary!(Rsqrt {}), ""),
    ("stablehlo.sign", unary!(Sign {}), ""),
    ("stablehlo.sine", unary!(Sin {}), ""),
    ("stablehlo.sqrt", unary!(Sqrt {}), ""),
    ("stablehlo.tan", unary!(Tan {}), ""),
    ("stablehlo.tanh", unary!(Tanh {}), ""),
    ("stablehlo.add", |cx, c| elementwise::binary(cx, c, Add {}, Some(Or {})), ""),
    ("stablehlo.subtract", |cx, c| elementwise::binary(cx, c, Sub {}, None::<Sub>), ""),
    ("stablehlo.multiply", |cx, c| elementwise::binary(cx, c, Mul {}, Some(And {})), ""),
    ("stablehlo.divide", elementwise::divide, "integers by zero fail the run"),
    ("stablehlo.remainder", |cx, c| elementwise::binary(cx, c, Fmod {}, None::<Fmod>), "integers by zero fail the run"),
    ("stablehlo.power", |cx, c| elementwise::binary(cx, c, Pow {}, None::<Pow>), ""),
    ("stablehlo.maximum", |cx, c| elementwise::extreme(cx, c, true), ""),
    ("stablehlo.minimum", |cx, c| elementwise::extreme(cx, c, false), ""),
    ("stablehlo.and", |cx, c| elementwise::binary(cx, c, BitwiseAnd {}, Some(And {})), ""),
    ("stablehlo.or", |cx, c| elementwise::binary(cx, c, BitwiseOr {}, Some(Or {})), ""),
    ("stablehlo.xor", |cx, c| elementwise::binary(cx, c, BitwiseXor {}, Some(Xor {})), ""),
    ("stablehlo.shift_left", |cx, c| elementwise::binary(cx, c, Shl {}, None::<Shl>), ""),
    ("stablehlo.shift_right_arithmetic", |cx, c| elementwise::shift_right(cx, c, true), ""),
    ("stablehlo.shift_right_logical", |cx, c| elementwise::shift_right(cx, c, false), ""),
    ("stablehlo.atan2", math::atan2, ""),
    ("stablehlo.compare", elementwise::compare, "floats are compared as IEEE numbers, also in TOTALORDER"),
    ("stablehlo.select", elementwise::select, ""),
    ("stablehlo.clamp", elementwise::clamp, ""),
    ("chlo.acos", unary!(Acos {}), ""),
    ("chlo.acosh", unary!(Acosh {}), ""),
    ("chlo.asin", unary!(Asin {}), ""),
    ("chlo.asinh", unary!(Asinh {}), ""),
    ("chlo.atan", unary!(Atan {}), ""),
    ("chlo.atanh", unary!(Atanh {}), ""),
    ("chlo.cosh", unary!(Cosh {}), ""),
    ("chlo.digamma", math::digamma, ""),
    ("chlo.erf", unary!(Erf {}), ""),
    ("chlo.erf_inv", math::erf_inv, "to the precision of f32"),
    ("chlo.erfc", math::erfc, "as 1 - erf x"),
    ("chlo.is_inf", |cx, c| elementwise::is_inf(cx, c, true, true), ""),
    ("chlo.is_neg_inf", |cx, c| elementwise::is_inf(cx, c, false, true), ""),
    ("chlo.is_pos_inf", |cx, c| elementwise::is_inf(cx, c, true, false), ""),
    ("chlo.lgamma", math::lgamma, ""),
    ("chlo.sinh", unary!(Sinh {}), ""),
    ("chlo.square", elementwise::square, ""),
    ("chlo.tan", unary!(Tan {}), ""),
    ("chlo.top_k", sort::top_k, ""),
    // shapes
    ("stablehlo.broadcast_in_dim", shape::broadcast_in_dim, ""),
    ("stablehlo.broadcast", shape::broadcast, ""),
    ("stablehlo.concatenate", shape::concatenate, ""),
    ("stablehlo.iota", shape::iota, ""),
    ("stablehlo.pad", shape::pad, "negative and interior padding, too"),
    ("stablehlo.reshape", shape::reshape, ""),
    ("stablehlo.reverse", shape::reverse, ""),
    ("stablehlo.slice", shape::slice, ""),
    ("stablehlo.transpose", shape::transpose, ""),
    ("stablehlo.dynamic_slice", slice::dynamic_slice, ""),
    ("stablehlo.dynamic_update_slice", slice::dynamic_update_slice, ""),
    ("stablehlo.gather", gather::gather, ""),
    (
        "stablehlo.scatter",
        scatter::scatter,
        "one operand; the update replaces, or `add`, `multiply`, `minimum`, `maximum`",
    ),
    ("stablehlo.sort", sort::sort, "comparisons of one or several keys"),
    // reductions
    ("stablehlo.dot", dot::dot, ""),
    ("stablehlo.dot_general", dot::dot_general, ""),
    ("stablehlo.convolution", conv::convolution, "at least one spatial axis"),
    (
        "stablehlo.reduce",
        reduce::reduce,
        "`add`, `multiply`, `minimum`, `maximum`, `and`, `or`, and the pattern of argmax and argmin",
    ),
    ("stablehlo.reduce_window", window::reduce_window, "`add`, `minimum`, `maximum`; cumulative sums"),
    ("stablehlo.select_and_scatter", window::select_and_scatter, "the gradient of a max pool"),
    // collectives of one device
    ("sdy.sharding_constraint", SAME, "without effect"),
];

/// Targets of custom calls.
pub(super) const CUSTOM_CALLS: &[(&str, ImportFn)] = &[
    ("Sharding", SAME),
    ("SPMDFullToShardShape", SAME),
    ("SPMDShardToFullShape", SAME),
    ("annotate_device_placement", SAME),
    ("mhlo.erf", unary!(Erf {})),
    ("mhlo.topk", sort::top_k),
];

const DYNAMIC: &str = "extents that are known at run time only are not supported; export with fixed shapes";
const COMPLEX: &str = "the IR has no complex numbers";
const COLLECTIVE: &str = "programs for several devices are not supported; lower for one device";
const LINEAR: &str = "no op of the IR computes it";
const TOKENS: &str = "values with effects on the host are not supported";

/// Operations that are known and not read, with the reason.
pub(super) const REFUSED: &[(&str, &str)] = &[
    ("stablehlo.after_all", TOKENS),
    ("stablehlo.all_gather", COLLECTIVE),
    ("stablehlo.all_reduce", COLLECTIVE),
    ("stablehlo.all_to_all", COLLECTIVE),
    ("stablehlo.batch_norm_grad", "JAX prints its parts instead"),
    ("stablehlo.batch_norm_inference", "JAX prints its parts instead"),
    ("stablehlo.batch_norm_training", "JAX prints its parts instead"),
    ("stablehlo.cholesky", LINEAR),
    ("stablehlo.collective_broadcast", COLLECTIVE),
    ("stablehlo.collective_permute", COLLECTIVE),
    ("stablehlo.complex", COMPLEX),
    ("stablehlo.create_token", TOKENS),
    ("stablehlo.cross-replica-sum", COLLECTIVE),
    ("stablehlo.dynamic_broadcast_in_dim", DYNAMIC),
    ("stablehlo.dynamic_conv", DYNAMIC),
    ("stablehlo.dynamic_gather", DYNAMIC),
    ("stablehlo.dynamic_iota", DYNAMIC),
    ("stablehlo.dynamic_pad", DYNAMIC),
    ("stablehlo.dynamic_reshape", DYNAMIC),
    ("stablehlo.fft", COMPLEX),
    ("stablehlo.get_dimension_size", DYNAMIC),
    ("stablehlo.get_tuple_element", "the IR has no tuples"),
    ("stablehlo.imag", COMPLEX),
    ("stablehlo.infeed", TOKENS),
    ("stablehlo.map", "JAX does not print it"),
    ("stablehlo.outfeed", TOKENS),
    ("stablehlo.partition_id", COLLECTIVE),
    ("stablehlo.real", COMPLEX),
    ("stablehlo.real_dynamic_slice", DYNAMIC),
    ("stablehlo.recv", TOKENS),
    ("stablehlo.reduce_scatter", COLLECTIVE),
    ("stablehlo.replica_id", COLLECTIVE),
    ("stablehlo.rng", "its numbers depend on the device; use jax.random with the threefry generator"),
    ("stablehlo.rng_bit_generator", "its numbers depend on the device; use jax.random with the threefry generator"),
    ("stablehlo.send", TOKENS),
    ("stablehlo.set_dimension_size", DYNAMIC),
    ("stablehlo.triangular_solve", LINEAR),
    ("stablehlo.tuple", "the IR has no tuples"),
    ("stablehlo.uniform_dequantize", "quantized element types are not supported"),
    ("stablehlo.uniform_quantize", "quantized element types are not supported"),
    ("chlo.bessel_i1e", LINEAR),
    ("chlo.polygamma", LINEAR),
    ("chlo.ragged_dot", LINEAR),
    ("chlo.zeta", LINEAR),
    ("chlo.next_after", LINEAR),
];

/// A constant. Many equal elements are one that is broadcast, so that the module stays small.
fn constant(cx: &mut crate::import::Importer<'_, '_>, c: &crate::import::Call<'_>) -> crate::import::ImportResult {
    let Some(Attr::Dense(value)) = c.attr(&["value"]) else {
        return Err(ImportError::invalid("attribute 'value' must be dense<…>"));
    };
    match splat(value) {
        Some(one) => {
            let one = cx.constant(one)?;
            Ok(vec![cx.expand(one, &c.dims(0)?)?])
        }
        None => Ok(vec![cx.one(Constant { value: value.clone() }, &[])?]),
    }
}

/// The element that all elements are, of rank 0.
fn splat(t: &Tensor) -> Option<Tensor> {
    let (width, cells) = t.cells()?;
    if t.len() < 2 || t.dtype() == DType::String {
        return None;
    }
    let first = cells.get(..width)?;
    let same = cells.chunks_exact(width).all(|c| c == first);
    same.then(|| Tensor::from_cells(t.dtype(), Vec::new(), first.to_vec()).ok()).flatten()
}

/// Each operand behind a barrier.
fn barrier(cx: &mut crate::import::Importer<'_, '_>, c: &crate::import::Call<'_>) -> crate::import::ImportResult {
    c.operands.iter().map(|v| cx.one(OptimizationBarrier {}, &[*v])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operation_is_listed_once() {
        let mut names: Vec<&str> = TABLE.iter().map(|e| e.0).chain(REFUSED.iter().map(|e| e.0)).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
