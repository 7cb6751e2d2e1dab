//! The description for people.

use std::fmt;

use super::{
    Description, MeshText, PortText, ProgramText, RegisterText, RewriteText, ScheduleLoopText, TaskText, VariableText,
};

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "plan of `{}`, compiler {}, format {}", self.model, self.compiler_version, self.format_version)?;
        if !self.flags.is_empty() {
            writeln!(f, "  flags        {}", self.flags.join(" "))?;
        }
        if !self.passes.is_empty() {
            writeln!(f, "  passes       {}", self.passes)?;
        }
        for (name, hash) in &self.inputs {
            writeln!(f, "  made from    {name} blake3 {hash}")?;
        }
        let environment = &self.environment;
        let cuda = environment.cuda_arch.as_deref().map(|arch| format!(", cuda {arch}")).unwrap_or_default();
        let features = environment.cpu_features.join(" ");
        let (arch, threads, ranks) = (&environment.arch, environment.threads, environment.ranks);
        let subnormals = if environment.keep_subnormals { ", subnormal numbers kept" } else { "" };
        writeln!(f, "  environment  {arch} [{features}], {threads} threads, {ranks} ranks{cuda}{subnormals}")?;
        for section in &self.sections {
            writeln!(
                f,
                "  section      {:<9} {:>12} checksum {}",
                section.kind,
                bytes(section.bytes),
                section.checksum
            )?;
        }
        writeln!(f, "  weights      {} of {}", self.weights.count, bytes(self.weights.bytes))?;
        let code: u64 = self.code.iter().map(|code| code.bytes).sum();
        writeln!(f, "  kernels      {} of {}", self.code.len(), bytes(code))?;
        for code in &self.code {
            writeln!(f, "    {} [{}] {}", code.name, code.isa, bytes(code.bytes))?;
        }
        self.programs.iter().try_for_each(|program| write_program(f, program))?;
        self.meshes.iter().try_for_each(|mesh| write_mesh(f, mesh))
    }
}

fn write_mesh(f: &mut fmt::Formatter<'_>, mesh: &MeshText) -> fmt::Result {
    writeln!(f, "mesh `{}`: {} ranks as {:?}", mesh.name, mesh.ranks.len(), mesh.shape)?;
    for (direction, ports) in [("input", &mesh.inputs), ("output", &mesh.outputs)] {
        for port in ports {
            let microbatches =
                port.microbatches.map(|(n, axis)| format!(", {n} slices along axis {axis}")).unwrap_or_default();
            writeln!(
                f,
                "  {direction} {}: {}{:?} with layout {}{microbatches}",
                port.name, port.dtype, port.dims, port.layout
            )?;
        }
    }
    let mut templates = mesh.ranks.clone();
    templates.sort_unstable();
    templates.dedup();
    templates.into_iter().try_for_each(|program| {
        let ranks: Vec<_> = (0..mesh.ranks.len()).filter(|r| mesh.ranks[*r] == program).collect();
        match ranks[..] {
            [first, .., last] if last - first + 1 == ranks.len() => {
                writeln!(f, "  ranks {first} to {last} run program {program}")
            }
            _ => writeln!(f, "  ranks {ranks:?} run program {program}"),
        }
    })
}

