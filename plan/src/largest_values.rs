//! The largest values of a program: what a message names where memory does not suffice.

use std::fmt;

use crate::{Program, Storage};

/// A value with a fixed location in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LargeValue {
    /// Name of its register.
    pub name: String,
    /// Element type and extents.
    pub ty: String,
    /// Bytes of all copies.
    pub bytes: u64,
    /// Task that computes it, and the ops that the task came from.
    pub place: String,
}

impl fmt::Display for LargeValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}' {}, {}, made by {}", self.name, self.ty, binary_size(self.bytes), self.place)
    }
}

/// The `count` largest values of a program whose location is fixed, the largest first. Values of open extents are absent.
pub fn largest_values(program: &Program, count: usize) -> Vec<LargeValue> {
    let mut sizes: Vec<(u64, usize)> = program
        .registers
        .iter()
        .enumerate()
        .filter_map(|(i, register)| match &register.storage {
            Some(Storage::Block(block)) => Some((block.extent(register.copies), i)),
            _ => None,
        })
        .collect();
    sizes.sort_by_key(|(bytes, i)| (std::cmp::Reverse(*bytes), *i));
    sizes.into_iter().take(count).map(|(bytes, i)| describe(program, i, bytes)).collect()
}

fn describe(program: &Program, index: usize, bytes: u64) -> LargeValue {
    let register = &program.registers[index];
    let place = match program.tasks.iter().find(|task| task.id == register.producer) {
        Some(task) if task.locations.is_empty() => format!("task '{}'", task.name),
        Some(task) => format!("task '{}' ({})", task.name, task.locations[0]),
        None => "no task".into(),
    };
    LargeValue { name: register.name.clone(), ty: format!("{}{:?}", register.dtype(), register.dims), bytes, place }
}

/// Bytes in the unit that suits them.
pub fn binary_size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut number = bytes as f64 / 1024.0;
    let mut unit = 0;
    while number >= 1024.0 && unit + 1 < UNITS.len() {
        number /= 1024.0;
        unit += 1;
    }
    format!("{number:.1} {}", UNITS[unit])
}
