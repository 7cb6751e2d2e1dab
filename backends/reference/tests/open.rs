//! Native code with data-dependent extents, against the interpreter.

use std::sync::Arc;

use of_codegen::Isa;
use of_codegen::{CompileOptions, Target};
use of_ir::{DType, Module, Tensor, text};
use of_ops::sample::Rng;
use of_ops::{Value, interpret};
use of_reference::{Reference, from_runtime, to_runtime};
use of_runtime::{Options, RunError, Session};
use of_test_support::compare::{Tolerance, assert_close};
use of_test_support::plans as support;

/// A program on the host, and on the emulated GPU where there is one.
struct Case {
    module: Module,
    sessions: Vec<(&'static str, Session)>,
    /// Ops without native code.
    not_native: Vec<String>,
}

impl Case {
    fn new(source: &str) -> Case {
        let parse = || text::parse_module(source, "test", &of_ops::registry(), None).unwrap_or_else(|d| panic!("{d}"));
        let main = support::after_passes(parse());
        let isas = [Isa::by_name("x86-64").filter(|i| i.arch == std::env::consts::ARCH), support::emulated_gpu()];
        let (mut sessions, mut not_native) = (Vec::new(), Vec::new());
        for isa in [Some(Isa::host())].into_iter().chain(isas).flatten() {
            let options = CompileOptions::new(Target::new(isa, &[&Reference]), support::cache());
            let compiled = support::compile_for(&main, &options).unwrap_or_else(|d| panic!("{d}"));
            not_native = compiled.summary.not_native.iter().map(|l| l.op.clone()).collect();
            let plan = Arc::new(compiled.open().unwrap_or_else(|d| panic!("{d}")));
            let options = Options { threads: 2, profile: false, ..Default::default() };
            sessions.push((isa.name, Session::new(plan, 0, options, &[Arc::new(Reference)]).unwrap()));
        }
        Case { module: parse(), sessions, not_native }
    }

    /// Compares a run with the interpreter's on the function as it was written.
    fn check(&mut self, what: &str, inputs: &[Value]) {
        let main = self.module.main().unwrap();
        let want = interpret::run_graph(&main.graph, inputs).unwrap_or_else(|d| panic!("{what}: {d}"));
        for (isa, session) in &mut self.sessions {
            let got = run(session, inputs).unwrap_or_else(|e| panic!("{what} on {isa}: {e}"));
            assert_close(&format!("{what} on {isa}"), &got, &want, Tolerance::elementwise(1e-5));
        }
    }

    /// The error of the host run for the inputs.
    fn refused(&mut self, inputs: &[Value]) -> String {
        run(&mut self.sessions[0].1, inputs).expect_err("the run was not refused").to_string()
    }
}

fn run(session: &mut Session, inputs: &[Value]) -> Result<Vec<Value>, RunError> {
    let results = session.run(inputs.iter().map(|v| to_runtime(v).unwrap()).collect())?;
    Ok(results.iter().map(|v| from_runtime(v).unwrap()).collect())
}

fn ints(values: &[i64]) -> Value {
    Tensor::from_i64s(values).into()
}

#[test]
fn sequences_appended_in_loops_are_stacked() {
    let text = |init: &str, ty: &str| {
        format!(
            "func @main(%x: tensor<?(n)x4xf32>, %trips: tensor<i64>, %start: tensor<?(m)x4xf32>) -> (tensor<?(k)x4xf32>, tensor<i64>) {{
  %none = of.none
  %zero = of.constant {{value = dense<0> : tensor<i64>}}
  %axis = of.constant {{value = dense<[0]> : tensor<1xi64>}}
  %empty = of.constant {{value = dense<> : tensor<0x4xf32>}}
  %all, %count = of.loop %trips, %none, %{init}, %zero : (tensor<i64>, none, {ty}, tensor<i64>) -> (tensor<?(k)x4xf32>, tensor<i64>) {{
  ^bb0(%i: tensor<i64>, %c: tensor<i1>, %v: tensor<?(a)x4xf32>, %s: tensor<i64>):
    %row = of.gather %x, %i {{axis = 0}}
    %t = of.tanh %row
    %part = of.unsqueeze %t, %axis
    %next = of.concat %v, %part {{axis = 0}}
    %more = of.add %s, %i
    of.yield %c, %next, %more
  }}
  of.return %all, %count
}}
"
        )
    };
    let mut r = Rng::new(5);
    for (init, ty) in [("empty", "tensor<0x4xf32>"), ("start", "tensor<?(m)x4xf32>")] {
        let mut case = Case::new(&text(init, ty));
        for (n, trips, m) in [(3, 3, 2), (7, 4, 0), (5, 0, 3), (5, 0, 0), (1, 1, 1)] {
            let trips = Tensor::scalar(trips as i64).into();
            case.check(&format!("{init}: {n} rows, {trips:?}, {m}"), &[r.f32s(&[n, 4]), trips, r.f32s(&[m, 4])]);
        }
    }
}