fn write_program(f: &mut fmt::Formatter<'_>, program: &ProgramText) -> fmt::Result {
    let pipelined = if program.pipelined { ", pipelined" } else { "" };
    writeln!(
        f,
        "program `{}`: {} tasks, {} registers{pipelined}",
        program.name,
        program.tasks.len(),
        program.registers.len()
    )?;
    write_ports(f, "input", &program.inputs)?;
    write_ports(f, "output", &program.outputs)?;
    program.variables.iter().try_for_each(|variable| write_variable(f, variable))?;
    for thread in &program.threads {
        writeln!(f, "  thread {} on {} stream {} rank {}", thread.id, thread.device, thread.stream, thread.rank)?;
    }
    write!(f, "  memory {}, lower bound {}", bytes(program.peak_bytes), bytes(program.lower_bound_bytes))?;
    match &program.symbols[..] {
        [] => writeln!(f)?,
        symbols => writeln!(f, ", plus dynamic values of {}", symbols.join(", "))?,
    }
    for chunk in &program.chunks {
        writeln!(f, "  chunk {} {} align {}", chunk.id, bytes(chunk.bytes), chunk.align)?;
    }
    for (number, phase) in program.phases.iter().enumerate() {
        let last = phase.first + phase.tasks.max(1) - 1;
        writeln!(f, "  phase {number} tasks {} to {last}, {} times", phase.first, phase.times)?;
    }
    if !program.schedule.is_empty() {
        let one = |t: &ScheduleLoopText| {
            let phases: Vec<String> = t.phases.iter().map(u32::to_string).collect();
            if t.times == 1 { phases.join(" ") } else { format!("({}) {} times", phases.join(" "), t.times) }
        };
        writeln!(f, "  schedule phases {}", program.schedule.iter().map(one).collect::<Vec<_>>().join(", "))?;
    }
    writeln!(f, "  exit {}", program.exit_condition)?;
    for RewriteText { pass, rule, before, location, after } in &program.rewrites {
        let rule = rule.as_ref().map(|rule| format!("/{rule}")).unwrap_or_default();
        let after = if after.is_empty() { "removed".into() } else { after.join(", ") };
        writeln!(f, "  rewrite {pass}{rule}: {before} ({location}) -> {after}")?;
    }
    program.tasks.iter().enumerate().try_for_each(|(position, task)| write_task(f, position, task))?;
    program.registers.iter().try_for_each(|register| write_register(f, register))
}

fn write_ports(f: &mut fmt::Formatter<'_>, direction: &str, ports: &[PortText]) -> fmt::Result {
    ports.iter().try_for_each(|port| writeln!(f, "  {direction} {}: {}", port.name, port.type_text))
}

fn write_variable(f: &mut fmt::Formatter<'_>, variable: &VariableText) -> fmt::Result {
    write!(f, "  variable {}: {}{:?} at {}", variable.name, variable.dtype, variable.dims, variable.offset)?;
    match &variable.initial {
        Some(initial) => write!(f, ", initially {initial}")?,
        None => write!(f, ", set by the caller")?,
    }
    match variable.update {
        Some(how) => writeln!(f, ", updated ({how})"),
        None => writeln!(f, ", not updated"),
    }
}

fn write_task(f: &mut fmt::Formatter<'_>, position: usize, task: &TaskText) -> fmt::Result {
    let registers = |ids: &[u32]| ids.iter().map(|id| format!("%{id}")).collect::<Vec<_>>().join(" ");
    let (consumes, produces) = (registers(&task.consumes), registers(&task.produces));
    writeln!(f, "  task {position} {} `{}` {}: {}", task.id, task.name, task.kind, task.exec)?;
    match task.dynamic && task.flops == 0 {
        true => writeln!(f, "    [{consumes}] -> [{produces}] dynamic")?,
        false => writeln!(f, "    [{consumes}] -> [{produces}] {} flops {}", task.flops, bytes(task.bytes))?,
    }
    if task.locations.is_empty() {
        return Ok(());
    }
    writeln!(f, "    from {}", task.locations.join(", "))
}

fn write_register(f: &mut fmt::Formatter<'_>, register: &RegisterText) -> fmt::Result {
    write!(
        f,
        "  %{} `{}` {}{:?} x{} {}",
        register.id, register.name, register.dtype, register.dims, register.copies, register.storage
    )?;
    if let (Some(chunk), Some(offset), Some(len), Some((first, last))) =
        (register.chunk, register.offset, register.bytes, register.lifetime)
    {
        write!(f, " chunk {chunk} at {offset} for {len}, live {first}..={last}")?;
    }
    for other in &register.inplace_of {
        write!(f, " in place of %{other}")?;
    }
    writeln!(f, " : {} -> {}", register.producer, register.consumers.join(", "))
}

/// A number of bytes for people.
fn bytes(count: u64) -> String {
    match count {
        0..=9_999 => format!("{count} B"),
        10_000..=9_999_999 => format!("{:.1} KiB", count as f64 / 1024.0),
        _ => format!("{:.1} MiB", count as f64 / 1024.0 / 1024.0),
    }
}
