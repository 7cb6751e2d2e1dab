//! Kernels of a product, a computation along the rows of its result, and a product of those rows: attention, whose scores
//! never lie in memory.
//!
//! `out[row, :] = rows(maps(sum_d q[row, d] k[key, d])) v[key, :]`, for each batch. The keys and values of a batch are
//! packed into panels once. Then some rows at a time go through all three: their scores, whole rows, wait in scratch memory
//! that the second cache holds, so what is done along a row is an ordinary row-wise body.

use of_ir::DType;
use of_ops::scalar::ScalarOp;

use crate::kernel::body::{Body, Load, Node, Reduce};
use crate::kernel::contraction::{AccessStrides, Contraction, Element, Operand, RowAxes};
use crate::kernel::expr;
use crate::kernel::extent::Extent;

/// Where an operand lies: its lines are rows of the left one, and keys of the others.
#[derive(Clone, PartialEq, Debug)]
pub struct MatrixLayout {
    /// The first element.
    pub offset: Extent,
    /// Extents and distances of axes that are together as many as there are batches.
    pub batch: Vec<(Extent, Extent)>,
    /// Between lines.
    pub line: Extent,
    /// Between the elements of a line.
    pub step: Extent,
}

/// Two products and the rows between them. Arguments are `q`, `k`, `v`, the loads of the bodies one after another without
/// the scores themselves, the result, and what is kept of each row.
#[derive(Clone, PartialEq, Debug)]
pub struct Attention {
    /// The type of the operands, and of the weights where they are multiplied: f32, or a 16-bit float that the instruction
    /// set multiplies.
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
    /// Operands.
    pub q: MatrixLayout,
    /// The same.
    pub k: MatrixLayout,
    /// The same.
    pub v: MatrixLayout,
    /// The epilogue of the first product.
    pub scores: Body,
    /// What is done along the rows.
    pub along: Body,
    /// Nodes of it with one number a row that are stored behind the result.
    pub kept: Vec<usize>,
    /// Which of its loads are the scores.
    pub at: usize,
    /// The epilogue of the second product.
    pub after: Body,
    /// Strides of the result along batch axes, rows and columns.
    pub out: Vec<Extent>,
}

/// The nodes of a softmax along rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Softmax {
    /// What it is the softmax of.
    pub of: usize,
    /// The largest of that.
    pub largest: usize,
    /// The exponentials.
    pub exponentials: usize,
    /// Their sum.
    pub sum: usize,
}

impl Attention {
    /// The softmax that the rows are, if they are one. That of 16-bit floats is one whatever is rounded on its way.
    pub fn softmax(&self) -> Option<Softmax> {
        let node = |n: usize| &self.along.nodes[n].node;
        let exact = |n: usize| self.unrounded(n);
        let of = |n: usize, op: ScalarOp| match node(n) {
            Node::Op(o, args) if *o == op => Some(&args[..]),
            _ => None,
        };
        let reduced = |n: usize, kind: Reduce| match node(n) {
            Node::Reduce(k, x) if *k == kind => Some(exact(*x)),
            _ => None,
        };
        let [(_, stored)] = self.along.stores[..] else { return None };
        let [exponentials, sum] = *of(exact(stored), ScalarOp::Div)? else { return None };
        let (exponentials, sum) = (exact(exponentials), exact(sum));
        let [difference] = *of(exponentials, ScalarOp::Exp)? else { return None };
        let [of, largest] = *of(exact(difference), ScalarOp::Sub)? else { return None };
        let (of, largest) = (exact(of), exact(largest));
        let fits = reduced(sum, Reduce::Sum)? == exponentials && reduced(largest, Reduce::Max)? == of;
        (fits && !self.along.nodes[of].per_row).then_some(Softmax { of, largest, exponentials, sum })
    }

    /// The node that `n` is rounded or widened from, where the operands are 16-bit floats; else itself.
    fn unrounded(&self, n: usize) -> usize {
        match &self.along.nodes[n].node {
            Node::Op(ScalarOp::Cast(to), args)
                if expr::is_half(self.element)
                    && expr::is_float(*to)
                    && expr::is_float(self.along.nodes[args[0]].dtype) =>
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

    /// How the loads of a body over `dims` go along.
    ///
    /// # Errors
    /// When one does not follow the rows.
    pub fn walks(&self, body: &Body, dims: Vec<Extent>) -> Result<Vec<AccessStrides>, String> {
        let axes = RowAxes { dims, batch: self.batch.len(), outer: 0 };
        let walk = |l: &Load| axes.walk(&l.strides);
        body.loads
            .iter()
            .map(|l| walk(l).ok_or_else(|| "an operand of the epilogue does not follow the rows".into()))
            .collect()
    }

    /// How the result goes along.
    ///
    /// # Errors
    /// When it does not follow the rows.
    pub fn to(&self) -> Result<AccessStrides, String> {
        let axes = RowAxes { dims: self.out_dims(), batch: self.batch.len(), outer: 0 };
        axes.walk(&self.out).ok_or_else(|| "the result does not follow the rows".into())
    }

    /// The arguments of the loads of `along`; nothing for the scores.
    pub fn along_arguments(&self) -> Vec<Option<usize>> {
        let first = 3 + self.scores.loads.len();
        let number = |l: usize| (l != self.at).then(|| first + l - usize::from(l > self.at));
        (0..self.along.loads.len()).map(number).collect()
    }

    /// The argument of the first load of `after`.
    pub fn after_argument(&self) -> usize {
        3 + self.scores.loads.len() + self.along.loads.len() - 1
    }

    /// The argument that is the result.
    pub fn result_argument(&self) -> usize {
        self.after_argument() + self.after.loads.len()
    }

    /// One of the two products, of panels.
    pub fn product(&self, line: &Extent, run: &Extent, columns: &Extent) -> Contraction {
        let zeros = vec![Extent::from(0usize); self.batch.len()];
        Contraction {
            element: if expr::is_half(self.element) { Element::Half(self.element) } else { Element::Float },
            batch: self.batch.clone(),
            a_batch: zeros.clone(),
            b_batch: zeros,
            outer: (1usize.into(), 0usize.into()),
            inner: (self.rows.clone(), line.clone()),
            taps: Vec::new(),
            run: run.clone(),
            columns: columns.clone(),
            b: Operand::Packed,
        }
    }
}
