//! From the LLVM dialect to an object file, in memory. Signatures are those of LLVM 22's C interface (`llvm-c/`,
//! `mlir-c/Target/LLVMIR.h`); melior links the libraries.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{NonNull, null_mut};

use melior::ir::Module;
use melior::ir::operation::OperationRef;

type Ref = *mut c_void;

/// `MlirOperation`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawOperation {
    ptr: Ref,
}

#[allow(non_snake_case, reason = "named as in LLVM's C interface")]
unsafe extern "C" {
    fn mlirTranslateModuleToLLVMIR(module: RawOperation, context: Ref) -> Ref;
    fn LLVMContextCreate() -> Ref;
    fn LLVMContextDispose(context: Ref);
    fn LLVMDisposeModule(module: Ref);
    fn LLVMSetTarget(module: Ref, triple: *const c_char);
    fn LLVMGetDefaultTargetTriple() -> *mut c_char;
    fn LLVMGetTargetFromTriple(triple: *const c_char, target: *mut Ref, error: *mut *mut c_char) -> c_int;
    fn LLVMCreateTargetMachine(
        target: Ref,
        triple: *const c_char,
        cpu: *const c_char,
        features: *const c_char,
        level: c_int,
        relocation: c_int,
        code_model: c_int,
    ) -> Ref;
    fn LLVMDisposeTargetMachine(machine: Ref);
    fn LLVMCreateTargetDataLayout(machine: Ref) -> Ref;
    fn LLVMDisposeTargetData(layout: Ref);
    fn LLVMSetModuleDataLayout(module: Ref, layout: Ref);
    fn LLVMCreatePassBuilderOptions() -> Ref;
    fn LLVMDisposePassBuilderOptions(options: Ref);
    fn LLVMRunPasses(module: Ref, passes: *const c_char, machine: Ref, options: Ref) -> Ref;
    fn LLVMGetErrorMessage(error: Ref) -> *mut c_char;
    fn LLVMDisposeErrorMessage(message: *mut c_char);
    fn LLVMTargetMachineEmitToMemoryBuffer(
        machine: Ref,
        module: Ref,
        kind: c_int,
        error: *mut *mut c_char,
        out: *mut Ref,
    ) -> c_int;
    fn LLVMGetBufferStart(buffer: Ref) -> *const u8;
    fn LLVMGetBufferSize(buffer: Ref) -> usize;
    fn LLVMDisposeMemoryBuffer(buffer: Ref);
    fn LLVMDisposeMessage(message: *mut c_char);
}

#[cfg(target_arch = "x86_64")]
#[allow(non_snake_case, reason = "named as in LLVM's C interface")]
unsafe extern "C" {
    fn LLVMInitializeX86TargetInfo();
    fn LLVMInitializeX86Target();
    fn LLVMInitializeX86TargetMC();
    fn LLVMInitializeX86AsmPrinter();
}

#[cfg(target_arch = "aarch64")]
#[allow(non_snake_case, reason = "named as in LLVM's C interface")]
unsafe extern "C" {
    fn LLVMInitializeAArch64TargetInfo();
    fn LLVMInitializeAArch64Target();
    fn LLVMInitializeAArch64TargetMC();
    fn LLVMInitializeAArch64AsmPrinter();
}

/// Registers the target of this machine.
fn initialize() {
    // SAFETY: these functions only register, and may be called any number of times.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        LLVMInitializeX86TargetInfo();
        LLVMInitializeX86Target();
        LLVMInitializeX86TargetMC();
        LLVMInitializeX86AsmPrinter();
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        LLVMInitializeAArch64TargetInfo();
        LLVMInitializeAArch64Target();
        LLVMInitializeAArch64TargetMC();
        LLVMInitializeAArch64AsmPrinter();
    }
}

/// An LLVM object and its dispose function.
struct Owned(NonNull<c_void>, unsafe extern "C" fn(Ref));

