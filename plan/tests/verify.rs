//! The verifier must refuse what can go wrong at run time, with a counterexample, and accept what cannot.

mod common;

use std::time::Instant;

use common::Graph;
use common::movers::{Order, two_movers};
use of_plan::*;

fn plan_of(program: Program) -> Plan {
    Plan { programs: vec![program], ..Plan::default() }
}

fn findings(program: Program) -> Vec<Finding> {
    verify(&plan_of(program)).err().unwrap_or_default()
}

fn only(program: Program) -> Finding {
    let mut findings = findings(program);
    assert_eq!(findings.len(), 1, "{findings:?}");
    findings.remove(0)
}

/// a -> b -> c -> d; the registers have these offsets.
fn chain(offsets: [u64; 3]) -> Graph {
    let mut graph = Graph::new("main", 1);
    let tasks: Vec<_> = ["a", "b", "c", "d"].iter().map(|name| graph.task(name, 0, None)).collect();
    for (number, offset) in offsets.into_iter().enumerate() {
        graph.block(&format!("r{number}"), tasks[number], &[tasks[number + 1]], 16, offset);
    }
    graph
}

#[test]
fn chains_may_reuse_memory_two_steps_later() {
    assert_eq!(findings(chain([0, 64, 0]).finish()), []);
    let finding = only(chain([0, 32, 256]).finish());
    assert_eq!(finding.kind, FindingKind::Overlap);
    assert!(finding.to_string().contains("`r0` and `r1`"), "{finding}");
}

#[test]
fn a_cycle_deadlocks() {
    let mut graph = chain([0, 64, 128]);
    graph.control(2, 1);
    let finding = only(graph.finish());
    assert_eq!(finding.kind, FindingKind::Deadlock);
    let text = finding.to_string();
    assert!(text.contains("`b` waits for `then` of `c`") && text.contains("`c` waits for `r1` of `b`"), "{text}");
}

/// Data movements and computations that wait for memory of one device, the example of the paper on OneFlow (Yuan et al., 2021). A runtime that
/// takes memory when a task is ready may deadlock; here the order is part of the plan, and a cycle is found before a run.
#[test]
fn orders_of_memory_that_contradict_deadlock() {
    let finding = only(two_movers(Order::Crossed));
    assert_eq!(finding.kind, FindingKind::Deadlock);
    let text = finding.to_string();
    assert!(text.contains("`o1` waits for `then` of `o2`; `o2` waits for `then` of `o1`"), "{text}");
    // Without an order nothing waits, and values are overwritten.
    let found = findings(two_movers(Order::Free));
    assert!(!found.is_empty() && found.iter().all(|f| f.kind == FindingKind::Overlap), "{found:?}");
    assert_eq!(findings(two_movers(Order::Compiled)), []);
}

#[test]
fn in_place_needs_the_last_reader() {
    let build = |declare: bool, second_reader: bool, ordered: bool| {
        let mut graph = Graph::new("main", 1);
        let (a, b, c) = (graph.task("a", 0, None), graph.task("b", 0, None), graph.task("c", 0, None));
        let readers: &[usize] = if second_reader { &[b, c] } else { &[c] };
        let x = graph.block("x", a, readers, 16, 0);
        let y = graph.block("y", c, &[], 16, 0);
        if declare {
            graph.0.registers[y as usize].inplace_of = vec![x];
        }
        if ordered {
            graph.control(b, c);
        }
        findings(graph.finish())
    };
    assert_eq!(build(true, false, false), []);
    assert_eq!(build(true, true, true), []);
    assert_eq!(build(false, false, false)[0].kind, FindingKind::Overlap);
    assert_eq!(build(true, true, false)[0].kind, FindingKind::Overlap);
}

