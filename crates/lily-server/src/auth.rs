//! API keys: `Authorization: Bearer KEY` (OpenAI) or `x-api-key: KEY` (Anthropic).

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::anthropic;
use crate::error::ApiError;
use crate::service::App;

/// Middleware around the API's routes; lets everything through where no key is configured.
pub(crate) async fn check(State(app): State<App>, request: Request, next: Next) -> Response {
    let keys = &app.options.api_keys;
    if keys.is_empty() || presented(request.headers()).any(|given| keys.iter().any(|key| same(key, given))) {
        return next.run(request).await;
    }
    let message = match presented(request.headers()).next() {
        Some(_) => "the API key is not one of this server's keys",
        None => "expected an API key in the header Authorization: Bearer KEY (or x-api-key: KEY), found none",
    };
    let error = ApiError::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message);
    if anthropic::speaks(request.uri().path()) { anthropic::refuse(&error) } else { error.into_response() }
}

fn presented(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(|value| {
        let (scheme, key) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
    });
    let plain = headers.get("x-api-key").and_then(|value| value.to_str().ok());
    bearer.into_iter().chain(plain)
}

/// Compares without telling by its duration how much of a key was right.
fn same(key: &str, given: &str) -> bool {
    let different = key.bytes().zip(given.bytes()).fold(0, |different, (a, b)| different | (a ^ b));
    key.len() == given.len() && different == 0
}
