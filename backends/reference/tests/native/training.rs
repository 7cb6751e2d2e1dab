//! Kernels of training steps against the interpreter: gradients of convolutions, pools and normalizations.

use of_codegen::{CpuCode, Isa};
use of_ir::{Func, Tensor};
use of_ops::sample::Rng;
use of_ops::{Value, interpret};
use of_passes::Manager;
use of_test_support::plans::emulated_gpu;

use crate::{assert_within, plan_for, run_compiled};

/// A function of text, after `differentiate`.
fn differentiated(text: &str) -> Func {
    let mut module =
        of_ir::text::parse_module(text, "test", &of_ops::registry(), None).unwrap_or_else(|d| panic!("{d}"));
    let mut manager = Manager::default();
    manager.append("differentiate").unwrap();
    manager.run(&mut module, &mut |_| ()).unwrap_or_else(|d| panic!("{d}"));
    module.main().unwrap().clone()
}

/// Batch statistics, their gradients, and other reductions of columns: few and many rows, columns that fill vectors or do not, and an open
/// batch.
#[test]
fn reductions_of_columns_agree_with_the_interpreter() {
    for (n, area, c) in [(2, "4x5", 3), (4, "30x31", 70), (1, "2x3", 2100), (3, "7x1", 16), (40, "11x9", 33)] {
        let text = |n: &str| {
            format!(
                "func @main(%x: tensor<{n}x{area}x{c}xf32>, %s: tensor<{c}xf32>)
    -> (tensor<{n}x{area}x{c}xf32>, tensor<{c}xf32>, tensor<1x1x1x{c}xf32>, tensor<1x1x1x{c}xf32>, tensor<{c}xf32>) {{
  %rows = of.constant {{value = dense<[0, 1, 2]> : tensor<3xi64>}}
  %mean = of.reduce_mean %x, %rows {{keepdims = true}}
  %centred = of.sub %x, %mean
  %squares = of.mul %centred, %centred
  %variance = of.reduce_mean %squares, %rows {{keepdims = true}}
  %epsilon = of.constant {{value = dense<0.01> : tensor<f32>}}
  %shifted = of.add %variance, %epsilon
  %inverse = of.rsqrt %shifted
  %normal = of.mul %centred, %inverse
  %scaled = of.mul %normal, %s
  %t = of.tanh %scaled
  %axes = of.constant {{value = dense<[0, 1, 2, 3]> : tensor<4xi64>}}
  %sum = of.reduce_sum %t, %axes {{keepdims = false}}
  %gx, %gs = of.gradient %sum, %x, %s
  %most = of.reduce_max %squares, %rows {{keepdims = true}}
  %least = of.reduce_min %x, %rows {{keepdims = true}}
  %product = of.reduce_prod %t, %rows {{keepdims = false}}
  of.return %gx, %gs, %most, %least, %product
}}"
            )
        };
        let mut r = Rng::new(n);
        let area: Vec<usize> = area.split('x').map(|d| d.parse().unwrap()).collect();
        let x = r.f32s(&[&[n as usize], area.as_slice(), &[c]].concat());
        let inputs = [x, r.tensor(of_ir::DType::F32, &[c], 0.5, 1.5).into()];
        for batch in [n.to_string(), "?(N)".into()] {
            let f = differentiated(&text(&batch));
            let want = interpret::run_graph(&f.graph, &inputs).unwrap_or_else(|d| panic!("{d}"));
            let plan = plan_for(&f, Isa::host(), CpuCode::default()).unwrap_or_else(|d| panic!("{d}"));
            let one_pass = |t: &of_plan::Task| t.name.starts_with("sub+mul+reduce_");
            assert!(
                c < 8 || plan.plan().programs[0].tasks.iter().any(one_pass),
                "{batch}, {c} channels: no pass for all"
            );
            let baseline = Isa::by_name("x86-64").filter(|i| i.arch == std::env::consts::ARCH);
            for isa in [Some(Isa::host()), baseline, emulated_gpu()].into_iter().flatten() {
                let what = format!("{batch}, {c} channels, {}", isa.name);
                assert_within(2e-5, &what, &run_compiled(&f, &inputs, isa, 2), &want);
            }
        }
    }
}

