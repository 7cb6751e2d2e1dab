//! Convolutions by cuDNN: which groups become calls, and their results, on a stub library (`cudnn.c`) that checks its
//! arguments. Tests that need it run in their own processes, which find it through the environment.

mod common;

use std::sync::Arc;

use common::calls::{compare, compare_on_a_driver, inside};
use common::{cache, emulated, function_of, plan, said, stub};
use of_codegen::Isa;
use of_codegen::isa::CUDA_EMULATED;
use of_codegen::vendor_libraries::cudnn::{Convolution, ConvolutionAxis};
use of_codegen::vendor_libraries::epilogue::Activation;
use of_codegen::vendor_libraries::{Call, VendorLibraries, VendorLibrary};
use of_codegen::{CompileOptions, Target, compile};
use of_cuda::{Device, DeviceProgram, Endpoints};
use of_ir::{DType, Func};
use of_plan::PlanFile;
use of_runtime::{Options, Session};

/// A convolution `%c` of `%x` by `%w`, with channels last, and its epilogue.
struct Case {
    name: &'static str,
    x: &'static str,
    w: &'static str,
    y: &'static str,
    /// Strides, pads and dilations.
    windows: [&'static str; 3],
    group: usize,
    /// Arguments after the first two, and ops between the convolution and `%y`, if these differ.
    more: (&'static str, &'static str),
    /// Whether the convolution has a bias operand.
    bias: bool,
}

const PLAIN: Case = Case {
    name: "a convolution",
    x: "2x9x8x16",
    w: "24x16x3x3",
    y: "2x9x8x24",
    windows: ["1, 1", "1, 1, 1, 1", "1, 1"],
    group: 1,
    more: ("", ""),
    bias: false,
};

const LINE: &str = ", %b: tensor<24xf32>";

const CASES: &[Case] = &[
    PLAIN,
    Case { name: "a bias", bias: true, ..PLAIN },
    Case { name: "a bias and a ReLU", bias: true, more: ("", "%y = of.relu %c"), ..PLAIN },
    Case { name: "a ReLU alone", more: ("", "%y = of.relu %c"), ..PLAIN },
    Case {
        name: "one number for all channels",
        more: ("", "%k = of.constant {value = dense<0.25> : tensor<f32>}\n  %s = of.sub %c, %k\n  %y = of.relu %s"),
        ..PLAIN
    },
    Case { name: "a line", more: (LINE, "%y = of.add %b, %c"), ..PLAIN },
    Case {
        name: "a residual connection",
        bias: true,
        more: (", %r: tensor<2x9x8x24xf32>", "%s = of.add %c, %r\n  %y = of.relu %s"),
        ..PLAIN
    },
    Case { name: "a tensor alone", more: (", %r: tensor<2x9x8x24xf32>", "%y = of.sub %c, %r"), ..PLAIN },
    Case {
        name: "factors",
        more: (
            ", %r: tensor<2x9x8x24xf32>",
            "%k = of.constant {value = dense<0.25> : tensor<f32>}\n  %p = of.mul %c, %k\n  \
             %h = of.constant {value = dense<0.5> : tensor<f32>}\n  %t = of.mul %r, %h\n  %u = of.sub %p, %t\n  \
             %y = of.relu %u",
        ),
        ..PLAIN
    },
    Case {
        name: "a factor alone",
        more: ("", "%k = of.constant {value = dense<0.25> : tensor<f32>}\n  %y = of.mul %c, %k"),
        ..PLAIN
    },
    Case { name: "strides", y: "2x5x3x24", windows: ["2, 3", "1, 1, 1, 1", "1, 1"], ..PLAIN },
    Case { name: "dilations", y: "2x7x8x24", windows: ["1, 1", "1, 3, 1, 3", "2, 3"], ..PLAIN },
    Case { name: "pads of two sizes", y: "2x5x4x24", windows: ["2, 2", "0, 1, 2, 0", "1, 1"], ..PLAIN },
    Case { name: "groups", w: "24x4x3x3", group: 4, bias: true, more: ("", "%y = of.relu %c"), ..PLAIN },
    Case { name: "channels in odd numbers", x: "1x4x3x5", w: "7x5x3x2", y: "1x4x4x7", ..PLAIN },
    Case {
        name: "points, two apart",
        w: "24x16x1x1",
        y: "2x5x4x24",
        windows: ["2, 2", "0, 0, 0, 0", "1, 1"],
        bias: true,
        ..PLAIN
    },
    Case {
        name: "one axis",
        x: "2x20x16",
        w: "24x16x3",
        y: "2x10x24",
        windows: ["2", "1, 1", "1"],
        bias: true,
        more: ("", "%y = of.relu %c"),
        ..PLAIN
    },
    Case {
        name: "an image one pixel wide",
        x: "2x20x1x16",
        w: "24x16x3x1",
        y: "2x20x1x24",
        windows: ["1, 1", "1, 0, 1, 0", "1, 1"],
        ..PLAIN
    },
];

const DEPTHWISE: Case =
    Case { name: "depthwise", w: "16x1x3x3", y: "2x9x8x16", group: 16, more: ("", "%y = of.relu %c"), ..PLAIN };

/// The text of a case; filters are constants where `known` is set.
fn text(c: &Case, known: bool) -> String {
    let Case { x, w, y, windows: [strides, pads, dilations], group, more: (arguments, ops), .. } = c;
    let outputs = w.split('x').next().unwrap();
    let filters = if known { String::new() } else { format!(", %w: tensor<{w}xf32>") };
    let constant = match known {
        // All filters and all taps differ.
        true => format!("%w = of.constant {{value = dense<{}> : tensor<{w}xf32>}}\n  ", values(w)),
        false => String::new(),
    };
    let (argument, bias) = if c.bias { (format!(", %d: tensor<{outputs}xf32>"), ", %d") } else { (String::new(), "") };
    let result = if ops.is_empty() { "y" } else { "c" };
    format!(
        "func @main(%x: tensor<{x}xf32>{filters}{argument}{arguments}) -> (tensor<{y}xf32>) {{\n  {constant}%{result} = of.conv %x, \
         %w{bias} {{strides = [{strides}], pads = [{pads}], dilations = [{dilations}], group = {group}, auto_pad = \"NOTSET\", \
         channels_last = true}}\n  {ops}\n  of.return %y\n}}\n"
    )
}

/// Elements of a constant of these extents, as text.
fn values(dims: &str) -> String {
    fn list(dims: &[usize], next: &mut u32) -> String {
        let Some((first, rest)) = dims.split_first() else {
            *next = (*next * 29 + 17) % 113;
            return format!("{:?}", (f64::from(*next) - 56.0) / 64.0);
        };
        let all: Vec<String> = (0..*first).map(|_| list(rest, next)).collect();
        format!("[{}]", all.join(", "))
    }
    list(&dims.split('x').map(|d| d.parse().unwrap()).collect::<Vec<_>>(), &mut 1)
}

/// The function of a text after the passes, with elements of this type.
fn of_type(text: &str, dtype: DType) -> Func {
    function_of(&text.replace("xf32", &format!("x{dtype}")).replace("<f32>", &format!("<{dtype}>")))
}

/// The convolutions that a plan calls.
fn calls(plan: &PlanFile) -> Vec<Convolution> {
    let convolution = |call| if let Call::Convolution(c) = call { Some(c) } else { None };
    common::calls::calls(plan).into_iter().filter_map(convolution).collect()
}

#[test]
fn groups_with_supported_epilogues_become_calls() {
    if !emulated() {
        return;
    }
    for c in CASES {
        for (dtype, known) in [(DType::F32, true), (DType::F32, false), (DType::F16, true), (DType::BF16, false)] {
            let f = of_type(&text(c, known), dtype);
            let plan = inside(&f, "emulated+cudnn");
            let names: Vec<&str> = plan.plan().code.iter().map(|c| &c.name[..]).collect();
            // Filters that are not constants are rearranged, unless they are 1x1.
            let copies = if known || c.w.ends_with("x1x1") { 0 } else { 1 };
            assert!(calls(&plan).len() == 1 && names.len() == copies, "{} of {dtype}: {names:?}", c.name);
            assert!(calls(&plan)[0].dtype == dtype, "{} of {dtype}", c.name);
            assert!(calls(&inside(&f, "emulated")).is_empty(), "nothing is called that was not asked for");
        }
    }
    assert_eq!(calls(&inside(&of_type(&text(&DEPTHWISE, true), DType::F32), "emulated+cudnn")).len(), 1);
    // With both libraries, cuBLASLt gets the products and cuDNN all convolutions, 1x1 ones too.
    let points = Case { w: "24x16x1x1", windows: ["1, 1", "0, 0, 0, 0", "1, 1"], ..PLAIN };
    let f = of_type(&text(&points, true), DType::F32);
    for arch in ["emulated+cudnn+cublaslt", "emulated+cublaslt+cudnn"] {
        assert_eq!(calls(&inside(&f, arch)).len(), 1, "{arch}");
    }
    let [Call::Product(_)] = common::calls::calls(&inside(&f, "emulated+cublaslt"))[..] else { panic!("a product") };
}

/// A network with a residual connection: the library computes the end of each group.
const NETWORK: &str = r#"
func @main(%x: tensor<2x3x24x20xf32>) -> (tensor<2x10xf32>) {
  %a = of.constant {value = dense<STEM> : tensor<16x3x7x7xf32>}
  %b = of.constant {value = dense<MIDDLE> : tensor<16x16x3x3xf32>}
  %d = of.constant {value = dense<DOWN> : tensor<24x16x3x3xf32>}
  %e = of.constant {value = dense<SHORT> : tensor<24x16x1x1xf32>}
  %g = of.constant {value = dense<LAST> : tensor<24x10xf32>}
  %n = of.constant {value = dense<0.0625> : tensor<16xf32>}
  %s = of.conv %x, %a, %n {strides = [2, 2], pads = [3, 3, 3, 3], dilations = [1, 1], group = 1, auto_pad = "NOTSET", channels_last = false}
  %t = of.relu %s
  %p = of.max_pool %t {kernel = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1], dilations = [1, 1], ceil_mode = false, storage_order = 0, return_indices = false, auto_pad = "NOTSET", channels_last = false}
  %c1 = of.conv %p, %b, %n {strides = [1, 1], pads = [1, 1, 1, 1], dilations = [1, 1], group = 1, auto_pad = "NOTSET", channels_last = false}
  %r1 = of.relu %c1
  %c2 = of.conv %r1, %b, %n {strides = [1, 1], pads = [1, 1, 1, 1], dilations = [1, 1], group = 1, auto_pad = "NOTSET", channels_last = false}
  %j1 = of.add %c2, %p
  %k1 = of.relu %j1
  %c3 = of.conv %k1, %d {strides = [2, 2], pads = [1, 1, 1, 1], dilations = [1, 1], group = 1, auto_pad = "NOTSET", channels_last = false}
  %c4 = of.conv %k1, %e {strides = [2, 2], pads = [0, 0, 0, 0], dilations = [1, 1], group = 1, auto_pad = "NOTSET", channels_last = false}
  %j2 = of.add %c3, %c4
  %k2 = of.relu %j2
  %m = of.global_average_pool %k2 {channels_last = false}
  %f = of.flatten %m {axis = 1}
  %y = of.matmul %f, %g
  of.return %y
}
"#;

