//! Rowwise kernels: reductions and elementwise functions that share their rows, such as softmax and the norms, and
//! reductions over any axes.
//!
//! Every row goes through all stages while it is in the cache. Stages that do not wait for each other's results share
//! a loop. Vectors run along the row or, where that is how the buffers lie, across neighbouring rows.

mod emit;
mod shape;
mod stage;

use super::dag::Dag;
use super::error::ScheduleError;
use super::view::{View, volume};
use crate::cpu::Isa;
use crate::kernel::{Kernel, LaneOp, Param};

/// What a stage does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StageKind {
    /// The graph for every element of the row.
    Map,
    /// The graph's only output, combined over the row: a number a row.
    Reduce(LaneOp),
    /// The position in the row, flat over the inner dimensions, of the graph's largest output, as i64: the first or
    /// the last of equals; a NaN counts as largest.
    ArgMax {
        /// The last of equals.
        last: bool,
    },
    /// As `ArgMax` for the smallest; a NaN counts as smallest.
    ArgMin {
        /// The last of equals.
        last: bool,
    },
    /// The graph once a row, on numbers of the row.
    Row,
}

/// An input of a stage.
#[derive(Clone, PartialEq, Debug)]
pub enum RowInput {
    /// A buffer, viewed over row and inner dimensions.
    View(View),
    /// A result of an earlier stage.
    Stage {
        /// The stage.
        stage: usize,
        /// Which of its results; 0 for reductions.
        output: usize,
    },
}

/// A step of the computation. Input `i` of the graph is `inputs[i]`.
#[derive(Clone, PartialEq, Debug)]
pub struct Stage {
    /// What it does.
    pub kind: StageKind,
    /// What it works on.
    pub inputs: Vec<RowInput>,
    /// The function.
    pub dag: Dag,
    /// Where each result is stored, if it is. Numbers of a row do not look at the view's inner strides.
    pub stores: Vec<Option<View>>,
}

/// Rows and what is done with each.
#[derive(Clone, PartialEq, Debug)]
pub struct Rowwise {
    /// Name of the kernel.
    pub name: String,
    /// Its parameters.
    pub params: Vec<Param>,
    /// Dimensions that count rows.
    pub row_dims: Vec<usize>,
    /// Dimensions of a row.
    pub inner_dims: Vec<usize>,
    /// The stages, in order.
    pub stages: Vec<Stage>,
}

impl Stage {
    /// Whether its results are numbers of a row.
    const fn per_row(&self) -> bool {
        !matches!(self.kind, StageKind::Map)
    }

    const fn is_arg(&self) -> bool {
        matches!(self.kind, StageKind::ArgMax { .. } | StageKind::ArgMin { .. })
    }

    fn views(&self) -> impl Iterator<Item = &View> {
        let inputs = self.inputs.iter().filter_map(|i| if let RowInput::View(v) = i { Some(v) } else { None });
        inputs.chain(self.stores.iter().flatten())
    }
}

/// The kernel of a rowwise computation.
///
/// # Errors
/// For views that do not fit, stages that refer to later ones or use a row's elements as a number, types that kernels
/// do not have, and rows without elements.
pub fn rowwise(spec: &Rowwise, isa: Isa) -> Result<Kernel, ScheduleError> {
    let types = check(spec)?;
    let (rows, inner) = (volume(&spec.row_dims)?, volume(&spec.inner_dims)?);
    volume(&[rows, inner])?;
    if inner == 0 {
        return Err(ScheduleError::spec("rows of no elements"));
    }
    let shape = shape::Shape::choose(spec, &types, isa);
    Ok(emit::emit(spec, &types, shape))
}

/// Checks a spec and gives the types of the results of every stage.
fn check(spec: &Rowwise) -> Result<Vec<Vec<of_ir::DType>>, ScheduleError> {
    let rank = spec.row_dims.len() + spec.inner_dims.len();
    let mut dims = spec.row_dims.clone();
    dims.extend(&spec.inner_dims);
    let mut rows = spec.row_dims.clone();
    rows.resize(rank, 1);
    let mut results: Vec<Vec<of_ir::DType>> = Vec::new();
    for (at, stage) in spec.stages.iter().enumerate() {
        let mut types = Vec::new();
        for input in &stage.inputs {
            types.push(match input {
                RowInput::View(v) => {
                    let elem = v.check(&spec.params, rank, false)?;
                    v.check_extent(&spec.params, if stage.kind == StageKind::Row { &rows } else { &dims })?;
                    elem
                }
                RowInput::Stage { stage: from, output } => {
                    let there = results.get(*from).and_then(|r| r.get(*output));
                    let elem = *there.ok_or_else(|| ScheduleError::spec(format!("stage {at} uses result {output} of stage {from}")))?;
                    if stage.kind == StageKind::Row && !spec.stages[*from].per_row() {
                        return Err(ScheduleError::spec(format!("stage {at} uses the elements of stage {from} as a number")));
                    }
                    elem
                }
            });
        }
        stage.dag.check(&types)?;
        let mut outputs = stage.dag.output_types()?;
        if !matches!(stage.kind, StageKind::Map | StageKind::Row) && outputs.len() != 1 {
            return Err(ScheduleError::spec(format!("the reduction of stage {at} has {} outputs", outputs.len())));
        }
        if stage.is_arg() {
            outputs = vec![of_ir::DType::I64];
        }
        if stage.stores.len() != outputs.len() {
            return Err(ScheduleError::spec(format!("stage {at} has {} results and {} stores", outputs.len(), stage.stores.len())));
        }
        for (elem, view) in outputs.iter().zip(&stage.stores) {
            let Some(v) = view else { continue };
            let there = v.check(&spec.params, rank, true)?;
            v.check_extent(&spec.params, if stage.per_row() { &rows } else { &dims })?;
            if there != *elem {
                return Err(ScheduleError::spec(format!("a result of type {elem} of stage {at} is stored as {there}")));
            }
        }
        results.push(outputs);
    }
    Ok(results)
}
