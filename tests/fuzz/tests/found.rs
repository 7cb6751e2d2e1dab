//! Minimized graphs of bugs that the fuzzer found.

use of_codegen::CpuCode;
use of_fuzz::Case;
use of_fuzz::check::{Compiler, Ran, native, passes};
use of_fuzz::open::Opening;
use of_ir::text::parse_module;
use of_ops::Value;
use of_ops::sample::Rng;

/// All checks of the function `text` on random inputs. Returns what ran.
fn holds(text: &str, opening: Opening) -> Ran {
    let module = parse_module(text, "found.of", &of_ops::registry(), None).unwrap_or_else(|e| panic!("{e}"));
    let func = module.main().unwrap().clone();
    let mut rng = Rng::new(1);
    let value = |ty: of_ir::Type| {
        let t = ty.as_tensor().unwrap();
        Value::from(rng.tensor(t.dtype, &t.fixed_dims().unwrap(), 0.0, 2.0))
    };
    let inputs = func.input_types().into_iter().map(value).collect();
    let case = Case { func, inputs, opening };
    let checked = passes(&case).unwrap_or_else(|f| panic!("{f:?}\n{text}"));
    let ran = [CpuCode::Machine, CpuCode::C].map(|cpu_code| {
        let ran = native(&[(&case, &checked)], &Compiler::new(cpu_code), &mut |_| ());
        ran.unwrap_or_else(|(_, f)| panic!("{cpu_code:?}: {f:?}\n{text}"))
    });
    assert_eq!(ran[0], ran[1]);
    ran[0]
}

