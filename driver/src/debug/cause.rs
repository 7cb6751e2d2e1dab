//! Why a case differs: the op's definition, a pass, or code generation; and which op inside of control flow.

use std::cell::RefCell;
use std::collections::BTreeMap;

use of_diag::Diagnostics;
use of_ir::{Graph, OpId};
use of_ops::Value;
use of_ops::interpret::{run_graph, run_graph_with_hook};
use of_passes::{CPU_PIPELINE, Manager};

use super::case::{Case, Values};
use super::compare::judge;
use super::native::{Native, Ran};
use crate::prepare::module_of;

/// What makes a case differ.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cause {
    /// The interpreter computes something else than the other runtime: that rounds more coarsely, or the import or the op's
    /// definition is wrong.
    Definition,
    /// The interpreter computes something else after this pass.
    Pass(String),
    /// The interpreter computes the right values from what the passes made: code generation, a backend or the runtime.
    Code,
    /// The interpreter fails on the case, so it cannot tell.
    Unknown,
}

/// Which part of the compiler makes a case differ.
pub(super) fn cause(case: &Case, native: &Native<'_>, tolerance: Option<f64>) -> Cause {
    let Ok(own) = run_graph(&case.func.graph, &case.inputs) else { return Cause::Unknown };
    if differs(case, own.clone(), tolerance) {
        return Cause::Definition;
    }
    let case = Case { expected: own, ..case.clone() };
    match guilty_pass(&case, native, tolerance) {
        Ok(Some(pass)) => Cause::Pass(pass),
        Ok(None) => Cause::Code,
        Err(_) => Cause::Unknown,
    }
}

/// The first pass after which the interpreter computes something else.
pub(super) fn guilty_pass(
    case: &Case,
    native: &Native<'_>,
    tolerance: Option<f64>,
) -> Result<Option<String>, Diagnostics> {
    let pipeline = native.options.pipeline.as_deref().unwrap_or(CPU_PIPELINE);
    let mut module = module_of(case.func.clone(), native.module);
    for pass in split(&Manager::parse(pipeline)?.text()) {
        Manager::parse(pass)?.run(&mut module, &mut |_| ())?;
        let Some(func) = module.main() else { return Ok(None) };
        let outputs = run_graph(&func.graph, &case.inputs)?;
        if differs(case, outputs, tolerance) {
            return Ok(Some(pass.to_string()));
        }
    }
    Ok(None)
}

/// Whether outputs of the interpreter differ from those that are expected.
fn differs(case: &Case, outputs: Vec<Value>, tolerance: Option<f64>) -> bool {
    judge(case, &Ran::interpreted(), &outputs, tolerance).iter().any(|c| c.difference.is_some())
}

