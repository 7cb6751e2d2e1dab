//! The description of a plan, as text and as JSON.

mod text;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{
    Arg, ArgSource, AxisLayout, Chunk, ConcatPart, Exec, Initial, KernelCode, LayoutKind, MeshPort, MeshProgram, Plan,
    PlanFile, Port, Program, Register, Rewrite, SectionKind, Storage, Task, TaskGraph, TaskKind, Transfer, Variable,
    Weight,
};

/// What `of-opt inspect` says of a plan; [`std::fmt::Display`] writes it for people.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the fields are those of the structure that they describe")]
pub struct Description {
    pub model: String,
    pub compiler_version: String,
    pub format_version: u32,
    pub flags: Vec<String>,
    pub passes: String,
    pub inputs: BTreeMap<String, String>,
    pub environment: EnvironmentText,
    pub file_bytes: u64,
    pub sections: Vec<SectionText>,
    pub weights: WeightsText,
    pub code: Vec<CodeText>,
    pub programs: Vec<ProgramText>,
    pub meshes: Vec<MeshText>,
}

/// An entry point that several ranks run together.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the fields are those of the structure that they describe")]
pub struct MeshText {
    pub name: String,
    pub shape: Vec<u32>,
    pub inputs: Vec<MeshPortText>,
    pub outputs: Vec<MeshPortText>,
    /// For each rank, the index of its program.
    pub ranks: Vec<u32>,
}

/// An input or output of all ranks together.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the fields are those of the structure that they describe")]
pub struct MeshPortText {
    pub name: String,
    pub dtype: &'static str,
    pub dims: Vec<i64>,
    pub layout: String,
    /// Into how many slices it is cut along which axis.
    pub microbatches: Option<(u32, u32)>,
}

/// What the machine must offer.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the fields are those of the structure that they describe")]
pub struct EnvironmentText {
    pub arch: String,
    pub cpu_features: Vec<String>,
    pub threads: u32,
    pub ranks: u32,
    pub cuda_arch: Option<String>,
    pub keep_subnormals: bool,
}

/// A section of the file.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the fields are those of the structure that they describe")]
pub struct SectionText {
    pub kind: &'static str,
    pub bytes: u64,
    pub checksum: String,
}

/// The constants in total, and one by one.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the fields are those of the structure that they describe")]
pub struct WeightsText {
    pub count: usize,
    pub bytes: u64,
    pub list: Vec<WeightText>,
}

/// A constant.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the fields are those of the structure that they describe")]
pub struct WeightText {
    pub name: String,
    pub dtype: &'static str,
    pub dims: Vec<i64>,
    pub offset: u64,
    pub bytes: u64,
}

/// A kernel.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the fields are those of the structure that they describe")]
pub struct CodeText {
    pub name: String,
    pub isa: String,
    pub bytes: u64,
    pub blake3: String,
}

/// A program.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the fields are those of the structure that they describe")]
pub struct ProgramText {
    pub name: String,
    pub pipelined: bool,
    pub inputs: Vec<PortText>,
    pub outputs: Vec<PortText>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub variables: Vec<VariableText>,
    pub threads: Vec<ThreadText>,
    /// Symbols that extents of objects depend on; objects are not part of the memory.
    pub symbols: Vec<String>,
    pub peak_bytes: u64,
    pub lower_bound_bytes: u64,
    pub chunks: Vec<ChunkText>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<PhaseText>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub schedule: Vec<ScheduleLoopText>,
    /// How a run ends.
    pub exit_condition: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rewrites: Vec<RewriteText>,
    pub tasks: Vec<TaskText>,
    pub registers: Vec<RegisterText>,
}

/// An op that a pass replaced or removed.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the fields are those of the structure that they describe")]
pub struct RewriteText {
    pub pass: String,
    pub rule: Option<String>,
    pub before: String,
    pub location: String,
    pub after: Vec<String>,
}

