//! Operators of onnxruntime: activations, normalisations, products, convolutions, tensors. Expected values are computed
//! from the definitions.

mod support;

use of_diag::Code;
use of_ir::DType;
use of_onnx::proto::tensor_proto::DataType;
use support::*;

const I32: DataType = DataType::Int32;
const U8: DataType = DataType::Uint8;

fn f64s(v: &[f32]) -> Vec<f64> {
    v.iter().map(|x| f64::from(*x)).collect()
}

fn erf(x: f64) -> f64 {
    // The Taylor series, for the small numbers here.
    let (mut term, mut sum) = (x, x);
    for n in 1..60 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

fn gelu(x: f64) -> f64 {
    x / 2.0 * (1.0 + erf(x / 2f64.sqrt()))
}

fn fast(x: f64) -> f64 {
    x / 2.0 * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh())
}

fn quick(x: f64, alpha: f64) -> f64 {
    x / (1.0 + (-alpha * x).exp())
}

fn normalized(row: &[f64], epsilon: f64, centred: bool) -> Vec<f64> {
    let n = row.len() as f64;
    let mean = if centred { row.iter().sum::<f64>() / n } else { 0.0 };
    let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
    row.iter().map(|x| (x - mean) / (variance + epsilon).sqrt()).collect()
}

#[test]
fn contrib_activations_are_imported() {
    let (x, b, z) = (wave(8, 1), wave(4, 2), wave(8, 3));
    let model = Build::new()
        .input("x", F32, &["2", "4"])
        .input("b", F32, &["4"])
        .input("z", F32, &["2", "4"])
        .node("Gelu", &["x"], &["gelu"], &[])
        .node("BiasGelu", &["x", "b"], &["bias"], &[])
        .node("FastGelu", &["x", "b"], &["fast"], &[])
        .node("FastGelu", &["x"], &["plain"], &[])
        .node("QuickGelu", &["x"], &["quick"], &[float("alpha", 0.5)])
        .node("BiasAdd", &["x", "b", "z"], &["sum"], &[])
        .node("BiasSplitGelu", &["x", "b"], &["split"], &[])
        .outputs(&["gelu", "bias", "fast", "plain", "quick", "sum", "split"])
        .microsoft();
    let biased: Vec<f64> = (0..8).map(|i| f64::from(x[i] + b[i % 4])).collect();
    let map = |f: &dyn Fn(f64) -> f64, v: &[f64]| v.iter().map(|x| f(*x)).collect::<Vec<_>>();
    let wide = f64s(&x);
    let split: Vec<f64> = [0, 1, 4, 5].iter().map(|i| biased[*i] * gelu(biased[i + 2])).collect();
    let sum: Vec<f64> = (0..8).map(|i| biased[i] + f64::from(z[i])).collect();
    let d: &[usize] = &[2, 4];
    gives(
        &model,
        &[x32(d, &x), x32(&[4], &b), x32(d, &z)],
        &[
            (d, &map(&gelu, &wide)),
            (d, &map(&gelu, &biased)),
            (d, &map(&fast, &biased)),
            (d, &map(&fast, &wide)),
            (d, &map(&|x| quick(x, 0.5), &wide)),
            (d, &sum),
            (&[2, 2], &split),
        ],
    );
}

