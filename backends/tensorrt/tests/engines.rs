//! Engines, built without a GPU, if TensorRT is installed; the errors if it is not, or if there is no GPU.

use of_codegen::Backend;
use of_ir::text::parse_module;
use of_ir::{Func, OpId};
use of_runtime::{LoadContext, LoadError, Loader};
use of_tensorrt::{Range, Ranges, TensorRt};
use of_test_support::claims::Claims;
use of_test_support::component::{TENSORRT, require};
use of_test_support::op;
use of_test_support::plans::one_op;

/// A convolution, a softmax and a product, with weights.
const NET: &str = "
func @main(%x: tensor<1x3x8x8xf32>) -> (tensor<1x4xf32>) {
  %w = of.constant {value = dense<0.25> : tensor<4x3x3x3xf32>}
  %none = of.none
  %c = of.conv %x, %w, %none {strides = [1, 1], pads = [1, 1, 1, 1], dilations = [1, 1], group = 1, auto_pad = \"NOTSET\", channels_last = false}
      : (tensor<1x3x8x8xf32>, tensor<4x3x3x3xf32>, none) -> tensor<1x4x8x8xf32>
  %r = of.relu %c : (tensor<1x4x8x8xf32>) -> tensor<1x4x8x8xf32>
  %p = of.global_average_pool %r : (tensor<1x4x8x8xf32>) -> tensor<1x4x1x1xf32>
  %shape = of.constant {value = dense<[1, 4]> : tensor<2xi64>}
  %f = of.reshape %p, %shape {allowzero = false} : (tensor<1x4x1x1xf32>, tensor<2xi64>) -> tensor<1x4xf32>
  %s = of.softmax %f {axis = -1} : (tensor<1x4xf32>) -> tensor<1x4xf32>
  of.return %s : (tensor<1x4xf32>) -> ()
}";

fn func(text: &str) -> Func {
    let module = parse_module(text, "test", &of_ops::registry(), None).unwrap_or_else(|d| panic!("{d}"));
    module.main().unwrap().clone()
}

fn ops(func: &Func) -> Vec<OpId> {
    let g = &func.graph;
    let own = |op: &OpId| !g.op(*op).def.traits().terminator && !g.op(*op).def.traits().constant;
    g.region_ops(g.entry()).filter(own).filter(|op| g.ty(g.op(*op).results[0]) != &of_ir::Type::None).collect()
}

/// Whether TensorRT is installed.
#[track_caller]
fn installed() -> bool {
    require(&TENSORRT, of_tensorrt::c_api()).is_some()
}

fn load(backend: &TensorRt, bytes: &[u8]) -> Result<(), LoadError> {
    let (program, task, exec) = Default::default();
    let context = LoadContext {
        program: &program,
        task: &task,
        exec: &exec,
        threads: 1,
        device: 0,
        rank_context: None,
        handles: &[],
        output_handles: &[],
    };
    backend.load(bytes, context).map(drop)
}

#[test]
fn engines_are_built_without_a_gpu() {
    if !installed() {
        return;
    }
    let f = func(NET);
    let backend = TensorRt::default();
    for op in ops(&f) {
        assert_eq!(backend.claims(&f.graph, op), Ok(()), "{}", f.graph.op(op).name());
    }
    let bytes = backend.compile(&f).unwrap_or_else(|d| panic!("{d}"));
    let head = String::from_utf8_lossy(&bytes[..200]).into_owned();
    assert!(head.starts_with("of-tensorrt 2\nversion TensorRT"), "{head}");
    assert!(head.contains("in 0 x f32 1x3x8x8 x\n"), "{head}");
    // Where there is no GPU, or another one, a plan is refused before it runs.
    if let Err(e) = load(&backend, &bytes) {
        assert!(matches!(e, LoadError::Unsupported(_)), "{e}");
    }
    // An engine of another version is refused in any case.
    let at = head.find("version ").unwrap() + "version TensorRT".len();
    let mut other = bytes.clone();
    other[at] = b'?';
    assert!(
        matches!(load(&backend, &other), Err(LoadError::Unsupported(why)) if why.contains("compile the plan again"))
    );
    let last = other.len() - 1;
    other[last] ^= 1;
    assert_eq!(load(&backend, &other), Err(LoadError::Payload("the engine is damaged".into())));
}

/// Symbolic extents with ranges, one of them derived, and shapes from outside or inside the subgraph.
#[test]
fn engines_support_ranges() {
    if !installed() {
        return;
    }
    let f = func(
        "func @main(%x: tensor<?(N)x?(2*S)x8xf32>, %to: tensor<4xi64>, %row: tensor<1x8xf32>)
            -> (tensor<?(N)x?(S)x4x4xf32>, tensor<?(N*S*4)x4xf32>, tensor<?(N)x8xf32>) {
          %a = of.reshape %x, %to {allowzero = false} : (tensor<?(N)x?(2*S)x8xf32>, tensor<4xi64>) -> tensor<?(N)x?(S)x4x4xf32>
          %r = of.relu %a : (tensor<?(N)x?(S)x4x4xf32>) -> tensor<?(N)x?(S)x4x4xf32>
          %rows = of.constant {value = dense<[-1, 4]> : tensor<2xi64>}
          %b = of.reshape %r, %rows {allowzero = false} : (tensor<?(N)x?(S)x4x4xf32>, tensor<2xi64>) -> tensor<?(N*S*4)x4xf32>
          %axes = of.constant {value = dense<1> : tensor<1xi64>}
          %m = of.reduce_max %x, %axes {keepdims = false} : (tensor<?(N)x?(2*S)x8xf32>, tensor<1xi64>) -> tensor<?(N)x8xf32>
          %y = of.add %m, %row : (tensor<?(N)x8xf32>, tensor<1x8xf32>) -> tensor<?(N)x8xf32>
          of.return %r, %b, %y : (tensor<?(N)x?(S)x4x4xf32>, tensor<?(N*S*4)x4xf32>, tensor<?(N)x8xf32>) -> ()
        }",
    );
    let range = |min, opt, max| Range { min, opt, max };
    let ranges = Ranges::from([("N".to_string(), range(1, 8, 64)), ("S".to_string(), range(2, 3, 4))]);
    let backend = TensorRt::default().within(ranges);
    for op in ops(&f) {
        assert_eq!(backend.claims(&f.graph, op), Ok(()), "{}", f.graph.op(op).name());
        assert!(TensorRt::default().claims(&f.graph, op).unwrap_err().contains("extents are not known"));
    }
    let bytes = backend.compile(&f).unwrap_or_else(|d| panic!("{d}"));
    let head = String::from_utf8_lossy(&bytes[..400]).into_owned();
    // The extents of a reshape are computed inside: their operand is not an input.
    let lines: Vec<&str> = head.lines().filter(|l| l.starts_with("in ") || l.starts_with("out ")).collect();
    let want = [
        "in 0 x f32 1:8:64x4:6:8x8 x",
        "in 2 row f32 1x8 row",
        "out 0 out0 f32 1:8:64x2:3:4x4x4 r",
        "out 1 out1 f32 8:96:1024x4 b",
        "out 2 out2 f32 1:8:64x8 y",
    ];
    assert_eq!(lines.len(), want.len(), "{head}");
    for (line, want) in lines.iter().zip(want) {
        let named =
            |l: &str| l.split(' ').enumerate().filter(|(i, _)| *i != 2).map(|(_, w)| w.to_string()).collect::<Vec<_>>();
        assert_eq!(named(line), named(want));
    }
    if let Err(e) = load(&backend, &bytes) {
        assert!(matches!(e, LoadError::Unsupported(_)), "{e}");
    }
}

#[test]
fn unsupported_ops_have_a_reason() {
    if !installed() {
        return;
    }
    let f = func(
        "func @main(%x: tensor<?(N)x4xf32>, %d: tensor<2xf64>, %y: tensor<2x4xf32>, %shape: tensor<2xi64>)
            -> (tensor<?(N)x4xf32>, tensor<2xf64>, tensor<?(M)x4xf32>) {
          %a = of.relu %x : (tensor<?(N)x4xf32>) -> tensor<?(N)x4xf32>
          %b = of.exp %d : (tensor<2xf64>) -> tensor<2xf64>
          %c = of.tile %y, %shape : (tensor<2x4xf32>, tensor<2xi64>) -> tensor<?(M)x4xf32>
          of.return %a, %b, %c : (tensor<?(N)x4xf32>, tensor<2xf64>, tensor<?(M)x4xf32>) -> ()
        }",
    );
    let backend = TensorRt::default().within(Ranges::from([("M".to_string(), Range { min: 1, opt: 2, max: 9 })]));
    let [open, double, shape] = ops(&f)[..] else { panic!() };
    let why = |op| backend.claims(&f.graph, op).unwrap_err();
    assert!(why(open).contains("extents are not known"), "{}", why(open));
    assert_eq!(
        backend.remedy(&f.graph, open).as_deref(),
        Some("--shape N=NUMBER gives its extent, N=MIN:OPT:MAX a range of it")
    );
    assert!(why(double).contains("holds no f64"), "{}", why(double));
    assert!(why(shape).contains("read as a shape"), "{}", why(shape));
}

#[test]
fn a_missing_tensorrt_names_the_install_command() {
    match of_tensorrt::c_api() {
        // Then the other tests of this file do their work.
        Ok(_) => {}
        Err(e) => {
            let f = func(NET);
            assert_eq!(TensorRt::default().claims(&f.graph, ops(&f)[0]), Err(e.to_string()));
            let head = "of-tensorrt 2\nversion x\narchs 80\nengine 0 ";
            let bytes = format!("{head}{}\n", blake3::hash(b"").to_hex());
            assert!(matches!(load(&TensorRt::default(), bytes.as_bytes()), Err(LoadError::Unsupported(_))));
        }
    }
}

/// TensorRT's parser decides which ops are supported, so the list is known only where TensorRT is installed.
#[test]
fn the_ops_that_tensorrt_takes() {
    if !installed() {
        return;
    }
    let backend = TensorRt::default();
    let mut claims = Claims::default();
    for (decl, _, sample) in op::samples(4).filter(|(d, ..)| !d.traits().effect && !d.traits().terminator) {
        let (func, _) = one_op(&*sample.op, &sample.operands, false);
        let op = func.graph.walk()[func.graph.walk().len() - 2];
        if func.graph.op(op).name() == decl.name() {
            let taken = backend.claims(&func.graph, op);
            claims.add(decl.name(), taken.is_ok(), || taken.clone().unwrap_err());
        }
    }
    insta::assert_snapshot!("tensorrt", claims);
}