/// A phase: tasks that run several times in a run.
#[derive(Clone, Copy, Debug, Serialize)]
#[allow(missing_docs, reason = "the fields are those of the structure that they describe")]
pub struct PhaseText {
    pub first: u32,
    pub tasks: u32,
    pub times: u32,
}

/// Phases that run one after another.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the fields are those of the structure that they describe")]
pub struct ScheduleLoopText {
    pub phases: Vec<u32>,
    pub times: u32,
}

/// An input or output.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the fields are those of the structure that they describe")]
pub struct PortText {
    pub name: String,
    pub dtype: &'static str,
    pub dims: Vec<i64>,
    pub object: bool,
    #[serde(rename = "type")]
    pub type_text: String,
}

/// A variable.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the fields are those of the structure that they describe")]
pub struct VariableText {
    pub name: String,
    pub dtype: &'static str,
    pub dims: Vec<i64>,
    pub offset: u64,
    /// The value in a new session: a weight's name, `zeros`, or nothing where the caller sets it.
    pub initial: Option<String>,
    /// How the program gives it its next value: `in place`, `copy`, or nothing where it only reads it.
    pub update: Option<&'static str>,
}

/// A thread.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the fields are those of the structure that they describe")]
pub struct ThreadText {
    pub id: u32,
    pub device: String,
    pub stream: u32,
    pub rank: u32,
}

/// A chunk of memory.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the fields are those of the structure that they describe")]
pub struct ChunkText {
    pub id: u32,
    pub bytes: u64,
    pub align: u64,
}

/// A task.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the fields are those of the structure that they describe")]
pub struct TaskText {
    pub id: String,
    pub name: String,
    pub kind: &'static str,
    pub thread: u32,
    /// What it runs, with its arguments.
    pub exec: String,
    pub consumes: Vec<u32>,
    pub produces: Vec<u32>,
    pub flops: u64,
    pub bytes: u64,
    /// Whether iterations, FLOPs and bytes depend on symbols; the numbers are then 0.
    pub dynamic: bool,
    pub locations: Vec<String>,
}

/// A register.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the fields are those of the structure that they describe")]
pub struct RegisterText {
    pub id: u32,
    pub name: String,
    pub dtype: &'static str,
    pub dims: Vec<i64>,
    pub copies: u32,
    pub producer: String,
    pub consumers: Vec<String>,
    /// `block`, `object` or `control`.
    pub storage: &'static str,
    pub chunk: Option<u32>,
    pub offset: Option<u64>,
    pub bytes: Option<u64>,
    /// First and last position in the order of the tasks.
    pub lifetime: Option<(u32, u32)>,
    pub inplace_of: Vec<u32>,
}

/// Describes an open plan.
pub fn describe(file: &PlanFile) -> Description {
    let plan = file.plan();
    let section = |kind: SectionKind| {
        let checksum = hex(&file.section_checksum(kind)?);
        Some(SectionText { kind: kind.name(), bytes: file.section_len(kind), checksum })
    };
    Description {
        model: plan.info.model.clone(),
        compiler_version: plan.info.compiler_version.clone(),
        format_version: crate::FORMAT_VERSION,
        flags: plan.info.flags.clone(),
        passes: plan.info.passes.clone(),
        inputs: plan.info.inputs.iter().map(|input| (input.name.clone(), hex(&input.blake3))).collect(),
        environment: EnvironmentText {
            arch: plan.environment.arch.clone(),
            cpu_features: plan.environment.cpu_features.clone(),
            threads: plan.environment.threads,
            ranks: plan.environment.ranks,
            cuda_arch: plan.environment.cuda_arch.clone(),
            keep_subnormals: plan.environment.keep_subnormals,
        },
        file_bytes: file.file_len(),
        sections: SectionKind::ALL.into_iter().filter_map(section).collect(),
        weights: WeightsText {
            count: plan.weights.len(),
            bytes: file.section_len(SectionKind::Weights),
            list: plan.weights.iter().map(weight_text).collect(),
        },
        code: plan.code.iter().map(code_text).collect(),
        programs: plan.programs.iter().map(|program| program_text(program, plan)).collect(),
        meshes: plan.meshes.iter().map(mesh_text).collect(),
    }
}

