//! A request that is not sampled allocates nothing.

use allocation_counter::measure;
use of_telemetry::{TraceParent, Tracer, TracerOptions};

#[test]
fn requests_that_are_not_sampled_allocate_nothing() {
    let options = TracerOptions { endpoint: Some("http://127.0.0.1:1/v1/traces".into()) };
    let tracer = Tracer::start(&options).unwrap().unwrap();
    let header = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
    let ask = || {
        let parent = TraceParent::read(header.as_bytes());
        assert!(std::hint::black_box(tracer.begin(parent.as_ref())).is_none());
    };
    assert_eq!(measure(|| (0..100).for_each(|_| ask())).count_total, 0);
    assert!(measure(|| drop(std::hint::black_box(header.repeat(2)))).count_total > 0, "allocations are counted");
}
