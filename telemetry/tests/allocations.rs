//! A request that is not sampled allocates nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use of_telemetry::{TraceParent, Tracer, TracerOptions};

thread_local! {
    /// Allocations of this thread.
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: the system's allocator does all of the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: as of this function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as of this function.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(run: impl FnOnce()) -> usize {
    let before = COUNT.get();
    run();
    COUNT.get() - before
}

#[test]
fn requests_that_are_not_sampled_allocate_nothing() {
    let options = TracerOptions { endpoint: Some("http://127.0.0.1:1/v1/traces".into()) };
    let tracer = Tracer::start(&options).unwrap().unwrap();
    let ask = |header: &str| {
        for _ in 0..100 {
            let parent = TraceParent::read(header.as_bytes());
            drop(tracer.begin(parent.as_ref()));
        }
    };
    let header = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0";
    let header = format!("{header}0");
    assert_eq!(allocations(|| ask(&header)), 0);
    assert!(allocations(|| drop(vec![0])) > 0, "allocations are counted");
}
