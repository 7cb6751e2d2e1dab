//! The items of each part of a plan, with their facts.

use of_plan::{
    Arg, ArgSource, ControlKind, Exec, KernelCode, MeshPort, PlanFile, Port, Program, Register, SectionKind, Task,
    Transfer, Weight, layout_text, transfer_text,
};

use super::{EXECUTOR, Fact, FactValue, Item};

/// Digits of a hash that are compared and shown.
const HASH_DIGITS: usize = 16;

fn text(label: &'static str, value: impl Into<String>) -> Fact {
    Fact { label, value: FactValue::Text(value.into()) }
}

fn number(label: &'static str, value: impl TryInto<i64>) -> Fact {
    Fact { label, value: FactValue::Number(value.try_into().unwrap_or(i64::MAX)) }
}

fn bytes(label: &'static str, value: u64) -> Fact {
    Fact { label, value: FactValue::Bytes(value) }
}

/// An item that pairs by its name.
fn named(name: impl Into<String>, facts: Vec<Fact>) -> Item {
    let name = name.into();
    Item { keys: vec![name.clone()], name, facts }
}

fn hash(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    digits.chars().take(HASH_DIGITS).collect()
}

/// What made the plan, and from what.
pub(super) fn provenance(file: &PlanFile) -> Vec<Item> {
    let info = &file.plan().info;
    let mut out = vec![
        named("model", vec![text("", &info.model)]),
        named("compiler version", vec![text("", &info.compiler_version)]),
    ];
    if !info.passes.is_empty() {
        out.push(named("passes", vec![text("", &info.passes)]));
    }
    for flag in &info.flags {
        let (name, value) = flag.split_once('=').unwrap_or((flag, ""));
        out.push(Item { name: name.into(), keys: vec![flag.clone(), name.into()], facts: vec![text("", value)] });
    }
    let source = |s: &of_plan::InputHash| Item {
        name: format!("file {}", s.name),
        keys: vec![s.name.clone(), "file".into()],
        facts: vec![text("blake3", hash(&s.blake3))],
    };
    out.extend(info.inputs.iter().map(source));
    out
}

/// What the machine must offer.
pub(super) fn target(file: &PlanFile) -> Vec<Item> {
    let environment = &file.plan().environment;
    let mut out = vec![
        named("architecture", vec![text("", &environment.arch)]),
        named("threads", vec![number("", environment.threads)]),
        named("ranks", vec![number("", environment.ranks)]),
        named("GPU", vec![text("", environment.cuda_arch.as_deref().unwrap_or("none"))]),
    ];
    out.extend(environment.cpu_features.iter().map(|f| named(format!("CPU feature {f}"), Vec::new())));
    out
}

/// The sections of the file: their checksums tell what no other part shows, such as another order of arguments.
pub(super) fn sections(file: &PlanFile) -> Vec<Item> {
    let section = |kind: SectionKind| {
        let checksum = file.section_checksum(kind)?;
        let facts = vec![bytes("", file.section_len(kind)), text("checksum", hash(&checksum))];
        Some(named(kind.name(), facts))
    };
    let mut out = vec![named("file", vec![bytes("", file.file_len())])];
    out.extend(SectionKind::ALL.into_iter().filter_map(section));
    out
}

/// The programs; one without a namesake pairs with the next of its kind, which serves another shape.
pub(super) fn programs(file: &PlanFile) -> Vec<Item> {
    let one = |p: &Program| Item {
        name: p.name.clone(),
        keys: vec![p.name.clone(), if p.inner { "inner".into() } else { "entry".into() }],
        facts: vec![
            number("tasks", p.tasks.len()),
            number("registers", p.registers.len()),
            text("open extents", if p.symbols.is_empty() { "none".into() } else { p.symbols.join(", ") }),
            text("iterations", if p.pipelined { "overlap" } else { "one by one" }),
        ],
    };
    file.plan().programs.iter().map(one).collect()
}

/// Inputs and outputs.
pub(super) fn ports(_: &PlanFile, program: &Program) -> Vec<Item> {
    let port =
        |direction: &str, p: &Port| named(format!("{direction} {}", p.name), vec![text("", p.type_text(program))]);
    let inputs = program.inputs.iter().map(|p| port("input", p));
    inputs.chain(program.outputs.iter().map(|p| port("output", p))).collect()
}

/// Tasks, by the ONNX nodes or lines of text that they come from, then by their names and results.
pub(super) fn tasks(file: &PlanFile, program: &Program) -> Vec<Item> {
    program.tasks.iter().map(|t| task(file, program, t)).collect()
}

