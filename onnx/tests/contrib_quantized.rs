//! Quantised operators of onnxruntime. Expected values are computed from the definitions.

mod support;

use of_diag::Code;
use of_ir::DType;
use of_onnx::proto::TensorProto;
use of_onnx::proto::tensor_proto::DataType;
use support::*;

const U8: DataType = DataType::Uint8;
const I8: DataType = DataType::Int8;

fn bytes(name: &str, dims: &[usize], values: &[i64]) -> TensorProto {
    raw(name, U8, dims, values.iter().map(|v| *v as u8).collect())
}

/// To ui8, ties to even.
fn quantized(x: f64, scale: f64, zero: f64) -> f64 {
    ((x / scale).round_ties_even() + zero).clamp(0.0, 255.0)
}

#[test]
fn quantized_elementwise_ops_are_imported() {
    let (a, b) = ([0i64, 50, 100, 200, 255, 128], [10i64, 90, 170]);
    let q = ["x", "sx", "zx"];
    let model = Build::new()
        .input("x", U8, &["2", "3"])
        .input("y", U8, &["3"])
        .input("c", BOOL, &["3"])
        .init(f32s("sx", &[], &[0.5]))
        .init(f32s("sy", &[], &[0.25]))
        .init(f32s("s", &[], &[1.125]))
        .init(f32s("fine", &[], &[0.0078125]))
        .init(bytes("zx", &[], &[100]))
        .init(bytes("zy", &[], &[20]))
        .init(bytes("z", &[], &[60]))
        .node("QLinearAdd", &["x", "sx", "zx", "y", "sy", "zy", "s", "z"], &["add"], &[])
        .node("QLinearMul", &["x", "sx", "", "y", "sy", "", "s"], &["mul"], &[])
        .node("QLinearLeakyRelu", &["x", "sx", "zx", "s", "z"], &["leaky"], &[float("alpha", 0.25)])
        .node("QLinearSigmoid", &[&q[..], &["fine", "z"]].concat(), &["sigmoid"], &[])
        .node("QLinearSoftmax", &[&q[..], &["fine", "z"]].concat(), &["soft"], &[int("opset", 13), int("axis", 1)])
        .node("QLinearSoftmax", &[&q[..], &["fine", "z"]].concat(), &["flat"], &[int("opset", 11), int("axis", 0)])
        .node("QLinearWhere", &["c", "x", "sx", "zx", "y", "sy", "zy", "s", "z"], &["where"], &[])
        .node("QLinearConcat", &["s", "z", "y", "sy", "zy", "y", "sx", "zx"], &["concat"], &[int("axis", 0)])
        .node("QLinearReduceMean", &["x", "sx", "zx", "s", "z"], &["mean"], &[ints("axes", &[1]), int("keepdims", 0)])
        .node("MulInteger", &["x", "zx", "y", "zy"], &["product"], &[])
        .node("ReduceSumInteger", &["x"], &["sum"], &[ints("axes", &[0]), int("keepdims", 1)])
        .outputs(&["add", "mul", "leaky", "sigmoid", "soft", "flat", "where", "concat", "mean", "product", "sum"])
        .microsoft();
    let x = a.map(|v| 0.5 * (v - 100) as f64);
    let y = b.map(|v| 0.25 * (v - 20) as f64);
    let s = |x: f64| quantized(x, 1.125, 60.0);
    let fine = |x: f64| quantized(x, 0.0078125, 60.0);
    let each = |f: &dyn Fn(usize) -> f64| (0..6).map(f).collect::<Vec<f64>>();
    let soft = |from: usize, n: usize, i: usize| x[i].exp() / x[from..from + n].iter().map(|x| x.exp()).sum::<f64>();
    let condition = [true, false, true];
    let concat: Vec<f64> = y.iter().copied().chain(b.map(|v| 0.5 * (v - 100) as f64)).map(s).collect();
    let d: &[usize] = &[2, 3];
    let condition_tensor = of_ir::Tensor::from_elements(
        DType::Bool,
        vec![3],
        of_ir::Elements::Int(condition.iter().map(|c| i128::from(*c)).collect()),
    );
    gives(
        &model,
        &[xint(DType::U8, d, &a), xint(DType::U8, &[3], &b), condition_tensor.unwrap()],
        &[
            (d, &each(&|i| s(x[i] + y[i % 3]))),
            (d, &each(&|i| quantized((a[i] * b[i % 3]) as f64 * 0.125, 1.125, 0.0))),
            (d, &each(&|i| s(if x[i] < 0.0 { x[i] / 4.0 } else { x[i] }))),
            (d, &each(&|i| fine(1.0 / (1.0 + (-x[i]).exp())))),
            (d, &each(&|i| fine(soft(i / 3 * 3, 3, i)))),
            (d, &each(&|i| fine(soft(0, 6, i)))),
            (d, &each(&|i| s(if condition[i % 3] { x[i] } else { y[i % 3] }))),
            (&[6], &concat),
            (&[2], &[s((x[0] + x[1] + x[2]) / 3.0), s((x[3] + x[4] + x[5]) / 3.0)]),
            (d, &each(&|i| ((a[i] - 100) * (b[i % 3] - 20)) as f64)),
            (&[1, 3], &[200.0, 305.0, 228.0]),
        ],
    );
    let short = Build::new()
        .input("x", U8, &["2"])
        .init(f32s("s", &[], &[1.0]))
        .node("QLinearConcat", &["s", "", "x", "s"], &["y"], &[int("axis", 0)])
        .outputs(&["y"]);
    refused(&bad(&short.microsoft()), Code::MODEL, &["three for each operand"]);
}

