//! Plans of several ranks: the verifier must refuse what could make them wait for ever, or read past a buffer.

mod common;

use common::{Graph, builder, feed, fetch};
use of_plan::*;

fn gather(id: u32, rows: i64) -> Transfer {
    Transfer {
        id,
        axes: vec![0],
        dims: vec![rows, 4],
        from: vec![AxisLayout::split(0)],
        to: vec![AxisLayout::of(LayoutKind::Broadcast)],
        ..Transfer::default()
    }
}

/// Input of two rows, gathered by `transfers` one after another, each from the input; the last is the output.
fn template(transfers: &[Transfer]) -> Program {
    let mut program = unordered(transfers);
    chain_threads(&mut program);
    program
}

/// The same without an order of the transfers.
fn unordered(transfers: &[Transfer]) -> Program {
    let mut graph = Graph::new("main/0", 1);
    let source = graph.task("in", 0, feed(0));
    let boxing = |(i, t): (usize, &Transfer)| {
        let exec =
            BoxingExec { transfer: t.clone(), src: Arg::register(0, 0), dst: i as u32 + 1, ..BoxingExec::default() };
        graph.task(&format!("gather {i}"), 0, Some(Exec::Boxing(exec)))
    };
    let tasks: Vec<usize> = transfers.iter().enumerate().map(boxing).collect();
    let sink = graph.task("out", 0, fetch(0));
    graph.block("x", source, &tasks, 8, 0);
    for (i, task) in tasks.iter().enumerate() {
        let to: &[usize] = if i + 1 == tasks.len() { &[sink] } else { &[] };
        graph.block(&format!("y{i}"), *task, to, 16, 64 * (i as u64 + 1));
    }
    graph.port("x", 0, true);
    graph.port("y", transfers.len() as u32, false);
    let mut program = graph.finish();
    for register in &mut program.registers {
        register.dims = vec![register.dims[0] / 4, 4];
    }
    program.inputs[0].dims = vec![2, 4];
    program.outputs[0].dims = vec![4, 4];
    program.inner = true;
    program
}

/// Two transfers in each of two microbatches, in this order, and a third one after them, whose result is the output.
fn scheduled(name: &str, order: &[u32]) -> Program {
    let mut program = unordered(&[gather(1, 4), gather(2, 4), gather(3, 4)]);
    program.name = name.into();
    let phase = |(first, tasks, times)| Phase { first, tasks, times };
    program.phases = [(0, 1, 1), (1, 1, 2), (2, 1, 2), (3, 2, 1)].map(phase).to_vec();
    let phases = [&[0], order, &[3]].concat();
    program.schedule = vec![ScheduleLoop { phases, times: 1 }];
    program
}

/// A plan of two ranks, which run these templates.
fn plan(templates: Vec<Program>, ranks: [u32; 2]) -> Plan {
    let mut plan = builder();
    templates.into_iter().for_each(|t| {
        plan.add_program(t);
    });
    let port = |name: &str, layout: AxisLayout| MeshPort {
        microbatches: None,
        name: name.into(),
        dtype: ElementType::F32 as i32,
        dims: vec![4, 4],
        layout: vec![layout],
    };
    plan.add_mesh(MeshProgram {
        variables: Vec::new(),
        name: "main".into(),
        shape: vec![2],
        inputs: vec![port("x", AxisLayout::split(0))],
        outputs: vec![port("y", AxisLayout::of(LayoutKind::Broadcast))],
        ranks: ranks.iter().map(|program| Rank { program: *program, weight_overrides: Vec::new() }).collect(),
    });
    plan.plan().clone()
}

fn findings(plan: &Plan) -> Vec<(FindingKind, String)> {
    verify(plan).err().unwrap_or_default().iter().map(|f| (f.kind, f.to_string())).collect()
}

#[test]
fn ranks_of_one_template_and_of_several() {
    let both = || template(&[gather(1, 4), gather(2, 4)]);
    assert_eq!(findings(&plan(vec![both()], [0, 0])), []);
    let mut other = both();
    other.name = "main/1".into();
    assert_eq!(findings(&plan(vec![both(), other], [0, 1])), []);
}

