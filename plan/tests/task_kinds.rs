//! Every kind of task: a program that has it verifies, and the verifier refuses it with wrong rates, parts or orders.

mod common;

use common::kinds::{concat, input_wise, join, microbatches, register, task};
use common::{Graph, feed, fetch};
use of_plan::*;

fn findings(program: &Program) -> Vec<Finding> {
    let mut program = program.clone();
    program.peak_bytes = program.chunks.iter().map(|chunk| chunk.bytes).sum();
    verify(&Plan { programs: vec![program], ..Plan::default() }).err().unwrap_or_default()
}

fn copy_of(program: &mut Program, task: usize) -> &mut CopyExec {
    let Some(Exec::Copy(exec)) = &mut program.tasks[task].exec else { panic!("no copy") };
    exec
}

/// Gives a phase as many runs as a program's microbatches, or one.
fn run_times(program: &mut Program, phase: usize, times: u32) {
    program.phases[phase].times = times;
    let lists = program.schedule.iter_mut().filter(|own| own.phases.contains(&(phase as u32)));
    lists.for_each(|own| own.phases.retain(|p| *p != phase as u32));
    program.schedule.retain(|own| !own.phases.is_empty());
    program.schedule.insert(1, ScheduleLoop { phases: vec![phase as u32], times });
}

#[test]
fn programs_with_microbatches_have_every_kind() {
    for count in 1..=6 {
        for depth in 1..=count {
            let program = microbatches(count, depth);
            assert_eq!(findings(&program), [], "{count} microbatches, {depth} in flight");
            let graph = TaskGraph::of(&program).unwrap();
            let rates = Rates::of(&program, &graph);
            let kinds = [TaskKind::Tick, TaskKind::Unpack, TaskKind::Repeat, TaskKind::Acc, TaskKind::Pack];
            for (task, kind) in [task::TICK, task::UNPACK, task::REPEAT, task::ACC, task::PACK].into_iter().zip(kinds) {
                assert_eq!(program.tasks[task].kind(), kind);
                let values = |ids: &[u32]| ids.iter().map(|id| rates.register(*id)).collect::<Vec<_>>();
                let (reads, makes) = (values(&program.tasks[task].consumes), values(&program.tasks[task].produces));
                let own = match kind {
                    TaskKind::Tick => (1, 1),
                    TaskKind::Unpack | TaskKind::Repeat => (1, count),
                    _ => (count, 1),
                };
                assert!(reads.iter().all(|n| *n == own.0) && makes.iter().all(|n| *n == own.1), "{kind:?}");
            }
        }
    }
}

/// With rates that do not fit, each kind is refused.
#[test]
fn kinds_of_microbatches_with_wrong_rates_are_refused() {
    let refused = |what: &str, kind, words: &str, change: &dyn Fn(&mut Program)| {
        let mut program = microbatches(4, 2);
        change(&mut program);
        let found = findings(&program);
        let fits = |f: &Finding| f.kind == kind && f.to_string().contains(words);
        assert!(found.iter().any(fits), "{what}: {found:?}");
    };
    // A task that runs once cannot read what there is of each microbatch.
    refused("acc and pack that run once", FindingKind::Range, "task `acc` acts 1 times in a run on 4 values", &|p| {
        run_times(p, 2, 1);
    });
    refused("twice as many reads", FindingKind::Range, "task `acc` acts 6 times in a run on 4 values", &|p| {
        run_times(p, 2, 6);
        // They stay inside their stacks.
        [task::PACK, task::PACK_REPEATED].into_iter().for_each(|pack| copy_of(p, pack).dst_step = 32);
    });
    refused("a tick of a microbatch's token", FindingKind::Range, "acts 1 times in a run on 4 values", &|p| {
        let (tick, token) = (p.tasks[task::TICK].id, p.tasks[task::TICK].consumes[0] as usize);
        let unpack = p.tasks[task::UNPACK].id;
        p.tasks[1].produces.retain(|id| *id != token as u32);
        p.tasks[task::UNPACK].produces.push(token as u32);
        (p.registers[token].producer, p.registers[token].consumers) = (unpack, vec![tick]);
    });
    // What is unpacked once is one slice, and no value of the other microbatches.
    refused("an unpack that runs once", FindingKind::Range, "acts several times on a value that has several", &|p| {
        run_times(p, 1, 1);
    });
    // What repeats reads one value in a run, and no value of each microbatch.
    refused("a repeat of each slice", FindingKind::Range, "reads one value in a run", &|p| {
        p.tasks[task::PACK].kind = TaskKind::Repeat as i32;
        copy_of(p, task::PACK).dst_step = 0;
    });
    refused("an unpack past its stack", FindingKind::Range, "past a buffer", &|p| {
        copy_of(p, task::UNPACK).src_step += 64;
    });
    refused("a pack past its stack", FindingKind::Range, "past a buffer", &|p| copy_of(p, task::PACK).dst_step += 64);
    refused("a repeat that moves", FindingKind::Type, "its steps and combination", &|p| {
        let exec = copy_of(p, task::REPEAT);
        (exec.bytes, exec.dst_step) = (16, 16);
    });
    refused("a repeat of nothing", FindingKind::Type, "a repeat copies its value", &|p| {
        p.tasks[task::REPEAT].exec = None;
    });
    refused("an accumulation that does not combine", FindingKind::Type, "its steps and combination", &|p| {
        p.tasks[task::ACC].kind = TaskKind::Copy as i32;
    });
    for kind in [task::UNPACK, task::REPEAT, task::ACC, task::PACK] {
        refused("a program without microbatches", FindingKind::Type, "needs a program with microbatches", &|p| {
            (p.phases, p.schedule) = (Vec::new(), Vec::new());
            let name = p.tasks[kind].name.clone();
            p.tasks[kind].name = format!("{name} alone");
        });
    }
}