#[test]
fn contrib_normalizations_of_sums_are_imported() {
    let (x, s, g, b) = (wave(6, 1), wave(6, 2), wave(3, 3), wave(3, 4));
    let model = Build::new()
        .input("x", F32, &["1", "2", "3"])
        .input("s", F32, &["1", "2", "3"])
        .init(f32s("g", &[3], &g))
        .init(f32s("b", &[3], &b))
        .node("SkipLayerNormalization", &["x", "s", "g", "b", "b"], &["y", "", "", "sum"], &[float("epsilon", 0.1)])
        .node("SkipLayerNormalization", &["x", "s", "g"], &["short"], &[])
        .node("SkipSimplifiedLayerNormalization", &["x", "s", "g", "b"], &["rms", "", "", "twice"], &[])
        .outputs(&["y", "sum", "short", "rms", "twice"])
        .microsoft();
    let plain: Vec<f64> = (0..6).map(|i| f64::from(x[i] + s[i])).collect();
    let sum: Vec<f64> = (0..6).map(|i| plain[i] + f64::from(b[i % 3])).collect();
    let apply = |v: &[f64], epsilon, centred, bias: bool| -> Vec<f64> {
        let rows = v.chunks(3).flat_map(|row| normalized(row, epsilon, centred));
        let scaled = rows.enumerate();
        scaled.map(|(i, y)| y * f64::from(g[i % 3]) + if bias { f64::from(b[i % 3]) } else { 0.0 }).collect()
    };
    let d: &[usize] = &[1, 2, 3];
    gives(
        &model,
        &[x32(d, &x), x32(d, &s)],
        &[
            (d, &apply(&sum, 0.1, true, true)),
            (d, &sum),
            (d, &apply(&plain, 1e-12, true, false)),
            (d, &apply(&sum, 1e-12, false, false)),
            (d, &sum),
        ],
    );
    // Older exporters write it in the domain of ONNX.
    let mut model = Build::new()
        .input("x", F32, &["2", "3"])
        .init(f32s("g", &[3], &g))
        .node("SimplifiedLayerNormalization", &["x", "g"], &["y"], &[float("epsilon", 0.5), int("stash_type", 1)])
        .outputs(&["y"]);
    gives(&model.clone().model(17), &[x32(&[2, 3], &x)], &[(&[2, 3], &apply(&f64s(&x), 0.5, false, false))]);
    model.0.node[0].output.push("deviation".into());
    refused(&bad(&model.model(17)), Code::UNSUPPORTED, &["training"]);
}

#[test]
fn contrib_embeddings_are_imported() {
    let tables = [wave(10, 1), wave(8, 2), wave(4, 3)];
    let [words, positions, segments] = &tables;
    let model = Build::new()
        .input("ids", I32, &["N", "2"])
        .input("segment", I32, &["N", "2"])
        .input("mask", I32, &["N", "2"])
        .init(f32s("w", &[5, 2], words))
        .init(f32s("p", &[4, 2], positions))
        .init(f32s("s", &[2, 2], segments))
        .init(f32s("one", &[2], &[1.0, 1.0]))
        .init(f32s("zero", &[2], &[0.0, 0.0]))
        .node(
            "EmbedLayerNormalization",
            &["ids", "segment", "w", "p", "s", "one", "zero", "mask"],
            &["y", "count", "sum"],
            &[float("epsilon", 0.25)],
        )
        .node("EmbedLayerNormalization", &["ids", "", "w", "p", "", "one", "zero"], &["z", "none"], &[])
        .node("TorchEmbedding", &["w", "ids"], &["rows"], &[])
        .outputs(&["y", "count", "sum", "none", "rows"])
        .microsoft();
    let (ids, segment) = ([4usize, 0, 2, 2], [0usize, 1, 1, 1]);
    let at = |table: &[f32], row: usize, c: usize| f64::from(table[2 * row + c]);
    let mut sum = Vec::new();
    for t in 0..4 {
        sum.extend((0..2).map(|c| at(words, ids[t], c) + at(positions, t % 2, c) + at(segments, segment[t], c)));
    }
    let y: Vec<f64> = sum.chunks(2).flat_map(|row| normalized(row, 0.25, true)).collect();
    let rows: Vec<f64> = ids.iter().flat_map(|i| [at(words, *i, 0), at(words, *i, 1)]).collect();
    let small = |v: &[usize]| xint(DType::I32, &[2, 2], &v.iter().map(|i| *i as i64).collect::<Vec<_>>());
    gives(
        &model,
        &[small(&ids), small(&segment), small(&[1, 1, 1, 0])],
        &[(&[2, 2, 2], &y), (&[2], &[2.0, 1.0]), (&[2, 2, 2], &sum), (&[2], &[0.0, 0.0]), (&[2, 2, 2], &rows)],
    );
}

