//! The actor: a pure state machine over messages.
//!
//! An actor acts when every register it consumes is full and every register it produces has a free copy. What it does
//! then is not its business: it asks for it with [`Action::Act`], and is told with [`Msg::Acted`] when it is done. So
//! the threads and the simulator drive the very same code. Work that goes on beside the host is told of with
//! [`Msg::Begun`] before, and consumers that need not wait for its end hear of it then ([`Actor::notify_at_launch`]). The number of copies of a register (`regst_num`) lets a
//! producer run ahead of its consumers by that many pieces, and holds it back there.
//!
//! Messages between two actors must arrive in the order in which they were sent.

use of_plan::{Links, Program};

/// An actor: the index of its task in the program.
pub type ActorId = u32;

/// What an actor is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Msg {
    /// A register it consumes is full.
    Filled {
        /// Which of its inputs.
        input: u32,
        /// Which piece the register holds.
        piece: u64,
    },
    /// A consumer has no more use for a register it produced.
    Acked {
        /// Which of its outputs.
        output: u32,
        /// Which piece the register held.
        piece: u64,
    },
    /// Command to a source (an actor that consumes nothing): act on so many more pieces.
    Start {
        /// How many.
        pieces: u64,
    },
    /// Command to a source: no more pieces will be started; end when all are through.
    Stop,
    /// The producer of an input has ended; its last register was filled before.
    Ended {
        /// Which of its inputs.
        input: u32,
    },
    /// The work it asked for is on its way; what it reads on the host is read.
    Begun,
    /// The work it asked for is done.
    Acted,
}

/// What an actor asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Do the task's work on a piece, then send [`Msg::Acted`].
    Act {
        /// Which piece.
        piece: u64,
    },
    /// Deliver a message.
    Send {
        /// To whom.
        to: ActorId,
        /// What.
        msg: Msg,
    },
    /// The actor has ended, and all its registers are free.
    Done,
}

/// A message that no actor in this state can get: the sender or the bus broke the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("actor {actor} on piece {piece} cannot get {msg:?}")]
pub struct ProtocolError {
    /// Who got it.
    pub actor: ActorId,
    /// On which piece it was.
    pub piece: u64,
    /// What it got.
    pub msg: Msg,
}

/// A register it consumes.
#[derive(Clone, Debug)]
struct Input {
    producer: ActorId,
    producer_output: u32,
    /// Full copies that wait.
    full: u32,
    /// Pieces that came so far.
    received: u64,
    ended: bool,
}

/// A register it produces.
#[derive(Clone, Debug)]
struct Output {
    consumers: Vec<Consumer>,
    /// For each copy, consumers that have not acknowledged it yet.
    pending: Vec<u32>,
}

/// Who consumes it.
#[derive(Clone, Copy, Debug)]
struct Consumer {
    actor: ActorId,
    input: u32,
    /// Whether it hears of the register when the work is on its way.
    early: bool,
}

impl Output {
    fn copy_of(&self, piece: u64) -> usize {
        match self.pending.len() {
            1 => 0,
            num => (piece % num as u64) as usize,
        }
    }

    fn is_free(&self, piece: u64) -> bool {
        self.pending[self.copy_of(piece)] == 0
    }
}

/// The state of one task.
#[derive(Clone, Debug)]
pub struct Actor {
    id: ActorId,
    inputs: Vec<Input>,
    outputs: Vec<Output>,
    /// Inputs that are not full, outputs that are not free, and for a source 1 while it has nothing to start.
    unmet: usize,
    /// The piece it acts on now or next.
    piece: u64,
    /// For sources: pieces it may still start.
    budget: u64,
    stopping: bool,
    busy: bool,
    /// Whether the work that it is busy with is on its way.
    begun: bool,
    /// Whether it told its consumers that it has ended.
    ended: bool,
    done: bool,
}

impl Actor {
    /// The actors of a program, in the order of its tasks.
    pub fn of_program(program: &Program, links: &Links) -> Vec<Actor> {
        let ids = 0..program.tasks.len() as u32;
        ids.map(|id| Self::new(program, links, id)).collect()
    }

