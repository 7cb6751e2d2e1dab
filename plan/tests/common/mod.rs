//! Programs by hand, for tests: the two sides of every edge are kept in agreement.
#![allow(dead_code, reason = "every test file uses another part")]

pub mod kinds;
pub mod movers;

use of_plan::*;

/// A program in the making.
pub struct Graph(pub Program);

impl Graph {
    /// A program with so many threads and one chunk.
    pub fn new(name: &str, threads: u32) -> Self {
        let thread = |id| ThreadDesc { id, device: "cpu".into(), stream: 0, rank: 0 };
        Self(Program { name: name.into(), threads: (0..threads).map(thread).collect(), ..Program::default() })
    }

    /// Adds a task and returns its index.
    pub fn task(&mut self, name: &str, thread: u32, exec: Option<Exec>) -> usize {
        let index = self.0.tasks.len();
        let id = TaskId::new(0, thread, 0, index as u32).unwrap().raw();
        let kind = match exec {
            Some(Exec::Kernel(_) | Exec::Backend(_)) | None => TaskKind::Compute,
            _ => TaskKind::Copy,
        };
        let name = name.to_owned();
        self.0.tasks.push(Task { id, name, thread, kind: kind as i32, exec, ..Task::default() });
        index
    }

    fn register(&mut self, name: &str, from: usize, to: &[usize], storage: Storage) -> &mut Register {
        let id = self.0.registers.len() as u32;
        self.0.tasks[from].produces.push(id);
        to.iter().for_each(|&to| self.0.tasks[to].consumes.push(id));
        let consumers = to.iter().map(|&to| self.0.tasks[to].id).collect();
        let producer = self.0.tasks[from].id;
        let storage = Some(storage);
        self.0.registers.push(Register {
            id,
            name: name.into(),
            producer,
            consumers,
            copies: 1,
            storage,
            ..Register::default()
        });
        self.0.registers.last_mut().unwrap()
    }

    /// Adds a block of `f32` at an offset and returns its id; its lifetime spans its uses.
    pub fn block(&mut self, name: &str, from: usize, to: &[usize], elements: i64, offset: u64) -> u32 {
        let bytes = elements as u64 * 4;
        let last = to.iter().copied().max().unwrap_or(from).max(from) as u32;
        let first = to.iter().copied().min().unwrap_or(from).min(from) as u32;
        let block = Block { chunk: 0, offset, bytes, first, last };
        let register = self.register(name, from, to, Storage::Block(block));
        register.dtype = ElementType::F32 as i32;
        register.dims = vec![elements];
        register.id
    }

    /// Adds an object register.
    pub fn object(&mut self, name: &str, from: usize, to: &[usize], dtype: ElementType) -> u32 {
        let register = self.register(name, from, to, Storage::Object(ObjectStorage {}));
        register.dtype = dtype as i32;
        register.id
    }

    /// Adds a control edge.
    pub fn control(&mut self, from: usize, to: usize) -> u32 {
        self.register("then", from, &[to], Storage::Control(ControlStorage {})).id
    }

    /// Adds an input or output port for a register.
    pub fn port(&mut self, name: &str, register: u32, input: bool) {
        let desc = &self.0.registers[register as usize];
        let (dtype, dims, object) = (desc.dtype, desc.dims.clone(), desc.is_object());
        let ports = if input { &mut self.0.inputs } else { &mut self.0.outputs };
        ports.push(Port { name: name.into(), dtype, dims, object, register });
    }

    /// Makes the chunk as large as the blocks need.
    pub fn finish(mut self) -> Program {
        let end = |register: &Register| register.block().map(|block| block.offset + block.extent(register.copies));
        let bytes = self.0.registers.iter().filter_map(end).max().unwrap_or(0);
        if bytes > 0 {
            self.0.chunks = vec![Chunk { id: 0, memory: MemoryKind::Host as i32, bytes, align: 64 }];
        }
        self.0.peak_bytes = bytes;
        self.0.lower_bound_bytes = bytes / 2;
        self.0
    }
}

/// A feed or a fetch.
pub fn feed(port: u32) -> Option<Exec> {
    Some(Exec::Feed(PortExec { port }))
}

/// A feed or a fetch.
pub fn fetch(port: u32) -> Option<Exec> {
    Some(Exec::Fetch(PortExec { port }))
}

/// A kernel call.
pub fn kernel(code: u32, args: Vec<Arg>, iterations: i64) -> Option<Exec> {
    Some(Exec::Kernel(KernelExec {
        code,
        args,
        iterations,
        grain: 1,
        scratch_bytes: 256,
        flops: 1,
        pointwise: 0,
        reread: None,
        bytes: 4,
        dynamic: None,
    }))
}

/// A plan that says it is for this machine.
pub fn builder<'a>() -> PlanBuilder<'a> {
    let info = PlanInfo {
        compiler_version: "1.2.3".into(),
        model: "small".into(),
        flags: vec!["--threads=2".into()],
        inputs: vec![InputHash { name: "small.onnx".into(), blake3: vec![7; 32] }],
        passes: "simplify,optimize".into(),
    };
    let arch = std::env::consts::ARCH.into();
    let environment = Environment { arch, threads: 1, ranks: 1, ..Environment::default() };
    PlanBuilder::new(info, environment)
}

/// A small plan with something in every section: input -> kernel -> kernel in reused memory -> executable -> output.
pub fn small_plan<'a>() -> PlanBuilder<'a> {
    let mut plan = builder();
    plan.add_weight("w", ElementType::F32, &[3], vec![1u8; 12]).unwrap();
    plan.add_weight("bytes", ElementType::I4, &[5], vec![2u8; 3]).unwrap();
    plan.add_weight("text", ElementType::String, &[2], PlanBuilder::encode_strings(&["a", "bc"])).unwrap();
    plan.add_kernel("ret", "x86-64", vec![0x90, 0xc3], 1).unwrap();
    plan.add_kernel("other", "x86-64", vec![0xcc; 100], 0).unwrap();
    let (offset, len) = plan.add_payload(b"payload");
    let mut graph = Graph::new("main", 1);
    let source = graph.task("in", 0, feed(0));
    let double =
        graph.task("double", 0, kernel(0, vec![Arg::register(0, 0), Arg::register(1, 0), Arg::weight(0, 4)], 8));
    let half = graph.task("half", 0, kernel(1, vec![Arg::register(1, 0), Arg::register(2, 0)], 8));
    let backend = BackendExec {
        backend: "test".into(),
        offset,
        len,
        inputs: vec![Arg::register(2, 0).with_view(ElementType::F32, vec![2, 4]), Arg::weight(2, 0)],
        outputs: vec![3],
        ..BackendExec::default()
    };
    let last = graph.task("last", 0, Some(Exec::Backend(backend)));
    let sink = graph.task("out", 0, fetch(0));
    graph.block("x", source, &[double], 8, 0);
    graph.block("y", double, &[half], 8, 64);
    graph.block("z", half, &[last], 8, 0);
    graph.block("r", last, &[sink], 8, 64);
    graph.port("x", 0, true);
    graph.port("r", 3, false);
    plan.add_program(graph.finish());
    plan
}