#[test]
fn ranks_that_would_wait_for_ever_are_refused() {
    let first = template(&[gather(1, 4), gather(2, 4)]);
    let rename = |p: Program| Program { name: "main/1".into(), ..p };
    // One rank lacks a transfer, or means another one by its number.
    let shape = Transfer { dims: vec![4, 4, 1], ..gather(2, 4) };
    for other in [template(&[gather(1, 4)]), template(&[gather(1, 4), shape])] {
        let found = findings(&plan(vec![first.clone(), rename(other)], [0, 1]));
        assert!(
            found.iter().any(|(kind, text)| *kind == FindingKind::Deadlock && text.contains("transfer 2")),
            "{found:?}"
        );
    }
    // The same transfers in another order.
    let found = findings(&plan(vec![template(&[gather(2, 4), gather(1, 4)])], [0, 0]));
    assert!(found.iter().any(|(kind, _)| *kind == FindingKind::Deadlock), "{found:?}");
    // No edge says which comes first.
    let mut free = template(&[gather(1, 4), gather(2, 4)]);
    let id = free.registers.iter().find(|r| r.is_control() && r.name.starts_with("gather 0")).unwrap().id;
    for task in &mut free.tasks {
        task.consumes.retain(|r| *r != id);
        task.produces.retain(|r| *r != id);
    }
    free.registers.retain(|r| r.id != id);
    for register in &mut free.registers {
        let old = register.id;
        register.id -= u32::from(old > id);
        let renumber = |list: &mut Vec<u32>| list.iter_mut().filter(|r| **r == old).for_each(|r| *r = register.id);
        free.tasks.iter_mut().for_each(|t| (renumber(&mut t.consumes), renumber(&mut t.produces)).0);
    }
    let found = findings(&plan(vec![free], [0, 0]));
    assert!(
        found.iter().any(|(kind, text)| *kind == FindingKind::Deadlock && text.contains("come after")),
        "{found:?}"
    );
}

/// Ranks whose schedules have the microbatches' transfers in different orders: the finding shows the cycle.
#[test]
fn schedules_that_contradict_are_refused_with_a_cycle() {
    let (all_first, alternating) = ([1, 1, 2, 2], [1, 2, 1, 2]);
    let both = |a: &[u32], b: &[u32]| findings(&plan(vec![scheduled("main/0", a), scheduled("main/1", b)], [0, 1]));
    assert_eq!(both(&all_first, &all_first), []);
    assert_eq!(both(&alternating, &alternating), []);
    let found = both(&all_first, &alternating);
    assert_eq!(found.len(), 1, "{found:?}");
    let (kind, text) = &found[0];
    assert_eq!(*kind, FindingKind::Deadlock);
    let steps = [
        "in `main/0` transfer 2 of `gather 1` in microbatch 0 waits for transfer 1 of `gather 0` in microbatch 1",
        "in `main/1` transfer 1 of `gather 0` in microbatch 1 waits for transfer 2 of `gather 1` in microbatch 0",
    ];
    assert!(text.starts_with("mesh `main`: the ranks' transfers deadlock: "), "{text}");
    assert!(steps.iter().all(|step| text.contains(step)), "{text}");
}

/// Transfers that are launched keep their memory until something waits for them, or for a transfer behind them.
#[test]
fn launched_transfers_keep_their_memory() {
    let launched = |which: &[usize], shared: bool| {
        let change = |mut program: Program| {
            for gather in which {
                let Some(Exec::Boxing(exec)) = &mut program.tasks[1 + gather].exec else { panic!("no transfer") };
                exec.is_async = true;
            }
            if shared {
                // The results of the first two, which nothing reads.
                let first = program.registers[1].block().unwrap().offset;
                let Some(Storage::Block(block)) = &mut program.registers[2].storage else { panic!("no block") };
                block.offset = first;
            }
            program
        };
        let order = [1, 2, 1, 2];
        let ranks = ["main/0", "main/1"].map(|name| change(scheduled(name, &order)));
        findings(&plan(ranks.to_vec(), [0, 1]))
    };
    for which in [&[][..], &[0], &[1], &[0, 1], &[0, 1, 2]] {
        assert_eq!(launched(which, false), [], "{which:?}");
    }
    // What blocks its rank comes after those before it.
    for which in [&[][..], &[0], &[1]] {
        assert_eq!(launched(which, true), [], "{which:?}");
    }
    let found = launched(&[0, 1], true);
    let is_overlap = |(kind, text): &(FindingKind, String)| {
        *kind == FindingKind::Overlap && text.contains("registers `y0` and `y1`")
    };
    assert!(found.len() == 2 && found.iter().all(is_overlap), "{found:?}");
}

