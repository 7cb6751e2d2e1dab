//! Products by cuBLASLt: which groups become calls, and their results, on a stub library (`cublaslt.c`) that checks its
//! arguments. Tests that need it run in their own processes, which find it through the environment.

mod common;

use std::sync::Arc;

use common::calls::{compare, compare_on_a_driver, inputs, inside, numbers};
use common::{cache, emulated, function_of, plan, said, stub, to_runtime};
use of_codegen::Isa;
use of_codegen::isa::CUDA_EMULATED;
use of_codegen::vendor_libraries::cublaslt::{Matrix, Product};
use of_codegen::vendor_libraries::epilogue::Activation;
use of_codegen::vendor_libraries::{Call, VendorLibraries, VendorLibrary};
use of_codegen::{CompileOptions, Target, compile};
use of_cuda::{Device, DeviceProgram, Endpoints};
use of_ir::{DType, Func};
use of_ops::sample::Rng;
use of_ops::{Value, interpret};
use of_plan::PlanFile;
use of_runtime::{Options, Session};

/// Arguments, ops and result of a function of f32, and the expected numbers of calls and kernels.
type Case = (&'static str, &'static str, &'static str, usize, usize);

const CASES: &[(&str, Case)] = &[
    ("a product", ("%x: tensor<32x24xf32>, %w: tensor<24x40xf32>", "%y = of.matmul %x, %w", "32x40", 1, 0)),
    (
        "a line and a ReLU",
        (
            "%x: tensor<32x24xf32>, %w: tensor<24x40xf32>, %b: tensor<40xf32>",
            "%p = of.matmul %x, %w\n  %s = of.add %b, %p\n  %y = of.relu %s",
            "32x40",
            1,
            0,
        ),
    ),
    (
        "a line and the GELU by tanh",
        (
            "%x: tensor<32x24xf32>, %w: tensor<24x40xf32>, %b: tensor<40xf32>",
            "%p = of.matmul %x, %w\n  %s = of.add %p, %b\n  %y = of.gelu %s {tanh = true}",
            "32x40",
            1,
            0,
        ),
    ),
    (
        "a line and a tensor",
        (
            "%x: tensor<32x24xf32>, %w: tensor<24x40xf32>, %b: tensor<40xf32>, %r: tensor<32x40xf32>",
            "%p = of.matmul %x, %w\n  %s = of.add %p, %b\n  %y = of.add %s, %r",
            "32x40",
            1,
            0,
        ),
    ),
    (
        "factors",
        (
            "%x: tensor<32x24xf32>, %w: tensor<24x40xf32>, %r: tensor<32x40xf32>",
            "%c = of.constant {value = dense<0.25> : tensor<f32>}\n  %p = of.matmul %x, %w\n  %s = of.mul %p, %c\n  \
             %h = of.constant {value = dense<0.5> : tensor<f32>}\n  %t = of.mul %r, %h\n  %u = of.sub %s, %t\n  \
             %y = of.relu %u",
            "32x40",
            1,
            0,
        ),
    ),
    ("batches", ("%x: tensor<2x3x32x24xf32>, %w: tensor<2x3x24x40xf32>", "%y = of.matmul %x, %w", "2x3x32x40", 1, 0)),
    (
        "batches with one right operand",
        (
            "%x: tensor<3x32x24xf32>, %w: tensor<24x40xf32>, %b: tensor<40xf32>",
            "%p = of.matmul %x, %w\n  %y = of.add %p, %b",
            "3x32x40",
            1,
            0,
        ),
    ),
    (
        "batches with one left operand",
        ("%x: tensor<32x24xf32>, %w: tensor<3x24x40xf32>", "%y = of.matmul %x, %w", "3x32x40", 1, 0),
    ),
    (
        "a transposed left operand",
        (
            "%x: tensor<24x32xf32>, %w: tensor<24x40xf32>",
            "%t = of.transpose %x {perm = [1, 0]}\n  %y = of.matmul %t, %w",
            "32x40",
            1,
            0,
        ),
    ),
    (
        "both transposed, in batches",
        (
            "%x: tensor<3x24x32xf32>, %w: tensor<3x40x24xf32>",
            "%t = of.transpose %x {perm = [0, 2, 1]}\n  %u = of.transpose %w {perm = [0, 2, 1]}\n  %y = of.matmul %t, %u",
            "3x32x40",
            1,
            0,
        ),
    ),
    (
        "a transposed operand of rows that are one matrix's",
        (
            "%x: tensor<3x24x32xf32>, %w: tensor<24x40xf32>",
            "%t = of.transpose %x {perm = [0, 2, 1]}\n  %y = of.matmul %t, %w",
            "3x32x40",
            1,
            1,
        ),
    ),
    (
        "a transposed operand that another reads too",
        (
            "%x: tensor<24x32xf32>, %w: tensor<24x40xf32>, %v: tensor<24x40xf32>",
            "%t = of.transpose %x {perm = [1, 0]}\n  %p = of.matmul %t, %w\n  %q = of.matmul %t, %v\n  \
             %y = of.add %p, %q",
            "32x40",
            2,
            1,
        ),
    ),
    (
        "a product of a product",
        (
            "%x: tensor<32x24xf32>, %w: tensor<24x40xf32>, %v: tensor<40x16xf32>",
            "%p = of.matmul %x, %w\n  %r = of.relu %p\n  %y = of.matmul %r, %v",
            "32x16",
            2,
            0,
        ),
    ),
    (
        "a constant, and a kernel after it",
        (
            "%x: tensor<32x24xf32>",
            "%w = of.constant {value = dense<0.125> : tensor<24x40xf32>}\n  %p = of.matmul %x, %w\n  \
             %y = of.softmax %p {axis = -1}",
            "32x40",
            1,
            1,
        ),
    ),
];

fn text((arguments, ops, result, ..): &Case) -> String {
    format!("func @main({arguments}) -> (tensor<{result}xf32>) {{\n  {ops}\n  of.return %y\n}}\n")
}

/// The function of a case after the passes, with elements of this type.
fn of_type(case: &Case, dtype: DType) -> Func {
    function_of(&text(case).replace("xf32", &format!("x{dtype}")).replace("<f32>", &format!("<{dtype}>")))
}

/// The products that a plan calls.
fn calls(plan: &PlanFile) -> Vec<Product> {
    let product = |call| if let Call::Product(p) = call { Some(p) } else { None };
    common::calls::calls(plan).into_iter().filter_map(product).collect()
}

#[test]
fn groups_with_supported_epilogues_become_calls() {
    if !emulated() {
        return;
    }
    for (name, case) in CASES {
        let (_, _, _, want, kernels) = case;
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let f = of_type(case, dtype);
            let plan = inside(&f, "emulated+cublaslt");
            let names: Vec<&str> = plan.plan().code.iter().map(|c| &c.name[..]).collect();
            assert_eq!((calls(&plan).len(), names.len()), (*want, *kernels), "{name} of {dtype}: {names:?}");
            assert!(calls(&plan).iter().all(|c| c.dtype == dtype), "{name} of {dtype}");
            let own = inside(&f, "emulated");
            assert!(calls(&own).is_empty(), "nothing is called that was not asked for");
        }
    }
}