/// Computed sizes: native code produces tensors of the right extents.
#[test]
fn sizes_in_memory_bind_shape_symbols() {
    let mut case = Case::new(
        "func @main(%x: tensor<1x3xf32>, %s: tensor<2xi64>) -> (tensor<?x?x3xf32>, tensor<?x?xf32>) {
  %two = of.constant {value = dense<[2]> : tensor<1xi64>}
  %three = of.constant {value = dense<[3]> : tensor<1xi64>}
  %doubled = of.mul %s, %two
  %to = of.concat %doubled, %three {axis = 0}
  %y = of.expand %x, %to
  %zeros = of.constant_of_shape %s {value = dense<[7.0]> : tensor<1xf32>}
  of.return %y, %zeros
}
",
    );
    assert_eq!(case.not_native, ["of.expand", "of.expand"], "the empty tensors that tell the extents");
    let mut r = Rng::new(5);
    for (a, b) in [(2, 3), (1, 1), (0, 4), (5, 0)] {
        case.check(&format!("{a}, {b}"), &[r.f32s(&[1, 3]), ints(&[a, b])]);
    }
    let why = case.refused(&[r.f32s(&[1, 3]), ints(&[-2, 3])]);
    assert!(why.contains("-2") || why.contains("-4"), "{why}");
}

