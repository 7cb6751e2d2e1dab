//! The values of variables, which sessions of one plan may share.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use of_plan::pages::MmapRaw;
use of_plan::{Chunk, Initial, PlanFile, Program, Variable, have_same_places};

use crate::device::{Arena, Buffer};
use crate::device_variables::DeviceVariables;
use crate::frozen_variables::Shadow;
use crate::sync::{Condvar, Mutex, MutexGuard, lock, wait};
use crate::{
    AlignedBytes, DeviceVariable, ExecError, ExternalBytes, FrozenPart, FrozenVariables, Handle, LoadError,
    RankContext, RunError, SessionError, Tensor,
};

/// The values of the variables of a plan's programs. Sessions of programs that have equal variables can share them: a run has
/// them for itself, so runs of such sessions follow one another.
#[derive(Debug)]
pub struct Variables {
    list: Arc<[Variable]>,
    arena: Arc<Arena>,
    buffers: Arc<[Buffer]>,
    /// Memory for values of runs, by chunk. Runs follow one another, so all sessions use it, and the largest program takes all of it.
    /// None where the memory is a transport's.
    values: Vec<Option<Arc<MmapRaw>>>,
    /// What [`Variables::reset`] restores.
    initial: Vec<Option<Buffer>>,
    /// The order in which a run updates them; those that it does not update come last.
    update_order: Arc<[usize]>,
    state: Mutex<State>,
    /// Wakes who waits until no value is lent.
    returned: Condvar,
    /// Frozen values that are in use.
    frozen: Mutex<Vec<Weak<FrozenVariables>>>,
    /// Whether there are any.
    any_frozen: AtomicBool,
    /// Memory for values that are saved.
    shadows: Arc<Mutex<Vec<Shadow>>>,
}

/// What is known of the values.
#[derive(Debug)]
struct State {
    /// Which variables have a value.
    set: Vec<bool>,
    /// How many values are lent.
    lent: usize,
    /// Variables that a run began to update and did not end; their values may be mixed from two steps.
    torn: Vec<bool>,
    /// Whether a run was interrupted, so that some thread may still be writing to the memory of values.
    interrupted: bool,
    /// Those that backends keep in their own memory.
    on_devices: DeviceVariables,
}

impl State {
    /// Notes a new value on the host.
    fn set_on_host(&mut self, index: usize) {
        (self.set[index], self.torn[index]) = (true, false);
        self.on_devices.changed_on_host(index);
    }
}

/// The indexes of variables that the tasks of a program read or write, by where they do so.
#[derive(Clone, Debug, Default)]
pub(crate) struct Places {
    pub on_host: Vec<usize>,
    pub on_device: Vec<usize>,
}

impl Variables {
    /// Initial values of the variables of a program; `None` where it has none.
    pub(crate) fn new(
        plan: &Arc<PlanFile>,
        program: &Program,
        rank: Option<&RankContext>,
    ) -> Result<Option<Self>, SessionError> {
        let Some(chunk) = program.variable_chunk() else { return Ok(None) };
        let arena = Arena::with(Arc::clone(plan), std::slice::from_ref(chunk), &|_, len| match rank {
            Some(rank) => rank.transport.memory(len),
            None => Ok(Arc::new(of_plan::zeroed_pages(len)?.into())),
        });
        let failed = |(_, source)| SessionError::Memory { what: "variables".into(), bytes: chunk.bytes, source };
        let arena = Arc::new(arena.map_err(failed)?);
        let bound = program.variables.iter().map(|variable| {
            let buffer = arena.block(0, variable.offset, variable.bytes()?, 0, 1)?;
            let initial = match variable.initial {
                Some(Initial::Weight(weight)) => {
                    Some(arena.weight(rank.map_or(weight, |rank| rank.weight(weight)), 0)?)
                }
                _ => None,
            };
            Some((buffer, initial))
        });
        let bound: Option<(Vec<_>, Vec<_>)> = bound.collect::<Option<Vec<_>>>().map(|all| all.into_iter().unzip());
        // A plan that was verified never fails here.
        let (buffers, initial) = bound.ok_or_else(|| SessionError::Variables("they do not fit their memory".into()))?;
        let count = buffers.len();
        let state = State {
            set: vec![false; count],
            lent: 0,
            torn: vec![false; count],
            interrupted: false,
            on_devices: DeviceVariables::default(),
        };
        let mut update_order: Vec<usize> =
            program.tasks.iter().flat_map(|task| program.variables_written(task)).collect();
        let fixed: Vec<usize> = (0..count).filter(|index| !update_order.contains(index)).collect();
        update_order.extend(fixed);
        let values = match rank {
            Some(_) => Vec::new(),
            None => value_memory(plan, program)?,
        };
        let variables = Self {
            list: program.variables.as_slice().into(),
            arena,
            buffers: buffers.into(),
            values,
            initial,
            update_order: update_order.into(),
            state: Mutex::new(state),
            returned: Condvar::new(),
            frozen: Mutex::default(),
            any_frozen: AtomicBool::new(false),
            shadows: Arc::default(),
        };
        variables.reset();
        Ok(Some(variables))
    }

