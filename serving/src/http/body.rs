//! Bodies of requests and answers.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::{Read, Write};
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use flate2::Compression;
use flate2::read::{GzDecoder, ZlibDecoder};
use flate2::write::{GzEncoder, ZlibEncoder};
use http::{HeaderMap, header};
use http_body::{Frame, SizeHint};

use crate::core::Limits;
use crate::error::{ErrorKind, ServeError};
use crate::frames::{self, Frames};

/// Receives a body, and decompresses it.
///
/// # Errors
/// When it is too large, takes too long, is cut off, or is not what its header says.
pub async fn receive(headers: &HeaderMap, body: Body, limits: &Limits) -> Result<Frames, ServeError> {
    let frames = frames::receive(body, limits).await?;
    let decoder: fn(&[u8]) -> Box<dyn Read + '_> = match headers.get(header::CONTENT_ENCODING).map(|v| v.as_bytes()) {
        None | Some(b"identity" | b"") => return Ok(frames),
        Some(b"gzip") => |bytes| Box::new(GzDecoder::new(bytes)),
        Some(b"deflate") => |bytes| Box::new(ZlibDecoder::new(bytes)),
        Some(_) => return Err(ServeError::unsupported("the content encoding is neither gzip nor deflate")),
    };
    let limit = limits.body;
    // A few bytes may become very many.
    super::apart(usize::MAX, move || inflate(frames, limit, decoder)).await?
}

fn inflate(mut frames: Frames, limit: usize, decoder: fn(&[u8]) -> Box<dyn Read + '_>) -> Result<Frames, ServeError> {
    let len = frames.len();
    let packed = frames.split_front(len, 1).unwrap_or_default();
    let mut bytes = Vec::new();
    let read = decoder(&packed).take(limit as u64 + 1).read_to_end(&mut bytes);
    read.map_err(|e| ServeError::invalid(format!("the request cannot be decompressed: {e}")))?;
    if bytes.len() > limit {
        return Err(ServeError::new(
            ErrorKind::TooLarge,
            format!("the request decompresses to more than {limit} bytes"),
        ));
    }
    let mut frames = Frames::default();
    frames.push(bytes.into());
    Ok(frames)
}

/// A body of parts that are sent as they are.
pub struct Parts {
    parts: VecDeque<Bytes>,
}

impl Parts {
    /// A body of these parts.
    pub fn new(parts: Vec<Bytes>) -> Parts {
        Parts { parts: parts.into_iter().filter(|part| !part.is_empty()).collect() }
    }
}

impl http_body::Body for Parts {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.parts.pop_front().map(|part| Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.parts.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.parts.iter().map(|part| part.len() as u64).sum())
    }
}

/// An encoding of answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// RFC 1952.
    Gzip,
    /// RFC 1950.
    Deflate,
}

/// The encoding of the answer, if the client asks for one alone; browsers list several, and would only wait for it.
pub fn encoding(headers: &HeaderMap) -> Option<Encoding> {
    match headers.get(header::ACCEPT_ENCODING)?.as_bytes() {
        b"gzip" => Some(Encoding::Gzip),
        b"deflate" => Some(Encoding::Deflate),
        _ => None,
    }
}

/// Compresses an answer.
pub fn compress(encoding: Option<Encoding>, parts: Vec<Bytes>) -> (Vec<Bytes>, Option<&'static str>) {
    let level = Compression::fast();
    let packed = match encoding {
        Some(Encoding::Gzip) => {
            let mut encoder = GzEncoder::new(Vec::new(), level);
            let written = parts.iter().try_for_each(|part| encoder.write_all(part));
            written.and_then(|()| encoder.finish()).map(|bytes| (bytes, "gzip"))
        }
        Some(Encoding::Deflate) => {
            let mut encoder = ZlibEncoder::new(Vec::new(), level);
            let written = parts.iter().try_for_each(|part| encoder.write_all(part));
            written.and_then(|()| encoder.finish()).map(|bytes| (bytes, "deflate"))
        }
        None => return (parts, None),
    };
    // Writing to memory cannot fail.
    packed.map_or((parts, None), |(bytes, name)| (vec![bytes.into()], Some(name)))
}
