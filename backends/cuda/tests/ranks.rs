//! Ranks on GPUs: transfers between ranks are steps of their programs. Emulated GPUs exchange through host memory and a stub
//! of NCCL (`nccl.c`); the driver layer is tested on a stub driver (`stub.c`).

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::ranks::{
    NETWORK, all_pairs, close, compare, embedded, inputs, layers, module, moved, numbers, plan, rank_3_fails, session,
    transfers, whole,
};
use common::{cache, emulated, function_of, said, stub, to_runtime};
use of_codegen::{Backend, Overhead, Pin};
use of_cuda::{Cuda, Device};
use of_diag::Diagnostic;
use of_ir::{DType, Func, Graph, OpId, Sbp};
use of_ops::sample::Rng;
use of_plan::BackendTransfer;
use of_runtime::{Options, Session};
use of_sharding::layout;

/// Each rank's part is read by a transfer, and by the users of the transfer's result.
const AROUND: &str = r#"
func @main(%x: tensor<32x32xf32, #of.sbp<@m, [B]>>, %w: tensor<32x32xf32, #of.sbp<@m, [S(1)]>>) -> (tensor<32x32xf32, #of.sbp<@m, [S(1)]>>) {
  %a = of.matmul %x, %w : (tensor<32x32xf32, #of.sbp<@m, [B]>>, tensor<32x32xf32, #of.sbp<@m, [S(1)]>>) -> tensor<32x32xf32, #of.sbp<@m, [S(1)]>>
  %h = of.sharding_constraint %a {sharding = #of.sbp<@m, [B]>} : (tensor<32x32xf32, #of.sbp<@m, [S(1)]>>) -> tensor<32x32xf32, #of.sbp<@m, [B]>>
  %y = of.matmul %h, %a : (tensor<32x32xf32, #of.sbp<@m, [B]>>, tensor<32x32xf32, #of.sbp<@m, [S(1)]>>) -> tensor<32x32xf32, #of.sbp<@m, [S(1)]>>
  of.return %y : (tensor<32x32xf32, #of.sbp<@m, [S(1)]>>) -> ()
}
"#;

/// The same for one device.
const ALONE: &str = "func @main(%x: tensor<32x24xf32>, %w1: tensor<24x64xf32>, %w2: tensor<64x32xf32>) \
                       -> (tensor<32x32xf32>, tensor<32x64xf32>) {
  %a = of.matmul %x, %w1\n  %r = of.relu %a\n  %p = of.matmul %r, %w2\n  of.return %p, %r\n}\n";

fn everything() {
    let emulated = Cuda::new("emulated", cache()).unwrap();
    for (mesh, shape, dims, dtype) in
        [("cpu[3]", &[3][..], [6, 5], "f32"), ("cpu[2x2]", &[2, 2], [7, 4], "f32"), ("cpu[4]", &[4], [5, 8], "i32")]
    {
        for (what, module) in all_pairs(mesh, shape, dims, dtype) {
            let plan = plan(&module, mesh, (1, 1), &emulated, &[]);
            // The compiler splits a transfer that reduces along some mesh axes and moves along others in two.
            assert!(transfers(&plan).0 > 0 && transfers(&plan).1 == 0, "{what}: {:?}", transfers(&plan));
            compare(&what, &module, &plan);
        }
    }
    for mesh in ["cpu[2]", "cpu[4]"] {
        let network = module(mesh, NETWORK);
        let plan = plan(&network, mesh, (1, 1), &emulated, &[]);
        assert_eq!(transfers(&plan), (2, 0));
        compare("a network", &network, &plan);
    }
    for layout in layout::all(3, 1, &[]) {
        let embedded = embedded(&layout);
        compare("partial values", &embedded, &whole(&embedded, "cpu[2]", &emulated));
    }
    for axis in 0..3 {
        let module = moved("cpu[2]", "4x6x8", "P(sum)", &format!("S({axis})"));
        let plan = plan(&module, "cpu[2]", (1, 1), &emulated, &[]);
        assert_eq!(transfers(&plan), (1, 0));
        compare("a sum in slices", &module, &plan);
    }
    for (mesh, stages, microbatches) in [("cpu[3]", 3, 2), ("cpu[2x2]", 2, 4)] {
        let plan = plan(&layers(), mesh, (stages, microbatches), &emulated, &[]);
        // A transfer between stages is a phase of its own, which computes nothing, so the host runs it.
        assert!(transfers(&plan).1 > 0, "{mesh}");
        compare("stages", &layers(), &plan);
    }
}

#[test]
fn exchanges_of_emulated_gpus_match_the_interpreter() {
    if emulated() && std::env::var_os("OF_NCCL").is_none() {
        everything();
    }
}

/// Runs in a process that has the library.
#[test]
#[ignore = "run by another test, in a process whose environment names the library"]
fn by_a_library() {
    everything();
    println!("all agree");
}

#[test]
fn exchanges_by_nccl_match_the_interpreter() {
    if !emulated() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let library = stub(dir.path());
    let out = said("by_a_library", &[("OF_NCCL", library.to_str().unwrap()), ("STUB_SAYS", "1")]);
    assert!(out.contains("all agree"), "{out}");
    for call in ["all-reduce", "reduce-scatter", "all-gather", "send", "receive"] {
        assert!(out.contains(&format!(" {call} ")), "no {call}");
    }
    // Slices along each of three axes, in two runs on two ranks.
    assert_eq!(out.matches(" of 2: reduce-scatter 96\n").count(), 12);
}

/// Another backend that randomly excludes a few ops, different ones for each rank.
struct Picky(Cuda, AtomicU64);

impl Backend for Picky {
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn claims(&self, graph: &Graph, op: OpId) -> Result<(), String> {
        let number = self.1.fetch_add(1, Ordering::Relaxed);
        if Rng::new(number).int(0, 3) == 0 { Err("not today".into()) } else { self.0.claims(graph, op) }
    }
    fn exchanges(&self, rendezvous: &BackendTransfer, mesh: &[usize]) -> Result<(), String> {
        let number = self.1.fetch_add(1, Ordering::Relaxed);
        if Rng::new(number).int(0, 9) == 0 { Err("not today".into()) } else { self.0.exchanges(rendezvous, mesh) }
    }
    fn overhead(&self) -> Overhead {
        self.0.overhead()
    }
    fn largest_constant(&self, open: bool) -> usize {
        self.0.largest_constant(open)
    }
    fn compile(&self, func: &Func) -> Result<Vec<u8>, Diagnostic> {
        self.0.compile(func)
    }
}

#[test]
fn ranks_rendezvous_with_different_subgraphs_on_each_gpu() {
    if !emulated() {
        return;
    }
    let b = Sbp::Broadcast.to_string();
    let mut ops = String::new();
    let (rows, whole) = ("tensor<8x12xf32, #of.sbp<@m, [S(0)]>>", format!("tensor<8x12xf32, #of.sbp<@m, [{b}]>>"));
    for i in 0..5 {
        ops += &format!("  %a{i} = of.tanh %x{i} : ({rows}) -> {rows}\n");
        ops += &format!(
            "  %b{i} = of.sharding_constraint %a{i} {{sharding = #of.sbp<@m, [{b}]>}} : ({rows}) -> {whole}\n"
        );
        ops += &format!("  %c{i} = of.sigmoid %b{i} : ({whole}) -> {whole}\n");
        ops += &format!(
            "  %x{} = of.sharding_constraint %c{i} {{sharding = #of.sbp<@m, [S(0)]>}} : ({whole}) -> {rows}\n",
            i + 1
        );
    }
    let text = format!("func @main(%x0: {rows}) -> ({rows}) {{\n{ops}  of.return %x5 : ({rows}) -> ()\n}}\n");
    let module = module("cpu[3]", &text);
    let (mut inside, mut outside) = (0, 0);
    for seed in 0..12 {
        let picky = Picky(Cuda::new("emulated", cache()).unwrap(), AtomicU64::new(seed * 1000));
        let plan = plan(&module, "cpu[3]", (1, 1), &picky, &[]);
        (inside, outside) = (inside + transfers(&plan).0, outside + transfers(&plan).1);
        compare(&format!("seed {seed}"), &module, &plan);
    }
    assert!(inside > 10 && outside > 10, "{inside} inside and {outside} outside");
}

#[test]
fn transfers_in_native_code_use_host_memory() {
    if !emulated() {
        return;
    }
    let emulated = Cuda::new("emulated", cache()).unwrap();
    let network = module("cpu[2]", NETWORK);
    let native = [Pin { op: "of.transfer".into(), backend: "native".into() }];
    let plan = plan(&network, "cpu[2]", (1, 1), &emulated, &native);
    assert_eq!(transfers(&plan), (0, 2));
    compare("through the host", &network, &plan);
}

#[test]
fn a_failing_rank_stops_its_peers() {
    if !emulated() {
        return;
    }
    // Only the rank that has the last index reads row 9 of 8.
    let text = r#"
func @main(%t: tensor<8x6xf32, #of.sbp<@m, [B]>>, %i: tensor<4xi64, #of.sbp<@m, [S(0)]>>) -> (tensor<4x6xf32, #of.sbp<@m, [B]>>) {
  %g = of.gather %t, %i {axis = 0} : (tensor<8x6xf32, #of.sbp<@m, [B]>>, tensor<4xi64, #of.sbp<@m, [S(0)]>>) -> tensor<4x6xf32, #of.sbp<@m, [S(0)]>>
  %y = of.sharding_constraint %g {sharding = #of.sbp<@m, [B]>} : (tensor<4x6xf32, #of.sbp<@m, [S(0)]>>) -> tensor<4x6xf32, #of.sbp<@m, [B]>>
  of.return %y : (tensor<4x6xf32, #of.sbp<@m, [B]>>) -> ()
}
"#;
    let emulated = Cuda::new("emulated", cache()).unwrap();
    let plan = plan(&module("cpu[4]", text), "cpu[4]", (1, 1), &emulated, &[]);
    assert_eq!(transfers(&plan), (1, 0));
    let mut session = session(&plan).unwrap();
    rank_3_fails(&mut session);
}

/// Runs in a process that has a driver: products and transfers have no kernels, so the stub driver can compute all of it.
#[test]
#[ignore = "run by another test, in a process whose environment names a driver"]
fn on_a_driver() {
    let network = module("cpu[2]", NETWORK);
    let plan = plan(&network, "cpu[2]", (1, 1), &Cuda::new("sm_90+cublaslt", cache()).unwrap(), &[]);
    assert_eq!(transfers(&plan), (2, 0));
    let mut session = match session(&plan) {
        Ok(session) => session,
        Err(e) => return println!("refused: {e}"),
    };
    let given: Vec<_> = inputs(&network.main().unwrap().graph, 3).iter().map(to_runtime).collect();
    if let Err(e) = session.run(&given) {
        println!("failed: {e}");
        return println!("then: {}", session.run(&given).unwrap_err());
    }
    drop(session);
    compare("on a driver", &network, &plan);
    println!("it agrees");
}

/// Runs in a process that has a driver with four devices: ranks that run fully on GPUs match one device.
#[test]
#[ignore = "run by another test, in a process whose environment names a driver"]
fn whole_on_a_driver() {
    let cuda = Cuda::new("sm_90+cublaslt", cache()).unwrap();
    let alone = Arc::new(common::plan(&function_of(ALONE), "sm_90+cublaslt"));
    let mut alone = Session::new(alone, 0, Options::default(), &[Arc::new(Device::default())]).unwrap();
    for layout in layout::all(3, 1, &[]) {
        let embedded = embedded(&layout);
        compare("partial values", &embedded, &whole(&embedded, "cpu[2]", &cuda));
    }
    for mesh in ["cpu[2]", "cpu[4]"] {
        let network = module(mesh, NETWORK);
        let plan = whole(&network, mesh, &cuda);
        assert_eq!(transfers(&plan), (2, 0));
        compare(mesh, &network, &plan);
        let given: Vec<_> = inputs(&network.main().unwrap().graph, 3).iter().map(to_runtime).collect();
        let (got, want) = (session(&plan).unwrap().run(&given).unwrap(), alone.run(given).unwrap());
        assert_eq!(got.len(), want.len());
        for (got, want) in got.iter().zip(&want) {
            close(mesh, &numbers(got, DType::F32), &numbers(want, DType::F32));
        }
    }
    println!("as one device");
}

#[test]
fn ranks_fully_on_gpus_match_one_device() {
    let dir = tempfile::tempdir().unwrap();
    let library = stub(dir.path());
    let library = library.to_str().unwrap();
    let variables = ["OF_CUDA_DRIVER", "OF_CUBLASLT", "OF_NCCL"].map(|name| (name, library));
    let out = said("whole_on_a_driver", &[&variables[..], &[("STUB_DEVICES", "4"), ("STUB_SAYS", "1")]].concat());
    assert!(out.contains("as one device"), "{out}");
    for words in ["rank 1 of 2: all-reduce 1024 all-gather 4096\n", "rank 3 of 4: all-reduce 1024 all-gather 2048\n"] {
        assert!(out.contains(words), "{words}: {out}");
    }
    assert!((0..4).all(|device| out.contains(&format!("device {device}\n"))), "{out}");
}

/// Runs in a process that has a driver: exchanges go through the host, and the other values stay on the devices.
#[test]
#[ignore = "run by another test, in a process whose environment names a driver"]
fn around_on_a_driver() {
    let around = module("cpu[2]", AROUND);
    let native = [Pin { op: "of.transfer".into(), backend: "native".into() }];
    let cuda = Cuda::new("sm_90+cublaslt", cache()).unwrap();
    let plan = plan(&around, "cpu[2]", (1, 1), &cuda, &native);
    assert_eq!(transfers(&plan), (0, 1));
    compare("around", &around, &plan);
    println!("it agrees");
}

#[test]
fn a_value_read_by_a_host_transfer_is_copied_once() {
    let dir = tempfile::tempdir().unwrap();
    let library = stub(dir.path());
    let library = library.to_str().unwrap();
    let variables = [("OF_CUDA_DRIVER", library), ("OF_CUBLASLT", library), ("STUB_DEVICES", "2"), ("STUB_SAYS", "1")];
    let out = said("around_on_a_driver", &variables);
    assert!(out.contains("it agrees"), "{out}");
    // On each of two ranks: uploads of x, w and the transfer's result; downloads of the transfer's operand and the result.
    assert_eq!((out.matches("up ").count(), out.matches("down ").count()), (6, 4), "{out}");
}

#[test]
fn exchanges_run_between_recorded_segments() {
    let dir = tempfile::tempdir().unwrap();
    let library = stub(dir.path());
    let library = library.to_str().unwrap();
    for (nccl, devices, failure, words) in [
        (library, "2", "", &["it agrees", "rank 1 of 2: all-reduce 1024 all-gather 4096\n"][..]),
        ("/nowhere/libnccl.so", "2", "", &["refused: ", "NCCL was not found", "--pin of.transfer=native"]),
        (library, "1", "", &["refused: ", "ranks 0 and 1 would exchange on one GPU"]),
        (library, "2", "no id", &["refused: ", "ncclGetUniqueId failed: a system call failed"]),
        (library, "2", "no join", &["refused: ", "ncclCommInitRank failed"]),
        (library, "2", "breaks", &["failed: rank 1: ", "ncclGroupEnd failed", "aborted", "then: "]),
    ] {
        let variables = [
            ("OF_CUDA_DRIVER", library),
            ("OF_CUBLASLT", library),
            ("OF_NCCL", nccl),
            ("STUB_DEVICES", devices),
            ("STUB_NCCL", failure),
            ("STUB_SAYS", "1"),
        ];
        let out = said("on_a_driver", &variables);
        assert!(words.iter().all(|w| out.contains(w)), "{failure} {words:?}: {out}");
    }
}
