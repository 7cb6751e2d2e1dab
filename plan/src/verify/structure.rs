//! Structural integrity: ids and indexes are valid, blocks are inside their chunks, and registers and tasks name each other.

use std::collections::{HashMap, HashSet};

use super::checker::Checker;
use super::exec::check_exec;
use super::variables;
use super::{Finding, FindingKind};
use crate::task_graph::task_indexes;
use crate::{Block, Chunk, ElementType, Exec, MemoryKind, Plan, Program, Register, Storage, Task, TaskKind};

/// Checks the structure of every program; needs no section sizes.
pub fn structure(plan: &Plan) -> Vec<Finding> {
    let mut checker = Checker { plan, program: None, findings: Vec::new() };
    for (index, code) in plan.code.iter().enumerate() {
        if code.declaration_blake3 != code.declaration_hash() {
            let place = format!("kernel {index} `{}`", code.name);
            let message = "its entry, instruction set or declared calls do not match their hash";
            checker.findings.push(Finding::new(FindingKind::Call, place, message));
        }
    }
    let mut names = HashSet::new();
    for program in &plan.programs {
        checker.program = Some(program);
        if !names.insert(&program.name) {
            checker.report(FindingKind::Duplicate, "", "another program has the same name");
        }
        checker.program(program);
    }
    checker.findings
}

impl<'a> Checker<'a> {
    fn program(&mut self, program: &'a Program) {
        self.chunks(program);
        self.threads(program);
        let index = task_indexes(program);
        if index.len() != program.tasks.len() {
            self.report(FindingKind::Duplicate, "", "two tasks have the same id");
        }
        for (number, register) in program.registers.iter().enumerate() {
            self.register(program, number, register, &index);
        }
        let consumers = |register: &'a Register| register.consumers.iter().map(move |task| (register.id, *task));
        let consumers_of: HashSet<(u32, u64)> = program.registers.iter().flat_map(consumers).collect();
        for task in &program.tasks {
            self.task(program, task, &consumers_of);
        }
        self.ports(program);
        variables::check(self, program);
    }

    fn chunks(&mut self, program: &Program) {
        let mut total = 0u64;
        for (number, chunk) in program.chunks.iter().enumerate() {
            let place = format!("chunk {number}");
            if chunk.id as usize != number {
                self.report(FindingKind::Index, &place, format!("its id is {} and must be its index", chunk.id));
            }
            if !matches!(MemoryKind::try_from(chunk.memory), Ok(MemoryKind::Host | MemoryKind::Variables)) {
                self.report(FindingKind::Reserved, &place, format!("memory kind {} is not supported", chunk.memory));
            }
            if !chunk.align.is_power_of_two() || chunk.align > crate::SECTION_ALIGN {
                self.report(FindingKind::Alignment, &place, format!("bad alignment {}", chunk.align));
            }
            total = total.saturating_add(chunk.bytes);
        }
        if program.peak_bytes != total {
            let message = format!("the declared peak is {} bytes and the chunks take {total}", program.peak_bytes);
            self.report(FindingKind::Peak, "", message);
        }
        if program.lower_bound_bytes > program.peak_bytes {
            self.report(FindingKind::Peak, "", "the lower bound of the memory is above its peak");
        }
    }

    fn threads(&mut self, program: &Program) {
        let mut ids = HashSet::new();
        for thread in &program.threads {
            let place = format!("thread {}", thread.id);
            if !ids.insert(thread.id) {
                self.report(FindingKind::Duplicate, &place, "the id occurs twice");
            }
            if thread.device != "cpu" {
                self.report(FindingKind::Reserved, &place, format!("device kind `{}` is not supported", thread.device));
            }
        }
        if program.threads.is_empty() {
            self.report(FindingKind::Index, "", "there is no thread");
        }
    }

