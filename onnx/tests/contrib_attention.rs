//! Attention as onnxruntime's operators have it. Expected values are computed from the definition, head by head.

mod support;

use of_diag::Code;
use of_ir::{DType, Tensor};
use of_onnx::proto::AttributeProto;
use of_onnx::proto::tensor_proto::DataType;
use support::*;

const I32: DataType = DataType::Int32;

/// `[length, size]`.
type Matrix = Vec<Vec<f64>>;

/// `softmax(q kᵀ / sqrt(size) + bias) v`; minus infinity hides a key.
fn attend(q: &Matrix, k: &Matrix, v: &Matrix, cap: f64, bias: &dyn Fn(usize, usize) -> f64) -> Matrix {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let row = |i: usize| {
        let scale = 1.0 / (q[i].len() as f64).sqrt();
        let logit = |j: usize| {
            let x = dot(&q[i], &k[j]) * scale;
            (if cap > 0.0 { cap * (x / cap).tanh() } else { x }) + bias(i, j)
        };
        let weights: Vec<f64> = (0..k.len()).map(|j| logit(j).exp()).collect();
        let sum: f64 = weights.iter().sum();
        (0..v[0].len()).map(|c| (0..k.len()).map(|j| weights[j] / sum * v[j][c]).sum()).collect()
    };
    (0..q.len()).map(row).collect()
}

/// Rows `first..first + length` of head `h` of `[length, heads * size]`.
fn head(x: &[f32], width: usize, size: usize, h: usize) -> Matrix {
    x.chunks(width).map(|row| row[h * size..(h + 1) * size].iter().map(|x| f64::from(*x)).collect()).collect()
}

/// Heads side by side.
fn joined(heads: &[Matrix]) -> Vec<f64> {
    (0..heads[0].len()).flat_map(|i| heads.iter().flat_map(move |h| h[i].clone())).collect()
}

fn flat(m: &[Matrix]) -> Vec<f64> {
    m.iter().flatten().flatten().copied().collect()
}

fn narrow(v: &[f64]) -> Vec<f32> {
    v.iter().map(|x| *x as f32).collect()
}

const HIDDEN: f64 = f64::NEG_INFINITY;

#[test]
fn attention_projections_masks_and_caches_are_imported() {
    // Two heads of size 2, three tokens; the weights copy, scale and turn over the input.
    let (x, past) = (wave(12, 1), wave(16, 2));
    let weights: Vec<f32> = (0..48).map(|i| if (i % 12) % 4 == i / 12 { 1.0 } else { 0.1 * (i % 12) as f32 }).collect();
    let bias = wave(12, 3);
    let project = |part: usize| -> Vec<f32> {
        let value = |t: usize, c: usize| (0..4).map(|k| x[4 * t + k] * weights[12 * k + 4 * part + c]).sum::<f32>();
        (0..12).map(|i| value(i / 4, i % 4) + bias[4 * part + i % 4]).collect()
    };
    let [q, k, v] = [project(0), project(1), project(2)];
    let model = |inputs: &[&str], outputs: &[&str], attrs: &[AttributeProto]| {
        let mut all = vec![int("num_heads", 2)];
        all.extend_from_slice(attrs);
        Build::new()
            .input("x", F32, &["1", "3", "4"])
            .init(f32s("w", &[4, 12], &weights))
            .init(f32s("b", &[12], &bias))
            .init(raw("mask", I32, &[1, 3], [1i32, 1, 0].iter().flat_map(|i| i.to_le_bytes()).collect()))
            .init(raw("ends", I32, &[1], 2i32.to_le_bytes().to_vec()))
            .init(raw("range", I32, &[2], [3i32, 1].iter().flat_map(|i| i.to_le_bytes()).collect()))
            .init(f32s("past", &[2, 1, 2, 2, 2], &past))
            .init(f32s("extra", &[1, 1, 3, 3], &wave(9, 6)))
            .node("Attention", inputs, outputs, &all)
            .outputs(outputs)
            .microsoft()
    };
    let input = [x32(&[1, 3, 4], &x)];
    let want = |bias: &dyn Fn(usize, usize) -> f64| {
        let each = |h| attend(&head(&q, 4, 2, h), &head(&k, 4, 2, h), &head(&v, 4, 2, h), 0.0, bias);
        joined(&[each(0), each(1)])
    };
    let d: &[usize] = &[1, 3, 4];
    let one = |inputs: &[&str], attrs: &[AttributeProto], bias: &dyn Fn(usize, usize) -> f64| {
        gives(&model(inputs, &["y"], attrs), &input, &[(d, &want(bias))]);
    };
    one(&["x", "w", "b"], &[], &|_, _| 0.0);
    one(&["x", "w", "b"], &[int("unidirectional", 1)], &|i, j| if j > i { HIDDEN } else { 0.0 });
    one(&["x", "w", "b", "mask"], &[float("mask_filter_value", -1.5)], &|_, j| if j == 2 { -1.5 } else { 0.0 });
    one(&["x", "w", "b", "ends"], &[], &|_, j| if j >= 2 { HIDDEN } else { 0.0 });
    one(&["x", "w", "b", "range"], &[], &|_, j| if j < 1 { HIDDEN } else { 0.0 });
    let extra = wave(9, 6);
    one(&["x", "w", "b", "", "", "extra"], &[], &|i, j| f64::from(extra[3 * i + j]));

    // Past and present are keys and values of both heads.
    let cached = |part: usize, new: &[f32], h: usize| -> Matrix {
        let before = &past[8 * part + 4 * h..8 * part + 4 * h + 4];
        before.chunks(2).map(|r| r.iter().map(|x| f64::from(*x)).collect()).chain(head(new, 4, 2, h)).collect()
    };
    let [k, v] = [[cached(0, &k, 0), cached(0, &k, 1)], [cached(1, &v, 0), cached(1, &v, 1)]];
    let each = |h: usize| attend(&head(&q, 4, 2, h), &k[h], &v[h], 0.0, &|i, j| if j > i + 2 { HIDDEN } else { 0.0 });
    let y = joined(&[each(0), each(1)]);
    let present = [flat(&k), flat(&v)].concat();
    let model = model(&["x", "w", "b", "", "past"], &["y", "present"], &[int("unidirectional", 1)]);
    gives(&model, &input, &[(d, &y), (&[2, 1, 2, 5, 2], &present)]);
}

