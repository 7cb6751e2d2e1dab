//! The memory of variables: where a kernel may compute the next value in the place of the current one, and copies elsewhere.

use std::collections::{HashMap, HashSet};

use of_plan::{Chunk, MemoryKind, VALUE_ALIGN, Variable};

use super::{BufferRef, BufferSlot, Flops, Operand, Step, StepGraph, StepKind, VariableSpec, element_type};

/// The variables of all programs of a plan, which have them at the same places so that they can share their values.
#[derive(Debug, Default)]
pub(crate) struct VariableLayout {
    variables: Vec<Variable>,
    index: HashMap<String, usize>,
}

impl VariableLayout {
    /// Adds the variables of a program. Of several initial values the first counts. The error names one that has
    /// another type elsewhere.
    pub fn add(&mut self, graph: &StepGraph) -> Result<(), String> {
        for VariableSpec { name, slot, initial, .. } in &graph.variables {
            let slot = &graph.slots[*slot];
            let dtype = slot.dtype.map_or(0, |dtype| element_type(dtype) as i32);
            if let Some(known) = self.index.get(name).map(|i| &mut self.variables[*i]) {
                known.initial = known.initial.or(*initial);
                if (known.dtype, &known.dims) != (dtype, &slot.dims) {
                    return Err(format!("variable '{name}' has one type in one program and another in a second"));
                }
                continue;
            }
            self.index.insert(name.clone(), self.variables.len());
            let offset = self.bytes();
            let (name, dims, initial) = (name.clone(), slot.dims.clone(), *initial);
            self.variables.push(Variable { name, dtype, dims, offset, initial });
        }
        Ok(())
    }

    /// The variables, in the order of their offsets.
    pub fn variables(&self) -> &[Variable] {
        &self.variables
    }

    /// Bytes of all variables.
    pub fn bytes(&self) -> u64 {
        self.variables.last().and_then(Variable::end).unwrap_or(0)
    }

    /// The chunk of the variables.
    pub fn chunk(&self, id: u32) -> Chunk {
        Chunk { id, memory: MemoryKind::Variables as i32, bytes: self.bytes(), align: VALUE_ALIGN }
    }

    /// Offset of a variable in the chunk.
    pub fn offset(&self, name: &str) -> u64 {
        self.index.get(name).map_or(0, |i| self.variables[*i].offset)
    }
}

impl StepGraph {
    /// Gives the next values of variables their places. A step computes a value in the variable's own memory if it can run after
    /// all readers of the current value, and reads that at most element by element. Other values are copied at the end. Returns
    /// the new position of each step; nothing where none moved.
    pub(crate) fn place_variables(&mut self) -> Vec<usize> {
        if self.variables.is_empty() {
            return Vec::new();
        }
        let moved = self.move_updates();
        let users = Users::of(self);
        let mut copies = Vec::new();
        for k in 0..self.variables.len() {
            let VariableSpec { slot, next, .. } = &self.variables[k];
            let Some(next) = next else { continue };
            if next.buffer == BufferRef::Slot(*slot) && next.offset == 0 {
                continue;
            }
            match self.direct(k).filter(|to| self.slots[*to].variable.is_none() && users.may_share(self, *slot, *to)) {
                Some(to) => {
                    self.slots[to].variable = Some(k);
                    self.update_on_device(*slot, to, &users);
                }
                None => copies.push(k),
            }
        }
        // A value that is another variable must be saved before that one changes.
        let from_variable = |graph: &Self, k: &usize| match graph.variables[*k].next.as_ref().map(|next| next.buffer) {
            Some(BufferRef::Slot(slot)) => graph.slots[slot].variable.is_some(),
            _ => false,
        };
        let (saved, others): (Vec<usize>, Vec<usize>) = copies.into_iter().partition(|k| from_variable(self, k));
        let saved: Vec<(usize, Operand)> = saved
            .into_iter()
            .filter_map(|k| {
                let next = self.variables[k].next.clone()?;
                let to = self.copy(k, next, None);
                Some((k, Operand::whole(BufferRef::Slot(to))))
            })
            .collect();
        let others = others.into_iter().filter_map(|k| Some((k, self.variables[k].next.clone()?)));
        for (k, from) in others.collect::<Vec<_>>().into_iter().chain(saved) {
            self.copy(k, from, Some(k));
        }
        moved
    }

    /// Says that the executable that computes the next value of a variable in the backend's memory reads the current one there, too.
    fn update_on_device(&mut self, from: usize, to: usize, users: &Users) {
        if let Some(writer) = users.writer[to]
            && matches!(self.steps[writer].kind, StepKind::Backend { .. })
            && users.readers[from].contains(&writer)
        {
            self.steps[writer].in_place.push((from, to));
        }
    }

    /// The slot that holds the next value of variable `k` alone.
    fn direct(&self, k: usize) -> Option<usize> {
        let VariableSpec { slot, next, .. } = &self.variables[k];
        let next = next.as_ref()?;
        let BufferRef::Slot(to) = next.buffer else { return None };
        let same = |of: fn(&BufferSlot) -> Option<u64>| of(&self.slots[to]) == of(&self.slots[*slot]);
        let fits = next.offset == 0 && same(|slot| slot.bytes) && self.slots[to].dtype == self.slots[*slot].dtype;
        (fits && to != *slot && self.slots[to].dims == self.slots[*slot].dims).then_some(to)
    }