#[test]
fn quantized_pools_and_convolutions_are_imported() {
    let x = [10i64, 20, 30, 40, 50, 60, 70, 81];
    let tail = ["s", "z", "t", "z"];
    let of = |x: &'static str| [&[x][..], &tail[..]].concat();
    let model = Build::new()
        .input("x", U8, &["1", "2", "2", "2"])
        .input("l", U8, &["1", "2", "2", "2"])
        .init(f32s("s", &[], &[0.5]))
        .init(f32s("t", &[], &[0.25]))
        .init(bytes("z", &[], &[10]))
        .init(bytes("w", &[1, 2, 1, 1], &[12, 9]))
        .init(raw("b", DataType::Int32, &[1], 4i32.to_le_bytes().to_vec()))
        .node("QLinearAveragePool", &of("x"), &["pool"], &[ints("kernel_shape", &[1, 2])])
        .node("QLinearAveragePool", &of("l"), &["last"], &[ints("kernel_shape", &[1, 2]), int("channels_last", 1)])
        .node("QLinearGlobalAveragePool", &of("x"), &["mean"], &[])
        .node("QLinearGlobalAveragePool", &of("l"), &["mean_last"], &[int("channels_last", 1)])
        .node("QLinearConv", &["l", "s", "z", "w", "s", "z", "t", "z", "b"], &["conv"], &[int("channels_last", 1)])
        .outputs(&["pool", "last", "mean", "mean_last", "conv"])
        .microsoft();
    let real = x.map(|v| 0.5 * (v - 10) as f64);
    let t = |x: f64| quantized(x, 0.25, 10.0);
    let pair = |i: usize, j: usize| t((real[i] + real[j]) / 2.0);
    let mean = |list: [usize; 4]| t(list.iter().map(|i| real[*i]).sum::<f64>() / 4.0);
    let conv = |p: usize| {
        let sum = (x[2 * p] - 10) * 2 - (x[2 * p + 1] - 10) + 4;
        t(sum as f64 * 0.25)
    };
    let input = xint(DType::U8, &[1, 2, 2, 2], &x);
    gives(
        &model,
        &[input.clone(), input],
        &[
            (&[1, 2, 2, 1], &[pair(0, 1), pair(2, 3), pair(4, 5), pair(6, 7)]),
            (&[1, 2, 1, 2], &[pair(0, 2), pair(1, 3), pair(4, 6), pair(5, 7)]),
            (&[1, 2, 1, 1], &[mean([0, 1, 2, 3]), mean([4, 5, 6, 7])]),
            (&[1, 1, 1, 2], &[mean([0, 2, 4, 6]), mean([1, 3, 5, 7])]),
            (&[1, 2, 2, 1], &[conv(0), conv(1), conv(2), conv(3)]),
        ],
    );
}