#[test]
fn separate_and_packed_heads_are_imported() {
    let (q, k, v, bias) = (wave(8, 1), wave(12, 2), wave(12, 3), wave(12, 4));
    let add = |x: &[f32], part: usize| -> Vec<f32> {
        x.iter().enumerate().map(|(i, x)| x + bias[4 * part + i % 4]).collect()
    };
    // The packed forms hold the same: `[N, length, heads, parts, size]`.
    let mut kv = Vec::new();
    for (t, h) in (0..6).map(|i| (i / 2, i % 2)) {
        for part in [&k, &v] {
            kv.extend_from_slice(&part[4 * t + 2 * h..4 * t + 2 * h + 2]);
        }
    }
    // `[N, heads, length, size]`.
    let apart = |x: &[f32]| narrow(&flat(&[head(x, 4, 2, 0), head(x, 4, 2, 1)]));
    let heads = [int("num_heads", 2)];
    let model = Build::new()
        .input("q", F32, &["1", "2", "4"])
        .init(f32s("k", &[1, 3, 4], &k))
        .init(f32s("v", &[1, 3, 4], &v))
        .init(f32s("kv", &[1, 3, 2, 2, 2], &kv))
        .init(f32s("kh", &[1, 2, 3, 2], &apart(&k)))
        .init(f32s("vh", &[1, 2, 3, 2], &apart(&v)))
        .init(f32s("b", &[12], &bias))
        .init(raw("ends", I32, &[1], 2i32.to_le_bytes().to_vec()))
        .node("MultiHeadAttention", &["q", "k", "v", "b"], &["biased", "pk", "pv"], &heads)
        .node("MultiHeadAttention", &["q", "k", "v", "", "ends"], &["short"], &heads)
        .node("MultiHeadAttention", &["q", "kv"], &["packed"], &heads)
        .node("MultiHeadAttention", &["q", "kh", "vh"], &["cross"], &heads)
        .outputs(&["biased", "pk", "short", "packed", "cross"])
        .microsoft();
    let want = |q: &[f32], k: &[f32], v: &[f32], bias: &dyn Fn(usize, usize) -> f64| {
        let each = |h| attend(&head(q, 4, 2, h), &head(k, 4, 2, h), &head(v, 4, 2, h), 0.0, bias);
        joined(&[each(0), each(1)])
    };
    let biased_k = add(&k, 1);
    let plain = want(&q, &k, &v, &|_, _| 0.0);
    let d: &[usize] = &[1, 2, 4];
    gives(
        &model,
        &[x32(d, &q)],
        &[
            (d, &want(&add(&q, 0), &biased_k, &add(&v, 2), &|_, _| 0.0)),
            (&[1, 2, 3, 2], &flat(&[head(&biased_k, 4, 2, 0), head(&biased_k, 4, 2, 1)])),
            (d, &want(&q, &k, &v, &|_, j| if j == 2 { HIDDEN } else { 0.0 })),
            (d, &plain),
            (d, &plain),
        ],
    );
}