#[test]
fn parallel_branches_cannot_share_memory_without_an_order() {
    let diamond = || {
        let mut graph = Graph::new("main", 2);
        let tasks: Vec<_> = ["a", "b", "c", "d"].iter().map(|name| graph.task(name, 0, None)).collect();
        graph.block("x", tasks[0], &[tasks[1], tasks[2]], 16, 0);
        let temporary = graph.block("t", tasks[1], &[], 16, 64);
        graph.block("y", tasks[2], &[tasks[3]], 16, 64);
        (graph.finish(), temporary)
    };
    let (program, _) = diamond();
    assert_eq!(only(program).kind, FindingKind::Overlap);
    let (mut program, _) = diamond();
    order_reuse(&mut program);
    assert_eq!(program.registers.len(), 4, "one control edge is enough");
    assert_eq!(findings(program), []);
    let (mut program, _) = diamond();
    chain_threads(&mut program);
    assert_eq!(findings(program), []);
}

/// Only neighbours in time are looked at; whether any two registers that share memory lack an order must follow from that.
#[test]
fn successive_blocks_prove_all_overlaps() {
    let (mut sound, mut unsound) = (0, 0);
    for seed in 0..2000 {
        let mut r = fastrand::Rng::with_seed(seed);
        let tasks = r.usize(3..9);
        let mut graph = Graph::new("main", 1);
        for n in 0..tasks {
            graph.task(&format!("t{n}"), 0, None);
        }
        for n in 0..tasks - 1 {
            let readers: Vec<usize> = (n + 1..tasks).filter(|_| r.usize(0..tasks) < 2).collect();
            graph.block(&format!("r{n}"), n, &readers, 16 * r.i64(1..4), 64 * r.u64(0..6));
            if r.usize(0..4) > 0 {
                graph.control(n, n + 1);
            }
        }
        let program = graph.finish();
        // Whether a task ends before another begins, by the transitive closure.
        let graph = TaskGraph::of(&program).unwrap();
        let mut before = vec![vec![false; tasks]; tasks];
        graph.edges().for_each(|(a, b)| before[a as usize][b as usize] = true);
        for via in 0..tasks {
            for a in 0..tasks {
                for b in 0..tasks {
                    before[a][b] |= before[a][via] && before[via][b];
                }
            }
        }
        let done = |a: u32, b: u32| {
            let (producer, filled) = (graph.producer[a as usize], graph.producer[b as usize] as usize);
            graph.consumers[a as usize].iter().chain([&producer]).all(|task| before[*task as usize][filled])
        };
        let conflict = overlapping_blocks(&program).into_iter().any(|(a, b)| !done(a, b) && !done(b, a));
        let found = findings(program);
        assert!(found.iter().all(|f| f.kind == FindingKind::Overlap), "seed {seed}: {found:?}");
        assert_eq!(!found.is_empty(), conflict, "seed {seed}: {found:?}");
        *(if conflict { &mut unsound } else { &mut sound }) += 1;
    }
    assert!(sound > 100 && unsound > 100, "{sound} sound, {unsound} not");
}

#[test]
fn pipelined_programs_need_an_order_across_iterations() {
    let build = |back_edge: bool| {
        let mut graph = chain([0, 64, 0]);
        graph.0.pipelined = true;
        if back_edge {
            // A register that `d` consumes and `a` produces holds `a` back until `d` is through.
            graph.control(0, 3);
        }
        findings(graph.finish())
    };
    assert_eq!(build(true), []);
    let found = build(false);
    assert_eq!(found.len(), 1);
    assert!(found[0].message.contains("end an iteration before `a` acts on the next one"), "{}", found[0]);
}

