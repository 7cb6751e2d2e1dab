//! The calls of kernels, compared with those that the kernels declare.

use prost::Message;

use crate::{Arg, ArgSource, DeclaredArg, DeclaredCall, KernelCode, KernelExec, Plan, Program, Task, VALUE_ALIGN};

impl DeclaredCall {
    /// The call that a task of a program makes; `None` when an argument names no buffer or object.
    pub(crate) fn of(plan: &Plan, program: &Program, task: &Task, exec: &KernelExec) -> Option<Self> {
        let args = exec.args.iter().map(|arg| DeclaredArg::of(plan, program, task, arg)).collect::<Option<_>>()?;
        let dynamic = exec.dynamic.clone();
        let symbols = if dynamic.is_some() { program.symbols.len() as u32 } else { 0 };
        let iterations = if dynamic.is_some() { 0 } else { exec.iterations };
        Some(Self { args, iterations, grain: exec.grain, scratch_bytes: exec.scratch_bytes, dynamic, symbols })
    }

    /// Whether a kernel that was compiled for this call can run as `call`; otherwise why not.
    pub(crate) fn admits(&self, call: &Self) -> Result<(), String> {
        if self.args.len() != call.args.len() {
            return Err(format!("it has {} arguments and its kernel takes {}", call.args.len(), self.args.len()));
        }
        let mut args = self.args.iter().zip(&call.args).enumerate();
        args.try_for_each(|(at, (own, given))| own.admits(at, given))?;
        if self.dynamic != call.dynamic {
            return Err("its iterations depend on symbols in another way than its kernel was compiled for".into());
        }
        if self.iterations != call.iterations {
            let own = self.iterations;
            return Err(format!("it runs {} iterations and its kernel was compiled for {own}", call.iterations));
        }
        if self.grain != call.grain {
            let what = format!("its loop is shared in parts of {} iterations", call.grain);
            return Err(format!("{what} and its kernel was compiled for parts of {}", self.grain));
        }
        if call.scratch_bytes < self.scratch_bytes {
            let own = self.scratch_bytes;
            return Err(format!("it has {} bytes of scratch memory and its kernel needs {own}", call.scratch_bytes));
        }
        if call.symbols < self.symbols {
            return Err(format!("it has {} symbols and its kernel reads {}", call.symbols, self.symbols));
        }
        Ok(())
    }
}

impl DeclaredArg {
    fn of(plan: &Plan, program: &Program, task: &Task, arg: &Arg) -> Option<Self> {
        let buffer = |start: u64, bytes: u64, writes| {
            let at = start.checked_add(arg.byte_offset)?;
            let align = if at == 0 { VALUE_ALIGN } else { VALUE_ALIGN.min(1 << at.trailing_zeros()) };
            let bytes = bytes.checked_sub(arg.byte_offset)?;
            Some(DeclaredArg { bytes, align, writes, ..DeclaredArg::default() })
        };
        match arg.source? {
            ArgSource::Weight(index) => {
                let weight = plan.weights.get(index as usize)?;
                buffer(weight.offset, weight.len, false)
            }
            ArgSource::Register(id) => {
                let register = program.registers.get(id as usize)?;
                let writes = task.produces.contains(&id);
                match register.block() {
                    Some(block) => buffer(block.offset, block.bytes, writes),
                    None => Some(DeclaredArg {
                        writes,
                        dtype: register.dtype,
                        extents: register.extents.clone(),
                        ..DeclaredArg::default()
                    }),
                }
            }
        }
    }

    /// Whether a kernel that accesses this much of its argument `at` may be given `other`.
    fn admits(&self, at: usize, other: &Self) -> Result<(), String> {
        if (self.align == 0) != (other.align == 0) {
            let kind = |arg: &Self| if arg.align == 0 { "an object" } else { "a buffer" };
            return Err(format!("argument {at} is {} and its kernel takes {}", kind(other), kind(self)));
        }
        if self.writes && !other.writes {
            return Err(format!("its kernel writes to argument {at}, which the task does not produce"));
        }
        if self.writes != other.writes {
            return Err(format!("the task produces argument {at}, which its kernel only reads"));
        }
        if (self.dtype, &self.extents) != (other.dtype, &other.extents) {
            return Err(format!(
                "argument {at} is an object of another type or extents than its kernel was compiled for"
            ));
        }
        if other.bytes < self.bytes {
            return Err(format!("argument {at} has {} bytes and its kernel accesses {}", other.bytes, self.bytes));
        }
        if self.align > 0 && !other.align.is_multiple_of(self.align) {
            return Err(format!(
                "argument {at} is aligned to {} bytes and its kernel needs {}",
                other.align, self.align
            ));
        }
        Ok(())
    }
}

impl KernelCode {
    /// Whether these bytes are the kernel's, by their hash.
    pub fn is_hash_of(&self, blob: &[u8]) -> bool {
        self.blake3 == blake3::hash(blob).as_bytes()
    }

    /// The hash of everything that is declared of the code: its entry, instruction set and calls.
    pub(crate) fn declaration_hash(&self) -> Vec<u8> {
        let mut hasher = blake3::Hasher::new();
        hasher
            .update(&self.entry.to_le_bytes())
            .update(&(self.isa.len() as u64).to_le_bytes())
            .update(self.isa.as_bytes());
        for call in &self.calls {
            hasher.update(&call.encode_length_delimited_to_vec());
        }
        hasher.finalize().as_bytes().to_vec()
    }

    /// Why a call does not fit any that the kernel was compiled for.
    pub(crate) fn check_call(&self, call: &DeclaredCall) -> Result<(), String> {
        let mut first = None;
        for own in &self.calls {
            match own.admits(call) {
                Ok(()) => return Ok(()),
                Err(why) => first = first.or(Some(why)),
            }
        }
        let why = first.unwrap_or_else(|| "its kernel declares no call".into());
        Err(match self.calls.len() {
            0 | 1 => why,
            more => format!("{why}; nor does it fit the other {} calls that the kernel was compiled for", more - 1),
        })
    }
}
