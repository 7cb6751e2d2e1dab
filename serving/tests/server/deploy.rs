//! The files of `deploy/`: valid for Kubernetes, and with flags and paths that the server has.

use std::path::{Path, PathBuf};
use std::process::Command;

use of_test_support::component::{KUBERNETES_VALIDATE, python_with, require};

fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy");
    let list =
        |name: &str| std::fs::read_dir(folder.join(name)).unwrap().map(|e| e.unwrap().path()).collect::<Vec<_>>();
    [list("kubernetes"), list("kserve"), list("training")].concat()
}

#[test]
fn manifests_are_valid() {
    let modules = ["yaml", "kubernetes_validate"];
    let Some(python) = require(&KUBERNETES_VALIDATE, python_with(&modules)) else { return };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/server/manifests.py");
    let out = Command::new(python).arg(script).args(files()).output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success() && said.contains("all manifests are valid"), "{said}");
}

#[test]
fn probes_ask_for_paths_that_the_server_has() {
    let dir = crate::common::repository();
    let server = crate::common::start(crate::common::options(&[dir.path()]));
    let mut client = crate::common::Client::new(&server);
    let mut metrics = crate::common::Client::to(server.addresses().metrics.unwrap());
    let mut count = 0;
    for file in files() {
        let text = std::fs::read_to_string(&file).unwrap();
        for path in text.split("path: ").skip(1).filter_map(|rest| rest.split([',', '\n', '}']).next()) {
            let path = path.trim();
            let answer = if path == "/metrics" { metrics.get(path) } else { client.get(path) };
            assert_eq!(answer.status, 200, "{}: {path}", file.display());
            count += 1;
        }
    }
    assert!(count >= 6, "{count}");
}