fn network() -> Func {
    let fill = [
        ("STEM", "16x3x7x7"),
        ("MIDDLE", "16x16x3x3"),
        ("DOWN", "24x16x3x3"),
        ("SHORT", "24x16x1x1"),
        ("LAST", "24x10"),
    ];
    function_of(&fill.iter().fold(NETWORK.to_string(), |text, (name, dims)| text.replace(name, &values(dims))))
}

/// Runs in a process that has the library: all cases match the interpreter.
#[test]
#[ignore = "run by another test, in a process whose environment names the library"]
fn computed() {
    for c in CASES {
        for (dtype, known, tolerance) in [
            (DType::F32, true, 5e-6),
            (DType::F32, false, 5e-6),
            (DType::F16, true, 4e-3),
            (DType::BF16, false, 3.2e-2),
        ] {
            let f = of_type(&text(c, known), dtype);
            let name = format!("{} of {dtype}, known: {known}", c.name);
            compare(&name, &f, Arc::new(plan(&f, "emulated+cudnn")), dtype, tolerance);
        }
    }
    let f = of_type(&text(&DEPTHWISE, true), DType::F32);
    compare("depthwise", &f, Arc::new(plan(&f, "emulated+cudnn")), DType::F32, 5e-6);
    // On tensor cores.
    let residual = ", %r: tensor<2x9x8x24xf32>";
    for (more, activation) in [
        (("", "%y = of.gelu %c {tanh = true}"), Activation::GeluByTanh),
        (("", "%y = of.gelu %c {tanh = false}"), Activation::Gelu),
        (("", "%s = of.sigmoid %c\n  %y = of.mul %c, %s"), Activation::Silu),
        ((residual, "%t = of.add %c, %r\n  %y = of.gelu %t {tanh = false}"), Activation::Gelu),
    ] {
        for (dtype, arch, tolerance) in [
            (DType::F16, "emulated+cudnn", 4e-3),
            (DType::BF16, "emulated+cudnn", 3.2e-2),
            (DType::F32, "emulated+tf32+cudnn", 4e-3),
        ] {
            let f = of_type(&text(&Case { bias: true, more, ..PLAIN }, true), dtype);
            let [call] = calls(&inside(&f, arch))[..] else { panic!("{activation:?} of {dtype} is no call") };
            assert_eq!(call.activation, activation);
            compare(&format!("{activation:?} of {dtype}"), &f, Arc::new(plan(&f, arch)), dtype, tolerance);
        }
    }
    let f = network();
    assert_eq!(calls(&inside(&f, "emulated+cudnn")).len(), 5);
    compare("a network", &f, Arc::new(plan(&f, "emulated+cudnn")), DType::F32, 2e-5);
    println!("all cases agree");
}

