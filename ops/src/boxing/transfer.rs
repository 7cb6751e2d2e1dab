//! `of.transfer`.

use of_ir::{DType, Dim, DimFn, NdSbp, OpError, OpView, Sbp, TensorType, Type};

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
            /// The number of the rendezvous, ascending on each rank. The next ones are reserved for further rounds ([`Transfer::numbers`]).
            id: i64,
            /// The mesh axes along which ranks take part.
            axes: Vec<i64>,
            /// How many ranks there are along each of these.
            ranks: Vec<i64>,
            /// Extents of what those ranks hold together; [`Transfer::OPEN`] for a multiple of the operand's: by the slices along
            /// that axis.
            dims: Vec<i64>,
            /// The source placement.
            from: NdSbp,
            /// The target placement.
            to: NdSbp,
            /// Extents of the rank's part after; [`Transfer::OPEN`] where they follow from the operand's.
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

impl Transfer {
    /// An extent that the values of symbols decide.
    pub const OPEN: i64 = -1;

    /// From so many ranks on, a transfer may have more rounds than a reduction and a gather.
    pub const ROUNDS_FROM: usize = 16;

    /// The numbers that each transfer has on a mesh of so many ranks: for a reduction and a gather, of a round for each prime factor of the
    /// ranks along an axis where these are many.
    pub fn numbers(ranks: usize) -> i64 {
        if ranks < Self::ROUNDS_FROM { 2 } else { 2 * i64::from(ranks.ilog2()) }
    }

    /// The slices of an axis of the tensor among the ranks that take part.
    fn slices(&self, layout: &NdSbp, axis: usize) -> i64 {
        let is_split = |mesh_axis: &i64| {
            let sbp = usize::try_from(*mesh_axis).ok().and_then(|a| layout.axes.get(a));
            matches!(sbp, Some(Sbp::Split(d)) if usize::from(*d) == axis)
        };
        self.axes.iter().zip(&self.ranks).filter(|(a, _)| is_split(a)).map(|(_, n)| *n).product()
    }
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
        let extent = |(axis, n): (usize, &i64)| match *n {
            n if n >= 0 => Ok(Dim::from(n)),
            Self::OPEN => {
                let own = t.shape.as_ref().and_then(|s| s.get(axis)).cloned().unwrap_or_else(Dim::unknown);
                let [before, after] = [&self.from, &self.to].map(|layout| Dim::from(self.slices(layout, axis)));
                let whole = &own * &before;
                Ok(whole.exact_div(&after).unwrap_or_else(|| Dim::call(DimFn::FloorDiv, &whole, &after)))
            }
            _ => Err(OpError::shape("an extent is negative")),
        };
        let shape = self.local_shape.iter().enumerate().map(extent).collect::<Result<_, _>>()?;
        Ok(vec![Type::Tensor(TensorType { dtype: t.dtype, shape: Some(shape), sbp: None })])
    }

    fn eval(&self, _inputs: &mut Inputs<'_>) -> Evaluated {
        Err(OpError::eval("a rank alone cannot do its share in a collective"))
    }
}
