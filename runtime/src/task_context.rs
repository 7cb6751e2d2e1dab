//! The session state that a task uses while it runs, and access to its registers.

use of_plan::{ElementType, Program};

use crate::device::{Buffer, Scratch};
use crate::io::Ports;
use crate::objects::Objects;
use crate::pool::Pool;
use crate::symbols::Symbols;
use crate::sync::lock;
use crate::value_layout::ValueLayout;
use crate::{ExecError, RunError, Tensor, Value};

/// A register as an operand: memory with its type, or an object register.
pub(crate) enum RegisterRef {
    Dense { buffer: Buffer, dtype: ElementType, dims: Vec<i64> },
    Object(u32),
}

impl RegisterRef {
    /// Removes the memory and keeps the type.
    pub fn without_bytes(&mut self) {
        if let RegisterRef::Dense { buffer, .. } = self {
            buffer.clear();
        }
    }
}

/// An input of an executable.
pub(crate) enum Operand {
    Register(RegisterRef),
    /// A constant of text.
    Constant(Value),
}

/// The session state that a task uses.
pub(crate) struct Context<'a> {
    pub program: &'a Program,
    /// Index of the task.
    pub task: usize,
    pub iteration: u64,
    pub ports: &'a Ports,
    pub objects: &'a Objects,
    pub symbols: &'a Symbols,
    pub layout: &'a ValueLayout,
    pub pool: &'a Pool,
    pub scratch: &'a Scratch,
}

/// Where a task comes from, for an error; empty where nothing says it.
pub(crate) fn place(task: &of_plan::Task) -> String {
    /// As many ops of a fused group are named.
    const NAMED: usize = 3;
    let all = &task.locations;
    let more = if all.len() > NAMED { format!(" and {} more", all.len() - NAMED) } else { String::new() };
    let named = all[..all.len().min(NAMED)].join(", ");
    if named.is_empty() { named } else { format!(" at {named}{more}") }
}