#[test]
fn library_calls_match_the_interpreter() {
    if !emulated() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let library = stub(dir.path());
    let out = said("computed", &[("OF_CUDNN", library.to_str().unwrap())]);
    assert!(out.contains("all cases agree"), "{out}");
}

/// Runs in a process that has a driver: a convolution on a GPU. It has no kernel, so the stub driver can compute all of it.
#[test]
#[ignore = "run by another test, in a process whose environment names a driver"]
fn on_a_driver() {
    let text = text(&Case { bias: true, more: ("", "%y = of.relu %c"), ..PLAIN }, true);
    let f = of_type(&text, DType::F16);
    compare_on_a_driver(&f, plan(&f, "sm_90+cudnn"), DType::F16, 4e-3);
}

#[test]
fn recorded_convolutions_match_the_interpreter() {
    let dir = tempfile::tempdir().unwrap();
    let library = stub(dir.path());
    let library = library.to_str().unwrap();
    let both = |named| [("OF_CUDA_DRIVER", library), ("OF_CUDNN", named)];
    for (named, failure, words) in [
        (library, "", "it agrees"),
        (library, "no engine", "no engine for this convolution of 16 channels to 24 in 1 groups"),
        (library, "no memory", "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED (4003)"),
        (library, "old", "its version is 8907, which is older than 90000"),
        ("/nowhere/libcudnn.so", "", "cuDNN was not found"),
    ] {
        let out = said("on_a_driver", &[&both(named)[..], &[("STUB_CUDNN", failure)]].concat());
        assert!(out.contains(words), "{failure}: {out}");
    }
}

