//! Time in a program: which tasks run several times in a run, and in which order.
//!
//! The tasks of a program with microbatches form phases. A phase is a list of tasks that run one after another, once in a run or
//! once in each microbatch. The schedule is the order in which its thread runs the phases: a static-order schedule of a dataflow
//! graph with two rates (Lee and Messerschmitt, "Synchronous Data Flow", 1987). Repetitions in it are loops, so that the size of a program
//! does not depend on the number of microbatches.

/// Tasks that run one after another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct Phase {
    /// Index of its first task.
    #[prost(uint32, tag = "1")]
    pub first: u32,
    /// Number of tasks.
    #[prost(uint32, tag = "2")]
    pub tasks: u32,
    /// How many times it runs in a run.
    #[prost(uint32, tag = "3")]
    pub times: u32,
}

/// Phases that run one after another, several times.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct ScheduleLoop {
    /// Indexes of the phases.
    #[prost(uint32, repeated, tag = "1")]
    pub phases: Vec<u32>,
    /// How many times.
    #[prost(uint32, tag = "2")]
    pub times: u32,
}

impl Phase {
    /// The indexes of its tasks.
    pub fn range(&self) -> std::ops::Range<usize> {
        self.first as usize..self.first as usize + self.tasks as usize
    }
}
