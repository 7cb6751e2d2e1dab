//! `of-opt train` with snapshots in a store that speaks the protocol of S3, and data that is downloaded.

#![cfg(feature = "object-store")]

mod store;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use store::Store;

fn digits() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits").canonicalize().unwrap()
}

/// Trains the digits network with further arguments.
fn train(dir: &Path, args: &[&str]) -> Output {
    command(dir, args).output().unwrap()
}

fn command(dir: &Path, args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_of-opt"));
    c.arg("train").arg(digits().join("untrained.onnx")).arg("--data").arg(digits().join("train.npz"));
    c.args(["--threads", "1", "--batch", "96", "--learning-rate", "0.005", "--schedule", "constant"]);
    c.args(["-o", "m.safetensors"]).args(args);
    c.env("AWS_ACCESS_KEY_ID", "test").env("AWS_SECRET_ACCESS_KEY", "test").current_dir(dir);
    c
}

fn errors(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

/// The values of a file of safetensors.
fn data(path: &Path) -> Vec<u8> {
    let bytes = fs::read(path).unwrap();
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[8 + len..].to_vec()
}

#[test]
fn trainings_go_on_from_a_store() {
    let Some(mut store) = Store::start() else { return };
    let dir = tempfile::tempdir().unwrap();
    let url = format!("s3://{}/models/runs/s.safetensors", store.endpoint);
    let run = |args: &[&str]| {
        let out = train(dir.path(), args);
        assert!(out.status.success(), "{}", errors(&out));
        (errors(&out), data(&dir.path().join("m.safetensors")))
    };
    let (_, whole) = run(&["--epochs", "2"]);
    let stored = ["--snapshot", &url, "--snapshot-every", "5", "--resume"];
    let (said, _) = run(&[&["--epochs", "1"][..], &stored].concat());
    assert!(!said.contains("resumed"), "{said}");
    let (said, resumed) = run(&[&["--epochs", "2"][..], &stored].concat());
    assert!(said.contains("resumed from s3://") && said.contains("at step 14 of 28"), "{said}");
    assert!(resumed == whole, "the training that went on has another result");
    // Ranks write an object each; those of earlier snapshots are removed.
    let (said, _) = run(&[&["--epochs", "3", "--mesh", "cpu[2]", "--ranks", "2"][..], &stored].concat());
    assert!(said.contains("at step 28 of 42"), "{said}");
    let objects = store.command("list runs/");
    let is = |ending: &str| objects.iter().any(|object| object.ends_with(ending));
    let all = is("/s.safetensors.index.json") && is(".1-of-2.safetensors") && is("-42.2-of-2.safetensors");
    assert!(all && objects.len() == 3, "{objects:?}");
    let (said, _) = run(&[&["--epochs", "3"][..], &stored].concat());
    assert!(said.contains("at step 42 of 42"), "{said}");
}

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Two trainings with one place for snapshots: the one that comes back finds that the other has written, and ends without replacing
/// what that wrote.
#[test]
fn a_training_does_not_replace_the_snapshot_of_another() {
    let Some(mut store) = Store::start() else { return };
    let url = format!("s3://{}/models/shared/s.safetensors", store.endpoint);
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let args = ["--snapshot", &url, "--snapshot-every", "1"];
    let mut first = command(one.path(), &[&args[..], &["--epochs", "100000"]].concat());
    let mut first = Running(first.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
    let pid = first.0.id().to_string();
    let signal = |signal: &str| assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    let since = Instant::now();
    while !store.command("list shared/").iter().any(|object| object.ends_with(".index.json")) {
        assert!(since.elapsed() < Duration::from_secs(120), "the training writes no snapshot");
        std::thread::sleep(Duration::from_millis(50));
    }
    signal("-STOP");
    let out = train(two.path(), &[&args[..], &["--epochs", "1"]].concat());
    signal("-CONT");
    assert!(out.status.success(), "{}", errors(&out));
    let mut said = String::new();
    first.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(!first.0.wait().unwrap().success(), "{said}");
    assert!(said.contains("another job wrote 'shared/s.safetensors.index.json' meanwhile"), "{said}");
    // The snapshot is the second one's: its training has ended.
    let out = train(two.path(), &[&args[..], &["--epochs", "1", "--resume"]].concat());
    assert!(out.status.success() && errors(&out).contains("at step 14 of 14"), "{}", errors(&out));
}

#[test]
fn mistakes_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let read_only = format!("s3://{}/bucket/s.safetensors", read_only_store());
    for (url, words) in [
        ("s3://bucket/", "names no object: write s3://BUCKET/NAME.safetensors"),
        ("s3://name", "names no object"),
        ("s3://http://127.0.0.1:1/bucket/s.safetensors", "cannot be written: objects cannot be listed: "),
        (&read_only, "cannot be written: an object cannot be written: "),
    ] {
        let out = train(dir.path(), &["--epochs", "1", "--snapshot", url]);
        assert!(!out.status.success() && errors(&out).contains(words), "{url}: {}", errors(&out));
        // It is found before the first step.
        assert!(out.stdout.is_empty(), "{}", String::from_utf8_lossy(&out.stdout));
    }
    let unreachable = ["--epochs", "1", "--snapshot", "s3://http://127.0.0.1:1/bucket/s.safetensors", "--resume"];
    let out = train(dir.path(), &unreachable);
    assert!(!out.status.success() && errors(&out).contains("they must allow to list, read, write"), "{}", errors(&out));
}

/// A store that lists nothing, and refuses all else.
fn read_only_store() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map(Result::unwrap);
            let first = lines.next().unwrap_or_default();
            let _ = lines.find(String::is_empty);
            let (status, body) = match first.starts_with("GET") {
                true => ("200 OK", "<ListBucketResult><Name>bucket</Name><KeyCount>0</KeyCount></ListBucketResult>"),
                false => ("403 Forbidden", "<Error><Code>AccessDenied</Code></Error>"),
            };
            let head = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
            stream.write_all((head + body).as_bytes()).unwrap();
        }
    });
    format!("http://{address}")
}

