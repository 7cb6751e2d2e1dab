//! `of.transfer`.

use of_ir::{DType, NdSbp, OpError, OpView, TensorType, Type};

use crate::{Evaluated, Inferred, Inputs, Op, op, op_basics};

op! {
    /// One rank's share of a collective: converts its part of a tensor from the source to the target placement.
    ///
    /// It occurs in per-rank functions, whose types are those of the rank's parts. Ranks rendezvous at equal ids, so it
    /// has a side effect: it is neither merged with others nor removed.
    pub struct Transfer = "of.transfer" [Structural] {
        operands: (x),
        results: (y),
        traits: { effect: true },
        attrs: {
            /// The number of the rendezvous, ascending on each rank. The next number is reserved for a second step.
            id: i64,
            /// The mesh axes along which ranks take part.
            axes: Vec<i64>,
            /// How many ranks there are along each of these.
            ranks: Vec<i64>,
            /// Extents of what those ranks hold together.
            dims: Vec<i64>,
            /// The source placement.
            from: NdSbp,
            /// The target placement.
            to: NdSbp,
            /// Extents of the rank's part after.
            local_shape: Vec<i64>,
            /// Between stages: the mesh axis that indexes them, the stage that sends, the stage that receives. Ranks of other
            /// stages have nothing of the tensor; none where all ranks along the axes have a part before and after.
            stage_ranks: Vec<i64>,
            /// In a step with microbatches: their number, and the part of the step in which it takes place
            /// ([`crate::time::TimeShape`]).
            microbatches: Vec<i64>,
        },
    }
    samples: |_seed| None;
}

impl Op for Transfer {
    op_basics!(Transfer);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let t = cx.tensor(0)?;
        if t.dtype == DType::String {
            return Err(OpError::new(
                of_diag::Code::TYPE,
                "string tensors are on every rank and cannot be transferred",
            ));
        }
        let part: Option<Vec<usize>> = self.local_shape.iter().map(|d| usize::try_from(*d).ok()).collect();
        let part = part.ok_or_else(|| OpError::new(of_diag::Code::SHAPE, "an extent is negative"))?;
        Ok(vec![Type::Tensor(TensorType::fixed(t.dtype, &part))])
    }

    fn eval(&self, _inputs: &mut Inputs<'_>) -> Evaluated {
        Err(OpError::eval("a rank alone cannot do its share in a collective"))
    }
}
