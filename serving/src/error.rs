//! The error of a request, as both protocols report it.

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ServeError {
    /// The kind, which decides the status.
    pub kind: ErrorKind,
    /// What is wrong, for people.
    pub message: String,
    /// When the client may try again, if that is known.
    pub retry_after: Option<std::time::Duration>,
}

/// Kinds of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request is malformed, or does not fit the model.
    Invalid,
    /// The caller gave no valid token.
    Unauthenticated,
    /// There is no such model, version or region.
    NotFound,
    /// The request is larger than the limit.
    TooLarge,
    /// The queue is full.
    Exhausted,
    /// The client left.
    Cancelled,
    /// The server does not support it.
    Unsupported,
    /// The model or the server is not ready.
    Unavailable,
    /// The deadline passed before the run.
    Deadline,
    /// The run failed.
    Internal,
}

impl ErrorKind {
    /// The status of an HTTP response.
    pub fn http_status(self) -> u16 {
        match self {
            ErrorKind::Invalid => 400,
            ErrorKind::Unauthenticated => 401,
            ErrorKind::NotFound => 404,
            ErrorKind::TooLarge => 413,
            ErrorKind::Exhausted => 429,
            ErrorKind::Cancelled => 499,
            ErrorKind::Internal => 500,
            ErrorKind::Unsupported => 501,
            ErrorKind::Unavailable => 503,
            ErrorKind::Deadline => 504,
        }
    }

    /// The status of a gRPC response.
    pub fn grpc_code(self) -> tonic::Code {
        match self {
            ErrorKind::Invalid => tonic::Code::InvalidArgument,
            ErrorKind::Unauthenticated => tonic::Code::Unauthenticated,
            ErrorKind::NotFound => tonic::Code::NotFound,
            ErrorKind::TooLarge | ErrorKind::Exhausted => tonic::Code::ResourceExhausted,
            ErrorKind::Cancelled => tonic::Code::Cancelled,
            ErrorKind::Internal => tonic::Code::Internal,
            ErrorKind::Unsupported => tonic::Code::Unimplemented,
            ErrorKind::Unavailable => tonic::Code::Unavailable,
            ErrorKind::Deadline => tonic::Code::DeadlineExceeded,
        }
    }

    /// The reason of a failure in the metrics, by Triton's names.
    pub fn reason(self) -> FailureReason {
        match self {
            ErrorKind::Exhausted | ErrorKind::Deadline => FailureReason::Rejected,
            ErrorKind::Cancelled => FailureReason::Canceled,
            ErrorKind::Internal => FailureReason::Backend,
            _ => FailureReason::Other,
        }
    }
}

/// Reasons of failures in the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureReason {
    /// The queue was full, or the deadline passed in it.
    Rejected,
    /// The client left.
    Canceled,
    /// The run failed.
    Backend,
    /// Anything else.
    Other,
}

impl FailureReason {
    /// Every reason, in the order of their numbers.
    pub const ALL: [FailureReason; 4] =
        [FailureReason::Rejected, FailureReason::Canceled, FailureReason::Backend, FailureReason::Other];

    /// The label.
    pub fn name(self) -> &'static str {
        match self {
            FailureReason::Rejected => "REJECTED",
            FailureReason::Canceled => "CANCELED",
            FailureReason::Backend => "BACKEND",
            FailureReason::Other => "OTHER",
        }
    }
}

impl ServeError {
    /// An error of a kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), retry_after: None }
    }

    /// A malformed request.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    /// Something that does not exist.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, message)
    }

    /// Something that is not supported.
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, message)
    }
}

impl From<ServeError> for tonic::Status {
    fn from(e: ServeError) -> Self {
        let mut status = tonic::Status::new(e.kind.grpc_code(), e.message);
        if let Some(wait) = e.retry_after {
            // Source: gRFC A6, "pushback".
            let millis = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).saturating_add(1);
            status.metadata_mut().insert("grpc-retry-pushback-ms", millis.into());
        }
        status
    }
}

impl From<of_runtime::ValueError> for ServeError {
    fn from(e: of_runtime::ValueError) -> Self {
        ServeError::invalid(e.to_string())
    }
}
