//! Reuse distance: how many bytes a rank touched since it last touched the same memory. It selects the cache level.
//!
//! Memory is tracked in pages. For each page the model keeps how many bytes had been touched by its last use. Bytes that are
//! touched twice count twice, so this is an upper bound of the stack distance of Mattson et al., "Evaluation techniques
//! for storage hierarchies" (1970). It is capped by the number of bytes that the rank touches at all.

use std::collections::HashMap;

use of_plan::{Arg, ArgSource, ConcatPart, Exec, Plan, Program, Task};

/// Bytes of a page.
const PAGE: u64 = 1 << 16;

/// The owner of memory: a chunk, the weights, an input or output of the caller.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Space {
    Chunk(u32),
    Weights,
    Input(u32),
    Output(u32),
}

/// A range of bytes.
#[derive(Clone, Copy)]
struct Range {
    space: Space,
    start: u64,
    bytes: u64,
}

/// The memory touched so far, and when.
#[derive(Default)]
pub(super) struct Reuse {
    last: HashMap<(Space, u64), u64>,
    clock: u64,
}

impl Reuse {
    /// Runs the tasks of a rank once. Returns for each task the bytes that it touches and the seconds to load them; `seconds` gives
    /// the time for a number of bytes at a reuse distance.
    pub fn run(&mut self, plan: &Plan, program: &Program, seconds: &dyn Fn(u64, u64) -> f64) -> Vec<(u64, f64)> {
        let ranges = |task| touched(task, plan, program).into_iter();
        let mut touch = |range: Range| self.touch(range, seconds);
        let add = |(b, s): (u64, f64), (bytes, t): (u64, f64)| (b + bytes, s + t);
        program.tasks.iter().map(|task| ranges(task).map(&mut touch).fold((0, 0.0), add)).collect()
    }

    fn touch(&mut self, range: Range, seconds: &dyn Fn(u64, u64) -> f64) -> (u64, f64) {
        let (end, all) = (range.start + range.bytes, PAGE * self.last.len() as u64);
        let mut sum = 0.0;
        for page in range.start / PAGE..end.div_ceil(PAGE) {
            let bytes = end.min((page + 1) * PAGE) - range.start.max(page * PAGE);
            self.clock += bytes;
            let before = self.last.insert((range.space, page), self.clock);
            sum += seconds(bytes, before.map_or(u64::MAX, |before| (self.clock - before).min(all)));
        }
        (range.bytes, sum)
    }
}

/// The ranges that a task reads and writes.
fn touched(task: &Task, plan: &Plan, program: &Program) -> Vec<Range> {
    let register = |id: u32| {
        let block = program.registers.get(id as usize)?.block()?;
        Some(Range { space: Space::Chunk(block.chunk), start: block.offset, bytes: block.bytes })
    };
    let arg = |arg: &Arg| match arg.source? {
        ArgSource::Register(id) => register(id),
        ArgSource::Weight(index) => {
            let weight = plan.weights.get(index as usize)?;
            Some(Range { space: Space::Weights, start: weight.offset, bytes: weight.len })
        }
    };
    let registers = |ids: &[u32]| ids.iter().filter_map(|id| register(*id)).collect::<Vec<_>>();
    // Of the caller's memory as much as of the registers.
    let with_port = |space: Space, ids: &[u32]| {
        let mut out = registers(ids);
        out.extend(registers(ids).into_iter().map(|r| Range { space, start: 0, ..r }));
        out
    };
    match &task.exec {
        Some(Exec::Kernel(e)) => e.args.iter().filter_map(arg).collect(),
        Some(Exec::Backend(e)) => e.inputs.iter().filter_map(arg).chain(registers(&e.outputs)).collect(),
        Some(Exec::Copy(e)) => {
            [&e.src, &e.dst].into_iter().filter_map(arg).map(|r| Range { bytes: e.bytes.min(r.bytes), ..r }).collect()
        }
        Some(Exec::Concat(e)) => {
            let part = |part: &ConcatPart| arg(&part.src).map(|r| Range { bytes: part.bytes.min(r.bytes), ..r });
            e.parts.iter().filter_map(part).chain(register(e.dst)).collect()
        }
        Some(Exec::Boxing(e)) => {
            e.transfers().filter_map(|(_, src, _)| arg(src)).chain(registers(&task.produces)).collect()
        }
        Some(Exec::Feed(e)) => with_port(Space::Input(e.port), &task.produces),
        Some(Exec::Fetch(e)) => with_port(Space::Output(e.port), &task.consumes),
        Some(Exec::Control(_)) | None => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_just_touched_is_near() {
        let mut reuse = Reuse::default();
        let distance = |_: u64, distance: u64| distance as f64;
        let at = |start, bytes| Range { space: Space::Weights, start, bytes };
        assert_eq!(reuse.touch(at(0, PAGE), &distance).1, u64::MAX as f64);
        assert_eq!(reuse.touch(at(PAGE, PAGE), &distance).1, u64::MAX as f64);
        // Itself, and the other in between; both when there are only these.
        assert_eq!(reuse.touch(at(0, PAGE), &distance), (PAGE, (2 * PAGE) as f64));
        assert_eq!(reuse.touch(at(0, PAGE), &distance), (PAGE, PAGE as f64));
        for _ in 0..9 {
            reuse.touch(at(PAGE, PAGE), &distance);
        }
        assert_eq!(reuse.touch(at(0, PAGE), &distance), (PAGE, (2 * PAGE) as f64));
    }
}
