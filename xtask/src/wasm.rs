//! `cargo xtask wasm`: the runtime as a module of WebAssembly, a plan for it, and a page that recognizes drawn digits with both.

use std::fs;
use std::path::Path;
use std::process::Command;

use of_test_support::browser;

use crate::components::is_required;
use crate::run_only::{compile_digits, library};
use crate::wasm_tools::{LINKER, TARGET, install, installed};
use crate::workspace::{cargo, read, root, run, target, write};

/// The module must not be larger, in bytes.
const MAX_BYTES: u64 = 2_000_000;

/// The page, and what it loads where it is not one file.
const PAGE: &str = "examples/js/digits.html";
const PAGE_LOADS: [&str; 3] =
    ["../../bindings/js/of_runtime.js", "../../target/wasm/of_runtime.wasm", "../../target/wasm/digits.plan"];

/// Builds module, plan and page in `target/wasm/`; with `--test`, runs them in Node.js and in a browser.
///
/// # Errors
/// When a build fails, or a digit is not recognized. With `--test`, missing components are reported, unless OF_REQUIRE names `wasm` or
/// `browser`.
pub fn wasm(args: &[&str]) -> Result<(), String> {
    let with_tests = match args {
        [] => false,
        ["--test"] => true,
        ["--install"] => return install(),
        other => return Err(format!("'cargo xtask wasm' does not know {}", other.join(" "))),
    };
    if !installed() {
        let missing = "clang, LLVM's linker, Node.js or Rust's target is not installed ('cargo xtask wasm --install')";
        if !with_tests || is_required("wasm") {
            return Err(format!("the runtime cannot be built for WebAssembly: {missing}"));
        }
        eprintln!("SKIPPED: the runtime is not built for WebAssembly, as {missing}");
        return Ok(());
    }
    let folder = target().join("wasm");
    let failed = |e: std::io::Error| format!("{}: {e}", folder.display());
    fs::create_dir_all(&folder).map_err(failed)?;
    let (module, plan, page) = (folder.join("of_runtime.wasm"), folder.join("digits.plan"), folder.join("digits.html"));
    fs::copy(library(Some(TARGET), LINKER)?.join("of_runtime.wasm"), &module).map_err(failed)?;
    run(cargo().args(["build", "--release", "--locked", "--quiet", "-p", "of-opt"]))?;
    compile_digits(Some("wasm32"), &plan)?;
    write(&page, &in_one_file(&[&root().join("bindings/js/of_runtime.js"), &module, &plan])?)?;
    let bytes = fs::metadata(&module).map_err(failed)?.len();
    println!("{}: {bytes} bytes", module.display());
    println!("{}: open it in a browser", page.display());
    if bytes > MAX_BYTES {
        return Err(format!("the module has more than {MAX_BYTES} bytes"));
    }
    if with_tests {
        run(&mut lints())?;
        run(Command::new("node").current_dir(root()).env("OF_WASM", &folder).args(["--test", "bindings/js/test.mjs"]))?;
        in_node(&folder)?;
        in_browser(&page)?;
    }
    Ok(())
}

/// The lints of code that only this target has.
fn lints() -> Command {
    let mut clippy = cargo();
    clippy.args(["clippy", "--release", "--locked", "-p", "of-runtime-c", "--no-default-features", "--target", TARGET]);
    clippy.arg("--target-dir").arg(target().join("run-only/build")).args(["--", "-D", "warnings"]);
    clippy
}

/// The page with all that it loads.
fn in_one_file(loads: &[&Path; 3]) -> Result<String, String> {
    let mut page = read(&root().join(PAGE))?;
    let kinds = ["text/javascript", "application/wasm", "application/octet-stream"];
    for ((name, path), kind) in PAGE_LOADS.iter().zip(loads).zip(kinds) {
        let bytes = fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
        if page.matches(name).count() != 1 {
            return Err(format!("{PAGE} does not load {name} once"));
        }
        page = page.replace(name, &format!("data:{kind};base64,{}", base64(&bytes)));
    }
    Ok(page)
}

/// Source: RFC 4648, section 4.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for part in bytes.chunks(3) {
        let byte = |i: usize| u32::from(part.get(i).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for i in 0..4 {
            let letter = char::from(LETTERS[(bits >> (18 - 6 * i) & 63) as usize]);
            text.push(if i <= part.len() { letter } else { '=' });
        }
    }
    text
}

/// Recognizes the images of the example in Node.js.
fn in_node(folder: &Path) -> Result<(), String> {
    let mut node = Command::new("node");
    node.current_dir(root()).arg("examples/js/digits.mjs").arg(folder).arg("examples/digits/images.npy");
    let out = node.output().map_err(|e| format!("node: {e}"))?;
    let said = String::from_utf8_lossy(&out.stdout);
    if out.status.success() && said.ends_with("digits: 7 0 3 9 1 4 8 2\n") {
        println!("Node.js runs the plan, and it recognizes the digits");
        return Ok(());
    }
    Err(format!("node: {}\n{said}{}", out.status, String::from_utf8_lossy(&out.stderr)))
}

/// Draws a digit in the page, by events of a pointer, and reads the answer.
fn in_browser(page: &Path) -> Result<(), String> {
    let browser = match browser::installed() {
        Ok(browser) => browser,
        Err(none) if is_required("browser") => return Err(format!("OF_REQUIRE names browser, and {none}")),
        Err(none) => {
            eprintln!("SKIPPED: the page is not shown, as {none} ('apt-get install chromium')");
            return Ok(());
        }
    };
    browser::shown(browser, &format!("file://{}#7", page.display()), &["<div id=\"answer\">7</div>"])?;
    println!("{browser} shows the page, and a drawn 7 is recognized");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_its_standard() {
        let cases =
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("fooba", "Zm9vYmE=")];
        for (text, coded) in cases {
            assert_eq!(base64(text.as_bytes()), coded);
        }
    }
}
