//! Sessions that share workers run at the same time, and give what each gives alone.

#[path = "../../plan/tests/common/mod.rs"]
mod common;

use std::sync::Arc;

use common::{Graph, builder, feed, fetch};
use of_plan::*;
use of_runtime::{Options, Session, Tensor, Value, Workers};

const ELEMENTS: i64 = 8;

/// Copies its input.
fn plan() -> Arc<PlanFile> {
    let mut graph = Graph::new("copy", 1);
    let source = graph.task("in", 0, feed(0));
    let (src, dst) = (Arg::register(0, 0), Arg::register(1, 0));
    let exec = CopyExec { src, dst, bytes: 4 * ELEMENTS as u64, ..CopyExec::default() };
    let copy = graph.task("copy", 0, Some(Exec::Copy(exec)));
    let output = graph.task("out", 0, fetch(0));
    graph.block("x", source, &[copy], ELEMENTS, 0);
    let y = graph.block("y", copy, &[output], ELEMENTS, 64);
    graph.port("x", 0, true);
    graph.port("y", y, false);
    let mut plan = builder();
    plan.add_program(graph.finish());
    Arc::new(PlanFile::from_builder(&plan).unwrap_or_else(|e| panic!("{e}")))
}

#[test]
fn sessions_share_workers() {
    let (plan, workers) = (plan(), Workers::default());
    std::thread::scope(|scope| {
        for number in 0..4 {
            let (plan, workers) = (&plan, &workers);
            scope.spawn(move || {
                let options = Options { threads: 2, ..Options::default() };
                let mut session = Session::on_workers(plan, 0, options, &[], workers).unwrap_or_else(|e| panic!("{e}"));
                let x = vec![number as f32; ELEMENTS as usize];
                for _ in 0..100 {
                    let input: Value = Tensor::from_elements([ELEMENTS], &x).unwrap().into();
                    let output = session.run(vec![input]).unwrap_or_else(|e| panic!("{e}"));
                    assert_eq!(output[0].as_tensor().and_then(Tensor::to_elements::<f32>).unwrap(), x);
                }
            });
        }
    });
}