#[test]
fn quantized_matmuls_are_imported() {
    let (a, b) = ([3i64, 100, 7, 255], [-5i64, 6, 7, -128]);
    let model = Build::new()
        .input("a", U8, &["2", "2"])
        .input("r", F32, &["2", "2"])
        .init(raw("b", I8, &[2, 2], b.iter().map(|v| *v as u8).collect()))
        .init(f32s("sa", &[], &[0.5]))
        .init(f32s("sb", &[2], &[0.25, 0.125]))
        .init(f32s("sy", &[], &[32.0]))
        .init(bytes("za", &[], &[9]))
        .init(raw("zb", I8, &[2], vec![1, 2]))
        .init(bytes("zy", &[], &[128]))
        .init(f32s("bias", &[2], &[0.5, -0.5]))
        .init(raw("c", DataType::Int32, &[2], [5i32, -6].iter().flat_map(|v| v.to_le_bytes()).collect()))
        .node("MatMulIntegerToFloat", &["a", "b", "sa", "sb", "za", "zb", "bias"], &["float"], &[])
        .node("QGemm", &["a", "sa", "za", "b", "sb", "zb", "c"], &["real"], &[float("alpha", 0.5), int("transA", 1)])
        .node("QGemm", &["a", "sa", "za", "b", "sb", "zb", "", "sy", "zy"], &["gemm"], &[int("transB", 1)])
        .node("DynamicQuantizeMatMul", &["r", "b", "sb", "zb", "bias"], &["dynamic"], &[])
        .outputs(&["float", "real", "gemm", "dynamic"])
        .microsoft();
    let (sb, zb, bias, c) = ([0.25, 0.125], [1, 2], [0.5, -0.5], [5, -6]);
    let each = |f: &dyn Fn(usize, usize) -> f64| vec![f(0, 0), f(0, 1), f(1, 0), f(1, 1)];
    let sum = |a: &dyn Fn(usize) -> i64, b: &dyn Fn(usize) -> i64| a(0) * b(0) + a(1) * b(1);
    let float = |i: usize, j: usize| {
        let s = sum(&|k| a[2 * i + k] - 9, &|k| b[2 * k + j] - zb[j]);
        s as f64 * 0.5 * sb[j] + bias[j]
    };
    let real = |i: usize, j: usize| {
        let s = sum(&|k| a[2 * k + i] - 9, &|k| b[2 * k + j] - zb[j]) + c[j];
        s as f64 * 0.5 * 0.5 * sb[j]
    };
    let gemm = |i: usize, j: usize| {
        let s = sum(&|k| a[2 * i + k] - 9, &|k| b[2 * j + k] - zb[j]);
        quantized(s as f64 * 0.5 * sb[j], 32.0, 128.0)
    };
    // A range of 0 to 255 quantises to itself.
    let dynamic = |i: usize, j: usize| {
        let s = sum(&|k| a[2 * i + k], &|k| b[2 * k + j] - zb[j]);
        s as f64 * sb[j] + bias[j]
    };
    let d: &[usize] = &[2, 2];
    gives(
        &model,
        &[xint(DType::U8, d, &a), x32(d, &a.map(|v| v as f32))],
        &[(d, &each(&float)), (d, &each(&real)), (d, &each(&gemm)), (d, &each(&dynamic))],
    );
    let wide = Build::new()
        .input("a", DataType::Int16, &["1", "2"])
        .node("MatMulInteger16", &["a", "b"], &["y"], &[])
        .init(raw("b", DataType::Int16, &[2, 1], [300i16, -2].iter().flat_map(|v| v.to_le_bytes()).collect()))
        .outputs(&["y"])
        .microsoft();
    gives(&wide, &[xint(DType::I16, &[1, 2], &[30000, 5])], &[(&[1, 1], &[8_999_990.0])]);
}

