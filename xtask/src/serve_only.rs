//! `cargo xtask serve-only`: the model server of containers, `of-opt-serve`, as a static program.
//!
//! It is built with musl, without symbols, as `deploy/Containerfile` does. The image must stay small, and the program must hold no
//! compiler. It then serves the plan of the digits.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::components::is_required;
use crate::musl;
use crate::run_only::{FOREIGN, check_static, compile_digits, linked_crates};
use crate::workspace::{cargo, root, run, target};

/// The content of the image must not be larger, in bytes.
const MAX_BYTES: u64 = 15_000_000;
/// What is in the image but for the program: certificates of authorities, as Debian has them, and the licence.
const OTHER_BYTES: u64 = 300_000;
/// How long the server may take to answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// Builds the server, checks its size and its crates, and asks it for a digit.
///
/// # Errors
/// When it cannot be built or run, is too large, or holds a compiler. Where musl is missing, it is skipped, unless OF_REQUIRE names
/// `musl`.
pub fn serve_only(args: &[&str]) -> Result<(), String> {
    if !args.is_empty() {
        return Err(format!("'cargo xtask serve-only' does not know {}", args.join(" ")));
    }
    if !musl::installed() {
        if is_required("musl") {
            return Err("OF_REQUIRE names musl, which is not installed ('cargo xtask musl')".into());
        }
        eprintln!("SKIPPED: the static server, as musl is not installed ('cargo xtask musl')");
        return Ok(());
    }
    let crates = linked_crates(&["-p", "of-opt-serve", "--target", musl::TARGET])?;
    if let Some(foreign) = FOREIGN.iter().find(|name| crates.iter().any(|line| line.starts_with(&format!("{name} ")))) {
        return Err(format!("the server links {foreign}"));
    }
    let program = build()?;
    check_static(&program)?;
    let bytes = fs::metadata(&program).map_err(|e| format!("{}: {e}", program.display()))?.len();
    println!("{}: {bytes} bytes, static, {} crates", program.display(), crates.len());
    if bytes + OTHER_BYTES > MAX_BYTES {
        return Err(format!("an image with the program has more than {MAX_BYTES} bytes"));
    }
    run(cargo().args(["build", "--release", "--locked", "--quiet", "-p", "of-opt"]))?;
    let folder = target().join("run-only/serve");
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let plan = folder.join("digits.plan");
    compile_digits(None, &plan)?;
    let start = Instant::now();
    let mut command = Command::new(&program);
    command.args(["--http-port", "0", "--allow-grpc", "false", "--allow-metrics", "false"]).arg(&plan);
    let mut server = command.stdout(Stdio::piped()).spawn().map_err(|e| format!("{}: {e}", program.display()))?;
    let answered = ask(&mut server, start);
    // It may have ended by itself, with an error.
    let _ = server.kill();
    let _ = server.wait();
    answered
}

/// Builds the program; the path to it.
fn build() -> Result<PathBuf, String> {
    let folder = target().join("run-only/build");
    let mut build = cargo();
    build.args(["build", "--release", "--locked", "-p", "of-opt-serve", "--target", musl::TARGET, "--target-dir"]);
    run(build.arg(&folder).env_remove("CARGO_TARGET_DIR").env("CARGO_PROFILE_RELEASE_STRIP", "symbols"))?;
    Ok(folder.join(musl::TARGET).join("release/of-opt-serve"))
}

/// Waits until the server is ready, and has it recognize an image.
fn ask(server: &mut Child, start: Instant) -> Result<(), String> {
    let mut line = String::new();
    let stdout = server.stdout.take().ok_or("the server has no stdout")?;
    BufReader::new(stdout).read_line(&mut line).map_err(|e| format!("the server's address: {e}"))?;
    let address = line.trim().strip_prefix("http://").ok_or(format!("the server printed '{}'", line.trim()))?;
    while !request(address, "GET", "/v2/health/ready", "")?.starts_with("HTTP/1.1 200") {
        if start.elapsed() > PATIENCE {
            return Err(format!("the server is not ready after {PATIENCE:?}"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    println!("ready after {:?}", start.elapsed());
    let (pixels, digit) = image(&root().join("examples/digits"))?;
    let input = format!(r#"{{"name":"image","shape":[1,1,8,8],"datatype":"FP32","data":[{pixels}]}}"#);
    let output = r#"{"name":"probability","parameters":{"classification":1}}"#;
    let body = format!(r#"{{"inputs":[{input}],"outputs":[{output}]}}"#);
    let answer = request(address, "POST", "/v2/models/digits/infer", &body)?;
    match answer.starts_with("HTTP/1.1 200") && answer.contains(&format!(":{digit}\"]")) {
        true => println!("it recognizes a {digit}"),
        false => return Err(format!("the server does not recognize a {digit}: {answer}")),
    }
    Ok(())
}

/// The pixels of the first image of the example, and what it shows.
fn image(folder: &Path) -> Result<(String, u8), String> {
    let bytes = fs::read(folder.join("images.npy")).map_err(|e| format!("images.npy: {e}"))?;
    // NumPy's format 1.0: a header whose length is at byte 8, then the elements.
    let header = usize::from(*bytes.get(8).ok_or("images.npy is empty")?) + 256 * usize::from(bytes[9]);
    let pixels = bytes.get(10 + header..).and_then(|all| all.get(..256)).ok_or("images.npy is too short")?;
    let pixels = pixels.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]).to_string());
    Ok((pixels.collect::<Vec<_>>().join(","), 7))
}

/// Sends a request on a connection of its own, and reads the whole answer.
fn request(address: &str, method: &str, path: &str, body: &str) -> Result<String, String> {
    let failed = |e: std::io::Error| format!("{address}: {e}");
    let mut stream = TcpStream::connect(address).map_err(failed)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    let head = format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n");
    let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).map_err(failed)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(failed)?;
    Ok(answer)
}