    fn register(&mut self, program: &Program, number: usize, register: &Register, index: &HashMap<u64, u32>) {
        let place = format!("register {number} `{}`", register.name);
        if register.id as usize != number {
            self.report(FindingKind::Index, &place, format!("its id is {} and must be its index", register.id));
            return;
        }
        if register.copies == 0 || register.copies > 1 << 16 {
            self.report(FindingKind::Range, &place, format!("it has {} registers", register.copies));
        }
        let task = |id: &u64| index.get(id).and_then(|&at| program.tasks.get(at as usize));
        if task(&register.producer).is_none_or(|task| !task.produces.contains(&register.id)) {
            self.report(FindingKind::Ownership, &place, "its producer does not exist or does not produce it");
        }
        let mut seen = HashSet::new();
        for consumer in &register.consumers {
            if !seen.insert(consumer) {
                self.report(FindingKind::Duplicate, &place, "a consumer is listed twice");
            }
            if task(consumer).is_none_or(|task| !task.consumes.contains(&register.id)) {
                self.report(FindingKind::Ownership, &place, "a consumer does not exist or does not consume it");
            }
        }
        if let Err((kind, message)) = check_storage(program, register) {
            self.report(kind, &place, message);
        }
        self.inplace(program, &place, register);
        if let Some(block) = register.block() {
            self.lifetime(&place, register, block, index);
        }
    }

    fn inplace(&mut self, program: &Program, place: &str, register: &Register) {
        for &other in &register.inplace_of {
            let other = program.registers.get(other as usize);
            if other.is_none_or(|other| !other.consumers.contains(&register.producer) || other.block().is_none()) {
                let message = "it is in place of a register that has no block or that its producer does not consume";
                self.report(FindingKind::Ownership, place, message);
            }
        }
    }

    fn lifetime(&mut self, place: &str, register: &Register, block: &Block, index: &HashMap<u64, u32>) {
        let uses = std::iter::once(&register.producer).chain(&register.consumers).filter_map(|id| index.get(id));
        if uses.into_iter().any(|&at| at < block.first || at > block.last) {
            let message = format!("its lifetime {}..={} does not cover its uses", block.first, block.last);
            self.report(FindingKind::Lifetime, place, message);
        }
    }

    fn task(&mut self, program: &'a Program, task: &Task, consumers_of: &HashSet<(u32, u64)>) {
        let place = format!("task `{}`", task.name);
        match task.task_id() {
            None => self.report(FindingKind::Index, &place, "its id is malformed"),
            Some(id) if id.thread() != task.thread => self.report(
                FindingKind::Index,
                &place,
                format!("its id names thread {} and its field thread {}", id.thread(), task.thread),
            ),
            Some(_) => {}
        }
        if !program.threads.iter().any(|thread| thread.id == task.thread) {
            self.report(FindingKind::Index, &place, format!("thread {} does not exist", task.thread));
        }
        match TaskKind::try_from(task.kind) {
            Err(_) => self.report(FindingKind::Type, &place, format!("unknown kind {}", task.kind)),
            Ok(kind) if program.phases.is_empty() && super::schedule::needs_phases(kind) => self.report(
                FindingKind::Type,
                &place,
                format!("kind {} needs a program with microbatches", kind.name()),
            ),
            Ok(_) => {}
        }
        let sound = self.registers(program, task, consumers_of, &place);
        if sound {
            check_exec(self, program, task, &place);
        }
    }

    /// Both lists must name existing registers, each once, and the registers must name the task; `consumers_of` are registers and
    /// their consumers.
    fn registers(&mut self, program: &Program, task: &Task, consumers_of: &HashSet<(u32, u64)>, place: &str) -> bool {
        let before = self.findings.len();
        let mut seen = HashSet::new();
        for (id, consumed) in
            task.consumes.iter().map(|id| (id, true)).chain(task.produces.iter().map(|id| (id, false)))
        {
            let Some(register) = program.registers.get(*id as usize) else {
                self.report(FindingKind::Index, place, format!("register {id} does not exist"));
                continue;
            };
            if !seen.insert(id) {
                self.report(FindingKind::Duplicate, place, format!("register {id} is listed twice"));
            }
            let known = if consumed { consumers_of.contains(&(*id, task.id)) } else { register.producer == task.id };
            if !known {
                let role = if consumed { "consumer" } else { "producer" };
                self.report(FindingKind::Ownership, place, format!("register {id} does not name it as its {role}"));
            }
        }
        before == self.findings.len()
    }

