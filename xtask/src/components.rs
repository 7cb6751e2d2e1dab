//! `cargo xtask components`: installs the components that checks need and package registries have.

use crate::{aarch64, book, cargo_deny, cuda, mpi, musl, pjrt_plugin, python, wasm_tools};

/// A component: the names that `OF_REQUIRE` has for it, whether it is installed, and how to install it.
struct Component {
    names: &'static [&'static str],
    installed: fn() -> bool,
    install: fn() -> Result<(), String>,
    /// Whether it takes many minutes to install, so that it is installed only where `OF_REQUIRE` names it; `all` does not.
    on_demand: bool,
}

const COMPONENTS: [Component; 14] = [
    Component { names: &["xla"], installed: pjrt_plugin::installed, install: pjrt_plugin::install, on_demand: false },
    Component { names: &["nvrtc"], installed: cuda::installed, install: cuda::toolkit, on_demand: false },
    Component {
        names: &[
            "python",
            "onnxruntime",
            "jaxlib",
            "pyarrow",
            "model-signing",
            "tritonclient",
            "kserve",
            "schemathesis",
            "moto",
            "kubernetes-validate",
        ],
        installed: python::installed,
        install: python::packages,
        on_demand: false,
    },
    Component {
        names: &["cargo-deny"],
        installed: cargo_deny::installed,
        install: cargo_deny::install,
        on_demand: false,
    },
    // After the Python packages, of which it is one.
    Component { names: &["netron"], installed: python::has_netron, install: python::netron, on_demand: false },
    Component { names: &["aarch64"], installed: aarch64::installed, install: aarch64::install, on_demand: false },
    Component { names: &["openmpi", "mpich"], installed: mpi::installed, install: mpi::install, on_demand: false },
    Component { names: &["musl"], installed: musl::installed, install: musl::install, on_demand: false },
    Component { names: &["wasm"], installed: wasm_tools::installed, install: wasm_tools::install, on_demand: false },
    Component {
        names: &["browser"],
        installed: wasm_tools::has_browser,
        install: wasm_tools::install_browser,
        on_demand: false,
    },
    // After the Python packages, which build the wheel that its programs use.
    Component { names: &["drop-in"], installed: python::has_drop_in, install: python::drop_in, on_demand: false },
    Component { names: &["mdbook"], installed: book::installed, install: book::install, on_demand: true },
    // After the Python packages, to whose environment it is added.
    Component { names: &["torch"], installed: python::has_torch, install: python::torch, on_demand: true },
    Component { names: &["jax", "flax"], installed: python::has_jax, install: python::jax, on_demand: true },
];

/// Downloads from a registry fail now and then.
const ATTEMPTS: usize = 3;

/// Installs what is missing, and prints the value of `OF_REQUIRE` that requires all that is there.
///
/// If the caller has set `OF_REQUIRE`, only what it names is installed, and the value stays what it is.
///
/// # Errors
/// When a component that `OF_REQUIRE` names cannot be installed. Without `OF_REQUIRE` that is a warning, as a machine may have
/// no access to the registry.
pub fn components() -> Result<(), String> {
    let list = std::env::var("OF_REQUIRE").ok();
    let named = |c: &&Component| {
        let is_meant = |n: &str| (n == "all" && !c.on_demand) || c.names.contains(&n);
        list.as_ref().map_or(!c.on_demand, |l| l.split(',').any(|n| is_meant(n.trim())))
    };
    let mut there: Vec<&str> = Vec::new();
    for component in COMPONENTS.iter().filter(named) {
        let names = component.names.join(", ");
        match ensure(component) {
            Ok(()) => there.extend(component.names),
            Err(why) if list.is_none() => {
                eprintln!("WARNING: checks that need {names} will be skipped, as it cannot be installed: {why}");
            }
            Err(why) => return Err(format!("OF_REQUIRE names {names}, which cannot be installed: {why}")),
        }
    }
    println!("{}", list.unwrap_or_else(|| there.join(",")));
    Ok(())
}

/// Whether `OF_REQUIRE` names a component.
pub fn is_required(name: &str) -> bool {
    let list = std::env::var("OF_REQUIRE").unwrap_or_default();
    list.split(',').any(|n| [name, "all"].contains(&n.trim()))
}

fn ensure(component: &Component) -> Result<(), String> {
    if (component.installed)() {
        return Ok(());
    }
    let mut result = Ok(());
    for _ in 0..ATTEMPTS {
        result = (component.install)();
        if result.is_ok() {
            break;
        }
    }
    result
}
