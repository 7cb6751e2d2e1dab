//! The actor: a pure state machine over messages, with credit-based flow control.
//!
//! An actor acts when every register it consumes is full and every register it produces has a free copy. It requests the
//! work with [`Action::Act`] and receives [`Msg::Acted`] when the work is done. So the threads and the simulator drive the
//! same code. For asynchronous work it receives [`Msg::Launched`] first; consumers that need not wait for completion are
//! notified then ([`Actor::notify_at_launch`]).
//!
//! Flow control is by credits: an actor may fill as many copies of a register (`copies`) as are free. A consumer's
//! acknowledgement ([`Msg::Acked`]) returns the credit. So a producer runs ahead of its consumers by at most that many
//! iterations; this is the back-pressure.
//!
//! In a program with microbatches an actor may act several times for one value of a register: it keeps what it read or has begun to
//! fill until the last of these acts ([`of_plan::Rates`]).
//!
//! An input-wise actor acts once for each of its parts: on any that has arrived and that it has not taken yet, once control edges and
//! the output's copy are there. It acknowledges the part then, and all else after the last part. It begins the next iteration after
//! that, so no part of it is taken early.
//!
//! Messages between two actors must arrive in the order in which they were sent.

use of_plan::{Program, Rates, Task, TaskGraph};

/// An actor: the index of its task in the program.
pub type ActorId = u32;

/// A message to an actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Msg {
    /// A register it consumes is full.
    Filled {
        /// Which of its inputs.
        input: u32,
        /// Which iteration the register holds.
        iteration: u64,
    },
    /// Acknowledgement: a consumer has released a register that the actor produced.
    Acked {
        /// Which of its outputs.
        output: u32,
        /// Which iteration the register held.
        iteration: u64,
    },
    /// Command to a source (an actor that consumes nothing): act on so many more iterations.
    Start {
        /// How many.
        iterations: u64,
    },
    /// Command to a source: no more iterations will be started; end when all are done.
    Stop,
    /// The producer of an input has ended; its last register was filled before.
    Ended {
        /// Which of its inputs.
        input: u32,
    },
    /// The requested work was launched asynchronously; its host inputs have been read.
    Launched,
    /// The requested work is done.
    Acted,
}

/// A request of an actor to its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Do the task's work on an iteration, then send [`Msg::Acted`]. [`Actor::part`] says on which part an input-wise task works.
    Act {
        /// Which iteration. A task that acts several times in one counts its acts.
        iteration: u64,
    },
    /// Deliver a message.
    Send {
        /// The receiver.
        to: ActorId,
        /// The message.
        msg: Msg,
    },
    /// The actor has ended, and all its registers are free.
    Done,
}

/// A message that is invalid in the actor's state: the sender or the bus violated the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("actor {actor} in iteration {iteration} cannot receive {msg:?}")]
pub struct ProtocolError {
    /// The actor.
    pub actor: ActorId,
    /// The iteration that the actor is on.
    pub iteration: u64,
    /// The message.
    pub msg: Msg,
}

/// A register it consumes.
#[derive(Clone, Debug)]
struct Input {
    producer: ActorId,
    producer_output: u32,
    /// How many acts consume one value.
    period: u64,
    /// Full copies that are not consumed yet.
    full: u32,
    /// Number of iterations that arrived so far.
    received: u64,
    ended: bool,
    /// For a part of an input-wise task, which one, and whether it was taken in this iteration.
    part: Option<usize>,
    taken: bool,
}

impl Input {
    /// Whether an input-wise task can act on it.
    fn is_waiting_part(&self) -> bool {
        self.part.is_some() && !self.taken && self.full > 0
    }
}

/// A register it produces.
#[derive(Clone, Debug)]
struct Output {
    consumers: Vec<Consumer>,
    /// For each copy, consumers that have not acknowledged it yet.
    pending: Vec<u32>,
    /// How many acts fill one value.
    period: u64,
}

/// A consumer of a register.
#[derive(Clone, Copy, Debug)]
struct Consumer {
    actor: ActorId,
    input: u32,
    /// Whether it is notified when the work is launched, rather than when it is done.
    at_launch: bool,
}

impl Output {
    /// The copy of a value, by its number.
    fn copy_of(&self, value: u64) -> usize {
        match self.pending.len() {
            1 => 0,
            num => (value % num as u64) as usize,
        }
    }

    /// Whether an act can fill its value: it has begun to in an earlier act, or the copy is free.
    fn is_free(&self, act: u64) -> bool {
        let (value, first) = value_of(act, self.period);
        !first || self.pending[self.copy_of(value)] == 0
    }
}

