//! The caller's input and output values during a run.

use std::sync::{Mutex, MutexGuard, PoisonError};

use of_plan::{Port, Program};

use crate::symbols::Symbols;
use crate::{RunError, Value};

/// One slot for each port. The caller fills them before an iteration and empties them after it.
#[derive(Debug)]
pub(crate) struct Ports {
    pub inputs: Vec<Mutex<Option<Value>>>,
    pub outputs: Vec<Mutex<Option<Value>>>,
}

impl Ports {
    pub fn new(program: &Program) -> Self {
        let slots = |ports: &[Port]| ports.iter().map(|_| Mutex::new(None)).collect();
        Self { inputs: slots(&program.inputs), outputs: slots(&program.outputs) }
    }
}

/// The lock, whatever a panic left behind: what it guards is replaced whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Checks the number and the types of the inputs, and binds the shape symbols of their extents.
pub(crate) fn check_inputs(program: &Program, symbols: &Symbols, inputs: &[Value]) -> Result<(), RunError> {
    let ports = &program.inputs;
    if ports.len() != inputs.len() {
        let names: Vec<_> = ports.iter().map(|port| format!("{}: {}", port.name, port.type_text(program))).collect();
        return Err(RunError::InputCount { expected: ports.len(), names: names.join(", "), got: inputs.len() });
    }
    for (index, (port, value)) in ports.iter().zip(inputs).enumerate() {
        let problem = port.accepts(value.input_dims(), program);
        problem.map_err(|problem| RunError::Input { input: port.name.clone(), index, problem })?;
    }
    symbols.reset();
    let tensors: Vec<_> = ports
        .iter()
        .zip(inputs)
        .enumerate()
        .filter_map(|(index, (port, value))| {
            Some((index, port, program.regsts.get(port.regst as usize)?, value.as_tensor()?))
        })
        .collect();
    tensors.iter().for_each(|(_, _, regst, tensor)| symbols.bind_named(regst, tensor.dims()));
    // Until no input binds a further symbol: an extent may depend on a symbol that a later input binds.
    loop {
        let before = symbols.values();
        for (index, port, regst, tensor) in &tensors {
            let learnt = symbols.bind(regst, tensor.dims());
            learnt.map_err(|problem| RunError::Input { input: port.name.clone(), index: *index, problem })?;
        }
        if symbols.values() == before {
            return Ok(());
        }
    }
}
