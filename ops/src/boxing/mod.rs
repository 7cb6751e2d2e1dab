//! Boxing: transfers of tensors between layouts on a mesh, as ops of the graph.
//!
//! On the one global view of the tensor each of them is the identity; what the devices do is in its name, and what they
//! hold before and after in the types. The pass `insert-boxing` makes all but [`ShardingConstraint`], and [`Transfer`], which
//! occurs in per-rank functions. [`Send`] is the one between meshes.

mod transfer;

pub use transfer::Transfer;

use of_diag::Diagnostic;
use of_ir::{NdSbp, OpError, OpView, Sbp, TensorType, Type, ValueId};

use crate::{Evaluated, GradCx, Inferred, Inputs, Op, op, op_basics};

/// The attribute of a function whose step is cut into microbatches that says into how many slices along which axis each
/// input was cut, a pair for each. Such an input is the stack of its slices, along a new first axis.
pub const MICROBATCH_INPUTS: &str = "of.microbatch_inputs";
/// The same of outputs.
pub const MICROBATCH_OUTPUTS: &str = "of.microbatch_outputs";

op! {
    /// User sharding constraint: reshards the tensor to `sharding`. On another mesh than that of the operand, it moves the tensor
    /// there. A `sharding` without entries names the mesh alone.
    ///
    /// The pass `insert-boxing` replaces it by transfers.
    pub struct ShardingConstraint = "of.sharding_constraint" [Structural] {
        operands: (x),
        results: (y),
        attrs: { sharding: NdSbp },
    }
    samples: |_seed| None;
}

impl Op for ShardingConstraint {
    op_basics!(ShardingConstraint);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        Ok(vec![Type::Tensor(TensorType { sbp: Some(self.sharding.clone()), ..cx.tensor(0)?.clone() })])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        Ok(vec![inputs.tensor(0)?.clone().into()])
    }

    /// The gradient itself: its layout is free, and its readers say on which mesh it is.
    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        Some(Ok(vec![Some(cx.grads[0]?)]))
    }
}

op! {
    /// The same tensor on another mesh: each of its devices receives its part, as `sharding` says, from devices that have it.
    pub struct Send = "of.send" [Structural] {
        operands: (x),
        results: (y),
        attrs: { sharding: NdSbp },
    }
    samples: |_seed| None;
}

impl Op for Send {
    op_basics!(Send);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let t = cx.tensor(0)?;
        let wrong = |what: String| Err(OpError::new(of_diag::Code::SBP, what));
        let Some(from) = &t.sbp else { return wrong("the operand has no layout on a mesh".into()) };
        if from.mesh == self.sharding.mesh {
            return wrong(format!("{from} and {} are of one mesh", self.sharding));
        }
        if from.axes.iter().chain(&self.sharding.axes).any(|s| matches!(s, Sbp::Partial(_))) {
            return wrong(format!("partial values are not sent: {from} to {}", self.sharding));
        }
        Ok(vec![Type::Tensor(TensorType { sbp: Some(self.sharding.clone()), ..t.clone() })])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        Ok(vec![inputs.tensor(0)?.clone().into()])
    }
}

macro_rules! collectives {
    ($($(#[doc = $doc:literal])* $name:ident = $opname:literal |$from:ident, $to:ident| $fits:expr;)*) => {$(
        op! {
            $(#[doc = $doc])*
            pub struct $name = $opname [Structural] {
                operands: (x),
                results: (y),
                attrs: {
                    /// The mesh axes along which devices take part.
                    axes: Vec<i64>,
                    /// The placement of the result.
                    sharding: NdSbp,
                },
            }
            samples: |_seed| None;
        }

        impl Op for $name {
            op_basics!($name);

            fn infer(&self, cx: &OpView<'_>) -> Inferred {
                transfer(cx, &self.axes, &self.sharding, |$from, $to| $fits)
            }

            fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
                Ok(vec![inputs.tensor(0)?.clone().into()])
            }
        }
    )*};
}

collectives! {
    /// Every device gets the concatenation of all slices: `S -> B` along one mesh axis.
    AllGather = "of.all_gather" |from, to| matches!((from, to), (Sbp::Split(_), Sbp::Broadcast));
    /// Every device gets the reduction of all partial values: `P -> B` along one mesh axis.
    AllReduce = "of.all_reduce" |from, to| matches!((from, to), (Sbp::Partial(_), Sbp::Broadcast));
    /// Slices along one axis of the tensor become slices along another: `S(i) -> S(j)` along one mesh axis.
    AllToAll = "of.all_to_all" |from, to| matches!((from, to), (Sbp::Split(a), Sbp::Split(b)) if a != b);
    /// Reinterprets local values as partial values: `B -> P` or `S -> P` along one mesh axis. No communication.
    ToPartial = "of.to_partial" |from, to| matches!((from, to), (Sbp::Split(_) | Sbp::Broadcast, Sbp::Partial(_)));
    /// Every device fetches the elements it lacks from a device that has them, along several mesh axes.
    Reshard = "of.reshard" |from, to| !matches!(from, Sbp::Partial(_)) && !matches!(to, Sbp::Partial(_));
    /// Partial values are combined and every device gets a slice: `P -> S` along one mesh axis.
    ReduceScatter = "of.reduce_scatter" |from, to| matches!((from, to), (Sbp::Partial(_), Sbp::Split(_)));
    /// Every device takes its slice of what it has: `B -> S` along one mesh axis; nothing is sent.
    LocalSlice = "of.local_slice" |from, to| matches!((from, to), (Sbp::Broadcast, Sbp::Split(_)));
}

/// The type of the result: that of the operand, as `sharding` says. Layouts differ along `axes` alone, each time in a way for
/// which `fits` holds.
fn transfer(cx: &OpView<'_>, axes: &[i64], to: &NdSbp, fits: impl Fn(Sbp, Sbp) -> bool) -> Inferred {
    let t = cx.tensor(0)?;
    let wrong = |what: String| Err(OpError::new(of_diag::Code::SBP, what));
    let Some(from) = &t.sbp else { return wrong("the operand has no layout on the mesh".into()) };
    if from.mesh != to.mesh || from.axes.len() != to.axes.len() {
        return wrong(format!("{from} and {to} are of different meshes"));
    }
    for (i, (a, b)) in (0..).zip(from.axes.iter().zip(&to.axes)) {
        let takes_part = axes.contains(&i);
        if a != b && !(takes_part && fits(*a, *b)) {
            return wrong(format!("{a} does not become {b} along mesh axis {i} by this op"));
        }
    }
    if axes.iter().any(|a| usize::try_from(*a).map_or(true, |a| a >= to.axes.len())) {
        return wrong(format!("the mesh has {} axes, not all of {axes:?}", to.axes.len()));
    }
    Ok(vec![Type::Tensor(TensorType { sbp: Some(to.clone()), ..t.clone() })])
}
