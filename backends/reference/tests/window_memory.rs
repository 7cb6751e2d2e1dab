//! Windows with far padding, dilations and strides: no executor allocates their padding. The plan's memory is compared with
//! the operands and results.

use std::sync::Arc;

use of_codegen::{CompileOptions, Target};
use of_ir::{Func, Module, Type};
use of_ops::sample::Rng;
use of_ops::{Value, interpret};
use of_reference::{Reference, from_runtime, to_runtime};
use of_runtime::{Options, Session};
use of_test_support::compare::{Tolerance, assert_close};
use of_test_support::plans as support;

/// Memory of a plan for each byte of operands and results, and for alignment.
const MAX_RATIO: usize = 32;
const ALIGNED: usize = 1 << 14;

const CONV: &str = "auto_pad = \"NOTSET\", channels_last = false";
const POOL: &str = "ceil_mode = false, auto_pad = \"NOTSET\", channels_last = false";

/// Programs: what is tested, arguments, result type, ops.
fn programs() -> Vec<(&'static str, &'static str, &'static str, String)> {
    let filters = "%w = of.constant {value = dense<[[[[1.0], [2.0]], [[3.0], [-1.0]]]]> : tensor<1x2x2x1xf32>}";
    let each = "%w = of.constant {value = dense<[[[[1.0], [2.0]]], [[[3.0], [-1.0]]]]> : tensor<2x1x2x1xf32>}";
    let bytes = "%w = of.constant {value = dense<[[[[1], [-2]], [[3], [4]]]]> : tensor<1x2x2x1xi8>}
        %z = of.constant {value = dense<9> : tensor<ui8>}
        %none = of.none";
    let far = "strides = [512, 512], pads = [255, 255, 255, 255], dilations = [1, 2]";
    vec![
        (
            "conv",
            "%x: tensor<64x2x1x2xf32>",
            "tensor<64x1x1x1xf32>",
            format!("{filters} %y = of.conv %x, %w {{{far}, group = 1, {CONV}}}"),
        ),
        (
            "dilated conv",
            "%x: tensor<8x2x3x2xf32>",
            "tensor<8x1x3x2xf32>",
            format!(
                "{filters} %y = of.conv %x, %w {{strides = [1, 1], pads = [100000, 0, 100000, 0], dilations = [200000, 1], group = 1, {CONV}}}"
            ),
        ),
        (
            "depthwise conv",
            "%x: tensor<64x2x1x2xf32>",
            "tensor<64x2x1x1xf32>",
            format!("{each} %y = of.conv %x, %w {{{far}, group = 2, {CONV}}}"),
        ),
        (
            "integer conv",
            "%x: tensor<64x2x1x2xui8>",
            "tensor<64x1x1x1xi32>",
            format!("{bytes} %y = of.conv_integer %x, %w, %z, %none {{{far}, group = 1, {CONV}}}"),
        ),
        (
            "transposed conv",
            "%x: tensor<4x1x3x3xf32>",
            "tensor<4x2x5x3xf32>",
            format!(
                "{} %y = of.conv_transpose %x, %w {{strides = [1, 1], pads = [0, 0, 0, 0], dilations = [100000, 1], output_padding = [0, 0], output_shape = [5, 3], group = 1, {CONV}}}",
                "%w = of.constant {value = dense<[[[[1.0], [2.0]], [[3.0], [-1.0]]]]> : tensor<1x2x2x1xf32>}"
            ),
        ),
        (
            "max pool",
            "%x: tensor<8x2x2x2xf32>",
            "tensor<8x2x1x1xf32>",
            format!(
                "%y = of.max_pool %x {{kernel = [4000, 4000], strides = [512, 512], pads = [1999, 1999, 2000, 2000], dilations = [1, 1], storage_order = 0, return_indices = false, {POOL}}}"
            ),
        ),
        (
            "average pool",
            "%x: tensor<8x2x2x2xf32>",
            "tensor<8x2x1x1xf32>",
            format!(
                "%y = of.avg_pool %x {{kernel = [4000, 4000], strides = [512, 512], pads = [1999, 1999, 2000, 2000], dilations = [1, 1], count_include_pad = false, {POOL}}}"
            ),
        ),
        (
            "far strides of a pool",
            "%x: tensor<1x8x2x40xf32>",
            "tensor<1x8x1x1xf32>",
            format!(
                "%y = of.max_pool %x {{kernel = [1, 2], strides = [1000000000, 1000000000], pads = [0, 0, 0, 0], dilations = [1, 1], storage_order = 0, return_indices = false, {POOL}}}"
            ),
        ),
        (
            "norm pool",
            "%x: tensor<8x2x2x2xf32>",
            "tensor<8x2x1x1xf32>",
            format!(
                "%y = of.lp_pool %x {{p = 2, kernel = [4000, 4000], strides = [512, 512], pads = [1999, 1999, 2000, 2000], dilations = [1, 1], {POOL}}}"
            ),
        ),
    ]
}

fn bytes_of(ty: &Type) -> usize {
    let t = ty.as_tensor().expect("a tensor");
    t.fixed_dims().expect("fixed").iter().product::<usize>() * t.dtype.bits().expect("a number") as usize / 8
}

#[test]
fn padding_is_not_allocated() {
    for (what, args, result, ops) in programs() {
        let text = format!("func @main({args}) -> ({result}) {{\n{}\nof.return %y\n}}", ops.replace(" %y", "\n%y"));
        let module = of_ir::text::parse_module(&text, "test", &of_ops::registry(), None);
        let f: Func = module.unwrap_or_else(|d| panic!("{what}: {d}\n{text}")).funcs.into_values().next().expect("one");
        let mut rng = Rng::new(3);
        let inputs: Vec<Value> = (f.graph.args().iter())
            .map(|v| f.graph.ty(*v).as_tensor().expect("a tensor"))
            .map(|t| rng.tensor(t.dtype, &t.fixed_dims().expect("fixed"), 0.0, 9.0).into())
            .collect();
        let mut module = Module::default();
        module.funcs.insert("main".into(), f.clone());
        let isa = of_codegen::Isa::host();
        let options = CompileOptions::new(Target::new(isa, &[&Reference]), support::cache());
        let plan = support::compile_for(&support::after_passes(module), &options).and_then(|c| Ok(c.open()?));
        let plan = Arc::new(plan.unwrap_or_else(|d| panic!("{what}: {d}")));
        let peak = plan.plan().programs.iter().map(|p| p.peak_bytes).max().unwrap_or(0) as usize;
        let terminator = f.graph.walk().pop().expect("a terminator");
        let values = f.graph.args().iter().chain(&f.graph.op(terminator).operands);
        let most = MAX_RATIO * values.map(|v| bytes_of(f.graph.ty(*v))).sum::<usize>() + ALIGNED;
        assert!(peak <= most, "{what}: the plan takes {peak} bytes, more than {most}");
        let want = interpret::run_graph(&f.graph, &inputs).unwrap_or_else(|d| panic!("{what}: {d}"));
        let mut session = Session::new(plan, 0, Options { threads: 1, ..Options::default() }, &[Arc::new(Reference)])
            .expect("a session");
        let got = session.run(inputs.iter().map(|v| to_runtime(v).expect("a value")).collect()).expect("a run");
        let got: Vec<Value> = got.iter().map(|v| from_runtime(v).expect("a value")).collect();
        assert_close(what, &got, &want, Tolerance::of_largest(2e-6));
    }
}
