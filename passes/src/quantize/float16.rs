//! Contractions in 16-bit floats (f16 or bf16): rounds operands and results.

use half::{bf16, f16};
use of_diag::{Code, Diagnostic, Diagnostics, Location};
use of_ir::{DType, Func, Graph, OpId, Rewriter, Tensor, Type, ValueId};
use of_ops::OpSpec;
use of_ops::contraction::MatMul;
use of_ops::elementwise::{Add, Cast};
use of_ops::list::as_op;
use of_ops::movement::Pad;
use of_ops::nn::Conv;
use of_ops::structural::Constant;

use super::moves;
use crate::matchers::dims;

/// Fewest terms of a sum worth rounding; shorter sums, as in rotary embeddings, are limited by memory.
const MIN_TERMS: usize = 8;

/// Rounds operands and results of the f32 contractions in `func` to `dtype`, f16 or bf16, including those in loops and
/// branches. `func` holds only primitives (pipeline `primitives`). Code generation then uses 16-bit contraction
/// instructions where they exist. Depthwise convolutions and short sums stay f32. Returns the number of rounded
/// contractions.
///
/// # Errors
/// When a weight is out of the range of `dtype`.
pub fn round_contractions(func: &mut Func, dtype: DType) -> Result<usize, Diagnostics> {
    round_contractions_except(func, dtype, &mut |_| false)
}

/// As [`round_contractions`], without those that `is_kept` says stay f32 by their locations.
///
/// # Errors
/// As [`round_contractions`].
pub fn round_contractions_except(
    func: &mut Func,
    dtype: DType,
    is_kept: &mut dyn FnMut(&Location) -> bool,
) -> Result<usize, Diagnostics> {
    let mut rw = Rewriter::new(&mut func.graph, "quantize");
    let mut count = 0;
    for op in rw.graph().walk() {
        if !is_worth_it(rw.graph(), op) || is_kept(&rw.graph().op(op).loc) {
            continue;
        }
        for i in 0..rw.graph().op(op).operands.len() {
            let (mut reader, mut at) = (op, i);
            let mut v = rw.graph().op(op).operands[i];
            if *rw.graph().ty(v) == Type::None {
                continue;
            }
            // Movements then work on 16 bits instead of 32, and roundings become adjacent.
            while let Some(mover) =
                rw.graph().def_op(v).filter(|d| moves(rw.graph(), *d) && rw.graph().uses(v).len() == 1)
            {
                (reader, at, v) = (mover, 0, rw.graph().op(mover).operands[0]);
            }
            rw.rewrite(reader, &[]);
            let v = match rw.graph().constant(v) {
                Some(weight) => {
                    let value = rounded(&weight, dtype, || rw.graph().op(op).loc.clone())?;
                    rw.create_one(Constant { value }, &[])?
                }
                None => round(&mut rw, v, dtype)?,
            };
            rw.set_operand(reader, at, v);
        }
        let data = rw.graph().op(op);
        let (def, attrs, operands) = (data.def, data.attrs.clone(), data.operands.to_vec());
        rw.rewrite(op, &[]);
        let product = rw.create((def, attrs), &operands)?;
        let mut y = rw.graph().op(product).results[0];
        if !is_added_to_a_state(rw.graph(), op) {
            y = round(&mut rw, y, dtype)?;
        }
        rw.replace(op, &[y]);
        count += 1;
    }
    crate::dce::dce(func);
    Ok(count)
}

/// `v` rounded to `dtype`.
fn round(rw: &mut Rewriter<'_>, v: ValueId, dtype: DType) -> Result<ValueId, Diagnostic> {
    let narrow = rw.create_one(Cast::to(dtype), &[v])?;
    rw.create_one(Cast::to(DType::F32), &[narrow])
}

/// Whether an iteration only adds the result of `op`, moved and next to other terms, to a state: the gradient of a recurrent layer's weight.
/// Sums are in f32, and a term that is rounded would be no part of a sum over samples, which devices and microbatches split.
fn is_added_to_a_state(g: &Graph, op: OpId) -> bool {
    let region = g.op(op).parent;
    if region == g.entry() {
        return false;
    }
    let args = g.region_args(region);
    let (mut y, mut added) = (g.op(op).results[0], Vec::new());
    while let [u] = g.uses(y) {
        let reader = g.op(u.op);
        if reader.def.traits().terminator {
            // Before the states are the number and the condition of an iteration of a loop, whose terminator has the condition alone.
            let at = u.operand as usize;
            return args.iter().skip(at).take(2).any(|state| added.contains(state));
        }
        match reader.name() {
            Add::NAME => added.extend(reader.operands.iter().copied()),
            Pad::NAME => {}
            _ if moves(g, u.op) => {}
            _ => return false,
        }
        y = reader.results[0];
    }
    false
}