fn task(file: &PlanFile, program: &Program, task: &Task) -> Item {
    let result = |id: &u32| program.registers.get(*id as usize).filter(|r| !r.is_control());
    let results: Vec<&Register> = task.produces.iter().filter_map(result).collect();
    let values: Vec<&str> = results.iter().map(|r| r.name.as_str()).collect();
    let origin = task.locations.join(", ");
    let by_result = format!("{} {}", task.name, values.join(" "));
    let name = if origin.is_empty() { task.name.clone() } else { format!("{} ({origin})", task.name) };
    let mut facts = exec(file, task);
    facts.extend(results.iter().map(|r| text("result", type_text(r))));
    facts.push(text("reads", reads(file, program, task)));
    // The name tells tasks of one origin apart; without it they pair where fusion changed.
    let keys =
        if origin.is_empty() { vec![by_result] } else { vec![format!("{origin} {}", task.name), by_result, origin] };
    Item { name, keys, facts }
}

/// What a task executes, and on what.
fn exec(file: &PlanFile, task: &Task) -> Vec<Fact> {
    match &task.exec {
        None => vec![text(EXECUTOR, "nothing")],
        Some(Exec::Kernel(exec)) => {
            let code = file.plan().code.get(exec.code as usize);
            let iterations =
                if exec.dynamic.is_some() { "of open extents".into() } else { exec.iterations.to_string() };
            vec![
                text(EXECUTOR, "native code"),
                text("kernel", code.map(|c| hash(&c.blake3)).unwrap_or_default()),
                text("iterations", iterations),
                number("grain", exec.grain),
                number("flops", exec.flops),
                bytes("moves", exec.bytes),
                bytes("scratch", exec.scratch_bytes),
            ]
        }
        Some(Exec::Backend(exec)) => {
            let payload = file.payload(exec).unwrap_or_default();
            let content = hash(blake3::hash(payload).as_bytes());
            vec![
                text(EXECUTOR, &exec.backend),
                text("payload", content),
                bytes("payload bytes", exec.len),
                number("flops", exec.flops),
                bytes("moves", exec.bytes),
            ]
        }
        Some(Exec::Copy(exec)) => vec![text(EXECUTOR, "copy"), bytes("moves", exec.bytes)],
        Some(Exec::Concat(exec)) => {
            vec![text(EXECUTOR, "concat"), bytes("moves", exec.parts.iter().map(|part| part.bytes).sum())]
        }
        Some(Exec::Feed(_)) => vec![text(EXECUTOR, "caller")],
        Some(Exec::Fetch(_)) => vec![text(EXECUTOR, "caller")],
        Some(Exec::Boxing(_)) => vec![text(EXECUTOR, "transfer")],
        Some(Exec::Control(exec)) => {
            let kind = if exec.kind() == ControlKind::If { "branch" } else { "loop" };
            let programs = exec.bodies.iter().filter_map(|b| file.plan().programs.get(b.program as usize));
            let count = programs.map(|p| p.tasks.len()).sum::<usize>();
            vec![text(EXECUTOR, kind), number("tasks inside", count)]
        }
    }
}

/// The operands of a task by name, so that a task whose operands change shows it.
fn reads(file: &PlanFile, program: &Program, task: &Task) -> String {
    let list: Vec<&Arg> = match &task.exec {
        Some(Exec::Kernel(exec)) => exec.args.iter().collect(),
        Some(Exec::Backend(exec)) => exec.inputs.iter().collect(),
        Some(Exec::Control(exec)) => exec.inputs.iter().collect(),
        Some(Exec::Copy(exec)) => vec![&exec.src],
        Some(Exec::Boxing(exec)) => exec.transfers().map(|(_, src, _)| src).collect(),
        Some(Exec::Concat(exec)) => exec.parts.iter().map(|part| &part.src).collect(),
        Some(Exec::Feed(_) | Exec::Fetch(_)) | None => Vec::new(),
    };
    let name = |arg: &&Arg| match arg.source? {
        ArgSource::Register(id) if task.produces.contains(&id) => None,
        ArgSource::Register(id) => program.registers.get(id as usize).map(|r| r.name.clone()),
        ArgSource::Weight(index) => file.plan().weights.get(index as usize).map(|w| w.name.clone()),
    };
    list.iter().filter_map(name).collect::<Vec<_>>().join(", ")
}