/// Extents of inputs from which symbols follow, or which are symbols as a whole.
#[test]
fn arithmetic_in_extents_of_inputs_binds_symbols() {
    let mut case = Case::new(
        "func @main(%x: tensor<?(b)x3x?(4*h)x?(w + 1)xf32>, %t: tensor<?(b*s)x5xf32>, %u: tensor<?(p*q)xf32>) -> (tensor<?x3x?x?xf32>, tensor<?x?x5xf32>, tensor<?xf32>, tensor<4xi64>) {
  %p = of.max_pool %x {kernel = array<i64: 2, 2>, strides = array<i64: 2, 2>, pads = array<i64>, dilations = array<i64>, ceil_mode = true, storage_order = 0, return_indices = false, auto_pad = \"NOTSET\", channels_last = false}
  %a = of.avg_pool %p {kernel = array<i64: 3, 2>, strides = array<i64: 1, 2>, pads = array<i64: 1, 0, 1, 1>, dilations = array<i64>, ceil_mode = true, count_include_pad = false, auto_pad = \"NOTSET\", channels_last = false}
  %batch = of.shape %x {start = 0, end = 1}
  %rest = of.constant {value = dense<[-1, 5]> : tensor<2xi64>}
  %to = of.concat %batch, %rest {axis = 0}
  %r = of.reshape %t, %to {allowzero = false}
  %v = of.tanh %u
  %dims = of.shape %x
  of.return %a, %r, %v, %dims
}
",
    );
    assert!(case.not_native.is_empty(), "{:?}", case.not_native);
    let mut r = Rng::new(5);
    for (b, h, w, s, u) in [(1, 1, 3, 2, 6), (3, 2, 8, 1, 1), (2, 5, 6, 7, 35)] {
        let inputs = [r.f32s(&[b, 3, 4 * h, w + 1]), r.f32s(&[b * s, 5]), r.f32s(&[u])];
        case.check(&format!("{b} {h} {w} {s} {u}"), &inputs);
    }
    let why = case.refused(&[r.f32s(&[1, 3, 6, 4]), r.f32s(&[2, 5]), r.f32s(&[1])]);
    assert!(why.contains("has extent 6 at dimension 2"), "{why}");
    let why = case.refused(&[r.f32s(&[2, 3, 4, 4]), r.f32s(&[3, 5]), r.f32s(&[1])]);
    assert!(why.contains("has extent 3 at dimension 0"), "{why}");
}

#[test]
fn reshapes_to_computed_shapes_agree_with_the_interpreter() {
    for (allowzero, shapes) in [
        (false, vec![[-1, 3], [0, 6], [0, -1], [3, -1], [12, 2], [24, 1], [1, 24]]),
        (true, vec![[-1, 3], [4, 6], [2, -1]]),
    ] {
        let mut case = Case::new(&format!(
            "func @main(%x: tensor<?(n)x6xf32>, %s: tensor<2xi64>) -> (tensor<?x?xf32>) {{
  %t = of.tanh %x
  %y = of.reshape %t, %s {{allowzero = {allowzero}}}
  %z = of.exp %y
  of.return %z
}}
"
        ));
        assert_eq!(case.not_native, ["of.expand"], "the empty tensor that tells the extents");
        let mut r = Rng::new(6);
        for shape in shapes {
            case.check(&format!("{shape:?}"), &[r.f32s(&[4, 6]), ints(&shape)]);
        }
        for shape in [[5, -1], [-1, -1], [7, 7]] {
            case.refused(&[r.f32s(&[4, 6]), ints(&shape)]);
        }
        if allowzero {
            case.check("nothing", &[r.f32s(&[0, 6]), ints(&[0, 3])]);
        }
    }
}

#[test]
fn pads_with_computed_values_agree_with_the_interpreter() {
    for ty in ["f32", "ui8", "i64"] {
        let mut case = Case::new(&format!(
            "func @main(%x: tensor<2x?(n)x{ty}>, %v: tensor<{ty}>) -> (tensor<?x?x{ty}>) {{
  %none = of.none
  %pads = of.constant {{value = dense<[1, 2, 0, 3]> : tensor<4xi64>}}
  %y = of.pad %x, %pads, %v, %none {{mode = \"constant\"}}
  of.return %y
}}
"
        ));
        assert!(case.not_native.is_empty(), "{ty}: {:?}", case.not_native);
        let dtype = DType::from_mlir_name(ty).unwrap();
        let mut r = Rng::new(8);
        for n in [1, 7, 0] {
            let value = r.tensor(dtype, &[], 1.0, 9.0).into();
            case.check(&format!("{n} of {ty}"), &[r.tensor(dtype, &[2, n], 0.0, 9.0).into(), value]);
        }
    }
}

#[test]
fn resizing_to_computed_sizes_agrees_with_the_interpreter() {
    let modes = ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"];
    let rounding = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"];
    let mut r = Rng::new(9);
    for (i, (mode, transform)) in ["nearest", "linear", "cubic"].iter().flat_map(|m| modes.map(|t| (m, t))).enumerate()
    {
        let nearest = rounding[i % 4];
        let mut case = Case::new(&format!(
            "func @main(%x: tensor<?(n)x2x5x?(w)xf32>, %s: tensor<2xi64>) -> (tensor<?(n)x2x?x?xf32>) {{
  %none = of.none
  %y = of.resize %x, %none, %none, %s {{mode = \"{mode}\", coordinate_transformation_mode = \"{transform}\", nearest_mode = \"{nearest}\", cubic_coeff_a = -0.75, antialias = false, exclude_outside = false, extrapolation_value = 0.0, keep_aspect_ratio_policy = \"stretch\", axes = array<i64: 2, 3>}}
  of.return %y
}}
"
        ));
        assert_eq!(case.not_native, ["of.expand"], "{mode} {transform}");
        for (n, w, a, b) in [(1, 7, 9, 4), (2, 3, 5, 3), (1, 1, 1, 6), (1, 4, 13, 1), (2, 6, 0, 3)] {
            let what = format!("{mode} {transform} {nearest}: {n}x2x5x{w} to {a}x{b}");
            case.check(&what, &[r.f32s(&[n, 2, 5, w]), ints(&[a, b])]);
        }
    }
}

