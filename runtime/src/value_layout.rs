//! Values of open extents that have fixed addresses while the symbols keep their values.
//!
//! A plan with open extents says how large a value is, but not where it is. Where one run has the same extents as the run
//! before, the values that only kernels touch are laid out in one chunk, as the compiler does for fixed extents. Kernels
//! between them become ordinary calls, without locks, sizes or allocations. The layout goes when other extents come.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use of_plan::packing::{Buffer as TimedBuffer, offsets_in_time};
use of_plan::{Chunk, Extent, PlanFile, Program, TaskGraph};

use crate::device::{Arena, Buffer};
use crate::objects::Objects;
use crate::symbols::Symbols;
use crate::sync::{Mutex, lock};

/// The distance between the beginnings of buffers: a cache line.
const ALIGN: u64 = 64;

/// The largest value that is laid out, in bytes. Sums of such values stay far from overflow.
const LARGEST: u64 = 1 << 40;

/// Memory up to this many bytes is kept when other extents come.
const KEPT: u64 = 64 << 20;

/// The number of a state without a layout.
const NONE: u64 = 0;

/// The layout of a session's values, if it has one now.
#[derive(Debug)]
pub(crate) struct ValueLayout {
    candidates: Vec<Candidate>,
    state: Mutex<State>,
    /// [`NONE`], or another number for each layout that the session has had.
    number: AtomicU64,
    /// For each register, whether it is laid out.
    covered: Vec<AtomicBool>,
}

/// Which registers the kernels of a program with open extents touch.
pub(crate) trait KernelArgs {
    /// Whether a task is a kernel that fills a register.
    fn fills(&self, task: u32, register: u32) -> bool;

    /// Whether a task is a kernel that reads a register.
    fn reads(&self, task: u32, register: u32) -> bool;
}

/// A register that only kernels touch.
#[derive(Debug)]
struct Candidate {
    register: u32,
    /// The tasks, by position, that fill it and that read it last.
    first: u32,
    last: u32,
}

#[derive(Debug, Default)]
struct State {
    /// What the inputs said of the symbols in the last run.
    symbols: Vec<i64>,
    layouts: u64,
    /// The memory, kept for the next layout.
    memory: Option<(Arc<Arena>, u64)>,
    /// For each register, its memory; empty without a layout.
    buffers: Vec<Option<Buffer>>,
}

impl ValueLayout {
    /// Without a layout.
    pub fn new(program: &Program, graph: &TaskGraph, kernels: &dyn KernelArgs) -> Self {
        let candidates = if in_sequence(program, graph) { candidates(program, graph, kernels) } else { Vec::new() };
        let covered = program.registers.iter().map(|_| AtomicBool::new(false)).collect();
        Self { candidates, state: Mutex::default(), number: AtomicU64::new(NONE), covered }
    }

    /// Before a run: makes a layout if its inputs give the symbols the same values as those of the run before, and drops one
    /// for other values.
    pub fn prepare(&self, program: &Program, plan: &Arc<PlanFile>, symbols: &Symbols, objects: &Objects) {
        if self.candidates.is_empty() {
            return;
        }
        let mut state = lock(&self.state);
        if !symbols.are(&state.symbols) {
            state.symbols = symbols.values();
            if !state.buffers.is_empty() {
                state.buffers.clear();
                state.memory = state.memory.take().filter(|(_, held)| *held <= KEPT);
                objects.lay_out(state.memory.as_ref().map_or(0, |(_, held)| *held));
                self.covered.iter().for_each(|covered| covered.store(false, Ordering::Release));
                self.number.store(NONE, Ordering::Release);
            }
        } else if state.buffers.is_empty() {
            let buffers = self.lay_out(program, plan, &mut state, objects);
            if buffers.is_none() {
                objects.lay_out(0);
            }
            state.buffers = buffers.unwrap_or_else(|| vec![None; program.registers.len()]);
            let all = self.covered.iter().zip(&state.buffers);
            all.for_each(|(covered, buffer)| covered.store(buffer.is_some(), Ordering::Release));
            state.layouts += 1;
            self.number.store(state.layouts, Ordering::Release);
        }
    }

