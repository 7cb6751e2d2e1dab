//! The clients of others: Triton's and KServe's in Python, and schemathesis, which makes requests from a description.

use std::path::Path;
use std::process::Command;

use crate::common::{options, repository, start};
use crate::traces::tracer;
use of_serving::{ControlMode, Server, ServerOptions};
use of_test_support::collector::Collector;
use of_test_support::component::{KSERVE, SCHEMATHESIS, TRITONCLIENT, python_with, require};

/// A server with the model digits, that loads models for clients.
fn server(dir: &Path) -> Server {
    start(options_of(dir))
}

fn options_of(dir: &Path) -> ServerOptions {
    let mut options = options(&[dir]);
    options.repository.control = ControlMode::Explicit;
    options.repository.load = vec!["digits".into()];
    options
}

/// Runs a script with the ports of a server.
pub fn run(python: &Path, script: &str, server: &Server) {
    let ports = [server.addresses().http.unwrap().port(), server.addresses().grpc.unwrap().port()];
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/server").join(script);
    let out = Command::new(python).arg(script).args(ports.map(|p| p.to_string())).output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success() && said.contains("all calls passed"), "{said}");
}

#[test]
fn tritonclient_finds_everything_that_it_asks_for() {
    let modules = ["numpy", "tritonclient.http", "tritonclient.grpc"];
    let Some(python) = require(&TRITONCLIENT, python_with(&modules)) else { return };
    let dir = repository();
    let collector = Collector::start();
    let mut options = options_of(dir.path());
    options.tracer = Some(tracer(&collector));
    run(&python, "clients.py", &start(options));
}

#[test]
fn kserve_finds_everything_that_it_asks_for() {
    let Some(python) = require(&KSERVE, python_with(&["numpy", "kserve"])) else { return };
    let dir = repository();
    run(&python, "kserve_clients.py", &server(dir.path()));
}

#[test]
fn the_description_of_the_http_protocol_is_true() {
    let Some(python) = require(&SCHEMATHESIS, python_with(&["schemathesis"])) else { return };
    let dir = repository();
    let server = server(dir.path());
    let url = format!("http://{}/openapi.json", server.addresses().http.unwrap());
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/server/schemathesis.toml");
    let mut command = Command::new(python);
    command.args(["-m", "schemathesis.cli", "--config-file"]).arg(config).args(["run", &url]).current_dir(dir.path());
    if let Ok(examples) = std::env::var("OF_SCHEMATHESIS_EXAMPLES") {
        command.args(["--max-examples", &examples]);
    }
    let out = command.output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{said}");
    println!("{said}");
}
