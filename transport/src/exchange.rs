//! One rendezvous of a rank: what it sends and takes, step by step. No step blocks.

use std::io::{Read, Write};

use of_plan::Runs;
use of_runtime::flight_recorder::Event;
use of_runtime::{Chunk, FlightRecorder, TransferBlock};

use crate::peer::PeerInfo;
use crate::shared::{OwnMemory, Sent, SharedLink};
use crate::stream_link::{Message, StreamLink, Took};

/// The link for data to another rank, over shared memory or a stream.
#[derive(Debug)]
pub(crate) enum Link<S> {
    Stream(StreamLink<S>),
    Shared(SharedLink),
}

/// A rendezvous.
pub(crate) struct Exchange<'a> {
    me: u32,
    id: u32,
    pub outgoing: Vec<Outgoing<'a>>,
    from: &'a [u32],
    /// Whether blocks are taken in chunks.
    in_chunks: bool,
    /// How many blocks were taken.
    taken: usize,
    /// What was recorded as its last wait.
    waits: Option<Event>,
}

/// How far a step came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// All is sent and taken.
    Done,
    /// Something was sent or taken.
    Progress,
    /// There was nothing to do.
    Idle,
}

/// A block that is sent.
pub(crate) struct Outgoing<'a> {
    pub block: TransferBlock<'a>,
    pub state: State<'a>,
}

pub(crate) enum State<'a> {
    New,
    /// Sent in part.
    Message(Message<'a>),
    /// The receiver reads it.
    Waits {
        message: u32,
        staging: Option<u32>,
    },
    Done,
}

impl<'a> Exchange<'a> {
    /// Rank `me` sends these blocks and takes one from each rank of `from`, in that order.
    pub fn new(me: u32, id: u32, blocks: &[TransferBlock<'a>], from: &'a [u32]) -> Exchange<'a> {
        let outgoing = blocks.iter().map(|block| Outgoing { block: *block, state: State::New }).collect();
        Exchange { me, id, outgoing, from, in_chunks: false, taken: 0, waits: None }
    }

