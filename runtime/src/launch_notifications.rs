//! Who hears of a register before its producer is done.
//!
//! When work that goes on beside the host is on its way, it has read what it reads on the host, and what it will write there
//! are registers that others only look at once they hear that it is over. So two kinds of consumers go on meanwhile: those that
//! merely come after it, by a control register, and executables of the same backend that also work beside the host and get the
//! value by its handle, whose work waits where both compute.
//!
//! The order that the verifier proves memory with stays one: before whoever fills memory again come all who use it, and a user
//! that is on its way uses it no more, or has a reader, which waits.

use std::collections::HashMap;

use of_plan::{ArgSource, Exec, Links, Program};

use crate::Handle;
use crate::actor::{Actor, ActorId};
use crate::work::{Operand, Work};

/// Registers with consumers that hear of them early.
pub(crate) struct LaunchNotifications(Vec<(u32, ActorId)>);

impl LaunchNotifications {
    /// Those of a program, from its works in the order of the tasks and the handles that their executables gave.
    pub fn of(program: &Program, links: &Links, works: &[Work], handles: &HashMap<u32, (&str, Handle)>) -> Self {
        let beside = |task: u32| works[task as usize].is_async();
        let backend = |task: u32| match &program.tasks[task as usize].exec {
            Some(Exec::Backend(exec)) => Some(&exec.backend[..]),
            _ => None,
        };
        let readers = |regst: &u32| &links.consumers[*regst as usize];
        let mut out = Vec::new();
        for (task, producer) in program.tasks.iter().zip(0..).filter(|(_, id)| beside(*id)) {
            let control = |regst: &u32| program.regsts[*regst as usize].is_control();
            // What nobody reads holds nobody back from its memory, and an object may tell extents.
            let block = |regst: &u32| program.regsts[*regst as usize].block().is_some() && !readers(regst).is_empty();
            let settled = task.produces.iter().all(|regst| control(regst) || block(regst));
            for regst in &task.produces {
                let handed = handles.get(regst).is_some_and(|(by, _)| backend(producer) == Some(by));
                let inside = |to: u32| handed && beside(to) && backend(to) == backend(producer);
                let early = |to: &&u32| if control(regst) { settled } else { inside(**to) };
                out.extend(readers(regst).iter().filter(early).map(|to| (*regst, *to)));
            }
        }
        Self(out)
    }

    /// Has the actors of the program tell those consumers.
    pub fn tell(&self, program: &Program, actors: &mut [Actor]) {
        for (task, actor) in program.tasks.iter().zip(actors) {
            for (output, regst) in task.produces.iter().enumerate() {
                let consumers = self.0.iter().filter(|(own, _)| own == regst);
                consumers.for_each(|(_, consumer)| actor.notify_at_launch(output, *consumer));
            }
        }
    }

    /// Whether a consumer hears of a register early.
    fn hears(&self, regst: u32, consumer: ActorId) -> bool {
        self.0.contains(&(regst, consumer))
    }

    /// Takes the bytes from what such executables hand on: some would be written while others are begun. Each learns whose end
    /// its work waits for.
    pub fn apply(&self, program: &Program, links: &Links, works: &mut [Work]) {
        if self.0.is_empty() {
            return;
        }
        for ((task, work), id) in program.tasks.iter().zip(works).zip(0..) {
            let (Work::Backend(call), Some(Exec::Backend(exec))) = (work, &task.exec) else { continue };
            for (operand, arg) in call.inputs.iter_mut().zip(&exec.inputs) {
                if let (Operand::Place(place), Some(ArgSource::Regst(regst))) = (operand, arg.source)
                    && self.hears(regst, id)
                {
                    place.without_bytes();
                    call.after.push(links.producer[regst as usize] as usize);
                }
            }
            for (place, regst) in call.outputs.iter_mut().zip(&exec.outputs) {
                let readers = &links.consumers[*regst as usize];
                if !readers.is_empty() && readers.iter().all(|reader| self.hears(*regst, *reader)) {
                    place.without_bytes();
                }
            }
        }
    }
}
