//! Models that were exported in training mode get the form for evaluation, which a training starts from.

use of_diag::{Diagnostic, Location};
use of_ir::{Graph, Module, OpId, Rewriter, Type, ValueId};
use of_ops::list::as_op;
use of_ops::nn::{BatchNorm, BatchNormTraining, Dropout};
use of_ops::structural::NoneValue;

/// Makes batch normalisations use their running statistics, and dropouts pass everything on, as evaluations and trained models do. A
/// training step makes both random and by batch again. A batch normalisation whose new statistics the model computes with stays.
///
/// # Errors
/// None in practice: the operands fit the other form.
pub fn to_evaluation(module: &mut Module) -> Result<(), Diagnostic> {
    let Some(func) = module.main_mut() else { return Ok(()) };
    for op in func.graph.walk() {
        if let Some(norm) = as_op::<BatchNormTraining>(&func.graph, op) {
            to_running_statistics(&mut func.graph, op, norm.epsilon)?;
        } else if as_op::<Dropout>(&func.graph, op).is_some() {
            pass_on(&mut func.graph, op)?;
        }
    }
    Ok(())
}

fn to_running_statistics(g: &mut Graph, op: OpId, epsilon: f64) -> Result<(), Diagnostic> {
    let (operands, results) = (g.op(op).operands.to_vec(), g.op(op).results.to_vec());
    if results[1..].iter().any(|v| !g.uses(*v).is_empty()) {
        return Ok(());
    }
    let (loc, name) = (g.op(op).loc.clone(), g.name(results[0]).cloned());
    let mut rw = Rewriter::new(g, PASS);
    rw.rewrite(op, &[]);
    // It is the same node of the model.
    rw.set_location(loc);
    let y = rw.create_one(BatchNorm { epsilon, channels_last: false }, &operands)?;
    if let Some(name) = name {
        rw.set_name(y, name);
    }
    rw.replace(op, &[y, operands[3], operands[4]]);
    Ok(())
}

/// Leaves out the operand that says whether the dropout is random, which without it is not.
fn pass_on(g: &mut Graph, op: OpId) -> Result<(), Diagnostic> {
    let is_given = |v: &&ValueId| *g.ty(**v) != Type::None;
    if g.op(op).operands.get(2).filter(is_given).is_none() {
        return Ok(());
    }
    let mut rw = Rewriter::new(g, PASS);
    rw.before(op);
    rw.set_location(Location::Unknown);
    let none = rw.create_one(NoneValue {}, &[])?;
    rw.set_operand(op, 2, none);
    Ok(())
}

/// What locations call the rewrite.
const PASS: &str = "train";