/// Transfers between ranks, by their numbers.
pub(super) fn transfers(_: &PlanFile, program: &Program) -> Vec<Item> {
    let of_task = |task: &Task| {
        let rendezvous = match &task.exec {
            Some(Exec::Boxing(exec)) if !exec.fused.is_empty() => Some(exec.transfer.id),
            _ => None,
        };
        let one = |(t, _): (&Transfer, _)| {
            let mut properties = vec![text("", transfer_text(t)), text("extents", format!("{:?}", t.dims))];
            properties.extend(rendezvous.map(|first| text("rendezvous", format!("that of transfer {first}"))));
            named(format!("transfer {}", t.id), properties)
        };
        program.transfers(task).map(one).collect::<Vec<_>>()
    };
    program.tasks.iter().flat_map(of_task).collect()
}

/// Memory that a session allocates.
pub(super) fn memory(_: &PlanFile, program: &Program) -> Vec<Item> {
    let mut out = vec![
        named("peak", vec![bytes("", program.peak_bytes)]),
        named("lower bound", vec![bytes("", program.lower_bound_bytes)]),
    ];
    out.extend(program.chunks.iter().map(|c| named(format!("chunk {}", c.id), vec![bytes("", c.bytes)])));
    out
}

/// Values between tasks.
pub(super) fn values(_: &PlanFile, program: &Program) -> Vec<Item> {
    let value = |r: &Register| {
        let size = r.block().map(|b| bytes("", b.bytes));
        let mut facts = vec![text("", type_text(r)), number("copies", r.copies)];
        facts.extend(size);
        Item { name: r.name.clone(), keys: vec![format!("{} {}", r.name, type_text(r)), r.name.clone()], facts }
    };
    program.registers.iter().filter(|r| !r.is_control()).map(value).collect()
}

fn type_text(r: &Register) -> String {
    let dims: Vec<String> = r.dims.iter().map(|d| if *d < 0 { "?".into() } else { d.to_string() }).collect();
    let storage = if r.is_object() { " object" } else { "" };
    format!("{}[{}]{storage}", r.dtype().name(), dims.join(", "))
}

/// Kernels: the same bytes, or else the same name.
pub(super) fn kernels(file: &PlanFile) -> Vec<Item> {
    let kernel = |code: &KernelCode| Item {
        name: code.name.clone(),
        keys: vec![hash(&code.blake3), code.name.clone()],
        facts: vec![text("blake3", hash(&code.blake3)), text("isa", &code.isa), bytes("", code.len)],
    };
    file.plan().code.iter().map(kernel).collect()
}

/// Weights: the same name and bytes, else the same name, else the same bytes.
pub(super) fn weights(file: &PlanFile) -> Vec<Item> {
    let weight = |(w, index): (&Weight, u32)| {
        let content = blake3::hash(file.weight(index).unwrap_or_default());
        let content = hash(content.as_bytes());
        let ty = format!("{}{:?}", w.dtype().name(), w.dims);
        Item {
            name: w.name.clone(),
            keys: vec![format!("{} {ty} {content}", w.name), format!("= {}", w.name), content.clone()],
            facts: vec![text("", ty), text("blake3", content), bytes("", w.len)],
        }
    };
    file.plan().weights.iter().zip(0..).map(weight).collect()
}

/// Mesh programs: their extents, ranks, and the layouts of whole inputs and outputs.
pub(super) fn meshes(file: &PlanFile) -> Vec<Item> {
    let port = |p: &MeshPort| {
        let slices = p.microbatches.map(|m| format!(", {} slices along axis {}", m.count, m.axis)).unwrap_or_default();
        text("", format!("{}{:?} as {}{slices}", p.dtype().name(), p.dims, layout_text(&p.layout)))
    };
    let mut out = Vec::new();
    for mesh in &file.plan().meshes {
        let mut templates: Vec<u32> = mesh.ranks.iter().map(|r| r.program).collect();
        let ranks = templates.len();
        templates.sort_unstable();
        templates.dedup();
        let facts = vec![
            text("extents", format!("{:?}", mesh.shape)),
            number("ranks", ranks),
            number("templates", templates.len()),
        ];
        out.push(Item { name: format!("mesh {}", mesh.name), keys: vec![mesh.name.clone(), "mesh".into()], facts });
        out.extend(mesh.inputs.iter().map(|p| named(format!("input {}", p.name), vec![port(p)])));
        out.extend(mesh.outputs.iter().map(|p| named(format!("output {}", p.name), vec![port(p)])));
    }
    out
}
