//! The search problem: nodes that choose a label each, and edges with a cost for each pair of labels.

use std::collections::HashMap;

/// A cost matrix, row-major.
#[derive(Clone, PartialEq, Debug)]
pub struct Matrix {
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub cols: usize,
    /// The costs, row by row.
    pub data: Vec<f64>,
}

impl Matrix {
    /// The cost in a row and a column.
    pub fn at(&self, row: usize, col: usize) -> f64 {
        self.data[row * self.cols + col]
    }

    /// A row.
    pub fn row(&self, row: usize) -> &[f64] {
        &self.data[row * self.cols..][..self.cols]
    }

    /// The transposed matrix.
    pub fn transposed(&self) -> Matrix {
        let data = (0..self.cols).flat_map(|c| (0..self.rows).map(move |r| self.at(r, c))).collect();
        Matrix { rows: self.cols, cols: self.rows, data }
    }
}

/// Id of a cost vector in [`Interner`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct CostId(u32);
/// Id of an index list in [`Interner`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct IndexId(u32);
/// Id of a matrix in [`Interner`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct MatrixId(u32);

/// Interned (hash-consed) vectors, index lists and matrices. Equal vectors have one id, so that results for one layer
/// of a model are reused for the next.
#[derive(Clone, Default)]
pub struct Interner {
    costs: Vec<Vec<f64>>,
    cost_of: HashMap<Vec<u64>, CostId>,
    indices: Vec<Vec<u32>>,
    index_of: HashMap<Vec<u32>, IndexId>,
    matrices: Vec<Matrix>,
    transposed: HashMap<MatrixId, MatrixId>,
}

impl Interner {
    /// The id of a cost vector.
    pub fn add_costs(&mut self, v: Vec<f64>) -> CostId {
        let bits: Vec<u64> = v.iter().map(|x| x.to_bits()).collect();
        let next = CostId(self.costs.len() as u32);
        let id = *self.cost_of.entry(bits).or_insert(next);
        if id == next {
            self.costs.push(v);
        }
        id
    }

    /// The id of an index list.
    pub fn add_indices(&mut self, v: Vec<u32>) -> IndexId {
        if let Some(id) = self.index_of.get(&v) {
            return *id;
        }
        let id = IndexId(self.indices.len() as u32);
        self.indices.push(v.clone());
        self.index_of.insert(v, id);
        id
    }

    /// Adds a matrix; equal matrices are not merged.
    pub fn add_matrix(&mut self, m: Matrix) -> MatrixId {
        self.matrices.push(m);
        MatrixId(self.matrices.len() as u32 - 1)
    }

    /// The id of the transposed matrix.
    pub fn transpose(&mut self, m: MatrixId) -> MatrixId {
        if let Some(t) = self.transposed.get(&m) {
            return *t;
        }
        let t = self.matrix(m).transposed();
        let t = self.add_matrix(t);
        self.transposed.insert(m, t);
        self.transposed.insert(t, m);
        t
    }

    /// The cost vector of this id.
    pub fn costs(&self, id: CostId) -> &[f64] {
        &self.costs[id.0 as usize]
    }

    /// The index list of this id.
    pub fn indices(&self, id: IndexId) -> &[u32] {
        &self.indices[id.0 as usize]
    }

    /// The matrix of this id.
    pub fn matrix(&self, id: MatrixId) -> &Matrix {
        &self.matrices[id.0 as usize]
    }
}

/// The cost of two nodes together: label `x` of `a` and `y` of `b` cost `matrix[row[x]][col[y]]`, never less than 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Edge {
    /// A node.
    pub a: usize,
    /// Another.
    pub b: usize,
    /// The row of each label of `a`.
    pub row: IndexId,
    /// The column of each label of `b`.
    pub col: IndexId,
    /// The costs.
    pub matrix: MatrixId,
}

/// A problem: minimize the sum of node and edge costs.
#[derive(Clone, Default)]
pub struct Problem {
    /// All vectors and matrices.
    pub interner: Interner,
    /// The label costs of each node.
    pub nodes: Vec<CostId>,
    /// The edges.
    pub edges: Vec<Edge>,
}

impl Problem {
    /// Adds a node and gives its position.
    pub fn add_node(&mut self, costs: Vec<f64>) -> usize {
        let costs = self.interner.add_costs(costs);
        self.nodes.push(costs);
        self.nodes.len() - 1
    }

    /// The cost of an edge for a label of its `a` and one of its `b`.
    pub fn edge_cost(&self, e: &Edge, x: usize, y: usize) -> f64 {
        let t = &self.interner;
        t.matrix(e.matrix).at(t.indices(e.row)[x] as usize, t.indices(e.col)[y] as usize)
    }

    /// The total cost of labels.
    pub fn cost(&self, labels: &[usize]) -> f64 {
        let nodes: f64 = self.nodes.iter().zip(labels).map(|(n, l)| self.interner.costs(*n)[*l]).sum();
        nodes + self.edges.iter().map(|e| self.edge_cost(e, labels[e.a], labels[e.b])).sum::<f64>()
    }
}
