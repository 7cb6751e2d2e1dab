//! Sections about the programs of a plan.

use of_plan::{Exec, Plan, Program, Task};
use serde_json::{Value, json};

use crate::{Kind, Page, shortened};

/// The page of a plan: its programs and their tasks.
pub fn page(plan: &Plan) -> Page {
    let mut page = Page::new(&plan.info.model);
    add(&mut page, plan);
    page
}

/// What a task runs, in one word.
pub fn kind(task: &Task) -> &'static str {
    match &task.exec {
        Some(Exec::Kernel(_)) => "kernel",
        Some(Exec::Backend(_)) => "backend",
        Some(Exec::Copy(_) | Exec::Concat(_)) => "copy",
        Some(Exec::Feed(_) | Exec::Fetch(_)) => "port",
        Some(Exec::Control(_)) => "control",
        Some(Exec::Boxing(_)) => "boxing",
        None => "join",
    }
}

/// Arithmetic and bytes of a task, where the plan states them.
pub fn work(task: &Task) -> (u64, u64) {
    match &task.exec {
        Some(Exec::Kernel(k)) => (k.flops, k.bytes),
        Some(Exec::Backend(b)) => (b.flops, b.bytes),
        _ => (0, 0),
    }
}

/// Adds the sizes of a plan, and ports, tasks and registers of each program.
pub fn add(page: &mut Page, plan: &Plan) {
    let weights: u64 = plan.weights.iter().map(|w| w.len).sum();
    page.fact("programs", Kind::Number, plan.programs.len(), "");
    page.fact("tasks", Kind::Number, plan.programs.iter().map(|p| p.tasks.len()).sum::<usize>(), "of all programs");
    page.fact("weights", Kind::Bytes, weights, "");
    for (i, program) in plan.programs.iter().enumerate() {
        let of = if plan.programs.len() == 1 { String::new() } else { format!(" of program {i}") };
        ports(page, &of, program);
        tasks(page, &of, program);
    }
}

fn ports(page: &mut Page, of: &str, program: &Program) {
    let row = |what: &str, p: &of_plan::Port| {
        let dims: Vec<String> = p.dims.iter().map(|d| if *d < 0 { "?".into() } else { d.to_string() }).collect();
        json!([what, p.name, format!("{}[{}]", p.dtype().name(), dims.join("x")), p.dtype().byte_len(&p.dims)])
    };
    let rows: Vec<Value> = program
        .inputs
        .iter()
        .map(|p| row("input", p))
        .chain(program.outputs.iter().map(|p| row("output", p)))
        .collect();
    let columns = [("kind", Kind::Group), ("name", Kind::Text), ("type", Kind::Text), ("bytes", Kind::Bytes)];
    page.table(&format!("Inputs and outputs{of}"), "", &columns, rows);
}

fn tasks(page: &mut Page, of: &str, program: &Program) {
    let rows = program.tasks.iter().enumerate().map(|(i, t)| {
        let (flops, bytes) = work(t);
        // Of symbolic extents the plan states none.
        let stated = |n: u64| (n > 0).then_some(n);
        json!([
            i,
            kind(t),
            shortened(&t.name),
            t.thread,
            stated(flops),
            stated(bytes),
            shortened(&t.locations.join(", "))
        ])
    });
    let columns = [
        ("#", Kind::Number),
        ("kind", Kind::Group),
        ("task", Kind::Text),
        ("thread", Kind::Number),
        ("flop", Kind::Number),
        ("moved", Kind::Bytes),
        ("from", Kind::Text),
    ];
    page.table(&format!("Tasks{of}"), "What the runtime executes.", &columns, rows);
}
