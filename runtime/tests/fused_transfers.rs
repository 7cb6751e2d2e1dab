//! Several transfers in one rendezvous: they give the bits of separate ones, and the verifier refuses those that ranks do not share.

#[path = "../../plan/tests/common/mod.rs"]
mod common;

use std::sync::Arc;

use common::{Graph, builder, feed, fetch};
use of_plan::*;
use of_runtime::{
    Chunk, Link, Machine, Options, RankSession, SharedMemory, Stopped, Tensor, TransferBlock, Transport, Value,
};

/// Elements of a rank's part of the input.
const INPUT: i64 = 64;

/// Elements of the tensors that are transferred.
const EXTENTS: [i64; 5] = [8, 4, 20, 12, 16];

/// Layouts before and after.
#[derive(Clone, Copy)]
struct Change(AxisLayout, AxisLayout);

const SUM: Change = Change(AxisLayout { kind: LayoutKind::Sum as i32, dim: 0 }, WHOLE);
const REDUCE_SCATTER: Change = Change(AxisLayout { kind: LayoutKind::Sum as i32, dim: 0 }, SPLIT);
const GATHER: Change = Change(SPLIT, WHOLE);
const WHOLE: AxisLayout = AxisLayout { kind: LayoutKind::Broadcast as i32, dim: 0 };
const SPLIT: AxisLayout = AxisLayout { kind: LayoutKind::Split as i32, dim: 0 };

/// The rank's part of a tensor.
fn part(extent: i64, layout: AxisLayout, ranks: i64) -> i64 {
    if layout == SPLIT { extent / ranks } else { extent }
}

/// Values from the input, whose transfers share rendezvous in groups of so many, and are the outputs.
fn program(ranks: u32, change: Change, groups: &[usize], is_async: bool) -> Program {
    let count = EXTENTS.len();
    let Change(from, to) = change;
    let before = EXTENTS.map(|n| part(n, from, ranks.into()));
    let after = EXTENTS.map(|n| part(n, to, ranks.into()));
    let mut graph = Graph::new("step", 1);
    let source = graph.task("in", 0, feed(0));
    let values: Vec<usize> = (0..count)
        .map(|i| {
            let (src, dst) = (Arg::register(0, 4 * i as u64), Arg::register(1 + i as u32, 0));
            let exec = CopyExec { src, dst, bytes: 4 * before[i] as u64, ..CopyExec::default() };
            graph.task(&format!("value {i}"), 0, Some(Exec::Copy(exec)))
        })
        .collect();
    let transfer = |i: usize| Transfer {
        id: 2 + 2 * i as u32,
        axes: vec![0],
        dims: vec![EXTENTS[i]],
        from: vec![from],
        to: vec![to],
        ..Transfer::default()
    };
    let (source_of, target_of) = (|i: usize| Arg::register(1 + i as u32, 0), |i: usize| (1 + count + i) as u32);
    let (mut boxings, mut stagings, mut next) = (Vec::new(), Vec::new(), 0);
    for group in groups {
        let further = |i: usize| FusedTransfer { transfer: transfer(i), src: source_of(i), dst: target_of(i) };
        let fused: Vec<FusedTransfer> = (next + 1..next + group).map(further).collect();
        let staging = (!fused.is_empty()).then(|| (1 + 2 * count + stagings.len()) as u32);
        let (src, dst) = (source_of(next), target_of(next));
        let exec = BoxingExec { transfer: transfer(next), src, dst, is_async, fused, staging };
        let task = graph.task(&format!("transfers from {next}"), 0, Some(Exec::Boxing(exec)));
        boxings.extend(vec![task; *group]);
        stagings.extend(staging.map(|_| task));
        next += group;
    }
    let outputs: Vec<usize> = (0..count as u32).map(|i| graph.task(&format!("out {i}"), 0, fetch(i))).collect();
    let mut place = (0..).map(|n| 512 * n);
    let mut block = |graph: &mut Graph, name: &str, from: usize, to: &[usize], elements: i64| {
        graph.block(name, from, to, elements, place.next().unwrap())
    };
    block(&mut graph, "x", source, &values, INPUT);
    (0..count).for_each(|i| _ = block(&mut graph, "value", values[i], &[boxings[i]], before[i]));
    let results: Vec<u32> =
        (0..count).map(|i| block(&mut graph, "result", boxings[i], &[outputs[i]], after[i])).collect();
    stagings.iter().for_each(|task| _ = block(&mut graph, "sent", *task, &[], EXTENTS.iter().sum()));
    graph.port("x", 0, true);
    results.iter().enumerate().for_each(|(i, register)| graph.port(&format!("y{i}"), *register, false));
    let mut program = graph.finish();
    program.inner = true;
    if is_async {
        chain_around_transfers(&mut program)
    } else {
        chain_threads(&mut program)
    }
    program
}

