//! A backend in a shared library: sums, products and negations of f32, as a list of instructions that is interpreted.
//!
//! It shows what a backend must say and what it can see: shapes, placements (SBP) and constants of the functions that it
//! compiles, an artifact that the plan keeps, and an executable that is made of it when the plan is loaded.

use of_codegen::Backend;
use of_diag::{Code, Diagnostic};
use of_ir::{DType, Func, Graph, OpId, TensorType, ValueId};
use of_runtime::{ExecError, Executable, LoadContext, LoadError, Loader, Tensor, Value, ValueMut, ValueRef};

/// The backend.
#[derive(Clone, Copy, Default)]
pub struct Toy;

of_library::export!(Toy);

/// Name on the command line and in plans.
const NAME: &str = "toy";

/// The instruction of an op.
fn instruction(op: &str) -> Option<&'static str> {
    match op {
        "of.add" => Some("add"),
        "of.mul" => Some("mul"),
        "of.neg" => Some("neg"),
        _ => None,
    }
}

/// Element type and extents, if it can hold the value.
fn extents(g: &Graph, v: ValueId) -> Result<Vec<usize>, String> {
    let ty: &TensorType = g.ty(v).as_tensor().ok_or("only tensors are supported")?;
    if ty.dtype != DType::F32 {
        return Err(format!("only f32 is supported, this is {}", ty.dtype));
    }
    if let Some(sbp) = &ty.sbp {
        return Err(format!("only one device is supported, this has the layout {sbp}"));
    }
    ty.fixed_dims().ok_or_else(|| "its extents are not all fixed".to_string())
}

impl Backend for Toy {
    fn name(&self) -> &'static str {
        NAME
    }

    fn claims(&self, g: &Graph, op: OpId) -> Result<(), String> {
        let data = g.op(op);
        if instruction(data.name()).is_none() {
            return Err("only add, mul and neg are supported".into());
        }
        let result = extents(g, data.results[0])?;
        for v in &data.operands {
            let own = extents(g, *v)?;
            // A constant of one element becomes part of the instruction.
            let number = g.constant(*v).is_some_and(|c| c.len() == 1);
            if own != result && !number {
                return Err(format!("broadcasting is not supported: {own:?} is not {result:?}"));
            }
        }
        Ok(())
    }

    /// One line a value: `input`, `number X`, `add I J`, … with numbers of lines, then `give I` with the extents.
    fn compile(&self, func: &Func) -> Result<Vec<u8>, Diagnostic> {
        let g = &func.graph;
        let mut lines: Vec<String> = g.args().iter().map(|_| "input".to_string()).collect();
        let mut values: Vec<ValueId> = g.args().to_vec();
        let failed = |why: String| Diagnostic::error(Code::CODEGEN, func.loc.clone(), why);
        let place = |values: &[ValueId], v: &ValueId| values.iter().position(|o| o == v);
        for op in g.region_ops(g.entry()) {
            let data = g.op(op);
            if data.def.traits().terminator {
                break;
            }
            let line = if let Some(t) = data.results.first().and_then(|v| g.constant(*v)) {
                match t.to_f64s().as_deref() {
                    Some([x]) => format!("number {x}"),
                    // A larger one can only be an operand, which is an input then.
                    _ => return Err(failed("a constant of several elements".into())),
                }
            } else {
                let name = instruction(data.name()).ok_or_else(|| failed(format!("'{}' was not claimed", data.name())))?;
                let operands = data.operands.iter().map(|v| place(&values, v));
                let operands = operands.collect::<Option<Vec<_>>>().ok_or_else(|| failed("a value is missing".into()))?;
                operands.iter().fold(name.to_string(), |line, o| format!("{line} {o}"))
            };
            lines.push(line);
            values.push(data.results[0]);
        }
        for v in g.outputs() {
            let at = place(&values, v).ok_or_else(|| failed("a result is missing".into()))?;
            let dims = extents(g, *v).map_err(failed)?;
            lines.push(dims.iter().fold(format!("give {at}"), |line, d| format!("{line} {d}")));
        }
        Ok(lines.join("\n").into_bytes())
    }
}

impl Loader for Toy {
    fn backend(&self) -> &str {
        NAME
    }

    fn load(&self, payload: &[u8], _context: LoadContext<'_>) -> Result<Box<dyn Executable>, LoadError> {
        let text = std::str::from_utf8(payload).map_err(|e| LoadError::Payload(e.to_string()))?;
        Ok(Box::new(Program { lines: text.lines().map(str::to_string).collect() }))
    }
}

/// The artifact, ready to run.
struct Program {
    lines: Vec<String>,
}

impl Executable for Program {
    fn run(&mut self, inputs: &[ValueRef<'_>], outputs: &mut [ValueMut<'_>]) -> Result<(), ExecError> {
        let bad = || ExecError::Failed("the artifact is none of this backend".into());
        let mut inputs = inputs.iter().map(|v| match v {
            ValueRef::Dense(t) => Tensor::from_bytes(t.dtype, t.dims, t.bytes).ok()?.to_elements::<f32>(),
            ValueRef::Object(v) => v.as_tensor()?.to_elements::<f32>(),
        });
        let mut values: Vec<Vec<f32>> = Vec::new();
        let mut outputs = outputs.iter_mut();
        for line in &self.lines {
            let mut words = line.split(' ');
            let name = words.next().ok_or_else(bad)?;
            if name == "number" {
                values.push(vec![words.next().and_then(|x| x.parse().ok()).ok_or_else(bad)?]);
                continue;
            }
            let numbers: Vec<usize> = words.map(|w| w.parse().map_err(|_| bad())).collect::<Result<_, _>>()?;
            let value = |i: usize| numbers.get(i).and_then(|n| values.get(*n)).ok_or_else(bad);
            let both = |f: fn(f32, f32) -> f32| -> Result<Vec<f32>, ExecError> {
                let (a, b) = (value(0)?, value(1)?);
                let at = |v: &[f32], i: usize| v[i % v.len().max(1)];
                Ok((0..a.len().max(b.len())).map(|i| f(at(a, i), at(b, i))).collect())
            };
            let result = match name {
                "input" => inputs.next().flatten().ok_or_else(bad)?,
                "add" => both(|a, b| a + b)?,
                "mul" => both(|a, b| a * b)?,
                "neg" => value(0)?.iter().map(|x| -x).collect(),
                "give" => {
                    let dims: Vec<i64> = numbers[1..].iter().map(|d| *d as i64).collect();
                    let tensor = Tensor::from_elements(dims, value(0)?).map_err(|e| ExecError::Failed(e.to_string()))?;
                    match outputs.next().ok_or_else(bad)? {
                        ValueMut::Object(slot) => **slot = Some(Value::Tensor(tensor)),
                        ValueMut::Dense(t) => t.bytes.copy_from_slice(tensor.bytes().ok_or_else(bad)?),
                    }
                    continue;
                }
                _ => return Err(bad()),
            };
            values.push(result);
        }
        Ok(())
    }
}
