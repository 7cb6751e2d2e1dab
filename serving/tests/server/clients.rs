//! The clients of others: Triton's, in Python.

use std::path::Path;
use std::process::Command;

use crate::common::{options, repository, start};
use of_serving::ControlMode;
use of_test_support::component::{TRITONCLIENT, python_with, require};

#[test]
fn tritonclient_finds_everything_that_it_asks_for() {
    let modules = ["numpy", "tritonclient.http", "tritonclient.grpc"];
    let Some(python) = require(&TRITONCLIENT, python_with(&modules)) else { return };
    let dir = repository();
    let mut options = options(&[dir.path()]);
    options.repository.control = ControlMode::Explicit;
    options.repository.load = vec!["digits".into()];
    let server = start(options);
    let ports = [server.addresses().http.unwrap().port(), server.addresses().grpc.unwrap().port()];
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/server/clients.py");
    let out = Command::new(python).arg(script).args(ports.map(|p| p.to_string())).output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success() && said.contains("all calls passed"), "{said}");
}