#[test]
fn group_norm_accepts_both_layouts() {
    // Two samples would only repeat it: one of two pixels and four channels.
    let (x, g, b) = (wave(8, 1), wave(4, 2), wave(4, 3));
    let groups = |activation, last| [int("groups", 2), int("activation", activation), int("channels_last", last)];
    let model = Build::new()
        .input("x", F32, &["1", "1", "2", "4"])
        .input("c", F32, &["1", "4", "1", "2"])
        .init(f32s("g", &[4], &g))
        .init(f32s("b", &[4], &b))
        .init(f32s("skip", &[1, 4], &b))
        .node("GroupNorm", &["x", "g", "b"], &["y"], &groups(1, 1))
        .node("SkipGroupNorm", &["x", "g", "b", "skip", "b"], &["z", "sum"], &groups(0, 1))
        .node("SkipGroupNorm", &["c", "g", "b", "skip", "b"], &["first", "s"], &groups(0, 0))
        .outputs(&["y", "z", "sum", "first"])
        .microsoft();
    let group = |x: &[f64]| -> Vec<f64> {
        let mut y = vec![0.0; 8];
        for first in [0, 2] {
            let members = [first, first + 1, first + 4, first + 5];
            let n = normalized(&members.map(|i| x[i]), 1e-5, true);
            for (i, v) in members.into_iter().zip(n) {
                y[i] = v * f64::from(g[i % 4]) + f64::from(b[i % 4]);
            }
        }
        y
    };
    let sum: Vec<f64> = (0..8).map(|i| f64::from(x[i] + 2.0 * b[i % 4])).collect();
    let silu: Vec<f64> = group(&f64s(&x)).iter().map(|x| quick(*x, 1.0)).collect();
    // Channels first is the matrix of pixels and channels turned over.
    let turn = |v: &[f64]| -> Vec<f64> { (0..8).map(|i| v[i % 2 * 4 + i / 2]).collect() };
    let turned: Vec<f32> = turn(&f64s(&x)).iter().map(|x| *x as f32).collect();
    let d: &[usize] = &[1, 1, 2, 4];
    gives(
        &model,
        &[x32(d, &x), x32(&[1, 4, 1, 2], &turned)],
        &[(d, &silu), (d, &group(&sum)), (d, &sum), (&[1, 4, 1, 2], &turn(&group(&sum)))],
    );
}

#[test]
fn contrib_matmuls_are_imported() {
    let (a, b, c) = (wave(12, 1), wave(12, 2), wave(2, 3));
    let model = Build::new()
        .input("a", F32, &["3", "2", "2"])
        .input("b", F32, &["2", "2", "3"])
        .input("m", F32, &["2", "2"])
        .init(f32s("c", &[2], &c))
        .node("FusedMatMul", &["a", "b"], &["batch"], &[int("transBatchA", 1), float("alpha", 0.5)])
        .node("FusedMatMul", &["m", "m"], &["turned"], &[int("transA", 1), int("transB", 1)])
        .node("TransposeMatMul", &["m", "m"], &["left"], &[int("transA", 1)])
        .node(
            "FusedGemm",
            &["m", "m", "c"],
            &["gemm"],
            &[text("activation", "LeakyRelu"), float("activation_alpha", 0.5)],
        )
        .node("FusedMatMulActivation", &["m", "m"], &["relu"], &[text("activation", "Relu")])
        .node("GemmFastGelu", &["m", "m", "c"], &["gelu"], &[])
        .node("CDist", &["m", "m"], &["square"], &[])
        .node("CDist", &["m", "m"], &["root"], &[text("metric", "euclidean")])
        .outputs(&["batch", "turned", "left", "gemm", "relu", "gelu", "square", "root"])
        .microsoft();
    let m = wave(4, 5);
    let at = |i: usize, j: usize| f64::from(m[2 * i + j]);
    let grid = |f: &dyn Fn(usize, usize) -> f64| vec![f(0, 0), f(0, 1), f(1, 0), f(1, 1)];
    let product = |i: usize, j: usize| at(i, 0) * at(0, j) + at(i, 1) * at(1, j);
    let mut batch = Vec::new();
    for (n, i, j) in (0..18).map(|k| (k / 9, k / 3 % 3, k % 3)) {
        let sum: f32 = (0..2).map(|k| a[4 * i + 2 * n + k] * b[6 * n + 3 * k + j]).sum();
        batch.push(f64::from(sum) / 2.0);
    }
    let leaky = |x: f64| if x < 0.0 { x / 2.0 } else { x };
    let biased = |i: usize, j: usize| product(i, j) + f64::from(c[j]);
    let distance = |i: usize, j: usize| (at(i, 0) - at(j, 0)).powi(2) + (at(i, 1) - at(j, 1)).powi(2);
    let d: &[usize] = &[2, 2];
    gives(
        &model,
        &[x32(&[3, 2, 2], &a), x32(&[2, 2, 3], &b), x32(d, &m)],
        &[
            (&[2, 3, 3], &batch),
            (d, &grid(&|i, j| product(j, i))),
            (d, &grid(&|i, j| at(0, i) * at(0, j) + at(1, i) * at(1, j))),
            (d, &grid(&|i, j| leaky(biased(i, j)))),
            (d, &grid(&|i, j| product(i, j).max(0.0))),
            (d, &grid(&|i, j| fast(biased(i, j)))),
            (d, &grid(&distance)),
            (d, &grid(&|i, j| distance(i, j).sqrt())),
        ],
    );
    let odd = Build::new()
        .input("m", F32, &["2", "2"])
        .node("FusedGemm", &["m", "m"], &["y"], &[text("activation", "Sparkle")])
        .outputs(&["y"]);
    refused(&bad(&odd.microsoft()), Code::UNSUPPORTED, &["Sparkle"]);
}