    fn new(program: &Program, links: &Links, id: ActorId) -> Self {
        let task = &program.tasks[id as usize];
        let inputs = task.consumes.iter().map(|&regst| {
            let producer = links.producer[regst as usize];
            let producer_output = place_of(&program.tasks[producer as usize].produces, regst);
            Input { producer, producer_output, full: 0, received: 0, ended: false }
        });
        let inputs: Vec<_> = inputs.collect();
        let outputs = task.produces.iter().map(|&regst| {
            let input_of = |actor: u32| place_of(&program.tasks[actor as usize].consumes, regst);
            let consumer = |&actor: &u32| Consumer { actor, input: input_of(actor), early: false };
            let consumers = links.consumers[regst as usize].iter().map(consumer).collect();
            Output { consumers, pending: vec![0; program.regsts[regst as usize].num as usize] }
        });
        let unmet = inputs.len().max(1);
        Self {
            id,
            outputs: outputs.collect(),
            inputs,
            unmet,
            piece: 0,
            budget: 0,
            stopping: false,
            busy: false,
            begun: false,
            ended: false,
            done: false,
        }
    }

    /// Has a consumer of an output, by its number, hear of it when the work is on its way.
    pub(crate) fn notify_at_launch(&mut self, output: usize, consumer: ActorId) {
        let all = self.outputs.get_mut(output).into_iter().flat_map(|output| &mut output.consumers);
        all.filter(|c| c.actor == consumer).for_each(|c| c.early = true);
    }

    /// Takes a message and gives what follows from it to `sink`.
    #[inline]
    pub fn on_message(&mut self, msg: Msg, sink: &mut impl FnMut(Action)) -> Result<(), ProtocolError> {
        match msg {
            Msg::Filled { input, piece } => self.filled(input, piece),
            Msg::Acked { output, piece } => self.acked(output, piece),
            Msg::Start { pieces } => self.start(pieces),
            Msg::Stop => self.stop(),
            Msg::Ended { input } => self.input_ended(input),
            Msg::Begun => self.begun(sink),
            Msg::Acted => self.acted(sink),
        }
        .ok_or(ProtocolError { actor: self.id, piece: self.piece, msg })?;
        self.proceed(sink);
        Ok(())
    }

    fn filled(&mut self, input: u32, piece: u64) -> Option<()> {
        let input = self.inputs.get_mut(input as usize)?;
        if input.ended || input.received != piece {
            return None;
        }
        input.received += 1;
        input.full += 1;
        if input.full == 1 {
            self.unmet -= 1;
        }
        Some(())
    }

    fn acked(&mut self, output: u32, piece: u64) -> Option<()> {
        let current = self.piece;
        let output = self.outputs.get_mut(output as usize)?;
        let copy = output.copy_of(piece);
        output.pending[copy] = output.pending[copy].checked_sub(1)?;
        // While it acts, the copy of the current piece is free or with those who were told early, so only afterwards can this
        // be the one it waits for.
        if !self.busy && output.pending[copy] == 0 && copy == output.copy_of(current) {
            self.unmet -= 1;
        }
        Some(())
    }