/// Elements of weight zero take no part: infinities and NaN reach the results that interpolate them, and no others. With
/// fixed extents, tables list elements and weights; with open ones, the kernel computes them.
#[test]
fn resizing_keeps_infinities() {
    let (up, down) = (f32::INFINITY, f32::NEG_INFINITY);
    let samples: [[f32; 6]; 3] =
        [[1., 2., up, 4., 5., down], [up, down, 1., 2., 3., 4.], [f32::NAN, 1., 2., 3., up, 5.]];
    for mode in ["nearest", "linear", "cubic"] {
        for input in ["?(n)x?(w)", "3x2"] {
            for (scales, columns) in [("2.0, 1.0", 2), ("2.0, 3.0", 6)] {
                let output = if input == "3x2" { format!("6x{columns}") } else { "?x?".into() };
                let mut case = Case::new(&format!(
                    "func @main(%x: tensor<{input}xf32>) -> (tensor<{output}xf32>) {{
  %none = of.none
  %scales = of.constant {{value = dense<[{scales}]> : tensor<2xf32>}}
  %y = of.resize %x, %none, %scales, %none {{mode = \"{mode}\", coordinate_transformation_mode = \"asymmetric\", nearest_mode = \"floor\", cubic_coeff_a = -0.75, antialias = false, exclude_outside = false, extrapolation_value = 0.0, keep_aspect_ratio_policy = \"stretch\"}}
  of.return %y
}}
"
                ));
                assert!(case.not_native.is_empty(), "{:?}", case.not_native);
                for x in samples {
                    let what = format!("{mode}, {input}, {scales}, {x:?}");
                    case.check(&what, &[Tensor::from_slice(&[3, 2], &x).unwrap().into()]);
                }
            }
        }
    }
}

#[test]
fn roi_ops_of_many_channels_agree_with_the_interpreter() {
    let mut r = Rng::new(11);
    for (mode, ratio, transform) in
        [("avg", 2, "half_pixel"), ("max", 0, "output_half_pixel"), ("avg", 0, "half_pixel")]
    {
        let mut case = Case::new(&format!(
            "func @main(%x: tensor<2x100x6x?(w)xf32>, %rois: tensor<?(r)x4xf32>, %batch: tensor<?(r)xi64>) -> (tensor<?(r)x100x3x2xf32>) {{
  %y = of.roi_align %x, %rois, %batch {{mode = \"{mode}\", output_height = 3, output_width = 2, sampling_ratio = {ratio}, spatial_scale = 0.5, coordinate_transformation_mode = \"{transform}\", channels_last = false}}
  of.return %y
}}
"
        ));
        assert!(case.not_native.is_empty(), "{:?}", case.not_native);
        for n in [0, 1, 4] {
            let corners = r.tensor(DType::F32, &[n, 4], -4.0, 16.0);
            let batch = r.tensor(DType::I64, &[n], -2.0, 2.0);
            case.check(&format!("{mode}, {n} boxes"), &[r.f32s(&[2, 100, 6, 7]), corners.into(), batch.into()]);
        }
        let why = case.refused(&[r.f32s(&[2, 100, 6, 7]), r.f32s(&[1, 4]), ints(&[2])]);
        assert!(why.contains("out of range"), "{why}");
    }
}