#[test]
fn an_emulated_gpu_without_the_library_fails_to_load() {
    if !emulated() || std::env::var_os("OF_CUDNN").is_some() {
        return;
    }
    let f = of_type(&text(&PLAIN, true), DType::F32);
    let loaders: [Arc<dyn of_runtime::Loader>; 1] = [Arc::new(Device::default())];
    let error = Session::new(Arc::new(plan(&f, "emulated+cudnn")), 0, Options::default(), &loaders).err().unwrap();
    assert!(error.to_string().contains("OF_CUDNN names none"), "{error}");
}

#[test]
fn every_convolution_that_is_not_a_call_has_a_reason() {
    if !emulated() {
        return;
    }
    let with = |ops| Case { more: ("", ops), ..PLAIN };
    let scaled = "%k = of.constant {value = dense<0.25> : tensor<f32>}\n  %p = of.mul %c, %k\n  %y = of.relu %p";
    for (case, kind, words) in [
        (with("%y = of.gelu %c {tanh = false}"), "", "GELU and SiLU on tensor cores alone"),
        (with("%y = of.gelu %c {tanh = true}"), "", "GELU and SiLU on tensor cores alone"),
        (with("%y = of.tanh %c"), "", "no epilogue with Tanh"),
        (with("%y = of.relu %c"), "+tf32x3", "three tf32 products"),
        (with("%y = of.relu %c"), "+bf16", "rounded to 16 bits"),
        (with(scaled), "", "only in calls that add a tensor"),
        (
            Case { more: (", %r: tensor<2x9x8x1xf32>", "%y = of.add %c, %r"), ..PLAIN },
            "",
            "neither a row vector nor a tensor",
        ),
    ] {
        let f = function_of(&text(&case, false));
        let libraries = VendorLibraries::default().with(VendorLibrary::Cudnn);
        let isa = Isa::by_name(&format!("{CUDA_EMULATED}{kind}")).unwrap();
        let options = CompileOptions::new(Target { libraries, ..Target::new(isa, &[]) }, cache());
        let refused = compile(&[("main".into(), &f)], &options).unwrap_or_else(|d| panic!("{d}")).summary.rejected;
        let [refused] = &refused[..] else { panic!("{words}: {refused:?}") };
        assert!(refused.reason.contains(words) && refused.op == "of.conv", "{words}: {refused:?}");
        assert_eq!(refused.backend, "cudnn");
    }
}

