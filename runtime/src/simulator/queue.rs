//! The event queue of the simulator, with random latencies. Messages between two actors keep their order, as on the real
//! bus.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::SimEvent;
use crate::actor::{ActorId, Msg};

#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// A message arrives.
    Deliver { sim_rank: usize, to: ActorId, msg: Msg },
    /// A task's work is done.
    Finish { sim_rank: usize, event: SimEvent },
}

/// Events by time; those of the same time come in random order, or in the order they were made where there is no
/// latency at all.
pub(super) struct Queue {
    heap: BinaryHeap<Reverse<(u64, u64, usize)>>,
    events: Vec<Event>,
    free: Vec<usize>,
    /// The arrival time of the last message from one actor of a rank to another.
    last: BTreeMap<(usize, ActorId, ActorId), u64>,
    random: Random,
    latency: u64,
    made: u64,
}

impl Queue {
    pub fn new(seed: u64, latency: u64) -> Self {
        Self {
            heap: BinaryHeap::new(),
            events: Vec::new(),
            free: Vec::new(),
            last: BTreeMap::new(),
            random: Random(seed),
            latency,
            made: 0,
        }
    }

    pub fn send(&mut self, now: u64, sim_rank: usize, (from, to): (ActorId, ActorId), msg: Msg) {
        let event = Event::Deliver { sim_rank, to, msg };
        if self.latency == 0 {
            return self.at(now, event);
        }
        let arrival = now + self.random.next() % (self.latency + 1);
        let last = self.last.entry((sim_rank, from, to)).or_insert(0);
        *last = arrival.max(*last + 1);
        let at = *last;
        self.at(at, event);
    }

    pub fn at(&mut self, time: u64, event: Event) {
        self.made += 1;
        let tie = if self.latency == 0 { self.made } else { self.random.next() };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.events[slot] = event;
                slot
            }
            None => {
                self.events.push(event);
                self.events.len() - 1
            }
        };
        self.heap.push(Reverse((time, tie, slot)));
    }

    pub fn pop(&mut self) -> Option<(u64, Event)> {
        let Reverse((time, _, slot)) = self.heap.pop()?;
        self.free.push(slot);
        Some((time, self.events[slot]))
    }
}

/// SplitMix64.
pub(super) struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