/// A phase that runs ahead needs a copy for each microbatch in flight, and every copy but one is needed.
#[test]
fn copies_are_as_many_as_microbatches_in_flight() {
    for depth in 1..=4 {
        for register in [register::SLICE, register::REPEATED] {
            let mut program = microbatches(5, depth);
            program.registers[register].copies += 1;
            program.chunks[0].bytes += 64;
            let last = program.registers.iter_mut().filter(|r| r.id > register as u32);
            last.filter_map(|r| match &mut r.storage {
                Some(Storage::Block(block)) => Some(block),
                _ => None,
            })
            .for_each(|block| block.offset += 64);
            assert_eq!(findings(&program), [], "one copy more");
            if depth == 1 {
                continue;
            }
            let mut program = microbatches(5, depth);
            program.registers[register].copies = depth - 1;
            let found = findings(&program);
            let (name, by) = [("slice", "unpack"), ("repeated", "repeat")][usize::from(register == register::REPEATED)];
            let words =
                format!("`{by}` waits for a free copy of `{name}` of `{by}` in act {}, all are in use", depth - 1);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].kind == FindingKind::Deadlock && found[0].message.contains(&words), "{found:?}");
        }
    }
}

#[test]
fn an_input_wise_task_has_every_input_as_a_part() {
    assert_eq!(findings(&concat(&[4, 4, 8], 1)), []);
    let program = Program { pipelined: true, ..concat(&[4, 4, 8], 2) };
    assert_eq!(findings(&program), []);
    assert_eq!(program.acts(), 3 + 3 + 1);
    let refused = |kind, words: &str, change: &dyn Fn(&mut Program, &mut ConcatExec)| {
        let mut program = concat(&[4, 4, 8], 1);
        let Some(Exec::Concat(mut exec)) = program.tasks[3].exec.take() else { panic!("no parts") };
        change(&mut program, &mut exec);
        program.tasks[3].exec = Some(Exec::Concat(exec));
        let found = findings(&program);
        assert!(found.iter().any(|f| f.kind == kind && f.message.contains(words)), "{words}: {found:?}");
    };
    use FindingKind::{Overlap, Ownership, Range, Reserved, Type};
    refused(Range, "overlap, or are not the whole output", &|_, exec| exec.parts[1].offset = 12);
    refused(Range, "overlap, or are not the whole output", &|_, exec| exec.parts[2].bytes = 28);
    refused(Range, "overlap, or are not the whole output", &|_, exec| exec.parts[0].offset = u64::MAX);
    refused(Range, "a part of 20 bytes has 16 in its buffer", &|_, exec| exec.parts[0].bytes = 20);
    refused(Ownership, "an input has no part", &|_, exec| drop(exec.parts.pop()));
    refused(Ownership, "or is another part, too", &|_, exec| exec.parts[1].src = exec.parts[0].src.clone());
    refused(Ownership, "is not one of its inputs", &|_, exec| exec.parts[1].src = Arg::register(3, 0));
    refused(Ownership, "is not its own", &|_, exec| exec.dst = 0);
    refused(Overlap, "cannot be in place", &|p, _| p.registers[3].inplace_of = vec![0]);
    refused(Type, "copies each input to its part", &|p, _| p.tasks[3].kind = TaskKind::Copy as i32);
    refused(Reserved, "states the order of all acts", &|p, _| {
        let (first, tasks) = (0, p.tasks.len() as u32);
        p.phases = vec![Phase { first, tasks, times: 1 }];
        p.schedule = vec![ScheduleLoop { phases: vec![0], times: 1 }];
    });
}

