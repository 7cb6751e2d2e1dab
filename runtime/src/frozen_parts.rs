//! The parts of variables that a process writes of a state between two runs, where ranks share the work.
//!
//! Of ranks that have equal parts one writes them, such that all write about as many bytes.

use std::sync::Arc;

use of_plan::{ElementType, LayoutKind, MeshPort, MeshProgram, Variable, coords, holds, partial_kind};

use crate::{FrozenVariables, RunError, Tensor};

/// A part of a variable's value between two runs.
#[derive(Debug)]
pub struct FrozenPart {
    /// The variable.
    pub name: String,
    /// The element type.
    pub dtype: ElementType,
    /// The extents of the whole value.
    pub dims: Vec<i64>,
    /// Where the part starts along each axis, and how long it is.
    pub block: Vec<(usize, usize)>,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Frozen(Arc<FrozenVariables>, usize),
    Value(Tensor),
}

impl FrozenPart {
    /// Passes the bytes to `take` piece by piece. Runs that update the variable meanwhile wait for a piece at most.
    ///
    /// # Errors
    /// When the value was released.
    pub fn read(&self, take: &mut dyn FnMut(&[u8])) -> Result<(), RunError> {
        match &self.source {
            Source::Frozen(frozen, index) => frozen.read(*index, take),
            Source::Value(tensor) => {
                take(tensor.bytes().unwrap_or_default());
                Ok(())
            }
        }
    }

    /// Says that the value is not needed any more: it need not be saved before an update.
    pub fn release(&self) {
        if let Source::Frozen(frozen, index) = &self.source {
            frozen.release(*index);
        }
    }

    /// Whether it is the whole value.
    pub fn is_whole(&self) -> bool {
        self.block.iter().zip(&self.dims).all(|((_, n), d)| *n as i64 == *d)
    }

    /// The bytes of the part.
    pub fn len(&self) -> u64 {
        let dims: Vec<i64> = self.block.iter().map(|(_, n)| *n as i64).collect();
        self.dtype.byte_len(&dims).unwrap_or(0)
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All values of variables, in the order in which a run updates them.
    pub(crate) fn all(frozen: &Arc<FrozenVariables>) -> Vec<FrozenPart> {
        let part = |index: &usize| {
            let variable = &frozen.list()[*index];
            let block = variable.dims.iter().map(|d| (0, *d as usize)).collect();
            FrozenPart::of(variable, variable.dims.clone(), block, Source::Frozen(Arc::clone(frozen), *index))
        };
        frozen.update_order().iter().map(part).collect()
    }

    /// A whole value.
    pub(crate) fn of_value(port: &MeshPort, value: Tensor) -> FrozenPart {
        let block = port.dims.iter().map(|d| (0, *d as usize)).collect();
        let (name, dtype, dims) = (port.name.clone(), port.dtype(), port.dims.clone());
        FrozenPart { name, dtype, dims, block, source: Source::Value(value) }
    }

    fn of(variable: &Variable, dims: Vec<i64>, block: Vec<(usize, usize)>, source: Source) -> FrozenPart {
        FrozenPart { name: variable.name.clone(), dtype: variable.dtype(), dims, block, source }
    }
}

/// What a rank writes of the state of a mesh.
#[derive(Debug, Default)]
pub(crate) struct Share {
    /// For each variable of the rank its extents as a whole, and the block of it, where the rank writes it.
    parts: Vec<Option<(Vec<i64>, Block)>>,
}

type Block = Vec<(usize, usize)>;

impl Share {
    /// That of a rank, which has these variables.
    pub fn of(program: &MeshProgram, rank: usize, own: &[Variable]) -> Share {
        let writers = writers(program);
        let part = |variable: &Variable| {
            let whole = program.variables.iter().position(|port| port.name == variable.name)?;
            let (_, block) = writers[whole].iter().find(|(writer, _)| *writer == rank)?;
            Some((program.variables[whole].dims.clone(), block.clone()))
        };
        Share { parts: own.iter().map(part).collect() }
    }