impl Owned {
    fn new(raw: Ref, dispose: unsafe extern "C" fn(Ref), what: &str) -> Result<Owned, String> {
        Ok(Owned(NonNull::new(raw).ok_or_else(|| format!("LLVM made no {what}"))?, dispose))
    }

    fn raw(&self) -> Ref {
        self.0.as_ptr()
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: it was created by the matching function, and is disposed of once.
        unsafe { (self.1)(self.raw()) }
    }
}

/// An LLVM message, which `dispose` frees.
fn message(text: *mut c_char, dispose: unsafe extern "C" fn(*mut c_char)) -> String {
    if text.is_null() {
        return "LLVM gives no reason".into();
    }
    // SAFETY: LLVM's messages are zero-terminated strings that the caller owns until disposal.
    unsafe {
        let own = CStr::from_ptr(text).to_string_lossy().into_owned();
        dispose(text);
        own
    }
}

/// The object file of a module in the LLVM dialect, position-independent and optimised. Function attributes name the CPU
/// features that it may use.
///
/// # Errors
/// LLVM's error.
pub fn object(module: &Module<'_>) -> Result<Vec<u8>, String> {
    const AGGRESSIVE: c_int = 3;
    const POSITION_INDEPENDENT: c_int = 2;
    const SMALL: c_int = 3;
    const OBJECT: c_int = 1;
    initialize();
    let operation: OperationRef<'_, '_> = module.as_operation();
    // SAFETY: every argument was made by an earlier call and lives until the end of this function. Values drop in reverse
    // order, so the LLVM module goes before its context. Strings are zero-terminated and outlive their calls.
    unsafe {
        let context = Owned::new(LLVMContextCreate(), LLVMContextDispose, "context")?;
        let raw = mlirTranslateModuleToLLVMIR(RawOperation { ptr: operation.to_raw().ptr }, context.raw());
        let code = Owned::new(raw, LLVMDisposeModule, "module")?;
        let triple =
            CString::new(message(LLVMGetDefaultTargetTriple(), LLVMDisposeMessage)).map_err(|e| e.to_string())?;
        let (mut target, mut error) = (null_mut(), null_mut());
        if LLVMGetTargetFromTriple(triple.as_ptr(), &mut target, &mut error) != 0 {
            return Err(message(error, LLVMDisposeMessage));
        }
        let none = c"".as_ptr();
        let machine =
            LLVMCreateTargetMachine(target, triple.as_ptr(), none, none, AGGRESSIVE, POSITION_INDEPENDENT, SMALL);
        let machine = Owned::new(machine, LLVMDisposeTargetMachine, "target machine")?;
        let layout = Owned::new(LLVMCreateTargetDataLayout(machine.raw()), LLVMDisposeTargetData, "data layout")?;
        LLVMSetTarget(code.raw(), triple.as_ptr());
        LLVMSetModuleDataLayout(code.raw(), layout.raw());
        let options = Owned::new(LLVMCreatePassBuilderOptions(), LLVMDisposePassBuilderOptions, "options")?;
        let failed = LLVMRunPasses(code.raw(), c"default<O3>".as_ptr(), machine.raw(), options.raw());
        if !failed.is_null() {
            return Err(message(LLVMGetErrorMessage(failed), LLVMDisposeErrorMessage));
        }
        let mut buffer = null_mut();
        if LLVMTargetMachineEmitToMemoryBuffer(machine.raw(), code.raw(), OBJECT, &mut error, &mut buffer) != 0 {
            return Err(message(error, LLVMDisposeMessage));
        }
        let buffer = Owned::new(buffer, LLVMDisposeMemoryBuffer, "object")?;
        let (start, len) = (LLVMGetBufferStart(buffer.raw()), LLVMGetBufferSize(buffer.raw()));
        Ok(if start.is_null() { Vec::new() } else { std::slice::from_raw_parts(start, len).to_vec() })
    }
}
