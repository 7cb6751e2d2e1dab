//! Building graphs from Rust.
//!
//! A [`Builder`] makes one function of `of-ops` ops. Each op is verified when it is added; an error has the location
//! of the calling line. [`nn`] has layers with named parameters, [`zoo`] has models of them for training and inference, [`training`]
//! makes a training step of a model, [`placement`] says which devices hold a tensor and how. [`gpt`] and [`measuring`] have graphs for measuring.
//!
//! ```
//! use of_frontend::Builder;
//! use of_frontend::nn::{Activation, Init, Layer, Linear, Sequential};
//! use of_ir::{DType, Dim, Type};
//!
//! let mut init = Init::new(1);
//! let model = Sequential::new()
//!     .named("hidden", Linear::new(&mut init, 784, 128)?)
//!     .then(Activation::Relu)
//!     .named("out", Linear::new(&mut init, 128, 10)?);
//! let mut b = Builder::new("mlp");
//! let x = b.input("x", Type::tensor(DType::F32, vec![Dim::symbol("batch"), Dim::from(784i64)]));
//! let y = model.apply(&mut b, x)?;
//! let module = b.finish(&[("logits", y)])?;
//! assert_eq!(module.main().unwrap().inputs, ["x"]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod builder;
pub mod gpt;
pub mod measuring;
pub mod nn;
pub mod placement;
pub mod training;
pub mod zoo;

pub use builder::Builder;
