//! The layout of a recording: 64-bit words, little endian. `docs/flight-recorder.md` describes it for other readers.

/// The first word of a recording.
pub const MAGIC: u64 = u64::from_le_bytes(*b"OFflight");

/// The version of this layout.
pub const VERSION: u64 = 1;

/// Words before the table of tasks.
pub const HEADER: usize = 512;

/// Words of a record.
pub const RECORD: usize = 4;

/// Words of the header, by what they hold.
pub mod word {
    pub const MAGIC: usize = 0;
    pub const VERSION: usize = 1;
    /// Records of the ring: a power of two, or 0 where there is none.
    pub const CAPACITY: usize = 2;
    /// Tasks of the table.
    pub const TASKS: usize = 3;
    /// The rank, and in the upper half the number of ranks.
    pub const RANK: usize = 4;
    /// The process.
    pub const PID: usize = 5;
    /// When it began, in the unit of `/proc/PID/stat`: a later process of the same number began later.
    pub const STARTED: usize = 6;
    /// One more than the program of the plan, and in the upper half one more than the mesh; 0 before there is a session.
    pub const PROGRAM: usize = 7;
    /// Records that were begun.
    pub const NEXT: usize = 8;
    /// Steps (runs of the program) that began and that ended.
    pub const STEPS_BEGUN: usize = 9;
    pub const STEPS_ENDED: usize = 10;
    /// Two pairs of a record's clock and of nanoseconds since 1970: at the start, and at the last step.
    pub const CLOCK: usize = 11;
    /// See [`super::Phase`].
    pub const PHASE: usize = 15;
    pub const BYTES_SENT: usize = 16;
    pub const BYTES_RECEIVED: usize = 17;
    pub const MESSAGES_SENT: usize = 18;
    pub const MESSAGES_RECEIVED: usize = 19;
    /// Times that the rank slept because it waited for another one.
    pub const WAITS: usize = 20;
    /// Steps, and acts, of other programs that the rank ran: the table of tasks is of the last one.
    pub const OTHER_STEPS: usize = 21;
    pub const OTHER_ACTS: usize = 22;
    /// The hash of the plan, four words.
    pub const PLAN_HASH: usize = 32;
    /// Texts: a word with the length, then the bytes.
    pub const HOST: usize = 64;
    pub const PLAN: usize = 128;
    pub const FAILURE: usize = 256;
}

/// The word of a program of a mesh.
pub fn program(mesh: usize, program: usize) -> u64 {
    (program as u64 + 1) | (mesh as u64 + 1) << 32
}

/// Bytes of the longest texts.
pub const MAX_HOST: usize = 8 * 62;
pub const MAX_PLAN: usize = 8 * 126;
pub const MAX_FAILURE: usize = 8 * 254;

/// How far a rank is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Phase {
    /// It waits for the other ranks to join.
    Joins = 0,
    /// It makes its session.
    Loads = 1,
    /// It runs.
    Runs = 2,
    /// It ended in order.
    Ended = 3,
    /// It failed.
    Failed = 4,
    /// It ended because another rank failed, or was lost.
    EndedByAnother = 5,
}

impl Phase {
    /// The phase of this number.
    pub fn from_word(word: u64) -> Option<Phase> {
        let all = [Phase::Joins, Phase::Loads, Phase::Runs, Phase::Ended, Phase::Failed, Phase::EndedByAnother];
        all.into_iter().find(|phase| *phase as u64 == word)
    }
}

/// What a record says.
#[allow(missing_docs, reason = "what the fields are, their names say")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A run of the program begins.
    StepBegins { step: u64 },
    /// It ended, for better or worse.
    StepEnds { step: u64 },
    /// A task begins its work, for the value of this number: the step, or the microbatch of all steps.
    ActBegins { task: u32, act: u64 },
    /// Its work is done.
    ActEnds { task: u32, act: u64 },
    /// An actor thread has nothing to do: it waits for a message.
    ThreadWaits { thread: u32 },
    /// The rank takes part in a transfer.
    TransferBegins { transfer: u32 },
    /// All its blocks were sent and received.
    TransferEnds { transfer: u32 },
    /// A block was sent.
    Sent { transfer: u32, peer: u32, bytes: u32 },
    /// A block was received.
    Received { transfer: u32, peer: u32, bytes: u32 },
    /// The rank waits for a block of a peer.
    WaitsForBlock { transfer: u32, peer: u32 },
    /// The rank waits until a peer takes a block.
    WaitsUntilTaken { transfer: u32, peer: u32 },
}

impl Event {
    /// The kind with a number, and another number.
    pub(super) fn encode(self) -> (u64, u64) {
        let word = |kind: u64, of: u32| kind | u64::from(of) << 32;
        let pair = |peer: u32, bytes: u32| u64::from(peer) << 32 | u64::from(bytes);
        match self {
            Event::StepBegins { step } => (1, step),
            Event::StepEnds { step } => (2, step),
            Event::ActBegins { task, act } => (word(3, task), act),
            Event::ActEnds { task, act } => (word(4, task), act),
            Event::ThreadWaits { thread } => (word(5, thread), 0),
            Event::TransferBegins { transfer } => (word(6, transfer), 0),
            Event::TransferEnds { transfer } => (word(7, transfer), 0),
            Event::Sent { transfer, peer, bytes } => (word(8, transfer), pair(peer, bytes)),
            Event::Received { transfer, peer, bytes } => (word(9, transfer), pair(peer, bytes)),
            Event::WaitsForBlock { transfer, peer } => (word(10, transfer), pair(peer, 0)),
            Event::WaitsUntilTaken { transfer, peer } => (word(11, transfer), pair(peer, 0)),
        }
    }

    /// `None` where the kind is none of this version.
    pub(super) fn decode(kind: u64, number: u64) -> Option<Event> {
        let of = (kind >> 32) as u32;
        let (peer, bytes) = ((number >> 32) as u32, number as u32);
        Some(match kind & 0xffff_ffff {
            1 => Event::StepBegins { step: number },
            2 => Event::StepEnds { step: number },
            3 => Event::ActBegins { task: of, act: number },
            4 => Event::ActEnds { task: of, act: number },
            5 => Event::ThreadWaits { thread: of },
            6 => Event::TransferBegins { transfer: of },
            7 => Event::TransferEnds { transfer: of },
            8 => Event::Sent { transfer: of, peer, bytes },
            9 => Event::Received { transfer: of, peer, bytes },
            10 => Event::WaitsForBlock { transfer: of, peer },
            11 => Event::WaitsUntilTaken { transfer: of, peer },
            _ => return None,
        })
    }
}

/// The last word of a record, from which its reader knows that the other three are of one record, and which one.
#[inline]
pub(super) fn check(number: u64, clock: u64, kind: u64, value: u64) -> u64 {
    const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
    let mixed = (clock ^ kind.rotate_left(21)).wrapping_mul(MULTIPLIER) ^ value.rotate_left(42);
    (mixed ^ number).wrapping_mul(MULTIPLIER)
}
