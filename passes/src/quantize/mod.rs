//! Post-training quantization: contractions of floats become contractions of dequantized bytes, which
//! `quantize-contractions` rewrites as integer contractions.
//!
//! Activations are rounded to unsigned bytes over a [`Range`] observed on calibration inputs. Weights are rounded to
//! signed bytes, symmetric, with a scale per column. Everything else stays.

mod float16;
mod range;

use std::collections::HashMap;

use of_diag::{Code, Diagnostic, Diagnostics, Location};
use of_ir::{DType, Func, Graph, IdMap, OpId, Rewriter, Tensor, ValueId};
use of_ops::OpSpec;
use of_ops::contraction::MatMul;
use of_ops::nn::{Conv, DequantizeLinear, QuantizeLinear};
use of_ops::structural::{Constant, NoneValue};

use crate::matchers::dims;
use crate::quantize_contractions::commutes_with_dequantize;

pub use float16::{round_contractions, round_contractions_except};
pub use range::{Histogram, Range};

/// Most terms of a sum: products of bytes must not overflow 32 bits.
const MAX_TERMS: usize = 1 << 16;

/// The contractions of a function by constants: the places to quantize.
#[derive(Clone, Debug, Default)]
pub struct Sites {
    /// The values whose range must be observed, each once.
    pub values: Vec<ValueId>,
    /// The ops whose first operand is rounded, in order, and the number of its value.
    readers: Vec<(OpId, usize)>,
    /// Contractions, and the axis of the weights' columns.
    products: Vec<(OpId, usize)>,
    /// Number of contractions in loops and branches, where no range is observed.
    pub inside: usize,
}

impl Sites {
    /// The number of contractions to quantize.
    pub fn len(&self) -> usize {
        self.products.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.products.is_empty()
    }
}

/// The contractions of floats by constants in `func`, which holds only primitives (pipeline `primitives`).
pub fn sites(func: &Func) -> Sites {
    let g = &func.graph;
    let mut out = Sites::default();
    let mut number: IdMap<ValueId, usize> = IdMap::default();
    let outermost: Vec<OpId> = g.region_ops(g.entry()).collect();
    let inside = |op: &OpId| g.op(*op).parent != g.entry() && product(g, *op).is_some();
    out.inside = g.walk().into_iter().filter(inside).count();
    let mut readers: IdMap<OpId, usize> = IdMap::default();
    for op in &outermost {
        let Some(axis) = product(g, *op) else { continue };
        let (mut reader, mut value) = (*op, g.op(*op).operands[0]);
        // Movements and max pools then work on bytes instead of floats.
        while let Some(mover) = g.def_op(value).filter(|d| moves(g, *d) && g.uses(value).len() == 1) {
            (reader, value) = (mover, g.op(mover).operands[0]);
        }
        let next = number.len();
        let n = *number.entry(value).or_insert(next);
        if n == next {
            out.values.push(value);
        }
        readers.insert(reader, n);
        out.products.push((*op, axis));
    }
    out.readers = outermost.into_iter().filter_map(|op| Some((op, *readers.get(&op)?))).collect();
    out
}

/// Whether `op` is a contraction of floats by constant weights that can be quantized, and the axis of their columns.
fn product(g: &Graph, op: OpId) -> Option<usize> {
    let operands = &g.op(op).operands;
    let f32s = |v: ValueId| g.ty(v).as_tensor().filter(|t| t.dtype == DType::F32);
    let axis = match g.op(op).name() {
        Conv::NAME => 0,
        MatMul::NAME => 1,
        _ => return None,
    };
    let rank = f32s(operands[0])?.rank()?;
    f32s(operands[1])?;
    let w = dims(g, operands[1])?;
    let fits = if axis == 1 { w.len() == 2 && rank >= 2 } else { w.len() >= 3 };
    let depth = w.iter().product::<usize>() / w[axis].max(1);
    let known = g.constant(operands[1]).is_some() && g.constant(operands[0]).is_none();
    (fits && known && depth <= MAX_TERMS && depth > 0).then_some(axis)
}

/// Whether an op commutes with dequantization.
fn moves(g: &Graph, op: OpId) -> bool {
    let data = g.op(op);
    commutes_with_dequantize(data.name()) && data.results.len() == 1 && g.constant(data.operands[0]).is_none()
}

