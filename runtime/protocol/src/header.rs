//! What stands before a request's and a response's body, and whole frames made of both.
//!
//! Invariants:
//! - a request's client id has a 16-bit length in every header version
//! - an `ApiVersions` response of error `UNSUPPORTED_VERSION` has a body of version 0
//!
//! Never: matches responses with requests; the connection does that by correlation id.

use crate::api::{ApiKey, Request};
use crate::error::ErrorCode;
use crate::frame::Frame;
use crate::primitives::{DecodeError, Decoder, EncodeError, Encoder, Form, Wire};
use crate::schema::Message;

/// Client ids and correlation ids stand in plain form even in flexible headers.
const PLAIN: Form = Form {
    version: 1,
    flexible: false,
};

/// The header of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestHeader {
    /// The number of the API; may be one that [`ApiKey`] does not know.
    pub api_key: i16,
    /// The version of the request's body.
    pub api_version: i16,
    /// Given back in the response.
    pub correlation_id: i32,
    /// The name that the client gave itself.
    pub client_id: Option<String>,
}

/// Makes the frame of a request.
///
/// # Errors
/// [`EncodeError`] if the version does not exist or a value has no form in it.
pub fn encode_request<R: Request>(
    api_version: i16,
    correlation_id: i32,
    client_id: Option<&str>,
    request: &R,
) -> Result<Frame, EncodeError> {
    let mut encoder = Encoder::new();
    encoder.i16(R::API as i16);
    encoder.i16(api_version);
    encoder.i32(correlation_id);
    match client_id {
        None => encoder.i16(-1),
        Some(text) => {
            let length = text.len();
            let size = i16::try_from(length).map_err(|_| EncodeError::Length {
                what: "client id",
                length,
            })?;
            encoder.i16(size);
            encoder.raw(text.as_bytes());
        }
    }
    if R::API.request_header_version(api_version) >= 2 {
        encoder.unsigned_varint(0);
    }
    request.encode(&mut encoder, api_version)?;
    Ok(encoder.finish())
}

/// Reads the header of a request; the body follows in the decoder.
///
/// # Errors
/// [`DecodeError`] if the bytes are none. The header of an API that this crate does not know is
/// read as one without tagged fields.
pub fn decode_request_header(decoder: &mut Decoder) -> Result<RequestHeader, DecodeError> {
    let at = |field| move |error: DecodeError| error.in_field("RequestHeader", field);
    let api_key = decoder.i16().map_err(at("api_key"))?;
    let api_version = decoder.i16().map_err(at("api_version"))?;
    let correlation_id = decoder.i32().map_err(at("correlation_id"))?;
    let client_id = Wire::read(decoder, PLAIN).map_err(at("client_id"))?;
    let api = ApiKey::from_i16(api_key);
    if api.is_some_and(|api| api.request_header_version(api_version) >= 2) {
        decoder.skip_tags().map_err(at("tags"))?;
    }
    Ok(RequestHeader {
        api_key,
        api_version,
        correlation_id,
        client_id,
    })
}

/// Makes the frame of a response.
///
/// # Errors
/// [`EncodeError`] if the version does not exist or a value has no form in it.
pub fn encode_response<M: Message>(
    api: ApiKey,
    api_version: i16,
    correlation_id: i32,
    response: &M,
) -> Result<Frame, EncodeError> {
    let mut encoder = Encoder::new();
    encoder.i32(correlation_id);
    if api.response_header_version(api_version) >= 1 {
        encoder.unsigned_varint(0);
    }
    response.encode(&mut encoder, api_version)?;
    Ok(encoder.finish())
}

/// Reads a response to a request of type `R` that was sent in `api_version`: the correlation id
/// and the body.
///
/// A broker that does not know the version of an `ApiVersions` request answers in version 0; that
/// is seen by the error code, which stands first in every version.
///
/// # Errors
/// [`DecodeError`] if the bytes are none. Bytes after the body are left unread.
pub fn decode_response<R: Request>(
    frame: Frame,
    api_version: i16,
) -> Result<(i32, R::Response), DecodeError> {
    let mut decoder = Decoder::new(frame);
    let at = |field| move |error: DecodeError| error.in_field("ResponseHeader", field);
    let correlation_id = decoder.i32().map_err(at("correlation_id"))?;
    if R::API.response_header_version(api_version) >= 1 {
        decoder.skip_tags().map_err(at("tags"))?;
    }
    let mut version = api_version;
    if R::API == ApiKey::ApiVersions {
        let code = decoder.clone().i16().map(ErrorCode);
        if code == Ok(ErrorCode::UNSUPPORTED_VERSION) {
            version = 0;
        }
    }
    Ok((correlation_id, R::Response::decode(&mut decoder, version)?))
}