#[test]
fn integers_are_reduced() {
    let mut r = Rng::new(13);
    for (op, dtype) in ["max", "min", "sum", "prod"].iter().zip(["i64", "i8", "i32", "ui8"]) {
        let mut case = Case::new(&format!(
            "func @main(%x: tensor<?(n)x3x4x{dtype}>) -> (tensor<?(n)x1x1x{dtype}>, tensor<1x3x4x{dtype}>, tensor<{dtype}>) {{
  %none = of.none
  %inner = of.constant {{value = dense<[1, 2]> : tensor<2xi64>}}
  %outer = of.constant {{value = dense<[0]> : tensor<1xi64>}}
  %a = of.reduce_{op} %x, %inner {{keepdims = true}}
  %b = of.reduce_{op} %x, %outer {{keepdims = true}}
  %c = of.reduce_{op} %x, %none {{keepdims = false}}
  of.return %a, %b, %c
}}
"
        ));
        let dtype = DType::ALL.into_iter().find(|d| d.to_string() == dtype).unwrap();
        for n in [0, 1, 5] {
            case.check(&format!("{op} of {n}"), &[r.tensor(dtype, &[n, 3, 4], 0.0, 120.0).into()]);
        }
    }
}

/// Gather and scatter of rows, data-dependent indices, convolutions with a symbolic batch.
#[test]
fn rows_are_gathered_convolved_and_scattered() {
    let mut case = Case::new(
        "func @main(%x: tensor<?(n)x32x14x14xf32>, %keep: tensor<?(n)xi1>) -> (tensor<?(n)x32x14x14xf32>) {
  %axes = of.constant {value = dense<[0]> : tensor<1xi64>}
  %found = of.nonzero %keep
  %rows = of.squeeze %found, %axes
  %some = of.gather %x, %rows {axis = 0}
  %w2 = of.constant {value = dense<0.01> : tensor<32x32x3x3xf32>}
  %none = of.none
  %y = of.conv %some, %w2, %none {strides = [1, 1], pads = [1, 1, 1, 1], dilations = [1, 1], group = 1, auto_pad = \"NOTSET\", channels_last = false}
  %shape = of.shape %y
  %minus = of.constant {value = dense<-1> : tensor<4xi64>}
  %ones = of.constant {value = dense<1> : tensor<4xi64>}
  %asked = of.eq %shape, %minus
  %to = of.select %asked, %ones, %shape
  %column = of.constant {value = dense<[-1, 1, 1, 1]> : tensor<4xi64>}
  %tall = of.reshape %rows, %column {allowzero = false}
  %wide = of.expand %tall, %to
  %all = of.shape %x
  %zeros = of.constant_of_shape %all {value = dense<[0.0]> : tensor<1xf32>}
  %z = of.scatter_elements %zeros, %wide, %y {axis = 0, reduction = \"none\"}
  of.return %z
}
",
    );
    assert_eq!(case.not_native, ["of.nonzero"]);
    let mut r = Rng::new(17);
    for n in [1, 4, 0] {
        let keep = r.tensor(DType::Bool, &[n], 0.0, 1.0);
        case.check(&format!("{n} images"), &[r.f32s(&[n, 32, 14, 14]), keep.into()]);
    }
}

/// A tensor of fixed extents viewed with input-dependent extents: returned, read, and rejected if they differ.
#[test]
fn fixed_extents_are_viewed_as_symbolic_extents() {
    let mut r = Rng::new(17);
    let mut case = Case::new(
        "func @main(%s: tensor<?(C)x?(D)xf32>, %x: tensor<3x4xf32>) -> (tensor<?(C)x?(D)xf32>, tensor<?(C)xf32>) {
  %e = of.exp %x
  %n = of.shape %s
  %g = of.reshape %e, %n {allowzero = true} : (tensor<3x4xf32>, tensor<2xi64>) -> tensor<?(C)x?(D)xf32>
  %axes = of.constant {value = dense<[1]> : tensor<1xi64>}
  %sums = of.reduce_sum %g, %axes {keepdims = false}
  of.return %g, %sums
}
",
    );
    for dims in [[12, 1], [2, 6], [4, 3]] {
        case.check(&format!("{dims:?}"), &[r.f32s(&dims), r.f32s(&[3, 4])]);
    }
    case.refused(&[r.f32s(&[2, 5]), r.f32s(&[3, 4])]);
}