/// `func` with the values of its sites as additional outputs, in order (observers).
///
/// # Errors
/// When it has no terminator, a bug of its producer.
pub fn observed(func: &Func, sites: &Sites) -> Result<Func, Diagnostics> {
    let mut out = func.clone();
    let mut rw = Rewriter::new(&mut out.graph, "quantize");
    let entry = rw.graph().entry();
    let end = rw
        .graph()
        .terminator(entry)
        .ok_or_else(|| Diagnostic::error(Code::REGION, func.loc.clone(), "the function has no terminator"))?;
    for v in &sites.values {
        rw.push_operand(end, *v);
    }
    out.outputs.extend((0..sites.values.len()).map(|i| format!("observed {i}")));
    Ok(out)
}

/// Quantizes the sites of `func`, with the range of each of their values.
///
/// # Errors
/// When an op that it makes does not fit, a bug of the pass.
pub fn quantize(func: &mut Func, sites: &Sites, ranges: &[Range]) -> Result<(), Diagnostics> {
    let mut rw = Rewriter::new(&mut func.graph, "quantize");
    let mut rounded: HashMap<usize, ValueId> = HashMap::new();
    for (op, number) in &sites.readers {
        // The first reader precedes all others.
        let v = match rounded.get(number) {
            Some(v) => *v,
            None => {
                rw.rewrite(*op, &[]);
                round(&mut rw, sites.values[*number], ranges[*number])?
            }
        };
        rounded.insert(*number, v);
        rw.set_operand(*op, 0, v);
    }
    for (op, axis) in &sites.products {
        rw.rewrite(*op, &[]);
        let w = rw.graph().op(*op).operands[1];
        let w = weights(&mut rw, w, *axis)?;
        rw.set_operand(*op, 1, w);
    }
    crate::dce::dce(func);
    Ok(())
}

/// `dequantize(quantize(v))`.
fn round(rw: &mut Rewriter<'_>, v: ValueId, range: Range) -> Result<ValueId, Diagnostic> {
    let (scale, zero) = range.parameters();
    let scale = rw.create_one(Constant { value: Tensor::scalar(scale) }, &[])?;
    let zero = rw.create_one(Constant { value: Tensor::scalar(zero) }, &[])?;
    let q = QuantizeLinear { axis: 0, block_size: 0, dtype: None, precision: None, saturate: None };
    let q = rw.create_one(q, &[v, scale, zero])?;
    rw.create_one(DequantizeLinear { axis: 0, block_size: 0, dtype: None }, &[q, scale, zero])
}

/// Quantized constant weights: bytes, and a scale for each index of `axis`.
fn weights(rw: &mut Rewriter<'_>, w: ValueId, axis: usize) -> Result<ValueId, Diagnostic> {
    let wrong = |what: &str| Diagnostic::error(Code::TYPE, Location::Unknown, what.to_owned());
    let tensor = rw.graph().constant(w).ok_or_else(|| wrong("the weights are not constant"))?;
    let numbers = tensor.as_slice::<f32>().ok_or_else(|| wrong("the weights are not f32"))?;
    let (columns, below) = (tensor.dims()[axis], tensor.dims()[axis + 1..].iter().product::<usize>().max(1));
    let column = |i: usize| i / below % columns;
    let mut scales = vec![0f32; columns];
    for (i, x) in numbers.iter().enumerate().filter(|(_, x)| x.is_finite()) {
        scales[column(i)] = scales[column(i)].max(x.abs() / 127.0);
    }
    scales.iter_mut().filter(|s| !s.is_normal()).for_each(|s| *s = 1.0);
    let bytes: Vec<i8> = numbers
        .iter()
        .enumerate()
        .map(|(i, x)| (x / scales[column(i)]).round_ties_even().clamp(-127.0, 127.0) as i8)
        .collect();
    let fits = |e: of_ir::TensorError| wrong(&e.to_string());
    let bytes = Tensor::from_slice(tensor.dims(), &bytes).map_err(fits)?;
    let scales = Tensor::from_slice(&[columns], &scales).map_err(fits)?;
    let q = rw.create_one(Constant { value: bytes }, &[])?;
    let s = rw.create_one(Constant { value: scales }, &[])?;
    let zero = rw.create_one(NoneValue {}, &[])?;
    let axis = i64::try_from(axis).unwrap_or(0);
    rw.create_one(DequantizeLinear { axis, block_size: 0, dtype: None }, &[q, s, zero])
}

#[cfg(test)]
mod tests {
    use of_ir::text::parse_module;
    use of_ops::sample::Rng;
    use of_ops::{Value, interpret};

    use super::*;
    use crate::Manager;

