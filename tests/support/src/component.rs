//! Components from outside that a test needs: plugins, libraries, compilers, Python packages, browsers.
//!
//! A test calls [`require`] for each. If the component is missing, `require` writes one line to the process's standard
//! error, which `cargo test` shows without `--nocapture`, and the test returns. If the environment variable `OF_REQUIRE`
//! names the component, the test fails instead: `OF_REQUIRE=xla,nvrtc`, or `OF_REQUIRE=all`.

use std::fmt::Display;
use std::io::Write;
use std::panic::Location;
use std::path::PathBuf;
use std::process::Command;

/// Something that not every machine has.
#[derive(Debug, PartialEq, Eq)]
pub struct Component {
    /// Its name in `OF_REQUIRE`.
    pub name: &'static str,
    /// What it is.
    pub what: &'static str,
    /// How to install it.
    pub install: &'static str,
}

/// XLA's PJRT plugin for CPUs.
pub const XLA: Component =
    Component { name: "xla", what: "XLA's PJRT plugin for CPUs", install: "cargo xtask pjrt-plugin" };
/// NVIDIA's run-time compiler of kernels. It needs no GPU.
pub const NVRTC: Component = Component { name: "nvrtc", what: "NVRTC", install: "cargo xtask cuda-toolkit" };
/// TensorRT's builder. It needs no GPU.
pub const TENSORRT: Component = Component { name: "tensorrt", what: "TensorRT", install: "cargo xtask tensorrt" };
/// A Python 3 on the path.
pub const PYTHON: Component = Component { name: "python", what: "python3", install: "apt-get install python3" };
/// Compilers of C and C++ programs.
pub const CC: Component = Component { name: "cc", what: "a C and a C++ compiler", install: "apt-get install g++" };
/// A disassembler.
pub const OBJDUMP: Component = Component { name: "objdump", what: "objdump", install: "apt-get install binutils" };
/// A compiler, a disassembler and an emulator for AArch64.
pub const AARCH64: Component = Component {
    name: "aarch64",
    what: "gcc, objdump, qemu and Rust's target for AArch64",
    install: "cargo xtask aarch64",
};
/// What builds and runs programs of WebAssembly.
pub const WASM: Component = Component {
    name: "wasm",
    what: "clang, LLVM's linker, Node.js and Rust's target for WebAssembly",
    install: "cargo xtask wasm --install",
};
/// The C library musl and Rust's target for it: for `cargo xtask run-only`, needed by no test.
pub const MUSL: Component = Component { name: "musl", what: "musl", install: "cargo xtask musl" };
/// Programs that import onnxruntime: for `cargo xtask wheel --test`, needed by no test.
pub const DROP_IN: Component = Component {
    name: "drop-in",
    what: "a Python with programs that import onnxruntime",
    install: "cargo xtask drop-in-packages",
};
/// onnxruntime, with onnx and numpy, in a Python.
pub const ONNXRUNTIME: Component = Component {
    name: "onnxruntime",
    what: "a Python with onnx, numpy and onnxruntime",
    install: "cargo xtask python-packages",
};
/// jaxlib in a Python, whose MLIR verifies StableHLO.
pub const JAXLIB: Component =
    Component { name: "jaxlib", what: "a Python with jaxlib", install: "cargo xtask python-packages" };
/// The writer and reader of Arrow's project, in a Python.
pub const PYARROW: Component =
    Component { name: "pyarrow", what: "a Python with pyarrow", install: "cargo xtask python-packages" };
/// The signatures of OpenSSF, in a Python.
pub const MODEL_SIGNING: Component =
    Component { name: "model-signing", what: "a Python with model-signing", install: "cargo xtask python-packages" };
/// The client of Triton Inference Server, in a Python.
pub const TRITONCLIENT: Component = Component {
    name: "tritonclient",
    what: "a Python with numpy and tritonclient[http,grpc]",
    install: "cargo xtask python-packages",
};
/// The inference clients of KServe's SDK, in a Python.
pub const KSERVE: Component =
    Component { name: "kserve", what: "a Python with numpy and kserve", install: "cargo xtask python-packages" };