fn plan(ranks: u32, change: Change, programs: Vec<Program>) -> PlanBuilder<'static> {
    let mut plan = builder();
    let last = programs.len() as u32 - 1;
    programs.into_iter().for_each(|program| _ = plan.add_program(program));
    let port = |name: String, extent: i64, layout: AxisLayout| MeshPort {
        microbatches: None,
        name,
        dtype: ElementType::F32 as i32,
        dims: vec![extent],
        layout: vec![layout],
    };
    plan.add_mesh(MeshProgram {
        variables: Vec::new(),
        name: "main".into(),
        shape: vec![ranks],
        inputs: vec![port("x".into(), INPUT * i64::from(ranks), SPLIT)],
        outputs: (0..EXTENTS.len()).map(|i| port(format!("y{i}"), EXTENTS[i], change.1)).collect(),
        ranks: (0..ranks).map(|rank| Rank { program: rank.min(last), weight_overrides: Vec::new() }).collect(),
    });
    plan
}

/// Gives blocks in chunks, as a connection does.
struct InChunks {
    inner: SharedMemory,
    bytes: usize,
}

impl Transport for InChunks {
    fn rendezvous(
        &self,
        me: u32,
        id: u32,
        blocks: &[TransferBlock<'_>],
        from: &[u32],
        take: &mut dyn FnMut(usize, TransferBlock<'_>),
    ) -> Result<(), Stopped> {
        self.inner.rendezvous(me, id, blocks, from, take)
    }

    fn rendezvous_in_chunks(
        &self,
        me: u32,
        id: u32,
        blocks: &[TransferBlock<'_>],
        from: &[u32],
        _concurrently: bool,
        take: &mut dyn FnMut(Chunk<'_>),
    ) -> Result<(), Stopped> {
        let mut cut = |sender: usize, whole: TransferBlock<'_>| {
            let starts = whole.block.starts().map(|start| start * whole.element);
            let run = whole.block.len() * whole.element;
            let bytes: Vec<u8> = starts.flat_map(|start| whole.bytes[start..start + run].to_vec()).collect();
            for (number, part) in bytes.chunks(self.bytes).enumerate() {
                let block = &Runs::of(&[(0, part.len())], &[(0, part.len())]);
                let block = TransferBlock { to: me, bytes: part, block, element: 1 };
                take(Chunk { sender, at: number * self.bytes, of: bytes.len(), block });
            }
        };
        self.inner.rendezvous(me, id, blocks, from, &mut cut)
    }

    fn stop(&self) {
        self.inner.stop();
    }

    fn stopped(&self) -> bool {
        self.inner.stopped()
    }
}

/// The outputs of each of two runs, as rank 0 has them: bits.
fn outputs(ranks: u32, change: Change, groups: &[usize], is_async: bool, chunk: usize) -> Vec<Vec<u32>> {
    let builder = plan(ranks, change, vec![program(ranks, change, groups, is_async)]);
    let file = Arc::new(PlanFile::from_builder(&builder).unwrap_or_else(|e| panic!("{e}")));
    let transport: Arc<dyn Transport> = Arc::new(InChunks { inner: SharedMemory::new(ranks as usize), bytes: chunk });
    let run = |rank: usize| {
        let options = Options { threads: 1, ..Options::default() };
        let session = RankSession::new(Arc::clone(&file), 0, rank, Arc::clone(&transport), options, &[]);
        let mut session = session.unwrap_or_else(|e| panic!("{e}"));
        let mut all = Vec::new();
        for run in 0..2 {
            // Sums of these depend on the order of the additions.
            let x = |i: u32| 0.1 + (i * i % 97) as f32 * 1.37 / (run + 3) as f32 + 1e4 * (i % 3) as f32;
            let x: Vec<f32> = (0..ranks * INPUT as u32).map(x).collect();
            let given: Value = Tensor::from_elements([x.len() as i64], &x).unwrap().into();
            let got = session.run(&[given]).unwrap_or_else(|e| panic!("{e}"));
            all.extend(got.iter().map(|y| {
                let y = y.as_tensor().and_then(Tensor::to_elements::<f32>).unwrap();
                y.into_iter().map(f32::to_bits).collect::<Vec<u32>>()
            }));
        }
        all
    };
    let mut all: Vec<Vec<Vec<u32>>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks as usize).map(|rank| scope.spawn(move || run(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(all.iter().all(|of_rank| *of_rank == all[0]));
    all.swap_remove(0)
}

#[test]
fn fused_transfers_give_the_bits_of_separate_ones() {
    for ranks in [2, 4] {
        for (change, name) in [(SUM, "sum"), (REDUCE_SCATTER, "reduce-scatter"), (GATHER, "gather")] {
            let separate = outputs(ranks, change, &[1; 5], false, usize::MAX);
            assert_eq!(separate.len(), 2 * EXTENTS.len());
            assert_ne!(separate[0], separate[5], "the runs have different inputs");
            for groups in [&[5][..], &[2, 1, 2], &[1, 4]] {
                for (is_async, chunk) in [(false, usize::MAX), (true, 64), (false, 64)] {
                    let fused = outputs(ranks, change, groups, is_async, chunk);
                    assert_eq!(fused, separate, "{name} on {ranks} ranks in groups of {groups:?}, chunks of {chunk}");
                }
            }
        }
    }
}

/// The findings of the verifier about two ranks, whose second has its own program.
fn findings(first: Program, second: Program) -> String {
    let second = Program { name: "other".into(), ..second };
    let builder = plan(2, SUM, vec![first, second]);
    let found = verify(builder.plan()).err().unwrap_or_default();
    found.iter().map(Finding::to_string).collect::<Vec<_>>().join("; ")
}

/// The exec of the first task with several transfers.
fn fused_exec(program: &mut Program) -> &mut BoxingExec {
    let execs = program.tasks.iter_mut().filter_map(|task| match &mut task.exec {
        Some(Exec::Boxing(exec)) if !exec.fused.is_empty() => Some(exec),
        _ => None,
    });
    execs.into_iter().next().unwrap()
}

#[test]
fn ranks_fuse_the_same_transfers_in_one_order() {
    let fused = |groups: &[usize]| program(2, SUM, groups, false);
    assert_eq!(findings(fused(&[2, 3]), fused(&[2, 3])), "");
    // One rank would wait in a rendezvous that the other does not have.
    for other in [&[5][..], &[1, 1, 3], &[3, 2], &[1; 5]] {
        let found = findings(fused(&[2, 3]), fused(other));
        assert!(found.contains("does not take part in the rendezvous of transfer"), "{other:?}: {found}");
    }
    // Blocks of a message would be in the places of others.
    let mut turned = fused(&[2, 3]);
    let exec = fused_exec(&mut turned);
    std::mem::swap(&mut exec.transfer.id, &mut exec.fused[0].transfer.id);
    let found = findings(turned.clone(), turned);
    assert!(found.contains("transfer 2 does not come after transfer 4"), "{found}");
}

#[test]
fn fused_transfers_are_alike_and_have_room() {
    let refused = |change: &dyn Fn(&mut Program), words: &str| {
        let mut changed = program(2, SUM, &[2, 3], false);
        change(&mut changed);
        let found = findings(changed.clone(), changed);
        assert!(found.contains(words), "{words}: {found}");
    };
    refused(&|p| fused_exec(p).fused[0].transfer.to = vec![SPLIT], "have the same axes, layouts and element type");
    refused(&|p| fused_exec(p).staging = None, "what fused transfers send is in a register");
    refused(&|p| fused_exec(p).fused.clear(), "what fused transfers send is in a register");
    refused(&|p| fused_exec(p).staging = Some(fused_exec(p).dst), "is not its own, or is given twice");
    refused(&|p| fused_exec(p).fused[0].transfer.dims = vec![400], "do not fit into its buffers");
    let small = |p: &mut Program| {
        let staging = fused_exec(p).staging.unwrap() as usize;
        let register = &mut p.registers[staging];
        register.dims = vec![11];
        let Some(Storage::Block(block)) = &mut register.storage else { panic!("a block") };
        block.bytes = 44;
    };
    refused(&small, "what it sends does not fit into the register for that");
}

#[test]
fn fused_transfers_take_the_latency_of_one() {
    let link = Link { latency: 1e-3, bandwidth: 1e9, short: Vec::new() };
    let machine = Machine {
        flops: Vec::new(),
        other_flops: 1e9,
        pointwise: f64::INFINITY,
        bandwidth: 1e9,
        caches: Vec::new(),
        ranks_per_core: 1.0,
        overhead: 0.0,
        links: vec![link],
    };
    let seconds = |groups: &[usize]| {
        let builder = plan(2, SUM, vec![program(2, SUM, groups, false)]);
        let plan = builder.plan();
        let costs = machine.costs_ns(plan, &plan.meshes[0], 0, &plan.programs[0]);
        let of_transfers =
            plan.programs[0].tasks.iter().zip(costs).filter(|(task, _)| task.name.starts_with("transfers"));
        of_transfers.map(|(_, ns)| ns as f64 * 1e-9).sum::<f64>()
    };
    let bytes = 4.0 * EXTENTS.iter().sum::<i64>() as f64;
    for (groups, rendezvous) in [(&[1; 5][..], 5.0), (&[2, 3], 2.0), (&[5], 1.0)] {
        let (got, want) = (seconds(groups), rendezvous * 1e-3 + bytes / 1e9);
        assert!((got - want).abs() < 1e-7, "{groups:?}: {got} instead of {want}");
    }
}
