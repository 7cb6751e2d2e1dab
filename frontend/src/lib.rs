//! Building graphs from Rust.
//!
//! A [`Builder`] makes one function of `of-ops` ops. Each op is verified when it is added; an error has the location
//! of the calling line. [`nn`] has layers with parameters, [`zoo`] has models, [`training`] makes a training
//! step of a model, [`gpt`] has one of a transformer.
//!
//! ```
//! use of_frontend::{Builder, nn};
//! use of_ir::{DType, Dim, Type};
//! use of_ops::elementwise::Relu;
//!
//! let mut b = Builder::new("mlp");
//! let x = b.input("x", Type::tensor(DType::F32, vec![Dim::symbol("batch"), Dim::from(784i64)]));
//! let mut init = nn::Init::new(1);
//! let (hidden, out) = (nn::Linear::new(&mut init, 784, 128)?, nn::Linear::new(&mut init, 128, 10)?);
//! let h = hidden.apply(&mut b, x)?;
//! let h = b.op(Relu {}, &[h])?;
//! let y = out.apply(&mut b, h)?;
//! let module = b.finish(&[("logits", y)])?;
//! assert_eq!(module.main().unwrap().inputs, ["x"]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod builder;
pub mod gpt;
pub mod nn;
pub mod training;
pub mod zoo;

pub use builder::Builder;
