//! The driver layer on a stub driver (`stub.c`), in separate processes, which find it through the environment.

mod common;

use std::sync::Arc;

use common::{placed, said};
use of_codegen::Backend;
use of_codegen::place;
use of_codegen::toolchain::cache::Cache;
use of_cuda::{Cuda, Device, Timing};
use of_plan::ElementType;
use of_runtime::{LoadContext, Loader, Options, Session, StepTiming, Tensor};
use of_test_support::plans::nvrtc;

const TEXT: &str = r#"
func @main(%x: tensor<8xf32> {of.name = "x"}) -> (tensor<8xf32> {of.name = "y"}, tensor<8xf32> {of.name = "same"}) {
  %y = of.tanh %x
  of.return %y, %x
}
"#;

/// The body of the child process: it runs a program twice and prints the outcome.
#[test]
#[ignore = "run by another test, in a process whose environment names a driver"]
fn inner() {
    let module = of_ir::text::parse_module(TEXT, "test", &of_ops::registry(), None).unwrap_or_else(|d| panic!("{d}"));
    let arch = std::env::var("STUB_ARCH").unwrap_or_else(|_| "sm_90".into());
    let backend = Cuda::new(&arch, Cache::none()).unwrap();
    let mut func = module.main().unwrap().clone();
    place::entirely(&mut [&mut func], &backend).unwrap_or_else(|d| panic!("{d}"));
    let plan = Arc::new(placed(&func, &[&backend], Cache::none()));
    let mut session = match Session::new(plan, 0, Options::default(), &[Arc::new(Device::default())]) {
        Ok(session) => session,
        Err(e) => return println!("refused: {e}"),
    };
    for first in [3.0f32, 4.0] {
        let bytes: Vec<u8> = (0..8).flat_map(|i| (first + i as f32).to_le_bytes()).collect();
        let x = Tensor::from_bytes(ElementType::F32, vec![8], &bytes).unwrap();
        match session.run(vec![x.into()]) {
            Ok(out) => assert_eq!(out[1].as_tensor().and_then(Tensor::bytes), Some(&bytes[..])),
            Err(e) => return println!("failed: {e}"),
        }
    }
    println!("two runs came back");
}

/// The body of another child process: it prints the measured steps of two runs.
#[test]
#[ignore = "run by another test, in a process whose environment names a driver"]
fn timed() {
    let text = "func @main(%x: tensor<8x16xf32>, %w: tensor<16x4xf32>) -> (tensor<8x4xf32>) {\n  %p = of.matmul %x, %w\n  \
                %y = of.softmax %p {axis = -1}\n  of.return %y\n}\n";
    let plan = Arc::new(common::plan(&common::function_of(text), "sm_90"));
    for timing in [Timing::Whole, Timing::Steps] {
        let loader = Device::default().timed(timing);
        let options = Options { threads: 1, profile: true, ..Default::default() };
        let mut session = Session::new(Arc::clone(&plan), 0, options, &[Arc::new(loader)]).unwrap();
        for _ in 0..2 {
            let tensor =
                |dims: [i64; 2]| Tensor::from_elements(dims, &vec![0.5f32; (dims[0] * dims[1]) as usize]).unwrap();
            session.run(vec![tensor([8, 16]).into(), tensor([16, 4]).into()]).unwrap();
        }
        let steps: Vec<StepTiming> = session.timings().into_iter().flat_map(|t| t.steps).collect();
        assert!(steps.iter().all(|s| s.calls == 2 && s.min <= s.last && s.last <= s.total), "{steps:?}");
        let names: Vec<&str> = steps.iter().map(|s| s.name.as_str()).collect();
        println!("{timing:?}: {}", names.join(", "));
    }
}

/// The body of another child process: each rank loads a program.
#[test]
#[ignore = "run by another test, in a process whose environment names a driver"]
fn ranks() {
    let backend = Cuda::new("sm_90", Cache::none()).unwrap();
    let payload = backend.compile(&common::function_of(TEXT)).unwrap_or_else(|d| panic!("{d}"));
    let (program, task, exec) = Default::default();
    for device in 0..3 {
        let context = LoadContext {
            program: &program,
            task: &task,
            exec: &exec,
            threads: 1,
            device,
            rank_context: None,
            handles: &[],
            output_handles: &[],
        };
        match Device::default().load(&payload, context) {
            Ok(_) => eprintln!("rank {device} is ready"),
            Err(e) => eprintln!("refused: {e}"),
        }
    }
}

#[test]
fn driver_calls_match_the_snapshot() {
    if !nvrtc() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let stub = common::stub(dir.path());
    let driver = ("OF_CUDA_DRIVER", stub.to_str().unwrap());
    for (settings, words) in [
        (&[][..], "two runs came back"),
        (&[("STUB_STATUS", "1")], "an index is out of range in 'tanh'"),
        (&[("STUB_STATUS", "1"), ("STUB_LATE", "20")], "an index is out of range in 'tanh'"),
        (&[("STUB_STATUS", "2")], "do not fit one another in 'tanh'"),
        (&[("STUB_FREE", "16")], "bytes of device memory and 16 are free"),
        (&[("STUB_ARCH", "sm_80")], "compile the model with --target cuda:sm_90"),
    ] {
        let out = said("inner", &[settings, &[driver]].concat());
        assert!(out.contains(words), "{settings:?}: {out}");
    }
    let out = said("timed", &[driver]);
    assert!(
        out.contains("Whole: steps\n") && out.contains("Steps: matmul, reduce_max+sub+exp+reduce_sum+div\n"),
        "{out}"
    );
    // Each rank takes the device with its number; numbers wrap around where there are fewer devices.
    let out = said("ranks", &[("STUB_DEVICES", "2"), driver]);
    let ranks = [0, 1, 0].iter().zip(0..).map(|(device, rank)| format!("device {device}\nrank {rank} is ready\n"));
    assert!(out.contains(&ranks.collect::<String>()), "{out}");
    let out = said("ranks", &[("STUB_DEVICES", "0"), driver]);
    assert!(out.contains("the CUDA driver finds no GPU"), "{out}");
    let out = said("inner", &[("OF_CUDA_DRIVER", "/nowhere/libcuda.so")]);
    assert!(out.contains("this machine has no CUDA driver"), "{out}");
}
