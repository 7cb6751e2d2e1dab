//! How much time the server adds to a run: `cargo run --release -p of-serving --example latency`.
//!
//! One client asks over one connection of the loopback interface, one request after the other, with binary tensors over HTTP. The added
//! time is from the first byte that the client writes to the last that it reads, less the mean time of the run. `echo` is the same client
//! with a thread that reads as many bytes and writes as many as an answer has: what the system takes without a server.
//!
//! With OTEL_EXPORTER_OTLP_ENDPOINT it sends traces: what a traced request takes, or, with OTEL_TRACES_SAMPLER=always_off, one that is not sampled.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use of_driver::{Compiler, Model, Silent};
use of_serving::{Ensemble, Opener, RepositoryOptions, Server, ServerOptions};
use of_telemetry::{Tracer, TracerOptions};

const WARM_UP: usize = 500;
const REQUESTS: usize = 5000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    of_driver::codegen_passes::register();
    let dir = tempfile::tempdir()?;
    println!("{:>10} {:>9} {:>9} {:>9} {:>9} {:>9}", "bytes", "run us", "p50 us", "p99 us", "added us", "echo us");
    for elements in [256_usize, 150_528] {
        let text = format!(
            "func @main(%x: tensor<?(N)x{elements}xf32>) -> (tensor<?(N)xf32>) {{
                %axes = of.constant {{value = dense<[1]> : tensor<1xi64>}} : () -> tensor<1xi64>
                %y = of.reduce_mean %x, %axes {{keepdims = false}} : (tensor<?(N)x{elements}xf32>, tensor<1xi64>) -> tensor<?(N)xf32>
                of.return %y : (tensor<?(N)xf32>) -> ()
            }}"
        );
        let model = Model::from_text(&text, "mean", None)?;
        let path = dir.path().join(format!("mean{elements}.plan"));
        Compiler::new().threads(1).compile(model)?.save(&path)?;
        measure(&path, elements)?;
    }
    Ok(())
}

fn measure(path: &Path, elements: usize) -> Result<(), Box<dyn std::error::Error>> {
    let open = |path: &Path| match of_driver::model::open(path, &Silent) {
        Ok(of_driver::ModelOrPlan::Plan(plan)) => Ok(*plan),
        Ok(of_driver::ModelOrPlan::Model(_)) => Err("a plan is needed".to_owned()),
        Err(e) => Err(e.to_string()),
    };
    let open_ensemble = |_: &Ensemble| Err("the example has no ensembles".to_owned());
    let opener = Opener {
        open: Box::new(open),
        open_ensemble: Box::new(open_ensemble),
        loaders: of_driver::Backends::builtin().loaders,
    };
    let repository = RepositoryOptions { paths: vec![path.to_owned()], threads: 1, ..RepositoryOptions::default() };
    let http = Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    let tracer = Tracer::start(&TracerOptions::default())?;
    let options = ServerOptions { http, tracer, network_threads: 2, repository, ..ServerOptions::default() };
    let server = Server::start(options, opener)?;
    while !server.is_ready() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let model = server.repository().ready().pop().ok_or("no model")?;
    let mut stream = connect(server.addresses().http.ok_or("no address")?)?;
    let request = request(&model.name, elements);
    ask(&mut stream, &request, WARM_UP)?;
    let before = (model.stats.run.count(), model.stats.run.nanos());
    let times = ask(&mut stream, &request, REQUESTS)?;
    let runs = (model.stats.run.count() - before.0, model.stats.run.nanos() - before.1);
    let run = runs.1 as f64 / 1000.0 / runs.0.max(1) as f64;
    let (p50, p99) = (times[REQUESTS / 2], times[REQUESTS * 99 / 100]);
    let echo = echo(&request)?[REQUESTS / 2];
    println!("{:>10} {run:>9.1} {p50:>9.1} {p99:>9.1} {:>9.1} {echo:>9.1}", elements * 4, p50 - run);
    Ok(())
}

fn connect(address: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Sends a request again and again. Returns the times in microseconds, ascending.
fn ask(stream: &mut TcpStream, request: &[u8], count: usize) -> Result<Vec<f64>, Box<dyn std::error::Error>> {
    let mut answer = vec![0; 1 << 16];
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let start = Instant::now();
        stream.write_all(request)?;
        let len = read(stream, &mut answer)?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
        if !answer[..len].starts_with(b"HTTP/1.1 200") {
            return Err(String::from_utf8_lossy(&answer[..len]).into());
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}

/// As [`ask`], with a thread in place of the server.
fn echo(request: &[u8]) -> Result<Vec<f64>, Box<dyn std::error::Error>> {
    let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: 200\r\n\r\n{}", "x".repeat(200));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let len = request.len();
    let thread = std::thread::spawn(move || -> std::io::Result<()> {
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        let mut buffer = vec![0; len];
        for _ in 0..WARM_UP + REQUESTS {
            stream.read_exact(&mut buffer)?;
            stream.write_all(answer.as_bytes())?;
        }
        Ok(())
    });
    let mut stream = connect(address)?;
    ask(&mut stream, request, WARM_UP)?;
    let times = ask(&mut stream, request, REQUESTS)?;
    thread.join().map_err(|_| "the thread ended")??;
    Ok(times)
}

fn request(model: &str, elements: usize) -> Vec<u8> {
    let header = format!(
        "{{\"inputs\":[{{\"name\":\"x\",\"shape\":[1,{elements}],\"datatype\":\"FP32\",\"parameters\":{{\"binary_data_size\":{}}}}}],\
         \"parameters\":{{\"binary_data_output\":true}}}}",
        elements * 4
    );
    let length = header.len() + elements * 4;
    let head = format!(
        "POST /v2/models/{model}/infer HTTP/1.1\r\nhost: x\r\ninference-header-content-length: {}\r\ncontent-length: {length}\r\n\r\n",
        header.len()
    );
    let tensor: Vec<u8> = (0..elements).flat_map(|i| (i as f32).to_le_bytes()).collect();
    [head.as_bytes(), header.as_bytes(), &tensor].concat()
}

/// Reads an answer, and returns its length.
fn read(stream: &mut TcpStream, buffer: &mut [u8]) -> Result<usize, Box<dyn std::error::Error>> {
    let mut len = 0;
    loop {
        len += stream.read(&mut buffer[len..])?;
        let Some(end) = buffer[..len].windows(4).position(|w| w == b"\r\n\r\n").map(|at| at + 4) else { continue };
        let head = String::from_utf8_lossy(&buffer[..end]).to_lowercase();
        let body = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
        let body: usize = body.ok_or("no length")?.trim().parse()?;
        if len >= end + body {
            return Ok(len);
        }
    }
}