/// The number of the value that an act works on, and whether it is the first act to do so.
#[inline]
fn value_of(act: u64, period: u64) -> (u64, bool) {
    if period == 1 { (act, true) } else { (act / period, act.is_multiple_of(period)) }
}

/// The number of the value that an act completes, if it does.
#[inline]
fn completed(act: u64, period: u64) -> Option<u64> {
    if period == 1 { Some(act) } else { (act + 1).is_multiple_of(period).then_some(act / period) }
}

/// The state of one task.
#[derive(Clone, Debug)]
pub struct Actor {
    id: ActorId,
    inputs: Vec<Input>,
    outputs: Vec<Output>,
    /// Inputs that are not full, parts aside, outputs that are not free, and for a source 1 while it has nothing to start.
    unmet: usize,
    /// Whether it is input-wise.
    input_wise: bool,
    /// The input that an input-wise task acts on now.
    current: Option<usize>,
    /// The iteration it acts on now or next.
    iteration: u64,
    /// For sources: iterations it may still start.
    budget: u64,
    stopping: bool,
    busy: bool,
    /// Whether the current work was launched and is not done.
    launched: bool,
    /// Whether it has sent its consumers [`Msg::Ended`].
    ended: bool,
    done: bool,
}

impl Actor {
    /// The actors of a program, in the order of its tasks.
    pub fn of_program(program: &Program, graph: &TaskGraph) -> Vec<Actor> {
        let (ids, rates) = (0..program.tasks.len() as u32, Rates::of(program, graph));
        ids.map(|id| Self::new(program, graph, &rates, id)).collect()
    }

    fn new(program: &Program, graph: &TaskGraph, rates: &Rates, id: ActorId) -> Self {
        let task = &program.tasks[id as usize];
        let period = |register: u32| u64::from(rates.period(id as usize, register));
        let inputs = task.consumes.iter().map(|&register| {
            let producer = graph.producer[register as usize];
            let producer_output = index_of(&program.tasks[producer as usize].produces, register);
            let (period, part) = (period(register), task.part_of(register));
            Input { producer, producer_output, period, full: 0, received: 0, ended: false, part, taken: false }
        });
        let inputs: Vec<_> = inputs.collect();
        let outputs = task.produces.iter().map(|&register| {
            let input_of = |actor: u32| index_of(&program.tasks[actor as usize].consumes, register);
            // A rank's transfers are executed in the order in which they are launched, so each may be launched behind the one before;
            // in a program with microbatches the schedule says when.
            let is_async = |task: &Task| program.schedule.is_empty() && task.is_async_transfer();
            let concurrent = |actor: u32| is_async(task) && is_async(&program.tasks[actor as usize]);
            let consumer = |&actor: &u32| Consumer { actor, input: input_of(actor), at_launch: concurrent(actor) };
            let consumers = graph.consumers[register as usize].iter().map(consumer).collect();
            let copies = program.registers[register as usize].copies as usize;
            Output { consumers, pending: vec![0; copies], period: period(register) }
        });
        let input_wise = inputs.iter().any(|input| input.part.is_some());
        let unmet = match inputs.is_empty() {
            true => 1,
            false => inputs.iter().filter(|input| input.part.is_none()).count(),
        };
        Self {
            id,
            outputs: outputs.collect(),
            inputs,
            unmet,
            input_wise,
            current: None,
            iteration: 0,
            budget: 0,
            stopping: false,
            busy: false,
            launched: false,
            ended: false,
            done: false,
        }
    }

    /// Notifies a consumer of an output at launch, rather than at completion.
    pub(crate) fn notify_at_launch(&mut self, output: usize, consumer: ActorId) {
        let all = self.outputs.get_mut(output).into_iter().flat_map(|output| &mut output.consumers);
        all.filter(|c| c.actor == consumer).for_each(|c| c.at_launch = true);
    }

    /// Handles a message and passes the resulting actions to `sink`.
    #[inline]
    pub fn on_message(&mut self, msg: Msg, sink: &mut impl FnMut(Action)) -> Result<(), ProtocolError> {
        match msg {
            Msg::Filled { input, iteration } => self.filled(input, iteration),
            Msg::Acked { output, iteration } => self.acked(output, iteration),
            Msg::Start { iterations } => self.start(iterations),
            Msg::Stop => self.stop(),
            Msg::Ended { input } => self.input_ended(input),
            Msg::Launched => self.launched(sink),
            Msg::Acted => self.acted(sink),
        }
        .ok_or(ProtocolError { actor: self.id, iteration: self.iteration, msg })?;
        self.proceed(sink);
        Ok(())
    }

