//! The caller's input and output values during a run.

use of_plan::{ElementType, Port, Program};

use crate::symbols::Symbols;
use crate::sync::Mutex;
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

/// The inputs that passed the check last: most runs have the same types again.
#[derive(Debug, Default)]
pub(crate) struct CheckedInputs {
    /// Their types; `None` where one is no tensor.
    types: Option<Vec<(ElementType, Vec<i64>)>>,
    /// The values that they gave the symbols.
    symbols: Vec<i64>,
}

impl CheckedInputs {
    /// Checks the number and the types of the inputs, and binds the shape symbols of their extents.
    pub fn check(&mut self, program: &Program, symbols: &Symbols, inputs: &[Value]) -> Result<(), RunError> {
        let same = |(value, (dtype, dims)): (&Value, &(ElementType, Vec<i64>))| {
            value.as_tensor().is_some_and(|tensor| tensor.dtype() == *dtype && tensor.dims() == dims)
        };
        if let Some(types) = &self.types
            && types.len() == inputs.len()
            && inputs.iter().zip(types).all(same)
        {
            symbols.set(&self.symbols);
            return Ok(());
        }
        self.types = None;
        check_inputs(program, symbols, inputs)?;
        let own = |value: &Value| value.as_tensor().map(|tensor| (tensor.dtype(), tensor.dims().to_vec()));
        self.types = inputs.iter().map(own).collect();
        self.symbols = symbols.values();
        Ok(())
    }
}

fn check_inputs<'a>(program: &Program, symbols: &Symbols, inputs: &'a [Value]) -> Result<(), RunError> {
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
    let tensor = |(index, (port, value)): (usize, (_, &'a Value))| {
        let port: &Port = port;
        Some((index, program.registers.get(port.register as usize)?, value.as_tensor()?.dims()))
    };
    let tensors = || ports.iter().zip(inputs).enumerate().filter_map(tensor);
    let learn =
        |free: bool| tensors().fold(false, |any, (_, register, dims)| symbols.learn(register, dims, free) || any);
    // An extent may determine a symbol only once a later input binds another.
    while learn(false) || learn(true) {}
    for (index, register, dims) in tensors() {
        let fits = symbols.check(register, dims);
        fits.map_err(|problem| RunError::Input { input: ports[index].name.clone(), index, problem })?;
    }
    Ok(())
}