/// The description for people.
pub fn text(file: &PlanFile) -> String {
    describe(file).to_string()
}

/// The description as JSON.
pub fn json(file: &PlanFile) -> String {
    // The description is made of strings, numbers and lists, which always serialise.
    serde_json::to_string_pretty(&describe(file)).unwrap_or_default()
}

fn weight_text(weight: &Weight) -> WeightText {
    WeightText {
        name: weight.name.clone(),
        dtype: weight.dtype().name(),
        dims: weight.dims.clone(),
        offset: weight.offset,
        bytes: weight.len,
    }
}

fn code_text(code: &KernelCode) -> CodeText {
    CodeText { name: code.name.clone(), isa: code.isa.clone(), bytes: code.len, blake3: hex(&code.blake3) }
}

fn program_text(program: &Program, plan: &Plan) -> ProgramText {
    let code = &plan.code;
    let thread = |thread: &crate::ThreadDesc| ThreadText {
        id: thread.id,
        device: thread.device.clone(),
        stream: thread.stream,
        rank: thread.rank,
    };
    let graph = TaskGraph::of(program);
    ProgramText {
        name: program.name.clone(),
        pipelined: program.pipelined,
        inputs: program.inputs.iter().map(|port| port_text(port, program)).collect(),
        outputs: program.outputs.iter().map(|port| port_text(port, program)).collect(),
        variables: variable_texts(program, plan),
        threads: program.threads.iter().map(thread).collect(),
        symbols: program.symbols.clone(),
        peak_bytes: program.peak_bytes,
        lower_bound_bytes: program.lower_bound_bytes,
        chunks: program.chunks.iter().map(chunk_text).collect(),
        phases: program.phases.iter().map(|p| PhaseText { first: p.first, tasks: p.tasks, times: p.times }).collect(),
        schedule: program
            .schedule
            .iter()
            .map(|t| ScheduleLoopText { phases: t.phases.clone(), times: t.times })
            .collect(),
        exit_condition: program.exit_condition().to_string(),
        rewrites: program.rewrites.iter().map(rewrite_text).collect(),
        tasks: program.tasks.iter().map(|task| task_text(task, code, &program.symbols)).collect(),
        registers: program.registers.iter().map(|register| register_text(register, program, graph.as_ref())).collect(),
    }
}

fn rewrite_text(rewrite: &Rewrite) -> RewriteText {
    RewriteText {
        pass: rewrite.pass.clone(),
        rule: Some(rewrite.rule.clone()).filter(|rule| !rule.is_empty()),
        before: rewrite.before.clone(),
        location: rewrite.location.clone(),
        after: rewrite.after.clone(),
    }
}

fn mesh_text(mesh: &MeshProgram) -> MeshText {
    let port = |port: &MeshPort| MeshPortText {
        name: port.name.clone(),
        dtype: port.dtype().name(),
        dims: port.dims.clone(),
        layout: layout_text(&port.layout),
        microbatches: port.microbatches.map(|t| (t.count, t.axis)),
    };
    MeshText {
        name: mesh.name.clone(),
        shape: mesh.shape.clone(),
        inputs: mesh.inputs.iter().map(port).collect(),
        outputs: mesh.outputs.iter().map(port).collect(),
        ranks: mesh.ranks.iter().map(|rank| rank.program).collect(),
    }
}

fn port_text(port: &Port, program: &Program) -> PortText {
    let type_text = port.type_text(program);
    let Port { name, dims, object, .. } = port.clone();
    PortText { name, dtype: port.dtype().name(), dims, object, type_text }
}

