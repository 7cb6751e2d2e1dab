//! The time and memory that a rank's part of a plan takes, for growing numbers of ranks: each rank has 16 weights of 128 KiB of its own, and
//! runs the template that all share. `cargo run --release --package of-plan --example rank_part -- FOLDER`

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use of_plan::{
    Arg, AxisLayout, Block, Chunk, CopyExec, ElementType, Environment, Exec, LayoutKind, MemoryKind, MeshPort,
    MeshProgram, PlanBuilder, PlanFile, PlanInfo, Port, PortExec, Program, Rank, Register, Storage, Task, TaskId,
    TaskKind, ThreadDesc, WeightOverride, chain_threads,
};

const WEIGHTS: u32 = 16;
const ELEMENTS: i64 = 32 << 10;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: rank_part FOLDER [RANKS]")?;
    if let Some(ranks) = std::env::args().nth(2) {
        return open(Path::new(&folder), ranks.parse()?);
    }
    println!("ranks   file MiB   read MiB   open ms   resident MiB   prove ms   whole: open ms   resident MiB");
    for ranks in [16, 64, 256, 1024] {
        let path = Path::new(&folder).join("ranks.plan");
        plan(ranks)?.write_file(&path)?;
        // In a process of its own, so that memory is that of one plan.
        let own = std::process::Command::new(std::env::current_exe()?).arg(&path).arg(ranks.to_string()).status()?;
        if !own.success() {
            return Err("a measurement failed".into());
        }
        std::fs::remove_file(&path)?;
    }
    Ok(())
}

/// Opens a plan for its last rank, and whole.
fn open(path: &Path, ranks: u32) -> Result<(), Box<dyn Error>> {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    // The first time brings the file into the page cache.
    drop(PlanFile::open(path)?);
    let before = resident()?;
    let start = Instant::now();
    let part = PlanFile::open_for_rank(path, ranks as usize - 1)?;
    let (opened, of_part) = (start.elapsed(), resident()?.saturating_sub(before));
    let start = Instant::now();
    part.verify_rank(ranks as usize - 1).map_err(|findings| findings[0].to_string())?;
    let proven = start.elapsed();
    let read = part.verified_len();
    drop(part);
    let before = resident()?;
    let start = Instant::now();
    let whole = PlanFile::open(path)?;
    let (all, of_all) = (start.elapsed(), resident()?.saturating_sub(before));
    println!(
        "{ranks:5} {:10.1} {:10.1} {:9.2} {:14.1} {:10.2} {:16.2} {:14.1}",
        mib(whole.file_len()),
        mib(read),
        opened.as_secs_f64() * 1e3,
        mib(of_part),
        proven.as_secs_f64() * 1e3,
        all.as_secs_f64() * 1e3,
        mib(of_all)
    );
    Ok(())
}

/// Bytes of this process that are in memory.
fn resident() -> Result<u64, Box<dyn Error>> {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup")?;
    let line = text.lines().find(|line| line.starts_with("Rss:")).ok_or("no memory")?;
    Ok(line.split_whitespace().nth(1).ok_or("no number")?.parse::<u64>()? * 1024)
}

/// A plan for so many ranks.
fn plan(ranks: u32) -> Result<PlanBuilder<'static>, Box<dyn Error>> {
    let info = PlanInfo { compiler_version: "1".into(), model: "ranks".into(), ..PlanInfo::default() };
    let environment = Environment { arch: std::env::consts::ARCH.into(), threads: 1, ranks, ..Environment::default() };
    let mut plan = PlanBuilder::new(info, environment);
    let mut own = Vec::with_capacity(ranks as usize);
    for rank in 0..ranks {
        let mut weights = Vec::with_capacity(WEIGHTS as usize);
        for weight in 0..WEIGHTS {
            let first = (rank * WEIGHTS + weight) << 15;
            let bytes: Vec<u8> = (0..ELEMENTS as u32).flat_map(|i| (first + i).to_ne_bytes()).collect();
            weights.push(plan.add_weight(
                format!("layer {weight} of rank {rank}"),
                ElementType::I32,
                &[ELEMENTS],
                bytes,
            )?);
        }
        own.push(weights);
    }
    plan.add_program(template(&own[0])?);
    let port = |name: String| MeshPort {
        microbatches: None,
        name,
        dtype: ElementType::I32 as i32,
        dims: vec![ELEMENTS],
        layout: vec![AxisLayout::of(LayoutKind::Broadcast)],
    };
    let overrides = |weights: &Vec<u32>| {
        let pairs = own[0].iter().zip(weights).filter(|(a, b)| a != b);
        pairs.map(|(original, replacement)| WeightOverride { original: *original, replacement: *replacement }).collect()
    };
    plan.add_mesh(MeshProgram {
        name: "main".into(),
        shape: vec![ranks],
        inputs: Vec::new(),
        outputs: (0..WEIGHTS).map(|weight| port(format!("y{weight}"))).collect(),
        ranks: own.iter().map(|weights| Rank { program: 0, weight_overrides: overrides(weights) }).collect(),
        variables: Vec::new(),
    });
    Ok(plan)
}

/// Copies each weight to an output.
fn template(weights: &[u32]) -> Result<Program, Box<dyn Error>> {
    let mut program = Program {
        name: "main".into(),
        inner: true,
        threads: vec![ThreadDesc { id: 0, device: "cpu".into(), stream: 0, rank: 0 }],
        ..Program::default()
    };
    let bytes = ELEMENTS as u64 * 4;
    for (number, weight) in (0u32..).zip(weights) {
        let id = |task: u32| TaskId::new(0, 0, 0, task).map(TaskId::raw).ok_or("too many tasks");
        let (from, to) = (id(2 * number)?, id(2 * number + 1)?);
        let copy =
            CopyExec { src: Arg::weight(*weight, 0), dst: Arg::register(number, 0), bytes, ..CopyExec::default() };
        let task = |id: u64, name: &str, exec: Exec| Task {
            id,
            name: format!("{name} {number}"),
            kind: TaskKind::Copy as i32,
            exec: Some(exec),
            ..Task::default()
        };
        program.tasks.push(Task { produces: vec![number], ..task(from, "copy", Exec::Copy(copy)) });
        let fetch = Exec::Fetch(PortExec { port: number });
        program.tasks.push(Task { consumes: vec![number], ..task(to, "out", fetch) });
        let offset = bytes * u64::from(number);
        program.registers.push(Register {
            id: number,
            name: format!("r{number}"),
            producer: from,
            consumers: vec![to],
            copies: 1,
            dtype: ElementType::I32 as i32,
            dims: vec![ELEMENTS],
            storage: Some(Storage::Block(Block { chunk: 0, offset, bytes, first: 2 * number, last: 2 * number + 1 })),
            ..Register::default()
        });
        program.outputs.push(Port {
            name: format!("y{number}"),
            dtype: ElementType::I32 as i32,
            dims: vec![ELEMENTS],
            object: false,
            register: number,
        });
    }
    program.peak_bytes = bytes * weights.len() as u64;
    program.chunks = vec![Chunk { id: 0, memory: MemoryKind::Host as i32, bytes: program.peak_bytes, align: 64 }];
    chain_threads(&mut program);
    Ok(program)
}