#[test]
fn decoder_attention_reads_its_cache() {
    let (qkv, past) = (wave(12, 1), wave(8, 2));
    let model = Build::new()
        .input("qkv", F32, &["1", "1", "12"])
        .init(f32s("past", &[1, 2, 2, 2], &past))
        .init(raw("mask", I32, &[1, 3], [0i32, 1, 1].iter().flat_map(|i| i.to_le_bytes()).collect()))
        .node(
            "DecoderMaskedMultiHeadAttention",
            &["qkv", "", "", "mask", "", "past", "past"],
            &["y", "k", "v"],
            &[int("num_heads", 2)],
        )
        .outputs(&["y", "k"])
        .microsoft();
    let cached = |part: usize, h: usize| -> Matrix {
        let before = past[4 * h..4 * h + 4].chunks(2).map(|r| r.iter().map(|x| f64::from(*x)).collect());
        before.chain(head(&qkv[4 * part..4 * part + 4], 4, 2, h)).collect()
    };
    let hide = |_: usize, j: usize| if j == 0 { -10000.0 } else { 0.0 };
    let each = |h| attend(&head(&qkv[..4], 4, 2, h), &cached(1, h), &cached(2, h), 0.0, &hide);
    gives(
        &model,
        &[x32(&[1, 1, 12], &qkv)],
        &[(&[1, 1, 4], &joined(&[each(0), each(1)])), (&[1, 2, 3, 2], &flat(&[cached(1, 0), cached(1, 1)]))],
    );
    let shared = Build::new()
        .input("x", F32, &["1", "1", "4"])
        .node(
            "DecoderMaskedMultiHeadAttention",
            &["x", "x", "x"],
            &["y"],
            &[int("num_heads", 2), int("past_present_share_buffer", 1)],
        )
        .outputs(&["y"]);
    refused(&bad(&shared.microsoft()), Code::UNSUPPORTED, &["share"]);
}

#[test]
fn quantized_attention_is_imported() {
    let x: Vec<i64> = (0..4).map(|i| 3 + 2 * i).collect();
    let w: Vec<i64> = (0..12).map(|i| (i * 7 % 11) - 5).collect();
    let model = Build::new()
        .input("x", DataType::Uint8, &["1", "2", "2"])
        .init(raw("w", DataType::Int8, &[2, 6], w.iter().map(|i| *i as i8 as u8).collect()))
        .init(f32s("b", &[6], &wave(6, 1)))
        .init(f32s("sx", &[], &[0.1]))
        .init(f32s("sw", &[6], &[0.1, 0.2, 0.3, 0.1, 0.2, 0.3]))
        .init(raw("zx", DataType::Uint8, &[], vec![4]))
        .node("QAttention", &["x", "w", "b", "sx", "sw", "", "zx"], &["y"], &[int("num_heads", 1)])
        .outputs(&["y"])
        .microsoft();
    let (scales, bias) = ([0.1, 0.2, 0.3, 0.1, 0.2, 0.3], wave(6, 1));
    let part = |p: usize| -> Matrix {
        let value = |t: usize, c: usize| {
            let sum: i64 = (0..2).map(|k| (x[2 * t + k] - 4) * w[6 * k + c]).sum();
            sum as f64 * 0.1 * scales[c] + f64::from(bias[c])
        };
        (0..2).map(|t| vec![value(t, 2 * p), value(t, 2 * p + 1)]).collect()
    };
    let want = joined(&[attend(&part(0), &part(1), &part(2), 0.0, &|_, _| 0.0)]);
    gives(&model, &[xint(DType::U8, &[1, 2, 2], &x)], &[(&[1, 2, 2], &want)]);
}

/// One case of grouped heads: four of queries and two of keys, of size 4, after a cache.
struct Grouped {
    tokens: usize,
    past: usize,
    room: usize,
    attrs: Vec<AttributeProto>,
    rotary: bool,
    sink: bool,
    window: usize,
    cap: f64,
}

