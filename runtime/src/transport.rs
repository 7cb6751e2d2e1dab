//! Transports: how ranks exchange data in a rendezvous. [`crate::SharedMemory`] implements the trait.

use std::io;
use std::sync::Arc;

use of_plan::Runs;
use of_plan::pages::MmapRaw;

use crate::FlightRecorder;

/// A block of elements that one rank sends to another.
#[derive(Clone, Copy, Debug)]
pub struct TransferBlock<'a> {
    /// The receiver.
    pub to: u32,
    /// The bytes of the sender's whole part, which contains the block.
    pub bytes: &'a [u8],
    /// The block, in elements.
    pub block: &'a Runs,
    /// Bytes of an element.
    pub element: usize,
}

impl TransferBlock<'_> {
    /// Bytes of the block.
    pub fn len(&self) -> usize {
        self.block.elements() * self.element
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Bytes of a block that came from another rank.
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    /// The sender, an index in the list of ranks that are received from.
    pub sender: usize,
    /// Bytes of the block before these, a multiple of [`Chunk::ALIGN`].
    pub at: usize,
    /// Bytes of the whole block.
    pub of: usize,
    /// These bytes. Those of a chunk that is not the whole block are one after another.
    pub block: TransferBlock<'a>,
}

impl<'a> Chunk<'a> {
    /// Chunks begin at multiples of so many bytes, so that no element is in two.
    pub const ALIGN: usize = 64;

    /// The whole block of a sender.
    pub fn whole(sender: usize, block: TransferBlock<'a>) -> Self {
        Chunk { sender, at: 0, of: block.len(), block }
    }

    /// Whether the block ends with this chunk.
    pub fn is_last(&self) -> bool {
        self.at + self.block.len() >= self.of
    }
}

/// Another rank failed, so this one must not wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("another rank stopped")]
pub struct Stopped;

/// Why all ranks stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StopReason {
    /// The rank that failed, and how.
    pub text: String,
    /// The transfer that this rank was in.
    pub transfer: Option<u32>,
    /// The ranks that it waited for there, each with its process and host.
    pub waited_for: Vec<String>,
}

/// A way for ranks to exchange data. Transfers do not depend on it: threads read one another's memory in place; a
/// transport between processes packs, sends and receives blocks.
pub trait Transport: Send + Sync {
    /// Rank `me` takes part in the rendezvous with number `id`. It sends `blocks`, and passes the block from each rank of
    /// `from` to `take`, in that order, with its index in `from`. When this returns, no other rank reads `blocks`.
    ///
    /// # Errors
    /// When a rank stopped, now or before.
    fn rendezvous(
        &self,
        me: u32,
        id: u32,
        blocks: &[TransferBlock<'_>],
        from: &[u32],
        take: &mut dyn FnMut(usize, TransferBlock<'_>),
    ) -> Result<(), Stopped>;

    /// As [`Transport::rendezvous`], with blocks in chunks. A transport that copies passes each chunk when it has come, while it is in the cache. Those of a
    /// block come in order, and all of them before those of the next sender. When the rendezvous fails, some may have been passed.
    ///
    /// With `concurrently`, another thread of the rank computes in the meantime: this one leaves it the processor while it waits. A rank has one thread at a
    /// time in a rendezvous.
    ///
    /// # Errors
    /// When a rank stopped, now or before.
    fn rendezvous_in_chunks(
        &self,
        me: u32,
        id: u32,
        blocks: &[TransferBlock<'_>],
        from: &[u32],
        concurrently: bool,
        take: &mut dyn FnMut(Chunk<'_>),
    ) -> Result<(), Stopped>;

    /// Zeroed memory for the registers of a rank's session. A transport that shares it with other processes need not copy blocks
    /// that are in it.
    ///
    /// # Errors
    /// When the system gives none.
    fn memory(&self, len: usize) -> io::Result<Arc<MmapRaw>> {
        Ok(Arc::new(of_plan::zeroed_pages(len)?.into()))
    }

    /// Ends every rendezvous that ranks wait in, and all later ones.
    fn stop(&self);

    /// As [`Transport::stop`], and tells the other ranks why.
    fn fail(&self, why: &str) {
        let _ = why;
        self.stop();
    }

    /// Whether that was done.
    fn stopped(&self) -> bool;

    /// What records the acts of a rank's session and the blocks that it sends and receives, where the ranks are processes.
    fn recorder(&self) -> Option<&Arc<FlightRecorder>> {
        None
    }

    /// This rank with its process and host, for an error.
    fn own_name(&self) -> Option<String> {
        None
    }

    /// Why it was done, where the transport knows it.
    fn reason(&self) -> Option<StopReason> {
        None
    }
}