    /// The variables: names, types, initial values.
    pub fn list(&self) -> &[Variable] {
        &self.list
    }

    /// The value of a variable. Waits for a run that is under way.
    ///
    /// # Errors
    /// When there is no such variable, or it has no value.
    pub fn get(&self, name: &str) -> Result<Tensor, RunError> {
        let index = self.index(name)?;
        let mut state = lock(&self.state);
        self.check(&state, index)?;
        self.download(&mut state, index)?;
        let Variable { dims, .. } = &self.list[index];
        let tensor = Tensor::from_bytes(self.list[index].dtype(), dims.as_slice(), self.buffers[index].bytes(0));
        tensor.map_err(|error| RunError::Variable { name: name.into(), problem: error.to_string() })
    }

    /// The value of a variable, which stays in its place: it is not copied. Waits for a run that is under way. Until the tensor and its clones
    /// are dropped, runs and other changes of the variables wait, so the thread that has it must not begin one.
    ///
    /// # Errors
    /// When there is no such variable, or it has no value.
    pub fn lend(self: &Arc<Self>, name: &str) -> Result<Tensor, RunError> {
        let index = self.index(name)?;
        let mut state = lock(&self.state);
        self.check(&state, index)?;
        self.download(&mut state, index)?;
        state.lent += 1;
        drop(state);
        let bytes = AlignedBytes::external(Box::new(Lent { variables: Arc::clone(self), index }));
        let Variable { dims, .. } = &self.list[index];
        let tensor = Tensor::new(self.list[index].dtype(), dims.as_slice(), bytes);
        tensor.map_err(|error| RunError::Variable { name: name.into(), problem: error.to_string() })
    }

