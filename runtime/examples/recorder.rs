//! The time that the flight recorder takes for an event: `cargo run --release -p of-runtime --example recorder`.

use std::time::Instant;

use of_runtime::FlightRecorder;
use of_runtime::flight_recorder::{Event, RecordingOf};

fn main() -> std::io::Result<()> {
    const EVENTS: u64 = 10_000_000;
    let path = std::env::temp_dir().join(format!("of-recorder-{}.flight", std::process::id()));
    let recorder = FlightRecorder::create(&path, &RecordingOf::default(), 100)?;
    for round in 0..5 {
        let start = Instant::now();
        (0..EVENTS).for_each(|act| recorder.record(Event::ActBegins { task: 7, act }));
        println!("round {round}: {:.1} ns an event", start.elapsed().as_secs_f64() * 1e9 / EVENTS as f64);
    }
    std::fs::remove_file(path)
}