impl Context<'_> {
    /// A copy of an input.
    pub fn value(&self, input: &Operand) -> Result<Value, RunError> {
        match input {
            Operand::Constant(value) => Ok(value.clone()),
            Operand::Register(RegisterRef::Object(register)) => self.object(*register),
            Operand::Register(RegisterRef::Dense { buffer, dtype, dims }) => {
                let tensor = Tensor::from_bytes(*dtype, dims.as_slice(), buffer.bytes(self.iteration));
                Ok(tensor.map_err(|error| self.failed(error.into()))?.into())
            }
        }
    }

    /// Sets the value of a register that the task produces.
    pub fn put(&self, place: &RegisterRef, value: Value) -> Result<(), RunError> {
        let (buffer, dtype, dims) = match place {
            RegisterRef::Object(register) => return self.store(*register, Some(value)),
            RegisterRef::Dense { buffer, dtype, dims } => (buffer, dtype, dims),
        };
        let tensor = value.as_tensor().filter(|t| t.dtype() == *dtype && t.dims() == dims);
        match (tensor.and_then(Tensor::bytes), buffer.bytes_mut(self.iteration)) {
            (Some(source), Some(target)) if source.len() == target.len() => target.copy_from_slice(source),
            _ => {
                let got = value.as_tensor().map_or("no tensor".into(), |t| format!("{}{:?}", t.dtype(), t.dims()));
                return Err(self.failed(ExecError::Input(format!("a result is {got}, it must be {dtype}{dims:?}"))));
            }
        }
        Ok(())
    }

    /// Element type and extents of a register that has no elements. Symbols without a value are taken as 0, so that extents
    /// agree that have one in common; an extent that is not known even then is 0, too.
    pub fn declared(&self, place: &RegisterRef) -> (ElementType, Vec<i64>) {
        match place {
            RegisterRef::Dense { dtype, dims, .. } => (*dtype, dims.clone()),
            RegisterRef::Object(register) => {
                let desc = &self.program.registers[*register as usize];
                let bound: Vec<i64> = self.symbols.values().iter().map(|value| (*value).max(0)).collect();
                let open = desc.extents.iter().map(|extent| extent.eval(&bound).unwrap_or(0));
                (desc.dtype(), if desc.extents.is_empty() { desc.dims.clone() } else { open.collect() })
            }
        }
    }

    pub fn name(&self) -> String {
        self.program.tasks[self.task].name.clone()
    }

    pub fn failed(&self, source: ExecError) -> RunError {
        RunError::Task { task: self.name(), place: place(&self.program.tasks[self.task]), source }
    }

    pub fn internal(&self, what: &str) -> RunError {
        RunError::Internal(format!("task `{}` {what}", self.name()))
    }

    pub fn empty(&self, register: u32) -> RunError {
        self.internal(&format!("finds register {register} empty"))
    }

    pub fn object(&self, register: u32) -> Result<Value, RunError> {
        let guard = self.objects.read(register, self.iteration);
        guard.and_then(|guard| guard.clone()).ok_or_else(|| self.empty(register))
    }

    /// Sets the value of an object register, if it fits. `None` is an error: the executable set no value.
    pub fn store(&self, register: u32, value: Option<Value>) -> Result<(), RunError> {
        let desc = &self.program.registers[register as usize];
        let wrong = |problem: String| RunError::Output { task: self.name(), register: desc.name.clone(), problem };
        let value = value.ok_or_else(|| wrong("no value".into()))?;
        if let Some(tensor) = value.as_tensor()
            && desc.dtype() != ElementType::Unknown
            && desc.dtype() != tensor.dtype()
        {
            return Err(wrong(format!("a tensor of {} where it holds {}", tensor.dtype(), desc.dtype())));
        }
        if let Some(tensor) = value.as_tensor() {
            self.symbols.bind(desc, tensor.dims()).map_err(|problem| wrong(format!("a value that {problem}")))?;
        }
        self.objects.write(register, self.iteration, value);
        Ok(())
    }

    /// The extents and the bytes of an object register whose symbols are bound by now.
    pub fn extents(&self, register: u32) -> Result<(Vec<i64>, usize), RunError> {
        let desc = &self.program.registers[register as usize];
        let dims = self.symbols.dims(desc).map_err(|problem| self.internal(&problem))?;
        let bytes = desc.dtype().byte_len(&dims).and_then(|len| usize::try_from(len).ok());
        let bytes = bytes.filter(|&len| len <= isize::MAX as usize - 64);
        let too_large = || self.failed(ExecError::Input(format!("makes a tensor of {dims:?}, which is too large")));
        let bytes = bytes.ok_or_else(too_large)?;
        Ok((dims, bytes))
    }

    /// An allocated tensor of these extents and bytes for an object register.
    pub fn room(&self, register: u32, dims: &[i64], bytes: usize) -> Result<Tensor, RunError> {
        let desc = &self.program.registers[register as usize];
        if let Some(spare) = self.objects.spare(register, self.iteration, dims).filter(|t| t.dtype() == desc.dtype()) {
            return Ok(spare);
        }
        let named = |error| match error {
            ExecError::Memory(what) => ExecError::Memory(format!("'{}' {}{dims:?}: {what}", desc.name, desc.dtype())),
            other => other,
        };
        let bytes = self.objects.allocate(bytes).map_err(|error| self.failed(named(error)))?;
        Tensor::new(desc.dtype(), dims, bytes).map_err(|error| self.failed(error.into()))
    }

    /// The bytes of an object register that a kernel reads for these values of the symbols.
    pub fn bytes_read(&self, register: u32, symbols: &[i64]) -> Result<usize, RunError> {
        let desc = &self.program.registers[register as usize];
        if desc.extents.is_empty() {
            return Ok(0);
        }
        let count = desc.extents.iter().try_fold(1i64, |n, extent| n.checked_mul(extent.eval(symbols)?));
        let bytes = count.and_then(|n| desc.dtype().byte_len(&[n])).and_then(|len| usize::try_from(len).ok());
        bytes.ok_or_else(|| self.internal(&format!("does not know the extents of register `{}`", desc.name)))
    }

    /// The error for a value with fewer bytes than its extents say.
    #[cold]
    pub fn short(&self, register: u32, len: usize) -> RunError {
        let name = &self.program.registers[register as usize].name;
        self.internal(&format!("reads register `{name}`, whose value has {len} bytes, fewer than its extents"))
    }

    /// A value reshaped to the extents of a register, if these are known.
    pub fn shaped(&self, register: u32, value: Value) -> Result<Value, RunError> {
        let desc = &self.program.registers[register as usize];
        match value {
            Value::Tensor(tensor) if !desc.extents.is_empty() => {
                let dims = self.symbols.dims(desc).map_err(|problem| self.internal(&problem))?;
                let tensor = tensor.reshaped(dims).map_err(|error| self.failed(error.into()))?;
                Ok(tensor.into())
            }
            value => Ok(value),
        }
    }

    pub fn feed(&self, port: usize, to: &RegisterRef) -> Result<(), RunError> {
        let slot = lock(&self.ports.inputs[port]);
        let value = slot.as_ref().ok_or_else(|| self.internal("finds no input"))?;
        match to {
            // Its type was checked and its extents are bound.
            RegisterRef::Object(register) => self.objects.write(*register, self.iteration, value.clone()),
            RegisterRef::Dense { buffer, .. } => {
                let source = value.as_tensor().and_then(Tensor::bytes);
                let target = buffer.bytes_mut(self.iteration);
                match (source, target) {
                    (Some(source), Some(target)) if source.len() == target.len() => target.copy_from_slice(source),
                    _ => return Err(self.internal("is fed another type than its port has")),
                }
            }
        }
        Ok(())
    }

    pub fn fetch(&self, port: usize, from: &RegisterRef) -> Result<(), RunError> {
        let mut slot = lock(&self.ports.outputs[port]);
        match from {
            RegisterRef::Object(register) => {
                let value = self.objects.fetch(*register, self.iteration);
                let value = value.ok_or_else(|| self.empty(*register))?.without_external();
                if let Some(Value::Tensor(old)) = slot.replace(value) {
                    self.objects.give_back(*register, self.iteration, old);
                }
            }
            RegisterRef::Dense { buffer, dtype, dims } => {
                let bytes = buffer.bytes(self.iteration);
                // The caller's own buffer is used again when it has the right type.
                if let Some(Value::Tensor(tensor)) = slot.as_mut()
                    && tensor.dtype() == *dtype
                    && tensor.dims() == dims
                    && let Some(target) = tensor.bytes_mut()
                {
                    target.copy_from_slice(bytes);
                } else {
                    let tensor = Tensor::from_bytes(*dtype, dims.as_slice(), bytes);
                    *slot = Some(tensor.map_err(|error| self.failed(error.into()))?.into());
                }
            }
        }
        Ok(())
    }
}