/// Runs in a process that has the library: all cases match the interpreter.
#[test]
#[ignore = "run by another test, in a process whose environment names the library"]
fn computed() {
    for (name, case) in CASES {
        for (dtype, tolerance) in [(DType::F32, 2e-6), (DType::F16, 2e-3), (DType::BF16, 1.6e-2)] {
            let f = of_type(case, dtype);
            compare(&format!("{name} of {dtype}"), &f, Arc::new(plan(&f, "emulated+cublaslt")), dtype, tolerance);
        }
    }
    // A 1x1 convolution is a product. The library may round f32 operands, as our kernels may.
    let conv = r#"
func @main(%x: tensor<2x20x6x4xf32>, %b: tensor<24xf32>) -> (tensor<2x24x6x4xf32>) {
  %w = of.constant {value = dense<0.125> : tensor<24x20x1x1xf32>}
  %c = of.conv %x, %w, %b {strides = [1, 1], pads = [0, 0, 0, 0], dilations = [1, 1], group = 1, auto_pad = "NOTSET", channels_last = false}
  %y = of.relu %c
  of.return %y
}
"#;
    let f = function_of(conv);
    assert_eq!(calls(&inside(&f, "emulated+tf32+cublaslt")).len(), 1);
    compare("a convolution", &f, Arc::new(plan(&f, "emulated+tf32+cublaslt")), DType::F32, 2e-6);
    // Extents known only at run time: the function is compiled at the run, with calls of the library too.
    let open = "func @main(%x: tensor<?(N)x24xf32>, %w: tensor<24x40xf32>) -> (tensor<?(N)x40xf32>) {\n  \
                %y = of.matmul %x, %w\n  of.return %y\n}\n";
    let file = plan(&function_of(open), "emulated+cublaslt");
    let mut session = Session::new(Arc::new(file), 0, Options::default(), &[Arc::new(Device::default())]).unwrap();
    for rows in [16, 33, 3] {
        let fixed = function_of(&open.replace("?(N)", &rows.to_string()));
        let inputs = inputs(&fixed.graph, &mut Rng::new(rows));
        let want = interpret::run_graph(&fixed.graph, &inputs).unwrap();
        let Value::Tensor(want) = &want[0] else { panic!("no tensor") };
        let got = session.run(inputs.iter().map(to_runtime).collect()).unwrap();
        let got = numbers(&got[0], DType::F32);
        assert!(got.iter().zip(want.to_f64s().unwrap()).all(|(a, b)| (a - b).abs() < 1e-5), "{rows} rows");
    }
    println!("all cases agree");
}

