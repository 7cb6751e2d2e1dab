//! How much time the server adds to a run: `cargo run --release -p of-serving --example latency`.
//!
//! One client asks over one connection of the loopback interface, one request after the other, with binary tensors over HTTP. The added
//! time is from the first byte that the client writes to the last that it reads, less the mean time of the run.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use of_driver::{Compiler, Model, Silent};
use of_serving::{Opener, RepositoryOptions, Server, ServerOptions};

const WARM_UP: usize = 500;
const REQUESTS: usize = 5000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    of_driver::codegen_passes::register();
    let dir = tempfile::tempdir()?;
    println!("{:>10} {:>9} {:>9} {:>9} {:>9}", "bytes", "run us", "p50 us", "p99 us", "added us");
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
    let opener = Opener { open: Box::new(open), loaders: of_driver::Backends::builtin().loaders };
    let repository = RepositoryOptions { paths: vec![path.to_owned()], threads: 1, ..RepositoryOptions::default() };
    let http = Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    let server =
        Server::start(ServerOptions { http, network_threads: 2, repository, ..ServerOptions::default() }, opener)?;
    while !server.is_ready() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let model = server.repository().ready().pop().ok_or("no model")?;
    let mut stream = TcpStream::connect(server.addresses().http.ok_or("no address")?)?;
    stream.set_nodelay(true)?;
    let request = request(&model.name, elements);
    let mut answer = vec![0; 1 << 16];
    let mut times = Vec::with_capacity(REQUESTS);
    let mut run = (0, 0);
    for number in 0..WARM_UP + REQUESTS {
        if number == WARM_UP {
            run = (model.stats.run.count(), model.stats.run.nanos());
        }
        let start = Instant::now();
        stream.write_all(&request)?;
        let len = read(&mut stream, &mut answer)?;
        if number >= WARM_UP {
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
        if !answer[..len].starts_with(b"HTTP/1.1 200") {
            return Err(String::from_utf8_lossy(&answer[..len]).into());
        }
    }
    let count = model.stats.run.count() - run.0;
    let run = (model.stats.run.nanos() - run.1) as f64 / 1000.0 / count.max(1) as f64;
    times.sort_by(f64::total_cmp);
    let (p50, p99) = (times[REQUESTS / 2], times[REQUESTS * 99 / 100]);
    println!("{:>10} {run:>9.1} {p50:>9.1} {p99:>9.1} {:>9.1}", elements * 4, p50 - run);
    Ok(())
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