    /// The buffers of all candidates whose extents the symbols determine; `None` if there is no memory for them.
    fn lay_out(
        &self,
        program: &Program,
        plan: &Arc<PlanFile>,
        state: &mut State,
        objects: &Objects,
    ) -> Option<Vec<Option<Buffer>>> {
        let bytes = |candidate: &Candidate| {
            let register = &program.registers[candidate.register as usize];
            let dim = |extent: &Extent| extent.eval(&state.symbols).filter(|dim| *dim >= 0);
            let count = register.extents.iter().try_fold(1i64, |count, extent| count.checked_mul(dim(extent)?));
            register.dtype().byte_len(&[count?]).filter(|bytes| *bytes <= LARGEST)
        };
        let known: Vec<(&Candidate, u64)> = self.candidates.iter().filter_map(|c| Some((c, bytes(c)?))).collect();
        let timed = |(c, bytes): &(&Candidate, u64)| {
            let bytes = bytes.next_multiple_of(ALIGN);
            TimedBuffer { bytes, first: c.first, last: c.last }
        };
        let (offsets, peak) = offsets_in_time(&known.iter().map(timed).collect::<Vec<_>>());
        let held = state.memory.as_ref().map_or(0, |(_, held)| *held);
        if !objects.lay_out(peak.max(held)) {
            state.memory = None;
            return None;
        }
        if held < peak {
            state.memory = None;
            let chunk = Chunk { bytes: peak, align: ALIGN, ..Chunk::default() };
            state.memory = Some((Arc::new(Arena::new(Arc::clone(plan), &[chunk]).ok()?), peak));
        }
        let (arena, _) = state.memory.as_ref()?;
        let mut buffers = vec![None; program.registers.len()];
        for ((candidate, bytes), offset) in known.iter().zip(offsets) {
            buffers[candidate.register as usize] = arena.block(0, offset, *bytes, *bytes, 1);
        }
        Some(buffers)
    }

    /// The number of the layout; `None` without one.
    #[inline]
    pub fn number(&self) -> Option<u64> {
        Some(self.number.load(Ordering::Acquire)).filter(|number| *number != NONE)
    }

    /// Whether a register is laid out.
    #[inline]
    pub fn covers(&self, register: u32) -> bool {
        self.covered.get(register as usize).is_some_and(|covered| covered.load(Ordering::Acquire))
    }

    /// Whether the inputs determine all symbols. Others may change from run to run while the layout stays.
    pub fn is_complete(&self) -> bool {
        lock(&self.state).symbols.iter().all(|value| *value >= 0)
    }

    /// The memory of a register, if it is laid out.
    pub fn buffer(&self, register: u32) -> Option<Buffer> {
        lock(&self.state).buffers.get(register as usize)?.clone()
    }
}

/// Whether each task ends before the next one in the program begins.
fn in_sequence(program: &Program, graph: &TaskGraph) -> bool {
    let tasks = program.tasks.len() as u32;
    let edges: HashSet<(u32, u32)> = graph.edges().filter(|(from, to)| from + 1 == *to).collect();
    !program.pipelined && (1..tasks).all(|task| edges.contains(&(task - 1, task)))
}

/// The registers that one kernel fills and other kernels read, and nothing else.
fn candidates(program: &Program, graph: &TaskGraph, kernels: &dyn KernelArgs) -> Vec<Candidate> {
    let candidate = |register: &of_plan::Register| {
        let (producer, readers) = (graph.producer[register.id as usize], &graph.consumers[register.id as usize]);
        let by_kernels = register.is_object()
            && register.copies == 1
            && !register.extents.is_empty()
            && kernels.fills(producer, register.id)
            && readers.iter().all(|reader| kernels.reads(*reader, register.id));
        by_kernels.then(|| Candidate {
            register: register.id,
            first: producer,
            last: readers.iter().copied().max().unwrap_or(producer),
        })
    };
    program.registers.iter().filter_map(candidate).collect()
}
