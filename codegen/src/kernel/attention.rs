//! Attention kernels: a matrix product, a row-wise computation on its result, and a second product. The scores are never
//! materialised in full.
//!
//! `out[row, :] = rows(maps(sum_d q[row, d] k[key, d])) v[key, :]`, for each batch. Keys and values of a batch are packed into
//! panels once. A block of rows then goes through all three stages. Its full rows of scores stay in scratch memory sized for the
//! L2 cache, so the row-wise stage is an ordinary row-wise body.
//!
//! On a CPU the softmax sees whole rows of scores; on a GPU it is an online softmax, as in flash attention.

use of_ir::DType;
use of_ops::scalar::ScalarOp;

use crate::kernel::body::{Body, Load, Node, ReduceKind};
use crate::kernel::contraction::{AccessStrides, Contraction, Element, RhsLayout, RowAxes};
use crate::kernel::extent::Extent;
use crate::kernel::float;

/// The layout of an operand: its lines are rows of the left operand, and keys of the others.
#[derive(Clone, PartialEq, Debug)]
pub struct MatrixLayout {
    /// Offset of the first element.
    pub offset: Extent,
    /// Extents and strides of axes whose extents multiply to the number of batches.
    pub batch: Vec<(Extent, Extent)>,
    /// Stride between lines.
    pub line_stride: Extent,
    /// Stride between the elements of a line.
    pub element_stride: Extent,
}

/// Two matrix products and the row-wise ops between them. Arguments are `q`, `k`, `v`, the loads of the three bodies in order
/// without the scores, the result, and the stored values of each row.
#[derive(Clone, PartialEq, Debug)]
pub struct Attention {
    /// Element type of the operands, and of the softmax weights when they are multiplied: f32, or a 16-bit float that the
    /// instruction set multiplies.
    pub element: DType,
    /// Extents of the batch axes.
    pub batch: Vec<Extent>,
    /// Rows of a batch.
    pub rows: Extent,
    /// Terms of the first product.
    pub depth: Extent,
    /// Columns of the first product, terms of the second.
    pub keys: Extent,
    /// Columns of the second product.
    pub columns: Extent,
    /// Layout of `q`.
    pub q: MatrixLayout,
    /// Layout of `k`.
    pub k: MatrixLayout,
    /// Layout of `v`.
    pub v: MatrixLayout,
    /// The epilogue of the first product.
    pub scores: Body,
    /// The row-wise computation.
    pub row_body: Body,
    /// Nodes of `row_body` with one number a row that are stored after the result.
    pub saved_row_stats: Vec<usize>,
    /// Index of the load of `row_body` that reads the scores.
    pub scores_load: usize,
    /// The epilogue of the second product.
    pub epilogue: Body,
    /// Strides of the result along batch axes, rows and columns.
    pub out: Vec<Extent>,
}

/// The nodes of a softmax along rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Softmax {
    /// Its argument.
    pub argument: usize,
    /// The maximum of the argument.
    pub row_max: usize,
    /// The exponentials.
    pub exponentials: usize,
    /// Their sum.
    pub row_sum: usize,
}

impl Attention {
    /// The softmax that the row-wise computation is, if any. Rounding to 16-bit floats in between does not matter.
    pub fn softmax(&self) -> Option<Softmax> {
        let node = |n: usize| &self.row_body.nodes[n].node;
        let exact = |n: usize| self.unrounded(n);
        let of = |n: usize, op: ScalarOp| match node(n) {
            Node::Op(o, args) if *o == op => Some(&args[..]),
            _ => None,
        };
        let reduced = |n: usize, kind: ReduceKind| match node(n) {
            Node::Reduce(k, x) if *k == kind => Some(exact(*x)),
            _ => None,
        };
        let [(_, stored)] = self.row_body.stores[..] else { return None };
        let [exponentials, row_sum] = *of(exact(stored), ScalarOp::Div)? else { return None };
        let (exponentials, row_sum) = (exact(exponentials), exact(row_sum));
        let [difference] = *of(exponentials, ScalarOp::Exp)? else { return None };
        let [argument, row_max] = *of(exact(difference), ScalarOp::Sub)? else { return None };
        let (argument, row_max) = (exact(argument), exact(row_max));
        let fits = reduced(row_sum, ReduceKind::Sum)? == exponentials && reduced(row_max, ReduceKind::Max)? == argument;
        (fits && !self.row_body.nodes[argument].per_row).then_some(Softmax { argument, row_max, exponentials, row_sum })
    }

    /// Strips casts between float types from `n`, where the operands are 16-bit floats.
    fn unrounded(&self, n: usize) -> usize {
        match &self.row_body.nodes[n].node {
            Node::Op(ScalarOp::Cast(to), args)
                if float::is_half(self.element)
                    && float::is_float(*to)
                    && float::is_float(self.row_body.nodes[args[0]].dtype) =>
            {
                self.unrounded(args[0])
            }
            _ => n,
        }
    }

    /// Extents of the scores.
    pub fn dims(&self) -> Vec<Extent> {
        self.batch.iter().chain([&self.rows, &self.keys]).cloned().collect()
    }

    /// Extents of the result.
    pub fn out_dims(&self) -> Vec<Extent> {
        self.batch.iter().chain([&self.rows, &self.columns]).cloned().collect()
    }

    /// The access strides of the loads of a body over `dims`.
    ///
    /// # Errors
    /// When a load does not follow the rows.
    pub fn load_strides(&self, body: &Body, dims: Vec<Extent>) -> Result<Vec<AccessStrides>, String> {
        let axes = RowAxes { dims, batch: self.batch.len(), outer: 0 };
        let strides = |l: &Load| axes.strides_of(&l.strides);
        body.loads
            .iter()
            .map(|l| strides(l).ok_or_else(|| "an operand of the epilogue does not follow the rows".into()))
            .collect()
    }

    /// The access strides of the result.
    ///
    /// # Errors
    /// When it does not follow the rows.
    pub fn output_strides(&self) -> Result<AccessStrides, String> {
        let axes = RowAxes { dims: self.out_dims(), batch: self.batch.len(), outer: 0 };
        axes.strides_of(&self.out).ok_or_else(|| "the result does not follow the rows".into())
    }

    /// The argument index of each load of `row_body`; `None` for the scores.
    pub fn row_body_arguments(&self) -> Vec<Option<usize>> {
        let first = 3 + self.scores.loads.len();
        let number = |l: usize| (l != self.scores_load).then(|| first + l - usize::from(l > self.scores_load));
        (0..self.row_body.loads.len()).map(number).collect()
    }

    /// The argument of the first load of `epilogue`.
    pub fn epilogue_argument(&self) -> usize {
        3 + self.scores.loads.len() + self.row_body.loads.len() - 1
    }

    /// The argument index of the result.
    pub fn result_argument(&self) -> usize {
        self.epilogue_argument() + self.epilogue.loads.len()
    }

    /// One of the two matrix products, with a packed right operand.
    pub fn product(&self, line: &Extent, k_inner: &Extent, columns: &Extent) -> Contraction {
        let zeros = vec![Extent::from(0usize); self.batch.len()];
        Contraction {
            element: if float::is_half(self.element) { Element::F16Pair(self.element) } else { Element::F32F32 },
            batch: self.batch.clone(),
            a_batch_strides: zeros.clone(),
            b_batch_strides: zeros,
            outer: (1usize.into(), 0usize.into()),
            inner: (self.rows.clone(), line.clone()),
            taps: Vec::new(),
            k_inner: k_inner.clone(),
            columns: columns.clone(),
            rhs: RhsLayout::Packed,
        }
    }
}