/// Whether `op` is an f32 product, or a convolution that is not depthwise, with sums of more than a few terms.
fn is_worth_it(g: &Graph, op: OpId) -> bool {
    let data = g.op(op);
    let f32s = |v: &ValueId| g.ty(*v).as_tensor().is_some_and(|t| t.dtype == DType::F32);
    let [x, w, ..] = &data.operands[..] else { return false };
    let long = |n: Option<usize>| n.is_none_or(|n| n >= MIN_TERMS);
    let fits = match data.name() {
        // The terms of a sum are known from either operand.
        MatMul::NAME => {
            // Either operand determines the number of terms.
            let known = |v: ValueId, from_end: usize| {
                let shape = g.ty(v).as_tensor()?.shape.as_ref()?;
                usize::try_from(shape.get(shape.len().checked_sub(from_end)?)?.as_const()?).ok()
            };
            long(known(*x, 1)) && long(known(*w, 2))
        }
        Conv::NAME => {
            let filters = dims(g, *w).unwrap_or_default();
            let depthwise = as_op::<Conv>(g, op).is_some_and(|c| c.group > 1) && filters.get(1) == Some(&1);
            !depthwise && long(filters.get(1..).map(|d| d.iter().product()))
        }
        _ => false,
    };
    fits && f32s(x) && f32s(w)
}

/// A constant rounded to `dtype`.
fn rounded(weight: &Tensor, dtype: DType, loc: impl Fn() -> Location) -> Result<Tensor, Diagnostic> {
    let fits = |e: of_ir::TensorError| Diagnostic::error(Code::TYPE, loc(), e.to_string());
    let wrong = || Diagnostic::error(Code::TYPE, loc(), "the weights are not f32");
    let numbers = weight.as_slice::<f32>().ok_or_else(wrong)?;
    let largest = if dtype == DType::BF16 { bf16::MAX.to_f32() } else { f16::MAX.to_f32() };
    // Numbers more than half a unit in the last place beyond the largest become infinite; weights must not come near
    // that.
    if let Some(x) = numbers.iter().find(|x| x.is_finite() && x.abs() > largest) {
        let what = format!("a weight of {x:e} is beyond the range of {dtype}");
        return Err(Diagnostic::error(Code::UNSUPPORTED, loc(), what).hint("bf16 has the range of f32"));
    }
    let round = |x: &f32| match dtype {
        DType::BF16 => bf16::from_f32(*x).to_f32(),
        _ => f16::from_f32(*x).to_f32(),
    };
    Tensor::from_slice(weight.dims(), &numbers.iter().map(round).collect::<Vec<_>>()).map_err(fits)
}

#[cfg(test)]
mod tests {
    use of_ir::text::parse_module;
    use of_ops::{Value, interpret};

    use super::*;

    /// A row of zeros that ends in `x` times a constant column of zeros that ends in `w`, as `dtype`, and the number of
    /// rounded contractions.
    fn product(x: f32, w: &str, terms: usize, dtype: DType) -> Result<(usize, f32), Diagnostics> {
        let column = format!("{}[{w}]", "[0.0], ".repeat(terms - 1));
        let text = format!(
            "func @main(%x: tensor<1x{terms}xf32>) -> (tensor<1x1xf32>) {{
  %w = of.constant {{value = dense<[{column}]> : tensor<{terms}x1xf32>}}
  %0 = of.matmul %x, %w
  of.return %0
}}
"
        );
        let mut module = parse_module(&text, "test.of", &of_ops::registry(), None).unwrap();
        let main = module.main_mut().unwrap();
        let count = round_contractions(main, dtype)?;
        let mut row = vec![0.0; terms];
        row[terms - 1] = x;
        let y = interpret::run_graph(&main.graph, &[Tensor::from_slice(&[1, terms], &row).unwrap().into()]).unwrap();
        let [Value::Tensor(y)] = &y[..] else { panic!("{y:?}") };
        Ok((count, y.as_slice::<f32>().unwrap()[0]))
    }

    #[test]
    fn operands_and_results_round_to_nearest_even() {
        // One and a half units of the last place of f16 over 1, so to the even neighbour; bf16 keeps 8 bits.
        let x = 1.001_464_8;
        assert_eq!(product(1.0, &x.to_string(), 8, DType::F16).unwrap(), (1, 1.0 + 1.0 / 512.0));
        assert_eq!(product(x, "1.0", 8, DType::F16).unwrap(), (1, 1.0 + 1.0 / 512.0));
        assert_eq!(product(x, "1.0", 8, DType::BF16).unwrap(), (1, 1.0));
        // 1 + 2^-7 squared is 1 + 2^-6 + 2^-14.
        assert_eq!(product(1.007_812_5, "1.0078125", 8, DType::BF16).unwrap(), (1, 1.015_625));
        assert_eq!(product(1.0, "1.0e5", 8, DType::BF16).unwrap(), (1, 99840.0));
    }

    #[test]
    fn weights_out_of_range_fail_and_short_sums_stay_f32() {
        assert!(product(1.0, "1.0e5", 8, DType::F16).unwrap_err().to_string().contains("beyond the range of f16"));
        assert_eq!(product(257.0, "1.0", 1, DType::BF16).unwrap(), (0, 257.0));
    }
}
