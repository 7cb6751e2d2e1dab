//! Graphs of a few ops as sessions that are ready to run, for benchmarks of kernels: `cargo bench -p of-bench`.

use std::sync::Arc;

use of_codegen::Isa;
use of_codegen::toolchain::cache::Cache;
use of_codegen::{CompileOptions, Target, compile, rewrite};
use of_ops::sample::Rng;
use of_passes::Manager;
use of_reference::{Reference, to_runtime};
use of_runtime::{Options, Session, Value};

/// A compiled graph with inputs, on one thread.
pub struct Kernel {
    session: Session,
    inputs: Vec<Value>,
    outputs: Vec<Value>,
}

impl Kernel {
    /// The function `main` of `text`, whose inputs are random numbers from -1 to 1.
    ///
    /// # Errors
    /// When the text is wrong, or cannot be compiled for this machine.
    pub fn new(text: &str) -> Result<Self, String> {
        let mut module =
            of_ir::text::parse_module(text, "bench.of", &of_ops::registry(), None).map_err(|e| e.to_string())?;
        let manager = Manager::parse("cpu").map_err(|e| e.to_string())?;
        manager.run(&mut module, &mut |_| ()).map_err(|e| e.to_string())?;
        let func = module.main().ok_or("there is no function 'main'")?;
        let mut rng = Rng::new(0);
        let inputs = func.input_types().into_iter().map(|ty| {
            let t = ty.as_tensor().ok_or("an input is not a tensor")?;
            let dims = t.fixed_dims().ok_or("the shape of an input is open")?;
            to_runtime(&rng.tensor(t.dtype, &dims, -1.0, 1.0).into()).map_err(|e| e.to_string())
        });
        let inputs = inputs.collect::<Result<Vec<_>, String>>()?;
        let options = CompileOptions::new(Target::new(Isa::host(), &[&Reference]), Cache::user());
        let func = rewrite::for_isa(func, Isa::host()).map_err(|e| e.to_string())?;
        let compiled = compile(&[("main".into(), &func)], &options).map_err(|e| e.to_string())?;
        if let Some(left) = compiled.summary.not_native.first() {
            return Err(format!("'{}' has no native code: {}", left.op, left.reason));
        }
        let plan = Arc::new(compiled.open().map_err(|e| e.to_string())?);
        let session = Session::new(plan, 0, Options { threads: 1, profile: false, ..Default::default() }, &[])
            .map_err(|e| e.to_string())?;
        let outputs = session.new_outputs();
        Ok(Kernel { session, inputs, outputs })
    }

    /// Runs it once.
    ///
    /// # Errors
    /// When the run fails.
    pub fn run(&mut self) -> Result<(), String> {
        self.session.run_into(&mut self.inputs, &mut self.outputs).map_err(|e| e.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_run_and_invalid_ones_are_reported() {
        let mut k =
            Kernel::new("func @main(%x: tensor<4x4xf32>) -> (tensor<4x4xf32>) {\n  %y = of.neg %x\n  of.return %y\n}")
                .unwrap();
        k.run().unwrap();
        assert!(Kernel::new("func @main() -> () {\n  of.nothing\n}").is_err());
    }
}