/// Extents of inputs may be functions of symbols, which the run solves for the symbols.
#[test]
fn computed_extents_have_native_code() {
    let mut r = Rng::new(17);
    let pools = "auto_pad = \"NOTSET\", channels_last = false, dilations = [1, 1], kernel = [2, 3], strides = [2, 2]";
    for (pads, ceil, include) in
        [([0; 4], false, true), ([1, 1, 0, 1], false, false), ([1, 1, 1, 1], true, true), ([0, 1, 1, 0], true, false)]
    {
        let mut case = Case::new(&format!(
            "func @main(%x: tensor<?(b)x3x?(h*4)x?(w*2 + 1)xf32>) -> (tensor<?x3x?x?xf32>, tensor<?x3x?x?xf32>) {{
  %a = of.avg_pool %x {{{pools}, pads = {pads:?}, ceil_mode = {ceil}, count_include_pad = {include}}}
  %m = of.max_pool %x {{{pools}, pads = {pads:?}, ceil_mode = {ceil}, return_indices = false, storage_order = 0}}
  of.return %a, %m
}}
"
        ));
        assert!(case.not_native.is_empty(), "{:?}", case.not_native);
        for (b, h, w) in [(1, 1, 1), (2, 3, 4), (1, 2, 20)] {
            let what = format!("{pads:?}, {ceil}, {include}: {b}, {h}, {w}");
            case.check(&what, &[r.f32s(&[b, 3, 4 * h, 2 * w + 1])]);
        }
        let why = case.refused(&[r.f32s(&[1, 3, 6, 3])]);
        assert!(why.contains("has extent 6 at dimension 2, which `4*h` never is"), "{why}");
    }
}

#[test]
fn reductions_of_computed_extents_have_native_code() {
    let mut r = Rng::new(19);
    for (op, axes, rank) in [("sum", "1", "?x?"), ("max", "0", "?x?"), ("sum", "0, 2", "?"), ("min", "1, 2", "?")] {
        let mut case = Case::new(&format!(
            "func @main(%x: tensor<?(n + 1)x?(n*2)x?(b*s)xf32>, %y: tensor<?(b)x4xf32>) -> (tensor<{rank}xf32>, tensor<?(b)x4xf32>) {{
  %axes = of.constant {{value = dense<[{axes}]> : tensor<{}xi64>}}
  %a = of.reduce_{op} %x, %axes {{keepdims = false}}
  %t = of.tanh %y
  of.return %a, %t
}}
",
            axes.split(',').count()
        ));
        assert!(case.not_native.is_empty(), "{op} {axes}: {:?}", case.not_native);
        for (n, b, s) in [(1, 1, 1), (3, 2, 5), (8, 3, 7)] {
            let inputs = [r.f32s(&[n + 1, 2 * n, b * s]), r.f32s(&[b, 4])];
            case.check(&format!("{op} {axes}: {n}, {b}, {s}"), &inputs);
        }
        let why = case.refused(&[r.f32s(&[2, 4, 3]), r.f32s(&[3, 4])]);
        assert!(why.contains("and must have 2"), "{why}");
    }
}

/// The first result, a number, is no row of the product's operand.
#[test]
fn products_read_results_of_control_flow() {
    let mut case = Case::new(
        "func @main(%c: tensor<i1>, %s: tensor<f32>, %x: tensor<4x8xf32>, %v: tensor<8x5xf32>) -> (tensor<f32>, tensor<4x5xf32>) {
  %number, %rows = of.if %c : (tensor<i1>) -> (tensor<f32>, tensor<4x8xf32>) {
    %a = of.exp %s
    %b = of.tanh %x
    of.yield %a, %b
  }, {
    of.yield %s, %x
  }
  %y = of.matmul %rows, %v
  of.return %number, %y
}
",
    );
    let mut r = Rng::new(23);
    for c in [1, 0] {
        let c = Tensor::from_elements(DType::Bool, vec![], of_ir::Elements::Int(vec![c])).unwrap();
        case.check("a branch", &[c.into(), r.f32s(&[]), r.f32s(&[4, 8]), r.f32s(&[8, 5])]);
    }
}