impl Grouped {
    fn check(&self) {
        let Grouped { tokens, past, room, .. } = *self;
        let total = past + tokens;
        let (q, k, v) = (wave(16 * tokens, 1), wave(8 * tokens, 2), wave(8 * tokens, 3));
        let (old_k, old_v) = (wave(8 * room, 4), wave(8 * room, 5));
        let angles: Vec<f32> = (0..32).map(|i| i as f32 * 0.2).collect();
        let sinks = [0.5f32, -0.5, 1.0, 0.0];
        let (n, r) = (tokens.to_string(), room.to_string());
        let mut attrs = vec![int("num_heads", 4), int("kv_num_heads", 2)];
        attrs.extend(self.attrs.iter().cloned());
        let (cos, sin) = if self.rotary { ("cos", "sin") } else { ("", "") };
        let sink = if self.sink { "sink" } else { "" };
        let inputs = ["q", "k", "v", "pk", "pv", "last", "total", cos, sin, "", "", sink];
        let model = Build::new()
            .input("q", F32, &["1", &n, "16"])
            .input("k", F32, &["1", &n, "8"])
            .input("v", F32, &["1", &n, "8"])
            .input("pk", F32, &["1", "2", &r, "4"])
            .input("pv", F32, &["1", "2", &r, "4"])
            .input("last", I32, &["1"])
            .init(raw("total", I32, &[], (total as i32).to_le_bytes().to_vec()))
            .init(f32s("cos", &[16, 2], &angles.iter().map(|a| a.cos()).collect::<Vec<_>>()))
            .init(f32s("sin", &[16, 2], &angles.iter().map(|a| a.sin()).collect::<Vec<_>>()))
            .init(f32s("sink", &[4], &sinks))
            .node("GroupQueryAttention", &inputs, &["y", "present", "values"], &attrs)
            .outputs(&["y", "present"])
            .microsoft();

        let turn = |x: Matrix| -> Matrix {
            if !self.rotary {
                return x;
            }
            let turned = |(t, row): (usize, Vec<f64>)| {
                let angle = |i: usize| f64::from(angles[2 * (past + t) + i]);
                let mut y = vec![0.0; 4];
                for i in 0..2 {
                    y[i] = row[i] * angle(i).cos() - row[i + 2] * angle(i).sin();
                    y[i + 2] = row[i] * angle(i).sin() + row[i + 2] * angle(i).cos();
                }
                y
            };
            x.into_iter().enumerate().map(turned).collect()
        };
        let cache = |old: &[f32], new: Matrix, h: usize| -> Matrix {
            let mut rows = head(&old[4 * room * h..4 * room * (h + 1)], 4, 4, 0);
            rows.resize(room.max(total), vec![0.0; 4]);
            rows[past..total].clone_from_slice(&new);
            rows
        };
        let keys: Vec<Matrix> = (0..2).map(|h| cache(&old_k, turn(head(&k, 8, 4, h)), h)).collect();
        let values: Vec<Matrix> = (0..2).map(|h| cache(&old_v, head(&v, 8, 4, h), h)).collect();
        let each = |h: usize| {
            let (mut k, mut v) = (keys[h / 2][..total].to_vec(), values[h / 2][..total].to_vec());
            if self.sink {
                k.push(vec![0.0; 4]);
                v.push(vec![0.0; 4]);
            }
            let bias = |i: usize, j: usize| match j {
                _ if j == total => f64::from(sinks[h]),
                _ if j > past + i || past + i - j >= self.window => HIDDEN,
                _ => 0.0,
            };
            attend(&turn(head(&q, 16, 4, h)), &k, &v, self.cap, &bias)
        };
        let want = joined(&[each(0), each(1), each(2), each(3)]);
        let inputs = [
            x32(&[1, tokens, 16], &q),
            x32(&[1, tokens, 8], &k),
            x32(&[1, tokens, 8], &v),
            x32(&[1, 2, room, 4], &old_k),
            x32(&[1, 2, room, 4], &old_v),
            xint(DType::I32, &[1], &[total as i64 - 1]),
        ];
        let present = flat(&keys);
        gives(&model, &inputs, &[(&[1, tokens, 16], &want), (&[1, 2, room.max(total), 4], &present)]);
    }
}

#[test]
fn group_query_attention_updates_its_cache() {
    let base = |tokens, past, room| Grouped {
        tokens,
        past,
        room,
        attrs: vec![],
        rotary: false,
        sink: false,
        window: usize::MAX,
        cap: 0.0,
    };
    base(3, 0, 0).check();
    base(1, 2, 2).check();
    // A cache with room for more than there is.
    base(2, 2, 6).check();
    Grouped { rotary: true, attrs: vec![int("do_rotary", 1)], ..base(2, 3, 3) }.check();
    Grouped { window: 2, attrs: vec![int("local_window_size", 2)], ..base(3, 2, 2) }.check();
    Grouped { cap: 0.5, attrs: vec![float("softcap", 0.5)], ..base(2, 1, 1) }.check();
    Grouped { sink: true, ..base(2, 1, 1) }.check();
}