    fn ports(&mut self, program: &Program) {
        let (mut fed, mut fetched) = (HashMap::new(), HashMap::new());
        for task in &program.tasks {
            match &task.exec {
                Some(Exec::Feed(exec)) => *fed.entry(exec.port as usize).or_insert(0) += 1,
                Some(Exec::Fetch(exec)) => *fetched.entry(exec.port as usize).or_insert(0) += 1,
                _ => {}
            }
        }
        for (ports, direction, moved) in [(&program.inputs, "input", fed), (&program.outputs, "output", fetched)] {
            let mut names = HashSet::new();
            for (number, port) in ports.iter().enumerate() {
                let place = format!("{direction} `{}`", port.name);
                if !names.insert(&port.name) {
                    self.report(FindingKind::Duplicate, &place, "the name occurs twice");
                }
                let count: usize = moved.get(&number).copied().unwrap_or(0);
                if count != 1 {
                    self.report(FindingKind::Ownership, &place, format!("{count} tasks feed or fetch it and one must"));
                }
                let Some(register) = program.registers.get(port.register as usize) else {
                    self.report(FindingKind::Index, &place, format!("register {} does not exist", port.register));
                    continue;
                };
                let dense_agrees =
                    register.block().is_some() && register.dtype == port.dtype && register.dims == port.dims;
                if !(if port.object { register.is_object() } else { dense_agrees }) {
                    self.report(FindingKind::Type, &place, "its register has another type or storage");
                }
            }
        }
    }
}

fn check_storage(program: &Program, register: &Register) -> Result<(), (FindingKind, String)> {
    let dtype = ElementType::try_from(register.dtype);
    let dtype = dtype.map_err(|_| (FindingKind::Type, format!("unknown element type {}", register.dtype)))?;
    match &register.storage {
        None => Err((FindingKind::Type, "it has no storage".into())),
        Some(Storage::Object(_)) if !register.extents.iter().all(|extent| extent.is_valid(program.symbols.len())) => {
            Err((FindingKind::Index, "its extents depend on a symbol that does not exist".into()))
        }
        Some(Storage::Object(_) | Storage::Control(_)) => Ok(()),
        Some(Storage::Block(block)) => {
            let need = dtype.byte_len(&register.dims);
            let need = need.ok_or_else(|| (FindingKind::Type, format!("{dtype}{:?} has no size", register.dims)))?;
            if block.bytes < need {
                return Err((FindingKind::Range, format!("its block has {} bytes and it needs {need}", block.bytes)));
            }
            let chunk = program.chunks.get(block.chunk as usize);
            let chunk = chunk.ok_or_else(|| (FindingKind::Index, format!("chunk {} does not exist", block.chunk)))?;
            check_block(block, chunk, register.copies, dtype)
        }
    }
}

fn check_block(block: &Block, chunk: &Chunk, num: u32, dtype: ElementType) -> Result<(), (FindingKind, String)> {
    let end = block.offset.checked_add(block.extent(num));
    if end.is_none_or(|end| end > chunk.bytes) {
        return Err((FindingKind::Range, format!("it reaches past chunk {} of {} bytes", chunk.id, chunk.bytes)));
    }
    if !block.offset.is_multiple_of(dtype.align()) {
        return Err((FindingKind::Alignment, format!("offset {} is not aligned for {dtype}", block.offset)));
    }
    Ok(())
}