#[test]
fn n_bit_weights_are_dequantized() {
    // Three blocks a row, so that the last byte of zero points is half used, and K ends within the last block.
    let (k, n, block) = (40usize, 2usize, 16usize);
    let x = wave(k, 1);
    let scales: Vec<f32> = (0..6).map(|i| 0.5 + i as f32 / 4.0).collect();
    let model = |bits: usize, zeros: Option<usize>| {
        let bytes: Vec<u8> = (0..n * 3 * block * bits / 8).map(|i| (i * 53 % 251) as u8).collect();
        let packed: Vec<u8> = (0..n * (3 * bits).div_ceil(8)).map(|i| (i * 91 + 7) as u8).collect();
        let element = |data: &[u8], row: usize, width: usize, i: usize| {
            let byte = data[row * width + i * bits / 8];
            f64::from(u32::from(byte) >> (i * bits % 8) & ((1 << bits) - 1))
        };
        let real = [7.5f32, 1.0, 2.0, 3.0, 4.0, 5.5];
        let want: Vec<f64> = (0..n)
            .map(|row| {
                let term = |i: usize| {
                    let zero = match zeros {
                        None => f64::from(1 << (bits - 1)),
                        Some(0) => element(&packed, row, (3 * bits).div_ceil(8), i / block),
                        Some(_) => f64::from(real[3 * row + i / block]),
                    };
                    let w = element(&bytes, row, 3 * block * bits / 8, i) - zero;
                    f64::from(x[i]) * w * f64::from(scales[3 * row + i / block])
                };
                (0..k).map(term).sum::<f64>() + 1.0
            })
            .collect();
        let zero = match zeros {
            None => None,
            Some(0) => Some(raw("z", U8, &[n, (3 * bits).div_ceil(8)], packed)),
            Some(_) => Some(f32s("z", &[n, 3], &real)),
        };
        let attrs = [
            int("K", k as i64),
            int("N", n as i64),
            int("block_size", block as i64),
            int("bits", bits as i64),
            int("accuracy_level", 4),
        ];
        let mut b = Build::new()
            .input("x", F32, &["1", "40"])
            .init(raw("w", U8, &[n, 3, block * bits / 8], bytes))
            .init(f32s("s", &[n, 3], &scales))
            .init(f32s("bias", &[n], &[1.0, 1.0]));
        let name = if zero.is_some() { "z" } else { "" };
        if let Some(zero) = zero {
            b = b.init(zero);
        }
        (b.node("MatMulNBits", &["x", "w", "s", name, "", "bias"], &["y"], &attrs).outputs(&["y"]).microsoft(), want)
    };
    for bits in [2, 4, 8] {
        for zeros in [None, Some(0), Some(1)] {
            let (model, want) = model(bits, zeros);
            gives(&model, &[x32(&[1, k], &x)], &[(&[1, n], &want)]);
        }
    }
    for (bits, block, k) in [(3, 16, 40), (4, 0, 40), (4, 16, -1), (4, 16, i64::MAX), (64, 16, 40)] {
        let attrs = [int("K", k), int("N", 2), int("block_size", block), int("bits", bits)];
        let b = Build::new()
            .input("x", F32, &["1", "40"])
            .input("w", U8, &["2", "3", "8"])
            .input("s", F32, &["2", "3"])
            .node("MatMulNBits", &["x", "w", "s"], &["y"], &attrs)
            .outputs(&["y"]);
        bad(&b.microsoft());
    }
}