/// The same, by executables of a backend, each of which does as many transfers.
fn on_a_backend(program: &Program, name: &str, backend: &str, counts: &[usize]) -> Program {
    let mut out = Program { name: name.into(), ..program.clone() };
    let boxings = |p: &Program| -> Vec<usize> {
        (0..p.tasks.len()).filter(|i| matches!(p.tasks[*i].exec, Some(Exec::Boxing(_)))).collect()
    };
    let all: Vec<Transfer> =
        program.tasks.iter().flat_map(|t| program.transfers(t)).map(|(transfer, _)| transfer.clone()).collect();
    let mut rest = all.iter();
    for (place, count) in boxings(program).into_iter().zip(counts) {
        let on_backend = |t: &Transfer| BackendTransfer { transfer: t.clone(), dtype: ElementType::F32 as i32 };
        let rendezvous = rest.by_ref().take(*count).map(on_backend).collect();
        let Some(Exec::Boxing(exec)) = &program.tasks[place].exec else { panic!("no transfer") };
        let (inputs, outputs) = (vec![exec.src.clone()], vec![exec.dst]);
        let exec = BackendExec { backend: backend.into(), inputs, outputs, rendezvous, ..BackendExec::default() };
        out.tasks[place].exec = Some(Exec::Backend(exec));
        out.tasks[place].kind = TaskKind::Compute as i32;
    }
    out
}

#[test]
fn transfers_inside_of_executables_are_those_of_all_ranks() {
    let host = template(&[gather(1, 4), gather(2, 4)]);
    let by = |name: &str, backend: &str, counts: [usize; 2]| on_a_backend(&host, name, backend, &counts);
    let both = by("main/0", "gpu", [1, 1]);
    assert_eq!(findings(&plan(vec![both.clone()], [0, 0])), []);
    assert_eq!(findings(&plan(vec![both.clone(), by("main/1", "gpu", [1, 1])], [0, 1])), []);
    // Whether they are in one executable or in several is each rank's affair.
    assert_eq!(findings(&plan(vec![both.clone(), by("main/1", "gpu", [2, 0])], [0, 1])), []);
    let other = Program { name: "main/1".into(), ..host.clone() };
    for (ranks, words) in [
        ([both.clone(), by("main/1", "other", [1, 1])], "does not take part in the rendezvous"),
        ([both, other], "does not take part in the rendezvous"),
    ] {
        let found = findings(&plan(ranks.to_vec(), [0, 1]));
        let reported = found.iter().any(|(kind, text)| *kind == FindingKind::Deadlock && text.contains(words));
        assert!(reported, "{words}: {found:?}");
    }
    let mut turned = by("main/0", "gpu", [2, 0]);
    for task in &mut turned.tasks {
        if let Some(Exec::Backend(exec)) = &mut task.exec {
            exec.rendezvous.reverse();
        }
    }
    let found = findings(&plan(vec![turned], [0, 0]));
    assert!(found.iter().any(|(_, text)| text.contains("does not come after")), "{found:?}");
}

#[test]
fn parts_must_fit_and_ports_must_be_parts() {
    let found = findings(&plan(vec![template(&[gather(1, 6)])], [0, 0]));
    assert!(found.iter().any(|(kind, _)| *kind == FindingKind::Range), "{found:?}");
    let mut split = plan(vec![template(&[gather(1, 4)])], [0, 0]);
    split.meshes[0].outputs[0].layout = vec![AxisLayout::split(0)];
    assert!(findings(&split)[0].1.contains("outputs"));
    let mut few = plan(vec![template(&[gather(1, 4)])], [0, 0]);
    few.meshes[0].shape = vec![3];
    assert!(findings(&few)[0].1.contains("is not a shape of 2 ranks"));
    let mut lone = plan(vec![template(&[gather(1, 4)])], [0, 0]);
    lone.meshes.clear();
    assert_eq!(findings(&lone), [], "it may be part of another plan");
    lone.programs[0].inner = false;
    assert!(findings(&lone)[0].1.contains("no rank"));
    let mut own = plan(vec![template(&[gather(1, 4)])], [0, 0]);
    own.meshes[0].ranks[1].weight_overrides = vec![WeightOverride { original: 0, replacement: 1 }];
    assert!(findings(&own)[0].1.contains("weight 1 in place of 0"));
}

#[test]
fn inputs_are_those_of_all_ranks() {
    let plan = plan(vec![template(&[gather(1, 4)])], [0, 0]);
    let mesh = &plan.meshes[0];
    assert_eq!(mesh.accepts(&[Some((ElementType::F32, &[4, 4]))]), Ok(()));
    let wrong = mesh.accepts(&[Some((ElementType::F32, &[2, 4]))]).unwrap_err();
    assert!(wrong.to_string().contains("`x`") && wrong.to_string().contains("[4, 4]"), "{wrong}");
    assert!(mesh.accepts(&[]).is_err());
}
