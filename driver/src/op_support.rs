//! What is supported, found out by trying: the element types that an op takes, and whether it becomes native code.

use std::collections::BTreeSet;

use of_codegen::Isa;
use of_codegen::Target;
use of_codegen::lower::{NotNative, lower};
use of_diag::{Diagnostics, Location};
use of_ir::{Attrs, DType, Func, Graph, Module, Rewriter, Type, ValueId};
use of_ops::structural::{Constant, NoneValue, Return};
use of_ops::{Op, OpDecl, Value, interpret};
use of_passes::{CPU_PIPELINE, Manager};
use of_plan::{Environment, PlanBuilder, PlanInfo};

use crate::backends::Backends;
use crate::prepare::main_func;

/// How many samples of an op are tried.
const SAMPLES: u64 = 12;

/// What was found out about an op.
pub struct Support {
    /// Element types of its first floating-point operand, or of its first operand.
    pub types: Vec<DType>,
    /// How it runs.
    pub runs: Runs,
}

/// How an op runs on the CPU.
pub enum Runs {
    /// There is nothing to run, or nothing to try.
    Untried,
    /// As native code.
    Native,
    /// On another backend, for these reasons; `always` or only in some forms.
    Elsewhere {
        /// Whether it was so for all samples.
        always: bool,
        /// Why it is not native code.
        reasons: Vec<String>,
    },
}

/// Tries an op on its samples.
pub fn probe(decl: &dyn OpDecl) -> Support {
    let mut types = BTreeSet::new();
    let (mut native, mut reasons) = (0, BTreeSet::new());
    let mut elsewhere = 0;
    for seed in 0..SAMPLES {
        let Some(sample) = decl.sample(seed) else { continue };
        let (op, operands) = (&*sample.op, &sample.operands);
        types.extend(DType::ALL.into_iter().filter(|d| one_op(op, operands, Some(*d), false).is_some()));
        for weights in [false, true] {
            match one_op(op, operands, None, weights).and_then(|f| not_native(f).ok()?) {
                Some(list) if list.is_empty() => native += 1,
                Some(list) => {
                    elsewhere += 1;
                    reasons.extend(list.into_iter().map(|l| l.reason));
                }
                None => {}
            }
        }
    }
    let runs = match (native, elsewhere) {
        (0, 0) => Runs::Untried,
        (_, 0) => Runs::Native,
        _ => Runs::Elsewhere { always: native == 0, reasons: reasons.into_iter().collect() },
    };
    Support { types: types.into_iter().collect(), runs }
}

/// A function of one op. Integers after the first operand are constants, as most models have them, and with `weights`
/// all of them are. With `dtype`, the first operand that is real, or else the first, is of that type, and all that were
/// of its type with it.
fn one_op(op: &dyn Op, operands: &[Value], dtype: Option<DType>, weights: bool) -> Option<Func> {
    let tensors = || operands.iter().filter_map(|v| if let Value::Tensor(t) = v { Some(t.dtype()) } else { None });
    let replaced = tensors().find(|d| d.is_float()).or_else(|| tensors().next());
    let mut graph = Graph::new();
    let entry = graph.entry();
    let mut rw = Rewriter::new(&mut graph, "probe");
    let mut ids: Vec<ValueId> = Vec::new();
    for (i, v) in operands.iter().enumerate() {
        ids.push(match v {
            Value::None => rw.create_one(NoneValue {}, &[]).ok()?,
            Value::Tensor(t) if dtype.is_some() && Some(t.dtype()) == replaced => match interpret::type_of(v) {
                Type::Tensor(t) => rw.add_arg(entry, Type::Tensor(t.with_dtype(dtype?)), None),
                other => rw.add_arg(entry, other, None),
            },
            Value::Tensor(t) if i > 0 && (weights || !t.dtype().is_float()) => {
                rw.create_one(Constant { value: t.clone() }, &[]).ok()?
            }
            other => rw.add_arg(entry, interpret::type_of(other), None),
        });
    }
    let id = rw.create((op.decl().as_def(), op.attrs()), &ids).ok()?;
    let results = rw.graph().op(id).results.to_vec();
    rw.create(Return {}, &results).ok()?;
    let (inputs, outputs) = (graph.args().len(), graph.outputs().len());
    Some(Func {
        inputs: (0..inputs).map(|i| format!("x{i}")).collect(),
        outputs: (0..outputs).map(|i| format!("y{i}")).collect(),
        attrs: Attrs::new(),
        loc: Location::Unknown,
        graph,
    })
}

/// The ops of a function that are no native code, with the reasons; `None` where a pass refuses the function.
///
/// # Errors
/// When the function cannot be lowered.
pub fn not_native(func: Func) -> Result<Option<Vec<NotNative>>, Diagnostics> {
    let mut module = Module::default();
    module.funcs.insert("main".into(), func);
    let mut manager = Manager::default();
    manager.append(CPU_PIPELINE)?;
    if manager.run(&mut module, &mut |_| ()).is_err() {
        return Ok(None);
    }
    // The same instruction set on every machine, so that the answer is.
    let isa = Isa::by_name("x86-64").unwrap_or_else(Isa::host);
    let environment = Environment { arch: isa.arch.into(), threads: 1, ranks: 1, ..Environment::default() };
    let info = PlanInfo::default();
    let mut builder = PlanBuilder::new(info, environment);
    let backends = Backends::builtin();
    let compilers = backends.compilers();
    let target = Target::new(isa, &compilers);
    Ok(Some(lower(main_func(&module)?, &target, None, None, &mut builder)?.not_native))
}