    fn start(&mut self, pieces: u64) -> Option<()> {
        if !self.inputs.is_empty() || self.stopping || pieces == 0 {
            return None;
        }
        if self.budget == 0 {
            self.unmet -= 1;
        }
        self.budget = self.budget.checked_add(pieces)?;
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

    /// The work on a piece is on its way: those who need not wait for its end go on.
    fn begun(&mut self, sink: &mut impl FnMut(Action)) -> Option<()> {
        if !self.busy || std::mem::replace(&mut self.begun, true) {
            return None;
        }
        let piece = self.piece;
        for output in &mut self.outputs {
            let copy = output.copy_of(piece);
            output.pending[copy] = output.consumers.len() as u32;
            for &Consumer { actor, input, .. } in output.consumers.iter().filter(|c| c.early) {
                sink(Action::Send { to: actor, msg: Msg::Filled { input, piece } });
            }
        }
        Some(())
    }

    /// The work on a piece is done: its inputs go back to their producers and its outputs on to their consumers.
    fn acted(&mut self, sink: &mut impl FnMut(Action)) -> Option<()> {
        if !std::mem::take(&mut self.busy) {
            return None;
        }
        let piece = self.piece;
        let begun = std::mem::take(&mut self.begun);
        self.piece += 1;
        self.unmet = 0;
        for output in &mut self.outputs {
            if !begun {
                let copy = output.copy_of(piece);
                output.pending[copy] = output.consumers.len() as u32;
            }
            for &Consumer { actor, input, .. } in output.consumers.iter().filter(|c| !(begun && c.early)) {
                sink(Action::Send { to: actor, msg: Msg::Filled { input, piece } });
            }
            self.unmet += usize::from(!output.is_free(self.piece));
        }
        for input in &mut self.inputs {
            input.full -= 1;
            self.unmet += usize::from(input.full == 0);
            let msg = Msg::Acked { output: input.producer_output, piece };
            sink(Action::Send { to: input.producer, msg });
        }
        if self.inputs.is_empty() {
            self.budget -= 1;
            self.unmet += usize::from(self.budget == 0);
        }
        Some(())
    }

    /// Acts if it can; otherwise ends if nothing more can come.
    fn proceed(&mut self, sink: &mut impl FnMut(Action)) {
        if self.busy {
            return;
        }
        if self.unmet == 0 {
            self.busy = true;
            sink(Action::Act { piece: self.piece });
        } else if self.stopping || self.inputs.first().is_some_and(|input| input.ended) {
            self.end(sink);
        }
    }

    fn end(&mut self, sink: &mut impl FnMut(Action)) {
        let source_over = self.inputs.is_empty() && self.stopping && self.budget == 0;
        let inputs_over = !self.inputs.is_empty() && self.inputs.iter().all(|input| input.ended && input.full == 0);
        if !source_over && !inputs_over {
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

    /// Whether it consumes nothing, so that it acts on command.
    pub fn is_source(&self) -> bool {
        self.inputs.is_empty()
    }

    /// Pieces it has acted on.
    pub fn pieces(&self) -> u64 {
        self.piece
    }

    /// Whether it has ended.
    pub fn is_done(&self) -> bool {
        self.done
    }
}

/// The place of a register in a task's list; the plan was verified, so it is there.
fn place_of(list: &[u32], regst: u32) -> u32 {
    list.iter().position(|&other| other == regst).unwrap_or(list.len()) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One register, read by actor 1 early and by actor 2.
    fn producer(num: u32) -> Actor {
        let consumers = [(1, true), (2, false)].map(|(actor, early)| Consumer { actor, input: 0, early });
        let outputs = vec![Output { consumers: consumers.to_vec(), pending: vec![0; num as usize] }];
        let (inputs, unmet) = (Vec::new(), 1);
        let (piece, budget) = (0, 0);
        let (stopping, busy, begun, ended, done) = (false, false, false, false, false);
        Actor { id: 0, inputs, outputs, unmet, piece, budget, stopping, busy, begun, ended, done }
    }

    fn told(actor: &mut Actor, msg: Msg) -> Vec<Action> {
        let mut actions = Vec::new();
        actor.on_message(msg, &mut |action| actions.push(action)).unwrap();
        actions
    }

    fn filled(to: ActorId, piece: u64) -> Action {
        Action::Send { to, msg: Msg::Filled { input: 0, piece } }
    }

    #[test]
    fn those_who_need_not_wait_hear_of_it_early_and_once() {
        let mut actor = producer(1);
        let begin = Msg::Start { pieces: 2 };
        assert_eq!(told(&mut actor, begin), [Action::Act { piece: 0 }]);
        assert_eq!(told(&mut actor, Msg::Begun), [filled(1, 0)]);
        assert!(actor.clone().on_message(Msg::Begun, &mut |_| ()).is_err(), "begun twice");
        assert_eq!(told(&mut actor, Msg::Acted), [filled(2, 0)]);
        assert!(actor.clone().on_message(Msg::Begun, &mut |_| ()).is_err(), "begun when over");
        let acked = Msg::Acked { output: 0, piece: 0 };
        assert_eq!(told(&mut actor, acked), []);
        assert_eq!(told(&mut actor, acked), [Action::Act { piece: 1 }]);
        // Work that is not told to be on its way is told of to all when it is done.
        assert_eq!(told(&mut actor, Msg::Acted), [filled(1, 1), filled(2, 1)]);
    }

    #[test]
    fn a_register_may_come_back_while_the_work_is_on_its_way() {
        for num in [1, 2] {
            let mut actor = producer(num);
            let acked = Msg::Acked { output: 0, piece: 0 };
            told(&mut actor, Msg::Start { pieces: 2 });
            told(&mut actor, Msg::Begun);
            assert_eq!(told(&mut actor, acked), []);
            let mut next = told(&mut actor, Msg::Acted);
            assert_eq!(next.remove(0), filled(2, 0));
            // The next piece waits for the other consumer, where there is no other copy.
            next.extend(if num == 1 { told(&mut actor, acked) } else { Vec::new() });
            assert_eq!(next, [Action::Act { piece: 1 }]);
        }
    }
}
