//! The span of a caller, as the headers `traceparent` and `tracestate` carry it.
//!
//! Source: Trace Context, W3C Recommendation of 2021, sections 3.2 and 3.3.

use std::fmt;
use std::str::FromStr;

use opentelemetry::trace::{TraceFlags, TraceState};
use opentelemetry::{SpanId, TraceId};

/// The span of a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceParent {
    pub(crate) id: TraceId,
    pub(crate) span: SpanId,
    /// Whether the caller's span is recorded.
    pub(crate) sampled: bool,
    state: Option<TraceState>,
}

/// The name of the header and of the variable of the environment.
pub const TRACEPARENT: &str = "traceparent";

impl TraceParent {
    /// The header's name.
    pub const HEADER: &str = TRACEPARENT;
    /// The name of the header with what vendors add.
    pub const STATE: &str = "tracestate";

    pub(crate) fn new(id: TraceId, span: SpanId, state: TraceState) -> TraceParent {
        TraceParent { id, span, sampled: true, state: Some(state) }
    }

    /// Reads `traceparent`. One that is malformed counts as none. Allocates nothing.
    pub fn read(text: &[u8]) -> Option<TraceParent> {
        let text = std::str::from_utf8(text).ok()?.trim_ascii();
        let mut parts = text.splitn(5, '-');
        let mut part = |len: usize| {
            let part = parts.next().filter(|part| part.len() == len)?;
            part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')).then_some(part)
        };
        let (version, id, span, flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
        // A later version may have more parts.
        if version == "ff" || (version == "00" && parts.next().is_some()) {
            return None;
        }
        let (id, span) = (TraceId::from_hex(id).ok()?, SpanId::from_hex(span).ok()?);
        let flags = u8::from_str_radix(flags, 16).ok()?;
        let is_valid = id != TraceId::INVALID && span != SpanId::INVALID;
        let sampled = TraceFlags::new(flags).is_sampled();
        is_valid.then_some(TraceParent { id, span, sampled, state: None })
    }

    /// Adds `tracestate`, which is passed on. One that is malformed is left out, as the recommendation says.
    #[must_use]
    pub fn with_state(self, text: Option<&[u8]>) -> TraceParent {
        let state = text.and_then(|text| TraceState::from_str(std::str::from_utf8(text).ok()?).ok());
        TraceParent { state, ..self }
    }

    /// What the variables `TRACEPARENT` and `TRACESTATE` say.
    pub fn of_environment() -> Option<TraceParent> {
        let parent = TraceParent::read(std::env::var("TRACEPARENT").ok()?.as_bytes())?;
        let state = std::env::var("TRACESTATE").ok();
        Some(parent.with_state(state.as_deref().map(str::as_bytes)))
    }

    /// Whether the caller's span is recorded.
    pub fn is_sampled(&self) -> bool {
        self.sampled
    }

    pub(crate) fn state(&self) -> TraceState {
        self.state.clone().unwrap_or_default()
    }

    /// The header `tracestate`; `None` where it is empty.
    pub fn state_header(&self) -> Option<String> {
        self.state.as_ref().map(TraceState::header).filter(|text| !text.is_empty())
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.id, self.span, u8::from(self.sampled))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn callers_are_read_and_written() {
        let parent = TraceParent::read(GOOD.as_bytes()).unwrap().with_state(Some(b"rojo=1,congo=2"));
        assert_eq!((parent.to_string(), parent.state_header()), (GOOD.into(), Some("rojo=1,congo=2".into())));
        let not_sampled = GOOD.replace("-01", "-00");
        assert!(parent.is_sampled() && !TraceParent::read(not_sampled.as_bytes()).unwrap().is_sampled());
        let later = format!("cc{}-more", &GOOD[2..]);
        assert_eq!(TraceParent::read(later.as_bytes()).unwrap().to_string(), GOOD);
        assert_eq!(parent.with_state(Some(b"no member")).state_header(), None);
    }

    #[test]
    fn malformed_callers_are_none() {
        for text in [
            "",
            "00",
            &GOOD[..54],
            &format!("{GOOD}-x"),
            &GOOD.replace("00-", "ff-"),
            &GOOD.replace("4bf92f", "4BF92F"),
            &GOOD.replace("4bf92f3577b34da6a3ce929d0e0e4736", "00000000000000000000000000000000"),
            &GOOD.replace("00f067aa0ba902b7", "0000000000000000"),
            &GOOD.replace("00f0", "é0"),
        ] {
            assert_eq!(TraceParent::read(text.as_bytes()), None, "{text}");
        }
    }
}
