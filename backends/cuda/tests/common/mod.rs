//! Helpers shared by the tests of this crate.

#![allow(dead_code, reason = "each test uses its part")]

pub mod calls;
pub mod ranks;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use of_codegen::{Pin, Request, place};
use of_cuda::Cuda;
use of_ir::Func;
use of_plan::PlanFile;
use of_runtime::Tensor;

#[allow(unused_imports, reason = "each test uses its part")]
pub use of_test_support::plans::{after_passes, cache, function_of, placed, to_runtime};

/// The plan of a function that runs on a GPU of this architecture alone.
pub fn plan(f: &Func, arch: &str) -> PlanFile {
    let cache = cache();
    let backend = Cuda::new(arch, cache.clone()).unwrap();
    let mut f = f.clone();
    place::entirely(&mut [&mut f], &backend).unwrap_or_else(|d| panic!("{d}"));
    placed(&f, &[&backend], cache)
}

/// The plan of a text in which only products run on the GPU.
pub fn shared(text: &str, arch: &str, subgraphs: usize) -> Arc<PlanFile> {
    let backend = Cuda::new(arch, cache()).unwrap();
    let (wanted, mut f) = (["cuda".to_string()], function_of(text));
    let pins = ["of.tanh", "of.cum_sum", "of.slice"].iter().filter(|op| text.contains(**op));
    let pins: Vec<Pin> = pins.map(|op| Pin { op: (*op).into(), backend: place::NATIVE.into() }).collect();
    let request = Request { known: &[&backend], wanted: &wanted, pins: &pins, min_subgraph_size: 0 };
    let placement = place::place(&mut f, &request).unwrap_or_else(|d| panic!("{d}"));
    assert_eq!(placement.subgraphs.len(), subgraphs, "{placement:?}");
    Arc::new(placed(&f, &[&backend], cache()))
}

/// The elements of a tensor of f32.
pub fn numbers(v: &of_runtime::Value) -> Vec<f64> {
    let bytes = v.as_tensor().and_then(Tensor::bytes).unwrap();
    bytes.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect()
}

/// Whether GPUs can be emulated here.
#[track_caller]
pub fn emulated() -> bool {
    of_test_support::plans::emulated_gpu().is_some()
}

/// Stubs of the driver, cuBLASLt, cuDNN and NCCL that need no device: `stub.c`, `cublaslt.c`, `cudnn.c` and `nccl.c`, each
/// built as a shared library in this folder.
pub fn stub(dir: &Path) -> PathBuf {
    let (out, sources) = (dir.join("libcuda-stub.so"), Path::new(env!("CARGO_MANIFEST_DIR")).join("tests"));
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-shared", "-fPIC", "-o"])
        .arg(&out)
        .args(["stub.c", "cublaslt.c", "cudnn.c", "nccl.c"].map(|f| sources.join(f)))
        .args(["-lm", "-lpthread"]);
    assert!(cc.status().unwrap().success());
    out
}

/// The output of an ignored test of this program that runs in its own process with these environment variables.
pub fn said(test: &str, variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--ignored"]).envs(variables.iter().copied());
    let out = command.output().unwrap();
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}