#[test]
fn library_calls_match_the_interpreter() {
    if !emulated() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let library = stub(dir.path());
    let out = said("computed", &[("OF_CUBLASLT", library.to_str().unwrap())]);
    assert!(out.contains("all cases agree"), "{out}");
}

/// Runs in a process that has a driver: a product on a GPU. It has no kernel, so the stub driver can compute all of it.
#[test]
#[ignore = "run by another test, in a process whose environment names a driver"]
fn on_a_driver() {
    let (_, case) = CASES.iter().find(|(name, _)| *name == "a line and a ReLU").unwrap();
    let f = of_type(case, DType::F16);
    compare_on_a_driver(&f, plan(&f, "sm_90+cublaslt"), DType::F16, 2e-3);
}

#[test]
fn recorded_products_match_the_interpreter() {
    let dir = tempfile::tempdir().unwrap();
    let library = stub(dir.path());
    let library = library.to_str().unwrap();
    let both = |named| [("OF_CUDA_DRIVER", library), ("OF_CUBLASLT", named)];
    for (named, failure, words) in [
        (library, "", "it agrees"),
        (library, "no algorithm", "the library does not support it"),
        (library, "no memory", "no memory for it"),
        ("/nowhere/libcublasLt.so", "", "cuBLASLt was not found"),
    ] {
        let out = said("on_a_driver", &[&both(named)[..], &[("STUB_CUBLASLT", failure)]].concat());
        assert!(out.contains(words), "{failure}: {out}");
    }
}

#[test]
fn an_emulated_gpu_without_the_library_fails_to_load() {
    if !emulated() || std::env::var_os("OF_CUBLASLT").is_some() {
        return;
    }
    let f = of_type(&CASES[0].1, DType::F32);
    let loaders: [Arc<dyn of_runtime::Loader>; 1] = [Arc::new(Device::default())];
    let error = Session::new(Arc::new(plan(&f, "emulated+cublaslt")), 0, Options::default(), &loaders).err().unwrap();
    assert!(error.to_string().contains("OF_CUBLASLT names none"), "{error}");
}

