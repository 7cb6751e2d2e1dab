//! From text to machine code, in process: MLIR's passes, then LLVM.

use std::cell::RefCell;
use std::rc::Rc;

use melior::Context;
use melior::dialect::DialectRegistry;
use melior::ir::Module;
use melior::pass::PassManager;
use melior::utility::{
    parse_pass_pipeline, register_all_dialects, register_all_llvm_translations, register_all_passes,
};
use of_codegen::toolchain::object::flatten;

use crate::ffi::llvm;
use crate::memory;
use crate::payload::Compiled;

/// Products are tiled as the module's transform script says. Tensors become buffers, deallocated after their last reader.
const BUFFERS: &str = "builtin.module(\
    canonicalize,cse,transform-interpreter,symbol-dce,\
    func.func(loop-invariant-code-motion,loop-invariant-subset-hoisting,\
        linalg-generalize-named-ops,linalg-fuse-elementwise-ops,canonicalize,cse,\
        eliminate-empty-tensors,empty-tensor-to-alloc-tensor),\
    one-shot-bufferize,canonicalize,cse,\
    buffer-deallocation-pipeline,func.func(optimize-allocation-liveness),canonicalize,cse)";

/// Lowers linalg to loops, and everything to the LLVM dialect.
const LOOPS: &str = "builtin.module(\
    func.func(convert-linalg-to-loops),fold-memref-alias-ops,canonicalize,cse,\
    func.func(convert-vector-to-scf{full-unroll=true}),lower-affine,\
    arith-expand{include-bf16=true},expand-strided-metadata,lower-affine,convert-scf-to-cf,\
    convert-vector-to-llvm{vector-contract-lowering=outerproduct},\
    convert-math-to-llvm,convert-arith-to-llvm,convert-index-to-llvm,finalize-memref-to-llvm,convert-func-to-llvm,\
    convert-cf-to-llvm,convert-ub-to-llvm,reconcile-unrealized-casts,canonicalize,cse)";

/// Compiles the function `kernel` of a module in text.
///
/// # Errors
/// The error of MLIR or LLVM, or that the code is not self-contained.
pub fn compile(text: &str) -> Result<Compiled, String> {
    tracing::debug!(text, "a kernel for MLIR");
    register_all_passes();
    let registry = DialectRegistry::new();
    register_all_dialects(&registry);
    let context = Context::new_with_registry(&registry, false);
    context.load_all_available_dialects();
    register_all_llvm_translations(&context);
    let said: Rc<RefCell<Vec<String>>> = Rc::default();
    let heard = said.clone();
    context.attach_diagnostic_handler(move |d| {
        heard.borrow_mut().push(d.to_string());
        true
    });
    let why = |what: &str| {
        let said = said.take();
        if said.is_empty() { what.to_string() } else { format!("{what}: {}", said.join("; ")) }
    };
    let run = |text: &str, pipeline: &str| -> Result<Module<'_>, String> {
        let mut module = Module::parse(&context, text).ok_or_else(|| why("MLIR does not parse the kernel"))?;
        let passes = PassManager::new(&context);
        parse_pass_pipeline(passes.as_operation_pass_manager(), pipeline).map_err(|e| why(&e.to_string()))?;
        passes.run(&mut module).map_err(|_| why("a pass of MLIR failed"))?;
        Ok(module)
    };
    let buffers = run(text, BUFFERS)?.as_operation().to_string();
    let (text, scratch) = memory::planned(&buffers)?;
    let module = run(&text, LOOPS)?;
    let object = llvm::object(&module).map_err(|e| why(&e))?;
    let blob = flatten(&object, "kernel").map_err(|e| e.to_string())?;
    Ok(Compiled { blob, scratch })
}
