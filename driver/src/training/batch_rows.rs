//! The rows of a batch that a process reads: of ranks that are processes, each one those of its own parts of the inputs.

use of_plan::{MeshPort, MeshProgram, OPEN, coords, holds};

/// Which rows of a batch are needed, of each column.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BatchRows {
    /// In ascending order, by the number of the column. A column without an entry is needed whole.
    columns: Vec<Option<Vec<usize>>>,
}

impl BatchRows {
    /// All rows of all columns.
    pub fn all() -> BatchRows {
        BatchRows::default()
    }

    /// Those that are in a rank's parts of the inputs of a mesh. The columns are these inputs, in the same order.
    pub fn of_rank(program: &MeshProgram, rank: usize) -> BatchRows {
        let mesh = program.extents();
        let at = coords(&mesh, rank);
        let rows = |port: &MeshPort| {
            if port.dims.first() == Some(&OPEN) {
                return None;
            }
            if !holds(&port.layout, &at) {
                // Another stage of the pipeline has it.
                return Some(Vec::new());
            }
            let blocks = (0..port.count()).filter_map(|microbatch| port.block(&mesh, &at, microbatch).first().copied());
            let mut rows: Vec<usize> = blocks.flat_map(|(start, len)| start..start + len).collect();
            rows.sort_unstable();
            rows.dedup();
            Some(rows)
        };
        BatchRows { columns: program.inputs.iter().map(rows).collect() }
    }

    /// The needed rows of a column of a batch of so many samples.
    pub fn needed(&self, column: usize, samples: usize) -> Vec<usize> {
        match self.columns.get(column).and_then(Option::as_ref) {
            Some(rows) => rows.iter().copied().filter(|row| *row < samples).collect(),
            None => (0..samples).collect(),
        }
    }

    /// The rows that are read, in ascending order: the needed ones, and where samples are `mixed`, their partners.
    pub fn read(&self, column: usize, samples: usize, mixed: bool) -> Vec<usize> {
        let mut rows = self.needed(column, samples);
        if mixed {
            rows.extend(rows.clone().into_iter().map(|row| partner(row, samples)));
            rows.sort_unstable();
            rows.dedup();
        }
        rows
    }
}

/// The row that a row of a batch is mixed with: that as far from the other end.
pub(super) fn partner(row: usize, samples: usize) -> usize {
    samples - 1 - row
}

#[cfg(test)]
mod tests {
    use of_plan::{AxisLayout, ElementType, LayoutKind, Microbatches};

    use super::*;

    fn port(dims: &[i64], layout: &[AxisLayout], microbatches: Option<(u32, u32)>) -> MeshPort {
        MeshPort {
            name: "x".into(),
            dtype: ElementType::F32 as i32,
            dims: dims.to_vec(),
            layout: layout.to_vec(),
            microbatches: microbatches.map(|(axis, count)| Microbatches { axis, count }),
        }
    }

    fn rows(shape: &[u32], port: MeshPort, samples: usize) -> Vec<Vec<usize>> {
        let ranks = shape.iter().product::<u32>() as usize;
        let program = MeshProgram { shape: shape.to_vec(), inputs: vec![port], ..MeshProgram::default() };
        (0..ranks).map(|rank| BatchRows::of_rank(&program, rank).needed(0, samples)).collect()
    }

    #[test]
    fn a_rank_needs_the_rows_of_its_part() {
        let (whole, split) = (AxisLayout::of(LayoutKind::Broadcast), AxisLayout::split);
        assert_eq!(rows(&[2], port(&[5, 3], &[split(0)], None), 5), [vec![0, 1, 2], vec![3, 4]]);
        // Another axis is cut, or none.
        assert_eq!(rows(&[2], port(&[2, 4], &[split(1)], None), 2), [[0, 1], [0, 1]]);
        assert_eq!(rows(&[2], port(&[2, 4], &[whole], None), 2), [[0, 1], [0, 1]]);
        assert_eq!(rows(&[2, 2], port(&[4], &[split(0), whole], None), 4), [[0, 1], [0, 1], [2, 3], [2, 3]]);
        assert_eq!(rows(&[2, 2], port(&[4], &[split(0), split(0)], None), 4), [[0], [1], [2], [3]]);
        // Each microbatch is cut.
        let cut = rows(&[2], port(&[8, 3], &[split(0)], Some((0, 2))), 8);
        assert_eq!(cut, [[0, 1, 4, 5], [2, 3, 6, 7]]);
        // The second stage has the input.
        let of_stage = rows(&[2, 2], port(&[4], &[AxisLayout::at(1), split(0)], None), 4);
        assert_eq!(of_stage, [vec![], vec![], vec![0, 1], vec![2, 3]]);
        // A run decides the extent.
        assert_eq!(rows(&[2], port(&[OPEN, 3], &[split(0)], None), 2), [[0, 1], [0, 1]]);
    }

    #[test]
    fn partners_of_mixed_rows_are_read() {
        let rows = BatchRows { columns: vec![Some(vec![0, 1]), Some(Vec::new())] };
        assert_eq!((rows.read(0, 6, false), rows.read(0, 6, true)), (vec![0, 1], vec![0, 1, 4, 5]));
        assert_eq!((rows.read(0, 3, true), rows.read(1, 6, true)), (vec![0, 1, 2], vec![]));
        assert_eq!(BatchRows::all().read(0, 3, true), [0, 1, 2]);
    }
}