#[test]
fn rotary_embeddings_are_imported() {
    let (x, cache) = (wave(12, 1), wave(8, 2));
    let model = Build::new()
        .input("x", F32, &["1", "3", "4"])
        .input("first", I64, &["1"])
        .init(f32s("cos", &[4, 1], &cache[..4]))
        .init(f32s("sin", &[4, 1], &cache[4..]))
        .init(i64s("at", &[1, 3], &[3, 0, 2]))
        .node("RotaryEmbedding", &["x", "at", "cos", "sin"], &["y"], &[])
        .node(
            "RotaryEmbedding",
            &["x", "first", "cos", "sin"],
            &["z"],
            &[int("num_heads", 1), int("rotary_embedding_dim", 2)],
        )
        .outputs(&["y", "z"])
        .microsoft();
    let pair = |t: usize, at: usize, i: usize| {
        let (a, b) = (f64::from(x[4 * t + i]), f64::from(x[4 * t + i + 1]));
        let (c, s) = (f64::from(cache[at]), f64::from(cache[4 + at]));
        [a * c - b * s, a * s + b * c]
    };
    let y: Vec<f64> =
        [3, 0, 2].iter().enumerate().flat_map(|(t, at)| [pair(t, *at, 0), pair(t, *at, 2)]).flatten().collect();
    let rest = |t: usize| [f64::from(x[4 * t + 2]), f64::from(x[4 * t + 3])];
    let z: Vec<f64> = (0..3).flat_map(|t| [pair(t, t + 1, 0), rest(t)]).flatten().collect();
    let d: &[usize] = &[1, 3, 4];
    gives(&model, &[x32(d, &x), Tensor::from_i64s(&[1])], &[(d, &y), (d, &z)]);
}

#[test]
fn relative_position_biases_are_imported() {
    let (table, q, w, rel) = (wave(8, 1), wave(4, 2), wave(4, 3), wave(4, 4));
    let model = Build::new()
        .input("table", F32, &["4", "2"])
        .input("q", F32, &["1", "2", "2"])
        .init(i64s("n", &[], &[3]))
        .init(f32s("qb", &[2], &[0.5, -0.5]))
        .init(f32s("rel", &[1, 1, 2, 2], &rel))
        .init(f32s("w", &[2, 2], &w))
        .init(f32s("b", &[2], &[0.1, 0.2]))
        .init(f32s("eco", &[1, 1, 1, 1], &[1.5]))
        .node(
            "RelativePositionBias",
            &["table", "n", "n"],
            &["both"],
            &[int("max_distance", 8), int("is_bidirectional", 1)],
        )
        .node("RelativePositionBias", &["table", "n", "n"], &["back"], &[int("max_distance", 8)])
        .node("GatedRelativePositionBias", &["q", "qb", "rel", "w", "b", "eco"], &["gated"], &[int("num_heads", 1)])
        .outputs(&["both", "back", "gated"])
        .microsoft();
    // Four buckets: of two for each direction one is exact; of four for one direction two are.
    let both = |q: i64, k: i64| usize::from(k > q) * 2 + usize::from(k != q);
    let back = |q: i64, k: i64| (q - k).clamp(0, 2) as usize;
    let grid = |bucket: &dyn Fn(i64, i64) -> usize| -> Vec<f64> {
        let at = |h: usize, i: i64| f64::from(table[4 * h + bucket(i / 3, i % 3)]);
        (0..2).flat_map(|h| (0..9).map(move |i| (h, i))).map(|(h, i)| at(h, i)).collect()
    };
    let mut gated = Vec::new();
    for i in 0..2 {
        let x = [f64::from(q[2 * i]) + 0.5, f64::from(q[2 * i + 1]) - 0.5];
        let gate = |c: usize, b: f64| {
            let y = x[0] * f64::from(w[c]) + x[1] * f64::from(w[2 + c]) + b;
            1.0 / (1.0 + (-y).exp())
        };
        let scale = gate(0, 0.1) * (gate(1, 0.2) * 1.5 - 1.0) + 2.0;
        gated.extend((0..2).map(|j| scale * f64::from(rel[2 * i + j])));
    }
    gives(
        &model,
        &[x32(&[4, 2], &table), x32(&[1, 2, 2], &q)],
        &[(&[1, 2, 3, 3], &grid(&both)), (&[1, 2, 3, 3], &grid(&back)), (&[1, 1, 2, 2], &gated)],
    );
}