    fn tensor(v: &Value) -> &Tensor {
        let Value::Tensor(t) = v else { panic!("{v:?} is not a tensor") };
        t
    }

    /// A convolution, a pool, a convolution and a product, on random weights.
    fn model(r: &mut Rng) -> Func {
        let text = r#"func @main(%x: tensor<2x3x8x8xf32>, %a: tensor<4x3x3x3xf32>, %b: tensor<6x4x1x1xf32>, %c: tensor<96x5xf32>) -> (tensor<2x5xf32>) {
  %0 = of.conv %x, %a {strides = [1, 1], pads = [1, 1, 1, 1], dilations = [1, 1], group = 1, auto_pad = "NOTSET", channels_last = false}
  %z = of.constant {value = dense<0.0> : tensor<f32>}
  %1 = of.max %0, %z
  %2 = of.max_pool %1 {kernel = [2, 2], strides = [2, 2], pads = [0, 0, 0, 0], dilations = [1, 1], ceil_mode = false, storage_order = 0, return_indices = false, auto_pad = "NOTSET", channels_last = false}
  %3 = of.conv %2, %b {strides = [1, 1], pads = [0, 0, 0, 0], dilations = [1, 1], group = 1, auto_pad = "NOTSET", channels_last = false}
  %4 = of.flatten %3 {axis = 1}
  %5 = of.matmul %4, %c
  of.return %5
}
"#;
        let mut module = parse_module(text, "test.of", &of_ops::registry(), None).unwrap();
        let main = module.main_mut().unwrap();
        let mut rw = Rewriter::new(&mut main.graph, "test");
        let args = rw.graph().args().to_vec();
        let first = rw.graph().region_ops(rw.graph().entry()).next().unwrap();
        rw.before(first);
        for arg in &args[1..] {
            let n = dims(rw.graph(), *arg).unwrap();
            let value = r.tensor(DType::F32, &n, -0.5, 0.5);
            let w = rw.create_one(Constant { value }, &[]).unwrap();
            rw.replace_uses(*arg, w);
        }
        main.clone()
    }

    #[test]
    fn quantized_model_is_close_and_uses_integer_products() {
        let mut r = Rng::new(7);
        let func = model(&mut r);
        let inputs: Vec<Value> =
            func.input_types().iter().map(|t| r.f32s(&t.as_tensor().unwrap().fixed_dims().unwrap())).collect();
        let found = sites(&func);
        assert_eq!((found.len(), found.values.len(), found.inside), (3, 3, 0));
        let seen = interpret::run_graph(&observed(&func, &found).unwrap().graph, &inputs).unwrap();
        let ranges: Vec<Range> = seen[1..]
            .iter()
            .map(|v| {
                let mut h = Histogram::default();
                h.add(&tensor(v).as_slice::<f32>().unwrap());
                h.range()
            })
            .collect();
        let mut small = func.clone();
        quantize(&mut small, &found, &ranges).unwrap();
        let run = |f: &Func| tensor(&interpret::run_graph(&f.graph, &inputs).unwrap()[0]).to_f64s().unwrap();
        let (exact, rounded) = (run(&func), run(&small));
        let worst = exact.iter().zip(&rounded).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        let largest = exact.iter().fold(0.0f64, |m, x| m.max(x.abs()));
        assert!(worst > 0.0 && worst < 0.03 * largest, "{worst} of {largest}");

        let mut module = of_ir::Module::default();
        module.funcs.insert("main".into(), small);
        let mut manager = Manager::default();
        manager.append("cpu").unwrap();
        manager.run(&mut module, &mut |_| {}).unwrap();
        let g = &module.main().unwrap().graph;
        let names: Vec<&str> = g.walk().into_iter().map(|op| g.op(op).name()).collect();
        let of = |name: &str| names.iter().filter(|n| **n == name).count();
        // The pool works on bytes: only contractions are between quantized values.
        assert_eq!((of("of.conv_integer"), of("of.matmul_integer"), of("of.round")), (2, 1, 3), "{names:?}");
        assert_eq!(tensor(&interpret::run_graph(g, &inputs).unwrap()[0]).dims(), [2, 5]);
    }

    #[test]
    fn products_of_two_computed_operands_stay_float() {
        let text = "func @main(%x: tensor<2x3xf32>, %y: tensor<3x4xf32>) -> (tensor<2x4xf32>) {
  %0 = of.matmul %x, %y
  of.return %0
}
";
        let module = parse_module(text, "test.of", &of_ops::registry(), None).unwrap();
        assert!(sites(module.main().unwrap()).is_empty());
    }
}