#[test]
fn quantize_and_dequantize_linear_are_imported() {
    let model = Build::new()
        .input("x", F32, &["2", "2"])
        .init(f32s("s", &[2], &[0.5, 2.0]))
        .init(raw("z", DataType::Uint16, &[2], [300u16, 5].iter().flat_map(|v| v.to_le_bytes()).collect()))
        .node("QuantizeLinear", &["x", "s", "z"], &["q"], &[int("axis", 0)])
        .node("DequantizeLinear", &["q", "s", "z"], &["back"], &[int("axis", 0)])
        .outputs(&["q", "back"])
        .microsoft();
    gives(
        &model,
        &[x32(&[2, 2], &[1.0, -200.0, 3.0, 8.0])],
        &[(&[2, 2], &[302.0, 0.0, 7.0, 9.0]), (&[2, 2], &[1.0, -150.0, 4.0, 8.0])],
    );
}

#[test]
fn n_bit_embeddings_are_dequantized() {
    // Two rows of 32 elements in two blocks.
    let table: Vec<i64> = (0..32).map(|i| i * 29 % 256).collect();
    let model = Build::new()
        .input("ids", I64, &["1", "2"])
        .init(bytes("table", &[2, 16], &table))
        .init(f32s("s", &[2, 2], &[0.5, 1.0, 2.0, 4.0]))
        .init(bytes("z", &[2, 1], &[0x21, 0x43]))
        .node("GatherBlockQuantized", &["table", "ids", "s", "z"], &["y"], &[int("block_size", 16)])
        .node("GatherBlockQuantized", &["table", "ids", "s"], &["plain"], &[int("block_size", 16)])
        .outputs(&["y", "plain"])
        .microsoft();
    let (scales, zeros) = ([0.5, 1.0, 2.0, 4.0], [1.0, 2.0, 3.0, 4.0]);
    let row = |r: usize, zero: &dyn Fn(usize) -> f64| -> Vec<f64> {
        let element = |i: usize| (table[16 * r + i / 2] >> (4 * (i % 2)) & 15) as f64;
        (0..32).map(|i| (element(i) - zero(2 * r + i / 16)) * scales[2 * r + i / 16]).collect()
    };
    let both = |zero: &dyn Fn(usize) -> f64| [row(1, zero), row(0, zero)].concat();
    let d: &[usize] = &[1, 2, 32];
    gives(&model, &[xint(DType::I64, &[1, 2], &[1, 0])], &[(d, &both(&|b| zeros[b])), (d, &both(&|_| 8.0))]);
}

#[test]
fn recurrences_multiply_quantized_integers() {
    // One step without a state before it, and one output: the gates are the products of the quantised input.
    let w: Vec<i64> = vec![3, 1, 2, 0, 2, 2, 1, 3];
    let b = Build::new()
        .input("x", F32, &["1", "1", "2"])
        .init(bytes("w", &[1, 2, 4], &w))
        .init(bytes("r", &[1, 1, 4], &[0, 0, 0, 0]))
        .init(f32s("ws", &[1, 4], &[0.5, 0.25, 0.5, 0.125]))
        .init(bytes("wz", &[1, 4], &[1, 1, 1, 1]))
        .init(f32s("s", &[1], &[1.0]))
        .init(bytes("z", &[1], &[0]));
    let inputs = ["x", "w", "r", "", "", "", "", "", "ws", "wz", "s", "z"];
    let model = b.node("DynamicQuantizeLSTM", &inputs, &["y"], &[int("hidden_size", 1)]).outputs(&["y"]).microsoft();
    let x: [f32; 2] = [0.7, -0.3];
    // u8 by the range of the input: scale (max - min) / 255, zero point -min / scale.
    let scale = (x[0] - x[1]) / 255.0;
    let zero = (-x[1] / scale).round_ties_even();
    let q = x.map(|v| (v / scale).round_ties_even() + zero);
    let gates: Vec<f64> = (0..4)
        .map(|k| {
            let sum: f32 = (0..2).map(|i| (q[i] - zero) * (w[i * 4 + k] - 1) as f32).sum();
            f64::from(sum * (scale * [0.5, 0.25, 0.5, 0.125][k]))
        })
        .collect();
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let cell = sigmoid(gates[0]) * gates[3].tanh();
    let y = sigmoid(gates[1]) * cell.tanh();
    gives(&model, &[x32(&[1, 1, 2], &x)], &[(&[1, 1, 1, 1], &[y])]);
}