#[test]
fn contrib_convolutions_are_imported() {
    // Kernels of one pixel keep the sums short.
    let (x, w, z) = (wave(4, 1), wave(4, 2), wave(4, 3));
    let model = Build::new()
        .input("x", F32, &["1", "2", "1", "2"])
        .input("l", F32, &["1", "1", "2", "2"])
        .input("z", F32, &["1", "2", "1", "2"])
        .init(f32s("w", &[2, 2, 1, 1], &w))
        .init(f32s("b", &[2], &[0.5, -0.5]))
        .init(i64s("pads", &[4], &[0, 1, 0, 0]))
        .node(
            "FusedConv",
            &["x", "w", "b", "z"],
            &["fused"],
            &[text("activation", "Clip"), floats("activation_params", &[-0.5, 0.5])],
        )
        .node("NhwcConv", &["l", "w", "b"], &["last"], &[])
        .node("NhwcFusedConv", &["l", "w", "b", "l"], &["both"], &[text("activation", "Relu")])
        .node("NhwcMaxPool", &["l"], &["pool"], &[ints("kernel_shape", &[1, 2])])
        .node("ConvTransposeWithDynamicPads", &["x", "w", "pads", "b"], &["back"], &[])
        .outputs(&["fused", "last", "both", "pool", "back"])
        .microsoft();
    let (x64, w64, z64, b) = (f64s(&x), f64s(&w), f64s(&z), [0.5, -0.5]);
    let out =
        |o: usize, p: usize, x: &dyn Fn(usize, usize) -> f64| b[o] + w64[2 * o] * x(0, p) + w64[2 * o + 1] * x(1, p);
    let first = |c: usize, p: usize| x64[2 * c + p];
    let last = |c: usize, p: usize| x64[2 * p + c];
    let each = |f: &dyn Fn(usize, usize) -> f64| vec![f(0, 0), f(0, 1), f(1, 0), f(1, 1)];
    let fused = each(&|o, p| (out(o, p, &first) + z64[2 * o + p]).clamp(-0.5, 0.5));
    let nhwc = each(&|p, o| out(o, p, &last));
    let both: Vec<f64> = nhwc.iter().zip(&x64).map(|(y, x)| (y + x).max(0.0)).collect();
    let pool = [x64[0].max(x64[2]), x64[1].max(x64[3])];
    // Without the first pixel, and with weights turned over.
    let back: Vec<f64> = (0..2).map(|o| b[o] + w64[o] * first(0, 1) + w64[2 + o] * first(1, 1)).collect();
    gives(
        &model,
        &[x32(&[1, 2, 1, 2], &x), x32(&[1, 1, 2, 2], &x), x32(&[1, 2, 1, 2], &z)],
        &[
            (&[1, 2, 1, 2], &fused),
            (&[1, 1, 2, 2], &nhwc),
            (&[1, 1, 2, 2], &both),
            (&[1, 1, 1, 2], &pool),
            (&[1, 2, 1, 1], &back),
        ],
    );
}