    fn filled(&mut self, input: u32, iteration: u64) -> Option<()> {
        let input = self.inputs.get_mut(input as usize)?;
        if input.ended || input.received != iteration {
            return None;
        }
        input.received += 1;
        input.full += 1;
        if input.full == 1 && input.part.is_none() {
            self.unmet -= 1;
        }
        Some(())
    }

    fn acked(&mut self, output: u32, iteration: u64) -> Option<()> {
        let current = self.iteration;
        let output = self.outputs.get_mut(output as usize)?;
        let copy = output.copy_of(iteration);
        output.pending[copy] = output.pending[copy].checked_sub(1)?;
        // While the actor is busy, the current copy is free or held by consumers notified at launch. So only an idle actor can
        // wait for this copy.
        let (next, first) = value_of(current, output.period);
        if !self.busy && first && output.pending[copy] == 0 && copy == output.copy_of(next) {
            self.unmet -= 1;
        }
        Some(())
    }

    fn start(&mut self, iterations: u64) -> Option<()> {
        if !self.inputs.is_empty() || self.stopping || iterations == 0 {
            return None;
        }
        if self.budget == 0 {
            self.unmet -= 1;
        }
        self.budget = self.budget.checked_add(iterations)?;
        Some(())
    }

    fn stop(&mut self) -> Option<()> {
        self.stopping = true;
        self.inputs.is_empty().then_some(())
    }

    fn input_ended(&mut self, input: u32) -> Option<()> {
        let input = self.inputs.get_mut(input as usize)?;
        (!std::mem::replace(&mut input.ended, true)).then_some(())
    }

    /// The work of an iteration was launched: notifies the consumers that need not wait for completion.
    fn launched(&mut self, sink: &mut impl FnMut(Action)) -> Option<()> {
        if !self.busy || std::mem::replace(&mut self.launched, true) {
            return None;
        }
        let iteration = self.iteration;
        for output in self.outputs.iter_mut().filter(|output| output.period == 1) {
            let copy = output.copy_of(iteration);
            output.pending[copy] = output.consumers.len() as u32;
            for &Consumer { actor, input, .. } in output.consumers.iter().filter(|c| c.at_launch) {
                sink(Action::Send { to: actor, msg: Msg::Filled { input, iteration } });
            }
        }
        Some(())
    }

    /// The work of an iteration is done: acknowledges the inputs and notifies the consumers of the outputs.
    fn acted(&mut self, sink: &mut impl FnMut(Action)) -> Option<()> {
        if !std::mem::take(&mut self.busy) {
            return None;
        }
        let iteration = self.iteration;
        let launched = std::mem::take(&mut self.launched);
        self.iteration += 1;
        self.unmet = 0;
        for output in &mut self.outputs {
            if let Some(value) = completed(iteration, output.period) {
                let launched = launched && output.period == 1;
                if !launched {
                    let copy = output.copy_of(value);
                    output.pending[copy] = output.consumers.len() as u32;
                }
                for &Consumer { actor, input, .. } in output.consumers.iter().filter(|c| !(launched && c.at_launch)) {
                    sink(Action::Send { to: actor, msg: Msg::Filled { input, iteration: value } });
                }
            }
            self.unmet += usize::from(!output.is_free(self.iteration));
        }
        let current = self.current.take();
        for (number, input) in self.inputs.iter_mut().enumerate() {
            let last = completed(iteration, input.period);
            let released = match input.part {
                None => last,
                // A part is released by the act on it.
                Some(_) => (current == Some(number)).then(|| value_of(iteration, input.period).0),
            };
            if let Some(value) = released {
                input.full -= 1;
                let msg = Msg::Acked { output: input.producer_output, iteration: value };
                sink(Action::Send { to: input.producer, msg });
            }
            input.taken = input.part.is_some() && last.is_none() && (input.taken || released.is_some());
            self.unmet += usize::from(input.part.is_none() && input.full == 0);
        }
        if self.inputs.is_empty() {
            self.budget -= 1;
            self.unmet += usize::from(self.budget == 0);
        }
        Some(())
    }

    /// Acts if it can; otherwise ends if no more input can arrive.
    fn proceed(&mut self, sink: &mut impl FnMut(Action)) {
        if self.busy {
            return;
        }
        if self.unmet == 0 && self.take_part() {
            self.busy = true;
            sink(Action::Act { iteration: self.iteration });
        } else if self.stopping || self.inputs.first().is_some_and(|input| input.ended) {
            self.end(sink);
        }
    }

    /// Chooses the part that an input-wise task acts on next; `false` if it waits for one. Other tasks act on all inputs.
    #[inline]
    fn take_part(&mut self) -> bool {
        if !self.input_wise {
            return true;
        }
        self.current = self.inputs.iter().position(Input::is_waiting_part);
        self.current.is_some()
    }

