//! Quantised operators: what is computed on real numbers is dequantised and quantised around it, and products are
//! computed on integers.

use of_ir::{Attr, DType, ValueId};

use super::build::BuildResult;
use crate::import::{Attributes, ImportError, ImportResult, Importer, Node};
use crate::ops::softmax;

/// `x` of a node as real numbers: its scale and zero point are the next two inputs.
fn real(cx: &mut Importer<'_, '_>, node: &Node<'_>, at: usize) -> BuildResult {
    let inputs = [Some(node.input(at)?), Some(node.input(at + 1)?), node.opt_input(at + 2)];
    cx.emit_one("DequantizeLinear", &inputs, [])
}

/// `y` quantised as the inputs `at` and `at + 1` of a node say, to the element type of `like` without a zero point.
fn quantize(cx: &mut Importer<'_, '_>, node: &Node<'_>, y: ValueId, at: usize, like: ValueId) -> ImportResult {
    let dtype = cx.tensor_ty(like)?.dtype;
    let inputs = [Some(y), Some(node.input(at)?), node.opt_input(at + 1)];
    let attrs = node.opt_input(at + 1).is_none().then_some(("output_dtype", Attr::DType(dtype)));
    Ok(vec![cx.emit_one("QuantizeLinear", &inputs, attrs)?])
}

/// `QuantizeLinear` and `DequantizeLinear`, which have more element types than those of ai.onnx.
pub(super) fn linear(cx: &mut Importer<'_, '_>, node: Node<'_>) -> ImportResult {
    cx.emit(Node { domain: "", ..node })
}

/// `QLinearAdd` and `QLinearMul`.
pub(super) fn binary(cx: &mut Importer<'_, '_>, node: Node<'_>) -> ImportResult {
    node.done()?;
    let (a, b) = (real(cx, &node, 0)?, real(cx, &node, 3)?);
    let y = cx.op(node.op.trim_start_matches("QLinear"), &[a, b])?;
    quantize(cx, &node, y, 6, node.input(0)?)
}

/// `QLinearSigmoid` and `QLinearLeakyRelu`.
pub(super) fn unary(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    let alpha = node.attrs.take::<f64>("alpha")?.map(|alpha| ("alpha", Attr::Float(alpha)));
    node.done()?;
    let x = real(cx, &node, 0)?;
    let y = cx.op_with(node.op.trim_start_matches("QLinear"), &[x], alpha)?;
    quantize(cx, &node, y, 3, node.input(0)?)
}

/// `QLinearSoftmax`, as its operator set defines softmax.
pub(super) fn softmax(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    let opset: i64 = node.need("opset")?;
    let axis: i64 = node.attrs.take("axis")?.unwrap_or(-1);
    node.done()?;
    let x = real(cx, &node, 0)?;
    let mut plain = Node { op: "Softmax", domain: "", version: opset, inputs: vec![Some(x)], ..node.clone() };
    plain.attrs.set("axis", Attr::Int(axis));
    let y = if opset < 13 { softmax::softmax_1(cx, plain)? } else { cx.emit(plain)? };
    let y = y.first().copied().ok_or_else(|| ImportError::invalid("a softmax gives one value"))?;
    quantize(cx, &node, y, 3, node.input(0)?)
}

/// `QLinearWhere`.
pub(super) fn choose(cx: &mut Importer<'_, '_>, node: Node<'_>) -> ImportResult {
    node.done()?;
    let (a, b) = (real(cx, &node, 1)?, real(cx, &node, 4)?);
    let y = cx.op("Where", &[node.input(0)?, a, b])?;
    quantize(cx, &node, y, 7, node.input(1)?)
}

/// `QLinearConcat`: scale and zero point of the result, then three inputs an operand.
pub(super) fn concat(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    let axis: i64 = node.need("axis")?;
    node.done()?;
    if node.inputs.len() < 5 || !(node.inputs.len() - 2).is_multiple_of(3) {
        return Err(ImportError::invalid(format!(
            "{} inputs are not two and three for each operand",
            node.inputs.len()
        )));
    }
    let parts: Vec<ValueId> =
        (2..node.inputs.len()).step_by(3).map(|i| real(cx, &node, i)).collect::<Result<_, _>>()?;
    let y = cx.concat(&parts, axis)?;
    quantize(cx, &node, y, 0, node.input(2)?)
}

/// `QLinearAveragePool`.
pub(super) fn average_pool(cx: &mut Importer<'_, '_>, node: Node<'_>) -> ImportResult {
    let x = real(cx, &node, 0)?;
    let y = cx.emit(Node { op: "AveragePool", domain: "", inputs: vec![Some(x)], ..node.clone() })?;
    let y = y.first().copied().ok_or_else(|| ImportError::invalid("a pooling gives one value"))?;
    quantize(cx, &node, y, 3, node.input(0)?)
}

/// `QLinearGlobalAveragePool`.
pub(super) fn global_average_pool(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    let channels_last = node.attrs.take_flag("channels_last")?.unwrap_or(false);
    node.done()?;
    let rank = cx.rank(node.input(0)?)? as i64;
    let axes: Vec<i64> = if channels_last { (1..rank - 1).collect() } else { (2..rank).collect() };
    mean(cx, &node, &axes, true)
}

/// `QLinearReduceMean`.
pub(super) fn reduce_mean(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    let axes: Vec<i64> = node.attrs.take("axes")?.unwrap_or_default();
    let keepdims = node.attrs.take_flag("keepdims")?.unwrap_or(true);
    node.done()?;
    mean(cx, &node, &axes, keepdims)
}

