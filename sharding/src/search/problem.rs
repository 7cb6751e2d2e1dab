//! The search as a problem of its own: nodes that choose a label each, edges that cost what two labels cost together.

use std::collections::HashMap;

/// A table of costs, row by row.
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

    /// Rows become columns.
    pub fn transposed(&self) -> Matrix {
        let data = (0..self.cols).flat_map(|c| (0..self.rows).map(move |r| self.at(r, c))).collect();
        Matrix { rows: self.cols, cols: self.rows, data }
    }
}

/// Number of a vector of costs in [`Tables`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Costs(u32);
/// Number of a list of positions in [`Tables`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Places(u32);
/// Number of a matrix in [`Tables`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Table(u32);

/// Everything that is computed, each under a number: equal things have one number, so that what was done for one layer
/// of a model is found again for the next.
#[derive(Clone, Default)]
pub struct Tables {
    costs: Vec<Vec<f64>>,
    cost_of: HashMap<Vec<u64>, Costs>,
    places: Vec<Vec<u32>>,
    place_of: HashMap<Vec<u32>, Places>,
    matrices: Vec<Matrix>,
    transposed: HashMap<Table, Table>,
}

impl Tables {
    /// The number of a vector.
    pub fn add_costs(&mut self, v: Vec<f64>) -> Costs {
        let bits: Vec<u64> = v.iter().map(|x| x.to_bits()).collect();
        let next = Costs(self.costs.len() as u32);
        let id = *self.cost_of.entry(bits).or_insert(next);
        if id == next {
            self.costs.push(v);
        }
        id
    }

    /// The number of a list of positions.
    pub fn add_places(&mut self, v: Vec<u32>) -> Places {
        if let Some(id) = self.place_of.get(&v) {
            return *id;
        }
        let id = Places(self.places.len() as u32);
        self.places.push(v.clone());
        self.place_of.insert(v, id);
        id
    }

    /// A new matrix; equal ones are not looked for.
    pub fn add_matrix(&mut self, m: Matrix) -> Table {
        self.matrices.push(m);
        Table(self.matrices.len() as u32 - 1)
    }

    /// The matrix whose rows are the columns of this one.
    pub fn transpose(&mut self, m: Table) -> Table {
        if let Some(t) = self.transposed.get(&m) {
            return *t;
        }
        let t = self.matrix(m).transposed();
        let t = self.add_matrix(t);
        self.transposed.insert(m, t);
        self.transposed.insert(t, m);
        t
    }

    /// The vector of this number.
    pub fn costs(&self, id: Costs) -> &[f64] {
        &self.costs[id.0 as usize]
    }

    /// The positions of this number.
    pub fn places(&self, id: Places) -> &[u32] {
        &self.places[id.0 as usize]
    }

    /// The matrix of this number.
    pub fn matrix(&self, id: Table) -> &Matrix {
        &self.matrices[id.0 as usize]
    }
}

/// What two nodes cost together: label `x` of `a` and `y` of `b` cost `matrix[row[x]][col[y]]`, never less than 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Edge {
    /// A node.
    pub a: usize,
    /// Another.
    pub b: usize,
    /// The row of each label of `a`.
    pub row: Places,
    /// The column of each label of `b`.
    pub col: Places,
    /// The costs.
    pub matrix: Table,
}

/// A problem: the labels that cost least together.
#[derive(Clone, Default)]
pub struct Problem {
    /// All vectors and matrices.
    pub tables: Tables,
    /// The cost of each label, one vector a node.
    pub nodes: Vec<Costs>,
    /// The edges.
    pub edges: Vec<Edge>,
}

impl Problem {
    /// Adds a node and gives its position.
    pub fn add_node(&mut self, costs: Vec<f64>) -> usize {
        let costs = self.tables.add_costs(costs);
        self.nodes.push(costs);
        self.nodes.len() - 1
    }

    /// What the edge costs for a label of its `a` and one of its `b`.
    pub fn edge_cost(&self, e: &Edge, x: usize, y: usize) -> f64 {
        let t = &self.tables;
        t.matrix(e.matrix).at(t.places(e.row)[x] as usize, t.places(e.col)[y] as usize)
    }

    /// What all labels cost together.
    pub fn cost(&self, labels: &[usize]) -> f64 {
        let nodes: f64 = self.nodes.iter().zip(labels).map(|(n, l)| self.tables.costs(*n)[*l]).sum();
        nodes + self.edges.iter().map(|e| self.edge_cost(e, labels[e.a], labels[e.b])).sum::<f64>()
    }
}
