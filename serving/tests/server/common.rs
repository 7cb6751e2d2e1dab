//! A server with the model of digits, and a client of HTTP/1.1 without a library.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use of_driver::ensemble::{Step, merge};
use of_driver::{CompileOptions, Compiler, Model, Silent};
use of_plan::PlanFile;
use of_serving::{Ensemble, EnsembleStep, Opener, RepositoryOptions, Server, ServerOptions};
use tempfile::TempDir;

/// A file of the examples.
pub fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/digits").join(name)
}

/// Opens plans and compiles models, as `of-opt serve` does.
pub fn opener() -> Opener {
    let open = |path: &Path| -> Result<PlanFile, String> {
        match of_driver::model::open(path, &Silent).map_err(|e| e.to_string())? {
            of_driver::ModelOrPlan::Plan(plan) => Ok(*plan),
            of_driver::ModelOrPlan::Model(model) => {
                let compiled = Compiler::new().threads(1).compile(*model).map_err(|e| e.to_string())?;
                compiled.open().map_err(|e| e.to_string())
            }
        }
    };
    let open_ensemble = |ensemble: &Ensemble| -> Result<PlanFile, String> {
        let step = |step: &EnsembleStep| {
            let model = Model::open(&step.file).map_err(|e| format!("step '{}': {e}", step.name))?;
            let (name, inputs, outputs) = (step.name.clone(), step.inputs.clone(), step.outputs.clone());
            Ok(Step { name, model, inputs, outputs })
        };
        let steps = ensemble.steps.iter().map(step).collect::<Result<_, String>>()?;
        let model = merge(&ensemble.name, steps, &ensemble.inputs, &ensemble.outputs).map_err(|e| e.to_string())?;
        let compiled = Compiler::new().threads(1).compile(model).map_err(|e| e.to_string())?;
        compiled.open().map_err(|e| e.to_string())
    };
    let loaders = of_driver::Backends::builtin().loaders;
    Opener { open: Box::new(open), open_ensemble: Box::new(open_ensemble), loaders }
}

/// The plan of the digits, with an open number of images.
pub fn digits_plan() -> &'static [u8] {
    static PLAN: OnceLock<Vec<u8>> = OnceLock::new();
    PLAN.get_or_init(|| plan_of(Model::open(example("digits.onnx")).unwrap()))
}

/// The plan of IR text.
pub fn text_plan(text: &str) -> Vec<u8> {
    plan_of(Model::from_text(text, "test", None).unwrap())
}

/// The plan of IR text, whose state is in a variable.
pub fn variable_plan(text: &str, variable: &str) -> Vec<u8> {
    of_driver::codegen_passes::register();
    let options = CompileOptions { variables: vec![variable.into()], ..CompileOptions::default() };
    let model = Model::from_text(text, "test", None).unwrap();
    Compiler::with_options(options).threads(1).compile(model).unwrap().to_bytes().unwrap()
}

fn plan_of(model: Model) -> Vec<u8> {
    of_driver::codegen_passes::register();
    Compiler::new().threads(1).compile(model).unwrap().to_bytes().unwrap()
}

/// A repository with the digits as version 1.
pub fn repository() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "digits/1/model.plan", digits_plan());
    dir
}

/// Writes a file below a folder, so that it appears whole.
pub fn put(dir: &Path, name: &str, bytes: &[u8]) {
    let path = dir.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let temporary = path.with_extension("part");
    std::fs::write(&temporary, bytes).unwrap();
    std::fs::rename(temporary, path).unwrap();
}

/// Options of a server on free ports of this machine.
pub fn options(paths: &[&Path]) -> ServerOptions {
    let any = Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    let paths = paths.iter().map(|p| p.to_path_buf()).collect();
    let repository = RepositoryOptions { paths, threads: 1, ..RepositoryOptions::default() };
    ServerOptions { http: any, grpc: any, metrics: any, network_threads: 2, repository, ..ServerOptions::default() }
}

/// A server that is ready.
pub fn start(options: ServerOptions) -> Server {
    of_driver::codegen_passes::register();
    let server = Server::start(options, opener()).unwrap();
    wait_for("the models", || server.is_ready());
    server
}

/// Waits until something holds.
pub fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(120), "{what} took too long");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A connection.
pub struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }
}

impl Client {
    pub fn new(server: &Server) -> Client {
        Client::to(server.addresses().http.unwrap())
    }

    pub fn to(address: SocketAddr) -> Client {
        Client::try_to(address).unwrap()
    }

    pub fn try_to(address: SocketAddr) -> std::io::Result<Client> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        Ok(Client { stream, buffer: Vec::new() })
    }

    pub fn get(&mut self, path: &str) -> Answer {
        self.send("GET", path, &[], b"").unwrap()
    }

    pub fn post(&mut self, path: &str, body: &[u8]) -> Answer {
        self.send("POST", path, &[], body).unwrap()
    }

    pub fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> std::io::Result<Answer> {
        let mut request = format!("{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n", body.len());
        headers.iter().for_each(|(name, value)| request += &format!("{name}: {value}\r\n"));
        request += "\r\n";
        let mut bytes = request.into_bytes();
        bytes.extend_from_slice(body);
        self.write(&bytes)?;
        self.read()
    }

    pub fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Reads an answer.
    pub fn read(&mut self) -> std::io::Result<Answer> {
        let end = loop {
            if let Some(at) = self.buffer.windows(4).position(|w| w == b"\r\n\r\n") {
                break at + 4;
            }
            self.fill()?;
        };
        let head = String::from_utf8_lossy(&self.buffer[..end]).into_owned();
        let mut lines = head.lines();
        let status = lines.next().and_then(|l| l.split(' ').nth(1)).and_then(|s| s.parse().ok()).unwrap();
        let headers: Vec<(String, String)> =
            lines.filter_map(|l| l.split_once(": ")).map(|(n, v)| (n.to_lowercase(), v.to_owned())).collect();
        let len = headers.iter().find(|(n, _)| n == "content-length").map_or(0, |(_, v)| v.parse().unwrap());
        while self.buffer.len() < end + len {
            self.fill()?;
        }
        let rest = self.buffer.split_off(end + len);
        let body = self.buffer.split_off(end);
        self.buffer = rest;
        Ok(Answer { status, headers, body })
    }

    fn fill(&mut self) -> std::io::Result<()> {
        let mut part = [0; 1 << 16];
        match self.stream.read(&mut part)? {
            0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
            n => {
                self.buffer.extend_from_slice(&part[..n]);
                Ok(())
            }
        }
    }
}

/// A request with so many images, whose pixels follow as binary data, and the length of its JSON.
pub fn binary_request(images: usize, pixel: impl Fn(usize) -> f32) -> (Vec<u8>, usize) {
    let len = images * 256;
    let header = format!(
        "{{\"inputs\":[{{\"name\":\"image\",\"shape\":[{images},1,8,8],\"datatype\":\"FP32\",\"parameters\":{{\"binary_data_size\":{len}}}}}],\
         \"parameters\":{{\"binary_data_output\":true}}}}"
    );
    let mut bytes = header.clone().into_bytes();
    (0..images * 64).for_each(|i| bytes.extend_from_slice(&pixel(i).to_le_bytes()));
    (bytes, header.len())
}