fn variable_texts(program: &Program, plan: &Plan) -> Vec<VariableText> {
    let mut update = vec![None; program.variables.len()];
    for task in &program.tasks {
        let how = if matches!(task.exec, Some(Exec::Copy(_))) { "copy" } else { "in place" };
        program.variables_written(task).for_each(|variable| update[variable] = Some(how));
    }
    let text = |(variable, update): (&Variable, Option<&'static str>)| VariableText {
        name: variable.name.clone(),
        dtype: variable.dtype().name(),
        dims: variable.dims.clone(),
        offset: variable.offset,
        initial: variable.initial.map(|initial| match initial {
            Initial::Weight(index) => plan.weights.get(index as usize).map_or_else(|| "?".into(), |w| w.name.clone()),
            Initial::Zeros(_) => "zeros".into(),
        }),
        update,
    };
    program.variables.iter().zip(update).map(text).collect()
}

fn chunk_text(chunk: &Chunk) -> ChunkText {
    ChunkText { id: chunk.id, bytes: chunk.bytes, align: chunk.align }
}

fn task_text(task: &Task, code: &[KernelCode], symbols: &[String]) -> TaskText {
    let (flops, bytes) = match &task.exec {
        Some(Exec::Kernel(exec)) => (exec.flops, exec.bytes),
        Some(Exec::Backend(exec)) => (exec.flops, exec.bytes),
        Some(Exec::Copy(exec)) => (0, exec.bytes),
        Some(Exec::Concat(exec)) => (0, exec.parts.iter().map(|part| part.bytes).sum()),
        _ => (0, 0),
    };
    TaskText {
        id: task.task_id().map_or_else(|| format!("malformed {:#x}", task.id), |id| id.to_string()),
        name: task.name.clone(),
        kind: TaskKind::try_from(task.kind).map_or("unknown", TaskKind::name),
        thread: task.thread,
        exec: exec_text(task, code, symbols),
        consumes: task.consumes.clone(),
        produces: task.produces.clone(),
        flops,
        bytes,
        dynamic: matches!(&task.exec, Some(Exec::Kernel(exec)) if exec.dynamic.is_some()),
        locations: task.locations.clone(),
    }
}

fn exec_text(task: &Task, code: &[KernelCode], symbols: &[String]) -> String {
    let list = |args: &[Arg]| args.iter().map(arg_text).collect::<Vec<_>>().join(", ");
    match &task.exec {
        None => "join".into(),
        Some(Exec::Kernel(exec)) => {
            let name = code.get(exec.code as usize).map_or("?", |code| &code.name);
            let iterations = match &exec.dynamic {
                Some(n) => format!("({})", n.text(symbols)),
                None => exec.iterations.to_string(),
            };
            let (grain, scratch) = (exec.grain, exec.scratch_bytes);
            format!("kernel {name}({}) x{iterations} grain {grain} scratch {scratch}", list(&exec.args))
        }
        Some(Exec::Backend(exec)) => {
            let outputs: Vec<_> = exec.outputs.iter().map(|id| format!("%{id}")).collect();
            let transfers: String =
                exec.rendezvous.iter().map(|m| format!(", {}", transfer_text(&m.transfer))).collect();
            format!("{}[{} bytes]({}) -> {}{transfers}", exec.backend, exec.len, list(&exec.inputs), outputs.join(", "))
        }
        Some(Exec::Control(exec)) => {
            let kind = if exec.kind() == crate::ControlKind::If { "if" } else { "loop" };
            let bodies: Vec<_> = exec.bodies.iter().map(|body| format!("#{}", body.program)).collect();
            let outputs: Vec<_> = exec.outputs.iter().map(|id| format!("%{id}")).collect();
            format!("{kind} {}({}) -> {}", bodies.join(", "), list(&exec.inputs), outputs.join(", "))
        }
        Some(Exec::Copy(exec)) => {
            let how = match exec.combine() {
                LayoutKind::Broadcast => "copy".to_string(),
                kind => format!("accumulate {}", format!("{kind:?}").to_lowercase()),
            };
            format!("{how} {} bytes {} -> {}", exec.bytes, arg_text(&exec.src), arg_text(&exec.dst))
        }
        Some(Exec::Boxing(exec)) => {
            let how = if exec.is_async { "asynchronous " } else { "" };
            let one = |(transfer, src, dst)| format!("{} {} -> %{dst}", transfer_text(transfer), arg_text(src));
            let all: Vec<String> = exec.transfers().map(one).collect();
            let through = exec.staging.map(|staging| format!(", sent from %{staging}")).unwrap_or_default();
            format!("{how}{}{through}", all.join("; "))
        }
        Some(Exec::Concat(exec)) => {
            let part = |part: &ConcatPart| format!("{} bytes {} at {}", part.bytes, arg_text(&part.src), part.offset);
            format!("concat {} -> %{}", exec.parts.iter().map(part).collect::<Vec<_>>().join(", "), exec.dst)
        }
        Some(Exec::Feed(exec)) => format!("feed input {}", exec.port),
        Some(Exec::Fetch(exec)) => format!("fetch output {}", exec.port),
    }
}

