//! The compiler driver: from a model and typed options to a plan and a session.
//!
//! [`Compiler`] compiles a [`Model`] (a file, bytes, IR text or a module) to a [`CompiledModel`]. That opens a [`Session`]
//! or is saved as a plan, which `of_runtime` executes without the compiler:
//!
//! ```
//! use std::sync::Arc;
//!
//! use of_driver::{Compiler, Diagnostics, Model, SessionOptions, Target};
//! use of_plan::PlanFile;
//! use of_runtime::Tensor;
//!
//! # let digits = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/digits/digits.onnx");
//! # let folder = tempfile::tempdir()?;
//! # let plan_file = folder.path().join("digits.plan");
//! // Compile once ...
//! let model = Model::open(digits)?;
//! let compiled = Compiler::new().target(Target::host()).shape("N", 1).compile(model)?;
//! // ... run many times ...
//! let mut session = compiled.session(&SessionOptions { threads: 2, ..SessionOptions::default() })?;
//! let image = Tensor::from_elements([1, 1, 8, 8], &[0.5_f32; 64])?;
//! for _ in 0..3 {
//!     let outputs = session.run(&[("image", image.clone())])?;
//!     assert_eq!(outputs["probability"].as_tensor().map(Tensor::dims), Some(&[1, 10][..]));
//! }
//! compiled.save(&plan_file)?;
//!
//! // ... and deploy: this part needs of_plan and of_runtime alone.
//! let plan = Arc::new(PlanFile::open(&plan_file)?);
//! let mut session = of_runtime::Session::new(plan, 0, of_runtime::Options::default(), &[])?;
//! let outputs = session.run(vec![image.into()])?;
//! assert_eq!(outputs[0].as_tensor().map(Tensor::dims), Some(&[1, 10][..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Nothing here prints or ends the process. Errors are [`Diagnostics`]; an [`Observer`] receives progress, warnings and
//! notes. The stages are public for tools that need one alone: [`prepare`] runs passes and placement, [`mesh`] shards a
//! model over ranks, [`Generator`] generates code, [`tune`] and [`precision`] measure, [`workload`] adds inputs.

pub mod backends;
mod calibration_sets;
pub mod codegen_passes;
pub mod compare;
mod compiler;
pub mod debug;
pub mod ensemble;
mod error;
pub mod generate;
mod images;
pub mod input_files;
pub mod mesh;
pub mod mesh_measurement;
mod microbenchmark;
pub mod model;
mod name_patterns;
mod native_only;
mod npy;
mod observer;
pub mod op_support;
mod options;
mod output_change;
pub mod plan_diff;
pub mod precision;
pub mod prepare;
pub mod process;
pub mod random_inputs;
pub mod roofline;
pub mod rounding;
pub mod session;
pub mod shapes;
pub mod signed_plan;
pub mod simulation;
mod sustained_rates;
pub mod tensor_files;
pub mod training;
pub mod tune;
mod variables;
pub mod why_stuck;
pub mod workload;
pub mod zoo;

pub use backends::{Backends, load_libraries};
pub use compiler::{CompiledModel, Compiler};
pub use error::{count, error, io_error};
pub use generate::Generator;
pub use images::ImageOptions;
pub use mesh::{RankFuncs, RankSelection};
pub use model::{Model, ModelOrPlan};
pub use observer::{Activity, Observer, ProgressFn, Silent, checkpoint};
pub use of_codegen::CpuCode;
pub use of_codegen::Limits;
pub use of_codegen::toolchain::cache::Cache;
pub use of_codegen::toolchain::stop as stop_compilers;
pub use of_diag::Diagnostics;
pub use options::{
    CompileOptions, MeshOptions, PlacementOptions, Precision, Search, SessionOptions, Stages, Target, worker_threads,
};
pub use session::{Outputs, Session, SessionVariables};
pub use variables::output_and_input;
pub use workload::{InputSource, Workload};
