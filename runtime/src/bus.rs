//! The message bus: a plain local queue, drained first, and a channel to each other thread.
//!
//! The channels are bounded, so that they allocate once; their bounds come from the register tokens, of which there are
//! only so many, and therefore sending never blocks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use of_plan::{Links, Program};

use crate::OnComplete;
use crate::actor::{ActorId, Msg};

/// How long a thread polls its channel before it sleeps. A message between threads is due within microseconds while a
/// piece is on its way.
const SPIN: Duration = Duration::from_micros(50);

/// What travels between threads.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mail {
    /// A message to an actor.
    Actor(ActorId, Msg),
    /// The work that an actor began is over, since then.
    Over(ActorId, Instant),
    /// To the caller's thread: another thread has acted on all its tasks.
    PieceDone,
    /// To the caller's thread: another thread broke down.
    Died,
    /// To another thread: end at once, because the session is of no use any more.
    Quit,
}

/// Where actors live.
#[derive(Debug)]
pub(crate) struct Routes {
    /// For each actor, its thread.
    pub thread: Vec<u32>,
    /// For each actor, its place on that thread.
    pub place: Vec<u32>,
}

/// One thread's end of the bus.
#[derive(Debug)]
pub(crate) struct Bus {
    me: u32,
    routes: Arc<Routes>,
    local: VecDeque<(ActorId, Msg)>,
    peers: Vec<SyncSender<Mail>>,
    inbox: Receiver<Mail>,
}

/// The most messages that can wait for a thread at one time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bound {
    /// From its own actors.
    pub local: usize,
    /// From other threads.
    pub mail: usize,
}

impl Routes {
    /// The bounds of each thread, from the tokens of a program. A register's copy is full at each consumer once and
    /// acknowledged by it once; besides, every edge ends once, work of every task is over once, and every thread gets a few
    /// commands.
    pub fn bounds(&self, program: &Program, links: &Links, threads: usize) -> Vec<Bound> {
        let tasks = program.tasks.len();
        let mut bounds = vec![Bound { local: tasks, mail: 3 * tasks + 4 * threads }; threads];
        for regst in &program.regsts {
            let from = self.thread[links.producer[regst.id as usize] as usize];
            for &consumer in &links.consumers[regst.id as usize] {
                let to = self.thread[consumer as usize];
                let tokens = regst.num as usize + 1;
                for thread in [from, to] {
                    let bound = &mut bounds[thread as usize];
                    *(if from == to { &mut bound.local } else { &mut bound.mail }) += tokens;
                }
            }
        }
        bounds
    }
}

/// A bus of as many threads as there are bounds.
pub(crate) fn connect(bounds: &[Bound], routes: &Arc<Routes>) -> Vec<Bus> {
    let (peers, inboxes): (Vec<_>, Vec<_>) = bounds.iter().map(|bound| sync_channel(bound.mail)).unzip();
    let ends = inboxes.into_iter().enumerate().map(|(me, inbox)| Bus {
        me: me as u32,
        routes: Arc::clone(routes),
        local: VecDeque::with_capacity(bounds[me].local),
        peers: peers.clone(),
        inbox,
    });
    ends.collect()
}

impl Bus {
    /// Sends a message to an actor, wherever it lives. `false` when its thread is gone.
    #[inline]
    pub fn send(&mut self, to: ActorId, msg: Msg) -> bool {
        let thread = self.routes.thread[to as usize];
        if thread == self.me {
            self.local.push_back((to, msg));
            return true;
        }
        self.mail(thread, Mail::Actor(to, msg))
    }

    /// Sends mail to a thread. `false` when it is gone.
    pub fn mail(&self, thread: u32, mail: Mail) -> bool {
        let Some(peer) = self.peers.get(thread as usize) else {
            return false;
        };
        match peer.try_send(mail) {
            Ok(()) => true,
            Err(TrySendError::Disconnected(_)) => false,
            // The bounds rule this out; were one wrong, waiting is right all the same.
            Err(TrySendError::Full(mail)) => peer.send(mail).is_ok(),
        }
    }

    /// The next message of the local queue.
    #[inline]
    pub fn next_local(&mut self) -> Option<(ActorId, Msg)> {
        self.local.pop_front()
    }

    /// The next mail from another thread, if one is there.
    pub fn poll(&self) -> Option<Mail> {
        // A bus end holds a sender to itself, so its channel never closes: no mail only means that none is there.
        self.inbox.try_recv().ok()
    }

    /// The next mail from another thread. Polls for a moment, then sleeps; `None` after `patience`. Who waits for a device
    /// polls on, as the device's driver does: waking takes as long as short work does.
    pub fn wait(&self, patience: Duration, for_a_device: bool) -> Option<Mail> {
        let start = Instant::now();
        loop {
            for _ in 0..16 {
                if let Some(mail) = self.poll() {
                    return Some(mail);
                }
                std::hint::spin_loop();
            }
            let waited = start.elapsed();
            if waited >= SPIN && (!for_a_device || waited >= patience) {
                return self.inbox.recv_timeout(patience).ok();
            } else if waited >= SPIN {
                std::thread::yield_now();
            }
        }
    }

    /// What tells this thread that the work of one of its actors is over.
    pub fn over(&self, actor: ActorId) -> Option<OnComplete> {
        let mine = self.peers.get(self.me as usize)?.clone();
        Some(Arc::new(move || {
            // When the thread is gone there is nobody left to tell.
            let _ = mine.send(Mail::Over(actor, Instant::now()));
        }))
    }

    /// A way to reach the caller's thread when this end of the bus is lost.
    pub fn to_caller(&self) -> Option<SyncSender<Mail>> {
        self.peers.first().cloned()
    }

    /// The place of an actor on this thread.
    #[inline]
    pub fn place(&self, actor: ActorId) -> usize {
        self.routes.place[actor as usize] as usize
    }
}