/// Images of few different numbers, so that windows have several maxima, of which the first counts.
#[test]
fn gradients_of_max_pools_agree_with_the_interpreter() {
    let cases = [
        ("2x5x9x8", "3, 3", "2, 2", "1, 1, 1, 1", "1, 1"),
        ("1x16x8x6", "2, 2", "2, 2", "0, 0, 0, 0", "1, 1"),
        ("9x33x7x7", "3, 2", "1, 2", "2, 0, 1, 1", "1, 2"),
        ("2x70x20", "5", "3", "2, 2", "1"),
        ("2x3x6x5x4", "2, 2, 2", "2, 1, 2", "0, 1, 0, 1, 0, 1", "1, 1, 1"),
        ("1x4x21x20", "6, 3", "2, 3", "1, 1, 1, 1", "1, 1"),
    ];
    for (seed, (x, kernel, strides, pads, dilations)) in cases.into_iter().enumerate() {
        let rank = x.split('x').count();
        let axes: Vec<usize> = (0..rank).collect();
        let f = differentiated(&format!(
            "func @main(%x: tensor<{x}xf32>) -> (tensor<{x}xf32>) {{
  %y = of.max_pool %x {{kernel = [{kernel}], strides = [{strides}], pads = [{pads}], dilations = [{dilations}], ceil_mode = true,
    storage_order = 0, return_indices = false, auto_pad = \"NOTSET\", channels_last = false}}
  %t = of.sin %y
  %axes = of.constant {{value = dense<{axes:?}> : tensor<{rank}xi64>}}
  %sum = of.reduce_sum %t, %axes {{keepdims = false}}
  %gx = of.gradient %sum, %x
  of.return %gx
}}"
        ));
        let dims: Vec<usize> = x.split('x').map(|d| d.parse().unwrap()).collect();
        let mut r = Rng::new(seed as u64);
        let mut numbers: Vec<f32> = (0..dims.iter().product()).map(|_| r.int(-2, 2) as f32).collect();
        if seed == 1 {
            numbers[7] = f32::NAN;
        }
        let inputs = [Value::from(Tensor::from_slice(&dims, &numbers).unwrap())];
        let want = interpret::run_graph(&f.graph, &inputs).unwrap_or_else(|d| panic!("{d}"));
        let baseline = Isa::by_name("x86-64").filter(|i| i.arch == std::env::consts::ARCH);
        for isa in [Some(Isa::host()), baseline, emulated_gpu()].into_iter().flatten() {
            assert_within(1e-5, &format!("{x}, {}", isa.name), &run_compiled(&f, &inputs, isa, 2), &want);
        }
    }
}

/// Convolutions with computed filters, as in training: strides, dilations, groups, 1-D, and their gradients.
#[test]
fn convolutions_by_computed_filters_agree_with_the_interpreter() {
    let attributes = |strides: &str, pads: &str, dilations: &str, group: usize| {
        format!(
            "strides = [{strides}], pads = [{pads}], dilations = [{dilations}], group = {group}, \
             auto_pad = \"NOTSET\", channels_last = false"
        )
    };
    let cases = [
        ("2x6x9x8", "12x6x3x3", attributes("1, 1", "1, 1, 1, 1", "1, 1", 1)),
        ("2x6x11x8", "20x6x3x2", attributes("2, 2", "1, 0, 0, 1", "1, 1", 1)),
        ("1x8x9x9", "12x4x2x3", attributes("1, 2", "0, 1, 2, 1", "2, 1", 2)),
        ("3x4x5x5", "7x4x1x1", attributes("1, 1", "0, 0, 0, 0", "1, 1", 1)),
        ("2x5x17", "6x5x4", attributes("3", "2, 1", "1", 1)),
        // By Winograd's algorithm, in both directions.
        ("1x16x17x16", "16x16x3x3", attributes("1, 1", "1, 2, 2, 0", "1, 1", 1)),
        // A filter for each channel, whose rows are whole vectors or not.
        ("2x6x9x8", "6x1x3x3", attributes("1, 1", "1, 1, 1, 1", "1, 1", 6)),
        ("1x32x11x9", "32x1x5x5", attributes("2, 2", "2, 2, 2, 2", "1, 1", 32)),
    ];
    for (seed, (x, w, attributes)) in cases.into_iter().enumerate() {
        let rank = x.split('x').count();
        let axes: Vec<usize> = (0..rank).collect();
        let text = format!(
            "func @main(%x: tensor<{x}xf32>, %w: tensor<{w}xf32>) -> (tensor<f32>, tensor<{x}xf32>, tensor<{w}xf32>) {{
  %y = of.conv %x, %w {{{attributes}}}
  %t = of.tanh %y
  %axes = of.constant {{value = dense<{axes:?}> : tensor<{rank}xi64>}}
  %sum = of.reduce_sum %t, %axes {{keepdims = false}}
  %gx, %gw = of.gradient %sum, %x, %w
  of.return %sum, %gx, %gw
}}"
        );
        let f = differentiated(&text);
        let dims = |text: &str| text.split('x').map(|d| d.parse().unwrap()).collect::<Vec<usize>>();
        let mut r = Rng::new(seed as u64);
        let inputs: Vec<Value> = [x, w].map(|d| r.f32s(&dims(d))).into();
        let want = interpret::run_graph(&f.graph, &inputs).unwrap();
        let baseline = Isa::by_name("x86-64").filter(|i| i.arch == std::env::consts::ARCH);
        for isa in [Some(Isa::host()), baseline, emulated_gpu()].into_iter().flatten() {
            let what = format!("{x} by {w}, {}", isa.name);
            assert_within(1e-5, &what, &run_compiled(&f, &inputs, isa, 2), &want);
            let plan = plan_for(&f, isa, CpuCode::default()).unwrap_or_else(|d| panic!("{d}"));
            let interpreted = |t: &of_plan::Task| matches!(t.exec, Some(of_plan::Exec::Backend(_)));
            assert!(!plan.plan().programs[0].tasks.iter().any(interpreted), "{what}: some of it is interpreted");
        }
    }
}
