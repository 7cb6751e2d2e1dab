//! Flags of traces.

use clap::Args;
use clap::builder::RangedU64ValueParser;
use of_diag::{Code, Diagnostic, Diagnostics, Location};
use of_telemetry::{Tracer, TracerOptions};

/// Flags of traces.
#[derive(Args, Debug)]
pub struct TraceFlags {
    /// Send traces to this collector of OpenTelemetry [default: OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, or OTEL_EXPORTER_OTLP_ENDPOINT, if the
    /// environment has them; no traces otherwise]. Over HTTP it is the whole URL, such as http://127.0.0.1:4318/v1/traces;
    /// OTEL_EXPORTER_OTLP_PROTOCOL=grpc sends them over gRPC
    #[arg(long, value_name = "URL", help_heading = "Traces")]
    pub trace_endpoint: Option<String>,
    /// Trace one of N requests, runs or steps
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Traces", value_parser = RangedU64ValueParser::<u64>::new().range(1..))]
    pub trace_rate: u64,
}

impl TraceFlags {
    /// What sends spans, if there is a collector.
    ///
    /// # Errors
    /// When a flag or variable has no meaning.
    pub fn tracer(&self) -> Result<Option<Tracer>, Diagnostics> {
        let options = TracerOptions { endpoint: self.trace_endpoint.clone() };
        Tracer::start(&options).map_err(|e| Diagnostic::error(Code::INPUT, Location::Unknown, e.to_string()).into())
    }
}