#[test]
fn every_product_that_is_not_a_call_has_a_reason() {
    let product = "%p = of.matmul %x, %w\n  ";
    let (x, w) = ("%x: tensor<32x24xf32>", "%w: tensor<24x40xf32>");
    let with = |more: &str, ops: &str| {
        format!("func @main({x}, {w}{more}) -> (tensor<32x40xf32>) {{\n  {product}{ops}\n  of.return %y\n}}\n")
    };
    let few = "func @main(%x: tensor<8x24xf32>, %w: tensor<24x40xf32>) -> (tensor<8x40xf32>) {\n  %y = of.matmul %x, %w\n  \
               of.return %y\n}\n";
    for (text, kind, words) in [
        (few.to_string(), "", "one is less than 16"),
        (with("", "%y = of.gelu %p {tanh = false}"), "", "its GELU is exact"),
        (with("", "%y = of.tanh %p"), "", "no epilogue with Tanh"),
        (
            with("", "%c = of.constant {value = dense<2.0> : tensor<f32>}\n  %y = of.add %p, %c"),
            "",
            "its epilogue adds a constant",
        ),
        (with("", "%y = of.mul %p, %p"), "", "multiplies or divides by a value that is no constant"),
        (with(", %r: tensor<32x1xf32>", "%y = of.add %p, %r"), "", "neither a row vector nor a tensor"),
        (
            with(", %b: tensor<40xf32>, %c: tensor<40xf32>", "%s = of.add %p, %b\n  %y = of.add %s, %c"),
            "",
            "at most one tensor and one row vector",
        ),
        (with("", "%y = of.relu %p"), "+tf32x3", "three tf32 products"),
        (with("", "%t = of.relu %p\n  %y = of.sub %t, %p"), "", "no epilogue with Max"),
    ] {
        let f = function_of(&text);
        let libraries = VendorLibraries::default().with(VendorLibrary::CublasLt);
        let options = CompileOptions::new(
            Target { libraries, ..Target::new(Isa::by_name(&format!("{CUDA_EMULATED}{kind}")).unwrap(), &[]) },
            cache(),
        );
        if !emulated() {
            return;
        }
        let refused = compile(&[("main".into(), &f)], &options).unwrap_or_else(|d| panic!("{d}")).summary.rejected;
        let [refused] = &refused[..] else { panic!("{words}: {refused:?}") };
        assert!(refused.reason.contains(words) && refused.op == "of.matmul", "{words}: {refused:?}");
    }
}

#[test]
fn calls_in_plans_round_trip_or_are_rejected() {
    let (_, case) = CASES.iter().find(|(name, _)| *name == "factors").unwrap();
    if !emulated() {
        return;
    }
    let plan = inside(&of_type(case, DType::F32), "emulated+cublaslt");
    let [call] = calls(&plan)[..] else { panic!("one call") };
    assert_eq!((call.scale, call.residual, call.bias, call.activation), (0.25, Some(-0.5), false, Activation::Relu));
    let read = |bytes: &[u8]| Call::read(VendorLibrary::CublasLt, bytes);
    assert_eq!(read(&Call::Product(call).write()), Ok(Call::Product(call)));
    let program = DeviceProgram::of(&plan, &Endpoints::default()).unwrap();
    assert!(program.workspace.is_multiple_of(256) && program.workspace + of_cuda::WORKSPACE <= program.memory);
    for bad in [&b"of-cublaslt-1"[..], b"", b"of-cublaslt-1 0 0 0 1 1 1 1 0 0 0 0 0 0 0 0 0 0 0 0 0"] {
        assert!(read(bad).is_err());
    }
    // Overlapping rows, extents beyond the integer range, and types that the library does not support.
    for bad in [
        Product { activation: Activation::Silu, ..call },
        Product { columns: call.columns + 1, ..call },
        Product { batches: u64::MAX, result: Matrix { batch: 2, ..call.result }, ..call },
    ] {
        assert!(read(&Call::Product(bad).write()).is_err());
    }
}
