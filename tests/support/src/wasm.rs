//! Plans for WebAssembly, run by the runtime's module in Node.js.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use of_codegen::physical::{dtype_of, element_type};
use of_ir::{Blob, Tensor};
use of_ops::Value;
use of_plan::{ElementType, PlanFile};
use tempfile::TempDir;

use crate::cargo::cargo;
use crate::component::{WASM, require};

const HARNESS: &str = include_str!("wasm/harness.mjs");

/// The runtime's module, and what runs it.
pub struct Machine {
    folder: TempDir,
    module: PathBuf,
}

/// The machine, if its programs are there.
#[track_caller]
pub fn machine() -> Option<Machine> {
    require(&WASM, Machine::new())
}

/// Plans with inputs, to run one after the other.
#[derive(Default)]
pub struct Programs {
    plans: Vec<Vec<u8>>,
    inputs: Vec<Vec<u8>>,
    outputs: Vec<Vec<ElementType>>,
}

impl Machine {
    fn new() -> Result<Self, String> {
        for program in ["clang", "wasm-ld", "node"] {
            succeeds(Command::new(program).arg("--version"))?;
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
        let build = target.join("run-only/build");
        let mut cargo = cargo();
        cargo.current_dir(&root).env_remove("CARGO_TARGET_DIR").args(["build", "--release", "--locked", "--quiet"]);
        cargo.args(["-p", "of-runtime-c", "--no-default-features", "--target", "wasm32-unknown-unknown"]);
        succeeds(cargo.arg("--target-dir").arg(&build))?;
        let module = build.join("wasm32-unknown-unknown/release/of_runtime.wasm");
        Ok(Self { folder: tempfile::tempdir().map_err(|e| e.to_string())?, module })
    }

    /// The outputs of each program, or what went wrong.
    ///
    /// # Errors
    /// When Node.js fails.
    pub fn run(&self, programs: &Programs) -> Result<Vec<Result<Vec<Value>, String>>, String> {
        let file = |number: usize, kind: &str| self.folder.path().join(format!("{number}.{kind}"));
        let write =
            |path: PathBuf, bytes: &[u8]| fs::write(&path, bytes).map_err(|e| format!("{}: {e}", path.display()));
        for (number, (plan, inputs)) in programs.plans.iter().zip(&programs.inputs).enumerate() {
            write(file(number, "plan"), plan)?;
            write(file(number, "inputs"), inputs)?;
        }
        let harness = self.folder.path().join("harness.mjs");
        write(harness.clone(), HARNESS.as_bytes())?;
        let library = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bindings/js/of_runtime.js");
        let library = library.canonicalize().map_err(|e| format!("{}: {e}", library.display()))?;
        let mut node = Command::new("node");
        node.arg(harness).arg(library).arg(&self.module).arg(self.folder.path()).arg(programs.len().to_string());
        succeeds(&mut node)?;
        let result = |(number, types): (usize, &Vec<ElementType>)| match fs::read_to_string(file(number, "error")) {
            Ok(error) => Err(error),
            Err(_) => {
                let path = file(number, "outputs");
                let bytes = fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
                let mut rest = &bytes[..];
                types.iter().map(|dtype| tensor(*dtype, &mut rest)).collect()
            }
        };
        Ok(programs.outputs.iter().enumerate().map(result).collect())
    }
}

impl Programs {
    /// Adds the plan of one program.
    ///
    /// # Errors
    /// Why it cannot be run here: a value that is no tensor of whole bytes.
    pub fn add(&mut self, plan: &PlanFile, inputs: &[Value]) -> Result<(), String> {
        let program = plan.plan().programs.first().ok_or("no program")?;
        let types: Vec<ElementType> = program.outputs.iter().map(|port| port.dtype()).collect();
        let whole =
            |dtype: &ElementType| dtype_of(*dtype).is_some_and(|d| element_type(d) == *dtype && has_array(*dtype));
        let ports = program.inputs.iter().map(|port| port.dtype());
        if !types.iter().copied().chain(ports).all(|dtype| whole(&dtype)) {
            return Err("an element type without an array".into());
        }
        let mut words = Vec::new();
        for value in inputs {
            let Value::Tensor(t) = value else { return Err("an input that is no tensor".into()) };
            let bytes = t.bytes().ok_or("an input without bytes")?;
            words.extend((t.dims().len() as u64).to_le_bytes());
            t.dims().iter().for_each(|extent| words.extend((*extent as u64).to_le_bytes()));
            words.extend((bytes.len() as u64).to_le_bytes());
            words.extend_from_slice(bytes);
        }
        self.plans.push(plan.bytes().to_vec());
        self.inputs.push(words);
        self.outputs.push(types);
        Ok(())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.plans.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.plans.is_empty()
    }
}

/// Whether the library in JavaScript has an array for elements of this type.
fn has_array(dtype: ElementType) -> bool {
    use ElementType::{Bf16, F16, F32, F64, I1, I8, I16, I32, I64, Ui8, Ui16, Ui32, Ui64};
    matches!(dtype, F64 | F32 | F16 | Bf16 | I8 | I16 | I32 | I64 | Ui8 | Ui16 | Ui32 | Ui64 | I1)
}

/// The tensor that comes next.
fn tensor(dtype: ElementType, rest: &mut &[u8]) -> Result<Value, String> {
    let word = |rest: &mut &[u8]| -> Result<usize, String> {
        let (first, more) = rest.split_first_chunk::<8>().ok_or("the results end early")?;
        *rest = more;
        usize::try_from(u64::from_le_bytes(*first)).map_err(|e| e.to_string())
    };
    let rank = word(rest)?;
    let dims = (0..rank).map(|_| word(rest)).collect::<Result<Vec<_>, _>>()?;
    let len = word(rest)?;
    let (bytes, more) = rest.split_at_checked(len).ok_or("the results end early")?;
    *rest = more;
    let dtype = dtype_of(dtype).ok_or("an unknown element type")?;
    Tensor::from_bytes(dtype, dims, Blob::new(bytes.to_vec())).map(Value::Tensor).map_err(|d| d.to_string())
}

/// Runs a program; its error output where it fails.
fn succeeds(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let out = command.output().map_err(|e| format!("{name}: {e}"))?;
    let text = String::from_utf8_lossy(&out.stderr);
    let last: Vec<&str> = text.lines().rev().take(5).collect();
    if out.status.success() { Ok(()) } else { Err(format!("{name}: {}: {}", out.status, last.join("; "))) }
}