#[test]
fn calls_in_plans_round_trip_or_are_rejected() {
    if !emulated() {
        return;
    }
    let factors = CASES.iter().find(|c| c.name == "factors").unwrap();
    let plan = inside(&of_type(&text(factors, false), DType::F32), "emulated+cudnn");
    let [call] = calls(&plan)[..] else { panic!("one call") };
    assert_eq!((call.scale, call.residual, call.bias, call.activation), (0.25, Some(-0.5), true, Activation::Relu));
    let read = |c: Convolution| Call::read(VendorLibrary::Cudnn, &Call::Convolution(c).write());
    assert_eq!(read(call), Ok(Call::Convolution(call)));
    assert!(Call::read(VendorLibrary::CublasLt, &Call::Convolution(call).write()).is_err());
    let program = DeviceProgram::of(&plan, &Endpoints::default()).unwrap();
    assert!(program.workspace.is_multiple_of(256) && program.workspace + of_cuda::WORKSPACE <= program.memory);
    for bad in [&b"of-cudnn-1"[..], b"", b"of-cudnn-1 0 0 0 1 1 1 1"] {
        assert!(Call::read(VendorLibrary::Cudnn, bad).is_err());
    }
    // Groups that do not divide the channels, a window that does not fit, stride 0, too many elements, a lone activation.
    let axis = |change: fn(&mut ConvolutionAxis)| {
        let mut bad = call;
        change(&mut bad.axes[1]);
        bad
    };
    for bad in [
        Convolution { groups: 5, ..call },
        Convolution { groups: 0, ..call },
        Convolution { samples: u64::MAX, ..call },
        Convolution { bias: false, ..call },
        axis(|a| a.kernel = 100),
        axis(|a| a.stride = 0),
        axis(|a| a.before = u64::MAX),
    ] {
        assert!(read(bad).is_err(), "{bad:?}");
    }
}