/// A server with the protocol of S3, in a Python.
pub const MOTO: Component = Component {
    name: "moto",
    what: "a Python with moto, flask and flask-cors",
    install: "cargo xtask python-packages",
};
/// A program that makes requests from a description of a protocol and checks the answers, in a Python.
pub const SCHEMATHESIS: Component =
    Component { name: "schemathesis", what: "a Python with schemathesis", install: "cargo xtask python-packages" };
/// A validator of Kubernetes manifests, in a Python.
pub const KUBERNETES_VALIDATE: Component = Component {
    name: "kubernetes-validate",
    what: "a Python with kubernetes-validate",
    install: "cargo xtask python-packages",
};
/// Netron's Python package, and Node.js, which runs its reader of models without a browser.
pub const NETRON: Component = Component {
    name: "netron",
    what: "a Python with netron, and node",
    install: "apt-get install nodejs; cargo xtask python-packages",
};
/// LLVM and MLIR, linked into the backend.
pub const MLIR: Component = Component {
    name: "mlir",
    what: "LLVM and MLIR 22",
    install: "apt-get install llvm-22-dev libmlir-22-dev mlir-22-tools; then 'cargo test -p of-mlir --features mlir'",
};
/// MLIR's own optimizer, which reads the generic form of the IR.
pub const MLIR_OPT: Component =
    Component { name: "mlir-opt", what: "mlir-opt", install: "apt-get install mlir-22-tools" };
/// The GPU that the CPU emulates: kernels for GPUs, compiled by a C++ compiler.
pub const CUDA_EMULATED: Component = Component {
    name: "cuda-emulated",
    what: "a compiler that builds kernels for the emulated GPU",
    install: "apt-get install g++, on x86-64 or aarch64",
};
/// A browser without a window.
pub const BROWSER: Component =
    Component { name: "browser", what: "a headless browser", install: "cargo xtask browser" };
/// Landlock and seccomp, in the kernel.
pub const LANDLOCK: Component = Component {
    name: "landlock",
    what: "Landlock and seccomp in the kernel",
    install: "none: Linux 6.2 or later, with landlock in /sys/kernel/security/lsm",
};
/// Network namespaces, and the tools that make and cut networks in them.
pub const NETNS: Component = Component {
    name: "netns",
    what: "network namespaces",
    install: "apt-get install iproute2 nftables; they need root",
};
/// Open MPI: its mpirun and its library.
pub const OPENMPI: Component = Component { name: "openmpi", what: "Open MPI", install: "cargo xtask mpi" };
/// MPICH: its mpirun and its library.
pub const MPICH: Component = Component { name: "mpich", what: "MPICH", install: "cargo xtask mpi" };
/// A CPU that multiplies bf16 matrices (AVX-512 BF16, AMX or ARM's BFMMLA).
pub const CPU_BF16: Component =
    Component { name: "cpu-bf16", what: "a CPU with bf16 products", install: "none: another machine" };

/// The program that checks dependencies: a step of `cargo xtask ci`, needed by no test.
pub const CARGO_DENY: Component =
    Component { name: "cargo-deny", what: "cargo-deny", install: "cargo xtask cargo-deny" };

/// The program that builds the book: a step of `cargo xtask ci`, needed by no test.
pub const MDBOOK: Component = Component { name: "mdbook", what: "mdbook", install: "cargo xtask mdbook" };

/// Every component.
pub const ALL: [&Component; 31] = [
    &XLA,
    &NVRTC,
    &TENSORRT,
    &PYTHON,
    &ONNXRUNTIME,
    &JAXLIB,
    &PYARROW,
    &MODEL_SIGNING,
    &TRITONCLIENT,
    &KSERVE,
    &SCHEMATHESIS,
    &MOTO,
    &KUBERNETES_VALIDATE,
    &NETRON,
    &LANDLOCK,
    &MLIR,
    &MLIR_OPT,
    &CUDA_EMULATED,
    &BROWSER,
    &CPU_BF16,
    &NETNS,
    &OPENMPI,
    &MPICH,
    &CC,
    &OBJDUMP,
    &AARCH64,
    &WASM,
    &MUSL,
    &DROP_IN,
    &CARGO_DENY,
    &MDBOOK,
];