/// A transfer for people: its number, its layouts before and after, the axes of the mesh, and the factors of a round.
pub fn transfer_text(t: &Transfer) -> String {
    let factors = if t.factors.is_empty() { String::new() } else { format!(" by factors {:?}", t.factors) };
    format!("transfer {} {} -> {} along {:?}{factors}", t.id, layout_text(&t.from), layout_text(&t.to), t.axes)
}

/// A layout for people, such as `[S(0), B]`.
pub fn layout_text(layout: &[AxisLayout]) -> String {
    let one = |l: &AxisLayout| match l.kind() {
        LayoutKind::Broadcast => "B".into(),
        LayoutKind::Split => format!("S({})", l.dim),
        LayoutKind::Sum => "P(sum)".into(),
        LayoutKind::Max => "P(max)".into(),
        LayoutKind::Min => "P(min)".into(),
        LayoutKind::Prod => "P(prod)".into(),
        LayoutKind::At => format!("at {}", l.dim),
    };
    format!("[{}]", layout.iter().map(one).collect::<Vec<_>>().join(", "))
}

fn arg_text(arg: &Arg) -> String {
    let base = match arg.source {
        None => "?".into(),
        Some(ArgSource::Register(id)) => format!("%{id}"),
        Some(ArgSource::Weight(index)) => format!("@{index}"),
    };
    let offset = if arg.byte_offset == 0 { String::new() } else { format!("+{}", arg.byte_offset) };
    let view = arg.view.as_ref().map(|view| format!(" as {}{:?}", view.dtype(), view.dims)).unwrap_or_default();
    format!("{base}{offset}{view}")
}

fn register_text(register: &Register, program: &Program, graph: Option<&TaskGraph>) -> RegisterText {
    let name = |task: u32| program.tasks[task as usize].name.clone();
    let block = register.block();
    let index = register.id as usize;
    RegisterText {
        id: register.id,
        name: register.name.clone(),
        dtype: register.dtype().name(),
        dims: register.dims.clone(),
        copies: register.copies,
        producer: graph.map(|graph| name(graph.producer[index])).unwrap_or_default(),
        consumers: graph
            .map(|graph| graph.consumers[index].iter().map(|&task| name(task)).collect())
            .unwrap_or_default(),
        storage: match register.storage {
            Some(Storage::Block(_)) => "block",
            Some(Storage::Object(_)) => "object",
            Some(Storage::Control(_)) => "control",
            None => "none",
        },
        chunk: block.map(|block| block.chunk),
        offset: block.map(|block| block.offset),
        bytes: block.map(|block| block.bytes),
        lifetime: block.map(|block| (block.first, block.last)),
        inplace_of: register.inplace_of.clone(),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