    fn end(&mut self, sink: &mut impl FnMut(Action)) {
        let source_ended = self.inputs.is_empty() && self.stopping && self.budget == 0;
        let inputs_ended = !self.inputs.is_empty() && self.inputs.iter().all(|input| input.ended && input.full == 0);
        if !source_ended && !inputs_ended {
            return;
        }
        if !std::mem::replace(&mut self.ended, true) {
            for &Consumer { actor, input, .. } in self.outputs.iter().flat_map(|output| &output.consumers) {
                sink(Action::Send { to: actor, msg: Msg::Ended { input } });
            }
        }
        let all_free = self.outputs.iter().all(|output| output.pending.iter().all(|&pending| pending == 0));
        if all_free && !std::mem::replace(&mut self.done, true) {
            sink(Action::Done);
        }
    }

    /// While it acts, the index of the part that an input-wise task works on; `None` for other tasks.
    pub fn part(&self) -> Option<usize> {
        self.inputs.get(self.current?)?.part
    }

    /// Whether it consumes nothing, so that it acts on command.
    pub fn is_source(&self) -> bool {
        self.inputs.is_empty()
    }

    /// Number of iterations it has acted on.
    pub fn iterations(&self) -> u64 {
        self.iteration
    }

    /// Whether it has ended.
    pub fn is_done(&self) -> bool {
        self.done
    }
}

/// The index of a register in a task's list; the plan was verified, so it is there.
fn index_of(list: &[u32], register: u32) -> u32 {
    list.iter().position(|&other| other == register).unwrap_or(list.len()) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One register, consumed by actor 1, which is notified at launch, and by actor 2.
    fn producer(num: u32) -> Actor {
        let consumers = [(1, true), (2, false)].map(|(actor, at_launch)| Consumer { actor, input: 0, at_launch });
        let outputs = vec![Output { consumers: consumers.to_vec(), pending: vec![0; num as usize], period: 1 }];
        let (inputs, unmet) = (Vec::new(), 1);
        let (iteration, budget) = (0, 0);
        let (stopping, busy, launched, ended, done) = (false, false, false, false, false);
        let (input_wise, current) = (false, None);
        Actor {
            id: 0,
            inputs,
            outputs,
            unmet,
            input_wise,
            current,
            iteration,
            budget,
            stopping,
            busy,
            launched,
            ended,
            done,
        }
    }

    fn actions_after(actor: &mut Actor, msg: Msg) -> Vec<Action> {
        let mut actions = Vec::new();
        actor.on_message(msg, &mut |action| actions.push(action)).unwrap();
        actions
    }

    fn filled(to: ActorId, iteration: u64) -> Action {
        Action::Send { to, msg: Msg::Filled { input: 0, iteration } }
    }

    #[test]
    fn launch_notifies_a_consumer_early_and_once() {
        let mut actor = producer(1);
        let begin = Msg::Start { iterations: 2 };
        assert_eq!(actions_after(&mut actor, begin), [Action::Act { iteration: 0 }]);
        assert_eq!(actions_after(&mut actor, Msg::Launched), [filled(1, 0)]);
        assert!(actor.clone().on_message(Msg::Launched, &mut |_| ()).is_err(), "launched twice");
        assert_eq!(actions_after(&mut actor, Msg::Acted), [filled(2, 0)]);
        assert!(actor.clone().on_message(Msg::Launched, &mut |_| ()).is_err(), "launched when over");
        let acked = Msg::Acked { output: 0, iteration: 0 };
        assert_eq!(actions_after(&mut actor, acked), []);
        assert_eq!(actions_after(&mut actor, acked), [Action::Act { iteration: 1 }]);
        // Synchronous work notifies all consumers when it is done.
        assert_eq!(actions_after(&mut actor, Msg::Acted), [filled(1, 1), filled(2, 1)]);
    }

    #[test]
    fn acknowledgement_may_arrive_before_completion() {
        for num in [1, 2] {
            let mut actor = producer(num);
            let acked = Msg::Acked { output: 0, iteration: 0 };
            actions_after(&mut actor, Msg::Start { iterations: 2 });
            actions_after(&mut actor, Msg::Launched);
            assert_eq!(actions_after(&mut actor, acked), []);
            let mut next = actions_after(&mut actor, Msg::Acted);
            assert_eq!(next.remove(0), filled(2, 0));
            // The next iteration waits for the other consumer, where there is no other copy.
            next.extend(if num == 1 { actions_after(&mut actor, acked) } else { Vec::new() });
            assert_eq!(next, [Action::Act { iteration: 1 }]);
        }
    }
}
