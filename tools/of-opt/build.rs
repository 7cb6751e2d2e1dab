//! Link options of the program.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // A program at a fixed address has no relocation table, which would be 5 % of its size.
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        println!("cargo::rustc-link-arg-bins=-no-pie");
    }
}