    /// The parts of frozen variables, in the order in which a run updates them. Those that others write are released.
    pub fn parts(&self, frozen: &Arc<FrozenVariables>) -> Vec<FrozenPart> {
        let part = |index: &usize| {
            let Some(Some((dims, block))) = self.parts.get(*index) else {
                frozen.release(*index);
                return None;
            };
            let source = Source::Frozen(Arc::clone(frozen), *index);
            Some(FrozenPart::of(&frozen.list()[*index], dims.clone(), block.clone(), source))
        };
        frozen.update_order().iter().filter_map(part).collect()
    }
}

/// A rank, and the block of a variable that it writes.
type Writer = (usize, Block);

/// For each variable of a mesh the ranks that write its parts. Partial values have none: their elements are on no rank.
fn writers(program: &MeshProgram) -> Vec<Vec<Writer>> {
    let mesh = program.extents();
    let mut load = vec![0u64; program.ranks.len()];
    let of_port = |port: &MeshPort| {
        let mut out: Vec<Writer> = Vec::new();
        if partial_kind(&port.layout).is_some() {
            return out;
        }
        let blocks = (0..program.ranks.len()).map(|rank| (rank, coords(&mesh, rank)));
        let blocks = blocks.filter(|(_, at)| holds(&port.layout, at)).map(|(rank, at)| {
            // Equal ranks have equal coordinates along the axes that divide the value.
            let broadcasts = port.layout.iter().map(|layout| layout.kind() == LayoutKind::Broadcast);
            let key: Vec<usize> = broadcasts.zip(&at).map(|(same, at)| if same { 0 } else { *at }).collect();
            (key, rank, port.block(&mesh, &at, 0))
        });
        let mut holders: Vec<_> = blocks.collect();
        holders.sort();
        for equal in holders.chunk_by(|a, b| a.0 == b.0) {
            let least = equal.iter().min_by_key(|(_, rank, _)| (load[*rank], *rank));
            let Some((_, rank, block)) = least else { continue };
            let dims: Vec<i64> = block.iter().map(|(_, n)| *n as i64).collect();
            load[*rank] += port.dtype().byte_len(&dims).unwrap_or(0);
            out.push((*rank, block.clone()));
        }
        out
    };
    program.variables.iter().map(of_port).collect()
}

/// The numbers of variables that are partial values.
pub(crate) fn partial_variables(program: &MeshProgram) -> impl Iterator<Item = usize> + '_ {
    (0..program.variables.len()).filter(|index| partial_kind(&program.variables[*index].layout).is_some())
}

#[cfg(test)]
mod tests {
    use of_plan::{AxisLayout, Rank};

    use super::*;

    fn port(name: &str, rows: i64, layout: &[AxisLayout]) -> MeshPort {
        let dtype = ElementType::F32 as i32;
        MeshPort { name: name.into(), dims: vec![rows, 4], layout: layout.to_vec(), dtype, ..MeshPort::default() }
    }

    #[test]
    fn ranks_share_the_work_and_write_each_element_once() {
        let (all, rows, columns) = (AxisLayout::of(LayoutKind::Broadcast), AxisLayout::split(0), AxisLayout::split(1));
        let variables = vec![
            port("replicated", 10, &[all, all]),
            port("rows", 6, &[rows, all]),
            port("quarters", 7, &[rows, columns]),
            port("staged", 5, &[AxisLayout::at(1), all]),
            port("small", 1, &[all, all]),
        ];
        let mesh =
            MeshProgram { shape: vec![2, 2], ranks: vec![Rank::default(); 4], variables, ..MeshProgram::default() };
        let writers = writers(&mesh);
        for (port, parts) in mesh.variables.iter().zip(&writers) {
            let mut written = vec![0; (port.dims[0] * port.dims[1]) as usize];
            for (rank, block) in parts {
                assert_eq!(*block, port.block(&mesh.extents(), &coords(&mesh.extents(), *rank), 0));
                for row in block[0].0..block[0].0 + block[0].1 {
                    (block[1].0..block[1].0 + block[1].1).for_each(|column| written[row * 4 + column] += 1);
                }
            }
            assert!(written.iter().all(|n| *n == 1), "{}: {written:?}", port.name);
        }
        assert!(writers[3].iter().all(|(rank, _)| *rank >= 2), "only the second stage has it");
        let load = |rank| writers.iter().flatten().filter(|(own, _)| *own == rank).count();
        assert!((0..4).all(|rank| load(rank) > 0), "{writers:?}");
    }
}
