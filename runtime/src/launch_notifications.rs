//! Consumers notified at launch of asynchronous work, before its producer is done.
//!
//! When asynchronous work is launched, it has read its host inputs, and other actors read its host outputs only after
//! completion. So two kinds of consumers may proceed at launch. The first are consumers of a control register. The second
//! are asynchronous executables of the same backend that receive the value by its handle: their work waits on the device.
//!
//! Transfers are different: one that is launched goes on to read its input, and only the next transfer may be launched meanwhile. Their
//! actors know that from the program alone ([`crate::actor`]).
//!
//! The happens-before relation of the verifier still proves memory safety: a task that reuses memory comes after all users
//! of that memory. A user that was launched no longer accesses the memory, or it has a consumer that waits for completion.

use std::collections::HashMap;

use of_plan::{ArgSource, Exec, Program, TaskGraph};

use crate::Handle;
use crate::actor::{Actor, ActorId};
use crate::bound_task::BoundTask;
use crate::task_context::Operand;

/// Pairs of a register and a consumer that is notified at launch.
pub(crate) struct LaunchNotifications(Vec<(u32, ActorId)>);

impl LaunchNotifications {
    /// The launch notifications of a program, from its bound tasks and the handles of their outputs.
    pub fn of(
        program: &Program,
        graph: &TaskGraph,
        bound_tasks: &[BoundTask],
        handles: &HashMap<u32, (&str, Handle)>,
    ) -> Self {
        let is_async = |task: u32| bound_tasks[task as usize].is_async();
        let backend = |task: u32| match &program.tasks[task as usize].exec {
            Some(Exec::Backend(exec)) => Some(&exec.backend[..]),
            _ => None,
        };
        let readers = |register: &u32| &graph.consumers[*register as usize];
        let mut out = Vec::new();
        let executables = |id: &u32| is_async(*id) && !bound_tasks[*id as usize].is_transfer();
        for (task, producer) in program.tasks.iter().zip(0..).filter(|(_, id)| executables(id)) {
            let control = |register: &u32| program.registers[*register as usize].is_control();
            // An output without readers cannot delay reuse of its memory, and an object may bind shape symbols.
            let block = |register: &u32| {
                program.registers[*register as usize].block().is_some() && !readers(register).is_empty()
            };
            let settled = task.produces.iter().all(|register| control(register) || block(register));
            for register in &task.produces {
                let has_handle = handles.get(register).is_some_and(|(by, _)| backend(producer) == Some(by));
                let same_backend = |to: u32| has_handle && is_async(to) && backend(to) == backend(producer);
                let at_launch = |to: &&u32| if control(register) { settled } else { same_backend(**to) };
                out.extend(readers(register).iter().filter(at_launch).map(|to| (*register, *to)));
            }
        }
        Self(out)
    }

    /// Makes the producers' actors notify those consumers at launch.
    pub fn enable(&self, program: &Program, actors: &mut [Actor]) {
        for (task, actor) in program.tasks.iter().zip(actors) {
            for (output, register) in task.produces.iter().enumerate() {
                let consumers = self.0.iter().filter(|(notified, _)| notified == register);
                consumers.for_each(|(_, consumer)| actor.notify_at_launch(output, *consumer));
            }
        }
    }

    /// Whether a consumer is notified of a register at launch.
    fn is_notified(&self, register: u32, consumer: ActorId) -> bool {
        self.0.contains(&(register, consumer))
    }

    /// Removes the host bytes of values that such executables pass on by handle: they could be written while a consumer is
    /// launched. Each consumer records the tasks whose completion its work waits for.
    pub fn apply(&self, program: &Program, graph: &TaskGraph, bound_tasks: &mut [BoundTask]) {
        if self.0.is_empty() {
            return;
        }
        for ((task, work), id) in program.tasks.iter().zip(bound_tasks).zip(0..) {
            let (BoundTask::Backend(call), Some(Exec::Backend(exec))) = (work, &task.exec) else { continue };
            for (operand, arg) in call.inputs.iter_mut().zip(&exec.inputs) {
                if let (Operand::Register(place), Some(ArgSource::Register(register))) = (operand, arg.source)
                    && self.is_notified(register, id)
                {
                    place.without_bytes();
                    call.after.push(graph.producer[register as usize] as usize);
                }
            }
            for (place, register) in call.outputs.iter_mut().zip(&exec.outputs) {
                let readers = &graph.consumers[*register as usize];
                if !readers.is_empty() && readers.iter().all(|reader| self.is_notified(*register, *reader)) {
                    place.without_bytes();
                }
            }
        }
    }
}
