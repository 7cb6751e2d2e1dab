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

    /// As [`Transport::rendezvous`], for a thread that runs while another one computes: it leaves that one the processor while it waits. A rank has one
    /// thread at a time in a rendezvous.
    ///
    /// # Errors
    /// When a rank stopped, now or before.
    fn rendezvous_concurrently(
        &self,
        me: u32,
        id: u32,
        blocks: &[TransferBlock<'_>],
        from: &[u32],
        take: &mut dyn FnMut(usize, TransferBlock<'_>),
    ) -> Result<(), Stopped> {
        self.rendezvous(me, id, blocks, from, take)
    }

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
