//! Link options of the program.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |key: &str, value: &str| std::env::var(key).is_ok_and(|v| v == value);
    // A program at a fixed address has no relocation table, which would be 5 % of its size.
    if is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu") {
        println!("cargo::rustc-link-arg-bins=-no-pie");
        // rust-lld, the toolchain's linker on this target, keeps one copy of equal functions.
        if is("CARGO_CFG_TARGET_ARCH", "x86_64") {
            println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
        }
    }
}
