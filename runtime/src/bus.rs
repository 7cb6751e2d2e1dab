//! The message bus: a local queue, drained first, and a channel to each other thread.
//!
//! The channels are bounded, so that they allocate once. The number of register tokens (credits) bounds the messages in
//! flight, so sending never blocks.
//!
//! The inbox of a thread is the mailbox of all actors on it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use of_plan::{Program, TaskGraph};

use crate::OnComplete;
use crate::actor::{ActorId, Msg};
use crate::clock::Instant;

/// How long a thread polls its channel before it sleeps. Messages between threads follow within microseconds
/// during an iteration.
const SPIN: Duration = Duration::from_micros(50);

/// A message to a thread.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ThreadMsg {
    /// A message to an actor.
    Actor(ActorId, Msg),
    /// The asynchronous work of an actor completed, at that time.
    Completed(ActorId, Instant),
    /// To the caller's thread: another thread has acted on all its tasks.
    IterationDone,
    /// To the caller's thread: another thread failed.
    Died,
    /// To another thread: end at once, because the session failed.
    Quit,
}

/// The thread of each actor, and its slot there.
#[derive(Debug)]
pub(crate) struct ActorLocations {
    /// For each actor, its thread.
    pub thread: Vec<u32>,
    /// For each actor, its slot on that thread.
    pub slot: Vec<u32>,
}

/// One thread's end of the bus.
#[derive(Debug)]
pub(crate) struct Bus {
    me: u32,
    locations: Arc<ActorLocations>,
    local: VecDeque<(ActorId, Msg)>,
    peers: Vec<SyncSender<ThreadMsg>>,
    inbox: Receiver<ThreadMsg>,
}

/// The most messages that can be queued for a thread.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QueueCapacity {
    /// From its own actors.
    pub local: usize,
    /// From other threads.
    pub remote: usize,
}

impl ActorLocations {
    /// The queue capacity of each thread, from the register tokens of a program. Each copy of a register causes one message
    /// to each consumer and one acknowledgement. In addition, every edge ends once, every task completes once, and every
    /// thread gets a few commands.
    pub fn capacities(&self, program: &Program, graph: &TaskGraph, threads: usize) -> Vec<QueueCapacity> {
        let tasks = program.tasks.len();
        let mut capacities = vec![QueueCapacity { local: tasks, remote: 3 * tasks + 4 * threads }; threads];
        for register in &program.registers {
            let from = self.thread[graph.producer[register.id as usize] as usize];
            for &consumer in &graph.consumers[register.id as usize] {
                let to = self.thread[consumer as usize];
                let tokens = register.copies as usize + 1;
                for thread in [from, to] {
                    let capacity = &mut capacities[thread as usize];
                    *(if from == to { &mut capacity.local } else { &mut capacity.remote }) += tokens;
                }
            }
        }
        capacities
    }
}

/// A bus of as many threads as there are capacities.
pub(crate) fn connect(capacities: &[QueueCapacity], locations: &Arc<ActorLocations>) -> Vec<Bus> {
    let (peers, inboxes): (Vec<_>, Vec<_>) = capacities.iter().map(|capacity| sync_channel(capacity.remote)).unzip();
    let ends = inboxes.into_iter().enumerate().map(|(me, inbox)| Bus {
        me: me as u32,
        locations: Arc::clone(locations),
        local: VecDeque::with_capacity(capacities[me].local),
        peers: peers.clone(),
        inbox,
    });
    ends.collect()
}

impl Bus {
    /// The thread of this end.
    pub fn thread(&self) -> u32 {
        self.me
    }

    /// Sends a message to an actor, wherever it lives. `false` when its thread is gone.
    #[inline]
    pub fn send(&mut self, to: ActorId, msg: Msg) -> bool {
        let thread = self.locations.thread[to as usize];
        if thread == self.me {
            self.local.push_back((to, msg));
            return true;
        }
        self.send_to_thread(thread, ThreadMsg::Actor(to, msg))
    }

    /// Sends a message to a thread. `false` when it is gone.
    pub fn send_to_thread(&self, thread: u32, mail: ThreadMsg) -> bool {
        let Some(peer) = self.peers.get(thread as usize) else {
            return false;
        };
        match peer.try_send(mail) {
            Ok(()) => true,
            Err(TrySendError::Disconnected(_)) => false,
            // The capacities rule this out; were one wrong, waiting is right all the same.
            Err(TrySendError::Full(mail)) => peer.send(mail).is_ok(),
        }
    }

    /// The next message of the local queue.
    #[inline]
    pub fn next_local(&mut self) -> Option<(ActorId, Msg)> {
        self.local.pop_front()
    }

    /// The next message from another thread, if one is there.
    pub fn poll(&self) -> Option<ThreadMsg> {
        // A bus end holds a sender to itself, so its channel never closes: an error means that the channel is empty.
        self.inbox.try_recv().ok()
    }

    /// The next message from another thread. Polls for a moment, then sleeps; `None` after `timeout`. A thread that waits for a device
    /// keeps polling, as the device's driver does, because waking takes as long as short work does.
    pub fn wait(&self, timeout: Duration, for_a_device: bool) -> Option<ThreadMsg> {
        let start = Instant::now();
        loop {
            for _ in 0..16 {
                if let Some(mail) = self.poll() {
                    return Some(mail);
                }
                std::hint::spin_loop();
            }
            let waited = start.elapsed();
            if waited >= SPIN && (!for_a_device || waited >= timeout) {
                return self.inbox.recv_timeout(timeout).ok();
            } else if waited >= SPIN {
                std::thread::yield_now();
            }
        }
    }

    /// A callback that notifies this thread that an actor's asynchronous work completed.
    pub fn on_complete(&self, actor: ActorId) -> Option<OnComplete> {
        let mine = self.peers.get(self.me as usize)?.clone();
        Some(Arc::new(move || {
            // When the thread is gone, nothing waits for the message.
            let _ = mine.send(ThreadMsg::Completed(actor, Instant::now()));
        }))
    }

    /// A way to reach the caller's thread when this end of the bus is lost.
    pub fn to_caller(&self) -> Option<SyncSender<ThreadMsg>> {
        self.peers.first().cloned()
    }

    /// The slot of an actor on this thread.
    #[inline]
    pub fn slot(&self, actor: ActorId) -> usize {
        self.locations.slot[actor as usize] as usize
    }
}