    /// The state, once no value is lent.
    fn lock_for_update(&self) -> MutexGuard<'_, State> {
        let mut state = lock(&self.state);
        while state.lent > 0 {
            state = wait(&self.returned, state);
        }
        state
    }

    /// Sets the value of a variable. Waits for a run that is under way.
    ///
    /// # Errors
    /// When there is no such variable, or the value has another type.
    pub fn set(&self, name: &str, value: &Tensor) -> Result<(), RunError> {
        let index = self.index(name)?;
        let variable = &self.list[index];
        if value.dtype() != variable.dtype() || value.dims() != variable.dims {
            let given = format!("{}{:?}", value.dtype(), value.dims());
            let problem = format!("is {}{:?} and cannot be set to {given}", variable.dtype(), variable.dims);
            return Err(RunError::Variable { name: name.into(), problem });
        }
        let mut state = self.lock_for_update();
        self.before_update(&[index]);
        match (value.bytes(), self.buffers[index].bytes_mut(0)) {
            (Some(from), Some(to)) if from.len() == to.len() => to.copy_from_slice(from),
            _ => return Err(self.odd(index)),
        }
        state.set_on_host(index);
        Ok(())
    }

    /// Copies the bytes of a variable. Waits for a run that is under way.
    pub(crate) fn copy_to(&self, index: usize, to: &mut [u8]) -> Result<(), RunError> {
        let mut state = lock(&self.state);
        self.check(&state, index)?;
        self.download(&mut state, index)?;
        let from = self.buffers[index].bytes(0);
        if from.len() != to.len() {
            return Err(self.odd(index));
        }
        to.copy_from_slice(from);
        Ok(())
    }

    /// Sets the bytes of a variable, which [`Variables::copy_to`] gave.
    pub(crate) fn restore(&self, index: usize, from: &[u8]) -> Result<(), RunError> {
        let mut state = self.lock_for_update();
        self.before_update(&[index]);
        match self.buffers[index].bytes_mut(0) {
            Some(to) if to.len() == from.len() => to.copy_from_slice(from),
            _ => return Err(self.odd(index)),
        }
        state.set_on_host(index);
        Ok(())
    }

    /// Freezes the values as they are: they can be read while later runs update the variables. Waits for a run that is under way.
    ///
    /// # Errors
    /// When a variable has no value, or there is no memory for values that are updated before they are read.
    pub fn freeze(&self) -> Result<Arc<FrozenVariables>, RunError> {
        let mut state = lock(&self.state);
        (0..self.list.len()).try_for_each(|index| self.check(&state, index))?;
        (0..self.list.len()).try_for_each(|index| self.download(&mut state, index))?;
        let memory = (Arc::clone(&self.buffers), self.take_shadow()?);
        let (list, order) = (Arc::clone(&self.list), Arc::clone(&self.update_order));
        let frozen = Arc::new(FrozenVariables::new(list, order, memory, Arc::clone(&self.shadows)));
        lock(&self.frozen).push(Arc::downgrade(&frozen));
        self.any_frozen.store(true, Ordering::Release);
        Ok(frozen)
    }

    /// As [`Variables::freeze`], in the order in which a run updates them.
    ///
    /// # Errors
    /// As [`Variables::freeze`].
    pub fn freeze_parts(&self) -> Result<Vec<FrozenPart>, RunError> {
        Ok(FrozenPart::all(&self.freeze()?))
    }

    /// Saves frozen values of variables that are about to be updated, by a run that is under way or with the lock of the state.
    pub(crate) fn before_update(&self, updated: &[usize]) {
        if !self.any_frozen.load(Ordering::Acquire) {
            return;
        }
        let used: Vec<Arc<FrozenVariables>> = {
            let mut frozen = lock(&self.frozen);
            frozen.retain(|own| own.strong_count() > 0);
            self.any_frozen.store(!frozen.is_empty(), Ordering::Release);
            frozen.iter().filter_map(Weak::upgrade).collect()
        };
        used.iter().for_each(|frozen| updated.iter().for_each(|index| frozen.save(*index)));
    }

    /// Memory for saved values: that of an earlier freeze, or new.
    fn take_shadow(&self) -> Result<Shadow, RunError> {
        if let Some(shadow) = lock(&self.shadows).pop() {
            return Ok(shadow);
        }
        let bytes = self.list.iter().filter_map(Variable::end).max().unwrap_or(0);
        let chunk = Chunk { bytes, ..Chunk::default() };
        let failed = |why: &str| RunError::Internal(format!("no memory of {bytes} bytes for frozen variables{why}"));
        let arena = Arena::new(Arc::clone(self.arena.plan()), std::slice::from_ref(&chunk));
        let arena = Arc::new(arena.map_err(|(_, e)| failed(&format!(": {e}")))?);
        let place = |variable: &Variable| arena.block(0, variable.offset, variable.bytes()?, 0, 1);
        self.list.iter().map(place).collect::<Option<Shadow>>().ok_or_else(|| failed(""))
    }

    fn odd(&self, index: usize) -> RunError {
        RunError::Internal(format!("variable `{}` has other bytes than its type", self.list[index].name))
    }

    /// Gives every variable its initial value; those without one have none afterwards.
    pub fn reset(&self) {
        let mut state = self.lock_for_update();
        self.before_update(&self.update_order);
        for (index, variable) in self.list.iter().enumerate() {
            let Some(to) = self.buffers[index].bytes_mut(0) else { continue };
            match &self.initial[index] {
                Some(from) => {
                    to.copy_from_slice(from.bytes(0));
                    // It is not read again, but for another reset.
                    of_plan::release(from.bytes(0));
                }
                None => to.fill(0),
            }
            state.set_on_host(index);
            state.set[index] = variable.initial.is_some();
        }
    }

    /// Marks all values as lost.
    pub(crate) fn lose(&self) {
        lock(&self.state).torn.fill(true);
    }

    /// The handles of these variables for executables of a backend, which keeps them; `None` if it takes them from the host. `make`
    /// allocates memory for variables of so many bytes each.
    pub(crate) fn device_handles(
        &self,
        backend: &str,
        indexes: &[usize],
        make: impl FnOnce(&[u64]) -> Result<Option<Vec<Arc<dyn DeviceVariable>>>, LoadError>,
    ) -> Result<Option<Vec<Handle>>, LoadError> {
        let bytes = |index: &usize| self.list[*index].bytes().unwrap_or(0);
        let make = |missing: &[usize]| make(&missing.iter().map(bytes).collect::<Vec<_>>());
        lock(&self.state).on_devices.handles(backend, indexes, make)
    }

    /// Whether executables of this backend have a variable in their own memory.
    pub(crate) fn is_kept_by(&self, index: usize, backend: &str) -> bool {
        lock(&self.state).on_devices.is_kept_by(index, backend)
    }

    /// Copies a value to the host if only a device has it.
    fn download(&self, state: &mut State, index: usize) -> Result<(), RunError> {
        if !state.on_devices.is_newer(index) {
            return Ok(());
        }
        self.before_update(&[index]);
        let to = self.buffers[index].bytes_mut(0).ok_or_else(|| self.odd(index))?;
        state.on_devices.download(index, to).map_err(|error| self.on_device(index, &error))
    }

    fn on_device(&self, index: usize, error: &ExecError) -> RunError {
        let problem = format!("could not be copied from or to its device: {error}");
        RunError::Variable { name: self.list[index].name.clone(), problem }
    }

    /// Begins a run that reads some variables, each on the host or on a device; the lock is the run's.
    pub(crate) fn begin(&self, reads: &Places) -> Result<Run<'_>, RunError> {
        let mut state = self.lock_for_update();
        if state.interrupted {
            return Err(RunError::Poisoned(
                "a run of it, or of a session that has its variables, was interrupted".into(),
            ));
        }
        reads.on_host.iter().chain(&reads.on_device).try_for_each(|&index| self.check(&state, index))?;
        reads.on_host.iter().try_for_each(|&index| self.download(&mut state, index))?;
        for &index in &reads.on_device {
            let from = self.buffers[index].bytes(0);
            state.on_devices.upload(index, from).map_err(|error| self.on_device(index, &error))?;
        }
        Ok(Run(state))
    }

    /// The memory of a chunk of a program that has these variables: their own, or that of values, if it has so many bytes.
    pub(crate) fn memory(&self, chunk: &Chunk, len: usize) -> Option<Arc<MmapRaw>> {
        if chunk.is_of_variables() {
            return self.arena.memory(0);
        }
        self.values.get(chunk.id as usize)?.clone().filter(|memory| memory.len() >= len)
    }

    fn index(&self, name: &str) -> Result<usize, RunError> {
        let found = self.list.iter().position(|variable| variable.name == name);
        found.ok_or_else(|| {
            let names: Vec<_> = self.list.iter().take(8).map(|variable| variable.name.as_str()).collect();
            let more = if self.list.len() > names.len() { ", …" } else { "" };
            let problem = format!("does not exist; there are {}{more}", names.join(", "));
            RunError::Variable { name: name.into(), problem }
        })
    }

    fn check(&self, state: &State, index: usize) -> Result<(), RunError> {
        let problem = match (state.set[index], state.torn[index]) {
            (true, false) => return Ok(()),
            (false, _) => "has no value: set it before the run",
            (true, true) => "is lost, because a run failed while it updated the variables: set it again, or reset all",
        };
        Err(RunError::Variable { name: self.list[index].name.clone(), problem: problem.into() })
    }
}