    /// Appends a copy of an operand of the type of variable `k`, and returns its slot.
    fn copy(&mut self, k: usize, src: Operand, variable: Option<usize>) -> usize {
        let VariableSpec { name, slot, .. } = &self.variables[k];
        let name = format!("update {name}");
        let dst = self.slots.len();
        self.slots.push(BufferSlot { name: name.clone(), variable, ..self.slots[*slot].clone() });
        let bytes = 2 * self.slots[dst].bytes.unwrap_or(0);
        let kind = StepKind::Copy { src, dst };
        let (locations, flops) = (Vec::new(), Flops::default());
        self.steps.push(Step { name, locations, kind, flops, bytes, reread: None, in_place: Vec::new() });
        dst
    }

    /// Moves steps that may update variables behind the last other reader of these, where nothing needs their results before.
    fn move_updates(&mut self) -> Vec<usize> {
        let mut by_step: HashMap<usize, Vec<usize>> = HashMap::new();
        let users = Users::of(self);
        for k in 0..self.variables.len() {
            if let Some(to) = self.direct(k)
                && let Some(step) = users.writer[to]
            {
                by_step.entry(step).or_default().push(k);
            }
        }
        // For each position, the steps that follow it.
        let mut moved: HashMap<usize, Vec<usize>> = HashMap::new();
        for (&step, variables) in &by_step {
            let others = |k: &usize| users.readers[self.variables[*k].slot].iter().copied().filter(|r| *r != step);
            let Some(last) = variables.iter().flat_map(others).max().filter(|last| *last > step) else { continue };
            let needed = self.steps[step].writes().iter().flat_map(|s| users.readers[*s].clone()).min();
            let movable = matches!(self.steps[step].kind, StepKind::Kernel { .. });
            // Steps that move as well may be readers; they stay behind this one only if they are not before `last`.
            // A step stays in its phase.
            let near = self.time.phase_of(last) == self.time.phase_of(step);
            if movable && near && needed.is_none_or(|needed| needed > last) && !by_step.contains_key(&last) {
                moved.entry(last).or_default().push(step);
            }
        }
        if moved.is_empty() {
            return Vec::new();
        }
        moved.values_mut().for_each(|steps| steps.sort_unstable());
        let is_moved: HashSet<usize> = moved.values().flatten().copied().collect();
        let mut order = Vec::with_capacity(self.steps.len());
        for i in 0..self.steps.len() {
            if !is_moved.contains(&i) {
                order.push(i);
                order.extend(moved.remove(&i).unwrap_or_default());
            }
        }
        let mut steps: Vec<Option<Step>> = std::mem::take(&mut self.steps).into_iter().map(Some).collect();
        self.steps = order.iter().filter_map(|i| steps[*i].take()).collect();
        let mut position = vec![0; order.len()];
        order.into_iter().enumerate().for_each(|(new, old)| position[old] = new);
        position
    }
}

/// The steps that use each slot.
struct Users {
    writer: Vec<Option<usize>>,
    readers: Vec<Vec<usize>>,
    /// Slots of variables that are next values of other variables.
    copied: HashSet<usize>,
    /// How many variables have each slot as their next value.
    next_of: Vec<usize>,
}

impl Users {
    fn of(graph: &StepGraph) -> Self {
        let source = |v: &VariableSpec| match v.next.as_ref()?.buffer {
            BufferRef::Slot(from) if from != v.slot => Some(from),
            _ => None,
        };
        let slots = graph.slots.len();
        let copied = graph.variables.iter().filter_map(source).collect();
        let mut out =
            Self { writer: vec![None; slots], readers: vec![Vec::new(); slots], copied, next_of: vec![0; slots] };
        for next in graph.variables.iter().filter_map(|variable| variable.next.as_ref()) {
            if let BufferRef::Slot(slot) = next.buffer {
                out.next_of[slot] += 1;
            }
        }
        for (i, step) in graph.steps.iter().enumerate() {
            step.writes().into_iter().for_each(|slot| out.writer[slot] = Some(i));
            step.reads().into_iter().for_each(|slot| out.readers[slot].push(i));
        }
        out
    }

    /// Whether `to` may be in the memory of `from`: all readers of `from` are done before `to` is written, but for the writer
    /// itself where it works in place. Executables take no memory that is input and output at once; those that keep variables
    /// have both in the backend's memory, if nothing else needs them in this run. A copy at the end, to another variable, would
    /// read too late.
    fn may_share(&self, graph: &StepGraph, from: usize, to: usize) -> bool {
        let Some(writer) = self.writer[to] else { return false };
        let step = &graph.steps[writer];
        let in_place = step.in_place.contains(&(from, to));
        let fits = match step.kind {
            StepKind::Kernel { .. } => {
                self.readers[from].iter().all(|&reader| reader < writer || (reader == writer && in_place))
            }
            StepKind::Backend { keeps_variables, .. } => {
                let alone = self.readers[to].is_empty() && self.next_of[to] == 1;
                keeps_variables && alone && self.readers[from].iter().all(|&reader| reader == writer)
            }
            _ => false,
        };
        fits && !self.copied.contains(&from)
    }
}
