//! Which traces are sampled, as `OTEL_TRACES_SAMPLER` and `OTEL_TRACES_SAMPLER_ARG` say.

use opentelemetry::TraceId;
use opentelemetry::trace::SpanKind;
use opentelemetry_sdk::trace::{Sampler, SamplingDecision, ShouldSample};

use crate::{TraceError, TraceParent};

/// The names that the variable may have.
const NAMES: [&str; 6] = [
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
];

#[derive(Debug)]
pub struct Sampling {
    /// Whether a trace of a caller is sampled where the caller's span is.
    follows_parent: bool,
    /// Decides for all others.
    root: Sampler,
}

impl Sampling {
    /// What the variables say; everything is sampled that no caller decides where they say nothing.
    ///
    /// # Errors
    /// When there is no such sampler, or its argument is no probability.
    pub fn of_environment(variable: &dyn Fn(&str) -> Option<String>) -> Result<Sampling, TraceError> {
        let name = variable("OTEL_TRACES_SAMPLER").unwrap_or_else(|| "parentbased_always_on".into());
        let name = name.trim();
        let root = match name.trim_start_matches("parentbased_") {
            _ if !NAMES.contains(&name) => {
                let known = NAMES.join(", ");
                return Err(TraceError(format!("OTEL_TRACES_SAMPLER is '{name}', and the samplers are {known}")));
            }
            "always_on" => Sampler::AlwaysOn,
            "always_off" => Sampler::AlwaysOff,
            _ => Sampler::TraceIdRatioBased(ratio(variable("OTEL_TRACES_SAMPLER_ARG"))?),
        };
        Ok(Sampling { follows_parent: name.starts_with("parentbased_"), root })
    }

    /// The trace of a span that is sampled. Allocates nothing.
    pub fn decide(&self, parent: Option<&TraceParent>) -> Option<TraceId> {
        let id = parent.map_or_else(|| TraceId::from(fastrand::u128(1..)), |parent| parent.id);
        if let Some(parent) = parent.filter(|_| self.follows_parent) {
            return parent.sampled.then_some(id);
        }
        let result = self.root.should_sample(None, id, "", &SpanKind::Internal, &[], &[]);
        (result.decision == SamplingDecision::RecordAndSample).then_some(id)
    }
}

fn ratio(text: Option<String>) -> Result<f64, TraceError> {
    let Some(text) = text else { return Ok(1.0) };
    let ratio = text.trim().parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
    ratio.ok_or_else(|| TraceError(format!("OTEL_TRACES_SAMPLER_ARG is '{text}', and no number from 0 to 1")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, argument: Option<&str>) -> Result<Sampling, TraceError> {
        Sampling::of_environment(&|variable| match variable {
            "OTEL_TRACES_SAMPLER" => Some(name.to_owned()),
            _ => argument.map(str::to_owned),
        })
    }

    #[test]
    fn samplers_of_the_specification() {
        let parent = |flag: &str| {
            TraceParent::read(format!("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-{flag}").as_bytes())
        };
        let (yes, no) = (parent("01"), parent("00"));
        let decide = |name: &str, argument: Option<&str>| {
            let sampling = of(name, argument).unwrap();
            [None, yes.as_ref(), no.as_ref()].map(|parent| sampling.decide(parent).is_some())
        };
        assert_eq!(decide("always_on", None), [true; 3]);
        assert_eq!(decide("always_off", None), [false; 3]);
        assert_eq!(decide("parentbased_always_on", None), [true, true, false]);
        assert_eq!(decide("parentbased_always_off", None), [false, true, false]);
        assert_eq!(decide("parentbased_traceidratio", Some("0")), [false, true, false]);
        assert_eq!(decide("traceidratio", None), [true; 3]);
        let quarter = of("traceidratio", Some("0.25")).unwrap();
        let sampled = (0..10_000).filter(|_| quarter.decide(None).is_some()).count();
        assert!((2000..3000).contains(&sampled), "{sampled}");
        // The lower 63 bits of the trace decide, so that all services decide alike.
        assert!(quarter.decide(yes.as_ref()).is_none());
    }

    #[test]
    fn unknown_samplers_are_errors() {
        assert!(of("xray", None).unwrap_err().to_string().contains("parentbased_traceidratio"));
        assert!(of("traceidratio", Some("2")).unwrap_err().to_string().contains("from 0 to 1"));
    }
}
