//! The clock, and the number of the process: those of the standard library, or of the host where it has none (WebAssembly).

#[cfg(not(target_family = "wasm"))]
pub(crate) use std::{
    process::id as process_id,
    time::{Instant, SystemTime},
};

#[cfg(target_family = "wasm")]
pub(crate) use host::{Instant, SystemTime, process_id};

#[cfg(target_family = "wasm")]
mod host {
    use std::time::{Duration, UNIX_EPOCH};

    use crate::device::milliseconds;

    /// A moment, by the host's clock.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub(crate) struct Instant(Duration);

    impl Instant {
        /// Now.
        pub fn now() -> Self {
            Self(Duration::try_from_secs_f64(milliseconds() / 1e3).unwrap_or_default())
        }

        /// The time since then.
        pub fn elapsed(self) -> Duration {
            Self::now().duration_since(self)
        }

        /// The time from an earlier moment to this one; zero if that is later.
        pub fn duration_since(self, earlier: Self) -> Duration {
            self.0.saturating_sub(earlier.0)
        }

        /// As [`Instant::duration_since`].
        pub fn saturating_duration_since(self, earlier: Self) -> Duration {
            self.duration_since(earlier)
        }
    }

    impl std::ops::Add<Duration> for Instant {
        type Output = Self;

        fn add(self, time: Duration) -> Self {
            Self(self.0.saturating_add(time))
        }
    }

    impl std::ops::Sub for Instant {
        type Output = Duration;

        fn sub(self, earlier: Self) -> Duration {
            self.duration_since(earlier)
        }
    }

    /// The time of day, which only records in files need: it stands still here, as there are no files.
    pub(crate) struct SystemTime;

    impl SystemTime {
        /// The start of the epoch.
        pub fn now() -> std::time::SystemTime {
            UNIX_EPOCH
        }
    }

    /// There is one process, without a number.
    pub(crate) fn process_id() -> u32 {
        0
    }
}
