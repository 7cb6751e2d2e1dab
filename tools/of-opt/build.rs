//! How the program is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // A program at a fixed address needs no relocations of its tables, which are a twentieth of it.
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        println!("cargo::rustc-link-arg-bins=-no-pie");
    }
}
