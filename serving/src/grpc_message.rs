//! The message of a unary call, and its answer, without a buffer between.
//!
//! tonic joins the frames of a message in a buffer that it grows twice, so that a large tensor is copied three times in fresh memory.
//! Here a tensor that arrives in one frame stays where it is.
//!
//! Sources: <https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md> and `doc/statuscodes.md` there.

use std::convert::Infallible;
use std::fmt::Display;
use std::future::ready;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, Response, header};
use http_body_util::{BodyExt, Full};
use prost::Message;
use tonic::Status;
use tonic::body::Body;

use crate::core::Limits;
use crate::frames::receive;

/// The flag of compression and the length.
const PREFIX: usize = 5;

/// Whether a call is not compressed. tonic answers those that are.
pub fn is_plain(headers: &HeaderMap) -> bool {
    headers.get("grpc-encoding").is_none_or(|encoding| encoding == "identity")
        && headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// The headers and the message of a call.
///
/// # Errors
/// When the body is too large, takes too long or is cut off, or has not one message of this type.
pub async fn read<M, B>(request: Request<B>, limits: &Limits) -> Result<(HeaderMap, M), Status>
where
    M: Message + Default,
    B: http_body::Body<Data = Bytes, Error: Display> + Unpin,
{
    let (parts, body) = request.into_parts();
    let mut frames = receive(body, limits).await?;
    if frames.remaining() < PREFIX {
        return Err(Status::unimplemented("the call has no message"));
    }
    let flag = frames.get_u8();
    if flag != 0 {
        return Err(Status::internal(format!("the message has flag {flag}, and the call no grpc-encoding")));
    }
    let len = frames.get_u32() as usize;
    if frames.remaining() < len {
        return Err(Status::internal(format!("the message has {} of {len} bytes", frames.remaining())));
    }
    if frames.remaining() > len {
        return Err(Status::unimplemented("the call has more than one message"));
    }
    let message = M::decode(frames).map_err(|e| Status::internal(format!("the message cannot be decoded: {e}")))?;
    Ok((parts.headers, message))
}

/// The response with a message, or with a status.
pub fn response(answer: Result<impl Message, Status>) -> Response<Body> {
    let message = match answer {
        Ok(message) => message,
        Err(status) => return status.into_http(),
    };
    let len = message.encoded_len();
    let Ok(prefix) = u32::try_from(len) else {
        return Status::out_of_range(format!("the answer has {len} bytes, and a message at most 4 GiB")).into_http();
    };
    let mut bytes = BytesMut::with_capacity(PREFIX + len);
    bytes.put_u8(0);
    bytes.put_u32(prefix);
    message.encode_raw(&mut bytes);
    let trailers =
        HeaderMap::from_iter([(header::HeaderName::from_static("grpc-status"), HeaderValue::from_static("0"))]);
    let body = Full::<Bytes>::new(bytes.freeze()).with_trailers(ready(Some(Ok::<_, Infallible>(trailers))));
    let mut response = Response::new(Body::new(body));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{ModelInferRequest, ModelInferResponse};

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
    }

    fn read(bytes: Vec<u8>) -> Result<ModelInferRequest, (tonic::Code, String)> {
        let limits = Limits { body: 4000, ..Limits::default() };
        let read = run(super::read(Request::new(Full::new(Bytes::from(bytes))), &limits));
        read.map(|(_, message)| message).map_err(|status| (status.code(), status.message().to_owned()))
    }

    /// A message as it is sent.
    fn framed(message: &impl Message) -> Vec<u8> {
        let coded = message.encode_to_vec();
        [&[0][..], &u32::try_from(coded.len()).unwrap().to_be_bytes(), &coded].concat()
    }

    #[test]
    fn large_tensors_stay_where_they_are() {
        let raw = Bytes::from(vec![7; 2000]);
        let sent = ModelInferRequest { model_name: "m".into(), raw_input_contents: vec![raw], ..Default::default() };
        let body = Bytes::from(framed(&sent));
        let request = Request::new(Full::new(body.clone()));
        let (_, read): (_, ModelInferRequest) = run(super::read(request, &Limits::default())).unwrap();
        assert_eq!(read, sent);
        assert!(body.as_ptr_range().contains(&read.raw_input_contents[0].as_ptr()));
    }

    #[test]
    fn what_is_not_one_message_is_refused() {
        use tonic::Code;
        let message = framed(&ModelInferRequest { model_name: "m".into(), ..Default::default() });
        assert_eq!(read(message.clone()).unwrap().model_name, "m");
        let wrong = |bytes: Vec<u8>| read(bytes).unwrap_err();
        assert_eq!(wrong(Vec::new()), (Code::Unimplemented, "the call has no message".into()));
        assert_eq!(wrong(message.repeat(2)), (Code::Unimplemented, "the call has more than one message".into()));
        assert_eq!(wrong(message[..7].to_vec()), (Code::Internal, "the message has 2 of 3 bytes".into()));
        let compressed = [&[1], &message[1..]].concat();
        assert_eq!(wrong(compressed), (Code::Internal, "the message has flag 1, and the call no grpc-encoding".into()));
        let (code, why) = wrong(vec![0, 0, 0, 0, 2, 0xff, 0xff]);
        assert!(code == Code::Internal && why.starts_with("the message cannot be decoded: "), "{why}");
        assert_eq!(wrong(vec![0; 4001]).0, Code::ResourceExhausted);
    }

    #[test]
    fn an_answer_has_its_message_and_status() {
        let sent = ModelInferResponse { id: "7".into(), ..Default::default() };
        let response = response(Ok(sent.clone()));
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/grpc");
        let body = run(response.into_body().collect()).unwrap();
        assert_eq!(body.trailers().unwrap()["grpc-status"], "0");
        assert_eq!(body.to_bytes(), framed(&sent));
        let refused = super::response(Err::<ModelInferResponse, _>(Status::not_found("no model")));
        assert_eq!(
            (&refused.headers()["grpc-status"], &refused.headers()["grpc-message"]),
            (&HeaderValue::from_static("5"), &HeaderValue::from_static("no%20model"))
        );
    }

    #[test]
    fn only_plain_calls_are_read() {
        let headers = |encoding: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc+proto"));
            encoding.map(|encoding| headers.insert("grpc-encoding", encoding.parse().unwrap()));
            headers
        };
        assert!(is_plain(&headers(None)) && is_plain(&headers(Some("identity"))));
        assert!(!is_plain(&headers(Some("gzip"))) && !is_plain(&HeaderMap::new()));
    }
}
