//! Reading a request's body: its size, its pace, its content type, and JSON with a position for errors.

use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::fields::mismatch;
use crate::service::App;

/// A body that is a JSON object.
pub(crate) struct JsonBody(pub Map<String, Value>);

impl FromRequest<App> for JsonBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Self, ApiError> {
        check_content_type(request.headers())?;
        let limit = app.options.body_limit_bytes;
        if declared_length(request.headers()).is_some_and(|length| length > limit as u64) {
            return Err(too_large(limit));
        }
        let reading = Limited::new(request.into_body(), limit).collect();
        let Ok(read) = tokio::time::timeout(app.options.body_timeout, reading).await else {
            let message = format!("the body did not arrive within {} s", app.options.body_timeout.as_secs_f32());
            return Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message));
        };
        let bytes = read.map_err(|error| unreadable(&*error, limit))?.to_bytes();
        parse_object(&bytes).map(JsonBody)
    }
}

/// JSON only: a page in a browser can send other types to a local server without asking first.
fn check_content_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let refuse = |found: &str| {
        let message = format!("expected the header Content-Type: application/json, found {found}");
        Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_content_type", message))
    };
    let Some(value) = headers.get(header::CONTENT_TYPE) else {
        return if headers.contains_key(header::ORIGIN) { refuse("none") } else { Ok(()) };
    };
    let text = value.to_str().unwrap_or("bytes that are not text");
    let media_type = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if media_type == "application/json" || (media_type.starts_with("application/") && media_type.ends_with("+json")) {
        return Ok(());
    }
    refuse(text)
}

fn declared_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn too_large(limit: usize) -> ApiError {
    let message = format!("the body is larger than {limit} bytes, this server's limit");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
}

fn unreadable(error: &(dyn std::error::Error + 'static), limit: usize) -> ApiError {
    if error.is::<http_body_util::LengthLimitError>() {
        return too_large(limit);
    }
    ApiError::new(StatusCode::BAD_REQUEST, "unreadable_body", format!("the body could not be read: {error}"))
}

pub(crate) fn parse_object(bytes: &[u8]) -> Result<Map<String, Value>, ApiError> {
    let invalid = |message: String| ApiError::new(StatusCode::BAD_REQUEST, "invalid_json", message);
    let parsed = serde_json::from_slice(bytes).or_else(|error| match replace_lone_surrogates(bytes) {
        Some(repaired) => serde_json::from_slice(&repaired),
        None => Err(error),
    });
    match parsed {
        Ok(Value::Object(map)) => Ok(map),
        Ok(other) => Err(invalid(mismatch("a JSON object", &other))),
        Err(_) if bytes.is_empty() => Err(invalid("expected a JSON object, found an empty body".to_owned())),
        Err(error) => Err(invalid(format!("the body is not valid JSON: {error}"))),
    }
}

/// Clients that cut strings by UTF-16 units leave half an emoji, such as `\ud83d`, which JSON readers
/// refuse. Each lone half becomes `\ufffd`; `None` when there are none.
fn replace_lone_surrogates(bytes: &[u8]) -> Option<Vec<u8>> {
    let unit = |at: usize| {
        let digits = bytes.get(at..at + 6)?.strip_prefix(b"\\u")?;
        u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    let mut repaired = bytes.to_vec();
    let mut changed = false;
    let mut at = 0;
    while at < bytes.len() {
        match (bytes[at], unit(at)) {
            (_, Some(0xd800..=0xdbff)) if matches!(unit(at + 6), Some(0xdc00..=0xdfff)) => at += 12,
            (_, Some(0xd800..=0xdfff)) => {
                repaired[at..at + 6].copy_from_slice(b"\\ufffd");
                changed = true;
                at += 6;
            }
            (b'\\', _) => at += 2, // an escaped backslash must not be read as the start of an escape
            _ => at += 1,
        }
    }
    changed.then_some(repaired)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lone_surrogates_become_replacement_characters() {
        let cases = [
            (r#"{"a":"x\ud83d"}"#, Some("x\u{fffd}")),
            (r#"{"a":"\ude00y"}"#, Some("\u{fffd}y")),
            (r#"{"a":"\ud83d\ude00"}"#, Some("😀")),
            (r#"{"a":"\\ud83d"}"#, Some("\\ud83d")),
            (r#"{"a":"\ud83dA"}"#, Some("\u{fffd}A")),
            (r#"{"a":"#, None),
            (r#"{"a":"\ud83"}"#, None),
        ];
        for (json, expected) in cases {
            let parsed = parse_object(json.as_bytes()).ok();
            assert_eq!(parsed.as_ref().map(|map| map["a"].as_str().unwrap()), expected, "{json}");
        }
    }

    #[test]
    fn errors_give_the_position() {
        let error = parse_object(b"{\"a\": 1,\n \"b\": }").unwrap_err();
        assert_eq!(error.message, "the body is not valid JSON: expected value at line 2 column 7");
    }
}