fn mean(cx: &mut Importer<'_, '_>, node: &Node<'_>, axes: &[i64], keepdims: bool) -> ImportResult {
    let x = real(cx, node, 0)?;
    let axes = if axes.is_empty() { None } else { Some(cx.ints(axes)?) };
    let y = cx.emit_one("ReduceMean", &[Some(x), axes], [("keepdims", Attr::Int(keepdims.into()))])?;
    quantize(cx, node, y, 3, node.input(0)?)
}

/// `ReduceSumInteger`: the sum in 32 bits.
pub(super) fn reduce_sum_integer(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    let axes: Vec<i64> = node.attrs.take("axes")?.unwrap_or_default();
    let keepdims = node.attrs.take_flag("keepdims")?.unwrap_or(true);
    node.done()?;
    let x = node.input(0)?;
    let to = if cx.tensor_ty(x)?.dtype == DType::U8 { DType::U32 } else { DType::I32 };
    let wide = cx.cast(x, to)?;
    let axes = if axes.is_empty() { None } else { Some(cx.ints(&axes)?) };
    Ok(vec![cx.emit_one("ReduceSum", &[Some(wide), axes], [("keepdims", Attr::Int(keepdims.into()))])?])
}

/// `MulInteger`: `(a - a_zero) (b - b_zero)` in i32.
pub(super) fn mul_integer(cx: &mut Importer<'_, '_>, node: Node<'_>) -> ImportResult {
    node.done()?;
    let mut operands = Vec::new();
    for at in [0, 2] {
        let mut x = cx.cast(node.input(at)?, DType::I32)?;
        if let Some(zero) = node.opt_input(at + 1) {
            let zero = cx.cast(zero, DType::I32)?;
            x = cx.op("Sub", &[x, zero])?;
        }
        operands.push(x);
    }
    Ok(vec![cx.op("Mul", &operands)?])
}

/// `(a - a_zero) (b - b_zero) a_scale b_scale`, the product in i32.
pub(super) fn real_product(
    cx: &mut Importer<'_, '_>,
    [a, b]: [ValueId; 2],
    [a_zero, b_zero]: [Option<ValueId>; 2],
    [a_scale, b_scale]: [ValueId; 2],
) -> BuildResult {
    let sum = cx.emit_one("MatMulInteger", &[Some(a), Some(b), a_zero, b_zero], [])?;
    let dtype = cx.tensor_ty(b_scale)?.dtype;
    let sum = cx.cast(sum, dtype)?;
    let scale = cx.op("Mul", &[a_scale, b_scale])?;
    cx.op("Mul", &[sum, scale])
}

/// `MatMulIntegerToFloat`.
pub(super) fn matmul_to_float(cx: &mut Importer<'_, '_>, node: Node<'_>) -> ImportResult {
    node.done()?;
    let operands = [node.input(0)?, node.input(1)?];
    let (scales, zeros) = ([node.input(2)?, node.input(3)?], [node.opt_input(4), node.opt_input(5)]);
    let y = real_product(cx, operands, zeros, scales)?;
    Ok(vec![cx.sum(y, &[node.opt_input(6)])?])
}

/// `DynamicQuantizeMatMul`: operand `a` is quantised by its own range.
pub(super) fn dynamic_matmul(cx: &mut Importer<'_, '_>, node: Node<'_>) -> ImportResult {
    node.done()?;
    let (a, b) = (node.input(0)?, node.input(1)?);
    let [a, scale, zero] = cx.op_many("DynamicQuantizeLinear", vec![Some(a)], [], 3)?[..] else {
        return Err(ImportError::invalid("a quantisation gives three values"));
    };
    let y = real_product(cx, [a, b], [Some(zero), node.opt_input(3)], [scale, node.input(2)?])?;
    Ok(vec![cx.sum(y, &[node.opt_input(4)])?])
}

/// `QGemm`: `alpha a_scale b_scale ((A' - a_zero) (B' - b_zero) + C)`, quantised where there is a scale for that.
pub(super) fn gemm(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    let alpha = node.attrs.take("alpha")?.unwrap_or(1.0);
    let turned = [node.attrs.take_flag("transA")?, node.attrs.take_flag("transB")?];
    node.done()?;
    let mut operands = [node.input(0)?, node.input(3)?];
    for (x, turned) in operands.iter_mut().zip(turned) {
        if turned == Some(true) {
            *x = cx.transpose(*x, &[1, 0])?;
        }
    }
    let inputs = [Some(operands[0]), Some(operands[1]), node.opt_input(2), node.opt_input(5)];
    let sum = cx.emit_one("MatMulInteger", &inputs, [])?;
    let sum = cx.sum(sum, &[node.opt_input(6)])?;
    let sum = cx.cast(sum, DType::F32)?;
    let scale = cx.op("Mul", &[node.input(1)?, node.input(4)?])?;
    let scale = cx.times(scale, alpha)?;
    let y = cx.op("Mul", &[sum, scale])?;
    if node.opt_input(7).is_none() { Ok(vec![y]) } else { quantize(cx, &node, y, 7, node.input(0)?) }
}

/// `DynamicQuantizeLSTM`.
pub(super) fn lstm(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    node.attrs.drop("hidden_size");
    let mut defaults = Attributes::default();
    defaults.set("direction", Attr::Str("forward".into()));
    defaults.set("activations", Attr::Strs(Vec::new()));
    defaults.set("activation_alpha", Attr::Floats(Vec::new()));
    defaults.set("activation_beta", Attr::Floats(Vec::new()));
    defaults.set("input_forget", Attr::Bool(false));
    node.attrs.default_from(defaults);
    cx.emit(node)
}