/// a -> b -> concat and c -> concat: `concat` may begin with the part of `c` while `b` still reads what `a` made. So an edge to its end
/// is no proof that its output may have the memory of that.
#[test]
fn the_first_part_of_an_input_wise_task_proves_nothing_of_the_others() {
    let build = |ordered: bool, chained: bool| {
        let mut graph = Graph::new("main", if chained { 1 } else { 3 });
        let thread = |n: u32| if chained { 0 } else { n };
        let (a, b) = (graph.task("a", 0, None), graph.task("b", 0, None));
        let c = graph.task("c", thread(1), None);
        let whole = input_wise(&mut graph, "concat", thread(2));
        graph.block("x", a, &[b], 16, 0);
        graph.block("y", b, &[whole], 16, 128);
        graph.block("z", c, &[whole], 16, 192);
        let dst = graph.block("all", whole, &[], 32, 0);
        if ordered {
            graph.control(b, whole);
        }
        join(&mut graph, whole, dst);
        graph.finish()
    };
    assert_eq!(findings(&build(true, false)), []);
    let found = findings(&build(false, false));
    assert!(found.len() == 1 && found[0].kind == FindingKind::Overlap, "{found:?}");
    assert!(found[0].message.contains("no edge makes `a`"), "{found:?}");
    // What orders memory for the compiler adds the edge.
    let mut program = build(false, false);
    order_reuse(&mut program);
    assert_eq!(findings(&program), []);
    let mut program = build(false, true);
    chain_threads(&mut program);
    assert_eq!(findings(&program), []);
}

/// Across iterations: the producer of a part may fill its register again when that part alone was taken.
#[test]
fn iterations_of_an_input_wise_task_do_not_order_its_parts() {
    let build = |back_edge: bool| {
        let mut graph = Graph::new("main", 4);
        let (a, b) = (graph.task("a", 0, None), graph.task("b", 1, None));
        let whole = input_wise(&mut graph, "concat", 2);
        let last = graph.task("last", 3, None);
        graph.block("y", a, &[whole], 16, 0);
        graph.block("z", b, &[whole], 16, 64);
        let dst = graph.block("all", whole, &[last], 32, 128);
        // In the memory of `y`, whose next value `a` may make while `last` is at work.
        graph.block("end", last, &[], 16, 0);
        if back_edge {
            graph.control(a, last);
        }
        join(&mut graph, whole, dst);
        graph.0.pipelined = true;
        graph.finish()
    };
    let found = findings(&build(false));
    assert!(found[0].message.contains("`last` end an iteration before `a` acts on the next one"), "{found:?}");
    assert_eq!(findings(&build(true)), []);
}

#[test]
fn a_cycle_through_an_input_wise_task_deadlocks() {
    let mut graph = Graph::new("main", 1);
    let (a, b) = (graph.task("a", 0, feed(0)), graph.task("b", 0, None));
    let whole = input_wise(&mut graph, "concat", 0);
    let sink = graph.task("out", 0, fetch(0));
    let x = graph.block("x", a, &[whole], 16, 0);
    graph.block("y", b, &[whole], 16, 64);
    let dst = graph.block("all", whole, &[b, sink], 32, 128);
    join(&mut graph, whole, dst);
    graph.port("x", x, true);
    graph.port("y", dst, false);
    let found = findings(&graph.finish());
    let words = "`b` waits for `all` of `concat`; `concat` waits for `y` of `b`";
    assert!(found.len() == 1 && found[0].message.contains(words), "{found:?}");
}

#[test]
fn descriptions_name_the_kinds() {
    for (program, words) in [
        (microbatches(3, 2), vec!["unpack", "repeat", "acc", "pack", "tick"]),
        (concat(&[4, 4], 1), vec!["input-wise", "concat 16 bytes %0 at 0, 16 bytes %1 at 16 -> %2"]),
    ] {
        let mut plan = common::builder();
        plan.add_program(program);
        let text = text(&PlanFile::from_builder(&plan).unwrap());
        words.iter().for_each(|word| assert!(text.contains(word), "{word} is not in {text}"));
    }
}
