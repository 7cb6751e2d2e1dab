//! Plans for AArch64, run by an emulator of that processor.

use std::path::PathBuf;
use std::process::Command;

use of_codegen::physical::{dtype_of, element_type};
use of_ir::{Blob, DType, Tensor};
use of_ops::Value;
use of_plan::{Arg, ArgSource, Exec, KernelExec, PlanFile, Program};
use tempfile::TempDir;

use crate::component::{AARCH64, require};

/// The program that runs plans there.
const HARNESS: &str = include_str!("aarch64/harness.c");

/// The compiler of programs for AArch64.
pub const COMPILER: &str = "aarch64-linux-gnu-gcc";

/// An emulated machine.
pub struct Machine {
    folder: TempDir,
}

/// Plans with inputs, to run one after the other.
#[derive(Default)]
pub struct Programs {
    words: Vec<u8>,
    /// The element types and extents of the outputs of each.
    outputs: Vec<Vec<(DType, Vec<usize>)>>,
}

/// The emulated machine, if there are its emulator and a compiler for it.
#[track_caller]
pub fn machine() -> Option<Machine> {
    require(&AARCH64, Machine::new())
}

impl Machine {
    fn new() -> Result<Machine, String> {
        let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
        let source = folder.path().join("harness.c");
        std::fs::write(&source, HARNESS).map_err(|e| e.to_string())?;
        let mut compiler = Command::new(COMPILER);
        run(compiler.args(["-O1", "-static", "-o"]).arg(folder.path().join("harness")).arg(source))?;
        run(Command::new("qemu-aarch64").arg("--version"))?;
        Ok(Machine { folder })
    }

    /// The outputs of each program, or what it did wrong.
    ///
    /// # Errors
    /// When the emulator fails, as at an invalid instruction or access.
    pub fn run(&self, programs: &Programs) -> Result<Vec<Result<Vec<Value>, String>>, String> {
        let [input, results] = ["programs", "results"].map(|name| self.folder.path().join(name));
        let count = (programs.outputs.len() as u64).to_le_bytes();
        std::fs::write(&input, [&count, &programs.words[..]].concat()).map_err(|e| e.to_string())?;
        run(Command::new("qemu-aarch64").arg(self.harness()).arg(input).arg(&results))?;
        let bytes = std::fs::read(results).map_err(|e| e.to_string())?;
        let mut rest = &bytes[..];
        programs.outputs.iter().map(|outputs| outputs_of(outputs, &mut rest)).collect()
    }

    fn harness(&self) -> PathBuf {
        self.folder.path().join("harness")
    }
}

/// Runs a program; its error output where it fails.
fn run(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let out = command.output().map_err(|e| format!("{name}: {e}"))?;
    let text = String::from_utf8_lossy(&out.stderr);
    let last: Vec<&str> = text.lines().rev().take(3).collect();
    if out.status.success() { Ok(()) } else { Err(format!("{name}: {}: {}", out.status, last.join("; "))) }
}

/// Takes so many bytes from the start.
fn take<'a>(rest: &mut &'a [u8], n: usize) -> Result<&'a [u8], String> {
    let (first, more) = rest.split_at_checked(n).ok_or("the results end early")?;
    *rest = more;
    Ok(first)
}

/// The outputs of the program whose results come next.
fn outputs_of(outputs: &[(DType, Vec<usize>)], rest: &mut &[u8]) -> Result<Result<Vec<Value>, String>, String> {
    let mut values = Vec::new();
    for (dtype, dims) in outputs {
        let bytes = take(rest, dims.iter().product::<usize>() * bytes_of(*dtype))?;
        let tensor = Tensor::from_bytes(*dtype, dims.clone(), Blob::new(bytes.to_vec())).map_err(|d| d.to_string())?;
        values.push(Value::Tensor(tensor));
    }
    let mut status = [0; 8];
    status.copy_from_slice(take(rest, 8)?);
    Ok(match u64::from_le_bytes(status) {
        0 => Ok(values),
        n if n < 256 => Err(format!("the status {n}")),
        n => Err(format!("registers changed that are to be kept: {}, memory outside: {}", n >> 8 & 1, n >> 9 & 1)),
    })
}

fn bytes_of(dtype: DType) -> usize {
    dtype.bits().map_or(0, |bits| bits.div_ceil(8))
}

