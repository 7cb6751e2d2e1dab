//! How the rows of a rowwise computation are laid out: dimensions in normal form, and what vectors run along.

use of_ir::DType;

use super::{RowInput, Rowwise, Stage, StageKind};
use crate::cpu::Isa;

/// Elements that an iteration should work on if its functions are trivial.
const ITERATION: usize = 16384;

/// What vectors run along.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    /// The last inner dimension.
    Inner,
    /// The last row dimension: every lane is a row.
    Rows,
}

/// Dimensions in normal form, the stages with their views in it, and the loops' sizes.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub rows: Vec<usize>,
    pub inner: Vec<usize>,
    pub stages: Vec<Stage>,
    pub mode: Mode,
    pub lanes: usize,
    /// Sums that run side by side (`Inner`), or vectors of rows that go through the stages together (`Rows`).
    pub slots: usize,
    /// Rows, or steps of `slots` vectors of them, that an iteration takes.
    pub block: usize,
    pub flops: u64,
}

impl Shape {
    pub fn choose(spec: &Rowwise, types: &[Vec<DType>], isa: Isa) -> Self {
        let mut all = Vec::new();
        let mut flops = 0u64;
        for (stage, results) in spec.stages.iter().zip(types) {
            all.extend(stage.dag.types().unwrap_or_default());
            all.extend(results);
            all.extend(stage.views().filter_map(|v| spec.params.get(v.param).map(|p| p.elem)));
            let own = stage.dag.flops() + u64::from(!matches!(stage.kind, StageKind::Map | StageKind::Row));
            flops += if stage.kind == StageKind::Row { 0 } else { own };
        }
        let lanes = isa.lanes(all);
        let mut s = Self {
            rows: spec.row_dims.clone(),
            inner: spec.inner_dims.clone(),
            stages: spec.stages.clone(),
            mode: Mode::Inner,
            lanes,
            slots: 1,
            block: 1,
            flops,
        };
        s.normalise();
        let (nr, ni) = (s.rows.len(), s.inner.len());
        let (last_row, last_inner) = (s.rows[nr - 1], s.inner[ni - 1]);
        let unit = |stage: &Stage, axis: usize| stage.views().all(|v| matches!(v.strides[axis], 0 | 1));
        let along = s.stages.iter().filter(|x| !x.per_row() || x.kind != StageKind::Row).all(|x| {
            x.inputs.iter().all(|i| !matches!(i, RowInput::View(v) if !matches!(v.strides[nr + ni - 1], 0 | 1)))
        });
        let across = s.stages.iter().all(|x| unit(x, nr - 1)) && last_row >= 4;
        if across && !(along && last_inner >= lanes) {
            s.mode = Mode::Rows;
        }
        let elements: usize = s.inner.iter().product();
        let budget = (ITERATION / (1 + flops as usize / 4)).max(2048);
        match s.mode {
            Mode::Inner => {
                s.slots = if s.stages.iter().any(Stage::is_arg) || flops > 16 || last_inner < 2 * lanes { 1 } else { 4 };
                s.block = (budget / elements.max(1)).max(1);
            }
            Mode::Rows => {
                s.slots = if flops <= 8 { (last_row / lanes).clamp(1, 4) } else { 1 };
                s.block = (budget / (elements * s.slots * lanes).max(1)).max(1);
            }
        }
        s
    }

    /// Drops dimensions of one element, orders the others by the strides of the first buffer that is read and joins
    /// neighbours. The order within a row stays where positions in it are asked for.
    fn normalise(&mut self) {
        let nr = self.rows.len();
        let keep_inner = self.stages.iter().any(Stage::is_arg);
        let first: Option<Vec<i64>> = self.stages.iter().flat_map(Stage::views).next().map(|v| v.strides.clone());
        let dims: Vec<usize> = self.rows.iter().chain(&self.inner).copied().collect();
        let order = |range: std::ops::Range<usize>, keep: bool| {
            let mut axes: Vec<usize> = range.filter(|a| dims[*a] != 1).collect();
            if let (false, Some(s)) = (keep, &first) {
                axes.sort_by_key(|a| std::cmp::Reverse(s[*a].unsigned_abs()));
            }
            axes
        };
        let (rows, inner) = (order(0..nr, false), order(nr..dims.len(), keep_inner));
        let groups = |axes: Vec<usize>| {
            let mut groups: Vec<Vec<usize>> = Vec::new();
            for a in axes {
                let joins = groups.last().and_then(|g| g.last()).is_some_and(|last| {
                    let d = dims[a] as i64;
                    self.stages.iter().flat_map(Stage::views).all(|v| v.strides[*last] == v.strides[a] * d)
                });
                match groups.last_mut() {
                    Some(g) if joins => g.push(a),
                    _ => groups.push(vec![a]),
                }
            }
            groups
        };
        let (rows, inner) = (groups(rows), groups(inner));
        let extents = |groups: &[Vec<usize>]| {
            let d: Vec<usize> = groups.iter().map(|g| g.iter().map(|a| dims[*a]).product()).collect();
            if d.is_empty() { vec![1] } else { d }
        };
        let strides = |old: &[i64]| {
            let of = |groups: &[Vec<usize>]| {
                let s: Vec<i64> = groups.iter().filter_map(|g| g.last().map(|a| old[*a])).collect();
                if s.is_empty() { vec![0] } else { s }
            };
            let mut s = of(&rows);
            s.extend(of(&inner));
            s
        };
        for stage in &mut self.stages {
            for input in &mut stage.inputs {
                if let RowInput::View(v) = input {
                    v.strides = strides(&v.strides);
                }
            }
            for v in stage.stores.iter_mut().flatten() {
                v.strides = strides(&v.strides);
            }
        }
        (self.rows, self.inner) = (extents(&rows), extents(&inner));
    }
}