/// A value that is read in its place.
struct Lent {
    variables: Arc<Variables>,
    index: usize,
}

impl ExternalBytes for Lent {
    fn bytes(&self) -> &[u8] {
        // Who changes it has waited for this value, or will.
        self.variables.buffers[self.index].bytes(0)
    }

    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        None
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        lock(&self.variables.state).lent -= 1;
        self.variables.returned.notify_all();
    }
}

/// A run that has the variables for itself.
pub(crate) struct Run<'a>(MutexGuard<'a, State>);

impl Run<'_> {
    /// Notes that threads may go on with what the run began.
    pub fn interrupted(&mut self) {
        self.0.interrupted = true;
    }

    /// Ends the run. `writes` are the variables that it updates; `begun` says whether it had begun to do so if it failed.
    pub fn end(mut self, writes: &Places, succeeded: bool, begun: bool) {
        let state = &mut *self.0;
        if succeeded {
            writes.on_host.iter().for_each(|&index| state.set_on_host(index));
            for &index in &writes.on_device {
                (state.set[index], state.torn[index]) = (true, false);
                state.on_devices.changed_on_device(index);
            }
        } else if begun {
            writes.on_host.iter().chain(&writes.on_device).for_each(|&index| state.torn[index] = true);
        }
    }
}

/// Memory for the values of each program that has the variables of this one, by chunk. Its pages come when they are written.
fn value_memory(plan: &PlanFile, program: &Program) -> Result<Vec<Option<Arc<MmapRaw>>>, SessionError> {
    let alike = || plan.plan().programs.iter().filter(|other| have_same_places(&other.variables, &program.variables));
    let chunks = alike().map(|other| other.chunks.len()).max().unwrap_or(0);
    let reserve = |id: usize| {
        let own = alike().filter_map(|other| other.chunks.get(id)).filter(|chunk| !chunk.is_of_variables());
        let Some(bytes) = own.map(|chunk| chunk.bytes).max() else { return Ok(None) };
        let pages = usize::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory));
        let pages = pages.and_then(of_plan::zeroed_pages).map(|pages| Some(Arc::new(pages.into())));
        pages.map_err(|source| SessionError::Memory { what: format!("chunk {id}"), bytes, source })
    };
    (0..chunks).map(reserve).collect()
}