#[test]
fn broken_structures() {
    let kinds = |change: &dyn Fn(&mut Program)| {
        let mut program = chain([0, 64, 0]).finish();
        change(&mut program);
        let kinds: Vec<_> = findings(program).into_iter().map(|finding| finding.kind).collect();
        assert!(!kinds.is_empty());
        kinds
    };
    let has = |kind, change: &dyn Fn(&mut Program)| assert!(kinds(change).contains(&kind), "{kind:?}");
    has(FindingKind::Duplicate, &|p| p.tasks[1].id = p.tasks[0].id);
    has(FindingKind::Index, &|p| p.registers[1].id = 7);
    has(FindingKind::Range, &|p| p.registers[1].copies = 0);
    has(FindingKind::Ownership, &|p| p.registers[1].producer = 99);
    has(FindingKind::Ownership, &|p| p.registers[1].consumers.clear());
    has(FindingKind::Index, &|p| p.tasks[0].produces.push(50));
    has(FindingKind::Duplicate, &|p| p.tasks[0].produces.push(0));
    has(FindingKind::Type, &|p| p.tasks[0].kind = TaskKind::InputWise as i32);
    has(FindingKind::Type, &|p| p.tasks[0].kind = 77);
    has(FindingKind::Peak, &|p| p.peak_bytes += 1);
    has(FindingKind::Peak, &|p| p.lower_bound_bytes = p.peak_bytes + 1);
    has(FindingKind::Type, &|p| p.registers[0].storage = None);
    has(FindingKind::Type, &|p| p.registers[0].dtype = 99);
    has(FindingKind::Range, &|p| p.registers[0].dims = vec![17]);
    has(FindingKind::Type, &|p| p.registers[0].dims = vec![-1]);
    has(FindingKind::Index, &|p| p.tasks[0].thread = 5);
    has(FindingKind::Reserved, &|p| p.threads[0].device = "cuda".into());
    has(FindingKind::Index, &|p| p.tasks[0].exec = common::feed(0));
    has(FindingKind::Index, &|p| p.tasks[0].exec = common::kernel(0, vec![], 1));
    let block = |p: &mut Program, change: &dyn Fn(&mut Block)| {
        let Some(Storage::Block(block)) = &mut p.registers[0].storage else { panic!() };
        change(block);
    };
    has(FindingKind::Range, &|p| block(p, &|b| b.offset = u64::MAX - 10));
    has(FindingKind::Range, &|p| block(p, &|b| b.bytes = u64::MAX));
    has(FindingKind::Alignment, &|p| block(p, &|b| b.offset = 2));
    has(FindingKind::Index, &|p| block(p, &|b| b.chunk = 3));
    has(FindingKind::Lifetime, &|p| block(p, &|b| b.last = 0));
}

#[test]
fn ports_are_fed_and_fetched_once() {
    let build = |change: fn(&mut Program)| {
        let mut program = common::small_plan().plan().programs[0].clone();
        change(&mut program);
        let plan = Plan { programs: vec![program], ..common::small_plan().plan().clone() };
        verify(&plan).err().map(|findings| findings[0].kind)
    };
    assert_eq!(build(|_| ()), None);
    assert_eq!(build(|p| p.tasks[4].exec = None), Some(FindingKind::Ownership));
    assert_eq!(build(|p| p.tasks[0].exec = None), Some(FindingKind::Ownership));
    assert_eq!(build(|p| p.inputs[0].register = 2), Some(FindingKind::Ownership));
    assert_eq!(build(|p| p.inputs[0].dims = vec![9]), Some(FindingKind::Type));
    assert_eq!(build(|p| p.inputs[0].object = true), Some(FindingKind::Type));
}