/// The component, if it was found. Otherwise reports that the calling test skips its work, and returns `None`.
///
/// # Panics
/// When it is missing and `OF_REQUIRE` names it, or `OF_REQUIRE` names an unknown component.
#[track_caller]
pub fn require<T, E: Display>(component: &Component, found: Result<T, E>) -> Option<T> {
    let why = match found {
        Ok(found) => return Some(found),
        Err(why) => why,
    };
    let Component { name, what, install } = component;
    let list = std::env::var("OF_REQUIRE").unwrap_or_default();
    if is_required(&list, name).unwrap_or_else(|e| panic!("{e}")) {
        panic!("OF_REQUIRE names {name}, which is missing ({why}); to install {what}: {install}");
    }
    let thread = std::thread::current();
    let test = thread.name().filter(|n| *n != "main").map(|n| format!(" {n}")).unwrap_or_default();
    let line = skipped(component, &why.to_string(), &format!("{}{test}", Location::caller()));
    // The test harness captures what `eprintln!` writes, and not what is written to the stream itself.
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
    None
}

/// Whether a component is there. See [`require`].
///
/// # Panics
/// As [`require`] does.
#[track_caller]
pub fn available(component: &Component, found: Result<(), impl Display>) -> bool {
    require(component, found).is_some()
}

/// A Python that has these modules: the one that `OF_PYTHON` names, else the one that `cargo xtask python-packages` makes,
/// else `python3`.
///
/// # Errors
/// What the Python says of the modules.
pub fn python_with(modules: &[&str]) -> Result<PathBuf, String> {
    let var = |n: &str| std::env::var_os(n).filter(|v| !v.is_empty()).map(PathBuf::from);
    let cache = || var("XDG_CACHE_HOME").or_else(|| var("HOME").map(|d| d.join(".cache")));
    let made = || cache().map(|d| d.join("of-opt/python/bin/python3")).filter(|p| p.is_file());
    let python = var("OF_PYTHON").or_else(made).unwrap_or_else(|| "python3".into());
    let mut command = Command::new(&python);
    let out = command.arg("-c").arg(format!("import {}", modules.join(", "))).output();
    let out = out.map_err(|e| format!("{}: {e}", python.display()))?;
    let last = |text: &[u8]| String::from_utf8_lossy(text).lines().last().unwrap_or_default().to_string();
    if out.status.success() { Ok(python) } else { Err(format!("{}: {}", python.display(), last(&out.stderr))) }
}

/// The line that reports a skipped test.
fn skipped(component: &Component, why: &str, test: &str) -> String {
    let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
    let Component { name, what, install } = component;
    format!("SKIPPED {test}: {what} is missing ({why}). Install: {install}. Require: OF_REQUIRE={name}\n")
}

/// Whether a list of names, separated by commas, holds this one.
fn is_required(list: &str, name: &str) -> Result<bool, String> {
    let names = || list.split(',').map(str::trim).filter(|n| !n.is_empty());
    if let Some(unknown) = names().find(|n| *n != "all" && !ALL.iter().any(|c| c.name == *n)) {
        let known: Vec<&str> = ALL.iter().map(|c| c.name).collect();
        return Err(format!("OF_REQUIRE names '{unknown}'; known are {} and all", known.join(", ")));
    }
    // A list cannot ask for another CPU.
    Ok(names().any(|n| n == name || (n == "all" && name != CPU_BF16.name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_require_makes_components_mandatory() {
        assert_eq!(is_required("", "xla"), Ok(false));
        assert_eq!(is_required("nvrtc, xla", "xla"), Ok(true));
        assert_eq!(is_required("nvrtc", "xla"), Ok(false));
        assert_eq!(is_required("all", "xla"), Ok(true));
        assert_eq!(is_required("all", "cpu-bf16"), Ok(false));
        assert!(is_required("xlaa", "xla").unwrap_err().contains("'xlaa'; known are xla, nvrtc"));
    }

    #[test]
    fn the_report_is_one_line_with_reason_and_remedy() {
        let line = skipped(&XLA, "no file\n  here", "ops.rs:1:2 every_op");
        assert_eq!(line.lines().count(), 1);
        assert!(line.starts_with("SKIPPED ops.rs:1:2 every_op: XLA's PJRT plugin for CPUs is missing (no file here)."));
        assert!(line.contains("cargo xtask pjrt-plugin") && line.contains("OF_REQUIRE=xla"), "{line}");
    }

    #[test]
    fn present_components_are_returned() {
        assert_eq!(require(&XLA, Ok::<_, String>(3)), Some(3));
    }
}
