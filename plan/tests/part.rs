//! Plans that are opened for one rank: only what it needs is read, and damage of that is noticed.

mod common;

use common::{Graph, builder, feed, fetch};
use of_plan::*;

const RANKS: u32 = 6;

/// Bytes of a rank's own weight: several leaves.
const BYTES: usize = 3 << 20;

/// A plan whose ranks each have a weight of their own in the place of the first one, and one weight that all share.
fn plan() -> PlanBuilder<'static> {
    let mut plan = builder();
    let element = |rank: u32| (0..BYTES / 4).flat_map(move |i| (i as u32 ^ rank << 24).to_ne_bytes());
    let own: Vec<u32> = (0..RANKS)
        .map(|rank| {
            let bytes: Vec<u8> = element(rank).collect();
            plan.add_weight(format!("w{rank}"), ElementType::I32, &[BYTES as i64 / 4], bytes).unwrap()
        })
        .collect();
    let shared = plan.add_weight("shared", ElementType::I32, &[8], vec![7; 32]).unwrap();
    let mut graph = Graph::new("main", 1);
    let source = graph.task("in", 0, feed(0));
    let copy = |weight: u32, dst: u32| {
        let (src, dst) = (Arg::weight(weight, 0), Arg::register(dst, 0));
        Some(Exec::Copy(CopyExec { src, dst, bytes: 32, ..CopyExec::default() }))
    };
    let copies = [graph.task("own", 0, copy(own[0], 1)), graph.task("shared", 0, copy(shared, 2))];
    let sinks: Vec<usize> = (0..3).map(|port| graph.task(&format!("out {port}"), 0, fetch(port))).collect();
    let x = graph.block("x", source, &[sinks[0]], 8, 0);
    let a = graph.block("a", copies[0], &[sinks[1]], 8, 64);
    let b = graph.block("b", copies[1], &[sinks[2]], 8, 128);
    graph.port("x", x, true);
    for (name, register) in [("y", x), ("a", a), ("b", b)] {
        graph.port(name, register, false);
    }
    let mut program = graph.finish();
    program.registers.iter_mut().for_each(|register| register.dtype = ElementType::I32 as i32);
    program.inputs.iter_mut().chain(&mut program.outputs).for_each(|port| port.dtype = ElementType::I32 as i32);
    program.inner = true;
    chain_threads(&mut program);
    plan.add_program(program);
    let port = |name: &str| MeshPort {
        microbatches: None,
        name: name.into(),
        dtype: ElementType::I32 as i32,
        dims: vec![8],
        layout: vec![AxisLayout::of(LayoutKind::Broadcast)],
    };
    let rank = |rank: usize| {
        let entry = WeightOverride { original: own[0], replacement: own[rank] };
        Rank { program: 0, weight_overrides: if rank == 0 { Vec::new() } else { vec![entry] } }
    };
    plan.add_mesh(MeshProgram {
        variables: Vec::new(),
        name: "main".into(),
        shape: vec![RANKS],
        inputs: vec![port("x")],
        outputs: vec![port("y"), port("a"), port("b")],
        ranks: (0..RANKS as usize).map(rank).collect(),
    });
    plan
}

#[test]
fn a_rank_reads_its_own_weights() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ranks.plan");
    let builder = plan();
    builder.write_file(&path).unwrap();
    let whole = PlanFile::open(&path).unwrap();
    assert_eq!(whole.bytes().len() as u64, PlanFile::from_builder(&builder).unwrap().file_len());
    for rank in 0..RANKS {
        let part = PlanFile::open_for_rank(&path, rank as usize).unwrap();
        assert_eq!(part.plan(), whole.plan());
        // The own weight touches one more leaf than it has, and the shared one may be in another.
        let limit = (BYTES + (3 << 20)) as u64;
        assert!(part.verified_len() < limit, "rank {rank} verified {} bytes", part.verified_len());
        assert_eq!(part.verify_rank(rank as usize), Ok(()));
        for weight in [rank, RANKS] {
            assert_eq!(part.weight(weight), whole.weight(weight), "rank {rank}, weight {weight}");
        }
        // Others are verified when they are asked for.
        let before = part.verified_len();
        assert_eq!(part.weight((rank + 3) % RANKS), whole.weight((rank + 3) % RANKS));
        assert!(part.verified_len() > before);
    }
    assert_eq!(whole.verified_len(), SectionKind::ALL.map(|kind| whole.section_len(kind)).iter().sum::<u64>());
}

#[test]
fn damage_is_noticed_by_the_ranks_that_read_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ranks.plan");
    plan().write_file(&path).unwrap();
    let good = std::fs::read(&path).unwrap();
    // In the middle of the weight of rank 4, which no other reads.
    let value = 4u32 << 24 | 1000;
    let at = 4 * good.chunks_exact(4).position(|bytes| bytes == value.to_ne_bytes()).unwrap() + BYTES / 2;
    let mut bad = good.clone();
    bad[at] ^= 1;
    std::fs::write(&path, &bad).unwrap();
    assert!(PlanFile::open(&path).is_err());
    for rank in 0..RANKS as usize {
        match PlanFile::open_for_rank(&path, rank) {
            Ok(part) => {
                assert_ne!(rank, 4);
                assert_eq!(part.weight(4), None, "damaged bytes are not given away");
            }
            Err(error) => {
                assert_eq!(rank, 4, "{error}");
                assert!(error.to_string().contains("of the weights section does not match"), "{error}");
            }
        }
    }
    // Structure, code, table and checksums of leaves are read by all.
    let mut random = fastrand::Rng::with_seed(3);
    let leaves = 1 + (RANKS as usize * BYTES + 64).div_ceil(1 << 20);
    for round in 0..40 {
        let at = if round % 2 == 0 { random.usize(..4096) } else { good.len() - 1 - random.usize(..16 * leaves) };
        let mut bad = good.clone();
        bad[at] ^= 1 << random.u32(..8);
        std::fs::write(&path, &bad).unwrap();
        assert_eq!(PlanFile::open_for_rank(&path, 0).is_ok(), PlanFile::open(&path).is_ok(), "byte {at}");
        assert!(PlanFile::open(&path).is_err(), "byte {at}");
    }
}

#[test]
fn small_plans_have_no_table_of_leaves() {
    let small = common::small_plan().to_bytes().unwrap();
    assert_eq!(u32::from_le_bytes(small[12..16].try_into().unwrap()), 4);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("small.plan");
    std::fs::write(&path, &small).unwrap();
    let part = PlanFile::open_for_rank(&path, 0).unwrap();
    assert_eq!(part.weight(0), PlanFile::from_bytes(&small).unwrap().weight(0));
}