/// The passes of a pipeline: commas inside of options do not divide.
fn split(pipeline: &str) -> Vec<&str> {
    let (mut depth, mut start, mut out) = (0, 0, Vec::new());
    for (i, c) in pipeline.char_indices() {
        match c {
            '{' | '[' => depth += 1,
            '}' | ']' => depth -= 1,
            ',' if depth == 0 => {
                out.push(&pipeline[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    out.push(&pipeline[start..]);
    out
}

/// An op inside of a region, as a case.
pub(super) struct Inner {
    pub case: Case,
    /// The op with regions, which of its regions, and how often the region had run before.
    pub place: String,
}

/// How often an op of a region is observed: a loop may run many times.
const MAX_OBSERVED: usize = 4;

/// The ops in the regions of a case, each with the operands of its first evaluations. Control flow inside of control flow is
/// looked into, too; it is no case itself, because its captured values may be unknown.
pub(super) fn inside(case: &Case) -> Vec<Inner> {
    let graph = &case.func.graph;
    if graph.walk().iter().all(|op| graph.op(*op).regions.is_empty()) {
        return Vec::new();
    }
    let observed: RefCell<BTreeMap<OpId, Vec<Values>>> = RefCell::default();
    let run = run_graph_with_hook(graph, &case.inputs, &|op, operands, evaluate| {
        let results = evaluate(operands)?;
        let data = graph.op(op);
        if data.def.traits().terminator {
            return Ok(results);
        }
        let mut all = observed.borrow_mut();
        let list = all.entry(op).or_default();
        if data.parent != graph.entry() && data.regions.is_empty() && list.len() < MAX_OBSERVED {
            let operands = data.operands.iter().copied().zip(operands.iter().cloned());
            list.push(operands.chain(data.results.iter().copied().zip(results.iter().cloned())).collect());
        }
        Ok(results)
    });
    if run.is_err() {
        return Vec::new();
    }
    let mut observed = observed.into_inner();
    let mut out = Vec::new();
    for op in graph.walk() {
        if graph.op(op).def.traits().constant {
            continue;
        }
        for (time, values) in observed.remove(&op).into_iter().flatten().enumerate() {
            let place = format!("{}, evaluation {time}", place(graph, op));
            out.extend(Case::of(graph, &[op], &values).map(|case| Inner { case, place }));
        }
    }
    out
}

/// `region 0 of of.loop`, from the innermost outwards.
fn place(graph: &Graph, op: OpId) -> String {
    let (mut at, mut out) = (op, Vec::new());
    while let Some(parent) = graph.region_parent(graph.op(at).parent) {
        let data = graph.op(parent);
        let region = data.regions.iter().position(|r| *r == graph.op(at).parent).unwrap_or(0);
        out.push(format!("region {region} of '{}' at {}", data.name(), data.loc));
        at = parent;
    }
    out.join(" in ")
}

#[cfg(test)]
mod tests {
    use of_ir::Module;
    use of_ops::elementwise::Abs;
    use of_passes::{Pass, PassContext, each_func, register_pass};

    use super::*;
    use crate::backends::Backends;
    use crate::options::CompileOptions;

    #[test]
    fn commas_in_options_do_not_divide() {
        assert_eq!(split("a,b{x=[1, 2],y=3},c"), ["a", "b{x=[1, 2],y=3}", "c"]);
    }

    /// A pass that takes `of.abs` for the identity.
    struct DropAbs;

    impl Pass for DropAbs {
        const NAME: &'static str = "drop-abs";
        const SUMMARY: &'static str = "a wrong pass, for tests";
        type Options = of_passes::NoOptions;
        fn run(_: &Self::Options, module: &mut Module, _: &mut PassContext<'_>) -> Result<(), Diagnostics> {
            each_func(module, |f| {
                let mut rw = of_ir::Rewriter::new(&mut f.graph, Self::NAME);
                for op in rw.graph().walk() {
                    if rw.graph().op(op).name() == <Abs as of_ops::OpSpec>::NAME {
                        let x = rw.graph().op(op).operands[0];
                        rw.replace(op, &[x]);
                    }
                }
                Ok(())
            })
        }
    }

    #[test]
    fn a_wrong_pass_is_named() {
        register_pass(DropAbs::ENTRY);
        let text = "func @main(%x: tensor<2xf32>) -> (tensor<2xf32>) {\n  %y = of.abs %x : (tensor<2xf32>) -> \
                    tensor<2xf32>\n  of.return %y : (tensor<2xf32>) -> ()\n}\n";
        let module = of_ir::text::parse_module(text, "t", &of_ops::registry(), None).unwrap();
        let floats = |v: &[f32]| Value::from(of_ir::Tensor::from_slice(&[2], v).unwrap());
        let (inputs, expected) = (vec![floats(&[-1.0, 2.0])], vec![floats(&[1.0, 2.0])]);
        let case = Case { func: module.main().unwrap().clone(), inputs, expected };
        let cause_for = |pipeline: &str, case: &Case| {
            let options = CompileOptions { pipeline: Some(pipeline.into()), ..CompileOptions::default() };
            let backends = Backends::new(&options).unwrap();
            cause(case, &Native { module: &module, options: &options, backends: &backends, parts: true }, None)
        };
        assert_eq!(cause_for("cse,drop-abs,cpu", &case), Cause::Pass("drop-abs".into()));
        assert_eq!(cause_for("cpu", &case), Cause::Code);
        let other = Case { expected: vec![floats(&[0.0, 2.0])], ..case };
        assert_eq!(cause_for("cpu", &other), Cause::Definition);
    }
}