#[test]
fn contrib_tensor_ops_are_imported() {
    let model = Build::new()
        .input("x", F32, &["2", "2"])
        .input("v", F32, &["5"])
        .init(raw("axis", I32, &[], 1i32.to_le_bytes().to_vec()))
        .init(i64s("one", &[1], &[1]))
        .init(i64s("four", &[], &[4]))
        .init(i64s("pads", &[1, 4], &[1, 0, 0, 0]))
        .init(i64s("places", &[2, 2], &[0, 1, 1, 0]))
        .init(f32s("nine", &[1], &[9.0]))
        .node("ExpandDims", &["x", "axis"], &["column"], &[])
        .node("Range", &["one", "four"], &["range"], &[])
        .node("Unique", &["v"], &["different", "place", "count"], &[])
        .node("Pad", &["x", "pads", "nine"], &["padded"], &[])
        .node("GatherND", &["x", "places"], &["picked"], &[])
        .node("Trilu", &["x"], &["upper"], &[])
        .outputs(&["column", "range", "different", "place", "count", "padded", "picked", "upper"])
        .microsoft();
    gives(
        &model,
        &[x32(&[2, 2], &[1.0, 2.0, 3.0, 4.0]), x32(&[5], &[2.0, 1.0, 1.0, 3.0, 2.0])],
        &[
            (&[2, 1, 2], &[1.0, 2.0, 3.0, 4.0]),
            (&[3], &[1.0, 2.0, 3.0]),
            (&[3], &[2.0, 1.0, 3.0]),
            (&[5], &[0.0, 1.0, 1.0, 2.0, 0.0]),
            (&[3], &[2.0, 2.0, 1.0]),
            (&[3, 2], &[9.0, 9.0, 1.0, 2.0, 3.0, 4.0]),
            (&[2], &[2.0, 3.0]),
            (&[2, 2], &[1.0, 2.0, 0.0, 4.0]),
        ],
    );
}

#[test]
fn crop_and_resize_matches_its_definition() {
    let size = |n: i32| n.to_le_bytes();
    let model = |mode| {
        Build::new()
            .input("x", F32, &["1", "1", "2", "3"])
            .input("boxes", F32, &["2", "4"])
            .input("of", I32, &["2"])
            .init(raw("size", I32, &[2], [size(1), size(3)].concat()))
            .node(
                "CropAndResize",
                &["x", "boxes", "of", "size"],
                &["y"],
                &[text("mode", mode), float("extrapolation_value", 7.0)],
            )
            .outputs(&["y"])
            .microsoft()
    };
    let x = x32(&[1, 1, 2, 3], &[0.0, 1.0, 2.0, 10.0, 11.0, 12.0]);
    // A row in the middle of all columns; the lower row from its first half pixel to behind its end.
    let boxes = x32(&[2, 4], &[0.0, 0.0, 1.0, 1.0, 1.0, 0.25, 1.0, 1.25]);
    let of = xint(DType::I32, &[2], &[0, 0]);
    let d: &[usize] = &[2, 1, 1, 3];
    let input = [x, boxes, of];
    gives(&model("bilinear"), &input, &[(d, &[5.0, 6.0, 7.0, 10.5, 11.5, 7.0])]);
    gives(&model("nearest"), &input, &[(d, &[10.0, 11.0, 12.0, 11.0, 12.0, 7.0])]);
}

#[test]
fn unsupported_contrib_attributes_report_the_reason() {
    for (op, why) in [
        ("BeamSearch", "search"),
        ("SparseToDenseMatMul", "sparse"),
        ("RemovePadding", "packed"),
        ("MoE", "experts"),
        ("Frobnicate", "not known"),
    ] {
        let b = Build::new().input("x", F32, &["2"]).node(op, &["x"], &["y"], &[]).outputs(&["y"]);
        refused(&bad(&b.microsoft()), Code::UNSUPPORTED, &[op, why]);
    }
    let mean = Build::new()
        .input("x", F32, &["2", "2"])
        .input("g", F32, &["2"])
        .node("SkipLayerNormalization", &["x", "x", "g"], &["y", "mean"], &[])
        .outputs(&["y", "mean"]);
    refused(&bad(&mean.microsoft()), Code::UNSUPPORTED, &["training"]);
    let odd = Build::new().input("x", F32, &["2"]).node("Gelu", &["x"], &["y"], &[int("glow", 1)]).outputs(&["y"]);
    refused(&bad(&odd.microsoft()), Code::UNSUPPORTED, &["'glow'"]);
}