impl Programs {
    /// Adds the plan of one program whose extents all are known.
    ///
    /// # Errors
    /// Why it cannot be run here: what it needs besides kernels.
    pub fn add(&mut self, plan: &PlanFile, inputs: &[Value]) -> Result<(), String> {
        let [program] = &plan.plan().programs[..] else { return Err("several programs".into()) };
        if program.registers.iter().any(|r| r.is_object()) {
            return Err("values of extents that are known in the run".into());
        }
        let mut words = Words::default();
        let weights = plan.plan().weights.len();
        words.word((program.chunks.len() + weights) as u64);
        for chunk in &program.chunks {
            words.word(chunk.bytes);
            words.word(0);
        }
        for weight in 0..weights as u32 {
            words.sized(plan.weight(weight).ok_or("a weight is missing")?, true);
        }
        words.sized(plan.code(), false);
        let mut all = Words::default();
        let mut outputs = Vec::new();
        for task in &program.tasks {
            match &task.exec {
                None => {}
                Some(Exec::Feed(exec)) => {
                    let (at, Some(Value::Tensor(t))) = (
                        register(program, program.inputs[exec.port as usize].register)?,
                        inputs.get(exec.port as usize),
                    ) else {
                        return Err("an input that is no tensor".into());
                    };
                    let bytes = t.bytes().ok_or("an input without bytes")?;
                    all.words([1, at.0, at.1]);
                    all.sized(bytes, false);
                }
                Some(Exec::Fetch(exec)) => {
                    let port = &program.outputs[exec.port as usize];
                    let at = register(program, port.register)?;
                    let (dtype, dims) = shape(port.dtype(), &port.dims)?;
                    all.words([4, at.0, at.1, (dims.iter().product::<usize>() * bytes_of(dtype)) as u64]);
                    if exec.port as usize != outputs.len() {
                        return Err("outputs in another order".into());
                    }
                    outputs.push((dtype, dims));
                }
                Some(Exec::Copy(exec)) => {
                    let (from, to) = (place(program, &exec.src)?, place(program, &exec.dst)?);
                    all.words([3, from.0, from.1, to.0, to.1, exec.bytes]);
                }
                Some(Exec::Kernel(exec)) => kernel(plan, program, exec, &mut all)?,
                Some(_) => return Err("other programs or backends".into()),
            }
        }
        words.word(program.tasks.iter().filter(|t| t.exec.is_some()).count() as u64);
        self.words.extend(words.0);
        self.words.extend(all.0);
        self.outputs.push(outputs);
        Ok(())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.outputs.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.outputs.is_empty()
    }
}

/// A kernel's call.
fn kernel(plan: &PlanFile, program: &Program, exec: &KernelExec, all: &mut Words) -> Result<(), String> {
    if exec.dynamic.is_some() {
        return Err("a kernel whose iterations are known in the run".into());
    }
    let code = plan.plan().code.get(exec.code as usize).ok_or("a kernel is missing")?;
    all.words([2, code.offset + code.entry, exec.args.len() as u64]);
    for arg in &exec.args {
        let at = place(program, arg)?;
        all.words([at.0, at.1]);
    }
    all.words([exec.iterations as u64, exec.grain.max(1) as u64, exec.scratch_bytes]);
    Ok(())
}

/// The element type and extents of a port.
fn shape(dtype: of_plan::ElementType, dims: &[i64]) -> Result<(DType, Vec<usize>), String> {
    let dtype = dtype_of(dtype).filter(|d| element_type(*d) == dtype).ok_or("an element type without bytes")?;
    Ok((dtype, dims.iter().map(|d| *d as usize).collect()))
}

/// The buffer of a register, and the offset in it.
fn register(program: &Program, id: u32) -> Result<(u64, u64), String> {
    let block = program.registers.get(id as usize).and_then(|r| r.block()).ok_or("a register without memory")?;
    Ok((block.chunk.into(), block.offset))
}

/// The buffer of an argument, and the offset in it.
fn place(program: &Program, arg: &Arg) -> Result<(u64, u64), String> {
    match arg.source.ok_or("an argument of nothing")? {
        ArgSource::Register(id) => register(program, id).map(|(buffer, at)| (buffer, at + arg.byte_offset)),
        ArgSource::Weight(w) => Ok((program.chunks.len() as u64 + u64::from(w), arg.byte_offset)),
    }
}

/// A file of words.
#[derive(Default)]
struct Words(Vec<u8>);

impl Words {
    fn word(&mut self, n: u64) {
        self.0.extend(n.to_le_bytes());
    }

    fn words(&mut self, all: impl IntoIterator<Item = u64>) {
        all.into_iter().for_each(|n| self.word(n));
    }

    /// The number of bytes, whether they follow if that is not clear, and the bytes.
    fn sized(&mut self, bytes: &[u8], says: bool) {
        self.word(bytes.len() as u64);
        if says {
            self.word(1);
        }
        self.0.extend(bytes);
        self.0.resize(self.0.len().next_multiple_of(8), 0);
    }
}
