//! What a call through the C interface costs in addition to one in Rust: `cargo run --release -p of-runtime-c --example overhead`.
//!
//! Both run the model of examples/digits on one image and one thread, in turn, and the fastest round of each counts.

#[path = "../src/abi.rs"]
#[allow(dead_code, reason = "the example uses a part of it")]
mod abi;
#[path = "../tests/common/mod.rs"]
mod common;

use std::ffi::{CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use abi::{SessionOptions, Status, Tensor};
use libloading::{Library, Symbol};

/// Calls of a round, and rounds.
const CALLS: u32 = 200;
const ROUNDS: usize = 300;

type Open = unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> Status;
type New = unsafe extern "C" fn(*const c_void, *const SessionOptions, *mut *mut c_void) -> Status;
type SetInput = unsafe extern "C" fn(*mut c_void, usize, *const Tensor) -> Status;
type SetOutput = unsafe extern "C" fn(*mut c_void, usize, *mut c_void, usize) -> Status;
type Run = unsafe extern "C" fn(*mut c_void) -> Status;
type Output = unsafe extern "C" fn(*mut c_void, usize, *mut Tensor) -> Status;

fn main() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("digits.plan");
    common::compile(common::digits(), 1, &[("N", 1)], &plan);
    let image = [0.5_f32; 64];

    let file = Arc::new(of_plan::PlanFile::open(&plan).unwrap());
    let mut session = of_runtime::Session::new(file, 0, of_runtime::Options::default(), &[]).unwrap();
    let mut inputs = [of_runtime::Tensor::from_elements([1, 1, 8, 8], &image).unwrap().into()];
    let mut outputs = session.new_outputs();

    // SAFETY: the library is the one that `common` built, and the signatures are those of the header.
    let library = unsafe { Library::new(common::library().join("libof_runtime.so")) }.unwrap();
    let c = C::new(&library, &plan);
    let dims = [1, 1, 8, 8];
    let data = image.as_ptr().cast_mut().cast();
    let tensor = Tensor { dtype: 2, rank: 4, dims: dims.as_ptr(), data, bytes: size_of_val(&image) };
    let mut result = [0.0_f32; 10];
    c.set_output(&mut result);
    c.set_input(&tensor);

    let (mut rust, mut run, mut all) = (Duration::MAX, Duration::MAX, Duration::MAX);
    for _ in 0..ROUNDS {
        rust = rust.min(round(|| session.run_into(&mut inputs, &mut outputs).unwrap()));
        run = run.min(round(|| c.run()));
        all = all.min(round(|| {
            c.set_input(&tensor);
            c.run();
            c.output();
        }));
    }
    assert_eq!(outputs[0].as_tensor().and_then(of_runtime::Tensor::to_elements::<f32>).as_deref(), Some(&result[..]));
    let over = |time: Duration| time.as_nanos() as i128 - rust.as_nanos() as i128;
    println!("Rust, run_into                      {:>6} ns", rust.as_nanos());
    println!("C, run                              {:>6} ns   {:+} ns", run.as_nanos(), over(run));
    println!("C, set_input + run + output         {:>6} ns   {:+} ns", all.as_nanos(), over(all));
}

/// The mean time of a call.
fn round(mut call: impl FnMut()) -> Duration {
    let start = Instant::now();
    for _ in 0..CALLS {
        call();
    }
    start.elapsed() / CALLS
}

/// A session of the library.
struct C<'l> {
    session: *mut c_void,
    set_input: Symbol<'l, SetInput>,
    set_output: Symbol<'l, SetOutput>,
    run: Symbol<'l, Run>,
    output: Symbol<'l, Output>,
}

impl<'l> C<'l> {
    fn new(library: &'l Library, plan: &std::path::Path) -> Self {
        let path = CString::new(plan.as_os_str().as_bytes()).unwrap();
        let (mut opened, mut session) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the symbols have these types, and the arguments are valid.
        unsafe {
            let open: Symbol<'_, Open> = library.get(b"of_plan_open").unwrap();
            let new: Symbol<'_, New> = library.get(b"of_session_new").unwrap();
            assert_eq!(open(path.as_ptr(), &mut opened), Status::Ok);
            assert_eq!(new(opened, ptr::null(), &mut session), Status::Ok);
            Self {
                session,
                set_input: library.get(b"of_session_set_input").unwrap(),
                set_output: library.get(b"of_session_set_output").unwrap(),
                run: library.get(b"of_session_run").unwrap(),
                output: library.get(b"of_session_output").unwrap(),
            }
        }
    }

    fn set_input(&self, tensor: &Tensor) {
        // SAFETY: the session is open, and the tensor valid.
        assert_eq!(unsafe { (self.set_input)(self.session, 0, tensor) }, Status::Ok);
    }

    fn set_output(&self, to: &mut [f32]) {
        // SAFETY: as above.
        let status = unsafe { (self.set_output)(self.session, 0, to.as_mut_ptr().cast(), size_of_val(to)) };
        assert_eq!(status, Status::Ok);
    }

    fn run(&self) {
        // SAFETY: as above.
        assert_eq!(unsafe { (self.run)(self.session) }, Status::Ok);
    }

    fn output(&self) {
        let mut tensor = Tensor { dtype: 0, rank: 0, dims: ptr::null(), data: ptr::null_mut(), bytes: 0 };
        // SAFETY: as above.
        assert_eq!(unsafe { (self.output)(self.session, 0, &mut tensor) }, Status::Ok);
    }
}