#[test]
fn missing_keys_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let mut c = command(dir.path(), &["--epochs", "1", "--snapshot", "s3://bucket/s.safetensors"]);
    // The service of the cloud for keys, which is not there.
    c.env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY");
    let out = c.env("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1").output().unwrap();
    let said = errors(&out);
    assert!(!out.status.success(), "{said}");
    assert!(said.contains("no keys: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set"), "{said}");
    assert!(out.stdout.is_empty(), "{}", String::from_utf8_lossy(&out.stdout));
}

/// A server that gives a file so many times.
fn serve(path: PathBuf, times: usize) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for _ in 0..times {
            let (mut stream, _) = listener.accept().unwrap();
            let lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let _ = lines.map(Result::unwrap).find(String::is_empty);
            let bytes = fs::read(&path).unwrap();
            write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", bytes.len()).unwrap();
            stream.write_all(&bytes).unwrap();
        }
    });
    format!("http://{address}/train.npz")
}

#[test]
fn data_is_downloaded_once() {
    let dir = tempfile::tempdir().unwrap();
    let url = serve(digits().join("train.npz"), 2);
    let run = |data: &str| {
        let mut c = Command::new(env!("CARGO_BIN_EXE_of-opt"));
        c.arg("train").arg(digits().join("untrained.onnx")).args(["--data", data, "--epochs", "1"]);
        c.args(["--threads", "1", "-o", "m.safetensors"]).current_dir(dir.path());
        c.env("OF_CACHE_DIR", dir.path().join("cache")).output().unwrap()
    };
    let out = run(&format!("{url}#sha256={}", "0".repeat(64)));
    let said = errors(&out);
    assert!(!out.status.success() && said.contains("has the SHA-256 "), "{said}");
    let hash = said.split("has the SHA-256 ").nth(1).unwrap().split(' ').next().unwrap();
    // The second time the server has ended.
    for _ in 0..2 {
        let out = run(&format!("{url}#sha256={hash}"));
        assert!(out.status.success(), "{}", errors(&out));
    }
    let out = run("http://127.0.0.1:1/train.npz");
    assert!(!out.status.success() && errors(&out).contains("cannot be read"), "{}", errors(&out));
}