/// A sequence without steps: its states still have a batch.
#[test]
fn empty_scans_keep_their_other_extents() {
    let text = "
func @main(%q: tensor<3x0x2xf32>, %k: tensor<3x0x2xf32>, %v: tensor<3x0x4xf32>) -> (tensor<3x0x4xf32>, tensor<3x2x1x2xf32>) {
  %y, %s = of.linear_attention %q, %k, %v {kv_num_heads = 2, q_num_heads = 2, scale = 0.0, update_rule = \"linear\"}
  of.return %y, %s
}";
    holds(text, Opening::Closed);
    holds(text, Opening::First);
    holds(text, Opening::Shared);
}

/// A product of a sum and, through a reshape, another value of the same kernel.
#[test]
fn values_read_through_a_reshape_are_computed_first() {
    let text = "
func @main(%x: tensor<1xf32>) -> (tensor<1xf32>) {
  %axis = of.constant {value = dense<[0]> : tensor<1xi64>}
  %scalar = of.constant {value = dense<> : tensor<0xi64>}
  %sum = of.reduce_sum %x, %axis {keepdims = true}
  %root = of.exp %sum
  %alias = of.reshape %root, %scalar {allowzero = true}
  %y = of.mul %alias, %sum
  of.return %y
}";
    holds(text, Opening::Closed);
}

/// An axis of extent 1 is removed: a tensor becomes a scalar.
#[test]
fn tensors_of_one_element_reshape_to_scalars() {
    let text = "
func @main(%x: tensor<1xf32>) -> (tensor<f32>) {
  %axis = of.constant {value = dense<[-1]> : tensor<1xi64>}
  %y = of.squeeze %x, %axis
  of.return %y
}";
    holds(text, Opening::Apart);
}

/// A result without elements still has the shape of the operation, or the run is rejected.
#[test]
fn extent_one_broadcasts_to_zero() {
    for op in ["of.mul", "of.max"] {
        let text = format!(
            "
func @main(%a: tensor<1x0xf32>, %b: tensor<0x0xf32>) -> (tensor<0x0xf32>, tensor<0x0xf32>) {{
  %c = {op} %a, %b
  %d = {op} %b, %a
  of.return %c, %d
}}"
        );
        holds(&text, Opening::Apart);
    }
}

/// Cumulative sums of empty axes are empty.
#[test]
fn cumulative_sums_of_empty_axes_are_empty() {
    let text = "
func @main(%x: tensor<0x3xf32>) -> (tensor<0x3xf32>) {
  %axis = of.constant {value = dense<0> : tensor<i64>}
  %y = of.cum_sum %x, %axis {exclusive = true, reverse = true}
  of.return %y
}";
    holds(text, Opening::Apart);
}

/// Negative padding that removes all elements leaves nothing to mirror.
#[test]
fn negative_pads_may_remove_all_elements() {
    let text = r#"
func @main(%x: tensor<2xf32>) -> (tensor<1xf32>) {
  %pads = of.constant {value = dense<-1> : tensor<2xi64>}
  %none = of.none
  %axis = of.constant {value = dense<[0]> : tensor<1xi64>}
  %empty = of.pad %x, %pads, %none, %axis {mode = "reflect"}
  %y = of.reduce_sum %empty, %axis {keepdims = true}
  of.return %y
}"#;
    holds(text, Opening::Shared);
}

/// The noisy runs of the reference round in every step of a sequence, as native code does.
#[test]
fn recurrent_layers_round_in_every_step() {
    let text = r#"
func @main(%x: tensor<3x2x2xf32>, %w: tensor<2x9x2xf32>, %r: tensor<2x9x3xf32>, %b: tensor<2x18xf32>) -> (tensor<3x2x2x3xf32>) {
  %none = of.none
  %y, %last = of.gru %x, %w, %r, %b, %none, %none {activation_alpha = array<f64>, activation_beta = array<f64>, activations = #of.strs<[]>, direction = "bidirectional", layout = 0, linear_before_reset = false}
  of.return %y
}"#;
    holds(text, Opening::Closed);
}

/// Peepholes are known by their direction, though the number of directions is open.
#[test]
fn lstm_peepholes_accept_symbolic_extents() {
    let text = r#"
func @main(%x: tensor<2x1x1xf32>, %w: tensor<1x4x1xf32>, %r: tensor<1x4x1xf32>, %b: tensor<1x8xf32>, %c: tensor<2x1x1xf32>, %p: tensor<1x3xf32>) -> (tensor<2x1x1x1xf32>) {
  %none = of.none
  %y, %h, %last = of.lstm %x, %w, %r, %b, %none, %none, %c, %p {activation_alpha = array<f64>, activation_beta = array<f64>, activations = #of.strs<[]>, clip = 1.5, direction = "forward", input_forget = false, layout = 1}
  of.return %y
}"#;
    holds(text, Opening::First);
}

/// An empty input has a transposed convolution, though no window fits into it.
#[test]
fn transposed_convolutions_of_empty_inputs_are_zero() {
    let text = r#"
func @main(%x: tensor<2x3x0xf32>) -> (tensor<2x4x0xf32>) {
  %w = of.constant {value = dense<1.0> : tensor<3x4x1xf32>}
  %y = of.conv_transpose %x, %w {auto_pad = "SAME_UPPER", channels_last = false, dilations = array<i64>, group = 1, output_padding = [0], output_shape = array<i64>, pads = [1, 1], strides = [2]}
  of.return %y
}"#;
    holds(text, Opening::Closed);
}

/// The sign of NaN is irrelevant: `log` may return either.
#[test]
fn max_ignores_the_sign_of_nan() {
    let text = r#"
func @main(%x: tensor<3xf32>) -> (tensor<2xi64>) {
  %k = of.constant {value = dense<[2]> : tensor<1xi64>}
  %minus = of.constant {value = dense<-9.0> : tensor<f32>}
  %below = of.sub %minus, %x
  %y = of.log %below
  %values, %at = of.top_k %y, %k {axis = 0, largest = true, sorted = true}
  of.return %at
}"#;
    holds(text, Opening::Closed);
}

/// Without channels there are no phases.
#[test]
fn transposed_convolutions_to_zero_channels_are_empty() {
    let text = r#"
func @main(%x: tensor<2x3x4xf32>) -> (tensor<2x0x8xf32>) {
  %w = of.constant {value = dense<> : tensor<3x0x2xf32>}
  %y = of.conv_transpose %x, %w {auto_pad = "NOTSET", channels_last = false, dilations = [1], group = 1, output_padding = array<i64>, output_shape = array<i64>, pads = array<i64>, strides = [2]}
  of.return %y
}"#;
    holds(text, Opening::Closed);
}

/// A phase with fewer taps than another must not multiply by padding zeros: infinity would become NaN.
#[test]
fn transposed_convolutions_propagate_infinity() {
    for (kernel, dilation) in [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2), (3, 3), (4, 2), (5, 1)] {
        let reach = (kernel - 1) * dilation + 1;
        let (height, width) = (2 * 2 + reach, 3 * 3 + reach);
        let text = format!(
            r#"
func @main(%x: tensor<1x3x4x2xf32>) -> (tensor<1x{height}x{width}x3xf32>) {{
  %zero = of.constant {{value = dense<0.0> : tensor<f32>}}
  %most = of.constant {{value = dense<1.7> : tensor<f32>}}
  %above = of.gt %x, %most
  %infinite = of.div %x, %zero
  %far = of.select %above, %infinite, %x
  %w = of.constant {{value = dense<-1.25> : tensor<2x3x{kernel}x{kernel}xf32>}}
  %b = of.constant {{value = dense<[0.5, 1.5, 2.5]> : tensor<3xf32>}}
  %y = of.conv_transpose %far, %w, %b {{auto_pad = "NOTSET", channels_last = true, dilations = [{dilation}, {dilation}], group = 1, output_padding = array<i64>, output_shape = array<i64>, pads = array<i64>, strides = [2, 3]}}
  of.return %y
}}"#
        );
        holds(&text, Opening::Closed);
        holds(&text, Opening::First);
    }
}

/// Outputs that are cropped at either end are not computed, whole strides of them.
#[test]
fn transposed_convolutions_crop_their_result() {
    for (kernel, stride, before, after) in
        [(3, 1, 1, 1), (3, 1, 2, 0), (3, 1, 0, 2), (3, 1, 3, 1), (3, 2, 1, 1), (4, 2, 3, 2), (5, 3, 4, 4), (2, 3, 3, 1)]
    {
        let extent = |n: i64| stride * (n - 1) + kernel - before - after;
        let (height, width) = (extent(6), extent(5));
        let text = format!(
            r#"
func @main(%x: tensor<2x3x6x5xf32>, %w: tensor<3x4x{kernel}x{kernel}xf32>) -> (tensor<2x4x{height}x{width}xf32>) {{
  %y = of.conv_transpose %x, %w {{auto_pad = "NOTSET", channels_last = false, dilations = [1, 1], group = 1, output_padding = [0, 0], output_shape = array<i64>, pads = [{before}, {before}, {after}, {after}], strides = [{stride}, {stride}]}}
  of.return %y
}}"#
        );
        for opening in [Opening::Closed, Opening::First, Opening::Apart] {
            holds(&text, opening);
        }
    }
}

/// Gradients of weights are convolutions of transposed images by transposed gradients: copies for borders and filters read through both.
#[test]
fn convolutions_read_through_transposes() {
    for (x, image, w, filters, y) in [
        ("8x6x7x5", "[1, 0, 2, 3]", "8x16x7x5", "[1, 0, 2, 3]", "6x16x3x3"),
        ("32x8x8x16", "[0, 3, 1, 2]", "3x16x3x32", "[3, 1, 0, 2]", "32x32x8x8"),
        ("3x4x9x4", "[0, 1, 2, 3]", "5x4x3x3", "[0, 1, 3, 2]", "3x5x9x4"),
        ("6x9x4x2", "[3, 2, 1, 0]", "3x4x3x5", "[3, 1, 0, 2]", "2x5x9x6"),
    ] {
        let text = format!(
            r#"
func @main(%x: tensor<{x}xf32>, %w: tensor<{w}xf32>) -> (tensor<{y}xf32>) {{
  %none = of.none
  %image = of.transpose %x {{perm = {image}}}
  %filters = of.transpose %w {{perm = {filters}}}
  %y = of.conv %image, %filters, %none {{auto_pad = "NOTSET", channels_last = false, dilations = [1, 1], group = 1, pads = [1, 1, 1, 1], strides = [1, 1]}}
  of.return %y
}}"#
        );
        for opening in [Opening::Closed, Opening::First] {
            holds(&text, opening);
        }
    }
}

/// A tensor with the maximum number of axes, whose extents are an operand.
#[test]
fn tensors_of_the_maximum_rank_are_supported() {
    let text = r#"
func @main(%x: tensor<64xi64>) -> (tensor<64xi64>) {
  %y = of.constant_of_shape %x {value = dense<[0.0]> : tensor<1xf32>}
  %shape = of.shape %y {start = 0}
  of.return %shape
}"#;
    holds(text, Opening::Closed);
}

/// Empty sums and products are all equal: the e-graph gets self-referential classes with unboundedly many matches.
#[test]
fn normalization_of_zero_channels_is_empty() {
    let text = r#"
func @main(%x: tensor<3x0xf32>) -> (tensor<3x0xf32>, tensor<3x0xf32>) {
  %none = of.constant {value = dense<> : tensor<0xf32>}
  %known = of.constant {value = dense<> : tensor<3x0xf32>}
  %y = of.batch_norm %known, %none, %none, %none, %none {channels_last = false, epsilon = 1.0e-5}
  %z = of.batch_norm %x, %none, %none, %none, %none {channels_last = false, epsilon = 1.0e-5}
  of.return %y, %z
}"#;
    holds(text, Opening::Closed);
}

/// An op in a region declares that extents with different names are equal: a run in which they differ is rejected with reason.
#[test]
fn regions_reject_contradicting_extents_with_reason() {
    let text = "
func @main(%a: tensor<4x1xf32>, %b: tensor<1x4xf32>, %s: tensor<3x2xf32>) -> (tensor<3x4x4xf32>) {
  %y = of.scan %s {num_scan_inputs = 1} : (tensor<3x2xf32>) -> (tensor<3x4x4xf32>) {
  ^(%slice: tensor<2xf32>):
    %sum = of.add %a, %b : (tensor<4x1xf32>, tensor<1x4xf32>) -> tensor<4x4xf32>
    of.yield %sum : (tensor<4x4xf32>) -> ()
  }
  of.return %y
}";
    assert!(holds(text, Opening::Arithmetic).refused > 0);
}

/// The extents of slices and of carried values are symbols within the region too.
#[test]
fn regions_have_open_extents() {
    let text = "
func @main(%x: tensor<3x4xf32>, %first: tensor<4xf32>) -> (tensor<4xf32>, tensor<3x4xf32>) {
  %last, %y = of.scan %first, %x {num_scan_inputs = 1} : (tensor<4xf32>, tensor<3x4xf32>) -> (tensor<4xf32>, tensor<3x4xf32>) {
  ^(%state: tensor<4xf32>, %slice: tensor<4xf32>):
    %sum = of.add %state, %slice : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    of.yield %sum, %sum : (tensor<4xf32>, tensor<4xf32>) -> ()
  }
  of.return %last, %y
}";
    let ran = holds(text, Opening::Shared);
    assert_eq!((ran.refused, ran.open > 1), (0, true), "{ran:?}");
}

/// The maximum of a window of padding alone is the least number of the type, whatever is computed before or after the pool;
/// the mean is zero.
#[test]
fn windows_of_padding_alone_have_a_result() {
    let attrs =
        "auto_pad = \"NOTSET\", ceil_mode = false, channels_last = false, dilations = array<i64>, kernel = [2, 2]";
    let max = format!(
        "of.max_pool %v {{{attrs}, pads = [3, 0, 0, 2], return_indices = false, storage_order = 0, strides = [1, 2]}}"
    );
    let mean = |all: bool| {
        format!("of.avg_pool %v {{{attrs}, count_include_pad = {all}, pads = [3, 0, 0, 2], strides = [1, 2]}}")
    };
    for pool in [max, mean(false), mean(true)] {
        for (dtype, before) in [
            ("f32", "of.relu %x"),
            ("f32", "of.tanh %x"),
            ("f32", "of.max %x, %c"),
            ("f32", "of.min %x, %c"),
            ("i8", "of.max %x, %c"),
            ("u8", "of.min %x, %c"),
        ] {
            let one = if dtype == "f32" { "1.0" } else { "1" };
            let text = format!(
                "
func @main(%x: tensor<1x4x3x3x{dtype}>) -> (tensor<1x4x5x2x{dtype}>) {{
  %c = of.constant {{value = dense<{one}> : tensor<{dtype}>}}
  %v = {before}
  %y = {pool}
  of.return %y
}}"
            );
            for opening in [Opening::Closed, Opening::First, Opening::Shared] {
                holds(&text.replace("u8", "ui8"), opening);
            }
        }
    }
}

/// Branches that yield a value from outside read it before ops that are fused with its producer.
#[test]
fn branches_yield_values_from_outside() {
    let text = "
func @main(%x: tensor<8x4x5xf32>, %c: tensor<i1>) -> (tensor<8x4x5xi1>) {
  %a = of.sin %x
  %b = of.if %c : (tensor<i1>) -> tensor<8x4x5xf32> {
    of.yield %a
  }, {
    of.yield %a
  }
  %y = of.eq %b, %a
  of.return %y
}";
    holds(text, Opening::Closed);
    holds(text, Opening::Shared);
}

/// Rows without elements have no place at an index out of range either.
#[test]
fn scatter_nd_checks_indices_of_empty_slices() {
    let text = "
func @main(%x: tensor<4x1xf32>, %u: tensor<3x1xf32>) -> (tensor<4x1xf32>) {
  %at = of.constant {value = dense<[[0], [1], [2]]> : tensor<3x1xi64>}
  %y = of.scatter_nd %x, %at, %u {reduction = \"add\"}
  of.return %y
}";
    holds(text, Opening::Arithmetic);
}

/// Extents that are too large polynomials have no kernel.
#[test]
fn extents_may_be_large_polynomials() {
    let mut body = String::from("  %v0 = of.relu %x\n");
    for i in 0..9 {
        body += &format!("  %c{i} = of.concat %v{i}, %z {{axis = 0}}\n  %s{i} = of.shape %c{i} {{start = 0}}\n");
        body += &format!("  %v{} = of.tile %c{i}, %s{i}\n", i + 1);
    }
    let text = format!(
        "
func @main(%x: tensor<0x1xf32>, %z: tensor<0x1xf32>) -> (tensor<2xi64>) {{
{body}  %y = of.shape %v9 {{start = 0}}
  of.return %y
}}"
    );
    holds(&text, Opening::Apart);
}

/// The sign of NaN is open, so its bits are too.
#[test]
fn bits_of_nan_are_open() {
    let text = "
func @main(%x: tensor<16xf32>) -> (tensor<16xi32>) {
  %far = of.constant {value = dense<3.0> : tensor<f32>}
  %large = of.mul %x, %far
  %nan = of.atanh %large
  %y = of.bit_cast %nan {to = #of.dtype<i32>}
  of.return %y
}";
    holds(text, Opening::Closed);
}

/// What is read as bits keeps each rounding: no product is fused with a sum.
#[test]
fn bits_of_an_optimiser_s_state_keep_each_rounding() {
    let text = "
func @main(%x: tensor<1x1xf64>, %v: tensor<1x1xf64>) -> (tensor<1x1xui64>) {
  %rate = of.constant {value = dense<0.5689730048179626> : tensor<f64>}
  %step = of.constant {value = dense<2> : tensor<i64>}
  %g = of.constant {value = dense<[[-0.6233046650886536]]> : tensor<1x1xf64>}
  %new, %state = of.momentum %rate, %step, %x, %g, %v {alpha = 0.9, beta = 0.8, mode = \"nesterov\", norm_coefficient = 0.01}
  %y = of.bit_cast %state {to = #of.dtype<ui64>}
  of.return %y
}";
    holds(text, Opening::Arithmetic);
}

/// A product of a widened value with itself.
#[test]
fn contractions_may_read_a_value_twice() {
    let text = "
func @main(%x: tensor<0x1x1xbf16>) -> (tensor<0x1x1xbf16>) {
  %y = of.einsum %x, %x {equation = \"bij,bjk->bki\"}
  of.return %y
}";
    holds(text, Opening::Closed);
}

/// Filters that are computed are read row by row, with an odd number of rows for each tap.
#[test]
fn convolutions_of_16_bit_floats_have_odd_runs() {
    for dtype in ["bf16", "f16"] {
        for (attrs, size) in [("dilations = [1, 2]", 3), ("dilations = [2, 1]", 4), ("dilations = [1, 1]", 4)] {
            let text = format!(
                r#"
func @main(%x: tensor<2x3x7x7x{dtype}>, %w: tensor<5x3x2x3x{dtype}>) -> (tensor<2x5x{}x{}x{dtype}>) {{
  %y = of.conv %x, %w {{auto_pad = "NOTSET", channels_last = false, {attrs}, group = 1, pads = array<i64>, strides = [1, 1]}}
  of.return %y
}}"#,
                if size == 4 && attrs.contains("[2") { 5 } else { 6 },
                if attrs.contains(", 2") { 3 } else { 5 },
            );
            holds(&text, Opening::Closed);
        }
    }
}

/// A transposed convolution of an axis of zero elements: its parts are convolutions without a position.
#[test]
fn transposed_convolutions_of_empty_axes_are_empty() {
    let text = r#"
func @main(%x: tensor<1x1x0xf32>) -> (tensor<1x1x0xf32>) {
  %w = of.constant {value = dense<[[[0.9405787]]]> : tensor<1x1x1xf32>}
  %y = of.conv_transpose %x, %w {auto_pad = "NOTSET", channels_last = false, dilations = array<i64>, group = 1, output_padding = [1], output_shape = array<i64>, pads = [0, 0], strides = [2]}
  of.return %y
}"#;
    for opening in [Opening::Closed, Opening::Shared, Opening::Apart] {
        holds(text, opening);
    }
}

/// Scores that are NaN, whose sign no op defines.
#[test]
fn non_max_suppression_ignores_the_sign_of_nan() {
    let text = "
func @main(%boxes: tensor<1x4x4xf32>, %s: tensor<1x1x4xf32>) -> (tensor<?x3xi64>) {
  %most = of.constant {value = dense<3> : tensor<i64>}
  %iou = of.constant {value = dense<0.9> : tensor<f32>}
  %none = of.none
  %scores = of.acosh %s
  %y = of.non_max_suppression %boxes, %scores, %most, %iou, %none {center_point_box = false}
  of.return %y
}";
    holds(text, Opening::Closed);
}

/// A stack without slices: its other extents are those of a value from outside of the loop.
#[test]
fn empty_stacks_have_the_extents_of_values_from_outside() {
    let text = r#"
func @main(%x: tensor<3x3x5x5xf32>, %w: tensor<3x3x1x1xf32>) -> (tensor<0x3x3x3x3xf32>) {
  %none = of.none
  %v = of.conv %x, %w, %none {auto_pad = "SAME_LOWER", channels_last = false, dilations = array<i64>, group = 1, pads = array<i64>, strides = [2, 2]}
  %n = of.constant {value = dense<0> : tensor<i64>}
  %true = of.constant {value = dense<true> : tensor<i1>}
  %y = of.loop %n, %true {
  ^(%i: tensor<i64>, %c: tensor<i1>):
    of.yield %c, %v
  }
  of.return %y
}"#;
    assert!(holds(text, Opening::Shared).closed > 0);
}

/// A function in the epilogue of a product has a variable of the same name as the kernel, which the kernel reads after a loop
/// without iterations.
#[test]
fn products_of_few_rows_have_epilogues_with_loops() {
    for function in ["sin", "tan", "cos", "pow"] {
        let text = format!(
            "
func @main(%a: tensor<15x2xf32>, %b: tensor<5x2x6xf32>) -> (tensor<5x15x6xf32>) {{
  %c = of.matmul %a, %b
  %y = of.{function} %c{}
  of.return %y
}}",
            if function == "pow" { ", %c" } else { "" }
        );
        holds(&text, Opening::Closed);
    }
}

/// Positions beyond i64 are not negative.
#[test]
fn positions_of_64_bits_without_sign_are_large() {
    let text = "
func @main(%x: tensor<1x1x1x1xf32>) -> (tensor<1x1x1x1xf32>) {
  %k = of.constant {value = dense<[18446744073709551614]> : tensor<1xui64>}
  %y = of.trilu %x, %k {upper = false}
  of.return %y
}";
    holds(text, Opening::Closed);
}

/// In a loop, an extent of the state determines a symbol, and another one does not.
#[test]
fn values_with_an_extent_that_determines_no_symbol_bind_none() {
    let text = "
func @main(%0: tensor<1x3x5x4xf32>) -> (tensor<1x3x8x4xf32>) {
  %1 = of.lp_pool %0 {auto_pad = \"NOTSET\", ceil_mode = false, channels_last = false, dilations = array<i64>, kernel = [2, 2], p = 1, pads = [1, 3, 3, 1], strides = [1, 2]}
  %2 = of.constant {value = dense<4> : tensor<i64>}
  %3 = of.constant {value = dense<true> : tensor<i1>}
  %4 = of.loop %2, %3, %1 {
  ^(%i: tensor<i64>, %c: tensor<i1>, %x: tensor<1x3x8x4xf32>):
    %scale = of.constant {value = dense<[-0.77993697, -1.9351374, -1.0733937]> : tensor<3xf32>}
    %bias = of.constant {value = dense<[-1.5844542, -0.49468005, 1.2497116]> : tensor<3xf32>}
    %y = of.instance_norm %x, %scale, %bias {channels_last = false, epsilon = 1.0e-5}
    of.yield %c, %y
  }
  of.return %4
}";
    for opening in [Opening::Shared, Opening::Apart] {
        assert!(holds(text, opening).open > 0);
    }
}

/// A sum that is read for its shape alone still checks that its operands have equal extents.
#[test]
fn sums_that_are_read_for_their_shape_check_their_operands() {
    let text = "
func @main(%0: tensor<1xf32>, %1: tensor<0xf32>) -> (tensor<1xi64>) {
  %2 = of.variadic_sum %0, %1
  %3 = of.shape %2 {start = -1}
  of.return %3
}";
    let ran = holds(text, Opening::Arithmetic);
    assert!(ran.closed > 0 && ran.refused > 0, "{ran:?}");
}

/// Kernels read and write subnormal numbers as zeros, which later ops may make large.
#[test]
fn subnormal_numbers_are_zeros() {
    let signs = "
func @main(%0: tensor<4xf32>) -> (tensor<4xf32>) {
  %tiny = of.constant {value = dense<[1.0e-42, -1.0e-42, 1.0e-40, 1.0e-30]> : tensor<4xf32>}
  %1 = of.add %0, %tiny
  %2 = of.sub %1, %0
  %3 = of.mul %tiny, %tiny
  %4 = of.add %2, %3
  %5 = of.sign %tiny
  %6 = of.add %4, %5
  of.return %6
}";
    holds(signs, Opening::Closed);
    let products = "
func @main(%0: tensor<1x40xf32>) -> (tensor<1x40xf32>, tensor<1x1xf32>) {
  %axis = of.constant {value = dense<1> : tensor<i64>}
  %axes = of.constant {value = dense<[1]> : tensor<1xi64>}
  %scale = of.constant {value = dense<0.12> : tensor<f32>}
  %1 = of.mul %0, %scale
  %2 = of.cum_prod %1, %axis {exclusive = true, reverse = true}
  %3 = of.reduce_prod %1, %axes {keepdims = true}
  of.return %2, %3
}";
    holds(products, Opening::Closed);
}

/// Pools of three axes, and of channels of unknown number, with each way to count the elements of a mean.
#[test]
fn pools_of_open_channels_and_three_axes_are_native() {
    for (op, ceil_mode, attributes) in [
        ("max_pool", true, "storage_order = 0, return_indices = false"),
        ("avg_pool", true, "count_include_pad = true"),
        ("avg_pool", true, "count_include_pad = false"),
        ("avg_pool", false, "count_include_pad = true"),
    ] {
        let all =
            [("2x5x6x4x6", "2x5x4x3x4", "2x5x3x2x3"), ("2x5x6x4", "2x5x4x3", "2x5x3x2"), ("2x5x6", "2x5x4", "2x5x3")];
        for (x, up, down) in all {
            let axes = x.split('x').count() - 2;
            let list = |n: &str, count: usize| vec![n; count].join(", ");
            let text = format!(
                "
func @main(%x: tensor<{x}xf32>) -> (tensor<{}xf32>) {{
  %y = of.{op} %x {{kernel = [{}], strides = [{}], pads = [{}], dilations = [{}], ceil_mode = {ceil_mode}, auto_pad = \"NOTSET\", channels_last = false, {attributes}}}
  of.return %y
}}",
                if ceil_mode { up } else { down },
                list("3", axes),
                list("2", axes),
                list("1", 2 * axes),
                list("1", axes)
            );
            assert!(holds(&text, Opening::Shared).open > 0);
        }
    }
}

/// The number of input channels follows from the weights; other inputs are refused.
#[test]
fn convolutions_of_open_channels_take_their_number_from_the_weights() {
    let all =
        [("2x4x6x5", "3x4x3x2", "2x3x4x4", 1), ("2x4x6x5", "4x1x3x2", "2x4x4x4", 4), ("1x4x9", "6x2x3", "1x6x7", 2)];
    for (x, w, y, group) in all {
        let text = format!(
            "
func @main(%x: tensor<{x}xf32>) -> (tensor<{y}xf32>) {{
  %w = of.constant {{value = dense<0.5> : tensor<{w}xf32>}}
  %y = of.conv %x, %w {{strides = array<i64>, pads = array<i64>, dilations = array<i64>, group = {group}, auto_pad = \"NOTSET\", channels_last = false}}
  of.return %y
}}"
        );
        assert!(holds(&text, Opening::Shared).open > 0);
    }
}

/// Padding written out, as zero points need it, gives an empty axis elements, but still no window.
#[test]
fn padded_empty_axes_have_no_window() {
    let text = "
func @main(%0: tensor<1x1x0x0xi8>) -> (tensor<1x1x2x0xi8>) {
  %1 = of.constant {value = dense<0.0625> : tensor<f32>}
  %2 = of.constant {value = dense<44> : tensor<i8>}
  %3 = of.constant {value = dense<[[[[186, 173, 182]]]]> : tensor<1x1x1x3xui8>}
  %4 = of.constant {value = dense<141> : tensor<ui8>}
  %5 = of.constant {value = dense<[0]> : tensor<1xi32>}
  %6 = of.qlinear_conv %0, %1, %2, %3, %1, %4, %1, %2, %5 {auto_pad = \"NOTSET\", channels_last = false, dilations = array<i64>, group = 1, pads = [1, 1, 1, 1], strides = array<i64>}
  of.return %6
}";
    let ran = holds(text, Opening::Shared);
    assert!(ran.closed > 0 && ran.open > 1, "{ran:?}");
}

/// A count that data determine changes between runs of one session, while the extents of inputs stay.
#[test]
fn counts_of_data_change_between_runs() {
    let text = "
func @main(%x: tensor<15xf32>) -> (tensor<15xf32>) {
  %one = of.constant {value = dense<1.0> : tensor<f32>}
  %large = of.gt %x, %one
  %1 = of.nonzero %large
  %2 = of.shape %1 {start = 1}
  %3 = of.cast %2 {to = #of.dtype<f32>}
  %4 = of.mul %x, %3
  %5 = of.exp %4
  %6 = of.add %5, %4
  %axis = of.constant {value = dense<0> : tensor<i64>}
  %7 = of.cum_sum %6, %axis {exclusive = false, reverse = false}
  %8 = of.cum_sum %7, %axis {exclusive = false, reverse = true}
  of.return %8
}";
    let ran = holds(text, Opening::Shared);
    assert!(ran.closed > 0 && ran.open > 1, "{ran:?}");
}

/// Far windows whose zero point has another type than the elements; axes that are no list.
#[test]
fn operands_of_unusual_types_and_ranks_are_left_alone() {
    let conv = "
func @main(%0: tensor<1x3x0x0xi16>, %1: tensor<1xi8>) -> (tensor<1x1x2x0xi32>) {
  %2 = of.constant {value = dense<[[[[-11, 29, 41]], [[-94, 70, 9]], [[-59, 22, 25]]]]> : tensor<1x3x1x3xi16>}
  %3 = of.constant {value = dense<166> : tensor<ui8>}
  %4 = of.conv_integer %0, %2, %3, %1 {auto_pad = \"NOTSET\", channels_last = false, dilations = array<i64>, group = 1, pads = [1, 1, 1, 1], strides = array<i64>}
  of.return %4
}";
    holds(conv, Opening::Closed);
    let reduction = "
func @main(%0: tensor<1x1x0xf32>) -> (tensor<*xf32>) {
  %1 = of.constant {value = dense<[[[0]]]> : tensor<1x1x1xi64>}
  %2 = of.reduce_min %0, %1 {keepdims = false}
  of.return %2
}";
    holds(reduction, Opening::Closed);
}