    /// The same; blocks are taken in chunks or whole.
    pub fn in_chunks(self, in_chunks: bool) -> Exchange<'a> {
        Exchange { in_chunks, ..self }
    }

    /// Sends and takes what can be sent and taken now.
    ///
    /// # Errors
    /// When a connection is lost, or a message is damaged or of another rendezvous.
    pub fn advance<S: Read + Write>(
        &mut self,
        links: &mut [Option<Link<S>>],
        memory: Option<&OwnMemory>,
        recorder: Option<&FlightRecorder>,
        take: &mut dyn FnMut(Chunk<'_>),
    ) -> Result<Step, String> {
        let mut progress = false;
        for out in self.outgoing.iter_mut().filter(|out| !out.is_done()) {
            progress |= out.advance(self.id, link_to(links, out.block.to)?, memory, recorder)?;
        }
        for (rank, link) in links.iter_mut().enumerate() {
            if let Some(Link::Stream(link)) = link.as_mut()
                && link.is_read(self.wants_whole(rank))
            {
                progress |= link.receive()?;
            }
        }
        while let Some(rank) = self.next() {
            let (sender, me) = (self.taken, self.me);
            let mut len = 0;
            let mut pass = |bytes: &[u8], at: usize, of: usize| {
                let block = Runs::of(&[(0, bytes.len())], &[(0, bytes.len())]);
                len = of;
                take(Chunk { sender, at, of, block: TransferBlock { to: me, bytes, block: &block, element: 1 } });
            };
            let took = link_to(links, rank)?.take(self.id, self.in_chunks, &mut pass)?;
            progress |= took != Took::Nothing;
            if took != Took::End {
                break;
            }
            recorder.inspect(|recorder| recorder.received(self.id, rank, len));
            self.taken += 1;
        }
        Ok(match progress {
            _ if self.taken == self.from.len() && self.outgoing.iter().all(Outgoing::is_done) => Step::Done,
            true => Step::Progress,
            false => Step::Idle,
        })
    }

    /// The number of the rendezvous.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The rank whose block comes next.
    pub fn next(&self) -> Option<u32> {
        self.from.get(self.taken).copied()
    }

    /// Whether the block of this rank comes next, and is taken whole.
    pub fn wants_whole(&self, rank: usize) -> bool {
        !self.in_chunks && self.next().is_some_and(|next| next as usize == rank)
    }

    /// The ranks whose blocks have not come, or that have not taken one.
    pub fn waited_for(&self) -> Vec<u32> {
        let open = self.outgoing.iter().filter(|out| !out.is_done()).map(|out| out.block.to);
        let mut ranks: Vec<u32> = self.from[self.taken..].iter().copied().chain(open).collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    /// Records what this rank waits for, once.
    pub fn record_wait(&mut self, recorder: &FlightRecorder) {
        let transfer = self.id;
        let block = self.next().map(|peer| Event::WaitsForBlock { transfer, peer });
        let open = || self.outgoing.iter().find(|out| !out.is_done());
        let now = block.or_else(|| open().map(|out| Event::WaitsUntilTaken { transfer, peer: out.block.to }));
        if now != self.waits {
            self.waits = now;
            now.into_iter().for_each(|event| recorder.waits(event));
        }
    }

    /// An error where this rank waits for one that has left.
    pub fn check_peers<S: Read + Write>(
        &mut self,
        links: &mut [Option<Link<S>>],
        memory: Option<&OwnMemory>,
        is_gone: impl Fn(u32) -> bool,
    ) -> Result<(), String> {
        let gone = |link: &Link<S>| Err(format!("{} has left, and was waited for", link.peer()));
        for rank in self.from[self.taken..].iter().filter(|rank| is_gone(**rank)) {
            let link = link_to(links, *rank)?;
            if link.is_over() {
                return gone(link);
            }
        }
        let id = self.id;
        for out in self.outgoing.iter_mut().filter(|out| !out.is_done() && is_gone(out.block.to)) {
            // Over TCP, to send fails. What was taken from shared memory is known once the peer is gone.
            let link = link_to(links, out.block.to)?;
            let is_lost = match link {
                Link::Shared(_) => !out.advance(id, link, memory, None)?,
                Link::Stream(link) => link.is_deaf(),
            };
            if is_lost {
                return gone(link);
            }
        }
        Ok(())
    }
}

fn link_to<S>(links: &mut [Option<Link<S>>], rank: u32) -> Result<&mut Link<S>, String> {
    let link = links.get_mut(rank as usize).and_then(Option::as_mut);
    link.ok_or_else(|| format!("there is no connection to rank {rank}"))
}

impl Outgoing<'_> {
    pub fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// Sends what can be sent. Returns whether that was something.
    fn advance<S: Read + Write>(
        &mut self,
        id: u32,
        link: &mut Link<S>,
        memory: Option<&OwnMemory>,
        recorder: Option<&FlightRecorder>,
    ) -> Result<bool, String> {
        let progress = match (link, memory) {
            (Link::Stream(link), _) => {
                let mut message = match std::mem::replace(&mut self.state, State::Done) {
                    State::Message(message) => message,
                    _ => link.message(id, &self.block),
                };
                let progress = link.send(&mut message)?;
                if !message.is_sent() {
                    self.state = State::Message(message);
                }
                progress
            }
            (Link::Shared(link), Some(memory)) => match self.state {
                State::Waits { message, staging } => {
                    let taken = link.is_taken(memory, message, staging);
                    if taken {
                        self.state = State::Done;
                    }
                    taken
                }
                _ => {
                    let Some(sent) = link.send(memory, id, &self.block)? else { return Ok(false) };
                    self.state = match sent {
                        Sent::Done => State::Done,
                        Sent::Waits { message, staging } => State::Waits { message, staging },
                    };
                    true
                }
            },
            (Link::Shared(link), None) => return Err(format!("{} shares no memory", link.peer)),
        };
        if self.is_done() {
            recorder.inspect(|r| r.sent(id, self.block.to, self.block.block.elements() * self.block.element));
        }
        Ok(progress)
    }
}

impl<S: Read + Write> Link<S> {
    pub fn peer(&self) -> &PeerInfo {
        match self {
            Link::Stream(link) => &link.peer,
            Link::Shared(link) => &link.peer,
        }
    }

    /// Passes the block that the peer sent in rendezvous `id` to `take`, or what has come of it, with its place and the block's length.
    fn take(&mut self, id: u32, in_chunks: bool, take: &mut dyn FnMut(&[u8], usize, usize)) -> Result<Took, String> {
        match self {
            Link::Shared(link) => {
                let came = link.take(id, &mut |bytes: &[u8]| take(bytes, 0, bytes.len()))?;
                Ok(if came { Took::End } else { Took::Nothing })
            }
            Link::Stream(link) => link.take(id, in_chunks, take),
        }
    }

    /// What has come and not been taken, for the simulator's reports.
    #[cfg(test)]
    pub fn describe(&self) -> String {
        match self {
            Link::Stream(link) => link.describe(),
            Link::Shared(link) => format!("shared memory, a block: {}", link.has_block()),
        }
    }

    /// Whether nothing more will come from a peer that has left.
    fn is_over(&mut self) -> bool {
        match self {
            Link::Stream(link) => link.is_over(),
            Link::Shared(link) => !link.has_block(),
        }
    }
}