/// The structure of a plan was changed after its kernels were compiled.
#[test]
fn kernels_are_called_as_they_were_compiled() {
    let build = |change: &dyn Fn(&mut Plan)| {
        let mut plan = common::small_plan().plan().clone();
        change(&mut plan);
        verify(&plan).err().map_or(String::new(), |findings| findings[0].to_string())
    };
    let of_kernel = |change: &dyn Fn(&mut KernelExec)| {
        build(&|plan| {
            let Some(Exec::Kernel(exec)) = &mut plan.programs[0].tasks[1].exec else { panic!() };
            change(exec);
        })
    };
    assert_eq!(build(&|_| ()), "");
    let refused = [
        // The registers of the task in the middle, with ports, types and blocks that agree.
        (
            build(&|plan| {
                let y = &mut plan.programs[0].registers[1];
                y.dims = vec![1];
                let Some(Storage::Block(block)) = &mut y.storage else { panic!() };
                block.bytes = 4;
            }),
            "argument 1 has 4 bytes and its kernel accesses 32",
        ),
        (of_kernel(&|exec| exec.iterations = 9), "it runs 9 iterations and its kernel was compiled for 8"),
        (of_kernel(&|exec| exec.grain = 3), "in parts of 3 iterations and its kernel was compiled for parts of 1"),
        (of_kernel(&|exec| exec.scratch_bytes = 8), "it has 8 bytes of scratch memory and its kernel needs 256"),
        (of_kernel(&|exec| exec.dynamic = Some(Extent::default())), "its iterations depend on symbols in another way"),
        (of_kernel(&|exec| exec.args.truncate(2)), "it has 2 arguments and its kernel takes 3"),
        (of_kernel(&|exec| exec.args[0].byte_offset = 4), "argument 0 has 28 bytes and its kernel accesses 32"),
        (
            of_kernel(&|exec| exec.args[1] = Arg::register(0, 0)),
            "its kernel writes to argument 1, which the task does not",
        ),
        (of_kernel(&|exec| exec.args[1] = Arg::weight(0, 0)), "its kernel writes to argument 1"),
        (of_kernel(&|exec| exec.args.swap(0, 1)), "the task produces argument 0, which its kernel only reads"),
        (of_kernel(&|exec| exec.code = 1), "it has 3 arguments and its kernel takes 2"),
        (build(&|plan| plan.code[0].entry = 0), "its entry, instruction set or declared calls do not match their hash"),
        (build(&|plan| plan.code[0].calls[0].iterations = 9), "do not match their hash"),
        (build(&|plan| plan.code[1].calls.clear()), "do not match their hash"),
    ];
    for (found, expected) in refused {
        assert!(found.contains(expected), "{found:?} is not {expected:?}");
    }
    let moved = build(&|plan| {
        let Some(Storage::Block(block)) = &mut plan.programs[0].registers[1].storage else { panic!() };
        block.offset = 68;
        plan.programs[0].chunks[0].bytes = 128;
        plan.programs[0].peak_bytes = 128;
    });
    assert!(moved.contains("argument 1 is aligned to 4 bytes and its kernel needs 64"), "{moved}");
}

#[test]
fn arguments_stay_inside_their_buffers() {
    let build = |arg: Arg| {
        let mut builder = common::small_plan();
        let mut program = builder.plan().programs[0].clone();
        program.name = "second".into();
        let Some(Exec::Kernel(exec)) = &mut program.tasks[1].exec else { panic!() };
        exec.args = vec![arg];
        builder.add_program(program);
        verify(builder.plan()).err().map(|findings| findings[0].kind)
    };
    assert_eq!(build(Arg::register(0, 32)), None);
    assert_eq!(build(Arg::register(0, 33)), Some(FindingKind::Range));
    assert_eq!(build(Arg::register(0, 3)), Some(FindingKind::Alignment));
    assert_eq!(build(Arg::register(3, 0)), Some(FindingKind::Ownership));
    assert_eq!(build(Arg::weight(0, 16)), Some(FindingKind::Range));
    assert_eq!(build(Arg::weight(9, 0)), Some(FindingKind::Index));
    assert_eq!(build(Arg::default()), Some(FindingKind::Index));
}

/// A long chain in two alternating blocks has a million overlapping pairs.
#[test]
fn large_programs_are_verified_fast() {
    let mut graph = Graph::new("main", 1);
    for number in 0..2000 {
        graph.task(&format!("t{number}"), 0, None);
    }
    for number in 0..1999 {
        graph.block(&format!("r{number}"), number, &[number + 1], 16, 64 * (number as u64 % 2));
    }
    let plan = plan_of(graph.finish());
    let start = Instant::now();
    assert_eq!(verify(&plan), Ok(()));
    eprintln!("2000 tasks verified in {:?}", start.elapsed());
    assert!(start.elapsed().as_secs() < 10);
}
